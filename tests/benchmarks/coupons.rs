//! A coupon day: its cohort frozen, and its coupons granted, each in turn with a program written by hand.
//!
//! `freeze`: the dispatcher reads the day's table page by page and writes the cohort, up to the first message. By hand
//! it is one `INSERT … SELECT` of the same rows. `grants`: granters carry messages whose members are frozen; the coupon
//! system gives every coupon at once, the register and the source rows are in memory. Messages of one member wait in
//! the queue, so a granter carries a hundred of a part together. By hand as many connections insert the rows, commit,
//! call, and update rows and `is_sent` in a second transaction. It checks no cohort, source or gap, and has no token,
//! queue or recovery. `grants-single`: the product has `batch = false`, and sends a request over HTTP for each user of
//! a message of 100. By hand as many connections make two transactions and a request for each user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::mysql::cohort::MysqlCohort;
use anabranch_connectors::mysql::ledger::{MySqlLedger, setup};
use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::dispatching::Dispatcher;
use anabranch_coupons::granting::{Granter, MessagesCarried};
use anabranch_coupons::issuers::Issuers;
use anabranch_coupons::ports::{
    Answer, Clock, CohortRow, CohortRows, CouponSystem, DayReports, GiftPage, Ledger, Reconciled, Register,
    SourceRow, SourceRows, Uniques, WorkQueue,
};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{CouponKey, DayRun, MEMBERS_MAX, Member, Message, RunKey, Unique, part};
use anabranch_coupons::report::Report as DayReport;
use anabranch_demo::Endpoint;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};

use crate::contest::{Contest, Hand};
use crate::http::Client;
use crate::meter::{Measured, Meter, until_idle};
use crate::report::Report;
use crate::site::{Site, TARGET};
use crate::{Figure, Scale, Selection, single_calls};

const FREEZE_BAR: f64 = 0.70;
const GRANTS_BAR: f64 = 0.60;
/// Messages that are carried at once, and connections of the hand-written program.
const GRANTERS: usize = 8;
const FIRST: Unique = Unique(1);

/// The environment of a coupon day, partly in memory.
#[derive(Clone)]
struct Outside {
    cohort: MysqlCohort,
    register: Arc<Mutex<Unique>>,
    serial: Arc<Mutex<u128>>,
    today: MonthDay,
}

impl Register for Outside {
    async fn read(&self) -> Result<Unique, Fault> {
        Ok(*self.register.lock().expect("no task panics with it"))
    }

    async fn swap(&self, expected: Unique, token: Unique) -> Result<bool, Fault> {
        let mut register = self.register.lock().expect("no task panics with it");
        let is_expected = *register == expected;
        if is_expected {
            *register = token;
        }
        Ok(is_expected)
    }
}

impl Clock for Outside {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Uniques for Outside {
    fn fresh(&self) -> Unique {
        let mut serial = self.serial.lock().expect("no task panics with it");
        *serial += 1;
        Unique(*serial)
    }
}

impl SourceRows for Outside {
    async fn read_rows(&self, users: &[(u64, Vec<ShardId>)]) -> Result<Vec<Option<Vec<SourceRow>>>, Fault> {
        let solar = Some(self.today);
        let row = SourceRow { born: None, solar, lunar: None, calendar: Calendar::Solar, changed_at: None };
        Ok(vec![Some(vec![row]); users.len()])
    }
}

impl CohortRows for Outside {
    async fn barrier(&self) -> Result<bool, Fault> {
        Ok(true)
    }

    async fn page(&self, table: Birthday, after: Option<u64>, limit: usize) -> Result<Vec<CohortRow>, Fault> {
        self.cohort.page(table, after, limit).await
    }

    async fn follow(&self, tables: &[Birthday], granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        self.cohort.follow(tables, granted).await
    }

    async fn reconciled(&self) -> Result<Option<Reconciled>, Fault> {
        Ok(Some(Reconciled { id: "nightly".into(), ended_at: Timestamp::now(), unproven: BTreeSet::new() }))
    }

    async fn make_way(&self, _: Duration) {}
}

impl CouponSystem for Outside {
    type Connection = ();

