//! The coupon ledger in memory. `tests/coupon_year` simulates a year on it; `conformance` runs the same tests on it and
//! on real servers. The port [`Ledger`] states the contract of each method.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{
    CouponKey, DayRun, LedgerRow, LedgerTokens, Member, MemberState, ProgrammeLedger, RefusedDay, RowChange,
    RunKey, RunLedger, Unique, UserLedger, UsersLedger,
};
use anabranch_coupons::turns::PageTurn;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Calendar, LeapDayRule, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::civil::Date;

use super::lock;

/// Content of the ledger's server. A test copies it and restores it, as an operator restores a backup.
#[derive(Debug, Clone)]
pub struct LedgerState {
    pub rows: BTreeMap<CouponKey, LedgerRow>,
    pub refusals: BTreeMap<(Arc<str>, u64, Date, Calendar), RefusedDay>,
    pub runs: BTreeMap<RunKey, DayRun>,
    pub members: BTreeMap<RunKey, BTreeMap<Member, Vec<ShardId>>>,
    /// First day of each programme that has no run.
    pub next: BTreeMap<Arc<str>, Date>,
    /// Rule for 29 February by programme and year.
    pub leap_days: BTreeMap<(Arc<str>, i16), LeapDayRule>,
    pub tokens: LedgerTokens,
    /// Time of the last issue.
    pub issued_at: Option<Timestamp>,
}

impl LedgerState {
    /// Makes an empty ledger with its first token.
    pub fn new(first: Unique) -> Self {
        Self {
            rows: BTreeMap::new(),
            refusals: BTreeMap::new(),
            runs: BTreeMap::new(),
            members: BTreeMap::new(),
            next: BTreeMap::new(),
            leap_days: BTreeMap::new(),
            tokens: LedgerTokens { latest: first, before: None },
            issued_at: None,
        }
    }

    /// Lets `decide` read all that the ledger has of these users in the run's programme, and change rows, refusals and
    /// tokens. Rows can only be added or replaced; refusals can also be removed.
    pub fn with_users<T>(
        &mut self,
        now: Timestamp,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T,
    ) -> T {
        let mut ledger = self.users(now, run, users);
        let result = decide(&mut ledger);
        let users: BTreeSet<u64> = ledger.users.keys().copied().collect();
        self.refusals.retain(|(programme, of, ..), _| !(*programme == run.programme && users.contains(of)));
        self.write(now, run, ledger);
        result
    }

    /// Works as [`LedgerState::with_users`] does, but `decide` sees only rows, tokens and the run. Refusals that it
    /// adds are stored; existing ones stay.
    pub fn with_rows<T>(
        &mut self,
        now: Timestamp,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T,
    ) -> T {
        let mut ledger = self.users(now, run, users);
        for user in ledger.users.values_mut() {
            user.claims.clear();
            user.refusals.clear();
        }
        let result = decide(&mut ledger);
        self.write(now, run, ledger);
        result
    }

    /// Changes all rows if each is stored as its `before`; returns whether it did.
    pub fn replace_rows(&mut self, run: &RunKey, rows: &[RowChange]) -> bool {
        let key = |row: &RowChange| {
            let (user, occurrence) = (row.user, row.occurrence);
            CouponKey { user, programme: run.programme.clone(), occurrence }
        };
        let stand = rows.iter().all(|row| self.rows.get(&key(row)) == Some(&row.before));
        if stand {
            self.rows.extend(rows.iter().map(|row| (key(row), row.after.clone())));
        }
        stand
    }

    /// Returns all that the ledger has of these users in the run's programme.
    pub fn users(&self, now: Timestamp, run: &RunKey, users: &[u64]) -> UsersLedger {
        let known = self.runs.get(run).cloned().map(Arc::new);
        let of_user = |user: &u64| (*user, self.user(now, run, known.clone(), *user));
        UsersLedger { users: users.iter().map(of_user).collect(), tokens: self.tokens }
    }

