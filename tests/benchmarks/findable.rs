//! Commit to findable: the real daemon, 1,000 changes of devices a second, open loop; and before that a quarter of it.
//!
//! Half of the changes insert a device, half give a code to an existing one. One change in 32 is looked up over HTTP
//! from its commit on, again a millisecond after each answer without it; it is findable when an answer has it. A code
//! that was asked for too early is in the cache as unknown, so the way through the cache is measured too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_demo::{Endpoint, INVENTORY_DATABASES};
use anabranch_tests::Daemon;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Scale;
use crate::devices::{Device, TABLES};
use crate::http::Client;
use crate::load::{self, CHANGES_A_SECOND, Committed, Latencies, Statement, Threshold, WARM_UP, line};
use crate::meter::until_idle;
use crate::report::Report;
use crate::site::{REDIS, SOURCE, Site, TARGET};

const BAR: Threshold = Threshold { p50_ms: None, p99_ms: 30.0 };
/// Divisor of the rate in the slower run.
const SLOWER: u64 = 4;
/// Two in this number of changes are looked up: an insert and an update.
const SAMPLE: u64 = 64;
/// Clients that look codes up, one code at a time; a tenth of them would do.
const LOOKERS: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);
/// Time after which a change is given up.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// An update changes the device that was inserted this number of changes before, two seconds earlier.
const BEFORE: u64 = 2 * CHANGES_A_SECOND + 1;
/// First device of this figure; those of other figures are below.
const FIRST_DEVICE: u64 = 10_000_000;
const PROCESSES: [&str; 5] = ["daemon", "target", "Redis", "broker", "source"];

pub async fn measure(site: &Site<'_>, daemon: &Daemon, scale: &Scale, report: &mut Report) {
    let seconds = scale.latency_seconds + WARM_UP.as_secs();
    let mut next = 0;
    for (figure, rate, bar) in [
        ("findable, 250 changes a second", CHANGES_A_SECOND / SLOWER, None),
        ("findable", CHANGES_A_SECOND, Some(BAR)),
    ] {
        let mut runs = Vec::new();
        for _ in 0..scale.rounds {
            let numbers = next..next + seconds * rate;
            next = numbers.end;
            runs.push(run(site, daemon, numbers, rate).await);
        }
        report.add(line(figure, &runs, &PROCESSES, bar));
    }
}

async fn run(
    site: &Site<'_>,
    daemon: &Daemon,
    numbers: std::ops::Range<u64>,
    changes_a_second: u64,
) -> Latencies {
    let (committed, looked_for) = mpsc::unbounded_channel();
    let lookers = tokio::spawn(find_each(site.installation.configuration.http_port, looked_for));
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let statement: Statement = Arc::new(|number| change(number).1);
    let servers = [TARGET, REDIS, "nats", SOURCE].map(|server| site.pid(server));
    let processes: Vec<u32> = [daemon.pid()].into_iter().chain(servers).collect();
    // Waits until daemon, target and Redis have finished the work of earlier runs.
    until_idle(&processes[..3]).await;
    let written =
        load::write(&endpoint, (numbers, changes_a_second), &statement, &processes, &committed).await;
    drop(committed);
    let seen = lookers.await.expect("every change is findable");
    Latencies::of(&written, &seen)
}

/// The code by which the change of a number is found, and its statement.
fn change(number: u64) -> (String, String) {
    if number % 2 == 1 && number >= BEFORE {
        // A device of the sample keeps its code, however late it is found: another device is updated twice.
        let before = number - BEFORE;
        let device = device(if before.is_multiple_of(SAMPLE) { before + 2 } else { before });
        let code = format!("found-{number}");
        let sql = format!("UPDATE {} SET item_code = '{code}' WHERE uuid = {}", device.table(), device.key());
        return (code, sql);
    }
    let device = device(number);
    (device.own_code(), device.insert())
}

/// The device of a number, which no other number has.
fn device(number: u64) -> Device {
    let places = u64::from(INVENTORY_DATABASES * TABLES);
    let place = (number % places) as u32;
    Device { database: place / TABLES, table: place % TABLES, index: FIRST_DEVICE + number / places }
}

/// Looks the sample up; returns the time at which each change was first found.
async fn find_each(port: u16, mut committed: mpsc::UnboundedReceiver<Committed>) -> HashMap<u64, Instant> {
    let mut lookers = JoinSet::new();
    let mut queues = Vec::new();
    for _ in 0..LOOKERS {
        let (queue, mut numbers) = mpsc::unbounded_channel();
        queues.push(queue);
        let mut client = Client::connect(port).await;
        lookers.spawn(async move {
            let mut seen = Vec::new();
            while let Some(number) = numbers.recv().await {
                seen.push((number, until_found(&mut client, &change(number).0).await));
            }
            seen
        });
    }
    let mut turn = 0;
    while let Some(Committed { number, .. }) = committed.recv().await {
        if number % SAMPLE < 2 {
            queues[turn % LOOKERS].send(number).expect("every change is findable");
            turn += 1;
        }
    }
    drop(queues);
    lookers.join_all().await.into_iter().flatten().collect()
}

async fn until_found(client: &mut Client, code: &str) -> Instant {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let answer = client.lookup(code).await;
        let now = Instant::now();
        let text = String::from_utf8_lossy(answer.body);
        if answer.status == 200 && !text.contains("\"devices\":[]") {
            return now;
        }
        assert!(now < deadline, "{code} is not findable after {} s: {text}", WAIT_MAX.as_secs());
        tokio::time::sleep(PAUSE).await;
    }
}