    async fn connect(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn call(&self, (): &(), coupons: &[(CouponKey, Arc<str>)]) -> Result<Vec<Answer>, Fault> {
        Ok(vec![Answer::Given; coupons.len()])
    }

    fn pause(&self) -> Option<Duration> {
        None
    }

    async fn knows(&self, keys: &[CouponKey]) -> Result<Vec<bool>, Fault> {
        Ok(vec![false; keys.len()])
    }

    async fn statement(&self, _: Timestamp, _: u64) -> Result<Option<GiftPage>, Fault> {
        Ok(None)
    }
}

/// A queue that refuses the first message, so that a pass ends with the freeze.
struct NoQueue;

impl DayReports for NoQueue {
    async fn keep(&self, _: &RunKey, _: &DayRun, _: &DayReport) -> Result<(), Fault> {
        Ok(())
    }
}

impl WorkQueue for NoQueue {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        match messages.is_empty() {
            true => Ok(()),
            false => Err(Fault::new(Code::LogUnreachable, "work queue", "the cohort is frozen")),
        }
    }
}

/// State that both figures share.
struct Day<'s, 'g> {
    site: &'s Site<'g>,
    ledger: MySqlLedger,
    outside: Outside,
    day: Date,
    /// The day's table, quoted, and the prefix of the ledger's tables in `coupons`.
    table: String,
    coupons: String,
}

pub async fn measure(site: &Site<'_>, scale: &Scale, wanted: &Selection, report: &mut Report) {
    site.installation.command(&["setup"]).await.expect_success();
    let config = site.config();
    let target = MysqlTarget::new(&config, TARGET).expect("it is configured");
    setup(&target, FIRST).await.expect("the tables are made");
    let ledger = MySqlLedger::open(&target, GRANTERS).await.expect("they are there");
    let day = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let today = MonthDay::new(day.month() as u8, day.day() as u8).expect("a day");
    let cohort = MysqlCohort::new(&config, &[site.projection()], GRANTERS).expect("it is configured");
    let outside =
        Outside { cohort, register: Arc::new(Mutex::new(FIRST)), serial: Arc::new(Mutex::new(1)), today };
    let tables = config.projections.iter().find_map(|projection| match &projection.kind {
        anabranch_pipeline::config::ProjectionKind::Birthday(tables) => Some(tables),
        _ => None,
    });
    let tables = tables.expect("a birthday projection");
    let birthday = Birthday::Solar(today);
    let database = tables.databases_of(birthday).next().expect("one database");
    let table = format!("`{}`.`{}`", tables.database_name(database), tables.table_name(birthday));
    let control = &config.target(TARGET).expect("it is configured").control_database;
    let day = Day { site, ledger, outside, day, table, coupons: format!("`{control}_coupons`") };
    fill(&day, scale.coupon_users, today).await;
    if wanted.has(Figure::Freeze) {
        report.add(freeze(&day, scale).await.line());
    }
    if wanted.has(Figure::Grants) {
        for (figure, members) in [("grants, 100 a message", MEMBERS_MAX), ("grants, 1 a message", 1)] {
            let way = Way { figure, members, by_hand: members, http_port: None };
            report.add(grants(&day, scale, way).await.line());
        }
    }
    if wanted.has(Figure::GrantsSingle) {
        let http_port = Some(single_calls::listen().await);
        let way = Way { figure: "grants-single", members: MEMBERS_MAX, by_hand: 1, http_port };
        report.add(grants(&day, scale, way).await.line());
    }
}

/// Writes users 1, 2, 3 … with the birthday of today.
async fn fill(day: &Day<'_, '_>, users: u64, today: MonthDay) {
    let sql = format!(
        "INSERT INTO {} (`shard_id`, `user_id`, `birthday`, `is_sent`, `lsn`) \
         SELECT 1, `seq`, '{today}', 0, 0 FROM {}.seq_1_to_{users}",
        day.table, day.coupons
    );
    day.site.target(sql).await;
}

fn programme(name: &str) -> Programme {
    let text = format!(
        "name = '{name}'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\ncalendars = ['solar']\n"
    );
    let table = text.parse().expect("TOML");
    Programme::parse_all(&[table]).expect("a programme").remove(0)
}

async fn freeze(day: &Day<'_, '_>, scale: &Scale) -> Contest {
    let (mut products, mut hand) = (Vec::new(), Hand::new("INSERT … SELECT".to_owned()));
    for round in 0..scale.rounds {
        until_idle(&[day.site.pid(TARGET)]).await;
        products.push(frozen(day, &format!("freeze-{round}")).await);
        until_idle(&[day.site.pid(TARGET)]).await;
        let sql = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; INSERT INTO {}.coupon_member (`programme`, `day`, `user_id`, `calendar`, `shards`) \
             SELECT 'by-hand-{round}', '{}', `user_id`, 0, x'0000000000000001' FROM {} ORDER BY `user_id`",
            day.coupons, day.day, day.table
        );
        let meter = Meter::start(&[day.site.pid(TARGET)]);
        day.site.target(sql).await;
        hand.runs.push(meter.stop());
    }
    Contest {
        figure: "freeze",
        unit: "users",
        count: scale.coupon_users,
        servers: "target",
        bar: FREEZE_BAR,
        products,
        hands: vec![hand],
    }
}

