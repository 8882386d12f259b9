//! A month's table of payment documents that leaves by the retention rule: planned, checked, dropped by a person, and
//! its documents are found as before, beside those of the next table of that name. A document that a job deletes behind
//! its marker is found, too.

use anabranch_schemas::sql::flux_table;
use anabranch_tests::{Daemon, Finished, Installation, Plan, Turn, until, until_some};
use serde_json::{Value as Json, json};

use crate::reconciliations::{reconcile, store};
use crate::{STANDARD, payments};

const TABLES: [&str; 4] = ["composite_05_00", "composite_05_01", "composite_05_99", "atom_05_00"];
const DUE: &str = "flux_00_0.composite_05_00";
/// January's table is sixteen months old.
const TODAY: [&str; 2] = ["--today", "2017-05-02"];
const OF_SOURCE_A: [&str; 2] = ["--source", "source-a"];

/// The identifier of a composite of Singapore's user partition 05.
pub fn id(date: &str, business: u8, month: u8, sequence: u32) -> String {
    format!("{date}110310{business:02}0{month:02}0500{sequence:08}")
}

fn recharge(sequence: u32) -> String {
    id("20160115", 1, 0, sequence)
}

/// A recharge of the year after, in the table of the same name.
fn later_recharge() -> String {
    id("20170120", 1, 0, 1)
}

/// A refund that came fourteen months after its recharge.
fn refund() -> String {
    id("20170303", 3, 99, 1)
}

async fn installation(turn: Turn<'static>) -> Installation<'static> {
    let installation = Installation::prepare(turn, &Plan::small()).await;
    with_documents(installation, &TABLES, 2).await
}

/// Adds tables of payment documents, a marker and the index, and sets all up. Composites are retained, atoms are not.
pub async fn with_documents(
    mut installation: Installation<'static>,
    tables: &[&str],
    lanes: u32,
) -> Installation<'static> {
    payments::create_tables(&installation, tables).await;
    for source in &installation.configuration.sources {
        let marker = "CREATE TABLE flux_00_0.retention (id INT PRIMARY KEY) ENGINE = InnoDB";
        installation.execute(source, marker).await;
    }
    let text = installation.configuration_text()
        + r#"
[flux]
retention_marker = "flux_00_0.retention"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
removal = "retain"
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
"# + &format!("lanes = {lanes}\n");
    payments::set_up(&mut installation, &text).await;
    installation
}

/// Inserts a document into one of the tables of the first source.
pub async fn insert(installation: &Installation<'_>, table: &str, document: &str, parent: Option<&str>) {
    let parent = parent.map_or_else(|| "NULL".to_owned(), |parent| format!("'{parent}'"));
    let sql = format!("INSERT INTO flux_00_0.{table} (id, parent_id) VALUES ('{document}', {parent})");
    installation.execute("source-a", sql).await;
}

async fn rows(installation: &Installation<'_>) -> u64 {
    let sql = "SELECT COUNT(*) FROM flux_relations.flux_relation_05";
    installation.admin("target").await.first::<u64>("count rows", sql).await.unwrap().unwrap()
}

/// Waits until the index has so many rows of the user partition 05.
pub async fn until_rows(installation: &Installation<'_>, expected: u64) {
    until(&format!("{expected} rows in the index"), async || rows(installation).await == expected).await;
}

/// A document with its relations, as `flux show` prints it.
pub async fn shown(installation: &Installation<'_>, document: &str) -> Json {
    let show = ["flux", "show", document, "--relations", "--json"];
    installation.command(&show).await.expect_success().json()
}

async fn check(installation: &Installation<'_>, tables: &[&str], further: &[&[&str]]) -> Finished {
    let command = [&["flux", "retention", "check", "--tables"][..], tables, &further.concat()[..]].concat();
    installation.command(&command).await
}

