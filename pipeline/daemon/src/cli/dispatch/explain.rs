//! `dispatch explain`: why a user gets a coupon on a day, or none. It reads the source rows, the day's tables and the
//! ledger, and changes nothing.

use anabranch_coupons::ports::{Clock, CohortRows, Ledger, SourceRow, SourceRows};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{
    Candidate, DayRun, FailedOutcome, LAST_WORD, LedgerRow, Member, Reason, RowState, RunKey, UserLedger,
    UsersLedger, WAVES,
};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, Calendar, Celebrated, Occurrence, celebrated};
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;

use super::{letters, phase_of};
use crate::coupons::{self, DayTables, Process};
use crate::exit::Exit;
use crate::output;
use crate::wiring::Wiring;

/// The user and the day.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The user's id
    user: u64,
    /// The day, such as 2027-02-28. Default: today in the time zone of each programme
    #[arg(long)]
    day: Option<Date>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// An explanation in sentences; the first one is the answer.
#[derive(Debug, Serialize)]
struct Explanation {
    programme: String,
    day: String,
    user: u64,
    sentences: Vec<String>,
}

pub(super) async fn run(
    wiring: &Wiring,
    programmes: &[Programme],
    arguments: &Arguments,
) -> Result<Exit, Fault> {
    let mut explanations = Vec::new();
    for programme in programmes {
        let today = || Process.now().to_zoned(programme.time_zone.clone()).date();
        let day = arguments.day.unwrap_or_else(today);
        explanations.push(Explanation {
            programme: programme.name.to_string(),
            day: day.to_string(),
            user: arguments.user,
            sentences: explain(wiring, programme, day, arguments.user).await?,
        });
    }
    if arguments.json {
        _ = output::line(&output::json(&explanations));
        return Ok(Exit::Success);
    }
    for Explanation { programme, day, user, sentences } in &explanations {
        _ = output::line(&format!("{programme}  {day}  user {user}"));
        sentences.iter().for_each(|sentence| _ = output::line(&format!("  {sentence}")));
    }
    Ok(Exit::Success)
}

/// Facts of the servers about a user on a day.
struct KnownUser<'a> {
    id: u64,
    programme: &'a Programme,
    day: Date,
    run: Option<&'a DayRun>,
    user: &'a UserLedger,
    /// `None` where a table could not be read.
    sources: Option<&'a [SourceRow]>,
    celebrations: &'a [Celebrated],
    /// The day's tables that have a row of the user.
    tables: Vec<Birthday>,
    /// The user waits for a reconciliation that compares the source tables.
    is_held: bool,
    /// The run has frozen nothing, because it waits for a reconciliation that is young enough.
    is_waiting: bool,
}

async fn explain(wiring: &Wiring, programme: &Programme, day: Date, user: u64) -> Result<Vec<String>, Fault> {
    let ledger = wiring.coupon_ledger().await?;
    let cohort = coupons::cohort(wiring, &coupons::LaneLag::new(wiring)?)?;
    let key = RunKey { programme: programme.name.clone(), day };
    let of_user = |ledger: &mut UsersLedger| ledger.users.get(&user).cloned();
    let Some(known) = ledger.with_users(&key, &[user], of_user).await? else { return Ok(Vec::new()) };
    let rules = known.run.as_ref().map_or(programme, |run| &run.rules);
    let celebrations = celebrated(day, &rules.calendars, rules.leap_day);
    let mut tables = Vec::new();
    for celebration in &celebrations {
        // The page begins after the previous user id, so the user comes first.
        let rows = cohort.page(celebration.birthday, user.checked_sub(1), 1).await?;
        tables.extend(rows.iter().find(|row| row.user == user).map(|_| celebration.birthday));
    }
    let claims: Vec<_> = known.claims.values().flatten().copied().collect();
    let sources = wiring.coupon_sources()?.read_rows(&[(user, claims)]).await?.into_iter().next().flatten();
    let is_held = is_held(&cohort, &known, day).await?;
    let reconciled_at = cohort.reconciled().await?.map(|reconciled| reconciled.ended_at);
    let is_waiting =
        known.run.as_ref().is_some_and(|run| run.waits_for_reconciliation(day, known.now, reconciled_at));
    let known = KnownUser {
        id: user,
        programme,
        day,
        run: known.run.as_deref(),
        user: &known,
        sources: sources.as_deref(),
        celebrations: &celebrations,
        tables,
        is_held,
        is_waiting,
    };
    Ok(known.sentences())
}

/// Returns whether the run holds the user back: the last good reconciliation proves none of the user's source tables.
async fn is_held(cohort: &DayTables, user: &UserLedger, day: Date) -> Result<bool, Fault> {
    let reconciled = cohort.reconciled().await?;
    let Some(run) = user.run.as_ref().filter(|run| !run.is_closed) else { return Ok(false) };
    let Some(unproven) = run.unproven_tables(day, user.now, reconciled.as_ref()) else { return Ok(false) };
    let mut claims = user.claims.values().flatten().peekable();
    Ok(claims.peek().is_some() && claims.all(|shard| unproven.contains(shard)))
}

