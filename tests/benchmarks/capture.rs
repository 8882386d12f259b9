//! Binlog to decoded changes, and binlog to acknowledged messages, in turn with header-only scans of the same binlog.

use std::future::ready;

use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::capture::{self, BusiestTables, Capture};
use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, Filled, READER_REPLICA_SLOT, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::data::Data;
use crate::meter::{Measured, Meter, median};
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site};
use crate::{Figure, Scale, Selection, scan};

/// Limits of a figure: time as a multiple of the scan's, and CPU of client (and broker) a row.
struct Threshold {
    ratio: f64,
    aim: f64,
    cpu_us: f64,
}

const DECODE: Threshold = Threshold { ratio: 1.5, aim: 1.3, cpu_us: 0.4 };
const DECODE_OF_MANY: Threshold = Threshold { ratio: 1.7, aim: 1.3, cpu_us: 0.4 };
const DECODE_TLS: Threshold = Threshold { ratio: 3.2, aim: 1.3, cpu_us: f64::INFINITY };
const APPEND: Threshold = Threshold { ratio: 8.0, aim: 4.0, cpu_us: 2.0 };

#[derive(Debug, Default)]
struct Runs(Vec<Measured>);

/// Measures both figures, or only the wanted one.
pub async fn measure(
    site: &mut Site<'_>,
    data: &Data,
    scale: &Scale,
    wanted: &Selection,
    report: &mut Report,
) {
    let (plain, tls) = (site.plain_source_config(), site.source_config());
    let (mut scans, mut decodes, mut decodes_tls, mut appends) =
        (Runs::default(), Runs::default(), Runs::default(), Runs::default());
    // The first scan after a pause is several times slower.
    let (_, events) = scan_once(site, data);
    report.note(&format!("scan: {events} events"));
    for round in 0..scale.rounds {
        scans.0.push(scan_once(site, data).0);
        if wanted.has(Figure::Decode) {
            decodes.0.push(decode(site, &plain, data).await);
            decodes_tls.0.push(decode(site, &tls, data).await);
        }
        if wanted.has(Figure::Append) {
            let log = site.new_log(&format!("append-{round}")).await;
            appends.0.push(append(site, &log, data).await);
        }
    }
    if wanted.has(Figure::Decode) {
        report.add(line("decode", &scans, &decodes, data, &DECODE));
        report.add(line("decode, TLS", &scans, &decodes_tls, data, &DECODE_TLS));
    }
    if wanted.has(Figure::Append) {
        report.add(line("append, TLS", &scans, &appends, data, &APPEND));
        site.delete_log().await;
    }
}

/// Measures decoding alone, of as many rows in many tables.
pub async fn measure_many_tables(site: &Site<'_>, data: &Data, scale: &Scale, report: &mut Report) {
    let plain = site.plain_source_config();
    let (mut scans, mut decodes) = (Runs::default(), Runs::default());
    let (_, events) = scan_once(site, data);
    report.note(&format!("scan of many tables: {events} events"));
    for _ in 0..scale.rounds {
        scans.0.push(scan_once(site, data).0);
        decodes.0.push(decode(site, &plain, data).await);
    }
    report.add(line("decode, 1,000 tables", &scans, &decodes, data, &DECODE_OF_MANY));
}

fn scan_once(site: &Site<'_>, data: &Data) -> (Measured, u64) {
    let port = site.installation.server(SOURCE).port();
    anabranch_tests::blocking(|| scan::run(port, site.pid(SOURCE), data))
}

