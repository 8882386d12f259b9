//! All tables of payment documents at once: ten databases with ten user partitions each, twelve months and none,
//! composites and atoms, on two main servers and once more on a fail-over server. Unit tests count their names; here
//! each table is real, has a document, and is loaded, captured, audited and reconciled.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use anabranch_schemas::flux::id::NO_MONTH;
use anabranch_stack::ServerSpec;
use anabranch_tests::{Daemon, Ground, Installation, Plan, until};
use futures::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use crate::reconciliations::{reconcile, store};

/// Two main servers, the fail-over server as the last source, a target and NATS.
static WIDE: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_source("source-f"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
    ]
});

/// Each source with its databases and the digit of its side.
const SOURCES: [(&str, Range<u8>, u8); 3] =
    [("source-a", 0..5, 0), ("source-b", 5..10, 0), ("source-f", 0..10, 1)];
/// Databases, user partitions in each, months with the table of documents without one, levels.
const TABLES_OF_A_SIDE: usize = 10 * 10 * 13 * 2;
const STATEMENTS_A_PACKET: usize = 300;
/// Longest wait for documents of thousands of tables, on a busy machine with a debug build.
const INDEXED_MAX: Duration = Duration::from_secs(900);
/// Longest time of `check`, which reads the definitions of all tables.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Series that thousands of further changes may add: a series a table would be more.
const FURTHER_SERIES_MAX: usize = 500;

/// One table of a side.
#[derive(Debug, Clone, Copy)]
struct Table {
    side: u8,
    /// 0 = composites, 1 = atoms.
    level: u8,
    partition: u8,
    month: u8,
}

/// The digits of an identifier that the test chooses.
#[derive(Debug, Clone, Copy)]
struct Digits {
    region: u8,
    level: u8,
    business: u8,
    side: u8,
    month: u8,
    partition: u8,
    sequence: u32,
}

/// A document in one table of a source.
#[derive(Debug, Clone)]
struct Document {
    source: &'static str,
    /// `database.table`
    table: String,
    id: String,
    parent: Option<String>,
}

/// Source, table of `flux_00_0`, identifier, parent and reasons of a document that is not where it should be.
type Misplaced<'p> = (&'static str, &'static str, Digits, Option<&'p str>, &'static [&'static str]);

/// The recharge of June and the user partition 05 in Singapore's main databases.
const RECHARGE: Digits =
    Digits { region: 1, level: 0, business: 1, side: 0, month: 5, partition: 5, sequence: 1 };

impl Digits {
    fn id(self) -> String {
        let Self { region, level, business, side, month, partition, sequence } = self;
        // A document without a month may be of any day.
        let of_year = if month == NO_MONTH { 7 } else { month + 1 };
        format!(
            "2016{of_year:02}061{region}031{level}{business:02}{side}{month:02}{partition:02}00{sequence:08}"
        )
    }
}

impl Table {
    fn name(self) -> String {
        let Self { level, partition, month, .. } = self;
        let level = if level == 0 { "composite" } else { "atom" };
        format!("flux_00_{}.{level}_{partition:02}_{month:02}", partition / 10)
    }

    /// A recharge or its atom; in tables without a month the refund of January's recharge or its atom.
    fn document(self, source: &'static str) -> Document {
        let Self { side, level, partition, month } = self;
        let recharge = Digits { side, month, partition, ..RECHARGE };
        let of_january = Digits { month: 0, ..recharge };
        let refund = Digits { business: 3, ..recharge };
        let (id, parent) = match (level, month) {
            (0, NO_MONTH) => (refund, Some(of_january)),
            (0, _) => (recharge, None),
            (_, NO_MONTH) => (Digits { level, ..refund }, Some(refund)),
            _ => (Digits { level, ..recharge }, Some(recharge)),
        };
        Document { source, table: self.name(), id: id.id(), parent: parent.map(Digits::id) }
    }
}

impl Document {
    fn insert(&self) -> String {
        let parent = self.parent.as_ref().map_or_else(|| "NULL".to_owned(), |parent| format!("'{parent}'"));
        format!(
            "INSERT INTO {} (id, parent_id, amount, created) \
             VALUES ('{}', {parent}, 12.5, '2016-06-06 23:59:59.25')",
            self.table, self.id
        )
    }
}

/// All tables of a source; the first one is among those that an installation makes.
fn tables_of(databases: Range<u8>, side: u8) -> Vec<Table> {
    let partitions = databases.start * 10..databases.end * 10;
    let of_level = |partition: u8| [0, 1].map(|level| (partition, level));
    let of_month = |(partition, level): (u8, u8)| {
        let months = (0..12).chain([NO_MONTH]);
        months.map(move |month| Table { side, level, partition, month })
    };
    partitions.flat_map(of_level).flat_map(of_month).collect()
}

