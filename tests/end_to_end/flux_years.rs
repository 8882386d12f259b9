//! Payment documents of both strategies in one capture, through the binary: tables by month and tables by year on one
//! source, the relation index above them, documents in tables of another year and strategy, and year digits that come
//! round.

use anabranch_schemas::sql::flux_table;
use anabranch_tests::{Daemon, Finished, Installation, Plan, until, until_some};
use serde_json::{Value as Json, json};

use crate::reconciliations::{reconcile, store};
use crate::relations::{TOKEN, found, places, with_sites};
use crate::retired::{assert_refused, insert, retired, shown, until_rows};
use crate::{STANDARD, payments};

/// Tables of the database of the user partitions 00 to 09: five of them are by year.
const TABLES: [&str; 8] = [
    "composite_05_00",
    "composite_05_11",
    "atom_05_11",
    "composite_05_6_11",
    "composite_05_7_00",
    "atom_05_7_00",
    "composite_05_8_00",
    "composite_05_8_99",
];
/// Both strategies, with tables that stand in the index after they left.
const SECTIONS: &str = r#"
[flux]
kinds = { "01" = ["recharge", "recharge-clearing"], "02" = "capture", "03" = ["refund", "refund-clearing"] }
[flux.years]
cut_over = "2027-01-01"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
removal = "retain"
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
removal = "retain"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{year}_{month:02}"
removal = "retain"
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{year}_{month:02}"
removal = "retain"
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
lanes = 2
"#;
/// The options of commands that read no configuration, as `[flux.years]` has it.
const SINCE_2027: [&str; 2] = ["--cut-over", "2027-01-01"];

/// A recharge of the last December before the cut-over, and its clearing.
const OLD_RECHARGE: &str = "2026123011031001011052400000001";
const OLD_CLEARING: &str = "2026123011031101011052400000002";
/// Its capture after the cut-over, in the year of the recharge's month.
const CAPTURE: &str = "2027010211031002011056000000003";
const RECHARGE: &str = "2027010511031001000057000000004";
const CLEARING: &str = "2027010511031101000057000000005";
/// A refund of the old recharge, in the year of its own date.
const REFUND: &str = "2028021011031003099058000000006";
/// A recharge of 2027 in the table of 2028, and one in January's table by month.
const OF_ANOTHER_YEAR: &str = "2027010611031001000057000000007";
const OF_ANOTHER_STRATEGY: &str = "2027010711031001000057000000008";
const TEN_YEARS_LATER: &str = "2037010511031001000057000000009";

/// Identifier, kind, parent, year digit and table of a document.
type DocumentPlace = (&'static str, &'static str, Option<&'static str>, Option<u8>, &'static str);

/// The documents that lie where their identifiers say.
const DOCUMENTS: [DocumentPlace; 6] = [
    (OLD_RECHARGE, "recharge", None, None, "composite_05_11"),
    (OLD_CLEARING, "recharge-clearing", Some(OLD_RECHARGE), None, "atom_05_11"),
    (CAPTURE, "capture", Some(OLD_RECHARGE), Some(6), "composite_05_6_11"),
    (RECHARGE, "recharge", None, Some(7), "composite_05_7_00"),
    (CLEARING, "recharge-clearing", Some(RECHARGE), Some(7), "atom_05_7_00"),
    (REFUND, "refund", Some(OLD_RECHARGE), Some(8), "composite_05_8_99"),
];

/// Databases of the user partitions 50 to 99, which are added later, on both sides.
const ADDED: std::ops::RangeInclusive<u8> = 5..=9;

/// A recharge of 2018, its refunds of the same year, and a recharge that comes after them.
const PAST_RECHARGE: &str = "2018010511031001000058000000013";
const PAST_REFUNDS: [&str; 2] = ["2018021011031003099058000000014", "2018121011031003099058000000015"];
const NEXT_RECHARGE: &str = "2018010611031001000058000000016";

