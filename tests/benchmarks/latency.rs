//! Commit to visible: the real daemon, 1,000 changes a second, open loop.
//!
//! Each change is due at a time that depends on nothing that happened before, so a stall delays all that it would
//! delay in life; what a change left late is added to its latency. It is visible when the target's commit of its
//! derived row reaches the target's own binlog, which a second reader follows; a sample of the rows is selected at that
//! moment, to see that this is so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_connectors::mysql::source::{MysqlSource, MysqlStream};
use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::capture::BatchBuilder;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::ports::{ChangeSource, Entry, SourceConnector};
use anabranch_schemas::change::{Action, Value};
use anabranch_schemas::codec::v1;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::reign::Reign;
use anabranch_schemas::shard::TablePattern;
use anabranch_tests::Daemon;
use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::Scale;
use crate::meter::{cpu_seconds, median};
use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES, TARGET};

const CHANGES_A_SECOND: u64 = 1_000;
/// So that a slow commit makes no other change late.
const CONNECTIONS: usize = 16;
const P50_MS: f64 = 5.0;
const P99_MS: f64 = 20.0;
const LARGE_ROWS: u64 = 10_000;
const LARGE_EVERY: Duration = Duration::from_secs(2);
/// Of so many derived rows one is selected when it is seen.
const SAMPLE: u64 = 64;
/// Before the first change counts: pools and caches of four processes warm up.
const WARM_UP: Duration = Duration::from_secs(2);
/// The last change must be visible by then.
const PATIENCE: Duration = Duration::from_secs(60);
/// Numbers of users that are made while measuring begin here.
const NEW_USERS: u64 = 1_000_000_000;
const LARGE_USERS: u64 = 2_000_000_000;

/// One change: which user, and when it was due, sent and committed.
#[derive(Debug, Clone, Copy)]
struct Committed {
    user_id: u64,
    due: Instant,
    sent: Instant,
    committed: Instant,
}

#[derive(Debug)]
struct Latencies {
    /// Commit to visible, and how late the change was sent.
    from_commit: Histogram<u64>,
    /// From when it was due: the source's own commit included.
    from_due: Histogram<u64>,
    /// CPU seconds of daemon, target, broker and source.
    cpu_seconds: [f64; 4],
}

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let _ = site.new_log("latency").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let count = scale.latency_seconds * CHANGES_A_SECOND;
    let warm_up = WARM_UP.as_secs() * CHANGES_A_SECOND;
    let runs = u64::from(scale.rounds) + 1;
    let users_a_table = (count + warm_up) * runs / u64::from(DATABASES * TABLES) + 1;
    make_users(&site, users_a_table).await;
    let watch = Watch::start(&site).await;
    let mut load = Load { site: &site, daemon: &daemon, watch, users_a_table, count, numbers: 0 };
    let mut uniform = Vec::new();
    for _ in 0..scale.rounds {
        uniform.push(load.run(false).await);
    }
    let mixed = load.run(true).await;
    let (sampled, visible) = load.watch.finish().await;
    report.note(&format!("latency: {visible} of {sampled} sampled rows were there when first selected"));
    report.add(line("latency", &uniform, count, true));
    report.add(line("latency, 10,000-row transactions too", &[mixed], count, false));
}

/// What the runs share.
struct Load<'s, 'g> {
    site: &'s Site<'g>,
    daemon: &'s Daemon,
    watch: Watch,
    users_a_table: u64,
    /// Changes a run, without those of its warm-up.
    count: u64,
    /// Changes of earlier runs.
    numbers: u64,
}

/// Users whose birthday will be changed, each once.
async fn make_users(site: &Site<'_>, users_a_table: u64) {
    let mut sql = String::new();
    for place in 0..u64::from(DATABASES * TABLES) {
        let first = 1 + place * users_a_table;
        let (database, table) = (place / u64::from(TABLES), place % u64::from(TABLES));
        sql.push_str(&insert(
            &format!("user_{database:02}.user_{table:03}"),
            first,
            first + users_a_table - 1,
        ));
    }
    for database in 0..u64::from(DATABASES) {
        let first = LARGE_USERS + database * LARGE_ROWS;
        sql.push_str(&insert(&format!("user_{database:02}.user_000"), first, first + LARGE_ROWS - 1));
    }
    site.source(sql).await;
    site.installation.drained().await;
}

fn insert(table: &str, first: u64, last: u64) -> String {
    format!(
        "INSERT INTO {table} (user_id, user_name, birthday)
         SELECT seq, CONCAT('user-', seq), DATE '1950-01-01' + INTERVAL (seq * 7919 % 20000) DAY
         FROM user_00.seq_{first}_to_{last};"
    )
}

