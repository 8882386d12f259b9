//! Makes room for a replay from nothing: a shard's documents are removed and come again in their own versions.
//!
//! Tombstones would not do. One that makes room for a version has that version. A writer that was paused, overtaken and
//! woke could write it over the document that has come again, and the server tells the two apart only by sequence
//! numbers. So documents are removed, each only while it is the one that was found, and the search precedes the check
//! of the lane's revision: a process that passes the check has found no document of another process's replay. (The lane
//! raises its revision before it begins. A flush in progress then fails, so its documents may be removed.) A late write
//! of an older version meets no obstacle, and stays until the replay reaches that claim's last change.
//!
//! A removal counts as the next version until the server forgets it, so a replay's first document waits for that.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Client;
use super::hits::Pages;

/// Documents in a page.
const PAGE_DOCUMENTS: usize = 5_000;
/// `index.gc_deletes`: the time for which a server remembers the versions of removed documents.
const REMEMBERED: &str = "1s";
/// Wait until a removal is forgotten: well above [`REMEMBERED`], since servers read the clock five times a second.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3);

/// Finds a lane's documents of a shard that are neither withdrawn nor above a position; refreshes first.
pub(super) async fn find<'c>(
    client: &'c Client,
    index: &str,
    lane: u32,
    (shard, lsn): (ShardId, Lsn),
) -> Result<Pages<'c>, Fault> {
    client.refresh(index).await?;
    let filter = json!([
        { "term": { "shard_id": shard.as_u64().to_string() } },
        { "term": { "lane": lane } },
        { "term": { "withdrawn": false } },
        { "range": { "lsn": { "lte": lsn.as_u64() } } },
    ]);
    let query = json!({
        "size": PAGE_DOCUMENTS, "sort": ["_doc"], "_source": false, "seq_no_primary_term": true,
        "query": { "bool": { "filter": filter } },
    });
    Ok(Pages::of(client, index, &query))
}

/// Time of the last removal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removed(Instant);

impl Removed {
    pub(super) fn now() -> Self {
        Self(Instant::now())
    }

    /// Waits until these indexes have forgotten the removal.
    pub(super) async fn until_forgotten(self, client: &Client, indexes: &[String]) -> Result<(), Fault> {
        for index in indexes {
            let answer = client.get(&format!("/{index}")).await?.success(&format!(", index {index}"))?;
            let found = &answer.read::<Value>()?[index]["settings"]["index"]["gc_deletes"];
            if found != REMEMBERED {
                let subject = format!("{}, index {index}", client.subject());
                let setting = json!({ "index": { "gc_deletes": REMEMBERED } });
                return Err(Fault::new(
                    Code::TargetTableShape,
                    subject,
                    format!("`settings.index.gc_deletes` is {found}"),
                )
                .needs(format!("\"{REMEMBERED}\", which a replay from nothing waits for"))
                .remedy(format!("PUT {index}/_settings {setting}")));
            }
        }
        tokio::time::sleep_until(self.0 + FORGOTTEN_AFTER).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_up_makes_an_index_that_forgets_as_soon_as_is_waited_for() {
        let body: Value = serde_json::from_str(anabranch_schemas::search::SERIAL_DOCUMENTS).unwrap();
        assert_eq!(body["settings"]["index"]["gc_deletes"], REMEMBERED);
    }
}
