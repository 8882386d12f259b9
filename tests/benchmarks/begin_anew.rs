//! `begin-anew` of a source whose server forgot its binlog, in turn with a load of the same rows into empty tables.
//!
//! Both are the daemon's own reading of all tables, without a throttle. The load begins with the daemon, and the
//! beginning with the first lane that sets itself to the new one. No row differs, so a beginning compares each table
//! and writes nothing.

use std::time::{Duration, Instant};

use anabranch_demo::FORGET_BINLOG;

use crate::contest::{Contest, Hand};
use crate::initial_load::{UNTHROTTLED, derived_rows, forget_the_past, product};
use crate::meter::{Measured, Meter, cpu_seconds};
use crate::report::Report;
use crate::site::{SOURCE, Site, TARGET};
use crate::{Scale, arrivals};

const BAR: f64 = 0.90;
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Changes that the load's reader passes and that the server forgets afterwards. Without them a server that forgot its
/// binlog stands where the reader does, and nothing is lost.
const PAST: &str = "CREATE DATABASE IF NOT EXISTS past; DROP DATABASE past; FLUSH BINARY LOGS";
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub async fn measure(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(site, scale).await;
    forget_the_past(site).await;
    site.installation.configuration.limits.push(UNTHROTTLED.to_owned());
    let (mut load, mut products) = (Hand::new("a load into empty tables".to_owned()), Vec::new());
    for round in 0..scale.rounds {
        // Each round has a log of its own, whose source has not begun anew.
        let _ = site.new_log(&format!("anew{round}")).await;
        site.target("DROP DATABASE IF EXISTS birthday_00; DROP DATABASE IF EXISTS anabranch").await;
        site.installation.command(&["setup"]).await.expect_success();
        site.source(PAST).await;
        load.runs.push(product(site).await);
        products.push(begun_anew(site).await);
        assert_eq!(derived_rows(site, &site.config()).await, data.rows, "round {round}");
    }
    site.delete_log().await;
    let contest = Contest {
        figure: "begin anew, TLS",
        unit: "rows",
        count: data.rows,
        servers: "source and target",
        bar: BAR,
        products,
        hands: vec![load],
    };
    report.add(contest.line());
}

/// Measures from the first lane that begins anew until each lane has read all tables.
async fn begun_anew(site: &Site<'_>) -> Measured {
    site.source(FORGET_BINLOG).await;
    let mut daemon = site.installation.run();
    let lanes = site.installation.configuration.lanes as usize;
    let lines = |text: &str| daemon.log_of_this_run().matches(text).count();
    let until = async |text: &str, count: usize| {
        let deadline = Instant::now() + WAIT_MAX;
        while lines(text) < count {
            assert!(Instant::now() < deadline, "no {text}: {}", daemon.log_of_this_run());
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    until("source-server-changed", 1).await;
    let command = ["begin-anew", "--source", SOURCE, "--confirm", SOURCE];
    // A refusal ends the benchmark at once.
    let begun = async { site.installation.command(&command).await.expect_success() };
    let (_, measured) = tokio::join!(begun, async {
        until("the lane begins at the stream's end and reads all tables", 1).await;
        let meter = Meter::start(&[site.pid(SOURCE), site.pid(TARGET)]);
        let own_cpu_seconds = cpu_seconds(daemon.pid());
        until("the refresh is complete", lanes).await;
        Measured { own_cpu_seconds: cpu_seconds(daemon.pid()) - own_cpu_seconds, ..meter.stop() }
    });
    daemon.terminate().expect("it ends when asked");
    measured
}
