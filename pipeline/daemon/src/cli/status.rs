//! `status`: every source, lane, cache and index with position, lag, rate and state.
//!
//! It asks the servers themselves, so it needs no running daemon. If the daemon of this configuration answers on
//! `http.listen`, the command shows its task states, rates and lag too: the daemon knows earlier answers of the
//! servers. Without a daemon the command asks a second time, because a rate needs two answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anabranch_pipeline::error::Code;
use anabranch_pipeline::supervise::TaskState;
use clap::Args;
use serde::Serialize;

use super::{Cli, Outcome, block_on, pause};
use crate::api::{StatusAnswer, client};
use crate::coupons::DayView;
use crate::exit::Exit;
use crate::observe::{
    CacheView, LaneView, LeaseView, Observatory, ProgrammeView, SearchView, SourceView, StatusView, TaskView,
    poll,
};
use crate::output::{self, Reader};
use crate::task_names::{cache_task, lane_task, reader_task};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Show position, lag, rate and state of every source and lane; needs no running daemon
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show it again every few seconds, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// A poll that took longer is not repeated: a server that was silent once would keep the operator waiting again.
const REPEATED_WITHIN: Duration = Duration::from_secs(3);
/// State of a source or lane whose position cannot be compared.
const INCOMPARABLE: &str = "incomparable";
/// State of a task that does not try again by itself.
const STOPPED: &str = "stopped";

#[derive(Debug, Serialize)]
struct StatusOutput<'s> {
    name: &'s str,
    /// Whether a daemon answered on `http.listen`.
    daemon: bool,
    #[serde(flatten)]
    status: &'s StatusView,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    block_on(async {
        loop {
            let (status, daemon) = observe(&wiring).await;
            let text = if arguments.json {
                json(&wiring, &status, daemon)
            } else {
                text(&status, daemon, wall_clock::now_us())
            };
            if output::line(&text) == Reader::Gone || !arguments.watch {
                return Ok(exit(&status));
            }
            tokio::time::sleep(poll::POLL_INTERVAL).await;
        }
    })?
}

/// Returns the output of `status --json`.
pub(super) async fn now_as_json(wiring: &Wiring) -> String {
    let (status, daemon) = observe(wiring).await;
    json(wiring, &status, daemon)
}

fn json(wiring: &Wiring, status: &StatusView, daemon: bool) -> String {
    output::json(&StatusOutput { name: &wiring.config().name, daemon, status })
}

/// Asks the daemon, and then every server once. Without a daemon it asks the servers again a second later, for the
/// rates. Returns also whether a daemon answered.
pub(super) async fn observe(wiring: &Wiring) -> (StatusView, bool) {
    let observatory = Observatory::new(wiring.config());
    let answer = ask_daemon(wiring).await;
    let daemon = answer.is_some();
    let begun = Instant::now();
    Box::pin(poll::once(wiring, &observatory)).await;
    if !daemon && begun.elapsed() < REPEATED_WITHIN {
        tokio::time::sleep(poll::POLL_INTERVAL).await;
        Box::pin(poll::once(wiring, &observatory)).await;
    }
    let mut status = observatory.status(&Default::default(), Instant::now());
    if let Some(answer) = answer {
        merge(&mut status, answer.status);
    }
    (status, daemon)
}

/// Returns the answer of the daemon of this configuration, if one is there.
async fn ask_daemon(wiring: &Wiring) -> Option<StatusAnswer> {
    let answer = client::status(&wiring.config().http).await?;
    (answer.name == wiring.config().name).then_some(answer)
}