/// One document for each reason of the audit, with its reasons. A business code has one kind at each level, so no row
/// has the reason `parent_level`.
fn misplaced() -> Vec<(Document, &'static [&'static str])> {
    let (recharge, refund) = (RECHARGE.id(), Digits { business: 3, month: NO_MONTH, ..RECHARGE }.id());
    let abroad = Digits { region: 0, ..RECHARGE }.id();
    let (recharge, refund) = (Some(recharge.as_str()), Some(refund.as_str()));
    let (capture, atom) = (Digits { business: 2, ..RECHARGE }, Digits { level: 1, ..RECHARGE });
    let june = "composite_05_05";
    let documents: [Misplaced<'_>; 13] = [
        ("source-a", june, Digits { partition: 31, ..RECHARGE }, None, &["database", "table_partition"]),
        ("source-a", june, Digits { partition: 6, ..RECHARGE }, None, &["table_partition"]),
        ("source-a", "composite_05_07", RECHARGE, None, &["table_month"]),
        ("source-a", june, atom, recharge, &["table_level"]),
        ("source-a", june, Digits { region: 0, ..RECHARGE }, None, &["source_region"]),
        ("source-a", june, Digits { side: 1, ..RECHARGE }, None, &["source_side"]),
        ("source-a", june, capture, Some(abroad.as_str()), &["parent_region"]),
        ("source-f", june, Digits { side: 1, ..capture }, recharge, &["parent_failed_over_by_itself"]),
        ("source-f", "atom_05_05", Digits { side: 1, ..atom }, recharge, &["parent_side"]),
        ("source-a", "atom_06_05", Digits { partition: 6, ..atom }, recharge, &["parent_partition"]),
        ("source-a", "atom_05_06", Digits { month: 6, ..atom }, recharge, &["parent_month"]),
        ("source-a", june, capture, refund, &["parent_unfit"]),
        ("source-a", june, capture, Some("none"), &["flux_parent_malformed"]),
    ];
    let numbered = (100..).zip(documents);
    let document = |(sequence, (source, table, digits, parent, reasons)): (u32, Misplaced<'_>)| {
        let (table, id) = (format!("flux_00_0.{table}"), Digits { sequence, ..digits }.id());
        (Document { source, table, id, parent: parent.map(str::to_owned) }, reasons)
    };
    numbered.map(document).collect()
}

/// Runs the statements on a source, hundreds in a packet.
async fn execute(installation: &Installation<'_>, source: &str, statements: &[String]) {
    let mut connection = installation.admin(source).await;
    for packet in statements.chunks(STATEMENTS_A_PACKET) {
        connection.execute("run a packet of statements", packet.join(";\n")).await.unwrap();
    }
}

/// Makes the tables of a source as copies of the first one.
async fn create_tables(installation: &Installation<'_>, source: &str, tables: Vec<Table>) {
    let model = tables[0].name();
    let copy = |table: &Table| format!("CREATE TABLE IF NOT EXISTS {} LIKE {model}", table.name());
    let statements: Vec<String> = tables[1..].iter().map(copy).collect();
    execute(installation, source, &statements).await;
}

/// An installation with every table; the plan of payments makes a few of them in each database.
async fn installation() -> Installation<'static> {
    let installation = Installation::prepare(WIDE.turn().await, &Plan::payments()).await;
    let began = Instant::now();
    let of_source =
        |(source, databases, side)| create_tables(&installation, source, tables_of(databases, side));
    join_all(SOURCES.map(of_source)).await;
    println!("the tables were made in {:?}", began.elapsed());
    installation.command(&["setup"]).await.expect_success();
    installation
}

/// Inserts the documents on all sources at once.
async fn insert(installation: &Installation<'_>, documents: &[Document]) {
    join_all(SOURCES.map(|(source, ..)| insert_on(installation, source, documents))).await;
}

async fn insert_on(installation: &Installation<'_>, source: &str, documents: &[Document]) {
    let own = documents.iter().filter(|document| document.source == source);
    let statements: Vec<String> = own.map(Document::insert).collect();
    execute(installation, source, &statements).await;
}

