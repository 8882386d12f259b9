//! `dispatch letters`: coupons that could not be granted, and the decisions of an operator about them.
//!
//! A letter is named by the key of its coupon, `programme/occurrence/user`. `requeue` sends it again, `drop` ends it. A
//! letter that was sent again stays in the list until a granter has decided about it, or a person has dropped it by its
//! key.

use anabranch_coupons::dead_letters::{self, Decision, LeftAlone};
use anabranch_coupons::ports::{Ledger, WorkQueue};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{
    Candidate, CouponKey, FailedOutcome, LedgerRow, Message, RowState, RunKey, UserLedger, UsersLedger,
};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_schemas::celebration::Occurrence;
use clap::{Args, Subcommand, ValueEnum};
use jiff::SignedDuration;
use jiff::civil::date;
use serde::Serialize;

use super::refused;
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::{CouponLedger, CouponQueue, Wiring};

/// Letters of one query, at most.
const PAGE: usize = 1_000;

/// Show, send again or end coupons that could not be granted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the dead letters of every programme
    List {
        /// Print one JSON object a letter
        #[arg(long)]
        json: bool,
    },
    /// Send letters again; one of unknown outcome is asked for by its key first
    Requeue(LetterSelection),
    /// End letters: the coupon system or a person has found out whether the coupon was given
    Drop {
        #[command(flatten)]
        chosen: LetterSelection,
        /// Outcome that was found out
        #[arg(long, value_enum)]
        outcome: FoundOutcome,
    },
}

#[derive(Debug, Args)]
struct LetterSelection {
    /// Keys as `list` shows them
    #[arg(required_unless_present = "all")]
    keys: Vec<String>,
    /// All letters of the programmes that are meant
    #[arg(long, conflicts_with = "keys")]
    all: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FoundOutcome {
    /// The user has the coupon
    Given,
    /// The user has none, and gets none for this occurrence on this day
    NotGiven,
}

/// A letter as it is shown.
#[derive(Debug, Serialize)]
struct LetterView {
    key: String,
    day: String,
    coupon: String,
    /// `nothing_given`, `unknown` or `sent_again`.
    outcome: &'static str,
    first_called_at: Option<String>,
    tries: u32,
    changed_at: String,
}

impl LetterView {
    fn of(key: &CouponKey, row: &LedgerRow) -> Self {
        let (outcome, first_called_at) = match row.state {
            RowState::Failed(FailedOutcome::Unknown { first_called_at }) => {
                ("unknown", Some(first_called_at.to_string()))
            }
            _ if row.is_sent_again() => ("sent_again", None),
            _ => ("nothing_given", None),
        };
        Self {
            key: text(key),
            day: row.day.to_string(),
            coupon: row.coupon.to_string(),
            outcome,
            first_called_at,
            tries: row.tries,
            changed_at: row.changed_at.to_string(),
        }
    }

    fn text(&self) -> String {
        let outcome = match &self.first_called_at {
            Some(at) => format!("unknown since the call at {at}"),
            None if self.outcome == "sent_again" => "sent again, and not decided yet".to_owned(),
            None => "nothing was given".to_owned(),
        };
        format!("{}  {}  {}: {outcome}, {} tries", self.key, self.day, self.coupon, self.tries)
    }
}

/// Returns the text of a key. Names of programmes have no slash.
pub(super) fn text(key: &CouponKey) -> String {
    format!("{}/{}/{}", key.programme, key.occurrence, key.user)
}

/// The letters of a command, page by page.
struct LetterPages<'a> {
    ledger: &'a CouponLedger,
    /// Letters that were named by their keys.
    named: Vec<Letter>,
    /// Programmes whose letters are read, and the last letter that was read of the first one.
    programmes: &'a [Programme],
    after: Option<CouponKey>,
}

type Letter = (CouponKey, LedgerRow);

impl<'a> LetterPages<'a> {
    fn all(ledger: &'a CouponLedger, programmes: &'a [Programme]) -> Self {
        Self { ledger, named: Vec::new(), programmes, after: None }
    }

    /// Reads the letters of these keys. Refuses a key that names no letter, before anything is done.
    async fn of_keys(
        ledger: &'a CouponLedger,
        programmes: &[Programme],
        keys: &[String],
    ) -> Result<Self, Fault> {
        let mut named: Vec<Letter> = Vec::with_capacity(keys.len());
        for key in keys {
            let letter = read(ledger, programmes, key).await?.ok_or_else(|| {
                refused(format!("letter {key}"), "there is none")
                    .needs("a key as `dispatch letters list` shows it")
            })?;
            if !named.contains(&letter) {
                named.push(letter);
            }
        }
        Ok(Self { ledger, named, programmes: &[], after: None })
    }

