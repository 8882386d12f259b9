//! Marks: texts in a bucket whose keys never grow old, raised by the revision known.
//!
//! Reading may be answered by a member of a cluster that lags behind: the revision is then an old one and raising is
//! refused, so no reading needs to be the newest.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::{Mark, Marks};
use async_nats::jetstream::kv::{Operation, Store, UpdateErrorKind};

use super::lease::valid_key;
use super::{NatsLog, setup};

impl Marks for NatsLog {
    async fn read(&self, key: &str) -> Result<Mark, Fault> {
        let bucket = self.marks().await?;
        let entry = bucket.entry(valid_key(key)).await.map_err(|error| unanswered(key).caused_by(error))?;
        let Some(entry) = entry else { return Ok(Mark::default()) };
        match (entry.operation, String::from_utf8(entry.value.into())) {
            (Operation::Put, Ok(value)) => Ok(Mark { value, revision: entry.revision }),
            (Operation::Put, Err(_)) => Err(Fault::new(Code::LogForeign, title(key), "its value is no text")
                .needs("a bucket that nobody else writes")),
            (Operation::Delete | Operation::Purge, _) => {
                Err(Fault::new(Code::LogForeign, title(key), "it was deleted")
                    .needs("every mark ever stored"))
            }
        }
    }

    async fn raise(&self, key: &str, known: &Mark, value: String) -> Result<Mark, Fault> {
        let stored = value.clone().into();
        let bucket = self.marks().await?;
        failpoints::reach("mark-before-raise").await;
        let updated = bucket.update(valid_key(key), stored, known.revision).await;
        failpoints::reach("mark-after-raise").await;
        match updated {
            Ok(revision) => Ok(Mark { value, revision }),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                Err(Fault::new(Code::LeaseLost, title(key), "another process raised it"))
            }
            Err(error) => Err(unanswered(key).caused_by(error)),
        }
    }
}

impl NatsLog {
    async fn marks(&self) -> Result<Store, Fault> {
        let name = self.mark_bucket();
        setup::require_marks(self.connection.context(), &self.config, &name).await?;
        self.connection
            .context()
            .get_key_value(&name)
            .await
            .map_err(|error| unanswered(&name).caused_by(error))
    }
}

fn title(key: &str) -> String {
    format!("mark {key}")
}

fn unanswered(key: &str) -> Fault {
    Fault::new(Code::LogUnreachable, title(key), "no answer")
}