/// An installation with the tables of payment documents of both strategies beside the users.
async fn installation() -> Installation<'static> {
    installation_since("2027-01-01").await
}

async fn installation_since(cut_over: &str) -> Installation<'static> {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    payments::create_tables(&installation, &TABLES).await;
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    let sections = SECTIONS.replace("2027-01-01", cut_over);
    payments::set_up(&mut installation, &(with_sites(text) + &sections)).await;
    installation
}

#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_are_captured_at_once_and_a_years_table_is_empty_before_it_comes_round() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    for (id, _, parent, _, table) in DOCUMENTS {
        insert(&installation, table, id, parent).await;
    }
    until_rows(&installation, 6).await;
    over_http(&daemon).await;
    by_command(&installation).await;
    elsewhere(&installation, &daemon).await;
    refused_until_empty(&installation).await;
    used_again(&installation).await;
    daemon.until_ready().await;
}

fn assert_strategy(view: &Json, year: Option<u8>) {
    let strategy = if year.is_some() { "year" } else { "month" };
    assert_eq!((&view["strategy"], &view["year"]), (&json!(strategy), &json!(year)), "{view}");
}

/// The old recharge leads to documents of both strategies, and each is shown with its own.
async fn over_http(daemon: &Daemon) {
    let below = found(daemon, &format!("{OLD_RECHARGE}/relations")).await;
    let expected = [OLD_CLEARING, CAPTURE, REFUND].map(|id| (1_u64, id.to_owned()));
    assert_eq!(places(&below), expected);
    for (id, kind, parent, year, table) in DOCUMENTS {
        let answer = until_some("the table is named", async || {
            let answer = found(daemon, id).await;
            answer["claims"][0]["table"].is_string().then_some(answer)
        })
        .await;
        assert_strategy(&answer, year);
        assert_eq!(
            (&answer["kind"], &answer["claims"][0]["table"], &answer["odd"]),
            (&json!(kind), &json!(table), &json!([])),
            "{answer}"
        );
        assert_eq!(answer["above"][0]["id"], json!(parent), "{answer}");
    }
}

/// `explain` and `place` compute what the source has, and `show` names it.
async fn by_command(installation: &Installation<'_>) {
    for (id, kind, parent, year, table) in DOCUMENTS {
        let below = parent.map_or(["--partition", "5"], |parent| ["--parent", parent]);
        let date = format!("{}-{}-{}", &id[..4], &id[4..6], &id[6..8]);
        let new = ["flux", "place", kind, "--date", &date, "--json"];
        let new = [&new[..], &SINCE_2027[..], &below[..]].concat();
        let explain = ["flux", "explain", id, "--kind", kind, "--json"];
        let mut explain = [&explain[..], &SINCE_2027[..]].concat();
        if parent.is_some() {
            explain.extend(below);
        }
        for words in [new, explain] {
            let view = installation.command(&words).await.expect_success().json();
            assert_strategy(&view, year);
            let names = (&view["database"], &view["table"]);
            assert_eq!(names, (&json!("flux_00_0"), &json!(table)), "{words:?}: {view}");
        }
        let text = installation.command(&["flux", "show", id]).await.expect_success().stdout;
        let strategy = match year {
            Some(year) => format!("strategy    by year, whose last digit is {year}\n"),
            None => "strategy    by month\n".to_owned(),
        };
        let table = format!("table       flux_00_0.{table} of source-a\n");
        assert!(text.contains(&strategy) && text.contains(&table), "{text}");
    }
}