    /// Returns the next letters; none after the last ones.
    async fn next_page(&mut self) -> Result<Vec<Letter>, Fault> {
        if !self.named.is_empty() {
            return Ok(std::mem::take(&mut self.named));
        }
        while let Some((programme, others)) = self.programmes.split_first() {
            let page = self.ledger.dead_letters(&programme.name, self.after.as_ref(), PAGE).await?;
            if let Some((last, _)) = page.last() {
                self.after = Some(last.clone());
                return Ok(page);
            }
            (self.programmes, self.after) = (others, None);
        }
        Ok(Vec::new())
    }
}

/// Reads the letter of a key; `None` if there is none.
async fn read(ledger: &CouponLedger, programmes: &[Programme], named: &str) -> Result<Option<Letter>, Fault> {
    let parts: Vec<&str> = named.split('/').collect();
    let [programme, occurrence, user] = parts.as_slice() else { return Ok(None) };
    let programme = programmes.iter().find(|known| *known.name == **programme);
    let (occurrence, user) = (occurrence.parse::<Occurrence>(), user.parse::<u64>());
    let (Some(programme), Ok(occurrence), Ok(user)) = (programme, occurrence, user) else { return Ok(None) };
    let key = CouponKey { user, programme: programme.name.clone(), occurrence };
    // The rows of a user are the same whichever day is read with them.
    let run = RunKey { programme: programme.name.clone(), day: date(2000, 1, 1) };
    let mut read = ledger.read_users(&run, &[user]).await?;
    let row = read.users.get_mut(&user).and_then(|user| user.rows.remove(&occurrence));
    Ok(row.filter(LedgerRow::is_letter).map(|row| (key, row)))
}

pub(super) async fn run(
    wiring: &Wiring,
    programmes: &[Programme],
    arguments: &Arguments,
) -> Result<Exit, Fault> {
    let ledger = wiring.coupon_ledger().await?;
    match &arguments.command {
        Command::List { json } => {
            let mut pages = LetterPages::all(&ledger, programmes);
            loop {
                let page = pages.next_page().await?;
                if page.is_empty() {
                    return Ok(Exit::Success);
                }
                for (key, row) in &page {
                    let view = LetterView::of(key, row);
                    _ = output::line(&if *json { output::json(&view) } else { view.text() });
                }
            }
        }
        Command::Requeue(chosen) => {
            let command = chosen.add_to(CommandText::of("dispatch letters requeue"));
            let pages = chosen.of(&ledger, programmes).await?;
            let work = requeue(wiring, pages, chosen.dry_run);
            with_record(wiring, chosen, command, work).await
        }
        Command::Drop { chosen, outcome } => {
            let said = match outcome {
                FoundOutcome::Given => "given",
                FoundOutcome::NotGiven => "not-given",
            };
            let command = chosen.add_to(CommandText::of("dispatch letters drop"));
            let command = command.option("--outcome", Some(said));
            let pages = chosen.of(&ledger, programmes).await?;
            let work = end(pages, chosen.all, *outcome, chosen.dry_run);
            with_record(wiring, chosen, command, work).await
        }
    }
}

/// Does the work between the records of an operation, unless it is a rehearsal.
async fn with_record(
    wiring: &Wiring,
    chosen: &LetterSelection,
    command: CommandText,
    work: impl Future<Output = Result<Exit, Fault>>,
) -> Result<Exit, Fault> {
    if chosen.dry_run {
        return work.await;
    }
    let after = |exit: &Exit| match exit {
        Exit::Success => "all letters were handled".to_owned(),
        _ => "some letters were left as they are".to_owned(),
    };
    Ok(recorded(wiring, &Actor::of_command(), (command.text(), None), work, after).await?.done)
}

impl LetterSelection {
    /// Adds the selection to the text of a command. Keys name users, so only their number is written.
    fn add_to(&self, text: CommandText) -> CommandText {
        text.counted("", self.keys.len(), "key").flag("--all", self.all)
    }

    /// Returns the chosen letters. Refuses a key that names no letter, before anything is done.
    async fn of<'a>(
        &self,
        ledger: &'a CouponLedger,
        programmes: &'a [Programme],
    ) -> Result<LetterPages<'a>, Fault> {
        match self.all {
            true => Ok(LetterPages::all(ledger, programmes)),
            false => LetterPages::of_keys(ledger, programmes, &self.keys).await,
        }
    }
}