/// Adds the facts that only the daemon knows: tasks, rates, and lag from before this command began.
fn merge(status: &mut StatusView, daemon: StatusView) {
    for source in &mut status.sources {
        if let Some(known) = daemon.sources.iter().find(|known| known.source == source.source) {
            source.lag_seconds = known.lag_seconds.or(source.lag_seconds);
            source.binlog_bytes_per_second = known.binlog_bytes_per_second.or(source.binlog_bytes_per_second);
            source.messages_per_second = known.messages_per_second.or(source.messages_per_second);
            if source.code.is_none() && known.state == INCOMPARABLE {
                // One answer of a server does not show that it was reset, and the daemon has more of them.
                (source.state, source.lag_seconds) = (known.state.clone(), None);
            }
            // Only a daemon asks what binlogs and streams still have.
            source.binlog_purge_seconds = known.binlog_purge_seconds;
            (source.stream_bytes, source.stream_bytes_max) = (known.stream_bytes, known.stream_bytes_max);
        }
        let task = reader_task(&source.source);
        if let Some(task) = failed(&daemon.tasks, &task) {
            source.state.clone_from(&task.state);
            source.code = task.code.clone().or(source.code.take());
            source.fault = task.fault.clone().or(source.fault.take());
        }
    }
    for lane in &mut status.lanes {
        if let Some(known) = daemon.lanes.iter().find(|known| known.id() == lane.id()) {
            merge_lane(lane, known);
        }
        let task = lane_task(lane.id());
        if let Some(task) = failed(&daemon.tasks, &task) {
            lane.state.clone_from(&task.state);
            lane.code = task.code.clone().or(lane.code.take());
            lane.fault = task.fault.clone().or(lane.fault.take());
        }
    }
    for cache in &mut status.caches {
        if let Some(task) = failed(&daemon.tasks, &cache_task(&cache.cache)) {
            cache.state.clone_from(&task.state);
            cache.code = task.code.clone().or(cache.code.take());
            cache.fault = task.fault.clone().or(cache.fault.take());
        }
    }
    status.tasks = daemon.tasks;
    merge_leases(&mut status.leases, daemon.leases);
    status.busiest = daemon.busiest;
    (status.certificates, status.drifts) = (daemon.certificates, daemon.drifts);
    (status.unanswered, status.refusals) = (daemon.unanswered, daemon.refusals);
}

/// Adds the facts of one lane that only the daemon knows.
fn merge_lane(lane: &mut LaneView, known: &LaneView) {
    lane.lag_seconds = known.lag_seconds.or(lane.lag_seconds);
    lane.rows_per_second = known.rows_per_second.or(lane.rows_per_second);
    if lane.code.is_none() && known.state == INCOMPARABLE {
        (lane.state, lane.lag_seconds) = (known.state.clone(), None);
    }
    // Only a daemon asks what streams and binlogs still have.
    lane.paused_seconds_left = known.paused_seconds_left;
    // Only the process that runs the lane knows why a table could not be read.
    lane.owed.clone_from(&known.owed);
    lane.lasting.clone_from(&known.lasting);
    if lane.refreshed_rows.is_some() && known.refreshed_rows.is_some() {
        // The daemon measures the rate over more than a second.
        lane.refreshed_rows_per_second = known.refreshed_rows_per_second.or(lane.refreshed_rows_per_second);
        lane.refresh_rows = known.refresh_rows.or(lane.refresh_rows);
        lane.refresh_seconds_left = known.refresh_seconds_left.or(lane.refresh_seconds_left);
    }
    if lane.position.is_none() {
        // The target does not answer now; the daemon remembers its last answer.
        lane.position.clone_from(&known.position);
        lane.feed.clone_from(&known.feed);
        lane.committed_at_us = known.committed_at_us;
        lane.rows = known.rows;
    }
}

/// Adds which leases the daemon holds. The daemon names no holder to a client without a token; this command asks the
/// log.
fn merge_leases(leases: &mut Vec<LeaseView>, of_daemon: Vec<LeaseView>) {
    if leases.is_empty() {
        *leases = of_daemon;
        return;
    }
    let held: BTreeSet<String> =
        of_daemon.into_iter().filter(|known| known.is_here).map(|known| known.lease).collect();
    leases.iter_mut().for_each(|view| view.is_here = held.contains(&view.lease));
}

fn is_failed(task: &TaskView) -> bool {
    task.state == "retrying" || task.state == STOPPED
}

/// Returns the task of that name, if it has failed.
fn failed<'t>(tasks: &'t [TaskView], name: &str) -> Option<&'t TaskView> {
    tasks.iter().find(|task| task.task == name && is_failed(task))
}

/// Returns the exit code of the worst fault shown. A stopped task is definite: it goes on only when an operator acts.
fn exit(status: &StatusView) -> Exit {
    let tasks = || status.tasks.iter().filter(|task| is_failed(task));
    if tasks().any(|task| task.state == STOPPED) {
        return Exit::Definite;
    }
    let sources = status.sources.iter().filter_map(|source| source.code.as_deref());
    let lanes = status.lanes.iter().filter_map(|lane| lane.code.as_deref());
    let caches = status.caches.iter().filter_map(|cache| cache.code.as_deref());
    let searches = status.searches.iter().filter_map(|search| search.code.as_deref());
    let programmes = status.programmes.iter().filter_map(|programme| programme.code.as_deref());
    sources
        .chain(lanes)
        .chain(caches)
        .chain(searches)
        .chain(programmes)
        .chain(tasks().filter_map(|task| task.code.as_deref()))
        .filter_map(Code::from_text)
        .map(Exit::of)
        .max()
        .unwrap_or(Exit::Success)
}