    fn write(&mut self, now: Timestamp, run: &RunKey, ledger: UsersLedger) {
        for (user, ledger) in ledger.users {
            for (occurrence, row) in ledger.rows {
                self.rows.insert(CouponKey { user, programme: run.programme.clone(), occurrence }, row);
            }
            for ((day, calendar), refused) in ledger.refusals {
                self.refusals.insert((run.programme.clone(), user, day, calendar), refused);
            }
        }
        if self.tokens != ledger.tokens {
            (self.tokens, self.issued_at) = (ledger.tokens, Some(now));
        }
    }

    /// Begins a new chain of tokens if the last token is the expected one; returns whether it did.
    pub fn begin_tokens(&mut self, expected: Unique, token: Unique) -> bool {
        let is_expected = self.tokens.latest == expected;
        if is_expected {
            self.tokens = LedgerTokens { latest: token, before: None };
        }
        is_expected
    }

    fn user(&self, now: Timestamp, run: &RunKey, known: Option<Arc<DayRun>>, user: u64) -> UserLedger {
        let of_user = |key: &CouponKey| key.user == user && key.programme == run.programme;
        let rows = self.rows.iter().filter(|(key, _)| of_user(key));
        let refusals = self.refusals.iter().filter(|((p, u, ..), _)| *p == run.programme && *u == user);
        let members = self.members.get(run).into_iter().flatten().filter(|(m, _)| m.user == user);
        UserLedger {
            now,
            run: known,
            claims: members.map(|(m, shards)| (m.calendar, shards.clone())).collect(),
            rows: rows.map(|(key, row)| (key.occurrence, row.clone())).collect(),
            refusals: refusals
                .map(|((_, _, day, calendar), refused)| ((*day, *calendar), *refused))
                .collect(),
        }
    }

    /// Lets `decide` change a run and add members. `decide` gets, in `present`, the `offered` members that the cohort
    /// already has; only members that it puts into `added` are stored.
    pub fn with_run<T>(
        &mut self,
        now: Timestamp,
        key: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T,
    ) -> T {
        let members = self.members.entry(key.clone()).or_default();
        let present = offered.iter().map(|(member, _)| *member).filter(|m| members.contains_key(m));
        let mut ledger = RunLedger {
            now,
            present: present.collect(),
            run: self.runs.get(key).cloned(),
            tokens: self.tokens,
            added: Vec::new(),
        };
        let result = decide(&mut ledger);
        for (member, shards) in ledger.added {
            let known = members.entry(member).or_default();
            known.extend(shards);
            known.sort_unstable();
            known.dedup();
        }
        if let Some(run) = ledger.run {
            self.runs.insert(key.clone(), run);
        }
        result
    }

    /// Lets `decide` read a programme and begin runs; an existing run stays as it is.
    pub fn with_programme<T>(
        &mut self,
        now: Timestamp,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T,
    ) -> T {
        let is_open = |(key, run): &(&RunKey, &DayRun)| key.programme == *programme && !run.is_closed;
        let leap_days = self.leap_days.iter().filter(|((of, _), _)| of == programme);
        let mut ledger = ProgrammeLedger {
            now,
            next: self.next.get(programme).copied(),
            leap_days: leap_days.map(|((_, year), rule)| (*year, *rule)).collect(),
            open: self.runs.iter().filter(is_open).map(|(key, _)| key.day).collect(),
            begun: Vec::new(),
        };
        let result = decide(&mut ledger);
        self.next.extend(ledger.next.map(|next| (programme.clone(), next)));
        for (year, rule) in ledger.leap_days {
            self.leap_days.insert((programme.clone(), year), rule);
        }
        for (day, run) in ledger.begun {
            self.runs.entry(RunKey { programme: programme.clone(), day }).or_insert(run);
        }
        result
    }

