//! Changes at a fixed rate, open loop, and the time until each was seen.
//!
//! Each change is due at a time that is independent of earlier changes, so a stall delays all changes that it would
//! delay in production. The delay of sending counts into the latency. The caller defines how a change is seen.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anabranch_demo::{Connection, Endpoint};
use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::meter::{cpu_seconds, median};
use crate::report::Line;

pub const CHANGES_A_SECOND: u64 = 1_000;
/// Enough connections that a slow commit makes no other change late.
const CONNECTIONS: usize = 16;
/// Time before the first change counts, for pools and caches of all processes to warm up.
pub const WARM_UP: Duration = Duration::from_secs(2);

/// The statement of a number.
pub type Statement = Arc<dyn Fn(u64) -> String + Send + Sync>;

/// One change: its number, and when it was due, sent and committed.
#[derive(Debug, Clone, Copy)]
pub struct Committed {
    pub number: u64,
    pub due: Instant,
    pub sent: Instant,
    pub committed: Instant,
}

/// The written changes.
pub struct Written {
    pub changes: Vec<Committed>,
    /// CPU time of each process.
    cpu_seconds: Vec<f64>,
}

/// Writes the changes of these numbers at this rate, each when it is due, and reports each to `committed`.
pub async fn write(
    endpoint: &Endpoint,
    (numbers, changes_a_second): (Range<u64>, u64),
    statement: &Statement,
    processes: &[u32],
    committed: &mpsc::UnboundedSender<Committed>,
) -> Written {
    let mut writers = JoinSet::new();
    let mut queues = Vec::new();
    for _ in 0..CONNECTIONS {
        let (queue, due) = mpsc::unbounded_channel();
        queues.push(queue);
        let connection = endpoint.connect(&[]).await.expect("it answers");
        writers.spawn(write_due(connection, due, Arc::clone(statement), committed.clone()));
    }
    let clock = thread::spawn(move || schedule(numbers, changes_a_second, &queues));
    let before: Vec<f64> = processes.iter().copied().map(cpu_seconds).collect();
    let mut changes = Vec::new();
    while let Some(written) = writers.join_next().await {
        changes.extend(written.expect("the statements are right"));
    }
    clock.join().expect("it only counts");
    let cpu_seconds = processes.iter().zip(before).map(|(pid, before)| cpu_seconds(*pid) - before).collect();
    Written { changes, cpu_seconds }
}

/// Hands each change to a connection when it is due, whatever the others do.
fn schedule(numbers: Range<u64>, changes_a_second: u64, queues: &[mpsc::UnboundedSender<(u64, Instant)>]) {
    let began = Instant::now();
    let interval = Duration::from_secs(1) / changes_a_second as u32;
    for (index, number) in numbers.enumerate() {
        let due = began + interval * index as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if queues[index % queues.len()].send((number, due)).is_err() {
            return;
        }
    }
}

/// Writes each change of a queue in its own transaction.
async fn write_due(
    mut connection: Connection,
    mut due: mpsc::UnboundedReceiver<(u64, Instant)>,
    statement: Statement,
    committed: mpsc::UnboundedSender<Committed>,
) -> Vec<Committed> {
    let mut written = Vec::new();
    while let Some((number, due)) = due.recv().await {
        let sql = statement(number);
        let sent = Instant::now();
        connection.execute("write a change", sql).await.expect("the server takes it");
        let change = Committed { number, due, sent, committed: Instant::now() };
        // The receiver may be closed.
        let _ = committed.send(change);
        written.push(change);
    }
    written
}

/// Times until changes were seen.
#[derive(Debug)]
pub struct Latencies {
    /// Time from commit to seen, plus the delay of sending.
    from_commit: Histogram<u64>,
    /// Time from when it was due, so the source's own commit is included.
    from_due: Histogram<u64>,
    /// The same as `from_commit`, for each second of the run.
    of_seconds: Vec<Histogram<u64>>,
    /// CPU of a change in microseconds, for each process.
    cpu_us: Vec<f64>,
}

