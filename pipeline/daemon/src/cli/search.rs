//! The command `search` works on the index of a document projection as a whole.
//!
//! `rebuild` fills a new index beside the one that serves, from the sources' past, with lanes of its own in this
//! process. Then the new index takes the place of the old one. Daemons go on meanwhile and write both indexes. If a
//! rebuild is cut off, it goes on when the command is repeated. `sweep` removes tombstones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_pipeline::composition;
use anabranch_pipeline::deliver::fence;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{LaneStore as _, READER_REPLICA_SLOT};
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::retry::while_it_moves;
use anabranch_schemas::lsn::Lsn;
use clap::{Args, Subcommand};
use futures::future::try_join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, past, recorded};
use crate::output;
use crate::wall_clock;
use crate::wiring::{Documents, Wiring, lanes};

/// Time between two looks at a lane that reads tables.
const POLL: Duration = Duration::from_millis(200);
/// Time between two lines of progress in the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Look after the index of a document projection
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Rebuild(Rebuild),
    Sweep(Sweep),
}

/// Build a new index beside the one that serves, then let the new one serve; repeat the command if it was cut off
#[derive(Debug, Args)]
struct Rebuild {
    /// Projection of kind serial_documents
    projection: String,
    /// Continue although the first binlogs were purged, so that rows that have not changed since will be missing
    #[arg(long)]
    accept_missing_history: bool,
    /// Remove the old index at the end; otherwise it stays as it was then, and no lane writes it any more
    #[arg(long)]
    remove_old: bool,
    /// Give up a rebuild that was cut off: lanes write the serving index alone, and the new one is removed
    #[arg(long, conflicts_with_all = ["accept_missing_history", "remove_old", "dry_run"])]
    abandon: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Remove those tombstones of deleted documents that are not needed any more
#[derive(Debug, Args)]
struct Sweep {
    /// Projection of kind serial_documents
    projection: String,
    /// Remove only tombstones older than this: longer than a process or machine may be stopped and then go on
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    older_than: u32,
    /// Count the tombstones, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let done = match &arguments.command {
        Command::Rebuild(arguments) => block_on(rebuild(&wiring, arguments))?,
        Command::Sweep(arguments) => block_on(sweep(&wiring, arguments))?,
    };
    done.map(|()| Exit::Success).map_err(|fault| vec![fault])
}

async fn sweep(wiring: &Wiring, arguments: &Sweep) -> Result<(), Fault> {
    let documents = wiring.documents_of(&arguments.projection)?;
    let age_ms = u64::from(arguments.older_than) * 3_600_000;
    let before_ms = wall_clock::now_ms().saturating_sub(age_ms);
    let work = documents.target.sweep(&documents.projection, before_ms, arguments.dry_run);
    let count = match arguments.dry_run {
        true => work.await?,
        false => {
            let hours = arguments.older_than.to_string();
            let command = CommandText::of("search sweep").word(&arguments.projection);
            let command = command.option("--older-than", Some(&hours)).text();
            let after = |count: &u64| format!("{count} tombstones are removed");
            recorded(wiring, &Actor::of_command(), (command, None), work, after).await?.done
        }
    };
    let verb = if arguments.dry_run { "would be" } else { "are" };
    _ = output::line(&format!("{}: {count} tombstones {verb} removed", documents.projection));
    Ok(())
}

async fn rebuild(wiring: &Wiring, arguments: &Rebuild) -> Result<(), Fault> {
    let documents = wiring.documents_of(&arguments.projection)?;
    let (target, projection) = (&documents.target, documents.projection.as_str());
    let command = CommandText::of("search rebuild").word(projection);
    if arguments.abandon {
        let work = async {
            Ok(match target.abandon_rebuild(projection).await? {
                Some(index) => format!("{index} is removed"),
                None => format!("{projection}: no index is being built"),
            })
        };
        let command = command.flag("--abandon", true).text();
        let done = recorded(wiring, &Actor::of_command(), (command, None), work, String::clone).await?.done;
        _ = output::line(&done);
        return Ok(());
    }
    let mut ids = lanes(wiring.config());
    ids.retain(|id| id.projection == projection);
    let mut sources: Vec<&str> = ids.iter().map(|id| id.source.as_str()).collect();
    sources.dedup();
    for source in sources {
        past(wiring, source).await?.nothing(arguments.accept_missing_history).await?;
    }
    let generations = target.generations(projection).await?;
    let (serving, index) = (&generations.serving, target.next_index(projection).await?);
    let (verb, now) = (if arguments.dry_run { "would be" } else { "is" }, target.count(serving).await?);
    let begun = if generations.building.is_some() { "built further" } else { "built" };
    let text =
        format!("{index} {verb} {begun} by {} lanes beside {serving}, which has {now} documents", ids.len());
    _ = output::line(&text);
    if arguments.dry_run {
        return Ok(());
    }
    let command = command
        .flag("--accept-missing-history", arguments.accept_missing_history)
        .flag("--remove-old", arguments.remove_old)
        .text();
    let before = format!("{serving} serves with {now} documents");
    let work = build_all(wiring, &documents, &ids, arguments.remove_old);
    let done =
        recorded(wiring, &Actor::of_command(), (command, Some(before)), work, String::clone).await?.done;
    _ = output::line(&done);
    Ok(())
}

