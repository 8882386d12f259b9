//! The day's birthday tables and the source rows of their users, on real servers: pages, columns that follow, claims.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_connectors::mysql::cohort::MysqlCohort;
use anabranch_connectors::mysql::connection::async_options;
use anabranch_connectors::mysql::source_rows::MysqlSourceRows;
use anabranch_coupons::columns::{LastCoupon, SentColumns};
use anabranch_coupons::ports::{CohortRow, SourceRow, SourceRows};
use anabranch_pipeline::config::{Config, ServerUrl};
use anabranch_pipeline::error::Code;
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::sql;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::TestDatabase;
use jiff::civil::date;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::nats::{blocking, stall_beside, until};

/// Number of users with rows of two shards in one database.
const DOUBLED: u64 = 40;

/// Two targets, two sources, and tables of one solar and one lunar day.
struct Ground {
    stack: Arc<Stack>,
    layout: &'static str,
    databases: u32,
}

impl Ground {
    fn stack() -> Arc<Stack> {
        let server = |spec| TestDatabase::chosen().server(spec).without_fsync();
        let options = Options::empty()
            .with(server(ServerSpec::mariadb_source("source-a")))
            .with(server(ServerSpec::mariadb_source("source-b")))
            .with(server(ServerSpec::mariadb_target("target-a")))
            .with(server(ServerSpec::mariadb_target("target-b")));
        Arc::new(blocking(|| Stack::start(options).unwrap()))
    }

