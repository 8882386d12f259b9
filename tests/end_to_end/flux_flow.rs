//! Payments from one end to the other, on one kind of server: identifiers from its counters, documents in its tables,
//! the index, the audit, the reconciliation, and counters that stand too low.

use anabranch_tests::{Daemon, Installation, Turn};
use serde_json::json;

use crate::STANDARD;
use crate::flux::{below_a_captured_row, captured, given, recharge, table_of, went_back_and_raised};
use crate::flux_wrong_rows::until_counted;
use crate::reconciliations::{drift, reconcile, store};
use crate::relations::{change, found, found_at_least, insert, places};

/// The table of documents without a month.
const WITHOUT_MONTH: &str = "composite_07_99";

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_given_identifiers_are_found_audited_and_reconciled() {
    given_written_and_found(STANDARD.turn().await).await;
}

/// The flow of payments on the servers of this turn: the first source has the documents, the target index and counters.
pub async fn given_written_and_found(turn: Turn<'static>) {
    let (installation, daemon) = captured(turn).await;
    went_back_and_raised(&installation, &daemon).await;
    let first = given(&daemon, &recharge(1), None).await[0];
    let (parent, table) = (first.to_string(), table_of(first));
    let [capture, misplaced] =
        <[String; 2]>::try_from(given_below(&daemon, &parent, ("capture", 2), 2).await).unwrap();
    let [refund] = <[String; 1]>::try_from(given_below(&daemon, &parent, ("refund", 3), 1).await).unwrap();

    // The children come before their parent, and one of them lies in the table of other documents.
    let children = insert(&table, &capture, Some(&parent))
        + &insert(WITHOUT_MONTH, &refund, Some(&parent))
        + &insert(WITHOUT_MONTH, &misplaced, Some(&parent));
    let mut source = installation.admin("source-a").await;
    let written = change("source-a", &mut source, &children).await;
    let child = found_at_least(&daemon, &capture, &written).await;
    assert_eq!(child["above_end"], json!({ "reason": "missing_parent", "parent": parent }), "{child}");
    let written = change("source-a", &mut source, &insert(&table, &parent, None)).await;
    let relations = found_at_least(&daemon, &format!("{parent}/relations"), &written).await;
    let mut expected = [&capture, &misplaced, &refund].map(|id| (1_u64, id.clone()));
    expected.sort();
    assert_eq!(places(&relations), expected, "{relations}");
    for document in [&capture, &refund] {
        let answer = found(&daemon, document).await;
        assert_eq!((&answer["above"][0]["id"], &answer["odd"]), (&json!(parent), &json!([])), "{answer}");
    }

    until_counted(&daemon, "table_month", 1).await;
    reconciled(&installation, &misplaced, &parent).await;
    below_a_captured_row(&installation, &daemon).await;
    daemon.until_ready().await;
}

/// Identifiers of documents of a kind, with its business code, that follow one parent.
async fn given_below(daemon: &Daemon, parent: &str, kind: (&str, u8), count: u32) -> Vec<String> {
    let (kind, business) = kind;
    let body = json!({ "kind": kind, "business": business, "parent": parent, "count": count });
    given(daemon, &body, None).await.iter().map(ToString::to_string).collect()
}

/// A reconciliation compares all four documents, finds no drift, and lists the misplaced one alone.
async fn reconciled(installation: &Installation<'_>, misplaced: &str, parent: &str) {
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let store = store(&report, "relations");
    assert_eq!((drift(store), &store["left"], &store["foreign_rows"]), (0, &json!(0), &json!(0)), "{store}");
    assert_eq!((&store["rows_source"], &store["candidates"]), (&json!(4), &json!(0)), "{store}");
    let placement = &store["placement"];
    assert_eq!((&placement["rows"], &placement["undecided"]), (&json!(4), &json!(0)), "{placement}");
    assert_eq!(placement["odd_documents"], json!({ "table_month": 1 }), "{placement}");
    let [odd] = placement["odd"].as_array().unwrap().as_slice() else { panic!("{placement}") };
    assert_eq!((&odd["id"], &odd["parent"]), (&json!(misplaced), &json!(parent)), "{odd}");
    assert_eq!(odd["table"], json!(format!("flux_00_0.{WITHOUT_MONTH}")), "{odd}");
    let difference = odd["what"].as_str().unwrap();
    assert!(difference.contains("expected by its table: 99 (no month)"), "{odd}");
}
