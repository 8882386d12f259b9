//! Forgets a source that left for good: its tombstones and its dead letters. Its documents are foreign rows, which
//! `rows.rs` removes.
//!
//! A tombstone keeps an older write of its claim from coming back. The source's lanes were set back to nothing before,
//! so no process commits such a write any more.

use anabranch_pipeline::error::{Code, Fault};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::SearchTarget;

/// Documents that one request removes: some seconds of the server's time.
const STEP_DOCUMENTS: usize = 10_000;

/// Documents of a source beside those that searches find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceTraces {
    pub tombstones: u64,
    pub dead_letters: u64,
}

/// The server's answer to a search that removes or counts tombstones.
#[derive(Debug, Deserialize)]
struct Forgotten {
    #[serde(alias = "count")]
    deleted: u64,
    #[serde(default)]
    version_conflicts: u64,
    #[serde(default)]
    timed_out: bool,
    #[serde(default)]
    failures: Vec<IgnoredAny>,
}

impl Forgotten {
    /// Describes why tombstones may be left that the answer does not count; `None` if it counts all.
    fn cut_short(&self) -> Option<String> {
        let reason = match self {
            Self { timed_out: true, .. } => "ran out of time".to_owned(),
            Self { failures, .. } if !failures.is_empty() => {
                format!("failed on {} shards or documents", failures.len())
            }
            // Other documents went, so the next search meets these ones again.
            Self { version_conflicts: 1.., deleted: 0, .. } => {
                format!("left {} documents that changed meanwhile", self.version_conflicts)
            }
            _ => return None,
        };
        Some(format!("its removal of tombstones {reason}"))
    }
}

impl SearchTarget {
    /// Removes tombstones and dead letters of a source from a projection; returns how many. With `is_rehearsal` it only
    /// counts them.
    pub async fn forget_source(
        &self,
        projection: &str,
        source: &str,
        is_rehearsal: bool,
    ) -> Result<SourceTraces, Fault> {
        let tombstones = self.forget_tombstones_of(projection, source, is_rehearsal).await?;
        let dead_letters = self.forget_letters_of(projection, source, is_rehearsal).await?;
        Ok(SourceTraces { tombstones, dead_letters })
    }

    async fn forget_tombstones_of(
        &self,
        projection: &str,
        source: &str,
        is_rehearsal: bool,
    ) -> Result<u64, Fault> {
        let index = self.generations(projection).await?.serving;
        let (client, thing) = (self.client().await?, format!(", index {index}"));
        client.refresh(&index).await?;
        let filter = json!([{ "term": { "withdrawn": true } }, { "term": { "source": source } }]);
        let query = json!({ "query": { "bool": { "filter": filter } } }).to_string();
        let path = match is_rehearsal {
            true => format!("/{index}/_count"),
            false => {
                format!("/{index}/_delete_by_query?conflicts=proceed&refresh=true&max_docs={STEP_DOCUMENTS}")
            }
        };
        let mut forgotten = 0;
        loop {
            let answer = client.post(&path, query.clone()).await?.success(&thing)?.read::<Forgotten>()?;
            if let Some(found) = answer.cut_short() {
                let subject = format!("{}{thing}", self.subject());
                return Err(Fault::new(Code::TargetUnreachable, subject, found)
                    .needs("an answer about every tombstone of the source")
                    .remedy("repeat the command: it goes on with what is left"));
            }
            forgotten += answer.deleted;
            if is_rehearsal || answer.deleted == 0 {
                return Ok(forgotten);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_may_leave_tombstones_is_cut_short() {
        let cut_short = |answer| serde_json::from_value::<Forgotten>(answer).unwrap().cut_short();
        assert_eq!(cut_short(json!({ "count": 3, "_shards": { "failed": 0 } })), None);
        assert_eq!(cut_short(json!({ "deleted": 2, "version_conflicts": 1, "failures": [] })), None);
        let expected = "its removal of tombstones left 1 documents that changed meanwhile";
        assert_eq!(cut_short(json!({ "deleted": 0, "version_conflicts": 1 })).as_deref(), Some(expected));
        assert!(cut_short(json!({ "deleted": 2, "timed_out": true })).is_some());
        let failures = json!([{ "index": "i", "status": 500 }]);
        assert!(cut_short(json!({ "deleted": 2, "failures": failures })).is_some());
    }
}