/// Waits until the index has these documents and no others.
async fn until_indexed(installation: &Installation<'_>, documents: &[Document]) {
    let expected: BTreeSet<&str> = documents.iter().map(|document| document.id.as_str()).collect();
    let select = |partition: u32| format!("SELECT id FROM flux_relations.flux_relation_{partition:02}");
    let sql = (0..100).map(select).collect::<Vec<_>>().join(" UNION ALL ");
    let (began, mut target) = (Instant::now(), installation.admin("target").await);
    loop {
        let found: Vec<String> = target.rows("list the index", &sql).await.unwrap();
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        if found == expected {
            println!("{} documents are in the index after {:?}", found.len(), began.elapsed());
            return;
        }
        let missing = expected.difference(&found).next();
        let (number, all) = (found.len(), expected.len());
        assert!(began.elapsed() < INDEXED_MAX, "{number} of {all} are in the index; not so {missing:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The series of a scrape, without their values.
async fn series(daemon: &Daemon) -> BTreeSet<String> {
    let scrape = daemon.metrics().await;
    let samples = scrape.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

/// Counts of each text among others.
fn counts<'t>(texts: impl Iterator<Item = &'t str>) -> BTreeMap<&'t str, u64> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn all_5200_tables_of_both_sides_are_loaded_captured_audited_and_reconciled() {
    let installation = installation().await;
    let names = SOURCES.map(|(source, ..)| source);
    let of_source = |(source, databases, side): (&'static str, Range<u8>, u8)| {
        tables_of(databases, side).into_iter().map(move |table| (table.level, table.document(source)))
    };
    let all: Vec<(u8, Document)> = SOURCES.into_iter().flat_map(of_source).collect();
    assert_eq!(all.len(), 2 * TABLES_OF_A_SIDE);
    let of_level = |wanted: u8| -> Vec<Document> {
        all.iter().filter(|(level, _)| *level == wanted).map(|(_, document)| document.clone()).collect()
    };
    let (mut documents, atoms, misplaced) = (of_level(0), of_level(1), misplaced());

    // Composites are there before the first start, and atoms come as changes.
    insert(&installation, &documents).await;
    let began = Instant::now();
    installation.command(&["check"]).await.expect_success();
    println!("check took {:?}", began.elapsed());
    assert!(began.elapsed() < CHECK_MAX, "check took {:?}", began.elapsed());
    let daemon = installation.run();
    daemon.until_ready().await;
    until_indexed(&installation, &documents).await;
    daemon.until_loaded(&names).await;

    let before = series(&daemon).await;
    let changes: Vec<Document> =
        atoms.into_iter().chain(misplaced.iter().map(|(document, _)| document.clone())).collect();
    insert(&installation, &changes).await;
    documents.extend(changes);
    until_indexed(&installation, &documents).await;
    counted(&daemon, &misplaced).await;
    let after = series(&daemon).await;
    println!("{} series, then {}", before.len(), after.len());
    assert!(!before.is_empty() && after.len() < before.len() + FURTHER_SERIES_MAX, "{}", after.len());
    let of_a_table = after.iter().find(|series| series.contains("flux_00_"));
    assert_eq!(of_a_table, None, "no series is of one table");
    reconciled(&installation, documents.len(), &misplaced).await;
    daemon.until_ready().await;
}

/// The daemon counts each misplaced document as it comes, by its reasons.
async fn counted(daemon: &Daemon, misplaced: &[(Document, &'static [&'static str])]) {
    for (reason, count) in counts(misplaced.iter().flat_map(|(_, reasons)| reasons.iter().copied())) {
        let label = format!("reason=\"{reason}\"");
        until(&format!("{reason} is counted {count} times"), async || {
            daemon.metric("anabranch_row_defects_total", &[&label]).await == count as f64
        })
        .await;
    }
}

/// A reconciliation reads every table, is clean, and names the misplaced documents and no others.
async fn reconciled(
    installation: &Installation<'_>,
    documents: usize,
    misplaced: &[(Document, &'static [&'static str])],
) {
    let began = Instant::now();
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    println!("the reconciliation took {:?}", began.elapsed());
    let store = store(&report, "relations");
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{store}");
    let read = (&store["tables"], &store["rows_source"], &store["foreign_rows"]);
    assert_eq!(read, (&json!(2 * TABLES_OF_A_SIDE), &json!(documents), &json!(0)), "{store}");

    let placement = &store["placement"];
    let odd = placement["odd"].as_array().unwrap().iter();
    let odd: BTreeSet<(Option<&str>, Option<&str>)> =
        odd.map(|odd| (odd["table"].as_str(), odd["id"].as_str())).collect();
    let expected = misplaced.iter().map(|(document, _)| (Some(&*document.table), Some(&*document.id)));
    let expected: BTreeSet<(Option<&str>, Option<&str>)> = expected.collect();
    assert_eq!(odd, expected, "{placement}");
    let tables = counts(misplaced.iter().map(|(document, _)| document.table.as_str()));
    let reasons = counts(misplaced.iter().flat_map(|(_, reasons)| reasons.iter().copied()));
    let found = (&placement["misplaced"], &placement["odd_documents"]);
    assert_eq!(found, (&json!(tables), &json!(reasons)), "{placement}");
    let audited = (&placement["rows"], &placement["undecided"], &placement["share_of_keys"]);
    assert_eq!(audited, (&json!(documents), &json!(0), &json!(1.0)), "{placement}");
    let left_out = (&placement["doubles"], &placement["not_audited"]);
    assert_eq!(left_out, (&json!([]), &json!([])), "{placement}");
}
