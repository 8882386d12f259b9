//! Room for a replay from nothing: a shard's documents go, and come again in their own versions.
//!
//! Tombstones would not do. One that makes room for a version has that version, so it may come after the document
//! that has come again: from a writer that was stopped, taken over and woke. The server tells the two documents apart
//! only by their sequence numbers. So documents are removed, each while it is what was found, and they are found
//! before the lane's revision is looked at: a process that may remove them has found none that another one's replay
//! has brought. (The lane raises its revision before it begins: what a flush has written that was under way may be
//! removed, since that flush fails.) A late write of an older version finds nothing in its way, and stays until the
//! replay comes to that claim's last change.
//!
//! What is removed counts as one version more until the server forgets it, so a replay's first document waits for that.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Client;
use super::hits::Pages;

/// Documents a page.
const PAGE_DOCUMENTS: usize = 5_000;
/// `index.gc_deletes`, how long a server remembers versions of what is removed.
const REMEMBERED: &str = "1s";
/// Well above, since servers look at the clock five times a second.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3);

/// The documents of a lane and shard that are not withdrawn and not above a position, as the first page will find them.
pub(super) async fn find<'c>(
    client: &'c Client,
    index: &str,
    lane: u32,
    (shard, lsn): (ShardId, Lsn),
) -> Result<Pages<'c>, Fault> {
    client.post(&format!("/{index}/_refresh"), Vec::new()).await?.success(&format!(", index {index}"))?;
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

/// When something was removed last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removed(Instant);

impl Removed {
    pub(super) fn now() -> Self {
        Self(Instant::now())
    }

    /// Waits until these indexes know nothing of it.
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