async fn requeue(wiring: &Wiring, mut pages: LetterPages<'_>, is_rehearsal: bool) -> Result<Exit, Fault> {
    let memory = wiring.coupon_system()?.key_memory;
    let memory = SignedDuration::try_from(memory).unwrap_or(SignedDuration::MAX);
    let queue = wiring.work_queue().await?;
    let (mut exit, mut has_room) = (Exit::Success, true);
    loop {
        let page = pages.next_page().await?;
        if page.is_empty() {
            return Ok(exit);
        }
        for (key, row) in page {
            if is_rehearsal {
                _ = output::line(&format!("{} would be sent again", text(&key)));
                continue;
            }
            let requeue = |user: &mut UserLedger| dead_letters::requeue(user, &key, memory);
            match of_user(pages.ledger, &key, &row, requeue).await? {
                Ok(candidate) => {
                    // If this message is lost, a later pass of a dispatcher publishes the letter again.
                    failpoints::reach("coupons-before-requeued").await;
                    has_room = has_room && publish(&queue, candidate).await?;
                    failpoints::reach("coupons-after-requeued").await;
                    let by = if has_room { "" } else { " by a later pass of the dispatcher" };
                    _ = output::line(&format!("{} is sent again{by}", text(&key)));
                }
                Err(why) => {
                    exit = Exit::Definite;
                    _ = output::line(&left_alone(&key, why));
                }
            }
        }
    }
}

/// Publishes a letter; returns whether the queue had room. The rows of the other letters change all the same.
async fn publish(queue: &CouponQueue, candidate: Candidate) -> Result<bool, Fault> {
    match queue.publish(&[Message::of(candidate)]).await {
        Ok(()) => Ok(true),
        Err(fault) if fault.code() == Code::LogFull => {
            tracing::warn!(%fault, "a later pass of the dispatcher publishes this letter and the others");
            Ok(false)
        }
        Err(fault) => Err(fault),
    }
}

/// Ends letters. With `--all`, those that were sent again are left to the granters.
async fn end(
    mut pages: LetterPages<'_>,
    are_all: bool,
    outcome: FoundOutcome,
    is_rehearsal: bool,
) -> Result<Exit, Fault> {
    let (decision, said) = match outcome {
        FoundOutcome::Given => (Decision::Given, "as given"),
        FoundOutcome::NotGiven => (Decision::NotGiven, "as not given"),
    };
    let mut exit = Exit::Success;
    loop {
        let page = pages.next_page().await?;
        if page.is_empty() {
            return Ok(exit);
        }
        for (key, row) in page.into_iter().filter(|(_, row)| !(are_all && row.is_sent_again())) {
            if is_rehearsal {
                _ = output::line(&format!("{} would end {said}", text(&key)));
                continue;
            }
            let end = |user: &mut UserLedger| dead_letters::end(user, &key, decision);
            match of_user(pages.ledger, &key, &row, end).await? {
                Ok(()) => _ = output::line(&format!("{} ends {said}", text(&key))),
                Err(why) => {
                    exit = Exit::Definite;
                    _ = output::line(&left_alone(&key, why));
                }
            }
        }
    }
}

/// Decides about one user's letter.
async fn of_user<T: Send>(
    ledger: &CouponLedger,
    key: &CouponKey,
    row: &LedgerRow,
    decide: impl Fn(&mut UserLedger) -> Result<T, LeftAlone> + Send + Sync,
) -> Result<Result<T, LeftAlone>, Fault> {
    let run = RunKey { programme: key.programme.clone(), day: row.day };
    let decide = |ledger: &mut UsersLedger| {
        let user = ledger.users.get_mut(&key.user).ok_or(LeftAlone::NoDeadLetter)?;
        decide(user)
    };
    ledger.with_users(&run, &[key.user], decide).await
}

fn left_alone(key: &CouponKey, why: LeftAlone) -> String {
    let why = match why {
        LeftAlone::NoDeadLetter => "it is not a dead letter any more",
        LeftAlone::UnderWay => {
            "it was sent again, and a granter works on it or its call may have given the coupon: repeat the command \
             after half an hour, or wait until a granter has decided"
        }
        LeftAlone::NeedsDecision => {
            "the coupon system has forgotten its key, so a person must find out whether the coupon was given: \
             dispatch letters drop --outcome given|not-given"
        }
    };
    format!("{} is left as it is: {why}", text(key))
}
