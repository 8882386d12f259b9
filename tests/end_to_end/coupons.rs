//! The coupon day through the binary, on real servers: each member gets exactly one coupon, whatever is killed, lost or
//! restored. The witness is the coupon system, and its book forgets nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_demo::{Faults, Witness, WitnessClient, WitnessOptions};
use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Finished, Installation, Plan, Turn, until, until_some};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::Value as Json;

use crate::STANDARD;

const TOKEN: &str = "token-of-the-coupon-day";
const VARIABLE: &str = "ANABRANCH_FAILPOINT";
/// Numbers of users in the first table of each source whose day is today; there are others too.
const CELEBRATING: [u64; 2] = [30, 20];
const OTHERS: u64 = 5;
const PARTS: u64 = 16;
/// The store of a reconciliation that compares the columns with the ledger.
const COLUMNS: &str = "coupons/columns";

/// The part of a report on one store.
pub fn store<'r>(report: &'r Json, name: &str) -> &'r Json {
    let stores = report["stores"].as_array().unwrap();
    stores.iter().find(|store| store["store"] == name).unwrap_or_else(|| panic!("{report}"))
}

/// A zone in which it is early afternoon now, so that midnight and noon of today are past.
fn zone() -> (String, Date) {
    let now = Timestamp::now();
    let offset = 13 - i64::from(now.to_zoned(TimeZone::UTC).hour());
    // The tz database has UTC-12 to UTC+14, and writes the sign the other way round.
    let offset = if offset < -12 { offset + 24 } else { offset };
    let name = if offset < 0 { format!("Etc/GMT+{}", -offset) } else { format!("Etc/GMT-{offset}") };
    let day = now.to_zoned(TimeZone::get(&name).unwrap()).date();
    (name, day)
}

/// An installation with a programme, its coupon system, and users whose day is today.
pub struct CouponDay {
    pub installation: Installation<'static>,
    pub day: Date,
    zone: String,
    /// Further settings of the programme, and further sections.
    more: &'static str,
    /// Further settings of the coupon system.
    of_system: &'static str,
    address: SocketAddr,
    folder: tempfile::TempDir,
    witness: Option<Witness>,
}

impl CouponDay {
    pub async fn begin(turn: Turn<'static>, plan: &Plan, more: &'static str) -> Self {
        let (zone, day) = zone();
        let folder = tempfile::tempdir().unwrap();
        let options = WitnessOptions::new("127.0.0.1:0".parse().unwrap(), folder.path().join("book"));
        let witness = Witness::start(&options).await.unwrap();
        let address = witness.address();
        let installation = Installation::prepare(turn, plan).await;
        let mut day =
            Self { installation, day, zone, more, of_system: "", address, folder, witness: Some(witness) };
        day.write_configuration();
        day.installation.command(&["setup"]).await.expect_success();
        day.insert_users().await;
        day
    }

    fn write_configuration(&mut self) {
        let with_token = self.installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
        let Self { zone, address, more, of_system, .. } = self;
        let more = more.replace("{zone}", zone);
        let coupons = format!(
            "\n[[programmes]]\nname = \"birthday\"\ncoupon = \"cake\"\ntime_zone = \"{zone}\"\nleap_day = \"feb28\"\n\
             calendars = [\"solar\"]\nnoon_at = \"00:01\"\nwaits_until = \"00:00\"\n\
             {more}\n[coupon_system]\nurl = \"http://{address}\"\ntimeout_seconds = 3\n{of_system}"
        );
        self.installation.write_configuration_text(&(with_token + &coupons));
    }

    /// Writes further settings of the coupon system.
    pub fn set_system(&mut self, settings: &'static str) {
        self.of_system = settings;
        self.write_configuration();
    }

    /// Chooses another HTTP port, for daemons beside the first one.
    pub fn use_another_http_port(&mut self) {
        self.installation.use_another_http_port();
        self.write_configuration();
    }