/// Documents in tables of another year and of the other strategy are in the index, counted, and listed by a
/// reconciliation.
async fn elsewhere(installation: &Installation<'_>, daemon: &Daemon) {
    let of_year = "digit 22 (year, one of the reserved digits) is 7; expected by its table: 8";
    let of_strategy = "it is placed by year 7; expected by its table: by month";
    let odd = [
        (OF_ANOTHER_STRATEGY, "composite_05_00", "table_strategy", of_strategy),
        (OF_ANOTHER_YEAR, "composite_05_8_00", "table_year", of_year),
    ];
    for (id, table, _, _) in odd {
        insert(installation, table, id, None).await;
    }
    until_rows(installation, 8).await;
    for (id, table, reason, text) in odd {
        // One lane counts for all, and need not be the one that writes the row.
        let label = format!("reason=\"{reason}\"");
        until(&format!("{reason} is counted once"), async || {
            daemon.metric("anabranch_row_defects_total", &[&label]).await == 1.0
        })
        .await;
        let shown = installation.command(&["flux", "show", id, "--json"]).await.expect_success().json();
        assert_strategy(&shown, Some(7));
        let claim = &shown["claims"][0];
        assert_eq!((&claim["table"], &shown["odd"]), (&json!(table), &json!([text])), "{shown}");
    }
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let placement = &store(&report, "relations")["placement"];
    let listed = odd
        .map(|(id, table, _, text)| json!({ "table": format!("flux_00_0.{table}"), "id": id, "what": text }));
    assert_eq!(placement["odd"], json!(listed), "{placement}");
    let counted = json!({ "table_strategy": 1, "table_year": 1 });
    let tables = json!({ "flux_00_0.composite_05_00": 1, "flux_00_0.composite_05_8_00": 1 });
    assert_eq!((&placement["odd_documents"], &placement["misplaced"]), (&counted, &tables), "{placement}");
    assert_eq!((&placement["rows"], &placement["not_audited"]), (&json!(8), &json!([])), "{placement}");
}

async fn round(installation: &Installation<'_>, today: &str) -> Finished {
    installation.command(&["flux", "retention", "round", "--today", today]).await
}

/// Expects that no table with rows comes round in the month after this day.
async fn assert_none_comes_round(installation: &Installation<'_>, today: &str, tables: usize) {
    let text = round(installation, today).await.expect_success().stdout;
    let whose = "those whose number comes round within 1 months are empty";
    assert_eq!(text, format!("{today}: of {tables} tables by year, {whose}\n"));
}

/// A table with rows is refused from the month before its digit comes round on, and accepted once it is empty or gone.
async fn refused_until_empty(installation: &Installation<'_>) {
    // The least key of this table is of 2027, so it does not say which year with the digit 8 its rows are of. Five of
    // the ten tables are of the second source.
    let of_any_year = round(installation, "2028-05-01").await;
    let table = "table flux_00_0.composite_05_8_00 of source source-a";
    assert_refused(&of_any_year, &[table, "it has rows, and its least key is no identifier of its months"]);
    installation.execute("source-a", "DELETE FROM flux_00_0.composite_05_8_00").await;
    until_rows(installation, 7).await;
    assert_none_comes_round(installation, "2028-05-01", 10).await;
    assert_none_comes_round(installation, "2036-10-31", 10).await;

    let late = round(installation, "2036-12-15").await;
    let (of_6, of_7) = ("it has documents of 2026-12's table", "it has documents of 2027-01's table");
    assert_refused(
        &late,
        &[
            &format!("composite_05_6_11 of source source-a: {of_6}, and its number came round in 2036-12"),
            &format!("composite_05_7_00 of source source-a: {of_7}, and its number comes round in 2037-01"),
            &format!("atom_05_7_00 of source source-a: {of_7}, and its number comes round in 2037-01"),
        ],
    );
    assert!(!late.stderr.contains("composite_05_8"), "one comes round later, and one is empty: {late:?}");
    let plan = ["flux", "retention", "plan", "--today", "2036-12-15"];
    let plan = installation.command(&plan).await.expect_success().stdout;
    let by_year = "by year     10 tables; 3 of them have rows and come round within 12 months\n";
    assert!(plan.contains(by_year), "{plan}");

    let emptied = "DROP TABLE flux_00_0.composite_05_6_11; TRUNCATE TABLE flux_00_0.composite_05_7_00; \
                   TRUNCATE TABLE flux_00_0.atom_05_7_00";
    installation.execute("source-a", emptied).await;
    assert_none_comes_round(installation, "2036-12-15", 9).await;
}

