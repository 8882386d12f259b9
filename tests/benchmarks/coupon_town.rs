//! Users whose coupon days are measured, a daemon with lanes, and a coupon system. The users are written into source
//! and derived tables without binlog, so the lanes have nothing to read of them.
//!
//! A user of the day is in one of all source tables, spread by number, and has the derived row that a lane would have
//! written. The users of all other days only enlarge the tables.

use std::time::{Duration, Instant};

use anabranch_connectors::mysql::connection::quote_table;
use anabranch_demo::verify::DerivedLayout;
use anabranch_demo::{Witness, WitnessOptions};
use anabranch_pipeline::config::{BirthdayTables, ProjectionKind};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar};
use anabranch_schemas::shard::ShardId;
use anabranch_tests::{Daemon, Turn};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::meter::{Measured, Meter, cpu_seconds, resident_bytes_max};
use crate::site::{DATABASES, SOURCE, Site, TABLES, TARGET};

/// The hour of the programmes' zone in which a run begins, after midnight and long before noon.
const HOUR: i64 = 1;
/// Coupons a second of each programme, at most: no machine gives as many, so the rate limits neither side.
const RATE: u32 = 1_000_000;
/// The lowest number of users of other days.
const OTHERS: u64 = 100_000_000;
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(900);
/// Buffer pool that holds the tables of all users; the stack's default is smaller.
const BUFFER_POOL_BYTES: u64 = 1 << 30;
/// Session settings by which a statement reaches no binlog.
const BENEATH: &str = "SET SESSION sql_log_bin = 0, unique_checks = 0; ";
const DURABLE: [&str; 2] =
    ["SET GLOBAL innodb_flush_log_at_trx_commit = 1", "SET GLOBAL innodb_flush_log_at_trx_commit = 0"];

/// Users, lanes and a coupon system, see the text of this module.
pub struct Town<'g> {
    pub site: Site<'g>,
    /// The daemon that runs the lanes.
    pub lanes: Daemon,
    /// Number of changes that were written beside days.
    pub changes: u64,
    witness: Witness,
    folder: tempfile::TempDir,
    zone: String,
    day: Date,
    tables: BirthdayTables,
    programmes: u32,
    /// Number of users of each other day.
    others: u64,
}

impl<'g> Town<'g> {
    /// Makes an empty town, whose lanes have read all tables.
    pub async fn begin(turn: Turn<'g>, layout: DerivedLayout) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the book");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let witness = Witness::start(&WitnessOptions::new(listen, folder.path().join("book"))).await;
        let mut site = Site::of_days(turn, layout).await;
        let pool = format!("SET GLOBAL innodb_buffer_pool_size = {BUFFER_POOL_BYTES}");
        site.source(&pool).await;
        site.target(&pool).await;
        let _ = site.new_log("days").await;
        let config = site.config();
        let tables = config.projections.into_iter().find_map(|projection| match projection.kind {
            ProjectionKind::Birthday(tables) => Some(tables),
            _ => None,
        });
        let (zone, day) = zone();
        let witness = witness.expect("it listens");
        write_configuration(&mut site, 0, &zone, &witness);
        site.installation.command(&["setup"]).await.expect_success();
        let lanes = site.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
        lanes.until_ready().await;
        site.installation.drained().await;
        site.installation.use_another_http_port();
        let tables = tables.expect("a birthday projection");
        Self { site, lanes, changes: 0, witness, folder, zone, day, tables, programmes: 0, others: 0 }
    }

    /// Replaces the configured programme by one that has granted nothing yet.
    pub fn begin_programme(&mut self) {
        self.programmes += 1;
        self.site.installation.use_another_http_port();
        write_configuration(&mut self.site, self.programmes, &self.zone, &self.witness);
    }

    fn month_day(&self) -> MonthDay {
        MonthDay::new(self.day.month() as u8, self.day.day() as u8).expect("a day")
    }