    async fn insert_users(&self) {
        let (month, today) = (self.day.month(), self.day.day());
        let sources = self.installation.configuration.sources.clone();
        for (place, source) in sources.iter().enumerate() {
            let table = self.source_table(place);
            let first = 1 + 1_000 * place as u64;
            let celebrating = (0..CELEBRATING[place]).map(|user| {
                let born = Date::new(1996, month, today).unwrap();
                format!("({}, 'n{user}', '{born}')", first + user)
            });
            // Two days later, so that no rule for 29 February makes it today.
            let other = self.day.checked_add(jiff::Span::new().days(2)).unwrap();
            let others = (0..OTHERS).map(|user| {
                let born = format!("1996-{:02}-{:02}", other.month(), other.day());
                format!("({}, 'o{user}', '{born}')", first + 500 + user)
            });
            let rows: Vec<String> = celebrating.chain(others).collect();
            let sql =
                format!("INSERT INTO {table} (user_id, user_name, birthday) VALUES {}", rows.join(", "));
            self.installation.execute(source, sql).await;
        }
    }

    /// The first table of a source, whose users begin at 1 and at 1001.
    pub fn source_table(&self, place: usize) -> String {
        self.installation.audits[0].topology.tables_of(place).next().unwrap().name()
    }

    pub fn members(&self) -> BTreeSet<u64> {
        let of = |place: u64, users: u64| (0..users).map(move |user| 1 + 1_000 * place + user);
        of(0, CELEBRATING[0]).chain(of(1, CELEBRATING[1])).collect()
    }

    pub fn target(&self) -> &str {
        &self.installation.configuration.targets[0]
    }

    pub async fn dispatch(&self, arguments: &[&str]) -> Finished {
        self.installation.command(&[&["dispatch"], arguments].concat()).await
    }

    /// Begins or continues the day by hand.
    pub async fn run_day(&self) -> Finished {
        self.dispatch(&["run", &self.day.to_string()]).await
    }

    /// The newest day as `dispatch status` shows it.
    pub async fn shown(&self) -> Json {
        self.dispatch(&["status", "--json"]).await.expect_success().json()[0].clone()
    }

    /// Ages every attempt until other granters may take it over.
    pub async fn age_attempts(&self) {
        let age = |part| {
            format!(
                "UPDATE anabranch_coupons.coupon_ledger_{part:02} SET changed_at = changed_at - INTERVAL 31 MINUTE \
                 WHERE state IN ('reserved', 'issued') OR reason = 'source_unreadable'"
            )
        };
        let sql = (0..PARTS).map(age).collect::<Vec<String>>().join(";");
        let mut target = self.installation.admin(self.target()).await;
        until("no granter holds a row", async || target.execute("age", sql.clone()).await.is_ok()).await;
    }

    /// Tables of the ledger.
    async fn ledger_tables(&self) -> Vec<String> {
        let mut target = self.installation.admin(self.target()).await;
        let sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'anabranch_coupons'";
        target.rows::<String>("list the ledger", sql.to_owned()).await.unwrap()
    }

    /// Copies the whole ledger in one snapshot.
    pub async fn copy_ledger(&self) {
        let mut sql = vec!["CREATE DATABASE ledger_copy".to_owned()];
        let tables = self.ledger_tables().await;
        sql.extend(
            tables
                .iter()
                .map(|table| format!("CREATE TABLE ledger_copy.{table} LIKE anabranch_coupons.{table}")),
        );
        sql.push("START TRANSACTION WITH CONSISTENT SNAPSHOT".to_owned());
        sql.extend(
            tables.iter().map(|table| {
                format!("INSERT INTO ledger_copy.{table} SELECT * FROM anabranch_coupons.{table}")
            }),
        );
        sql.push("COMMIT".to_owned());
        self.installation.execute(self.target(), sql.join(";")).await;
    }

    /// Writes the coupon system's statement into a file; returns its path.
    pub async fn write_statement(&self) -> String {
        let gifts = self.client().gifts().await.unwrap();
        let page = self.folder.path().join("page-1.json");
        std::fs::write(&page, serde_json::json!({ "gifts": gifts, "next": null }).to_string()).unwrap();
        page.to_str().unwrap().to_owned()
    }

