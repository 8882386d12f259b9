//! The dispatcher begins days, freezes their waves, publishes members whom the ledger lacks, closes days and reports.
//!
//! Any number of passes may run at once, late ones too: a lease only saves work. After a pass was killed, the next pass
//! goes on with its run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_schemas::celebration::Occurrence;
use anabranch_schemas::shard::ShardId;
use jiff::civil::Date;
use tokio::time::Instant;

use crate::days::{
    Fence, MemberNeed, Sweep, begin, begin_sweep, close, continue_sweep, end_wave, is_held, join, may_close,
    need, rely, take_over,
};
use crate::freezing::{self, Wave};
use crate::issuing::Chain;
use crate::ports::{Clock, CohortRows, DayReports, Ledger, Reconciled, Register, Uniques, WorkQueue};
use crate::programme::Programme;
use crate::records::{
    DayRun, MEMBERS_MAX, Member, MemberState, Message, ProgrammeLedger, RowState, RunKey, RunLedger, WAVES,
    part,
};
use crate::report::Report;
use crate::resending::{Resends, resend};
use crate::restored;

/// Members that a sweep reads at once.
const SWEEP_ROWS: usize = 5_000;

/// The ports and the clock of a dispatcher.
#[derive(Debug)]
pub struct Dispatcher<L, B, Q, R, U> {
    pub ledger: L,
    pub cohort: B,
    pub queue: Q,
    pub register: R,
    /// The clock and the unique numbers of this process.
    pub process: U,
    /// The letters that this process published again.
    pub resends: Arc<Resends>,
}

/// The findings of a pass about an open day.
#[derive(Debug, Clone)]
pub struct DayPassed {
    pub day: Date,
    /// Waves that were frozen when the members were counted.
    pub frozen: u8,
    /// No wave is frozen, because the day waits for a reconciliation that is young enough.
    pub is_waiting: bool,
    pub report: Report,
    pub is_closed: bool,
}

/// The findings of a pass: the days that it swept, or found to wait, and the first fault of any day.
#[derive(Debug)]
pub struct Passed {
    pub days: Vec<DayPassed>,
    /// The first day that is still open.
    pub oldest_open: Option<Date>,
    /// Dead letters that wait for a person; `None` if they could not be read.
    pub letters: Option<u64>,
    pub fault: Option<Fault>,
}

/// Members that a sweep found without a coupon and has not published yet, by their part.
struct UnpublishedMembers<'a> {
    key: &'a RunKey,
    wave: u8,
    parts: BTreeMap<u64, Vec<Member>>,
}

impl UnpublishedMembers<'_> {
    fn add(&mut self, member: Member) {
        self.parts.entry(part(member.user)).or_default().push(member);
    }

    /// Takes full messages; the other members wait for more.
    fn full(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for members in self.parts.values_mut() {
            while members.len() >= MEMBERS_MAX {
                let rest = members.split_off(MEMBERS_MAX);
                let members = std::mem::replace(members, rest);
                messages.push(Message { run: self.key.clone(), members, wave: self.wave });
            }
        }
        messages
    }

    /// Returns messages for the members that still wait.
    fn rest(self) -> Vec<Message> {
        let message = |members| Message { run: self.key.clone(), members, wave: self.wave };
        self.parts.into_values().map(message).collect()
    }
}

/// Begins every day that has come and has no run; returns the days whose runs are open, in order.
pub async fn begin_days<L: Ledger, U: Clock + Uniques>(
    ledger: &L,
    process: &U,
    programme: &Programme,
) -> Result<Vec<Date>, Fault> {
    let (own_clock, revision) = (process.now(), process.fresh());
    let begin = |l: &mut ProgrammeLedger| {
        begin(l, programme, own_clock, revision);
        l.open.clone()
    };
    failpoints::reach("coupons-before-begin").await;
    let open = ledger.with_programme(&programme.name, begin).await?;
    failpoints::reach("coupons-after-begin").await;
    Ok(open)
}