/// Measures from the request for the binlog to the last change in a batch; batches are finished and dropped.
async fn decode(site: &Site<'_>, source: &SourceConfig, data: &Data) -> Measured {
    let connector = site.connector(source);
    let limit = site.config().limits.batch_bytes.get();
    let (end, server) = (data.end_lsn, site.pid(SOURCE));
    let work = async move {
        let mut batch = BatchBuilder::new(limit, Lsn::ZERO, ResumePoint::default());
        let mut stream = connector
            .open(BinlogStart::Earliest, &Timeline::default(), READER_REPLICA_SLOT)
            .await
            .expect("the source answers");
        let meter = Meter::start(&[server]);
        let mut changes = 0;
        while batch.position() < end {
            if stream.fill(&mut batch).await.expect("the binlog is whole") == Filled::Full {
                changes += u64::from(batch.take().changes);
            }
        }
        changes += u64::from(batch.take().changes);
        (meter.stop(), changes)
    };
    // A task on a thread that itself waits for sockets, as in the daemon.
    let (measured, changes) = tokio::spawn(work).await.expect("no panic");
    assert_eq!(changes, data.rows, "every change is decoded");
    measured
}

/// Measures from the start of a reader on an empty stream to the acknowledgement of the last message.
pub async fn append(site: &Site<'_>, log: &NatsLog, data: &Data) -> Measured {
    let source = site.source_config();
    let connector = site.connector(&source);
    let limits = site.config().limits;
    let (sender, mut acknowledged) = watch::channel(Lsn::ZERO);
    let cancel = CancellationToken::new();
    let meter = Meter::start(&[site.pid("nats")]);
    let (log, stop) = (log.clone(), cancel.clone());
    let reader = tokio::spawn(async move {
        let capture = Capture {
            source: SOURCE,
            connector: &connector,
            log: &log,
            registers: &log,
            start: &BinlogStart::Earliest,
            busiest: BusiestTables::default(),
            numbers: None,
            limits: &limits,
        };
        capture::run(capture, || ready(Ok(Vec::new())), &sender, &stop).await
    });
    let end = data.end_lsn;
    acknowledged.wait_for(|position| *position >= end).await.expect("the reader runs");
    let measured = meter.stop();
    cancel.cancel();
    reader.await.expect("no panic").expect("nothing fails");
    measured
}

fn line(figure: &'static str, scans: &Runs, runs: &Runs, data: &Data, bar: &Threshold) -> Line {
    let rows = data.rows as f64;
    let ratio = median(runs.0.iter().zip(&scans.0).map(|(run, scan)| run.seconds / scan.seconds));
    let seconds = runs.median(|run| run.seconds);
    let scan_seconds = scans.median(|run| run.seconds);
    let own = runs.median(|run| run.own_cpu_seconds) * 1e6 / rows;
    let server = runs.median(|run| run.server_cpu_seconds) * 1e6 / rows;
    let is_append = figure.starts_with("append");
    let judged = if is_append { own + server } else { own };
    let other = if is_append { "broker" } else { "server" };
    let cpu_bar = if bar.cpu_us.is_finite() { format!(", {} µs", bar.cpu_us) } else { String::new() };
    Line {
        figure,
        measured: format!("{seconds:.2} s, {:.2} M rows/s", rows / seconds / 1e6),
        limit: format!("scan {scan_seconds:.2} s, {:.2} M rows/s", rows / scan_seconds / 1e6),
        ratio: format!("{ratio:.2} ×"),
        cpu: format!("client {own:.2}, {other} {server:.2}"),
        bar: format!("≤ {} × (aim {} ×){cpu_bar}", bar.ratio, bar.aim),
        passes: Some(ratio <= bar.ratio && judged <= bar.cpu_us),
        detail: json!({
            "ratio": ratio, "seconds": runs.seconds(), "scan_seconds": scans.seconds(),
            "client_cpu_us_per_row": own, "server_cpu_us_per_row": server,
            "scan_client_cpu_us_per_row": scans.median(|run| run.own_cpu_seconds) * 1e6 / rows,
            "scan_server_cpu_us_per_row": scans.median(|run| run.server_cpu_seconds) * 1e6 / rows,
        }),
    }
}

impl Runs {
    fn median(&self, value: impl Fn(&Measured) -> f64) -> f64 {
        median(self.0.iter().map(value))
    }

    fn seconds(&self) -> Vec<f64> {
        self.0.iter().map(|run| run.seconds).collect()
    }
}
