//! Payment documents that are wrong, through one daemon: documents on the wrong side, in the wrong database and source,
//! texts that are no identifier, NULL, and two documents that name each other. Each is counted by reason and listed by
//! a reconciliation, and right documents beside them are found.

use std::collections::BTreeMap;

use anabranch_tests::{Daemon, Installation, until};
use serde_json::{Value as Json, json};

use crate::reconciliations::{reconcile, store};
use crate::relations::{RECHARGE, change, found, found_at_least, id, insert, installation, places};

/// The table whose identifiers may be any text and NULL on the first source.
const JUNE: &str = "composite_05_05";
/// The reason of the documents that may not be on the side where they are.
const BY_ITSELF: &[&str] = &["parent_failed_over_by_itself"];

/// Source, table, identifier, whether the main recharge is its parent, reasons, and a text of the differences.
type OddDocument = (&'static str, &'static str, String, bool, &'static [&'static str], &'static str);

/// The identifier of a recharge with other digits from this one on.
fn with(sequence: u32, digit: usize, digits: &str) -> String {
    let mut text = id((0, 1, 0, 5, sequence));
    text.replace_range(digit - 1..digit - 1 + digits.len(), digits);
    text
}

fn odd_documents() -> [OddDocument; 7] {
    let recharge_of_other_side = id((0, 1, 1, 5, 16));
    [
        ("source-b", JUNE, id((0, 2, 1, 5, 10)), true, BY_ITSELF, "a capture never fails over by itself"),
        ("source-b", JUNE, id((0, 4, 1, 5, 11)), true, BY_ITSELF, "a cancel never fails over by itself"),
        (
            "source-b",
            "composite_05_99",
            id((0, 3, 1, 99, 12)),
            true,
            BY_ITSELF,
            "a refund never fails over by itself",
        ),
        (
            "source-b",
            "atom_05_05",
            id((1, 1, 1, 5, 13)),
            true,
            &["parent_side"],
            "digit 17 says fail-over; expected: main",
        ),
        (
            "source-a",
            JUNE,
            with(14, 20, "31"),
            false,
            &["database", "table_partition"],
            "digit 20 (first digit of the user partition) is 3; expected by its database: 0",
        ),
        (
            "source-a",
            JUNE,
            with(15, 10, "0"),
            false,
            &["source_region"],
            "digit 10 (region) is 0 (United States); expected by its source: 1 (Singapore)",
        ),
        (
            "source-a",
            JUNE,
            recharge_of_other_side,
            false,
            &["source_side"],
            "digit 17 (main or fail-over) is 1 (fail-over); expected by its source: 0 (main)",
        ),
    ]
}

/// Texts that are no identifier, each with the rule that it breaks.
fn malformed() -> [(String, &'static str); 11] {
    let good = id((0, 1, 0, 5, 20));
    [
        (good[1..].to_owned(), "it has 30 digits"),
        (format!("{good}0"), "it has 32 digits"),
        (with(20, 31, "x"), "character 31, in digits 24 to 31 (sequence), is `x`"),
        (format!("\u{ff12}{}", &good[1..]), "character 1, in digits 1 to 8 (date), is `\\u{ff12}`"),
        (with(20, 1, "20160231"), "digits 1 to 8 (date) are 20160231"),
        (with(20, 9, "2"), "digit 9 (data version) is 2"),
        (with(20, 10, "2"), "digit 10 (region) is 2"),
        (with(20, 11, "032"), "digits 11 to 13 (system code) are 032"),
        (with(20, 17, "2"), "digit 17 (main or fail-over) is 2"),
        (with(20, 18, "12"), "digits 18 to 19 (month) are 12"),
        (with(20, 18, "98"), "digits 18 to 19 (month) are 98"),
    ]
}

/// The reasons of all odd documents, with the number of documents that have each.
fn reasons() -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::from([("flux_parent_malformed", malformed().len())]);
    for (_, _, _, _, reasons, _) in odd_documents() {
        for reason in reasons {
            *counts.entry(*reason).or_default() += 1;
        }
    }
    counts
}