impl Load<'_, '_> {
    async fn run(&mut self, is_mixed: bool) -> Latencies {
        let endpoint =
            Endpoint::admin(self.site.installation.stack(), SOURCE).expect("a server of the stack");
        let warm_up = WARM_UP.as_secs() * CHANGES_A_SECOND;
        let numbers = self.numbers..self.numbers + warm_up + self.count;
        self.numbers = numbers.end;
        let mut writers = JoinSet::new();
        let mut queues = Vec::new();
        for _ in 0..CONNECTIONS {
            let (queue, due) = mpsc::unbounded_channel();
            queues.push(queue);
            writers.spawn(write(endpoint.connect(&[]).await.expect("it answers"), due, self.users_a_table));
        }
        let large = is_mixed.then(|| tokio::spawn(write_large(endpoint.clone())));
        let clock = thread::spawn(move || schedule(numbers, &queues));
        let pids = [self.daemon.pid(), self.site.pid(TARGET), self.site.pid("nats"), self.site.pid(SOURCE)];
        let before = pids.map(cpu_seconds);
        let mut committed = Vec::new();
        while let Some(written) = writers.join_next().await {
            committed.extend(written.expect("the statements are right"));
        }
        clock.join().expect("it only counts");
        if let Some(large) = large {
            large.abort();
        }
        let cpu_seconds = pids.map(cpu_seconds);
        let cpu_seconds = std::array::from_fn(|index| cpu_seconds[index] - before[index]);
        let began = committed.iter().map(|change| change.due).min().expect("there are changes");
        let visible = self.watch.until(&committed).await;
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        let mut latencies = Latencies { from_commit: histogram(), from_due: histogram(), cpu_seconds };
        for change in committed.iter().filter(|change| change.due >= began + WARM_UP) {
            let seen = visible[&change.user_id];
            let late = change.sent - change.due;
            let from_commit = seen.saturating_duration_since(change.committed) + late;
            record(&mut latencies.from_commit, from_commit);
            record(&mut latencies.from_due, seen.saturating_duration_since(change.due));
        }
        latencies
    }
}

fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.record(latency.as_micros() as u64).expect("it grows");
}

/// Gives each change to a connection when it is due, whatever the others do.
fn schedule(numbers: std::ops::Range<u64>, queues: &[mpsc::UnboundedSender<(u64, Instant)>]) {
    let began = Instant::now();
    let interval = Duration::from_secs(1) / CHANGES_A_SECOND as u32;
    for (index, number) in numbers.enumerate() {
        let due = began + interval * index as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if queues[index % queues.len()].send((number, due)).is_err() {
            return;
        }
    }
}

/// One change a transaction: in turn a new user, and another birthday of one that is there.
async fn write(
    mut connection: Connection,
    mut due: mpsc::UnboundedReceiver<(u64, Instant)>,
    users_a_table: u64,
) -> Vec<Committed> {
    let mut written = Vec::new();
    while let Some((number, due)) = due.recv().await {
        let (user_id, sql) = change(number, users_a_table);
        let sent = Instant::now();
        connection.execute("write a user", sql).await.expect("the server takes it");
        written.push(Committed { user_id, due, sent, committed: Instant::now() });
    }
    written
}

/// Each number changes a user of its own.
fn change(number: u64, users_a_table: u64) -> (u64, String) {
    let places = u64::from(DATABASES * TABLES);
    let (place, turn) = (number % places, number / places);
    let table = format!("user_{:02}.user_{:03}", place / u64::from(TABLES), place % u64::from(TABLES));
    let day = format!("DATE '1950-01-01' + INTERVAL {} DAY", number * 104_729 % 20_000);
    if turn % 2 == 0 {
        let user_id = NEW_USERS + number;
        let sql = format!(
            "INSERT INTO {table} (user_id, user_name, birthday) VALUES ({user_id}, 'new-{number}', {day})"
        );
        return (user_id, sql);
    }
    let user_id = 1 + place * users_a_table + turn;
    // Never the birthday that it has, so that the row always changes.
    let sql = format!(
        "UPDATE {table} SET birthday = IF(birthday = {day}, {day} + INTERVAL 1 DAY, {day}) WHERE user_id = {user_id}"
    );
    (user_id, sql)
}

/// A large transaction every now and then, until it is stopped.
async fn write_large(endpoint: Endpoint) {
    let mut connection = endpoint.connect(&[]).await.expect("it answers");
    let mut ticks = tokio::time::interval(LARGE_EVERY);
    for turn in 0.. {
        ticks.tick().await;
        let database = turn % u64::from(DATABASES);
        let first = LARGE_USERS + database * LARGE_ROWS;
        let sql = format!(
            "UPDATE user_{database:02}.user_000 SET birthday = birthday + INTERVAL 1 DAY
             WHERE user_id BETWEEN {first} AND {}",
            first + LARGE_ROWS - 1
        );
        connection.execute("write a large transaction", sql).await.expect("the server takes it");
    }
}

type Seen = Arc<Mutex<HashMap<u64, Instant>>>;

/// Follows the target's binlog: when which user's derived row was committed.
struct Watch {
    seen: Seen,
    follower: JoinHandle<()>,
    sampler: JoinHandle<(u64, u64)>,
}

