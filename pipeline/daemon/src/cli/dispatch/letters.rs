//! `dispatch letters`: coupons that could not be granted, and the decisions of an operator about them.
//!
//! A letter is named by the key of its coupon, `programme/occurrence/user`. `requeue` sends it again, `drop` ends it.

use std::sync::Arc;

use anabranch_coupons::dead_letters::{self, Decision, LeftAlone};
use anabranch_coupons::ports::{Ledger, WorkQueue};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{
    CouponKey, FailedOutcome, LedgerRow, Message, RowState, RunKey, UserLedger, UsersLedger,
};
use anabranch_pipeline::error::Fault;
use clap::{Args, Subcommand, ValueEnum};
use jiff::SignedDuration;
use serde::Serialize;

use super::refused;
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::{CouponLedger, Wiring};

/// Letters of one query, at most.
const PAGE: usize = 1_000;
/// Letters that one command reads, at most.
const LETTERS_MAX: usize = 100_000;

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
    /// `nothing_given` or `unknown`.
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
            None => "nothing was given".to_owned(),
        };
        format!("{}  {}  {}: {outcome}, {} tries", self.key, self.day, self.coupon, self.tries)
    }
}

/// Returns the text of a key. Names of programmes have no slash.
pub(super) fn text(key: &CouponKey) -> String {
    format!("{}/{}/{}", key.programme, key.occurrence, key.user)
}

pub(super) async fn run(
    wiring: &Wiring,
    programmes: &[Programme],
    arguments: &Arguments,
) -> Result<Exit, Fault> {
    let ledger = wiring.coupon_ledger().await?;
    let mut all = Vec::new();
    for programme in programmes {
        all.extend(letters(&ledger, &programme.name).await?);
    }
    match &arguments.command {
        Command::List { json } => {
            for (key, row) in &all {
                let view = LetterView::of(key, row);
                _ = output::line(&if *json { output::json(&view) } else { view.text() });
            }
            Ok(Exit::Success)
        }
        Command::Requeue(chosen) => {
            let command = chosen.add_to(CommandText::of("dispatch letters requeue"));
            let work = requeue(wiring, &ledger, chosen.of(all)?, chosen.dry_run);
            with_record(wiring, chosen, command, work).await
        }
        Command::Drop { chosen, outcome } => {
            let said = match outcome {
                FoundOutcome::Given => "given",
                FoundOutcome::NotGiven => "not-given",
            };
            let command = chosen.add_to(CommandText::of("dispatch letters drop"));
            let command = command.option("--outcome", Some(said));
            let work = end(&ledger, chosen.of(all)?, *outcome, chosen.dry_run);
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

    /// Returns the chosen letters; refuses a key that names no letter before anything is done.
    fn of(&self, all: Vec<(CouponKey, LedgerRow)>) -> Result<Vec<(CouponKey, LedgerRow)>, Fault> {
        if self.all {
            return Ok(all);
        }
        if let Some(unknown) = self.keys.iter().find(|named| all.iter().all(|(key, _)| text(key) != **named))
        {
            return Err(refused(format!("letter {unknown}"), "there is none")
                .needs("a key as `dispatch letters list` shows it"));
        }
        Ok(all.into_iter().filter(|(key, _)| self.keys.contains(&text(key))).collect())
    }
}

async fn letters(ledger: &CouponLedger, programme: &Arc<str>) -> Result<Vec<(CouponKey, LedgerRow)>, Fault> {
    let mut all: Vec<(CouponKey, LedgerRow)> = Vec::new();
    loop {
        let page = ledger.dead_letters(programme, all.last().map(|(key, _)| key), PAGE).await?;
        if page.is_empty() || all.len() >= LETTERS_MAX {
            return Ok(all);
        }
        all.extend(page);
    }
}

async fn requeue(
    wiring: &Wiring,
    ledger: &CouponLedger,
    chosen: Vec<(CouponKey, LedgerRow)>,
    is_rehearsal: bool,
) -> Result<Exit, Fault> {
    let memory = wiring.coupon_system()?.key_memory;
    let memory = SignedDuration::try_from(memory).unwrap_or(SignedDuration::MAX);
    let queue = wiring.work_queue().await?;
    let mut exit = Exit::Success;
    for (key, row) in chosen {
        if is_rehearsal {
            _ = output::line(&format!("{} would be sent again", text(&key)));
            continue;
        }
        let sent = of_user(ledger, &key, &row, |user| dead_letters::requeue(user, &key, memory)).await?;
        match sent {
            Ok(candidate) => {
                queue.publish(&[Message::of(candidate)]).await?;
                _ = output::line(&format!("{} is sent again", text(&key)));
            }
            Err(why) => {
                exit = Exit::Definite;
                _ = output::line(&left_alone(&key, why));
            }
        }
    }
    Ok(exit)
}

async fn end(
    ledger: &CouponLedger,
    chosen: Vec<(CouponKey, LedgerRow)>,
    outcome: FoundOutcome,
    is_rehearsal: bool,
) -> Result<Exit, Fault> {
    let (decision, said) = match outcome {
        FoundOutcome::Given => (Decision::Given, "as given"),
        FoundOutcome::NotGiven => (Decision::NotGiven, "as not given"),
    };
    let mut exit = Exit::Success;
    for (key, row) in chosen {
        if is_rehearsal {
            _ = output::line(&format!("{} would end {said}", text(&key)));
            continue;
        }
        match of_user(ledger, &key, &row, |user| dead_letters::end(user, &key, decision)).await? {
            Ok(()) => _ = output::line(&format!("{} ends {said}", text(&key))),
            Err(why) => {
                exit = Exit::Definite;
                _ = output::line(&left_alone(&key, why));
            }
        }
    }
    Ok(exit)
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
        LeftAlone::NeedsDecision => {
            "the coupon system has forgotten its key, so a person must find out whether the coupon was given: \
             dispatch letters drop --outcome given|not-given"
        }
    };
    format!("{} is left as it is: {why}", text(key))
}