/// Returns tasks of none of the sources, lanes and caches shown: reconciliations, spot checks, sweeps, uuids.
fn other_tasks(status: &StatusView) -> impl Iterator<Item = &TaskView> {
    let is_shown = |name: &str| {
        status.sources.iter().any(|source| reader_task(&source.source) == name)
            || status.lanes.iter().any(|lane| lane_task(lane.id()) == name)
            || status.caches.iter().any(|cache| cache_task(&cache.cache) == name)
    };
    status.tasks.iter().filter(move |task| !is_shown(&task.task))
}

/// Returns text for people: a table of sources, one of lanes, of caches, indexes and further tasks if there are any,
/// then the faults.
fn text(status: &StatusView, daemon: bool, now_us: u64) -> String {
    let mut out = String::new();
    let heads =
        ["SOURCE", "STATE", "LAG", "BINLOG HEAD", "STREAM END", "NEWEST CHANGE", "BINLOG/S", "MESSAGES/S"];
    table(&mut out, heads, status.sources.iter().map(|source| source_row(source, now_us)));
    out.push('\n');
    let heads = ["LANE", "STATE", "LAG", "POSITION", "FEED", "NEWEST CHANGE", "ROWS", "ROWS/S", "REFRESH"];
    table(&mut out, heads, status.lanes.iter().map(|lane| lane_row(lane, now_us)));
    if !status.caches.is_empty() {
        out.push('\n');
        table(&mut out, ["CACHE", "STATE", "DELAY"], status.caches.iter().map(cache_row));
    }
    if !status.searches.is_empty() {
        out.push('\n');
        let heads = ["SEARCH", "INDEX", "BUILDING", "DOCUMENTS", "TOMBSTONES", "DEAD LETTERS"];
        table(&mut out, heads, status.searches.iter().map(search_row));
    }
    if !status.programmes.is_empty() {
        out.push('\n');
        let heads = [
            "PROGRAMME",
            "DAY",
            "STATE",
            "ELIGIBLE",
            "GRANTED",
            "REFUSED",
            "IN FLIGHT",
            "MISSED",
            "DEAD LETTERS",
        ];
        table(&mut out, heads, status.programmes.iter().map(programme_row));
    }
    let others: Vec<&TaskView> = other_tasks(status).collect();
    if !others.is_empty() {
        out.push('\n');
        table(&mut out, ["TASK", "STATE"], others.iter().map(|task| task_row(task)));
    }
    let searches = status.searches.iter().map(|search| (search.projection.clone(), &search.fault));
    let sources = status.sources.iter().map(|source| (source.source.clone(), &source.fault));
    write_pauses(&mut out, status);
    write_owed(&mut out, status);
    let lanes = status.lanes.iter().map(|lane| (lane.id(), &lane.fault));
    let caches = status.caches.iter().map(|cache| (cache.cache.clone(), &cache.fault));
    let programmes =
        status.programmes.iter().map(|view| (format!("programme {}", view.programme), &view.fault));
    let others = others.iter().map(|task| (task.task.clone(), &task.fault));
    let things = sources.chain(lanes).chain(caches).chain(searches).chain(programmes).chain(others);
    for (thing, fault) in things {
        if let Some(fault) = fault {
            _ = write!(out, "\n{thing}: {}", fault.replace('\n', " "));
        }
    }
    if let Some(held) = held_leases(&status.leases) {
        _ = write!(out, "\n{held}");
    }
    let stopped = status.tasks.iter().filter(|task| task.state == STOPPED).count();
    if stopped > 0 {
        _ = write!(out, "\n{stopped} of {} tasks of the daemon stopped", status.tasks.len());
    }
    if !daemon {
        out.push_str("\nno daemon answered on http.listen: lag is what this command saw within a second");
    }
    out
}

fn write_pauses(out: &mut String, status: &StatusView) {
    for lane in &status.lanes {
        let Some(pause) = &lane.pause else { continue };
        _ = write!(out, "\n{}: {}", lane.id(), pause::describe(pause));
        if let Some(left) = lane.paused_seconds_left {
            let left = duration(left as u64);
            _ = write!(out, "; log and binlog lose what it needs next in {left} at the present rate");
        }
    }
}

fn write_owed(out: &mut String, status: &StatusView) {
    for lane in status.lanes.iter().filter(|lane| lane.owed_tables > 0) {
        let tables = match lane.owed_tables {
            1 => "1 table waits".to_owned(),
            many => format!("{many} tables wait"),
        };
        _ = write!(out, "\n{}: {tables} to be read again; derived rows stand until then", lane.id());
        for owed in &lane.owed {
            // A daemon gives a client without a token no text.
            let text = if owed.fault.is_empty() { format!("[{}]", owed.code) } else { owed.fault.clone() };
            _ = write!(out, "\n  {}", text.replace('\n', " "));
        }
    }
}

