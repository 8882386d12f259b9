//! Documents that an index rejected are listed, and forgotten once a person has repeated the projection's name.

use anabranch_tests::until;

use crate::documents;
use crate::page_parts::park;

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_dropped_after_a_dry_run_that_changes_nothing() {
    let installation = documents::with_documents().await;
    let daemon = installation.run();
    documents::add(&installation, 640, 641).await;
    documents::equal(&installation, "one device").await;
    park(&installation).await;
    let letters = async || {
        let of = async |name: &str| daemon.metric(&format!("anabranch_search_{name}"), &[]).await;
        (of("dead_letters").await, of("oldest_dead_letter_timestamp_seconds").await)
    };
    until("the letter and its time are counted", async || letters().await == (1.0, 0.001)).await;
    let said = async |arguments: &[&str]| {
        installation.command(&[&["dead-letters"][..], arguments].concat()).await.expect_success().stdout
    };
    let listed = said(&["list"]).await;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let rehearsed = said(&["drop", "--all", "--dry-run"]).await;
    assert_eq!(rehearsed, format!("{listed}documents: 1 letters would be dropped\n"));
    let unconfirmed = ["dead-letters", "drop", "--all", "--confirm", "birthday"];
    let refused = installation.command(&unconfirmed).await;
    assert!(refused.stderr.contains("its name was not confirmed") && refused.exit_code == 1, "{refused:?}");
    assert_eq!(said(&["list"]).await, listed);
    let dropped = said(&["drop", "--all", "--confirm", "documents"]).await;
    assert_eq!(dropped, "documents: 1 letters dropped\n");
    until("none is listed", async || said(&["list"]).await.is_empty()).await;
    until("none is counted", async || letters().await == (0.0, 0.0)).await;
}
