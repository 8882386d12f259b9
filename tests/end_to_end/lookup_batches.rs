//! Many lookups of many codes at once, of codes with very many devices: their time and the daemon's memory.

use std::collections::BTreeSet;

use anabranch_tests::until_some;
use futures::future::join_all;
use serde_json::{Value as Json, json};

use crate::lookup::{TOKEN, change, found, get, installation, until_from, uuids};

/// Number of boxes of a thousand devices each; an answer in a batch has twenty of them.
const BOXES: usize = 20;
const BATCHES: usize = 24;
const BATCH_CODES: usize = 300;
/// Most memory of the daemon; the whole sets of all batches at once would be several times as much.
const PEAK_BYTES_MAX: u64 = 256 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn many_batches_of_codes_with_very_many_devices_are_answered_at_once_in_little_memory() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let mut source = installation.admin("source-a").await;
    let insert = format!(
        "INSERT INTO inventory_0.serial_code_00 (uuid, box_no) \
         SELECT seq, CONCAT('BOX-', seq MOD {BOXES}) FROM inventory_0.seq_1_to_{}",
        BOXES * 1_000
    );
    let place = change(&mut source, &insert).await;
    until_some("all devices are findable", async || {
        (get(&daemon, &format!("BOX-0?at_least={place}&limit=1")).await.0 == 200).then_some(())
    })
    .await;
    for number in 0..BOXES {
        assert_eq!(uuids(&until_from(&daemon, &format!("BOX-{number}"), "cache").await).len(), 1_000);
    }
    let codes: Vec<String> = (0..BATCH_CODES).map(|number| format!("BOX-{}", number % BOXES)).collect();
    // Few batches wait for the point: a busy machine may not tell many in time that it was passed.
    for (batches, at_least) in [(BATCHES, Json::Null), (2, json!(place))] {
        let batch = json!({ "codes": codes, "at_least": at_least }).to_string();
        let ask = async |_: usize| {
            until_some("the batch is told in time", async || {
                let answer = daemon.ask("POST", "/v1/serials/lookup", Some(TOKEN), &batch).await;
                (at_least.is_null() || answer.1["code"] != "lookup-lagging").then_some(answer)
            })
            .await
        };
        // On a busy machine a freshness key may expire meanwhile, and the mapping tables answer then.
        let expected: &[&str] = if at_least.is_null() { &["cache", "mapping"] } else { &["mapping"] };
        for (status, answered) in join_all((0..batches).map(ask)).await {
            assert_eq!(status, 200, "{answered}");
            let answers = answered["answers"].as_array().unwrap();
            assert_eq!(answers.len(), BATCH_CODES);
            for (answer, code) in answers.iter().zip(&codes) {
                assert_eq!(answer["code"].as_str(), Some(&**code));
                assert!(answer["from"].as_str().is_some_and(|from| expected.contains(&from)), "{answer}");
                assert!(uuids(answer).len() == 20 && answer["next"].is_string(), "{answer}");
            }
        }
    }
    // The next page begins where the batch's answer ended.
    let (_, answered) =
        daemon.ask("POST", "/v1/serials/lookup", Some(TOKEN), r#"{"codes": ["BOX-3"]}"#).await;
    let first = &answered["answers"][0];
    let rest = found(&daemon, &format!("BOX-3?after={}", first["next"].as_str().unwrap())).await;
    let all: BTreeSet<&str> = uuids(first).into_iter().chain(uuids(&rest)).collect();
    assert_eq!((all.len(), uuids(&rest).len()), (1_000, 980));
    let peak = daemon.resident_bytes_max();
    println!("the daemon had {} MB at most", peak >> 20);
    assert!(peak < PEAK_BYTES_MAX, "{peak} bytes");
    assert!(daemon.terminate().is_some_and(|status| status.success()));
}
