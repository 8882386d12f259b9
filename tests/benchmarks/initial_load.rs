//! A source full of rows that no binlog holds any more, into 366 empty birthday tables: the daemon from its start, in
//! turn with bulk loads written by hand.
//!
//! Both read all source tables over TLS, write the same rows to the same tables, and are as durable. By hand, one
//! connection reads every table whole into memory, and the rows are sorted by table and key. Then four connections
//! write a quarter of the tables each, with `INSERT` or with `LOAD DATA LOCAL INFILE`. That program checks nothing and
//! keeps no progress, and the source must not change meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_connectors::mysql::connection::{async_options, quote_table};
use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_pipeline::config::{Config, TargetConfig};
use anabranch_pipeline::ports::RowSource;
use bytes::Bytes;
use futures::StreamExt;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::contest::{Contest, Hand};
use crate::meter::{Measured, Meter, cpu_seconds};
use crate::report::Report;
use crate::site::{SOURCE, Site, TARGET};
use crate::{Scale, arrivals};

const BAR: f64 = 0.60;
const CONNECTIONS: usize = 4;
const STATEMENT_ROWS: usize = 1_000;
const FLUSH_ROWS: usize = 20_000;
/// Setting that switches the throttle off.
pub const UNTHROTTLED: &str = "refresh_rows_per_second = 0";
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(600);
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Ways of writing rows by hand.
#[derive(Debug, Clone, Copy)]
enum How {
    Insert,
    LoadData,
}

pub async fn measure(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(site, scale).await;
    forget_the_past(site).await;
    site.installation.configuration.limits.push(UNTHROTTLED.to_owned());
    let _ = site.new_log("load").await;
    let config = Arc::new(site.config());
    site.installation.command(&["setup"]).await.expect_success();
    let empty = site.keep(TARGET);
    let ways = [(How::Insert, "INSERT of 1,000 rows"), (How::LoadData, "LOAD DATA")];
    let mut hands = ways.map(|(_, what)| Hand::new(what.to_owned()));
    let mut products = Vec::new();
    for _ in 0..scale.rounds {
        for ((how, _), hand) in ways.iter().zip(&mut hands) {
            empty.restore();
            hand.runs.push(by_hand(site, &config, *how).await);
            assert_eq!(derived_rows(site, &config).await, data.rows, "{how:?}");
        }
        empty.restore();
        products.push(product(site).await);
        assert_eq!(derived_rows(site, &config).await, data.rows, "the daemon has loaded everything");
    }
    empty.restore();
    site.delete_log().await;
    let contest = Contest {
        figure: "initial load, TLS",
        unit: "rows",
        count: data.rows,
        servers: "source and target",
        bar: BAR,
        products,
        hands: hands.into(),
    };
    report.add(contest.line());
}

