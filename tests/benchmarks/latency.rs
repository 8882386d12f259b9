//! Commit to visible: the real daemon, 1,000 changes a second, open loop.
//!
//! A change is visible when the target's commit of its derived row reaches the target's own binlog, which a second
//! reader follows. A sample of the rows is selected at that moment, to show that they are there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_connectors::mysql::source::{MysqlSource, MysqlStream};
use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::config::Config;
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::{Action, Value};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::TablePattern;
use anabranch_schemas::timeline::Timeline;
use anabranch_tests::Daemon;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Scale;
use crate::load::{self, CHANGES_A_SECOND, Latencies, Statement, Threshold, WARM_UP, line};
use crate::report::Report;
use crate::site::{DATABASES, SOURCE, Site, TABLES, TARGET};

const BAR: Threshold = Threshold { p50_ms: Some(5.0), p99_ms: 20.0 };
const LARGE_ROWS: u64 = 10_000;
const LARGE_EVERY: Duration = Duration::from_secs(2);
/// One in this number of derived rows is selected when it is seen.
const SAMPLE: u64 = 64;
/// Longest wait for the last change to be visible.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Upper bound of the numbers of existing users.
const OTHER_USERS: u64 = 1_000_000_000;
/// First number of users that are made while measuring.
const NEW_USERS: u64 = 1_000_000_000_000;
const LARGE_USERS: u64 = 2_000_000_000_000;
pub const PROCESSES: [&str; 4] = ["daemon", "target", "broker", "source"];

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let runs = u64::from(scale.rounds) + 1;
    let (daemon, users_a_table) = started(&mut site, "latency", runs, scale).await;
    let mut load = Load::begin(&site, &daemon, users_a_table, scale).await;
    let mut uniform = Vec::new();
    for _ in 0..scale.rounds {
        uniform.push(load.run(false).await);
    }
    let mixed = load.run(true).await;
    let (sampled, visible) = load.finish().await;
    report.note(&format!("latency: {visible} of {sampled} sampled rows were there when first selected"));
    report.add(line("latency", &uniform, &PROCESSES, Some(BAR)));
    report.add(line("latency, 10,000-row transactions too", &[mixed], &PROCESSES, None));
}

/// Starts a daemon with an empty log of this name and makes the users that so many runs change, each once. Returns the
/// daemon, and the number of these users in each table.
pub async fn started(site: &mut Site<'_>, name: &str, runs: u64, scale: &Scale) -> (Daemon, u64) {
    let _ = site.new_log(name).await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let users_a_table = (scale.latency_seconds + WARM_UP.as_secs()) * CHANGES_A_SECOND * runs
        / u64::from(DATABASES * TABLES)
        + 1;
    make_users(site, users_a_table).await;
    (daemon, users_a_table)
}

/// State that the runs share.
pub struct Load<'s, 'g> {
    site: &'s Site<'g>,
    daemon: &'s Daemon,
    watch: Watch,
    /// Changed users in each table; 0 = all changes make new users.
    users_a_table: u64,
    /// Changes of a run, without those of its warm-up.
    count: u64,
    changes_a_second: u64,
    /// Number of changes of earlier runs.
    numbers: u64,
}

/// Makes users whose birthday is changed, each once.
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

impl<'s, 'g> Load<'s, 'g> {
    pub async fn begin(site: &'s Site<'g>, daemon: &'s Daemon, users_a_table: u64, scale: &Scale) -> Self {
        let watch = Watch::start(site, users_a_table > 0).await;
        let count = scale.latency_seconds * CHANGES_A_SECOND;
        let changes_a_second = CHANGES_A_SECOND;
        Self { site, daemon, watch, users_a_table, count, changes_a_second, numbers: 0 }
    }

    /// Has each run make this number of changes a second, in the same time.
    pub fn at(self, changes_a_second: u64) -> Self {
        let count = self.count * changes_a_second / self.changes_a_second;
        Self { count, changes_a_second, ..self }
    }

    pub async fn run(&mut self, is_mixed: bool) -> Latencies {
        let endpoint =
            Endpoint::admin(self.site.installation.stack(), SOURCE).expect("a server of the stack");
        let warm_up = WARM_UP.as_secs() * self.changes_a_second;
        let numbers = self.numbers..self.numbers + warm_up + self.count;
        self.numbers = numbers.end;
        let users_a_table = self.users_a_table;
        let statement: Statement = Arc::new(move |number| change(number, users_a_table).1);
        let large = is_mixed.then(|| tokio::spawn(write_large(endpoint.clone())));
        let pids = [self.daemon.pid(), self.site.pid(TARGET), self.site.pid("nats"), self.site.pid(SOURCE)];
        let (committed, _) = mpsc::unbounded_channel();
        let written =
            load::write(&endpoint, (numbers, self.changes_a_second), &statement, &pids, &committed).await;
        if let Some(large) = large {
            large.abort();
        }
        let users: HashMap<u64, u64> = (written.changes.iter())
            .map(|written| (written.number, change(written.number, users_a_table).0))
            .collect();
        let visible = self.watch.until(users.values().copied()).await;
        let seen = users.iter().map(|(number, user)| (*number, visible[user])).collect();
        Latencies::of(&written, &seen)
    }