    /// Returns the states of the run's members, and of users who are not members but have a row of the day.
    pub fn member_states(&self, key: &RunKey) -> Vec<MemberState> {
        let empty = BTreeMap::new();
        let members = self.members.get(key).unwrap_or(&empty);
        let held = self.rows.iter().filter(|(of, row)| of.programme == key.programme && row.day == key.day);
        let held = held.map(|(of, row)| Member { user: of.user, calendar: row.calendar });
        let all: BTreeSet<Member> = members.keys().copied().chain(held).collect();
        let member_state = |member: Member| {
            let Member { user, calendar } = member;
            let programme = key.programme.clone();
            let occurrence = Occurrence::of(calendar, key.day)?;
            Some(MemberState {
                member,
                is_member: members.contains_key(&member),
                shards: members.get(&member).cloned().unwrap_or_default(),
                row: self.rows.get(&CouponKey { user, programme: programme.clone(), occurrence }).cloned(),
                refused: self.refusals.get(&(programme, user, key.day, calendar)).copied(),
            })
        };
        all.into_iter().filter_map(member_state).collect()
    }

    /// Returns at most `limit` dead letters of a programme after a key: failed rows, about which a person decides, and
    /// those that a person sent again.
    pub fn dead_letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> Vec<(CouponKey, LedgerRow)> {
        let is_letter = |(key, row): &(&CouponKey, &LedgerRow)| {
            key.programme == *programme && row.is_letter() && Some(*key) > after
        };
        let rows = self.rows.iter().filter(is_letter).take(limit);
        rows.map(|(key, row)| (key.clone(), row.clone())).collect()
    }
}

/// A ledger behind a lock; its clones share it.
#[derive(Debug, Clone)]
pub struct MemoryLedger(Arc<Mutex<LedgerState>>);

impl MemoryLedger {
    pub fn new(first: Unique) -> Self {
        Self(Arc::new(Mutex::new(LedgerState::new(first))))
    }

    /// Returns a copy of the ledger's content.
    pub fn copy(&self) -> LedgerState {
        lock(&self.0).clone()
    }

    /// Replaces the ledger's content, as a restore from a backup does.
    pub fn restore(&self, state: LedgerState) {
        *lock(&self.0) = state;
    }
}

impl Ledger for MemoryLedger {
    async fn with_users<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        Ok(lock(&self.0).with_users(Timestamp::now(), run, users, decide))
    }

    async fn read_users(&self, run: &RunKey, users: &[u64]) -> Result<UsersLedger, Fault> {
        Ok(lock(&self.0).users(Timestamp::now(), run, users))
    }

    async fn with_rows<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        Ok(lock(&self.0).with_rows(Timestamp::now(), run, users, decide))
    }

    async fn replace_rows(&self, run: &RunKey, rows: &[RowChange]) -> Result<bool, Fault> {
        Ok(lock(&self.0).replace_rows(run, rows))
    }

    async fn with_run<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        Ok(lock(&self.0).with_run(Timestamp::now(), run, offered, decide))
    }

    async fn add_in_turn<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        match turn.comes().await {
            true => self.with_run(run, offered, decide).await.map(Some),
            false => Ok(None),
        }
    }

    async fn with_programme<T: Send>(
        &self,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        Ok(lock(&self.0).with_programme(Timestamp::now(), programme, decide))
    }

    async fn member_states(
        &self,
        run: &RunKey,
        after: Option<Member>,
        limit: usize,
    ) -> Result<(Timestamp, Vec<MemberState>), Fault> {
        let member_states = lock(&self.0).member_states(run).into_iter();
        let page = member_states.filter(|member_state| Some(member_state.member) > after).take(limit);
        Ok((Timestamp::now(), page.collect()))
    }

    async fn dead_letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> Result<Vec<(CouponKey, LedgerRow)>, Fault> {
        Ok(lock(&self.0).dead_letters(programme, after, limit))
    }

    async fn tokens(&self) -> Result<LedgerTokens, Fault> {
        Ok(lock(&self.0).tokens)
    }

    async fn issued_at(&self) -> Result<Option<Timestamp>, Fault> {
        Ok(lock(&self.0).issued_at)
    }

    async fn begin_tokens(&self, expected: Unique, token: Unique) -> Result<bool, Fault> {
        Ok(lock(&self.0).begin_tokens(expected, token))
    }
}