    /// Puts the copy in the place of the ledger, which other processes see as a whole before and after that.
    pub async fn restore_ledger(&self) {
        let tables = self.ledger_tables().await;
        let lock = |table: &String| format!("anabranch_coupons.{table} WRITE, ledger_copy.{table} READ");
        let restore = |table: &String| {
            let ledger = format!("anabranch_coupons.{table}");
            format!("DELETE FROM {ledger}; INSERT INTO {ledger} SELECT * FROM ledger_copy.{table}")
        };
        let locks: Vec<String> = tables.iter().map(lock).collect();
        let sql: Vec<String> = tables.iter().map(restore).collect();
        let sql = format!("LOCK TABLES {}; {}; UNLOCK TABLES", locks.join(", "), sql.join("; "));
        self.installation.execute(self.target(), sql).await;
    }

    pub fn client(&self) -> WitnessClient {
        WitnessClient::new(format!("http://{}", self.address), None).unwrap()
    }

    /// Stops the coupon system, whose book stays.
    async fn stop_witness(&mut self) {
        self.witness = None;
        let client = self.client();
        until("the coupon system is gone", async || !client.is_up().await).await;
    }

    async fn start_witness(&mut self) {
        let options = WitnessOptions::new(self.address, self.folder.path().join("book"));
        let started =
            until_some("the coupon system listens again", async || Witness::start(&options).await.ok());
        self.witness = Some(started.await);
    }

    /// Kills a process exactly at a failpoint.
    pub async fn kill_at(&self, arguments: &[&str], failpoint: &str) {
        let mut process = self.installation.start(arguments, &[(VARIABLE, failpoint)]);
        process.until_failpoint(failpoint).await;
        process.kill();
    }

    /// The day's tables.
    pub async fn tables(&self) -> Vec<String> {
        let mut target = self.installation.admin(self.target()).await;
        let table = format!("birthday_{:02}{:02}", self.day.month(), self.day.day());
        let sql = format!(
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
             WHERE table_schema LIKE 'birthday%' AND table_name = '{table}'"
        );
        target.rows::<String>("find the tables", sql).await.unwrap()
    }

    /// Changes columns of rows by hand.
    pub async fn change_columns(&self, set: &str, which: &str) {
        for table in self.tables().await {
            self.installation.execute(self.target(), format!("UPDATE {table} SET {set} WHERE {which}")).await;
        }
    }

    /// Users whose rows show this year's coupon in all three columns.
    pub async fn marked_users(&self) -> BTreeSet<u64> {
        let (mut target, mut marked) = (self.installation.admin(self.target()).await, BTreeSet::new());
        for table in self.tables().await {
            let sql = format!(
                "SELECT user_id FROM {table} WHERE is_sent = 1 AND send_time IS NOT NULL AND sent_occurrence = {}",
                self.day.year()
            );
            marked.extend(target.rows::<u64>("read the columns", sql).await.unwrap());
        }
        marked
    }

    /// The report of a reconciliation on the columns alone.
    async fn compare_columns(&self, how: &[&str]) -> Json {
        let command = [&["reconcile", "--now", "--json", "--store", COLUMNS], how].concat();
        store(&self.installation.command(&command).await.json(), COLUMNS).clone()
    }