    /// Begins after the changes of another [`Load`] on the same site.
    pub fn skip(&mut self, numbers: u64) {
        self.numbers = numbers;
    }

    /// The first number for another [`Load`].
    pub fn written(&self) -> u64 {
        self.numbers
    }

    /// Returns the number of selected rows, and the number of them that were there.
    pub async fn finish(self) -> (u64, u64) {
        self.watch.finish().await
    }
}

/// User and statement of the change with this number; each number changes a user of its own.
fn change(number: u64, users_a_table: u64) -> (u64, String) {
    let places = u64::from(DATABASES * TABLES);
    let (place, turn) = (number % places, number / places);
    let table = format!("user_{:02}.user_{:03}", place / u64::from(TABLES), place % u64::from(TABLES));
    let day = format!("DATE '1950-01-01' + INTERVAL {} DAY", number * 104_729 % 20_000);
    if turn % 2 == 0 || users_a_table == 0 {
        let user_id = NEW_USERS + number;
        let sql = format!(
            "INSERT INTO {table} (user_id, user_name, birthday) VALUES ({user_id}, 'new-{number}', {day})"
        );
        return (user_id, sql);
    }
    let user_id = 1 + place * users_a_table + turn;
    // The month or the day always changes: another year alone leaves the derived row as it is, and is never visible.
    let sql = format!(
        "UPDATE {table} SET birthday = {day} + INTERVAL (MONTH(birthday) = MONTH({day}) AND DAY(birthday) = DAY({day})) DAY
         WHERE user_id = {user_id}"
    );
    (user_id, sql)
}

/// Writes a large transaction every now and then, until the task is aborted.
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

/// Follows the target's binlog and records when each user's derived row was committed.
struct Watch {
    seen: Seen,
    follower: JoinHandle<()>,
    sampler: JoinHandle<(u64, u64)>,
}

impl Watch {
    /// Starts to follow; with `changes_users`, it records existing users too and not only new ones.
    async fn start(site: &Site<'_>, changes_users: bool) -> Self {
        let server = site.installation.server(TARGET);
        let text = site.installation.configuration_text();
        let text = text.replace(&site.installation.server(SOURCE).url(), &server.admin_url());
        let mut config = Config::parse(&text).expect("only the address differs");
        let pattern = TablePattern::parse("birthday_{db:02}.birthday_{table:04}");
        config.entities[0].tables = pattern.expect("it is a pattern");
        let connector = MysqlSource::new(&config.sources[0], &config.entities, Duration::from_secs(5));
        let stream = connector
            .open(BinlogStart::Latest, &Timeline::default(), 0)
            .await
            .expect("the target has a binlog");
        let seen = Seen::default();
        let (sample, samples) = mpsc::unbounded_channel();
        let limit = config.limits.batch_bytes.get();
        Self {
            follower: tokio::spawn(follow(stream, (limit, changes_users), Arc::clone(&seen), sample)),
            sampler: tokio::spawn(select(site.installation.admin(TARGET).await, samples)),
            seen,
        }
    }

    /// Waits until every change is visible; returns when each of them was.
    async fn until(&mut self, users: impl Iterator<Item = u64> + Clone) -> HashMap<u64, Instant> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if users.clone().all(|user| seen.contains_key(&user)) {
                return seen;
            }
            assert!(Instant::now() < deadline, "changes are not visible after {} s", WAIT_MAX.as_secs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the number of selected rows, and the number of them that were there.
    async fn finish(self) -> (u64, u64) {
        self.follower.abort();
        // The follower's end closes its queue of samples.
        let _ = self.follower.await;
        self.sampler.await.expect("it selects")
    }
}

async fn follow(
    mut stream: MysqlStream,
    (limit, changes_users): (usize, bool),
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
        let mut changes = codec::decode(&batch.payload).expect("it was made now");
        while let Some(change) = changes.next().expect("it was made now") {
            let (Action::Insert { after } | Action::Update { after, .. }) = &change.action else { continue };
            let Some(Value::UInt(user_id)) = after.first() else { continue };
            let is_measured =
                (NEW_USERS..LARGE_USERS).contains(user_id) || changes_users && *user_id < OTHER_USERS;
            // A user whose row is written again, as by a load, was visible before.
            if !is_measured || seen.contains_key(user_id) {
                continue;
            }
            seen.insert(*user_id, now);
            count += 1;
            if count % SAMPLE == 0 {
                let table = format!("{}.{}", change.table.database, change.table.table);
                // The sampler outlives this task.
                let _ = sample.send((table, *user_id));
            }
        }
    }
}

/// Selects each row once, as soon as its number arrives.
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
