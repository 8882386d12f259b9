//! Updates that change no captured column, beside updates of a table that is not captured: the reader's cost of finding
//! that it has nothing to do.
//!
//! Both follow one another in one binlog, the same statements on equal tables, and one stream times both.

use std::fmt::Write as _;

use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, READER_REPLICA_SLOT, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;

use crate::Scale;
use crate::data::{self, Changes, LARGE};
use crate::meter::{Measured, Meter, median};
use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES};

/// Largest multiple of the time of an update of a table that is not captured.
const RATIO_MAX: f64 = 1.5;
/// Divisor of the rows that come before the measurement: enough transactions to meet each table.
const FIRST_PART: u64 = 20;
/// Rows of each table.
const USERS: u64 = 5_000;
const CAPTURED: &str = "user";
const OTHER: &str = "elsewhere";

/// Updates of columns that are not captured.
struct Touches {
    /// The prefix of the databases' names.
    prefix: &'static str,
    database: u32,
}

impl Touches {
    fn writers(prefix: &'static str) -> Vec<Self> {
        (0..DATABASES).map(|database| Self { prefix, database }).collect()
    }
}

impl Changes for Touches {
    fn transaction(&mut self, random: &mut StdRng, rows: u64, sql: &mut String) -> u64 {
        let table = random.random_range(0..TABLES);
        let first = random.random_range(1..=USERS - LARGE);
        let last = first + rows - 1;
        // A random number changes each row, whatever was written before.
        let number = random.random::<u32>();
        let Self { prefix, database } = self;
        write!(
            sql,
            "UPDATE {prefix}_{database:02}.user_{table:03} SET phone = '{number}', \
             address = CONCAT('No. {number}, ', user_id, ' Zhongshan Road, Nanjing') \
             WHERE user_id BETWEEN {first} AND {last};"
        )
        .expect("writing to a String cannot fail");
        rows
    }
}

/// Writes both parts and reads them, round by round.
pub async fn measure(site: &Site<'_>, scale: &Scale, report: &mut Report) {
    for database in 0..DATABASES {
        let mut sql = format!("CREATE OR REPLACE DATABASE {OTHER}_{database:02};");
        for table in 0..TABLES {
            let (captured, other) = (
                format!("{CAPTURED}_{database:02}.user_{table:03}"),
                format!("{OTHER}_{database:02}.user_{table:03}"),
            );
            write!(
                sql,
                "INSERT INTO {captured} (user_id, user_name, birthday, phone, address, lunar_birthday, birthday_type) \
                 SELECT seq, CONCAT('user-', seq), DATE '1950-01-01' + INTERVAL (seq * 7919 % 20000) DAY, '', '', \
                 '08-15', 'solar' FROM {CAPTURED}_{database:02}.seq_1_to_{USERS};\
                 CREATE TABLE {other} LIKE {captured};\
                 INSERT INTO {other} SELECT * FROM {captured};"
            )
            .expect("writing to a String cannot fail");
        }
        site.source(sql).await;
    }
    let amount = (scale.rows / 2, scale.seed);
    // A stream examines each table once, at its first rows; that is no cost of a row.
    let first = (scale.rows / FIRST_PART, scale.seed + 1);
    let first = data::write(site, "first updates of each table", first, Touches::writers(CAPTURED)).await;
    let captured =
        data::append(site, "updates of columns that are not captured", amount, Touches::writers(CAPTURED))
            .await;
    let other = data::append(site, "the same updates of other tables", amount, Touches::writers(OTHER)).await;
    report.note(&captured.to_string());
    let source = site.plain_source_config();
    let mut runs = Vec::new();
    // The first stream after a pause is several times slower.
    let ends = [first.end_lsn, captured.end_lsn, other.end_lsn];
    read(site, &source, ends).await;
    for _ in 0..scale.rounds {
        runs.push(read(site, &source, ends).await);
    }
    report.add(line(&runs, captured.rows, other.rows));
}

/// Reads the first part, and then measures both parts.
async fn read(site: &Site<'_>, source: &SourceConfig, ends: [Lsn; 3]) -> [Measured; 2] {
    let connector = site.connector(source);
    let limit = site.config().limits.batch_bytes.get();
    let server = site.pid(SOURCE);
    let work = async move {
        let mut batch = BatchBuilder::new(limit, Lsn::ZERO, ResumePoint::default());
        let mut stream = connector
            .open(BinlogStart::Earliest, &Timeline::default(), READER_REPLICA_SLOT)
            .await
            .expect("the source answers");
        let mut parts = Vec::new();
        for end in ends {
            let meter = Meter::start(&[server]);
            while batch.position() < end {
                stream.fill(&mut batch).await.expect("the binlog is whole");
            }
            parts.push(meter.stop());
        }
        assert_eq!(batch.take().changes, 0, "nothing that is captured changes");
        parts.split_off(1)
    };
    // A task on a thread that itself waits for sockets, as in the daemon.
    tokio::spawn(work).await.expect("no panic").try_into().expect("two parts")
}

fn line(runs: &[[Measured; 2]], captured_rows: u64, other_rows: u64) -> Line {
    let rows = [captured_rows as f64, other_rows as f64];
    let a_row = |part: usize, value: fn(&Measured) -> f64| {
        median(runs.iter().map(|run| value(&run[part]) * 1e6 / rows[part]))
    };
    let seconds: fn(&Measured) -> f64 = |run| run.seconds;
    let cpu: fn(&Measured) -> f64 = |run| run.own_cpu_seconds;
    let ratio =
        median(runs.iter().map(|[captured, other]| (captured.seconds / rows[0]) / (other.seconds / rows[1])));
    let cpu_ratio =
        median(runs.iter().map(|[captured, other]| {
            (captured.own_cpu_seconds / rows[0]) / (other.own_cpu_seconds / rows[1])
        }));
    Line {
        figure: "unchanged",
        measured: format!("{:.2} µs a row", a_row(0, seconds)),
        limit: format!("row of another table {:.2} µs", a_row(1, seconds)),
        ratio: format!("{ratio:.2} ×"),
        cpu: format!("client {:.2}, of another table {:.2} ({cpu_ratio:.2} ×)", a_row(0, cpu), a_row(1, cpu)),
        bar: format!("≤ {RATIO_MAX} ×"),
        passes: Some(ratio <= RATIO_MAX),
        detail: json!({
            "ratio": ratio, "client_cpu_ratio": cpu_ratio,
            "us_per_row": a_row(0, seconds), "other_us_per_row": a_row(1, seconds),
            "client_cpu_us_per_row": a_row(0, cpu), "other_client_cpu_us_per_row": a_row(1, cpu),
        }),
    }
}