impl Latencies {
    /// Latencies of the changes in `seen`, without those of the warm-up.
    pub fn of(written: &Written, seen: &HashMap<u64, Instant>) -> Self {
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        let count = written.changes.len() as f64;
        let cpu_us = written.cpu_seconds.iter().map(|seconds| seconds * 1e6 / count).collect();
        let (from_commit, from_due) = (histogram(), histogram());
        let mut latencies = Self { from_commit, from_due, of_seconds: Vec::new(), cpu_us };
        let began = written.changes.iter().map(|change| change.due).min().expect("there are changes");
        for change in written.changes.iter().filter(|change| change.due >= began + WARM_UP) {
            let Some(seen) = seen.get(&change.number) else { continue };
            let late = change.sent - change.due;
            let from_commit = seen.saturating_duration_since(change.committed) + late;
            record(&mut latencies.from_commit, from_commit);
            let second = (change.due - began - WARM_UP).as_secs() as usize;
            while latencies.of_seconds.len() <= second {
                latencies.of_seconds.push(histogram());
            }
            record(&mut latencies.of_seconds[second], from_commit);
            record(&mut latencies.from_due, seen.saturating_duration_since(change.due));
        }
        latencies
    }

    /// CPU of a change in microseconds, of the process at this place of the measured ones.
    pub fn cpu_us(&self, place: usize) -> f64 {
        self.cpu_us[place]
    }

    pub fn p99_ms(&self) -> f64 {
        self.from_commit.value_at_quantile(0.99) as f64 / 1e3
    }
}

fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.record(latency.as_micros() as u64).expect("it grows");
}

/// Compares quantiles with other work beside the changes against quantiles without it.
pub fn beside(
    figure: &'static str,
    with: &[Latencies],
    without: &[Latencies],
    processes: &[&str],
    most: f64,
) -> Line {
    let [with, without] = [with, without].map(|runs| line(figure, runs, processes, None));
    let p99 = |line: &Line| line.detail["p99_ms"].as_f64().unwrap_or(f64::NAN);
    let ratio = p99(&with) / p99(&without);
    Line {
        limit: format!("without: {}", without.measured),
        ratio: format!("{ratio:.1} ×"),
        bar: format!("p99 ≤ {most} ×"),
        passes: Some(ratio <= most),
        detail: json!({ "ratio": ratio, "with": with.detail, "without": without.detail }),
        ..with
    }
}

/// Limits of quantiles, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Threshold {
    pub p50_ms: Option<f64>,
    pub p99_ms: f64,
}

/// Medians of the runs; `processes` names those whose CPU was measured.
pub fn line(figure: &'static str, runs: &[Latencies], processes: &[&str], bar: Option<Threshold>) -> Line {
    let of = |histogram: fn(&Latencies) -> &Histogram<u64>, quantile: f64| {
        median(runs.iter().map(|run| histogram(run).value_at_quantile(quantile) as f64 / 1e3))
    };
    let from_commit: fn(&Latencies) -> &Histogram<u64> = |run| &run.from_commit;
    let from_due: fn(&Latencies) -> &Histogram<u64> = |run| &run.from_due;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|quantile| of(from_commit, quantile));
    let [due_p50, due_p99, due_most] = [0.5, 0.99, 1.0].map(|quantile| of(from_due, quantile));
    let cpu = |place: usize| median(runs.iter().map(|run| run.cpu_us[place]));
    let cpu: Vec<String> =
        processes.iter().enumerate().map(|(place, name)| format!("{name} {:.0}", cpu(place))).collect();
    let text = |bar: Threshold| {
        let p50 = bar.p50_ms.map_or(String::new(), |p50| format!("p50 ≤ {p50} ms, "));
        format!("{p50}p99 ≤ {} ms", bar.p99_ms)
    };
    let passes = |bar: Threshold| bar.p50_ms.is_none_or(|limit| p50 <= limit) && p99 <= bar.p99_ms;
    let one = |run: &Latencies| -> Json {
        let quantiles = |histogram: &Histogram<u64>| -> Json {
            let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) })
        };
        json!({
            "changes": run.from_commit.len(),
            "p99_of_seconds":
                run.of_seconds.iter().map(|of| of.value_at_quantile(0.99) as f64 / 1e3).collect::<Vec<_>>(),
            "from_commit_ms": quantiles(&run.from_commit), "from_due_ms": quantiles(&run.from_due),
        })
    };
    Line {
        figure,
        measured: format!("p50 {p50:.1} ms, p99 {p99:.1} ms, max {most:.0} ms"),
        limit: format!("from due: p50 {due_p50:.1}, p99 {due_p99:.1}, max {due_most:.0} ms"),
        ratio: "-".to_owned(),
        cpu: cpu.join(", "),
        bar: bar.map_or("-".to_owned(), text),
        passes: bar.map(passes),
        detail: json!({ "p99_ms": p99, "runs": runs.iter().map(one).collect::<Vec<_>>() }),
    }
}