/// A table that has come round takes documents of the tenth year after, and those of before are found beside them.
async fn used_again(installation: &Installation<'_>) {
    insert(installation, "composite_05_7_00", TEN_YEARS_LATER, None).await;
    until_rows(installation, 8).await;
    for (id, year, table) in [
        (CAPTURE, 6, "composite_05_6_11"),
        (RECHARGE, 7, "composite_05_7_00"),
        (TEN_YEARS_LATER, 7, "composite_05_7_00"),
    ] {
        let shown = installation.command(&["flux", "show", id, "--json"]).await.expect_success().json();
        assert_strategy(&shown, Some(year));
        let claim = &shown["claims"][0];
        assert_eq!((&claim["table"], &shown["odd"]), (&json!(table), &json!([])), "{shown}");
    }
    assert_eq!(retired(installation).await, (json!(3), json!(3)));
    assert_none_comes_round(installation, "2037-02-01", 9).await;
}

/// A year's table of refunds has no month: it is due sixteen months after its December. Its refunds outlive it, and
/// stand beside those of the next table of that name.
#[tokio::test(flavor = "multi_thread")]
async fn a_years_table_of_refunds_leaves_after_its_december_and_its_refunds_are_found_as_before() {
    let installation = installation_since("2017-01-01").await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "composite_05_8_00", PAST_RECHARGE, None).await;
    for refund in PAST_REFUNDS {
        insert(&installation, "composite_05_8_99", refund, Some(PAST_RECHARGE)).await;
    }
    until_rows(&installation, 3).await;
    assert_eq!(retired(&installation).await, (Json::Null, Json::Null));

    let table = "flux_00_0.composite_05_8_99";
    let check = async |today: &str| {
        let check =
            ["flux", "retention", "check", "--source", "source-a", "--tables", table, "--today", today];
        installation.command(&check).await
    };
    assert_refused(&check("2020-03-31").await, &[table, "it is not due", "2018-12's table, 15 months old"]);
    let statement = check("2020-04-01").await.expect_success().stdout;
    let expected = "-- source source-a: flux_00_0.composite_05_8_99 of 2018-12, 2 rows; 2 index rows hold them\n\
                    DROP TABLE `flux_00_0`.`composite_05_8_99`;\n";
    assert_eq!(statement, expected);
    installation.execute("source-a", statement).await;
    insert(&installation, "composite_05_8_00", NEXT_RECHARGE, None).await;
    until_rows(&installation, 4).await;
    assert_eq!(retired(&installation).await, (json!(1), json!(2)));

    installation.execute("source-a", flux_table("flux_00_0", "composite_05_8_99")).await;
    insert(&installation, "composite_05_8_99", REFUND, Some(PAST_RECHARGE)).await;
    until_rows(&installation, 5).await;
    assert_eq!(retired(&installation).await, (json!(1), json!(2)));
    for refund in [PAST_REFUNDS[0], PAST_REFUNDS[1], REFUND] {
        let document = shown(&installation, refund).await;
        let found = (&document["claims"][0]["table"], &document["above"][0]["id"], &document["odd"]);
        assert_eq!(found, (&json!("composite_05_8_99"), &json!(PAST_RECHARGE), &json!([])), "{document}");
    }
    let recharge = shown(&installation, PAST_RECHARGE).await;
    assert_eq!(recharge["relations"]["documents"].as_array().map(Vec::len), Some(3), "{recharge}");
    daemon.until_ready().await;
}

/// A recharge with its clearing in the main database of a number, and a recharge in the fail-over database: source,
/// level and identifier.
fn added(database: u8) -> [(&'static str, &'static str, String); 3] {
    let id = |level: u8, side: u8| {
        format!("2027010511031{level}01{side}00{database}5700000{level}{side}1{database}")
    };
    [("source-a", "composite", id(0, 0)), ("source-a", "atom", id(1, 0)), ("source-b", "composite", id(0, 1))]
}

