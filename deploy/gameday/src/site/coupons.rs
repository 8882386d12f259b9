//! A coupon system and a programme of coupons, for the drills that need them. Both begin with the first such drill.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_demo::{Faults, Witness, WitnessClient, WitnessOptions, afternoon, daemon as product};
use jiff::civil::Date;
use jiff::{Span, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::stores::USER_TABLE;
use super::{CURRENT_MAX, POLL_INTERVAL, Site, blocking, write_private};
use crate::error::{GamedayError, Result};

/// Token that the daemon sends to the coupon system.
const TOKEN: &str = "token-of-the-game-day";
/// Number of the first user whose day it is; no workload has it.
const FIRST_USER: u64 = 5_000_001_000;
/// Users of a programme's first day, beside those of the workload.
const USERS: u64 = 20;
/// Noon of the programmes: just before the hour in which each of them begins. Today's catch-up needs a reconciliation
/// ten hours after it, so no drill's own day is closed, and its counts go on following the ledger.
const NOON: &str = "12:59";
/// Limit until the port of a coupon system that ended is free.
const STARTED_MAX: Duration = Duration::from_secs(30);
/// Limit until each member has a coupon. Granters let a system rest for up to a quarter of an hour.
const DONE_MAX: Duration = Duration::from_secs(1_200);
/// A call without an answer is queried after half an hour. The ledger is aged by half an hour at this interval.
const AGED_EACH: Duration = Duration::from_secs(10);
const LEDGER: &str = "anabranch_coupons";
/// Tables over which the ledger is spread.
const LEDGER_PARTS: u32 = 16;
/// Database of the older copy of the ledger.
const COPY: &str = "ledger_copy";
/// Pages of the coupon system's statement, as the runbook names them.
const PAGES: [&str; 2] = ["page-1.json", "page-2.json"];
/// Counts of the newest day that are 0 when nobody waits for a coupon.
const WAITING: [&str; 5] = ["missed", "in_flight", "failed", "dead_letters", "open_before"];

/// The coupon system, and the programme that the daemon works on.
#[derive(Debug, Default)]
pub struct Coupons {
    port: Option<u16>,
    /// `None` while it is away.
    witness: Option<Witness>,
    /// A drill keeps it away until its repair.
    is_away: bool,
    /// Number of programmes so far. Each has users of its own.
    programmes: u64,
    /// First day and first user of the present programme.
    first: Option<(Date, u64)>,
}

impl Coupons {
    fn port(&mut self) -> Result<u16> {
        if let Some(port) = self.port {
            return Ok(port);
        }
        let port = product::free_port()?;
        self.port = Some(port);
        Ok(port)
    }
}

impl Site {
    /// Returns values of the runbook's words about coupons.
    pub fn coupon_words(&self) -> Vec<(String, Vec<String>)> {
        let file = |name: &str| self.stack.folder().join(name).display().to_string();
        let mut words: Vec<(String, Vec<String>)> =
            PAGES.iter().map(|&page| (page.to_owned(), vec![file(page)])).collect();
        if let Some((day, user)) = self.coupons.first {
            words.push(("DAY".to_owned(), vec![day.to_string()]));
            words.push(("USER".to_owned(), vec![user.to_string()]));
        }
        words
    }

    /// Adds a programme whose first day is so many days ago by the daemon's clock, and users whose day that is.
    /// Returns when the day is frozen.
    pub(super) async fn begin_programme(&mut self, name: &str, days_ago: u32) -> Result<()> {
        if !self.coupons.is_away {
            self.start_coupon_system().await?;
        }
        let port = self.coupons.port()?;
        let (zone, today) = afternoon(Timestamp::now())?;
        let day = today.saturating_sub(Span::new().days(days_ago));
        self.add_users(day).await?;
        let text = format!(
            "{}\n[[programmes]]\nname = \"{name}\"\ncoupon = \"cake\"\ntime_zone = \"{zone}\"\nleap_day = \"feb28\"\n\
             calendars = [\"solar\"]\nnoon_at = \"{NOON}\"\nwaits_until = \"00:00\"\n\
             [coupon_system]\nurl = \"http://127.0.0.1:{port}\"\ntoken = \"{TOKEN}\"\nlane_lag_ms = 60000\n",
            self.text
        );
        write_private(&self.file, &text)?;
        blocking(|| product::Daemon::set_up(&self.binary, &self.file))?;
        self.copy_ledger().await?;
        self.restart_with_clock()?;
        let wanted = day.to_string();
        let is_frozen = |view: &Value| view["day"] == wanted && view["frozen"].as_u64() >= Some(2);
        self.until_day(CURRENT_MAX, "the first day of the programme is frozen", is_frozen).await
    }

    /// Takes the programme away; coupons and ledger stay.
    pub(super) fn end_programme(&mut self) -> Result<()> {
        self.coupons.first = None;
        self.coupons.is_away = false;
        self.roles = &[];
        write_private(&self.file, &self.text)?;
        self.start_daemon(&[])
    }

    /// Starts the daemon anew with these roles alone; none = all of them.
    pub(super) fn take_roles(&mut self, roles: &'static [&'static str]) -> Result<()> {
        self.roles = roles;
        self.restart_with_clock()
    }

    pub(super) async fn start_coupon_system(&mut self) -> Result<()> {
        self.coupons.is_away = false;
        if self.coupons.witness.is_some() {
            return Ok(());
        }
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, self.coupons.port()?));
        let mut options = WitnessOptions::new(listen, self.stack.folder().join("gameday.book"));
        options.token = Some(TOKEN.to_owned());
        let deadline = Instant::now() + STARTED_MAX;
        loop {
            match Witness::start(&options).await {
                Ok(witness) => {
                    self.coupons.witness = Some(witness);
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => return Err(error.into()),
                Err(_port_is_in_use) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Ends the coupon system; its book stays.
    pub(super) fn stop_coupon_system(&mut self) {
        self.coupons.is_away = true;
        self.coupons.witness = None;
    }

    /// Has the coupon system answer the next request of a granter that it knows each key with another coupon.
    pub(super) async fn mismatch_coupons(&mut self) -> Result<()> {
        self.start_coupon_system().await?;
        let faults = Faults { mismatch: 1.0, requests: Some(1), ..Faults::default() };
        Ok(self.coupon_client()?.set_faults(&faults).await?)
    }

    /// Waits until each member of every day has a coupon. Half hours in which granters leave attempts alone pass fast.
    pub(super) async fn await_coupons(&self) -> Result<()> {
        let deadline = Instant::now() + DONE_MAX;
        let is_done = |view: &Value| WAITING.iter().all(|count| view[*count].as_u64() == Some(0));
        loop {
            self.age_attempts().await?;
            match self.until_day(AGED_EACH, "each member has a coupon", is_done).await {
                Err(GamedayError::Late { .. }) if Instant::now() < deadline => {}
                ended => return ended,
            }
        }
    }

    /// Replaces the ledger by its copy from before the programme's first coupon. The daemon is stopped meanwhile.
    pub(super) async fn restore_ledger(&mut self) -> Result<()> {
        self.main.stop()?;
        let mut target = self.admin("target").await?;
        let tables: Vec<String> = target.rows("list the copy", tables_in(COPY)).await?;
        let restore = |table: &String| {
            format!("DELETE FROM {LEDGER}.{table}; INSERT INTO {LEDGER}.{table} SELECT * FROM {COPY}.{table}")
        };
        let restored: Vec<String> = tables.iter().map(restore).collect();
        target.execute("restore the ledger", restored.join("; ")).await?;
        self.restart_with_clock()
    }

    /// Writes the statement of the coupon system into the files that the runbook names.
    pub(super) async fn write_statement(&self) -> Result<()> {
        let gifts = self.coupon_client()?.gifts().await?;
        let pages = [json!({ "gifts": gifts, "next": 1 }), json!({ "gifts": [], "next": null })];
        for (file, page) in PAGES.into_iter().zip(pages) {
            write_private(&self.stack.folder().join(file), &page.to_string())?;
        }
        Ok(())
    }

    fn coupon_client(&self) -> Result<WitnessClient> {
        let port = self.coupons.port.unwrap_or_default();
        Ok(WitnessClient::new(format!("http://127.0.0.1:{port}"), Some(TOKEN))?)
    }

    async fn add_users(&mut self, day: Date) -> Result<()> {
        let first = FIRST_USER + self.coupons.programmes * USERS;
        self.coupons.programmes += 1;
        self.coupons.first = Some((day, first));
        // The year has a 29 February.
        let born = day.strftime("1996-%m-%d").to_string();
        let user = |number: u64| format!("({number}, 'coupon {number}', '{born}')");
        let users: Vec<String> = (first..first + USERS).map(user).collect();
        let added =
            format!("INSERT INTO {USER_TABLE} (user_id, user_name, birthday) VALUES {}", users.join(", "));
        self.admin("source-a").await?.execute("add users", added).await?;
        self.until_current(CURRENT_MAX).await
    }

    async fn copy_ledger(&self) -> Result<()> {
        let mut target = self.admin("target").await?;
        let tables: Vec<String> = target.rows("list the ledger", tables_in(LEDGER)).await?;
        let copy = |table: &String| {
            format!(
                "CREATE TABLE {COPY}.{table} LIKE {LEDGER}.{table}; \
                 INSERT INTO {COPY}.{table} SELECT * FROM {LEDGER}.{table}"
            )
        };
        let copies: Vec<String> = tables.iter().map(copy).collect();
        let anew = format!("DROP DATABASE IF EXISTS {COPY}; CREATE DATABASE {COPY}; {}", copies.join("; "));
        Ok(target.execute("copy the ledger", anew).await?)
    }

    /// Ages the ledger by half an hour, after which other granters take unfinished attempts over. Users whose source
    /// row is gone wait for half of a rename, and that wait is over too: the workload deletes some of them.
    async fn age_attempts(&self) -> Result<()> {
        let age = |part| {
            format!(
                "UPDATE {LEDGER}.coupon_ledger_{part:02} SET changed_at = changed_at - INTERVAL 31 MINUTE, \
                 absent_since = absent_since - INTERVAL 11 HOUR WHERE state IN ('reserved', 'issued')"
            )
        };
        let aged: Vec<String> = (0..LEDGER_PARTS).map(age).collect();
        let mut target = self.admin("target").await?;
        Ok(target.execute("let half an hour pass in the ledger", aged.join("; ")).await?)
    }

    /// Starts the daemon anew with the clock that it has.
    fn restart_with_clock(&mut self) -> Result<()> {
        let environment = match &self.clock {
            Some(_) => blocking(|| self.stack.clock("gameday"))?.1,
            None => Vec::new(),
        };
        self.start_daemon(&environment)
    }

    /// Waits until the daemon shows such a newest day of the programme.
    async fn until_day(
        &self,
        limit: Duration,
        what: &str,
        is_reached: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.status().await.unwrap_or_default();
            let view = &status["programmes"][0]["day"];
            if is_reached(view) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("{what}; it is {view}");
                return Err(GamedayError::Late { what, seconds: limit.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Returns the statement that lists the tables of a database.
fn tables_in(database: &str) -> String {
    format!("SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'")
}