/// Runs a pass until the cohort of a new programme is frozen.
async fn frozen(day: &Day<'_, '_>, name: &str) -> Measured {
    let dispatcher = Dispatcher {
        ledger: day.ledger.clone(),
        cohort: day.outside.clone(),
        queue: NoQueue,
        register: day.outside.clone(),
        process: day.outside.clone(),
        resends: Arc::default(),
    };
    let meter = Meter::start(&[day.site.pid(TARGET)]);
    let passed = dispatcher.pass(&programme(name), &NoQueue).await.expect("the servers answer");
    let fault = passed.fault.expect("the queue refuses");
    assert_eq!(fault.code(), Code::LogUnreachable, "{fault}");
    meter.stop()
}

/// A way to grant coupons.
#[derive(Debug, Clone, Copy)]
struct Way {
    figure: &'static str,
    /// Members of a message.
    members: usize,
    /// Users of two transactions by hand.
    by_hand: usize,
    /// Port of the coupon system that gets a request for each user; without one every call is answered in memory.
    http_port: Option<u16>,
}

async fn grants(day: &Day<'_, '_>, scale: &Scale, way: Way) -> Contest {
    let Way { figure, members, by_hand, http_port } = way;
    let count = if by_hand == 1 { scale.grants / 10 } else { scale.grants };
    let users: Vec<u64> = (1..=count.min(scale.coupon_users)).collect();
    let (mut products, mut hand) = (Vec::new(), Hand::new("two transactions a call".to_owned()));
    for round in 0..scale.rounds {
        let name = format!("grant-{members}-{by_hand}-{round}");
        frozen(day, &name).await;
        until_idle(&[day.site.pid(TARGET)]).await;
        products.push(match http_port {
            Some(port) => granted(day, &name, &users, members, single_calls::client(port)).await,
            None => granted(day, &name, &users, members, day.outside.clone()).await,
        });
        until_idle(&[day.site.pid(TARGET)]).await;
        let name = format!("hand-{members}-{by_hand}-{round}");
        hand.runs.push(granted_by_hand(day, &name, &users, by_hand, http_port).await);
    }
    let count = users.len() as u64;
    Contest { figure, unit: "grants", count, servers: "target", bar: GRANTS_BAR, products, hands: vec![hand] }
}

/// Splits users into messages or calls of up to `members`, those of each in one part.
fn batches(users: &[u64], members: usize) -> Vec<Vec<u64>> {
    let mut parts: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for user in users {
        parts.entry(part(*user)).or_default().push(*user);
    }
    parts.values().flat_map(|users| users.chunks(members)).map(<[u64]>::to_vec).collect()
}