/// Waits until so many documents are counted with a reason.
pub async fn until_counted(daemon: &Daemon, reason: &str, expected: usize) {
    let label = format!("reason=\"{reason}\"");
    until(&format!("{reason} is counted {expected} times"), async || {
        daemon.metric("anabranch_row_defects_total", &[&label]).await == expected as f64
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_documents_are_counted_and_listed_and_hold_up_no_right_one() {
    let installation = installation().await;
    let any_text = format!(
        "ALTER TABLE flux_00_0.{JUNE} DROP PRIMARY KEY, \
         MODIFY id VARCHAR(64) CHARACTER SET utf8mb4 NULL, \
         MODIFY parent_id VARCHAR(64) CHARACTER SET utf8mb4 NULL, \
         ADD entry BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, ADD KEY id (id)"
    );
    installation.execute("source-a", any_text).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let recharge = id(RECHARGE);
    let mut rows = insert(JUNE, &recharge, None);
    for (source, table, document, follows, ..) in odd_documents() {
        let sql = insert(table, &document, follows.then_some(recharge.as_str()));
        match source {
            "source-a" => rows += &sql,
            other => installation.execute(other, sql).await,
        }
    }
    rows += &format!("INSERT INTO flux_00_0.{JUNE} (id) VALUES (NULL);");
    for ((text, _), sequence) in malformed().into_iter().zip(30..) {
        rows += &insert(JUNE, &text, None);
        rows += &insert(JUNE, &id((0, 2, 0, 5, sequence)), Some(&text));
    }
    installation.execute("source-a", rows).await;
    the_next_document_is_found(&installation, &daemon).await;
    for (reason, count) in reasons() {
        until_counted(&daemon, reason, count).await;
    }
    until_counted(&daemon, "flux_id_malformed", malformed().len()).await;
    until_counted(&daemon, "flux_id_null", 1).await;
    two_name_each_other(&installation, &daemon).await;
    listed(&installation).await;
    daemon.until_ready().await;
}

/// A capture after all wrong rows is found, and so are the documents of the other side.
async fn the_next_document_is_found(installation: &Installation<'_>, daemon: &Daemon) {
    let (recharge, capture) = (id(RECHARGE), id((0, 2, 0, 5, 50)));
    let mut main = installation.admin("source-a").await;
    let place = change("source-a", &mut main, &insert(JUNE, &capture, Some(&recharge))).await;
    let answer = found_at_least(daemon, &capture, &place).await;
    assert_eq!((&answer["above_end"]["reason"], &answer["odd"]), (&json!("top"), &json!([])), "{answer}");
    let child = found(daemon, &id((0, 2, 0, 5, 30))).await;
    let [(malformed_parent, _), ..] = malformed();
    let end = json!({ "reason": "malformed_parent", "parent": malformed_parent });
    assert_eq!(child["above_end"], end, "{child}");
    let odd = odd_documents();
    let below = odd.iter().filter(|(.., follows, _, _)| *follows).map(|(_, _, document, ..)| document);
    let mut expected: Vec<_> = below.chain([&capture]).map(|document| (1_u64, document.clone())).collect();
    expected.sort();
    until("the recharge has its documents of both sides", async || {
        places(&found(daemon, &format!("{recharge}/relations")).await) == expected
    })
    .await;
}

/// Each of two captures names the other as its parent: the ways end, and say so.
async fn two_name_each_other(installation: &Installation<'_>, daemon: &Daemon) {
    let (one, other) = (id((0, 2, 0, 5, 60)), id((0, 2, 0, 5, 61)));
    let mut main = installation.admin("source-a").await;
    let both = insert(JUNE, &one, Some(&other)) + &insert(JUNE, &other, Some(&one));
    let place = change("source-a", &mut main, &both).await;
    for (document, parent) in [(&one, &other), (&other, &one)] {
        let answer = found_at_least(daemon, document, &place).await;
        assert_eq!(answer["above_end"], json!({ "reason": "cycle", "parent": document }), "{answer}");
        assert_eq!(answer["above"][0]["id"], json!(parent), "{answer}");
        let odd = json!([format!("the way up comes to {document} twice")]);
        assert_eq!(answer["odd"], odd, "{answer}");
        let below = found(daemon, &format!("{document}/relations")).await;
        assert_eq!(places(&below), [(1, parent.clone())]);
        assert_eq!((&below["is_cut"], &below["next"]), (&json!(false), &json!(null)), "{below}");
    }
    let show = installation.command(&["flux", "show", &one, "--relations"]).await.expect_success();
    assert!(show.stdout.contains(&format!("the way up comes to {one} twice")), "{show:?}");
}

/// A reconciliation is clean, and lists each wrong document with both identifiers and the differences.
async fn listed(installation: &Installation<'_>) {
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let placement = &store(&report, "relations")["placement"];
    assert_eq!(placement["odd_documents"], json!(reasons()), "{placement}");
    let odd = placement["odd"].as_array().unwrap();
    assert_eq!(odd.len(), odd_documents().len() + malformed().len(), "{placement}");
    for (_, table, document, follows, _, text) in odd_documents() {
        let listed = by_id(odd, &document);
        let parent = follows.then(|| id(RECHARGE));
        let names = (&listed["table"], &listed["parent"]);
        assert_eq!(names, (&json!(format!("flux_00_0.{table}")), &json!(parent)), "{listed}");
        assert!(listed["what"].as_str().unwrap().contains(text), "{text}: {listed}");
    }

    let all = malformed().len() + 1;
    let listed = placement["malformed"].as_array().unwrap();
    assert_eq!((&placement["undecided"], listed.len()), (&json!(all), all), "{placement}");
    for ((text, rule), sequence) in malformed().into_iter().zip(30..) {
        let shown = text.as_bytes().escape_ascii().to_string();
        let what = by_id(listed, &shown)["what"].as_str().unwrap();
        assert!(what.starts_with(rule), "{rule}: {what}");
        let child = by_id(odd, &id((0, 2, 0, 5, sequence)));
        let parent = child["what"].as_str().unwrap();
        assert!(parent.starts_with(&format!("its parent is no identifier: {rule}")), "{rule}: {parent}");
    }
    assert_eq!(by_id(listed, "")["what"], "it has 0 digits; expected: 31", "the row with NULL");
}

/// The entry of a document in a list of a report.
fn by_id<'l>(list: &'l [Json], id: &str) -> &'l Json {
    list.iter().find(|listed| listed["id"] == id).unwrap_or_else(|| panic!("{id} is not in {list:?}"))
}