/// Builds the new index, and lets it serve; returns a sentence about it.
async fn build_all(
    wiring: &Wiring,
    documents: &Documents,
    ids: &[LaneId],
    removes_old: bool,
) -> Result<String, Fault> {
    let (target, projection) = (&documents.target, documents.projection.as_str());
    let index = target.begin_rebuild(projection).await?;
    try_join_all((0..).zip(ids).map(|(number, id)| build(wiring, documents, (number, id), &index))).await?;
    let old = target.end_rebuild(projection, &index, removes_old).await?;
    let (count, what) = (target.count(&index).await?, if removes_old { "removed" } else { "kept" });
    Ok(format!("{index} serves with {count} documents; {old} is {what}"))
}

/// Brings the past of one lane into the new index.
async fn build(
    wiring: &Wiring,
    documents: &Documents,
    (number, id): (u32, &LaneId),
    index: &str,
) -> Result<(), Fault> {
    let (reached, mut seen) = watch::channel(Lsn::ZERO);
    let done = CancellationToken::new();
    let goal = async {
        let mut living = wiring.lane(id)?;
        // Before the first fence the daemon's lane may have written the old index alone. Before the second one, its
        // withdrawals may have missed documents that this rebuild wrote later. So the rebuild passes both.
        for _ in 0..2 {
            let position = fence(&mut living).await?;
            report(id, position, &mut seen).await;
        }
        let (budget, answers) = (wiring.config().limits.retry_budget, AtomicU64::new(0));
        let answered = || answers.load(Ordering::Relaxed);
        while_it_moves(budget, answered, || until_read(documents, id, index, &answers)).await?;
        done.cancel();
        Ok(())
    };
    let work = while_it_moves(
        wiring.config().limits.retry_budget,
        || *reached.borrow(),
        || attempt(wiring, documents, (number, id), index, (&reached, &done)),
    );
    tokio::try_join!(goal, work).map(|_| ())
}

/// Waits until a lane of the rebuild has read all tables that it is to read: row events tell neither rows from before
/// the history nor rows that changed unseen. Logs meanwhile what is left, and counts answers of the target.
async fn until_read(
    documents: &Documents,
    id: &LaneId,
    index: &str,
    answers: &AtomicU64,
) -> Result<(), Fault> {
    let mut store = documents.target.building_lane(id, index).ok_or_else(|| unknown(id))?;
    let mut report_at = Instant::now() + REPORT_INTERVAL;
    loop {
        let Some(refresh) = store.load().await?.refresh else { return Ok(()) };
        answers.fetch_add(1, Ordering::Relaxed);
        if Instant::now() >= report_at {
            report_at = Instant::now() + REPORT_INTERVAL;
            let (rows, waiting) = (refresh.rows, refresh.rereads.len());
            tracing::info!(lane = %id, rows, waiting, "rebuilding: the lane still reads tables");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until the rebuild has reached the position, and logs meanwhile how far it is.
async fn report(id: &LaneId, position: Lsn, seen: &mut watch::Receiver<Lsn>) {
    loop {
        let reached = seen.wait_for(|reached| *reached >= position);
        if tokio::time::timeout(REPORT_INTERVAL, reached).await.is_ok() {
            return;
        }
        let at = *seen.borrow();
        tracing::info!(lane = %id, %at, to = %position, "rebuilding");
    }
}

async fn attempt(
    wiring: &Wiring,
    documents: &Documents,
    (number, id): (u32, &LaneId),
    index: &str,
    (reached, done): (&watch::Sender<Lsn>, &CancellationToken),
) -> Result<(), Fault> {
    let mut store = documents.target.building_lane(id, index).ok_or_else(|| unknown(id))?;
    let (projection, name) = (store.projection().clone(), store.id().clone());
    // The replica slots of this process follow those of the daemon's lanes.
    let taken = lanes(wiring.config()).iter().filter(|lane| lane.source == id.source).count();
    let replica_slot = READER_REPLICA_SLOT + 1 + taken as u32 + number;
    let lane = composition::lane(wiring, &name, &projection, store.scope(), replica_slot).await?;
    lane.run(&mut store, reached, done).await
}

fn unknown(id: &LaneId) -> Fault {
    use anabranch_pipeline::error::Code;
    Fault::new(Code::ConfigInvalid, format!("lane {id}"), "it is not in the configuration")
        .needs("a configured projection, source and target")
}