    /// Writes users of these numbers whose birthday is today.
    pub async fn fill_day(&self, first: u64, last: u64) {
        let today = self.month_day();
        eprintln!("writing users {first} to {last} with the birthday {today}");
        let tables = DATABASES * TABLES;
        let of_table = |table: u32| format!("`seq` DIV 16 % {tables} = {table}");
        let (mut source, mut target) = (String::from(BENEATH), String::from(BENEATH));
        for table in 0..tables {
            source += &source_rows(table, (first, last), today, &of_table(table));
            target += &self.derived_rows(table, (first, last), today, &of_table(table));
        }
        self.write(source, target).await;
    }

    /// Writes this number of users with birthdays on all other days.
    pub async fn fill_others(&mut self, users: u64) {
        let today = Birthday::Solar(self.month_day());
        let days: Vec<Birthday> =
            Birthday::all(Calendar::Solar).into_iter().filter(|day| *day != today).collect();
        let a_day = users / days.len() as u64;
        eprintln!("writing users until each of {} other days has {a_day}", days.len());
        // Packets small enough to end within the time limit of a statement.
        for days in days.iter().enumerate().collect::<Vec<_>>().chunks(20) {
            let (mut source, mut target) = (String::from(BENEATH), String::from(BENEATH));
            for (place, day) in days {
                let Birthday::Solar(day) = day else { continue };
                let begins = OTHERS + *place as u64 * OTHERS;
                let (first, last) = (begins + self.others + 1, begins + a_day);
                let table = *place as u32 % (DATABASES * TABLES);
                source += &source_rows(table, (first, last), *day, "TRUE");
                target += &self.derived_rows(table, (first, last), *day, "TRUE");
            }
            self.write(source, target).await;
        }
        self.others = a_day;
    }

    /// Writes to both servers at once, without waiting for the disk.
    async fn write(&self, source: String, target: String) {
        let [durable, fast] = DURABLE;
        tokio::join!(self.site.source(fast), self.site.target(fast));
        tokio::join!(self.site.source(source), self.site.target(target));
        tokio::join!(self.site.source(durable), self.site.target(durable));
    }

    /// SQL of the rows that lanes would have written.
    fn derived_rows(&self, table: u32, (first, last): (u64, u64), day: MonthDay, which: &str) -> String {
        let (database, name) = source_table(table);
        let shard = ShardId::of(SOURCE, &database, &name, 0).as_u64();
        let birthday = Birthday::Solar(day);
        let places: Vec<u32> = self.tables.databases_of(birthday).collect();
        let step = places.len() as u64;
        let mut sql = String::new();
        for (place, number) in (0..step).zip(places) {
            let first = first + (place + step - first % step) % step;
            if first > last {
                continue;
            }
            let database = self.tables.database_name(number);
            let rows = quote_table(&database, &self.tables.table_name(birthday));
            sql += &format!(
                "INSERT INTO {rows} (`shard_id`, `user_id`, `birthday`, `is_sent`, `lsn`) \
                 SELECT {shard}, `seq`, '{day}', 0, 0 FROM `{database}`.seq_{first}_to_{last}_step_{step} WHERE {which}; "
            );
        }
        sql
    }