/// Expects that `flux retention` refused something with these texts, and printed nothing else.
pub fn assert_refused(ended: &Finished, texts: &[&str]) {
    assert_eq!((ended.exit_code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    assert!(ended.stderr.contains("[flux-retention-refused]"), "{ended:?}");
    assert!(texts.iter().all(|text| ended.stderr.contains(text)), "{texts:?} are not in {ended:?}");
}

/// Reconciles the index, which is clean, and returns its retired tables and rows.
pub async fn retired(installation: &Installation<'_>) -> (Json, Json) {
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let store = store(&report, "relations");
    assert_eq!((&store["foreign_rows"], &store["candidates"]), (&json!(0), &json!(0)), "{store}");
    (store["retired_tables"].clone(), store["retired_rows"].clone())
}

/// An installation with five documents in its index, and the daemon that captures them.
async fn filled(turn: Turn<'static>) -> (Installation<'static>, Daemon) {
    let installation = installation(turn).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    for sequence in 1..=3 {
        insert(&installation, "composite_05_00", &recharge(sequence), None).await;
    }
    insert(&installation, "composite_05_99", &refund(), Some(&recharge(1))).await;
    insert(&installation, "composite_05_01", &id("20160501", 1, 1, 1), None).await;
    until_rows(&installation, 5).await;
    assert_eq!(retired(&installation).await, (Json::Null, Json::Null));
    (installation, daemon)
}

/// No lane asks for such a table, and its rows stand on purpose: a person ends the wait alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_retained_table_that_is_gone_is_owed_no_longer_and_keeps_its_rows() {
    const GONE: &str = "flux_00_0.composite_05_01";
    let (installation, daemon) = filled(STANDARD.turn().await).await;
    let select = |verb: &str, link: &str| {
        format!("{verb} SELECT ON `flux\\_00\\_%`.* {link} 'anabranch_capture'@'127.0.0.1'")
    };
    installation.execute("source-a", select("REVOKE", "FROM")).await;
    let by_text = format!("SET SESSION binlog_format = STATEMENT; UPDATE {GONE} SET parent_id = NULL");
    installation.execute("source-a", by_text).await;
    let owed = async || daemon.metric("anabranch_refresh_rereads", &[]).await;
    until("a lane owes the table", async || owed().await > 0.0).await;
    installation.execute("source-a", format!("SET SESSION sql_log_bin = 0; DROP TABLE {GONE}")).await;
    installation.execute("source-a", select("GRANT", "TO")).await;
    let remove = ["remove", "--table", GONE, "--source", "source-a", "--confirm", GONE];
    let removed = installation.command(&remove).await.expect_success().stdout;
    assert!(removed.contains("no longer waits for a reading of the table"), "{removed}");
    assert!(removed.contains("no derived row is removed: its entity has `removal"), "{removed}");
    until("no lane owes a table", async || owed().await == 0.0).await;
    assert_eq!(rows(&installation).await, 5, "its rows stand on purpose");
    let refused = installation.command(&remove).await;
    assert_eq!(refused.exit_code, 1, "{refused:?}");
    assert!(refused.stderr.contains("its derived rows stand on purpose"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_dropped_month_are_found_beside_those_of_the_next_table_of_that_name() {
    let (installation, mut daemon) = filled(STANDARD.turn().await).await;
    due(&installation).await;
    refusals(&installation).await;
    measured_plan(&installation).await;
    dropped(&installation).await;
    left_early(&installation).await;
    daemon.until_ready().await;
    daemon.kill();
    lost_progress(&installation).await;
}

/// The part of the test above that a server decides: greatest keys, the statement that drops, marked deletions, and the
/// retired rows beside a refresh and reconciliations.
pub async fn dropped_without_refusals(turn: Turn<'static>) {
    let (installation, daemon) = filled(turn).await;
    due(&installation).await;
    dropped(&installation).await;
    daemon.until_ready().await;
}

/// A lane without its progress would remove retained rows, so a person must say that it may.
async fn lost_progress(installation: &Installation<'_>) {
    let gone = "DELETE FROM anabranch.progress WHERE projection = 'relations' AND source = 'source-a'";
    installation.execute("target", gone).await;
    let rehearsed = ["begin-anew", "--source", "source-a", "--lost-progress", "--dry-run"];
    let refused = installation.command(&rehearsed).await;
    assert_eq!(refused.exit_code, 1, "{refused:?}");
    assert!(refused.stdout.contains("would go on at"), "{refused:?}");
    assert!(refused.stderr.contains("--without-retired"), "{refused:?}");
    let allowed = [&rehearsed[..], &["--without-retired"]].concat();
    installation.command(&allowed).await.expect_success();
}

/// One of the tables is due, and the plan says so.
async fn due(installation: &Installation<'_>) {
    let plan = [&["flux", "retention", "plan", "--json"][..], &TODAY].concat();
    let plan = installation.command(&plan).await.expect_success().json();
    let [due] = plan["due"].as_array().unwrap().as_slice() else { panic!("{plan}") };
    assert_eq!(
        (&due["table"], &due["source"], &due["month"]),
        (&json!(DUE), &json!("source-a"), &json!("2016-01"))
    );
    assert_eq!(
        (&due["age_months"], &due["open"], &due["is_retained"]),
        (&json!(16), &json!(1), &json!(true))
    );
    assert_eq!(plan["ways"].as_array().unwrap().len(), 3, "{plan}");
}

/// A person drops the table by the printed statement: its documents stand, also beside the next table and deletions.
async fn dropped(installation: &Installation<'_>) {
    let statement = check(installation, &[DUE], &[&OF_SOURCE_A, &TODAY]).await.expect_success().stdout;
    let expected = "-- source source-a: flux_00_0.composite_05_00 of 2016-01, 3 rows; 3 index rows hold them\n\
                    DROP TABLE `flux_00_0`.`composite_05_00`;\n";
    assert_eq!(statement, expected);
    installation.execute("source-a", statement).await;

    insert(installation, "composite_05_01", &id("20160502", 1, 1, 2), None).await;
    until_rows(installation, 6).await;
    let document = shown(installation, &recharge(1)).await;
    let claim = &document["claims"][0];
    assert_eq!(
        (&claim["source"], &claim["table"]),
        (&json!("source-a"), &json!("composite_05_00")),
        "{document}"
    );
    assert_eq!(document["relations"]["documents"][0]["id"], json!(refund()), "{document}");
    assert_eq!(shown(installation, &refund()).await["above_end"]["reason"], "top");
    assert_eq!(retired(installation).await, (json!(1), json!(3)));

    next_table(installation).await;
    marked_deletion(installation).await;
    refund_two_years_late(installation).await;
    let foreign = ["reconcile", "remove-foreign", "--store", "relations", "--dry-run"];
    let foreign = installation.command(&foreign).await.expect_success();
    assert_eq!(foreign.stdout, "0 rows would be removed\n");
}

/// A job writes its marker and deletes in one transaction: the document stands, and nothing is foreign.
async fn marked_deletion(installation: &Installation<'_>) {
    let deleted = id("20160501", 1, 1, 1);
    let job = format!(
        "START TRANSACTION; INSERT INTO flux_00_0.retention VALUES (1); \
         DELETE FROM flux_00_0.composite_05_01 WHERE id = '{deleted}'; COMMIT"
    );
    installation.execute("source-a", job).await;
    // Once the index has this document, it has taken the deletion before it.
    insert(installation, "composite_05_01", &id("20160503", 1, 1, 4), None).await;
    until_rows(installation, 7).await;
    assert_eq!(retired(installation).await, (json!(2), json!(4)));
    let document = shown(installation, &deleted).await;
    let [claim] = document["claims"].as_array().unwrap().as_slice() else { panic!("{document}") };
    assert_eq!(claim["table"], "composite_05_01", "{document}");
}

/// A refund comes two years after its recharge, whose table was dropped: it leads to the recharge, and neither is odd.
async fn refund_two_years_late(installation: &Installation<'_>) {
    let (late, recharge) = (id("20180115", 3, 99, 2), recharge(2));
    insert(installation, "composite_05_99", &late, Some(&recharge)).await;
    until_rows(installation, 8).await;
    let refund = shown(installation, &late).await;
    assert_eq!((&refund["above_end"], &refund["odd"]), (&json!({ "reason": "top" }), &json!([])), "{refund}");
    let [above] = refund["above"].as_array().unwrap().as_slice() else { panic!("{refund}") };
    assert_eq!(above["id"], json!(recharge), "{refund}");
    let parent = shown(installation, &recharge).await;
    let [claim] = parent["claims"].as_array().unwrap().as_slice() else { panic!("{parent}") };
    assert_eq!(
        (&claim["source"], &claim["table"]),
        (&json!("source-a"), &json!("composite_05_00")),
        "{parent}"
    );
    assert_eq!((&parent["relations"]["documents"][0]["id"], &parent["odd"]), (&json!(late), &json!([])));
    assert_eq!(retired(installation).await, (json!(2), json!(4)));
}

/// A person drops a table before its sixteenth month, without a check: the plan names it with its age, and its document
/// is found.
async fn left_early(installation: &Installation<'_>) {
    // The last February that ended is a year ago at most.
    let year = "SELECT DATE_FORMAT(UTC_DATE() - INTERVAL 2 MONTH, '%Y')";
    let mut source = installation.admin("source-a").await;
    let year = source.first::<String>("ask for a year", year).await.unwrap().unwrap();
    let young = id(&format!("{year}0201"), 1, 1, 5);
    insert(installation, "composite_05_01", &young, None).await;
    until_rows(installation, 9).await;
    installation.execute("source-a", "DROP TABLE flux_00_0.composite_05_01").await;
    let plan = until_some("the plan names a table that left early", async || {
        let plan = ["flux", "retention", "plan", "--json"];
        let plan = installation.command(&plan).await.expect_success().json();
        (plan["early"] != json!([])).then_some(plan)
    })
    .await;
    let [early] = plan["early"].as_array().unwrap().as_slice() else { panic!("{plan}") };
    let table = (&early["source"], &early["table"]);
    assert_eq!(table, (&json!("source-a"), &json!("flux_00_0.composite_05_01")), "{plan}");
    let why = format!("it is not due: its newest document is of {year}-02's table, ");
    assert!(early["why"].as_str().unwrap().starts_with(&why), "{early}");
    let text = installation.command(&["flux", "retention", "plan"]).await.expect_success().stdout;
    assert!(text.contains("too early   flux_00_0.composite_05_01 of source-a left on "), "{text}");
    assert_eq!(shown(installation, &young).await["claims"][0]["table"], "composite_05_01");
}

/// A plan takes its figures from both sources; the file's figure stands where they say nothing.
async fn measured_plan(installation: &Installation<'_>) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/plans/flux.toml");
    let measured = ["plan", file, "--measure", "--measure-seconds", "1", "--json"];
    let plan = installation.command(&measured).await.expect_success().json();
    let field = |name: &str| {
        let mut fields = plan["measured"]["fields"].as_array().unwrap().iter();
        let found = fields.find(|field| field["field"] == format!("[flux] {name}"));
        found.map(|field| (field["value"].as_f64().unwrap(), field["origin"].clone()))
    };
    for (name, expected, origin) in [
        ("sources", 2.0, "configured"),
        ("lanes", 2.0, "configured"),
        ("databases", 1.0, "measured"),
        ("tables_per_database", 1.0, "measured"),
    ] {
        assert_eq!(field(name), Some((expected, json!(origin))), "{name}: {plan}");
    }
    assert!(field("row_bytes").is_some_and(|(bytes, _)| bytes >= 1_000.0), "{plan}");
    let kept = plan["measured"]["kept"].to_string();
    assert!(kept.contains("recharges_per_day: the figure of the file stands"), "{kept}");
    let server = &plan["measured"]["servers"][0];
    assert!(server["source"] == "source-a" && server["tables"].as_u64() >= Some(4), "{plan}");
    assert!(server["binlog_bytes_per_second"].is_number(), "{plan}");
}

/// Tables that must stay are refused by name, and then nothing is printed for any table.
async fn refusals(installation: &Installation<'_>) {
    let early = ["--today", "2017-04-30"];
    let ended = check(installation, &[DUE], &[&OF_SOURCE_A, &early]).await;
    assert_refused(&ended, &[DUE, "it is not due: its newest document is of 2016-01's table, 15 months old"]);
    let ended = check(installation, &[DUE], &[&TODAY]).await;
    assert_refused(&ended, &["composite_05_00 of source source-b", "it is empty"]);
    let others = [DUE, "flux_00_0.composite_05_99", "flux_00_0.atom_05_00", "user_00.user_000"];
    let ended = check(installation, &others, &[&OF_SOURCE_A, &TODAY]).await;
    assert_refused(
        &ended,
        &[
            "composite_05_99 of source source-a: it is never due by a month",
            "atom_05_00 of source source-a: its entity has `removal = \"withdraw\"`",
            "table user_00.user_000: source-a has no captured table of this name",
        ],
    );

    // A row that the index lacks, and lanes that stand still.
    let missing = format!("DELETE FROM flux_relations.flux_relation_05 WHERE id = '{}'", recharge(2));
    installation.execute("target", missing).await;
    let ended = check(installation, &[DUE], &[&OF_SOURCE_A, &TODAY]).await;
    assert_refused(
        &ended,
        &["`relations` differs from its 3 rows: 1 missing", "reconcile --now --store relations"],
    );
    let (_, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!(report["verdict"], "repaired", "{report}");

    installation.command(&["pause", "--projection", "relations"]).await.expect_success();
    until("the lanes have stopped", async || {
        let status = installation.command(&["status", "--json"]).await.json();
        let is_lane = |task: &&Json| task["task"].as_str().unwrap().starts_with("lane/relations/");
        let mut lanes = status["tasks"].as_array().unwrap().iter().filter(is_lane).peekable();
        lanes.peek().is_some() && lanes.all(|task| task["state"] == "paused")
    })
    .await;
    insert(installation, "composite_05_01", &id("20160503", 1, 1, 3), None).await;
    let ended = check(installation, &[DUE], &[&OF_SOURCE_A, &TODAY]).await;
    assert_refused(&ended, &["cannot be compared with `relations`", "is paused"]);
    installation.command(&["resume", "--projection", "relations"]).await.expect_success();
    until_rows(installation, 6).await;
    let gone = format!("DELETE FROM flux_00_0.composite_05_01 WHERE id = '{}'", id("20160503", 1, 1, 3));
    installation.execute("source-a", gone).await;
    until_rows(installation, 5).await;
}

/// A table of the same name has rows of its own, and a row event in it deletes a document as always.
async fn next_table(installation: &Installation<'_>) {
    installation.execute("source-a", flux_table("flux_00_0", "composite_05_00")).await;
    insert(installation, "composite_05_00", &later_recharge(), None).await;
    until_rows(installation, 7).await;
    assert_eq!(retired(installation).await, (json!(1), json!(3)));
    let claims =
        async |document: &str| shown(installation, document).await["claims"].as_array().unwrap().len();
    assert_eq!((claims(&recharge(3)).await, claims(&later_recharge()).await), (1, 1));
    let ended = check(installation, &[DUE], &[&OF_SOURCE_A, &TODAY]).await;
    assert_refused(&ended, &["its newest document is of 2017-01's table, 4 months old"]);

    installation.command(&["refresh", "--projection", "relations"]).await.expect_success();
    let delete = format!("DELETE FROM flux_00_0.composite_05_00 WHERE id = '{}'", later_recharge());
    installation.execute("source-a", delete).await;
    until_rows(installation, 6).await;
    until_some("the refresh has ended", async || {
        let (ended, _) = reconcile(installation, &["--store", "relations"]).await;
        (ended.exit_code == 0).then_some(())
    })
    .await;
    assert_eq!(retired(installation).await, (json!(1), json!(3)));
}