/// Returns a run and the present counts of its members in the ledger; `None` for a day without a run.
pub async fn count<L: Ledger>(ledger: &L, key: &RunKey) -> Result<Option<(DayRun, Report)>, Fault> {
    let (mut report, mut after) = (Report::default(), None);
    loop {
        let (_, page) = ledger.member_states(key, after, SWEEP_ROWS).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.member);
        page.iter().for_each(|member_state| report.add(member_state, key.day));
    }
    let run = ledger.with_run(key, &[], |l| l.run.clone()).await?;
    report.eligible = run.as_ref().map_or(0, |run| run.count);
    Ok(run.map(|run| (run, report)))
}

impl<L, B, Q, R, U> Dispatcher<L, B, Q, R, U>
where
    L: Ledger,
    B: CohortRows,
    Q: WorkQueue,
    R: Register,
    U: Clock + Uniques,
{
    /// Passes once over a programme: handles each day that has come and is not closed, in turn.
    ///
    /// A fault of one day does not hold up the others.
    pub async fn pass(&self, programme: &Programme, reports: &impl DayReports) -> Result<Passed, Fault> {
        let (chain, ..) = restored::compare(&self.ledger, &self.register).await?;
        if chain == Some(Chain::Restored) {
            return Err(restored::fault());
        }
        let days = begin_days(&self.ledger, &self.process, programme).await?;
        let mut passed = Passed { days: Vec::new(), oldest_open: None, letters: None, fault: None };
        for day in days.iter().copied() {
            let run = RunKey { programme: programme.name.clone(), day };
            if let Err(fault) = self.day(&run, reports, &mut passed.days).await {
                passed.fault.get_or_insert(fault);
            }
        }
        let is_closed = |day: &Date| passed.days.iter().any(|passed| passed.day == *day && passed.is_closed);
        passed.oldest_open = days.into_iter().find(|day| !is_closed(day));
        let now = self.process.now();
        match resend(&self.ledger, &self.queue, &programme.name, now, &self.resends).await {
            Ok(waiting) => passed.letters = Some(waiting),
            Err(fault) => passed.fault = passed.fault.or(Some(fault)),
        }
        Ok(passed)
    }

    /// Freezes the waves of a day that are due, sweeps it, and adds the findings to `days`.
    ///
    /// When a later wave cannot be frozen, the members of the earlier ones are swept all the same, and then the fault
    /// is returned. Such a sweep closes no day, because a wave is missing.
    async fn day(
        &self,
        key: &RunKey,
        reports: &impl DayReports,
        days: &mut Vec<DayPassed>,
    ) -> Result<(), Fault> {
        let mut has_frozen = false;
        loop {
            let reconciled = self.cohort.reconciled().await?;
            let reconciled_at = reconciled.as_ref().map(|reconciled| reconciled.ended_at);
            let (now, run) = self.ledger.with_run(key, &[], |l| (l.now, l.run.clone())).await?;
            let Some(run) = run.filter(|run| !run.is_closed) else { return Ok(()) };
            let mut unfrozen = Ok(());
            if run.is_due(key.day, now, reconciled_at) {
                match self.freeze(key, run.frozen, reconciled.as_ref()).await {
                    Ok(true) => {
                        has_frozen = true;
                        continue;
                    }
                    Ok(false) => {}
                    Err(fault) if run.frozen > 0 => unfrozen = Err(fault),
                    Err(fault) => return Err(fault),
                }
            }
            if run.frozen == 0 {
                // There is nothing to sweep. The day is shown all the same.
                let is_waiting = run.waits_for_reconciliation(key.day, now, reconciled_at);
                let report = Report::default();
                days.push(DayPassed { day: key.day, frozen: 0, is_waiting, report, is_closed: false });
                return Ok(());
            }
            let number = self.process.fresh();
            failpoints::reach("coupons-before-sweep").await;
            let begun = self.ledger.with_run(key, &[], |l| begin_sweep(l, number)).await?;
            failpoints::reach("coupons-after-sweep").await;
            let Some(begun) = begun else { return unfrozen };
            let unproven = begun.run.unproven_tables(key.day, now, reconciled.as_ref());
            let swept = self.sweep(key, &begun, has_frozen, unproven, reports).await;
            return unfrozen.and(swept.map(|day| days.push(day)));
        }
    }

    /// Freezes a wave; returns `false` when it has to wait or another freezer has taken over.
    async fn freeze(&self, key: &RunKey, wave: u8, reconciled: Option<&Reconciled>) -> Result<bool, Fault> {
        let revision = self.process.fresh();
        failpoints::reach("coupons-before-take-over").await;
        let taken = self.ledger.with_run(key, &[], |l| take_over(l, wave, revision)).await?;
        failpoints::reach("coupons-after-take-over").await;
        let Some(run) = taken else { return Ok(false) };
        let is_after_barrier = self.cohort.barrier().await?;
        // Midnight and noon record that they lacked the barrier, and go on; the catch-up waits for it.
        if !is_after_barrier && wave + 1 == WAVES {
            return Ok(false);
        }
        let of_wave = Wave { key, run: &run, number: wave, is_after_barrier };
        let Some(cursor) = freezing::freeze(&self.ledger, &self.cohort, of_wave).await? else {
            return Ok(false);
        };
        let fence = Fence { wave, revision, cursor };
        let end = |l: &mut RunLedger| {
            let has_ended = end_wave(l, fence, is_after_barrier);
            if has_ended && wave == 0 {
                rely(l, key.day, reconciled);
            }
            has_ended
        };
        failpoints::reach("coupons-before-wave-end").await;
        let has_ended = self.ledger.with_run(key, &[], end).await?;
        failpoints::reach("coupons-after-wave-end").await;
        Ok(has_ended)
    }

    /// Makes the columns of the day's tables follow the ledger once more, since a granter may have died before it did
    /// so.
    async fn follow(&self, key: &RunKey, run: &DayRun, page: &[MemberState]) {
        let of_day = |member_state: &&MemberState| {
            member_state.row.as_ref().is_some_and(|row| row.day == key.day && row.state == RowState::Settled)
        };
        let granted = page.iter().filter(of_day).filter_map(|MemberState { member, .. }| {
            Some((member.user, Occurrence::of(member.calendar, key.day)?))
        });
        let granted: Vec<_> = granted.collect();
        if granted.is_empty() {
            return;
        }
        failpoints::reach("coupons-before-day-columns").await;
        if let Err(fault) = self.cohort.follow(&run.birthdays(key.day), &granted).await {
            tracing::warn!(%fault, "the columns of a birthday table could not be updated from the ledger");
        }
        failpoints::reach("coupons-after-day-columns").await;
    }

    /// Publishes a message for each member whom the ledger lacks, also if one was published before, and counts all
    /// members.
    ///
    /// A member whom only unproven tables name waits. Members for whom the queue has no room wait for a later sweep.
    async fn sweep(
        &self,
        key: &RunKey,
        begun: &Sweep,
        has_frozen: bool,
        unproven: Option<&BTreeSet<ShardId>>,
        reports: &impl DayReports,
    ) -> Result<DayPassed, Fault> {
        let run = &begun.run;
        let (mut report, mut after, mut open) = (Report::default(), None, 0u64);
        let mut lacking = UnpublishedMembers { key, wave: run.frozen, parts: BTreeMap::new() };
        let mut has_room = true;
        loop {
            let began = Instant::now();
            let (now, page) = self.ledger.member_states(key, after, SWEEP_ROWS).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.member);
            self.join_strangers(key, &page).await?;
            for member_state in &page {
                report.add(member_state, key.day);
                let need = need(member_state, key.day, run.frozen, now);
                open += u64::from(need != MemberNeed::Nothing);
                if need != MemberNeed::Message {
                    continue;
                }
                if unproven.is_some_and(|unproven| is_held(member_state, unproven)) {
                    report.held += 1;
                } else if has_room {
                    lacking.add(member_state.member);
                }
            }
            if has_frozen {
                self.follow(key, run, &page).await;
            }
            has_room = has_room && self.publish(&lacking.full()).await?;
            // A small day costs the servers little, and lanes need not be asked about it.
            if page.len() == SWEEP_ROWS {
                self.cohort.make_way(began.elapsed()).await;
            }
        }
        failpoints::reach("coupons-before-publish").await;
        has_room = has_room && self.publish(&lacking.rest()).await?;
        failpoints::reach("coupons-after-publish").await;
        let is_closed = self.finish(key, begun, open == 0, &mut report, reports).await?;
        tracing::debug!(day = %key.day, has_frozen, open, has_room, is_closed, "the day was swept");
        Ok(DayPassed { day: key.day, frozen: run.frozen, is_waiting: false, report, is_closed })
    }

    /// Adds the users of a page who have a row of the day and are no members, because the ledger was restored.
    async fn join_strangers(&self, key: &RunKey, page: &[MemberState]) -> Result<(), Fault> {
        let strangers = page.iter().filter(|member_state| !member_state.is_member);
        let offered: Vec<(Member, Vec<ShardId>)> =
            strangers.map(|stranger| (stranger.member, Vec::new())).collect();
        if offered.is_empty() {
            return Ok(());
        }
        let join_all = |l: &mut RunLedger| offered.iter().for_each(|(member, _)| join(l, *member));
        self.ledger.with_run(key, &offered, join_all).await
    }

    /// Stores the report that is due, and then closes the run if the sweep found every member done and a second reading
    /// confirms it; returns whether it closed the run.
    async fn finish(
        &self,
        key: &RunKey,
        swept: &Sweep,
        is_done: bool,
        report: &mut Report,
        reports: &impl DayReports,
    ) -> Result<bool, Fault> {
        let confirmed = match is_done && swept.run.frozen == WAVES {
            true => self.confirm(key, swept).await?,
            false => None,
        };
        let (swept, is_done) = confirmed.as_ref().map_or((swept, false), |(sweep, counts)| {
            *report = counts.clone();
            (sweep, true)
        });
        let register = self.register.read().await?;
        let compare = |l: &mut RunLedger| (l.run.clone(), is_done && may_close(l, swept, register));
        let (run, is_last) = self.ledger.with_run(key, &[], compare).await?;
        let Some(run) = run else { return Ok(false) };
        report.eligible = run.count;
        // If another process has frozen a wave since, these counts are not those of the run.
        if run.frozen == swept.run.frozen {
            let run = DayRun { is_closed: run.is_closed || is_last, ..run };
            reports.keep(key, &run, report).await?;
        }
        if !is_last {
            return Ok(false);
        }
        failpoints::reach("coupons-before-close").await;
        let is_closed = self.ledger.with_run(key, &[], |l| close(l, swept, register)).await?;
        failpoints::reach("coupons-after-close").await;
        Ok(is_closed)
    }

    /// Reads all members once more under a new number of the sweep; returns their counts if every member is still done.
    ///
    /// A ledger that was restored to a copy from within the sweep has the number of that sweep, and may lack what the
    /// sweep read. A copy from within this reading has all that the sweep found.
    async fn confirm(&self, key: &RunKey, swept: &Sweep) -> Result<Option<(Sweep, Report)>, Fault> {
        let number = self.process.fresh();
        failpoints::reach("coupons-before-confirm").await;
        let continued = self.ledger.with_run(key, &[], |l| continue_sweep(l, swept, number)).await?;
        failpoints::reach("coupons-after-confirm").await;
        let Some(sweep) = continued else { return Ok(None) };
        let (mut report, mut after) = (Report::default(), None);
        loop {
            let page_began = Instant::now();
            let (now, page) = self.ledger.member_states(key, after, SWEEP_ROWS).await?;
            let Some(last) = page.last() else { return Ok(Some((sweep, report))) };
            after = Some(last.member);
            for member_state in &page {
                report.add(member_state, key.day);
                let is_done = need(member_state, key.day, sweep.run.frozen, now) == MemberNeed::Nothing;
                if !(is_done && member_state.is_member) {
                    return Ok(None);
                }
            }
            if page.len() == SWEEP_ROWS {
                self.cohort.make_way(page_began.elapsed()).await;
            }
        }
    }

    /// Publishes messages; returns whether the queue had room. A full one has work enough for the granters.
    async fn publish(&self, messages: &[Message]) -> Result<bool, Fault> {
        match self.queue.publish(messages).await {
            Ok(()) => Ok(true),
            Err(fault) if fault.code() == Code::LogFull => {
                tracing::warn!(%fault, "the other members of the day are published by a later pass");
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }
}