    /// A ground with empty tables of these birthdays.
    async fn with_tables(
        stack: &Arc<Stack>,
        (layout, databases): (&'static str, u32),
        tables: &[Birthday],
    ) -> Self {
        let ground = Self { stack: Arc::clone(stack), layout, databases };
        let mut statements = vec![String::new(); databases as usize];
        for table in tables {
            let definition = match table {
                Birthday::Solar(_) => sql::BIRTHDAY,
                Birthday::Lunar(_) => sql::LUNAR_BIRTHDAY,
            };
            let lines = definition.lines().filter(|line| !line.starts_with("--"));
            let definition = lines.collect::<Vec<_>>().join("\n");
            for place in ground.places(*table) {
                let (database, name) = (ground.database(place, *table), ground.table(place, *table));
                let made = definition.replace("{table}", &name);
                statements[place as usize] += &format!("CREATE DATABASE IF NOT EXISTS {database}; {made};");
            }
        }
        for (place, statements) in statements.iter().enumerate() {
            ground.sql(place as u32, statements).await;
        }
        ground
    }

    fn config(&self) -> Config {
        let mut text =
            "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n[[entities]]\nentity = \"user\"\n\
             tables = \"user_{db:02}.user_{table:03}\"\n\
             columns = { lunar_birthday = \"lunar_birthday\", birthday_type = \"birthday_type\" }\n\
             changed_at_column = \"changed_at\"\n"
                .to_owned();
        let ca_file = self.stack.ca_file();
        for name in ["source-a", "source-b", "target-a", "target-b"] {
            let kind = if name.starts_with("source") { "sources" } else { "targets" };
            let url = self.stack.server(name).unwrap().url();
            text += &format!(
                "[[{kind}]]\nname = \"{name}\"\nurl = \"{url}\"\nca_file = \"{}\"\n",
                ca_file.display()
            );
        }
        for calendar in ["solar", "lunar"] {
            text += &format!(
                "[[projections]]\nname = \"{calendar}\"\nkind = \"birthday\"\ncalendar = \"{calendar}\"\n\
                 targets = [\"target-a\", \"target-b\"]\nlayout = \"{0}\"\ndatabases = {1}\n\
                 database = \"birthday_{0}_{calendar}_{{db:02}}\"\ntable = \"birthday_{{mmdd}}\"\n",
                self.layout, self.databases
            );
        }
        Config::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    fn cohort(&self) -> MysqlCohort {
        MysqlCohort::new(&self.config(), &["solar", "lunar"], 2).unwrap()
    }

    /// Databases that have a table of the birthday.
    fn places(&self, table: Birthday) -> Vec<u32> {
        match self.layout {
            "by_day" => vec![table.ordinal() % self.databases],
            _ => (0..self.databases).collect(),
        }
    }

    fn place_of(&self, table: Birthday, user: u64) -> u32 {
        let places = self.places(table);
        places[(user % places.len() as u64) as usize]
    }

    fn database(&self, place: u32, table: Birthday) -> String {
        format!("birthday_{}_{}_{place:02}", self.layout, table.calendar())
    }

    fn table(&self, place: u32, table: Birthday) -> String {
        format!("{}.birthday_{}", self.database(place, table), table.compact())
    }

    async fn admin(&self, server: &str) -> Conn {
        let url = ServerUrl::try_from(self.stack.server(server).unwrap().admin_url()).unwrap();
        Conn::new(async_options(&url, Some(&self.stack.ca_file()))).await.unwrap()
    }

    /// Runs a statement on the server of a database.
    async fn sql(&self, place: u32, sql: &str) {
        let mut admin = self.admin(["target-a", "target-b"][place as usize % 2]).await;
        admin.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Inserts rows into a table: user, shard, and the birthday as stored.
    async fn insert(&self, table: Birthday, rows: &[(u64, u64, &str)]) {
        for place in self.places(table) {
            let of_place = rows.iter().filter(|(user, ..)| self.place_of(table, *user) == place);
            let of_lunar = if table.calendar() == Calendar::Lunar { ", 'lunar'" } else { "" };
            let values: Vec<String> = of_place
                .map(|(user, shard, birthday)| format!("({shard}, {user}, '{birthday}', 1{of_lunar})"))
                .collect();
            let columns = if of_lunar.is_empty() { "" } else { ", birthday_type" };
            let name = self.table(place, table);
            for values in values.chunks(5_000) {
                let values = values.join(",");
                let sql =
                    format!("INSERT INTO {name} (shard_id, user_id, birthday, lsn{columns}) VALUES {values}");
                self.sql(place, &sql).await;
            }
        }
    }

    async fn all_pages(&self, table: Birthday, limit: usize) -> Vec<Vec<CohortRow>> {
        let (cohort, mut pages, mut after) = (self.cohort(), Vec::new(), None);
        loop {
            let page = cohort.page(table, after, limit).await.unwrap();
            let Some(last) = page.last() else { return pages };
            assert!(after.is_none_or(|after| page[0].user > after), "a page goes on after the last one");
            after = Some(last.user);
            pages.push(page);
        }
    }
}

fn solar() -> Birthday {
    Birthday::Solar(MonthDay::new(2, 28).unwrap())
}

fn lunar() -> Birthday {
    Birthday::Lunar(LunarMonthDay::new(8, 30).unwrap())
}

/// All run on one stack, whose start takes longer than most of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_days_tables_and_the_source_rows_of_their_users_are_read() {
    let stack = Ground::stack();
    the_days_tables_are_read_by_pages_of_users_and_follow_the_ledger_in_both_layouts(&stack).await;
    source_rows_are_read_by_key_where_claims_name_their_tables(&stack).await;
    users_of_other_sources_are_read_while_a_source_does_not_answer(&stack).await;
    users_of_a_table_that_is_dropped_after_it_was_listed_are_read_from_the_others(&stack).await;
}

async fn the_days_tables_are_read_by_pages_of_users_and_follow_the_ledger_in_both_layouts(
    stack: &Arc<Stack>,
) {
    for (layout, databases) in [("by_day", 2), ("by_user", 5)] {
        let ground = Ground::with_tables(stack, (layout, databases), &[solar(), lunar()]).await;
        // Consecutive users of one database, some with several rows, one with more rows than a page has users, rows of
        // impossible shards, and rows with another birthday.
        let mut rows: Vec<(u64, u64, &str)> = (0..1_500).map(|user| (user * 3, 7, "02-28")).collect();
        rows.extend((5_000..5_300).map(|number| (number * 5, 7, "02-28")));
        rows.extend((0..DOUBLED).map(|user| (user * 3, 9, "02-28")));
        rows.extend((0..200).map(|shard| (9_999_999, shard, "02-28")));
        rows.extend((0..300).map(|number| (10_000_000 + number, u64::MAX - number, "02-28")));
        rows.extend([(u64::MAX, 7, "02-28"), (2, 7, "03-01"), (4, 7, "none")]);
        ground.insert(solar(), &rows).await;
        ground.insert(lunar(), &[(3, 7, "08-30"), (6, 8, "08-30"), (7, 8, "08-29")]).await;

        let is_shard = |shard: u64| ShardId::from_u64(shard).is_some();
        let mut expected: Vec<(u64, u64)> = rows
            .iter()
            .map(|(user, shard, _)| (*user, *shard))
            .filter(|(_, shard)| is_shard(*shard))
            .collect();
        expected.sort_unstable();
        for limit in [1_000, 100, 29] {
            let pages = ground.all_pages(solar(), limit).await;
            let found: Vec<(u64, u64)> =
                pages.iter().flatten().map(|row| (row.user, row.shard.as_u64())).collect();
            assert_eq!(found, expected, "{layout}, {limit} users a page");
            for page in &pages {
                let users: BTreeSet<u64> = page.iter().map(|row| row.user).collect();
                assert!(users.len() <= limit, "{} users on a page of {limit}", users.len());
            }
        }
        let rows = ground.all_pages(solar(), 1_000).await.concat();
        let misplaced = rows.iter().filter(|row| row.birthday != solar());
        assert_eq!(misplaced.map(|row| row.user).collect::<Vec<_>>(), [2, 4]);
        let rows = ground.all_pages(lunar(), 1_000).await.concat();
        let of_lunar: Vec<_> =
            rows.iter().map(|row| (row.user, row.birthday == lunar(), row.calendar)).collect();
        let by = Calendar::Lunar;
        assert_eq!(of_lunar, [(3, true, by), (6, true, by), (7, false, by)]);

        the_columns_follow(&ground).await;
        the_columns_are_mended_while_they_say_what_was_read(&ground).await;
    }
    let config = Ground { stack: Arc::clone(stack), layout: "by_day", databases: 2 }.config();
    let cohort = MysqlCohort::new(&config, &["solar"], 1).unwrap();
    assert_eq!(cohort.page(lunar(), None, 1).await.unwrap_err().code(), Code::ConfigInvalid);
    let missing = cohort.page(Birthday::Solar(MonthDay::new(1, 1).unwrap()), None, 1).await.unwrap_err();
    assert_eq!(missing.code(), Code::TargetTableMissing, "{missing}");
    for names in [["solar", "solar"], ["solar", "other"]] {
        assert_eq!(MysqlCohort::new(&config, &names, 1).unwrap_err().code(), Code::ConfigInvalid);
    }
}

/// The columns of users 0, 3 and 6 follow in the solar table, and those of user 3 in the lunar table.
async fn the_columns_follow(ground: &Ground) {
    let cohort = ground.cohort();
    let read = async |table: Birthday, user: u64| {
        let name = ground.table(ground.place_of(table, user), table);
        let server = ["target-a", "target-b"][ground.place_of(table, user) as usize % 2];
        let sql = format!(
            "SELECT is_sent, IFNULL(CAST(send_time AS CHAR), ''), IFNULL(sent_occurrence, 0) FROM {name} \
             WHERE user_id = {user} ORDER BY shard_id"
        );
        ground.admin(server).await.query::<(u8, String, i16), _>(sql).await.unwrap()
    };
    let occurrence = |text: &str| text.parse::<Occurrence>().unwrap();
    let tables = [solar(), lunar()];
    let granted = [
        (0, occurrence("solar:2027")),
        (6, occurrence("solar:2027")),
        (3, occurrence("lunar:2026")),
        (77, occurrence("solar:2027")),
    ];
    cohort.follow(&tables, &granted).await.unwrap();
    let first = read(solar(), 0).await;
    assert_eq!(first.len(), 2, "each row of the user");
    assert!(
        first.iter().all(|(is_sent, at, year)| (*is_sent, *year) == (1, 2027) && !at.is_empty()),
        "{first:?}"
    );
    assert_eq!(read(solar(), 3).await[0], (0, String::new(), 0), "a lunar coupon is of the lunar table");
    let lunar_row = read(lunar(), 3).await;
    assert_eq!((lunar_row[0].0, lunar_row[0].2), (1, 2026));
    // The same coupons change nothing, and another occurrence changes all columns.
    cohort.follow(&tables, &granted).await.unwrap();
    assert_eq!(read(solar(), 0).await, first);
    cohort.follow(&tables, &[(0, occurrence("solar:2028"))]).await.unwrap();
    let next = read(solar(), 0).await;
    assert!(
        next.iter().all(|(is_sent, at, year)| (*is_sent, *year) == (1, 2028) && *at > first[0].1),
        "{next:?}"
    );
    // The columns decide nothing: a row that shows a coupon is read as any other row.
    let rows = ground.all_pages(solar(), 1_000).await.concat();
    assert!([0, 6].iter().all(|user| rows.iter().any(|row| row.user == *user)), "rows are left out");
}

/// Users 0 and 6 have the columns of 2028 and 2027, and user 9 has none.
async fn the_columns_are_mended_while_they_say_what_was_read(ground: &Ground) {
    let tables = ground.cohort().columns_tables(solar()).unwrap();
    let mut rows = Vec::new();
    for table in &tables {
        let mut after = None;
        loop {
            let page = table.page(after, 700).await.unwrap();
            let Some(last) = page.last() else { break };
            assert!(page.is_sorted_by_key(|row| row.key), "rows are in the order of keys");
            after = Some(last.key);
            rows.extend(page.into_iter().map(|row| (table.clone(), row)));
        }
    }
    let keys: BTreeSet<_> = rows.iter().map(|(_, row)| row.key).collect();
    let all = 1_500 + 300 + DOUBLED as usize + 200 + 300 + 3;
    assert_eq!((rows.len(), keys.len()), (all, all), "every row once, those of shards that cannot be too");
    let of = |user: u64| rows.iter().filter(move |(_, row)| row.key.0 == user).cloned().collect::<Vec<_>>();
    assert_eq!(of(0).len(), 2);
    let sent = |occurrence| SentColumns { is_sent: true, has_time: true, occurrence: Some(occurrence) };
    assert!(of(0).iter().all(|(_, row)| row.columns == sent(2028)));
    let none = SentColumns { is_sent: false, has_time: false, occurrence: None };
    assert!(of(9).iter().all(|(_, row)| row.columns == none));

    let settled_at = "2027-02-28T00:00:01.5Z".parse().unwrap();
    let mend = async |user: u64, last: Option<LastCoupon>| {
        for (table, row) in of(user) {
            table.mend(&[(row, last)]).await.unwrap();
        }
    };
    let now = async |user: u64| {
        let (table, row) = of(user).remove(0);
        table.of(&[row.key]).await.unwrap()[0].columns
    };
    mend(9, Some(LastCoupon { year: 2027, settled_at })).await;
    assert_eq!(now(9).await, sent(2027));
    mend(6, None).await;
    assert_eq!(now(6).await, none);
    // A granter has written since the row was read: its columns stay.
    ground.cohort().follow(&[solar()], &[(0, "solar:2029".parse().unwrap())]).await.unwrap();
    mend(0, None).await;
    assert_eq!(now(0).await, sent(2029));
    mend(9, None).await;
    assert_eq!(now(9).await, sent(2027), "what was read before it was mended is not what it says now");
}

fn shard(table: u32) -> ShardId {
    ShardId::of("source-a", "user_00", &format!("user_{table:03}"), 0)
}

async fn source_rows_are_read_by_key_where_claims_name_their_tables(stack: &Arc<Stack>) {
    // All tables of both calendars are asked for claims.
    let all = Calendar::ALL.map(Birthday::all).concat();
    let ground = Ground::with_tables(stack, ("by_day", 2), &all).await;
    let mut source = ground.admin("source-a").await;
    source.query_drop("CREATE DATABASE user_00").await.unwrap();
    for (table, birthday) in [(0, "DATE"), (1, "DATETIME"), (2, "VARCHAR(20)")] {
        let sql = format!(
            "CREATE TABLE user_00.user_{table:03} (user_id BIGINT UNSIGNED PRIMARY KEY, birthday {birthday} NULL, \
             lunar_birthday CHAR(5), birthday_type VARCHAR(8), changed_at DATETIME NULL)"
        );
        source.query_drop(sql).await.unwrap();
    }
    source
        .query_drop(
            "INSERT INTO user_00.user_000 VALUES (1, '2000-02-28', NULL, NULL, NULL),
                 (2, '1999-02-28', '08-30', 'lunar', '2027-02-20 08:00:00');
             INSERT INTO user_00.user_001 VALUES (1, '2000-03-01 10:00:00', NULL, 'solar', NULL), (3, NULL, NULL, NULL, NULL);
             INSERT INTO user_00.user_002 VALUES (5, '2000-02-28', '13-01', 'other', NULL)",
        )
        .await
        .unwrap();
    // User 5 was renamed: the cohort names another shard than the tables now claim.
    ground.insert(solar(), &[(5, shard(2).as_u64(), "02-28"), (6, 4_711, "02-28")]).await;
    let rows = MysqlSourceRows::new(&ground.config(), ground.cohort());
    assert_eq!(rows.check().await.len(), 0);
    let gone = ShardId::of("source-a", "user_00", "user_gone", 0);
    let users = [
        (1, vec![shard(0), shard(1), shard(0)]),
        (2, vec![shard(0)]),
        (3, vec![shard(1)]),
        (4, vec![shard(0)]),
        (5, vec![shard(1), gone]),
        (6, vec![]),
    ];
    let found = rows.read_rows(&users).await.unwrap();
    let day = MonthDay::new(2, 28);
    let row =
        |born, solar| SourceRow { born, solar, lunar: None, calendar: Calendar::Solar, changed_at: None };
    assert_eq!(
        found[0],
        Some(vec![row(Some(date(2000, 2, 28)), day), row(Some(date(2000, 3, 1)), MonthDay::new(3, 1))]),
        "each of the tables, once"
    );
    let expected = SourceRow {
        lunar: LunarMonthDay::new(8, 30),
        calendar: Calendar::Lunar,
        changed_at: Some("2027-02-20T08:00:00Z".parse().unwrap()),
        ..row(Some(date(1999, 2, 28)), day)
    };
    assert_eq!(found[1], Some(vec![expected]));
    assert_eq!(found[2], Some(vec![row(None, None)]), "a row without a birthday is a row");
    assert_eq!(found[3], Some(vec![]));
    assert_eq!(found[4], Some(vec![row(Some(date(2000, 2, 28)), day)]), "found by its present claim");
    assert_eq!(found[5], Some(vec![]), "what nobody has is no fault");

    // An unreadable table concerns its users alone.
    source.query_drop("ALTER TABLE user_00.user_000 CHANGE changed_at other DATETIME").await.unwrap();
    let without = rows.check().await;
    assert!(
        without.len() == 1 && without[0].to_string().contains("it has no column changed_at"),
        "{without:?}"
    );
    assert_eq!(rows.read_rows(&users[..1]).await.unwrap(), [None]);
    source.query_drop("ALTER TABLE user_00.user_000 CHANGE other changed_at DATETIME").await.unwrap();
    source.query_drop("ALTER TABLE user_00.user_001 DROP PRIMARY KEY").await.unwrap();
    let found = rows.read_rows(&users[..3]).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    blocking(|| stack.server("source-a").unwrap().kill().unwrap());
    assert_eq!(rows.read_rows(&users[1..2]).await.unwrap(), [None]);
    blocking(|| stack.server("source-a").unwrap().restart().unwrap());
    let rows = MysqlSourceRows::new(&ground.config(), ground.cohort());
    assert!(rows.read_rows(&users[1..2]).await.unwrap()[0].is_some());
}

async fn users_of_other_sources_are_read_while_a_source_does_not_answer(stack: &Arc<Stack>) {
    let ground = Ground { stack: Arc::clone(stack), layout: "by_day", databases: 2 };
    let of_other = ShardId::of("source-b", "user_01", "user_000", 0);
    let table = "CREATE TABLE user_01.user_000 (user_id BIGINT UNSIGNED PRIMARY KEY, birthday DATE NULL, \
                 lunar_birthday CHAR(5), birthday_type VARCHAR(8), changed_at DATETIME NULL)";
    let row = "INSERT INTO user_01.user_000 VALUES (9, '2000-02-28', NULL, NULL, NULL)";
    let mut admin = ground.admin("source-b").await;
    admin.query_drop(format!("CREATE DATABASE user_01; {table}; {row}")).await.unwrap();
    drop(admin);
    let users = [(2, vec![shard(0)]), (9, vec![of_other])];
    let other = stack.server("source-b").unwrap();
    // The server takes connections, and answers nothing.
    blocking(|| other.pause().unwrap());
    let rows = MysqlSourceRows::new(&ground.config(), ground.cohort());
    let read = async |users: &[(u64, Vec<ShardId>)]| {
        let began = Instant::now();
        let (found, stall) = stall_beside(rows.read_rows(users)).await;
        let are_read: Vec<bool> = found.unwrap().iter().map(Option::is_some).collect();
        (are_read, began.elapsed().saturating_sub(stall) < Duration::from_secs(5))
    };
    assert_eq!(read(&users[..1]).await, (vec![true], true), "nobody waits for a source without the table");
    assert_eq!(read(&users).await, (vec![true, false], false), "the first read waits for the connection");
    assert_eq!(read(&users).await, (vec![true, false], true), "the next one does not");
    blocking(|| other.resume().unwrap());
    until("the source is listed", async || read(&users).await.0 == [true, true]).await;

    // A source whose tables are known ends, and comes back.
    let silent = Instant::now();
    blocking(|| other.kill().unwrap());
    for _ in 0..2 {
        assert_eq!(read(&users).await, (vec![true, false], true));
    }
    blocking(|| other.restart().unwrap());
    let at_once = read(&users).await.0;
    // A slow machine may need longer for the restart than a source is left alone.
    assert!(at_once == [true, false] || silent.elapsed() > Duration::from_secs(29), "{at_once:?}");
    until("a later read asks again", async || read(&users).await.0 == [true, true]).await;
}

async fn users_of_a_table_that_is_dropped_after_it_was_listed_are_read_from_the_others(stack: &Arc<Stack>) {
    let ground = Ground { stack: Arc::clone(stack), layout: "by_day", databases: 2 };
    let rows = MysqlSourceRows::new(&ground.config(), ground.cohort());
    let users = [(1, vec![shard(0), shard(2)]), (5, vec![shard(2)])];
    let read = async || {
        let found = rows.read_rows(&users).await.unwrap();
        found.into_iter().map(|rows| rows.map(|rows| rows.len())).collect::<Vec<_>>()
    };
    assert_eq!(read().await, [Some(1), Some(1)]);
    ground.admin("source-a").await.query_drop("DROP TABLE user_00.user_002").await.unwrap();
    assert_eq!(read().await, [None, None], "nobody has listed the tables since");
    assert_eq!(read().await, [Some(1), Some(0)], "a birthday table still claims the dropped one for user 5");
}
