//! Removes tombstones that are not needed any more.
//!
//! A tombstone keeps an older write of its claim from coming back. Such a write can come from:
//! - the claim's lane, which resumes above its position: so the tombstone must not lie above that position;
//! - a replay, which writes older rows and deletes them again: nothing is removed while one runs;
//! - a rebuild, which brings the past and relies on living lanes' tombstones: nothing is removed before it has ended;
//! - a writer that was paused within a flush: so the tombstone must be older than any such pause.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use serde::Deserialize;
use serde_json::json;

use super::SearchTarget;

/// Documents that one request removes: some seconds of the server's time.
const STEP_DOCUMENTS: usize = 10_000;

impl SearchTarget {
    /// Removes the unneeded tombstones of a projection that were written before this time (milliseconds since the Unix
    /// epoch); returns how many. With `is_rehearsal` it only counts them.
    pub async fn sweep(&self, projection: &str, before_ms: u64, is_rehearsal: bool) -> Result<u64, Fault> {
        let generations = self.generations(projection).await?;
        if let Some(building) = generations.building {
            return Err(self.unswept(projection, format!("index {building} is being built")));
        }
        let index = generations.serving;
        let mut rows = self.progress().await?;
        rows.retain(|row| row.projection == projection);
        if let Some(row) = rows.iter().find(|row| row.progress.is_replaying() || !row.is_trusted) {
            let found = format!(
                "lane {} of source {} is replaying, or its progress is damaged",
                row.lane, row.source
            );
            return Err(self.unswept(projection, found));
        }
        self.client().await?.refresh(&index).await?;
        let mut sources: Vec<&str> = rows.iter().map(|row| row.source.as_str()).collect();
        sources.sort_unstable();
        sources.dedup();
        let mut removed = 0;
        for source in sources {
            let of_source = rows.iter().filter(|row| row.source == source);
            // Any lane of the source may own the claim, so the lowest position counts.
            let passed = of_source.map(|row| row.progress.position).min().unwrap_or(Lsn::ZERO);
            removed += self.sweep_source(&index, (source, passed), before_ms, is_rehearsal).await?;
        }
        Ok(removed)
    }

    async fn sweep_source(
        &self,
        index: &str,
        (source, passed): (&str, Lsn),
        before_ms: u64,
        is_rehearsal: bool,
    ) -> Result<u64, Fault> {
        #[derive(Deserialize)]
        struct Response {
            #[serde(alias = "count")]
            deleted: u64,
        }
        let filter = json!([
            { "term": { "withdrawn": true } },
            { "term": { "source": source } },
            { "range": { "lsn": { "lte": passed.as_u64() } } },
            { "range": { "withdrawn_at": { "lt": before_ms, "format": "epoch_millis" } } },
        ]);
        let query = json!({ "query": { "bool": { "filter": filter } } }).to_string();
        let (client, thing) = (self.client().await?, format!(", index {index}"));
        let path = match is_rehearsal {
            true => format!("/{index}/_count"),
            // Documents that were written meanwhile stay.
            false => {
                format!("/{index}/_delete_by_query?conflicts=proceed&refresh=true&max_docs={STEP_DOCUMENTS}")
            }
        };
        let mut removed = 0;
        loop {
            let answer = client.post(&path, query.clone()).await?.success(&thing)?.read::<Response>()?;
            removed += answer.deleted;
            if is_rehearsal || answer.deleted == 0 {
                return Ok(removed);
            }
        }
    }

    fn unswept(&self, projection: &str, found: String) -> Fault {
        let subject = format!("{}, projection {projection}", self.subject());
        Fault::new(Code::ReplayRefused, subject, found)
            .needs("no rebuild and no replay: they apply old changes, which tombstones keep out")
            .remedy("wait for its end, which `anabranch --config FILE status` shows")
    }
}