impl Watch {
    async fn start(site: &Site<'_>) -> Self {
        let server = site.installation.server(TARGET);
        let text = site.installation.configuration_text();
        let text = text.replace(&site.installation.server(SOURCE).url(), &server.admin_url());
        let mut config = Config::parse(&text).expect("only the address differs");
        let pattern = TablePattern::parse("birthday_{db:02}.birthday_{table:04}");
        config.entities[0].tables = pattern.expect("it is a pattern");
        let connector = MysqlSource::new(&config.sources[0], &config.entities, Duration::from_secs(5));
        let stream =
            connector.open(Entry::Latest, &Reign::default(), 0).await.expect("the target has a binlog");
        let seen = Seen::default();
        let (sample, samples) = mpsc::unbounded_channel();
        let limit = config.limits.batch_bytes.get();
        Self {
            follower: tokio::spawn(follow(stream, limit, Arc::clone(&seen), sample)),
            sampler: tokio::spawn(select(site.installation.admin(TARGET).await, samples)),
            seen,
        }
    }

    /// Waits until every change is visible; when each was.
    async fn until(&mut self, committed: &[Committed]) -> HashMap<u64, Instant> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if committed.iter().all(|change| seen.contains_key(&change.user_id)) {
                return seen;
            }
            assert!(Instant::now() < deadline, "changes are not visible after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How many rows were selected, and how many of them were there.
    async fn finish(self) -> (u64, u64) {
        self.follower.abort();
        // Its queue of samples goes with it.
        let _ = self.follower.await;
        self.sampler.await.expect("it selects")
    }
}

async fn follow(
    mut stream: MysqlStream,
    limit: usize,
    seen: Seen,
    sample: mpsc::UnboundedSender<(String, u64)>,
) {
    let mut batch = BatchBuilder::new(limit, Lsn::ZERO, ResumePoint::default());
    let mut count = 0;
    loop {
        stream.fill(&mut batch).await.expect("the target runs");
        let now = Instant::now();
        if batch.is_empty() {
            continue;
        }
        let batch = batch.take();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = v1::decode(&batch.payload).expect("it was made now");
        while let Some(change) = changes.next().expect("it was made now") {
            let (Action::Insert { after } | Action::Update { after, .. }) = &change.action else { continue };
            let Some(Value::UInt(user_id)) = after.first() else { continue };
            if *user_id >= LARGE_USERS || seen.insert(*user_id, now).is_some() {
                continue;
            }
            count += 1;
            if count % SAMPLE == 0 {
                let table = format!("{}.{}", change.table.database, change.table.table);
                // The sampler outlives this task.
                let _ = sample.send((table, *user_id));
            }
        }
    }
}

/// Selects each row once, as soon as it is told of it.
async fn select(
    mut connection: Connection,
    mut samples: mpsc::UnboundedReceiver<(String, u64)>,
) -> (u64, u64) {
    let (mut sampled, mut visible) = (0, 0);
    while let Some((table, user_id)) = samples.recv().await {
        let sql = format!("SELECT user_id FROM {table} WHERE user_id = {user_id}");
        let found: Option<u64> = connection.first("look for a row", sql).await.expect("it answers");
        sampled += 1;
        visible += u64::from(found.is_some());
    }
    (sampled, visible)
}

fn line(figure: &'static str, runs: &[Latencies], count: u64, is_judged: bool) -> Line {
    let of = |histogram: fn(&Latencies) -> &Histogram<u64>, quantile: f64| {
        median(runs.iter().map(|run| histogram(run).value_at_quantile(quantile) as f64 / 1e3))
    };
    let from_commit: fn(&Latencies) -> &Histogram<u64> = |run| &run.from_commit;
    let from_due: fn(&Latencies) -> &Histogram<u64> = |run| &run.from_due;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|quantile| of(from_commit, quantile));
    let [due_p50, due_p99, due_most] = [0.5, 0.99, 1.0].map(|quantile| of(from_due, quantile));
    let changes = (count + WARM_UP.as_secs() * CHANGES_A_SECOND) as f64;
    let cpu: [f64; 4] =
        std::array::from_fn(|index| median(runs.iter().map(|run| run.cpu_seconds[index])) * 1e6 / changes);
    let bar = if is_judged { format!("p50 ≤ {P50_MS} ms, p99 ≤ {P99_MS} ms") } else { "-".to_owned() };
    let one = |run: &Latencies| -> Json {
        let quantiles = |histogram: &Histogram<u64>| -> Json {
            let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) })
        };
        json!({ "from_commit_ms": quantiles(&run.from_commit), "from_due_ms": quantiles(&run.from_due) })
    };
    Line {
        figure,
        measured: format!("p50 {p50:.1} ms, p99 {p99:.1} ms, max {most:.0} ms"),
        limit: format!("from due: p50 {due_p50:.1}, p99 {due_p99:.1}, max {due_most:.0} ms"),
        ratio: "-".to_owned(),
        cpu: format!(
            "daemon {:.0}, target {:.0}, broker {:.0}, source {:.0}",
            cpu[0], cpu[1], cpu[2], cpu[3]
        ),
        bar,
        passes: is_judged.then_some(p50 <= P50_MS && p99 <= P99_MS),
        detail: json!({ "runs": runs.iter().map(one).collect::<Vec<_>>() }),
    }
}