/// Returns `leases: 5 of host-a 4242, 2 of host-b 99`; `None` when none are known.
fn held_leases(leases: &[LeaseView]) -> Option<String> {
    let mut holders = BTreeMap::<&str, usize>::new();
    for view in leases {
        *holders.entry(view.holder.as_deref().unwrap_or("unknown processes")).or_default() += 1;
    }
    let holders: Vec<String> = holders.iter().map(|(holder, count)| format!("{count} of {holder}")).collect();
    (!holders.is_empty()).then(|| format!("leases: {}", holders.join(", ")))
}

fn source_row(source: &SourceView, now_us: u64) -> [String; 8] {
    [
        source.source.clone(),
        source.state.clone(),
        seconds(source.lag_seconds),
        or_dash(source.head.as_deref()),
        or_dash(source.position.as_deref()),
        age(source.committed_at_us, now_us),
        source.binlog_bytes_per_second.map_or("-".to_owned(), bytes),
        source.messages_per_second.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
    ]
}

fn lane_row(lane: &LaneView, now_us: u64) -> [String; 9] {
    [
        lane.id(),
        lane.state.clone(),
        seconds(lane.lag_seconds),
        or_dash(lane.position.as_deref()),
        or_dash(lane.feed.as_deref()),
        age(lane.committed_at_us, now_us),
        lane.rows.to_string(),
        lane.rows_per_second.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
        refresh(lane),
    ]
}

/// Returns `12000 of about 300000 rows, 9800/s, 29 s left`, as far as it is known; before it `removes 2 tables` while
/// derived rows of dropped tables are removed.
fn refresh(lane: &LaneView) -> String {
    let removes = (lane.withdrawn_tables > 0).then(|| format!("removes {} tables", lane.withdrawn_tables));
    let Some(rows) = lane.refreshed_rows else { return removes.unwrap_or_else(|| "-".to_owned()) };
    let mut text = removes.map_or(String::new(), |removes| removes + ", ");
    _ = write!(text, "{rows}");
    if let Some(expected) = lane.refresh_rows {
        _ = write!(text, " of about {expected}");
    }
    text.push_str(" rows");
    if let Some(rate) = lane.refreshed_rows_per_second {
        _ = write!(text, ", {rate:.0}/s");
    }
    if let Some(left) = lane.refresh_seconds_left {
        _ = write!(text, ", {} left", duration(left as u64));
    }
    text
}

fn cache_row(cache: &CacheView) -> [String; 3] {
    [cache.cache.clone(), cache.state.clone(), seconds(cache.delay_seconds)]
}

fn search_row(search: &SearchView) -> [String; 6] {
    let number = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    [
        search.projection.clone(),
        or_dash(search.index.as_deref()),
        or_dash(search.building.as_deref()),
        number(search.documents),
        number(search.tombstones),
        number(search.dead_letters),
    ]
}

/// Returns a task with its state, and what it waits for if it works.
fn task_row(task: &TaskView) -> [String; 2] {
    let waits_for = task.waits_for.as_ref().filter(|_| task.state == TaskState::Running.name());
    let state = match waits_for {
        Some(what) => format!("{}, waits for {what}", task.state),
        None => task.state.clone(),
    };
    [task.task.clone(), state]
}

fn programme_row(view: &ProgrammeView) -> [String; 9] {
    let number =
        |value: fn(&DayView) -> u64| view.day.as_ref().map_or("-".to_owned(), |day| value(day).to_string());
    [
        view.programme.clone(),
        or_dash(view.day.as_ref().and_then(|day| day.day.as_deref())),
        view.state.clone(),
        number(|day| day.eligible),
        number(|day| day.granted + day.already_granted),
        number(DayView::refused_count),
        number(|day| day.in_flight),
        number(|day| day.missed),
        number(|day| day.dead_letters),
    ]
}

/// Appends a table: columns as wide as their widest cell, two blanks between.
fn table<const N: usize>(out: &mut String, heads: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(rows);
    let widths: [usize; N] = std::array::from_fn(|column| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
    });
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn seconds(lag: Option<f64>) -> String {
    lag.map_or("-".to_owned(), |lag| format!("{lag:.1} s"))
}

/// Returns the time since the newest change was committed at its source.
fn age(committed_at_us: Option<u64>, now_us: u64) -> String {
    let Some(at) = committed_at_us else { return "-".to_owned() };
    format!("{} ago", duration(now_us.saturating_sub(at) / 1_000_000))
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn bytes(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.1} MB", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} kB", rate / 1e3),
        rate => format!("{rate:.0} B"),
    }
}

#[cfg(test)]
mod tests;