async fn granted(
    day: &Day<'_, '_>,
    name: &str,
    users: &[u64],
    members: usize,
    coupons: impl CouponSystem,
) -> Measured {
    let run = RunKey { programme: Arc::from(name), day: day.day };
    let message = |users: Vec<u64>| Message {
        run: run.clone(),
        members: users.into_iter().map(|user| Member { user, calendar: Calendar::Solar }).collect(),
        wave: 1,
    };
    let messages: Vec<Message> = batches(users, members).into_iter().map(message).collect();
    let at_hand: Vec<&[Message]> =
        messages.chunk_by(is_of_one_part).flat_map(|of_part| of_part.chunks(MEMBERS_MAX / members)).collect();
    let granter = Granter {
        ledger: day.ledger.clone(),
        sources: day.outside.clone(),
        coupons,
        cohort: day.outside.clone(),
        register: day.outside.clone(),
        process: day.outside.clone(),
        breaker: Arc::new(Breaker::default()),
        issuers: Arc::new(Issuers::default()),
        key_memory: SignedDuration::from_hours(24),
    };
    let (next, given) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meter = Meter::start(&[day.site.pid(TARGET)]);
    let granters = (0..GRANTERS).map(async |_| {
        let mut before = MessagesCarried::default();
        while let Some(messages) = at_hand.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut ends = MessagesCarried::default();
            let (carried, ()) = tokio::join!(granter.carry(messages, &mut ends), granter.follow(&before));
            carried.expect("every server answers");
            before = ends;
            given.fetch_add(before.granted, Ordering::Relaxed);
        }
        granter.follow(&before).await;
    });
    futures::future::join_all(granters).await;
    let measured = meter.stop();
    assert_eq!(given.into_inner(), users.len(), "everybody got a coupon");
    let (_, page) = day.ledger.member_states(&run, None, 1).await.expect("it answers");
    assert!(page[0].row.is_some());
    measured
}

fn is_of_one_part(one: &Message, other: &Message) -> bool {
    part(one.members[0].user) == part(other.members[0].user)
}

async fn granted_by_hand(
    day: &Day<'_, '_>,
    name: &str,
    users: &[u64],
    members: usize,
    http_port: Option<u16>,
) -> Measured {
    let batches = batches(users, members);
    let endpoint = Endpoint::admin(day.site.installation.stack(), TARGET).expect("a server of the stack");
    let mut connections = Vec::new();
    for _ in 0..GRANTERS {
        let session = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        let connection = endpoint.connect(&[session]).await.expect("it answers");
        let client = match http_port {
            Some(port) => Some(Client::connect(port).await),
            None => None,
        };
        connections.push((connection, client));
    }
    let next = AtomicUsize::new(0);
    let meter = Meter::start(&[day.site.pid(TARGET)]);
    let workers = connections.iter_mut().map(async |(connection, client)| {
        while let Some(users) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let [reserve, settle] = statements(day, name, users);
            connection.execute("reserve by hand", reserve).await.expect("it takes them");
            // Without a client the call is answered at once.
            if let Some(client) = client {
                for user in users {
                    single_calls::ask(client, name, day.day.year(), *user).await;
                }
            }
            connection.execute("settle by hand", settle).await.expect("it takes them");
        }
    });
    futures::future::join_all(workers).await;
    meter.stop()
}

/// The statements of a call's two transactions.
fn statements(day: &Day<'_, '_>, name: &str, users: &[u64]) -> [String; 2] {
    let table = format!("{}.coupon_ledger_{:02}", day.coupons, part(users[0]));
    let (date, year) = (day.day, day.day.year());
    let row = |user: &u64| {
        format!(
            "({user},'{name}','solar:{year}','{date}','reserved',x'{user:032x}',UTC_TIMESTAMP(6),0,'cake',0)"
        )
    };
    let rows: Vec<String> = users.iter().map(row).collect();
    let list: Vec<String> = users.iter().map(u64::to_string).collect();
    let list = list.join(",");
    let insert = format!(
        "INSERT INTO {table} (`user_id`, `programme`, `occurrence`, `day`, `state`, `attempt`, `changed_at`, `tries`, \
         `coupon`, `by_hand`) VALUES {}",
        rows.join(",")
    );
    let settle = format!(
        "BEGIN; UPDATE {table} SET `state` = 'settled', `changed_at` = UTC_TIMESTAMP(6) WHERE `user_id` IN ({list}) \
         AND `programme` = '{name}' AND `occurrence` = 'solar:{year}'; \
         UPDATE {} SET `is_sent` = 1, `send_time` = UTC_TIMESTAMP(6), `sent_occurrence` = {year} \
         WHERE `user_id` IN ({list}); COMMIT",
        day.table
    );
    [insert, settle]
}