    /// Runs a pass of the dispatcher; returns its cost and its peak memory in bytes.
    pub async fn pass(&self, members: u64) -> (Measured, u64) {
        let day = self.day.to_string();
        let meter = Meter::start(&self.servers());
        let mut process = self.site.installation.start(&["dispatch", "run", &day], &[]);
        let (mut memory, mut cpu) = (0, 0.0);
        while process.is_running() {
            if let Some(bytes) = resident_bytes_max(process.pid()) {
                (memory, cpu) = (bytes, cpu_seconds(process.pid()));
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        let measured = Measured { own_cpu_seconds: cpu, ..meter.stop() };
        assert!(process.wait().is_some_and(|status| status.success()), "{}", process.log_of_this_run());
        let shown = self.site.installation.command(&["dispatch", "status", "--json"]).await.expect_success();
        let shown = shown.json()[0].clone();
        assert_eq!((&shown["eligible"], &shown["frozen"]), (&members.into(), &1.into()), "{shown}");
        assert_eq!(shown["is_after_barrier"], true, "the pass waited for lanes: {shown}");
        (measured, memory)
    }

    /// Grants until this number of users is carried. Counts from the first poll that finds carried users; returns their
    /// number, the cost and the granter's peak memory in bytes.
    pub async fn grant(&self, users: u64) -> (u64, Measured, u64) {
        let mut granter = self.site.installation.run_with(&["--role", "granter"], &[]);
        let deadline = Instant::now() + WAIT_MAX;
        let (mut first, mut meter) = (0.0, None);
        loop {
            let carried = Self::carried(&granter).await;
            if meter.is_none() && carried > 0.0 {
                (first, meter) =
                    (carried, Some(Meter::start(&[&self.servers()[..], &[granter.pid()]].concat())));
            }
            if carried >= users as f64 {
                let measured = meter.expect("it has begun").stop();
                let memory = granter.resident_bytes_max();
                assert!(granter.terminate().is_some(), "{}", granter.log_of_this_run());
                return ((carried - first) as u64, measured, memory);
            }
            assert!(Instant::now() < deadline, "{carried} of {users} users: {}", granter.log_of_this_run());
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// The number of users whose grants a granter has finished.
    pub async fn carried(granter: &Daemon) -> f64 {
        granter.metric("anabranch_coupon_carried_total", &["outcome=\"done\""]).await
    }

    fn servers(&self) -> [u32; 4] {
        [self.site.pid(TARGET), self.site.pid(SOURCE), self.site.pid("nats"), self.lanes.pid()]
    }

    /// Ends the daemon of the lanes.
    pub async fn end(mut self) {
        assert!(self.lanes.terminate().is_some(), "{}", self.lanes.log_of_this_run());
        self.site.delete_log().await;
        drop((self.witness, self.folder));
    }
}

fn source_table(table: u32) -> (String, String) {
    (format!("user_{:02}", table / TABLES), format!("user_{:03}", table % TABLES))
}

fn source_rows(table: u32, (first, last): (u64, u64), day: MonthDay, which: &str) -> String {
    let (database, name) = source_table(table);
    if first > last {
        return String::new();
    }
    format!(
        "INSERT INTO {database}.{name} (user_id, user_name, birthday) \
         SELECT `seq`, 'somebody', '1992-{day}' FROM {database}.seq_{first}_to_{last} WHERE {which}; "
    )
}

/// A zone in which it is an hour past midnight now, and the date there.
fn zone() -> (String, Date) {
    let now = Timestamp::now();
    let offset = HOUR - i64::from(now.to_zoned(TimeZone::UTC).hour());
    // The tz database has UTC-12 to UTC+14, and writes the sign the other way round.
    let offset = if offset < -12 { offset + 24 } else { offset };
    let name = if offset < 0 { format!("Etc/GMT+{}", -offset) } else { format!("Etc/GMT-{offset}") };
    let zone = TimeZone::get(&name).expect("it exists");
    (name, now.to_zoned(zone).date())
}

/// Configures the programme of a number: every setting at its default, but the rate and those that begin it at once.
fn write_configuration(site: &mut Site<'_>, number: u32, zone: &str, witness: &Witness) {
    let text = site.installation.configuration_text();
    let coupons = format!(
        "\n[[programmes]]\nname = \"day-{number}\"\ncoupon = \"cake\"\ntime_zone = \"{zone}\"\nleap_day = \"feb28\"\n\
         calendars = [\"solar\"]\nwaits_until = \"00:00\"\nrate_per_second = {RATE}\n\
         [coupon_system]\nurl = \"http://{}\"\n",
        witness.address()
    );
    site.installation.write_configuration_text(&(text + &coupons));
}