impl KnownUser<'_> {
    fn sentences(&self) -> Vec<String> {
        let mut all = vec![self.answer()];
        all.extend(self.of_sources());
        all.extend(self.of_calendar());
        all.push(self.of_tables());
        all.push(self.of_run());
        all.extend(self.user.rows.iter().map(|(occurrence, row)| of_row(*occurrence, row)));
        for ((day, calendar), refused) in &self.user.refusals {
            let why = because(refused.reason, self.programme);
            all.push(format!("The ledger refuses the {calendar} coupon of {day}: {why}."));
        }
        all
    }

    fn occurrences(&self) -> impl Iterator<Item = (Calendar, Option<Occurrence>)> {
        self.programme.calendars.iter().map(|calendar| (*calendar, Occurrence::of(*calendar, self.day)))
    }

    /// The row of the day comes first, then a refusal of it, then a row of another day of the same occurrence.
    fn answer(&self) -> String {
        for (calendar, occurrence) in self.occurrences() {
            let row = occurrence.and_then(|occurrence| self.user.rows.get(&occurrence));
            if let Some(row) = row.filter(|row| row.day == self.day) {
                match row.state {
                    RowState::Settled => return "The user has the coupon of this day.".to_owned(),
                    RowState::Reserved | RowState::Issued { .. } => {
                        return "A granter works on the coupon of this day; it is not settled yet."
                            .to_owned();
                    }
                    RowState::Failed(_) => {
                        return "The coupon of this day is a dead letter: `dispatch letters list`."
                            .to_owned();
                    }
                    RowState::Refused(Reason::SourceUnreadable) => {
                        return "The user is missed so far: a source table of the user could not be read by the latest \
                                hour. Each pass reads the table again."
                            .to_owned();
                    }
                    RowState::Refused(reason) => {
                        return format!("The user gets no coupon: {}.", because(reason, self.programme));
                    }
                }
            }
            if let Some(refused) = self.user.refusals.get(&(self.day, calendar)) {
                return format!("The user gets no coupon: {}.", because(refused.reason, self.programme));
            }
            if let Some(row) = row.filter(|row| row.state == RowState::Settled) {
                return format!(
                    "The user has the coupon of this year already: it was given for {}.",
                    row.day
                );
            }
        }
        self.answer_of_cohort()
    }

    /// Returns the answer about a user of whom the ledger has no row and no refusal that counts for the day.
    fn answer_of_cohort(&self) -> String {
        let is_member = !self.user.claims.is_empty();
        match (self.run, is_member) {
            (Some(run), true) if run.is_closed => {
                "The run is closed and has no coupon of its member.".to_owned()
            }
            (Some(_), true) if self.is_held => {
                "The user waits for a reconciliation: the last one could not compare the \
                                                user's source tables."
                    .to_owned()
            }
            (Some(_), true) => "The user is to get the coupon: no granter has granted it yet.".to_owned(),
            (_, false) if self.celebrates().is_none() => {
                "The user gets no coupon: by the source tables this is not the user's day.".to_owned()
            }
            (Some(run), false) if run.is_closed || run.frozen >= WAVES => self.after_the_last_wave(run),
            (Some(run), false) if run.frozen == 0 => self.before_midnight(run),
            (Some(_), false) => {
                "The user is not in the day's cohort, though the source says so: the next wave reads \
                                 the tables again."
                    .to_owned()
            }
            (None, _) => "The day has no run yet; the source says that it is the user's day.".to_owned(),
        }
    }

    /// Says why a run has no cohort yet.
    fn before_midnight(&self, run: &DayRun) -> String {
        if !self.is_waiting {
            return "The day has no cohort yet: midnight's tables are not frozen to the end.".to_owned();
        }
        match run.rules.goes_on_at(self.day) {
            Some(until) => format!(
                "The day has no cohort yet: it waits for a reconciliation that is young enough, until {until} at most."
            ),
            None => {
                "The day has no cohort yet: it waits for a reconciliation that is young enough.".to_owned()
            }
        }
    }

    /// Says that no wave brings the user into the cohort any more, and which key a person needs for the coupon.
    fn after_the_last_wave(&self, run: &DayRun) -> String {
        let state = if run.is_closed { "the day is closed" } else { "the catch-up is frozen" };
        let key = self.celebrates().and_then(|row| self.key(row.calendar));
        let key = key.map_or_else(String::new, |key| format!(", by the key {key}"));
        format!(
            "The user is not in the day's cohort, though the source says so now: {state}, and no wave reads the tables \
             again. A person can have the coupon system give the coupon{key}."
        )
    }

    /// Returns the text of the key of the user's coupon; `None` for a day outside of the calendar.
    fn key(&self, calendar: Calendar) -> Option<String> {
        let run = RunKey { programme: self.programme.name.clone(), day: self.day };
        let candidate = Candidate { run, member: Member { user: self.id, calendar }, wave: LAST_WORD };
        candidate.key().map(|key| letters::text(&key))
    }

    /// Returns the source row whose birthday this day celebrates.
    fn celebrates(&self) -> Option<&SourceRow> {
        let of_row = |row: &&SourceRow| {
            birthday(row).is_some_and(|birthday| {
                self.celebrations.iter().any(|celebration| celebration.birthday == birthday)
            })
        };
        self.sources?.iter().find(of_row)
    }

    fn of_sources(&self) -> Vec<String> {
        let Some(rows) = self.sources else {
            return vec!["A source table of the user could not be read now.".to_owned()];
        };
        if rows.is_empty() {
            return vec!["No source table has a row of the user.".to_owned()];
        }
        let sentence = |row: &SourceRow| {
            let calendar = row.calendar;
            let changed = row.changed_at.map_or_else(String::new, |at| format!(", changed at {at}"));
            match birthday(row) {
                Some(birthday) => {
                    format!(
                        "A source row celebrates by the {calendar} calendar: {}{changed}.",
                        birthday.table()
                    )
                }
                None => format!(
                    "A source row celebrates by the {calendar} calendar and has no birthday{changed}."
                ),
            }
        };
        rows.iter().map(sentence).collect()
    }

    fn of_calendar(&self) -> Vec<String> {
        let sentence = |celebration: &Celebrated| {
            format!("The day reads {}: {}.", celebration.birthday.table(), celebration.reason.text())
        };
        self.celebrations.iter().map(sentence).collect()
    }

    fn of_tables(&self) -> String {
        match self.tables.as_slice() {
            [] => "None of these tables has a row of the user.".to_owned(),
            tables => {
                let names: Vec<String> = tables.iter().map(|table| table.table()).collect();
                format!(
                    "A row of the user is in {}. The ledger decides: `is_sent`, `send_time` and `sent_occurrence` of \
                     this row follow it, and may be late.",
                    names.join(" and ")
                )
            }
        }
    }

    fn of_run(&self) -> String {
        let Some(run) = self.run else { return "The day has no run.".to_owned() };
        let calendars: Vec<&str> = self.user.claims.keys().map(|calendar| calendar.as_str()).collect();
        let member = match calendars.as_slice() {
            [] => "its cohort does not have the user".to_owned(),
            calendars => format!("its cohort has the user by the {} calendar", calendars.join(" and the ")),
        };
        format!("The run of the day {}; {member}.", phase_of(run))
    }
}