/// Adds databases with tables by year on both sources, and inserts their documents.
async fn add_databases(installation: &Installation<'_>) {
    for number in ADDED {
        let database = format!("flux_00_{number}");
        let tables = ["composite", "atom"]
            .map(|level| flux_table(&database, &format!("{level}_{number}5_7_00")))
            .join(";");
        for source in ["source-a", "source-b"] {
            let sql = format!("CREATE DATABASE IF NOT EXISTS {database}; {tables}");
            installation.execute(source, sql).await;
        }
        let documents = added(number);
        let recharge = &documents[0].2;
        for (source, level, id) in &documents {
            let parent = if *level == "atom" { format!("'{recharge}'") } else { "NULL".to_owned() };
            let sql = format!(
                "INSERT INTO {database}.{level}_{number}5_7_00 (id, parent_id) VALUES ('{id}', {parent})"
            );
            installation.execute(source, sql).await;
        }
    }
}

/// Sources grow from five databases to ten while the daemon runs. The documents of before stay where they are, and the
/// ones of other user partitions lie in the added databases.
#[tokio::test(flavor = "multi_thread")]
async fn databases_are_added_beside_documents_of_before_and_the_audit_names_none_of_them() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    for (id, _, parent, _, table) in &DOCUMENTS[..2] {
        insert(&installation, table, id, *parent).await;
    }
    until_rows(&installation, 2).await;

    add_databases(&installation).await;
    let (_, _, parent, _, table) = DOCUMENTS[2];
    insert(&installation, table, CAPTURE, parent).await;
    until_rows(&installation, 3).await;
    let of_before =
        [(OLD_RECHARGE, "composite_05_11"), (OLD_CLEARING, "atom_05_11"), (CAPTURE, "composite_05_6_11")]
            .map(|(id, table)| ("source-a", id.to_owned(), "flux_00_0".to_owned(), table.to_owned()));
    let of_added = ADDED.flat_map(|number| {
        added(number).map(|(source, level, id)| {
            (source, id, format!("flux_00_{number}"), format!("{level}_{number}5_7_00"))
        })
    });
    for (source, id, database, table) in of_before.into_iter().chain(of_added) {
        let shown = until_some(&format!("the table of {id} is named"), async || {
            let shown = installation.command(&["flux", "show", &id, "--json"]).await.expect_success().json();
            shown["claims"][0]["table"].is_string().then_some(shown)
        })
        .await;
        let [claim] = shown["claims"].as_array().unwrap().as_slice() else { panic!("{shown}") };
        let found = (&claim["source"], &claim["database"], &claim["table"], &shown["odd"]);
        assert_eq!(found, (&json!(source), &json!(database), &json!(table), &json!([])), "{shown}");
    }
    placed_after_growth(&installation).await;

    let (ended, report) = reconcile(&installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let placement = &store(&report, "relations")["placement"];
    assert_eq!((&placement["rows"], &placement["undecided"]), (&json!(18), &json!(0)), "{placement}");
    assert_eq!((&placement["misplaced"], &placement["doubles"]), (&json!({}), &json!([])), "{placement}");
    assert!(placement["odd"].is_null() && placement["malformed"].is_null(), "{placement}");
}

/// New documents of each user partition go to its own database, by the strategy of their date.
async fn placed_after_growth(installation: &Installation<'_>) {
    for (partition, date, database, table) in [
        ("5", "2026-12-30", "flux_00_0", "composite_05_11"),
        ("5", "2027-01-05", "flux_00_0", "composite_05_7_00"),
        ("55", "2027-01-05", "flux_00_5", "composite_55_7_00"),
    ] {
        let words = ["flux", "place", "recharge", "--date", date, "--partition", partition, "--json"];
        let words = [&words[..], &SINCE_2027[..]].concat();
        let view = installation.command(&words).await.expect_success().json();
        assert_eq!((&view["database"], &view["table"]), (&json!(database), &json!(table)), "{view}");
    }
}