/// Removes the binlogs, so that none holds the rows written so far.
pub async fn forget_the_past(site: &Site<'_>) {
    let mut admin = site.installation.admin(SOURCE).await;
    admin.execute("begin a file", "FLUSH BINARY LOGS").await.expect("the server takes it");
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let files = admin.rows::<(String, u64)>("list files", "SHOW BINARY LOGS").await.expect("it answers");
        let [.., (last, _)] = files.as_slice() else { panic!("the binlog is on") };
        if files.len() == 1 {
            return;
        }
        assert!(Instant::now() < deadline, "the older files stay");
        admin.execute("purge", format!("PURGE BINARY LOGS TO '{last}'")).await.expect("the server takes it");
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Measures from the daemon's start until each lane has read all tables.
pub async fn product(site: &Site<'_>) -> Measured {
    let servers = [site.pid(SOURCE), site.pid(TARGET)];
    let meter = Meter::start(&servers);
    let mut daemon = site.installation.run();
    let deadline = Instant::now() + WAIT_MAX;
    let lanes = site.installation.configuration.lanes as usize;
    let ended = || daemon.log_of_this_run().matches("the refresh is complete").count();
    while ended() < lanes {
        assert!(Instant::now() < deadline, "the load does not end: {}", daemon.log_of_this_run());
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let measured = Measured { own_cpu_seconds: cpu_seconds(daemon.pid()), ..meter.stop() };
    daemon.terminate().expect("it ends when asked");
    measured
}

/// Rows of a derived table: shard and user.
type Rows = Vec<(u64, u64)>;

async fn by_hand(site: &Site<'_>, config: &Config, how: How) -> Measured {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let lane = target.lane(&target.lane_ids()[0]).expect("it has lanes");
    let tables: Vec<(String, &str)> = (lane.projection().tables().iter())
        .map(|table| {
            let day = table.derived.table.rsplit('_').next().expect("its name ends with the day");
            (quote_table(&table.derived.database, &table.derived.table), day)
        })
        .collect();
    let places: HashMap<&str, usize> =
        tables.iter().enumerate().map(|(place, table)| (table.1, place)).collect();
    let meter = Meter::start(&[site.pid(SOURCE), site.pid(TARGET)]);
    let rows = read(config, &places).await;
    let mut work: [Vec<(String, String, Rows)>; CONNECTIONS] = Default::default();
    for (place, ((name, day), rows)) in tables.iter().zip(rows).enumerate() {
        work[place % CONNECTIONS].push((name.clone(), format!("{}-{}", &day[..2], &day[2..]), rows));
    }
    let mut writers = Vec::new();
    for work in work {
        let connection = connect(&config.targets[0]).await;
        writers.push(tokio::spawn(async move {
            match how {
                How::Insert => insert(connection, work).await,
                How::LoadData => load_data(connection, work).await,
            }
        }));
    }
    for writer in writers {
        writer.await.expect("the statements are right");
    }
    meter.stop()
}

/// Reads all rows of the source, by derived table and in the order of its key.
async fn read(config: &Config, places: &HashMap<&str, usize>) -> Vec<Rows> {
    let source = &config.sources[0];
    let reader = MysqlSource::new(source, &config.entities, config.limits.heartbeat);
    let tables = RowSource::tables(&reader).await.expect("the source answers");
    let tables: BTreeMap<u64, String> = (tables.iter())
        .map(|table| (table.shard.as_u64(), quote_table(&table.database, &table.table)))
        .collect();
    let options = async_options(&source.url, source.ca_file.as_deref());
    let mut connection = Conn::new(options).await.expect("it answers");
    let mut rows = vec![Rows::new(); places.len()];
    for (shard, table) in tables {
        let select = format!("SELECT user_id, DATE_FORMAT(birthday, '%m%d') FROM {table} ORDER BY user_id");
        let mut result = connection.query_iter(select).await.expect("the account may read");
        while let Some(row) = result.next().await.expect("the rows come") {
            let (user_id, day): (u64, String) = mysql_async::from_row(row);
            rows[places[day.as_str()]].push((shard, user_id));
        }
    }
    rows
}

async fn connect(target: &TargetConfig) -> Conn {
    let mut connection =
        Conn::new(async_options(&target.url, target.ca_file.as_deref())).await.expect("it answers");
    connection.query_drop(SESSION).await.expect("the server takes it");
    connection
}

async fn insert(mut connection: Conn, work: Vec<(String, String, Rows)>) {
    let (mut sql, mut rows_in_flush) = (String::from("BEGIN;"), 0);
    for (table, day, rows) in work {
        for rows in rows.chunks(STATEMENT_ROWS) {
            write!(sql, "INSERT INTO {table} (shard_id, user_id, birthday, lsn) VALUES ").expect(STRING);
            for (shard, user_id) in rows {
                write!(sql, "({shard},{user_id},'{day}',1),").expect(STRING);
            }
            sql.pop();
            sql.push(';');
            rows_in_flush += rows.len();
            if rows_in_flush >= FLUSH_ROWS {
                sql.push_str("COMMIT");
                let packet = std::mem::replace(&mut sql, "BEGIN;".to_owned());
                connection.query_drop(packet).await.expect("it takes them");
                rows_in_flush = 0;
            }
        }
    }
    sql.push_str("COMMIT");
    connection.query_drop(sql).await.expect("it takes them");
}

/// Loads each table with one statement in one transaction.
async fn load_data(mut connection: Conn, work: Vec<(String, String, Rows)>) {
    for (table, day, rows) in work {
        let mut text = String::with_capacity(rows.len() * 48);
        for (shard, user_id) in rows {
            writeln!(text, "{shard}\t{user_id}\t{day}\t1").expect(STRING);
        }
        connection
            .set_infile_handler(async move { Ok(futures::stream::iter([Ok(Bytes::from(text))]).boxed()) });
        let load =
            format!("LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} (shard_id, user_id, birthday, lsn)");
        connection.query_drop(load).await.expect("it takes them");
    }
}

pub async fn derived_rows(site: &Site<'_>, config: &Config) -> u64 {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let lane = target.lane(&target.lane_ids()[0]).expect("it has lanes");
    let counts: Vec<String> = (lane.projection().tables().iter())
        .map(|table| {
            format!(
                "SELECT COUNT(*) AS n FROM {}",
                quote_table(&table.derived.database, &table.derived.table)
            )
        })
        .collect();
    let sql = format!("SELECT CAST(SUM(n) AS UNSIGNED) FROM ({}) counts", counts.join(" UNION ALL "));
    let mut admin = site.installation.admin(TARGET).await;
    admin.first("count", sql).await.expect("it answers").expect("a sum")
}

const STRING: &str = "writing to a String cannot fail";