fn birthday(row: &SourceRow) -> Option<Birthday> {
    match row.calendar {
        Calendar::Solar => row.solar.map(Birthday::Solar),
        Calendar::Lunar => row.lunar.map(Birthday::Lunar),
    }
}

fn of_row(occurrence: Occurrence, row: &LedgerRow) -> String {
    let state = match row.state {
        RowState::Reserved => "reserved, and the coupon system was not called".to_owned(),
        RowState::Issued { first_called_at } => format!("issued, first called at {first_called_at}"),
        RowState::Settled => format!("settled: the coupon {} was given", row.coupon),
        RowState::Refused(Reason::SourceUnreadable) => "waiting for its source table".to_owned(),
        RowState::Refused(_) => "refused".to_owned(),
        RowState::Failed(FailedOutcome::NothingGiven) => "failed: nothing was given".to_owned(),
        RowState::Failed(FailedOutcome::Unknown { first_called_at }) => {
            format!("failed: the outcome of the call at {first_called_at} is not known")
        }
    };
    let tries = if row.tries == 0 { String::new() } else { format!(", after {} tries", row.tries) };
    let version =
        row.version.map_or_else(String::new, |version| format!(", by version {version} of the programme"));
    format!("The ledger row of {occurrence} is for {}: {state}{tries}{version}.", row.day)
}

/// Returns a reason in words.
fn because(reason: Reason, programme: &Programme) -> String {
    match reason {
        Reason::NotTheirBirthday => "the source row says another birthday or another calendar".to_owned(),
        Reason::SourceRowGone => "no source table has a row of the user".to_owned(),
        Reason::ChangedLately => {
            format!("the birthday was changed within {} days", programme.cool_off_days)
        }
        Reason::PlaceholderDate => "the birthday is a placeholder date of the programme".to_owned(),
        Reason::WithinGap => {
            format!("another coupon of the programme lies less than {} days away", programme.gap_days)
        }
        Reason::OtherDay => "another day of the same year has taken the coupon over".to_owned(),
        Reason::Dropped => "a person has ended the dead letter".to_owned(),
        Reason::SourceUnreadable => "a source table of the user could not be read".to_owned(),
    }
}