    /// Expects one coupon for each user whose day it is, and none for others.
    pub async fn expect_everybody_once(&self) {
        let gifts = self.client().gifts().await.unwrap();
        let users: BTreeSet<u64> = gifts.iter().map(|gift| gift.user.parse().unwrap()).collect();
        assert_eq!(users, self.members());
        assert_eq!(gifts.len(), users.len(), "somebody has two coupons");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_gets_one_coupon_whatever_is_killed_lost_or_restored() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    planned_before_it_begins(&day).await;
    dispatchers_killed(&day).await;
    columns_without_a_coupon_are_reset(&day).await;
    granters_killed(&day).await;
    coupon_system_away(&mut day, &lanes).await;
    let granted = queue_lost_and_letters(&day).await;
    shown_and_signed(&day, &granted).await;
    // No other dispatcher closes the day.
    drop(granted);
    closed_after_a_reconciliation(&day).await;
    restored_ledger_is_refused_and_taken_in(&day).await;
}

async fn planned_before_it_begins(day: &CouponDay) {
    let today = day.day.to_string();
    let plan = day.dispatch(&["plan", &today, "--json"]).await.expect_success().json();
    let users: u64 = plan[0]["tables"].as_array().unwrap().iter().filter_map(|t| t["users"].as_u64()).sum();
    assert_eq!((users, plan[0]["run"].is_null()), (50, true), "{plan}");
    let tomorrow = day.day.tomorrow().unwrap().to_string();
    let early = day.dispatch(&["report", &tomorrow]).await;
    assert_eq!(early.exit_code, 1, "{early:?}");
    assert!(
        early.stderr.contains("dispatch-refused") && early.stderr.contains("the day begins at"),
        "{early:?}"
    );
}

/// The next pass continues a pass that was killed anywhere.
async fn dispatchers_killed(day: &CouponDay) {
    let today = day.day.to_string();
    for failpoint in failpoints::DISPATCHING {
        day.kill_at(&["dispatch", "run", &today], failpoint).await;
    }
    day.run_day().await.expect_success();
    let run = day.run_day().await.expect_success();
    assert!(run.stdout.contains("noon is frozen: 50 eligible = 0 granted"), "{run:?}");
}

/// No user has a coupon yet, and two rows are changed by hand to show one.
async fn columns_without_a_coupon_are_reset(day: &CouponDay) {
    let year = day.day.year();
    let sent = format!("is_sent = 1, send_time = '2000-01-01', sent_occurrence = {year}");
    day.change_columns(&sent, "user_id = 1").await;
    // A row that was marked before there was a ledger has no occurrence, and stays.
    day.change_columns("is_sent = 1, send_time = '2000-01-01'", "user_id = 2").await;
    let reported = day.compare_columns(&["--mode", "report"]).await;
    assert_eq!((&reported["verdicts"]["orphan"], &reported["left"]), (&1.into(), &1.into()), "{reported}");
    assert_eq!(day.marked_users().await, BTreeSet::from([1]));
    let mended = day.compare_columns(&[]).await;
    assert_eq!(
        (&mended["repaired"], &mended["confirmed"], &mended["left"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert_eq!(day.marked_users().await, BTreeSet::new());
    day.change_columns("is_sent = 0, send_time = NULL", "user_id = 2 AND is_sent = 1").await;
}

/// Other granters take the work of a killed one over. The ledger is copied after the first grants.
async fn granters_killed(day: &CouponDay) {
    for failpoint in failpoints::GRANTING {
        day.kill_at(&["run", "--role", "granter"], failpoint).await;
        day.age_attempts().await;
        day.run_day().await.expect_success();
    }
    assert_eq!(day.client().doubles().await.unwrap().len(), 0);
    day.copy_ledger().await;
}

/// Without the coupon system granters try nothing, and the task names the reason.
async fn coupon_system_away(day: &mut CouponDay, lanes: &Daemon) {
    assert!(lanes.is_running());
    let is_up = async || lanes.metric("anabranch_dependency_up", &["dependency=\"coupon-system\""]).await;
    until("a daemon without granters reaches it", async || is_up().await == 1.0).await;
    day.stop_witness().await;
    until("the daemon reaches it no longer", async || is_up().await == 0.0).await;
    let mut granter = day.installation.run_with(&["--role", "granter"], &[]);
    let is_away = |task: &Json| task["code"] == "coupon-system-unreachable";
    granter.until_view("tasks", ("task", "granter"), is_away).await;
    until("it is open", async || granter.metric("anabranch_coupon_breaker_open", &[]).await == 1.0).await;
    granter.kill();
    day.start_witness().await;
    day.age_attempts().await;
}

/// The queue is a copy; dead letters wait for an operator.
async fn queue_lost_and_letters(day: &CouponDay) -> Daemon {
    let stream = format!("{}_coupons", day.installation.configuration.name);
    day.installation.jetstream().await.get_stream(stream).await.unwrap().purge().await.unwrap();
    let faults = Faults { mismatch: 1.0, requests: Some(1), ..Faults::default() };
    day.client().set_faults(&faults).await.unwrap();
    let granting = ["dispatcher", "granter", "api"].map(|role| ["--role", role]).concat();
    let daemon = day.installation.run_with(&granting, &[]);
    let is_done =
        |shown: &Json| shown["granted"].as_u64() > Some(0) && shown["missed"] == 0 && shown["in_flight"] == 0;
    let shown = until_some("everybody has a coupon or is a dead letter", async || {
        let shown = day.shown().await;
        is_done(&shown).then_some(shown)
    });
    let letters = shown.await["failed"].as_u64().unwrap();
    let listed = day.dispatch(&["letters", "list", "--json"]).await.expect_success().json_lines();
    assert!(letters > 0 && listed.len() as u64 == letters, "{letters} letters, {listed:?}");
    assert!(listed.iter().all(|letter| letter["outcome"] == "unknown"), "{listed:?}");
    let sent = day.dispatch(&["letters", "requeue", "--all", "--dry-run"]).await.expect_success();
    assert!(sent.stdout.contains("would be sent again"), "{sent:?}");
    let ending = ["letters", "drop", "--outcome", "not-given"];
    let ended = day.dispatch(&[&ending[..], &["--all", "--dry-run"]].concat()).await.expect_success();
    assert!(ended.stdout.contains("would end as not given"), "{ended:?}");
    let unknown = day.dispatch(&[&ending[..], &["birthday/solar:1999/1"]].concat()).await;
    assert!(unknown.exit_code == 1 && unknown.stderr.contains("dispatch-refused"), "{unknown:?}");
    day.dispatch(&["letters", "requeue", "--all"]).await.expect_success();
    day.age_attempts().await;
    until("everybody has a coupon", async || day.shown().await["granted"] == 50).await;
    day.expect_everybody_once().await;
    daemon
}

async fn shown_and_signed(day: &CouponDay, daemon: &Daemon) {
    let today = day.day.to_string();
    daemon.until_ready().await;
    until("the metrics show it", async || {
        daemon.metric("anabranch_coupon_members", &["outcome=\"granted\""]).await == 50.0
    })
    .await;
    assert_eq!(daemon.metric("anabranch_coupon_frozen_waves", &[]).await, 2.0);
    let path = |day: &str| format!("/v1/dispatch/birthday/{day}");
    let (code, begun) = daemon.ask("POST", &path(&today), Some(TOKEN), "").await;
    assert_eq!((code, &begun["frozen"], &begun["eligible"]), (202, &2.into(), &50.into()), "{begun}");
    assert_eq!(daemon.ask("POST", &path(&today), None, "").await.0, 401);
    let tomorrow = day.day.tomorrow().unwrap().to_string();
    let (code, early) = daemon.ask("POST", &path(&tomorrow), Some(TOKEN), "").await;
    assert_eq!((code, &early["code"]), (409, &"dispatch-refused".into()), "{early}");
    let why = day.dispatch(&["explain", "1"]).await.expect_success();
    assert!(why.stdout.contains("The user has the coupon of this day."), "{why:?}");
    assert!(why.stdout.contains("The ledger decides: `is_sent`"), "{why:?}");
    assert!(why.stdout.contains(", by version "), "{why:?}");
    let why = day.dispatch(&["explain", "501"]).await.expect_success();
    assert!(why.stdout.contains("this is not the user's day"), "{why:?}");
    let report = day.dispatch(&["report", &today]).await.expect_success();
    assert!(report.stdout.contains("noon") && report.stdout.contains("50 eligible"), "{report:?}");
}

/// The catch-up comes after the next reconciliation. Then the columns follow the ledger, even where a granter died.
async fn closed_after_a_reconciliation(day: &CouponDay) {
    let today = day.day.to_string();
    // A granter that was killed after the ledger's commit has left some users unmarked.
    let marked: Vec<u64> = day.marked_users().await.into_iter().collect();
    let lacking = (day.members().len() - marked.len()) as u64;
    let unsent = "is_sent = 0, send_time = NULL, sent_occurrence = NULL";
    for (set, user) in
        [(unsent, marked[0]), ("sent_occurrence = 1999", marked[1]), ("send_time = NULL", marked[2])]
    {
        day.change_columns(set, &format!("user_id = {user}")).await;
    }
    let done = day.installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    let columns = store(&done, COLUMNS);
    assert_eq!(columns["verdicts"], serde_json::json!({"missing": lacking + 1, "stale": 2}), "{columns}");
    assert_eq!((&columns["confirmed"], &columns["left"]), (&(lacking + 3).into(), &0.into()), "{columns}");
    assert_eq!(day.marked_users().await, day.members());
    // The next wave writes columns again that are lost after this.
    day.change_columns(unsent, &format!("user_id = {}", marked[0])).await;
    // The report is stored before the run is closed: a kill between the two leaves neither out.
    for failpoint in failpoints::CLOSING {
        day.kill_at(&["dispatch", "run", &today], failpoint).await;
    }
    until("the run is closed", async || {
        day.run_day().await.expect_success();
        day.shown().await["is_closed"] == true
    })
    .await;
    let report = day.dispatch(&["report", &today]).await.expect_success();
    assert!(report.stdout.contains("closed: clean"), "{report:?}");
    assert!(report.stdout.contains("relies on  no reconciliation"), "{report:?}");
    let planned = day.dispatch(&["plan", &today, "--json"]).await.expect_success().json();
    let version = planned[0]["version"].as_str().unwrap();
    assert!(report.stdout.contains(&format!("  version    {version} of the programme")), "{report:?}");
    assert_eq!(day.marked_users().await, day.members(), "the columns follow the ledger");
    let change = "UPDATE anabranch.coupon_reports SET report = REPLACE(report, 'cake', 'cakes')";
    day.installation.execute(day.target(), change).await;
    let broken = day.dispatch(&["report", &today]).await;
    assert!(broken.exit_code == 1 && broken.stderr.contains("history-broken"), "{broken:?}");
}

/// The register outside of the ledger's server knows calls that an older copy lacks. No coupon is granted until the
/// coupon system's statement is taken in; then the day continues, and no user gets a second coupon.
async fn restored_ledger_is_refused_and_taken_in(day: &CouponDay) {
    let today = day.day.to_string();
    day.restore_ledger().await;
    let refused = day.run_day().await;
    assert_eq!(refused.exit_code, 1, "{refused:?}");
    assert!(refused.stderr.contains("coupon-ledger-restored"), "{refused:?}");
    let daemon = day.installation.run_with(&["--role", "dispatcher", "--role", "granter"], &[]);
    let task = daemon.until_view("tasks", ("task", "dispatcher/birthday"), |task| task["code"].is_string());
    assert_eq!(task.await["code"], "coupon-ledger-restored");
    let compared = day.compare_columns(&[]).await;
    assert!(compared["incomplete"].to_string().contains("coupon-ledger-restored"), "{compared}");
    assert_eq!(day.marked_users().await, day.members(), "a restored ledger decides nothing");
    day.expect_everybody_once().await;
    drop(daemon);

    let page = day.write_statement().await;
    let refused = day.dispatch(&["take-in", &page, "--programme", "birthday"]).await;
    assert!(refused.exit_code == 1 && refused.stderr.contains("dispatch-refused"), "{refused:?}");
    let taken = day.dispatch(&["take-in", &page]).await.expect_success();
    assert!(taken.stdout.contains("50 coupons were settled"), "{taken:?}");
    let _granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("the day is closed once more", async || {
        day.run_day().await.expect_success();
        day.age_attempts().await;
        day.shown().await["is_closed"] == true
    })
    .await;
    let shown = day.shown().await;
    assert_eq!((&shown["day"], &shown["granted"], &shown["missed"]), (&today.into(), &50.into(), &0.into()));
    day.expect_everybody_once().await;
}
