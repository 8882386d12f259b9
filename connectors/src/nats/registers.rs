//! Registers: texts in a bucket whose keys never expire; a writer must know a key's last revision.
//!
//! Keys of callers ([`INTAKE`]) lie in a bucket of their own, which forgets them after a day and takes no more than its
//! size: a caller that fills it harms no other register. Earlier versions kept them beside the others, where they still
//! count.
//!
//! A lagging member of a cluster may answer a read. Its revision is then old and the next write is refused, so no read
//! needs to be the newest.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::{INTAKE, Register, Registers};
use async_nats::jetstream::kv::{Operation, Store, UpdateError, UpdateErrorKind};

use super::error::refusal_beneath;
use super::lease::valid_key;
use super::{NatsLog, error, setup};

impl Registers for NatsLog {
    async fn read(&self, key: &str) -> Result<Register, Fault> {
        if key.starts_with(INTAKE) {
            let register = read(&self.intake().await?, key).await?;
            if register.revision != 0 {
                return Ok(register);
            }
        }
        read(&self.registers().await?, key).await
    }

    async fn compare_and_set(&self, key: &str, known: &Register, value: String) -> Result<Register, Fault> {
        let stored = value.clone().into();
        let is_intake = key.starts_with(INTAKE);
        let bucket = if is_intake { self.intake().await? } else { self.registers().await? };
        failpoints::reach("register-before-set").await;
        let updated = bucket.update(valid_key(key), stored, known.revision).await;
        failpoints::reach("register-after-set").await;
        match updated {
            Ok(revision) => Ok(Register { value, revision }),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                Err(Fault::new(Code::LeaseLost, title(key), "another process raised it"))
            }
            Err(error) if is_intake && is_full(&error) => Err(keys_full(&bucket.name)),
            Err(error) => Err(unanswered(key).caused_by(error)),
        }
    }
}

async fn read(bucket: &Store, key: &str) -> Result<Register, Fault> {
    let entry = bucket.entry(valid_key(key)).await.map_err(|error| unanswered(key).caused_by(error))?;
    let Some(entry) = entry else { return Ok(Register::default()) };
    match (entry.operation, String::from_utf8(entry.value.into())) {
        (Operation::Put, Ok(value)) => Ok(Register { value, revision: entry.revision }),
        (Operation::Put, Err(_)) => Err(Fault::new(Code::LogForeign, title(key), "its value is no text")
            .needs("a bucket that nobody else writes")),
        (Operation::Delete | Operation::Purge, _) => {
            Err(Fault::new(Code::LogForeign, title(key), "it was deleted")
                .needs("every register ever stored"))
        }
    }
}

impl NatsLog {
    async fn registers(&self) -> Result<Store, Fault> {
        let name = self.register_bucket();
        setup::require_registers(self.connection.context(), &self.config, &name).await?;
        self.bucket(&name).await
    }

    async fn intake(&self) -> Result<Store, Fault> {
        let name = self.intake_bucket();
        setup::require_intake(self.connection.context(), &self.config, &name).await.map_err(|fault| {
            // If the server has no room even for the bucket, that concerns callers' keys alone.
            if fault.code() == Code::LogFull { keys_full(&name) } else { fault }
        })?;
        self.bucket(&name).await
    }

    async fn bucket(&self, name: &str) -> Result<Store, Fault> {
        let found = self.connection.context().get_key_value(name).await;
        found.map_err(|error| unanswered(name).caused_by(error))
    }
}

fn is_full(error: &UpdateError) -> bool {
    refusal_beneath(error).is_some_and(|refusal| error::refused("", refusal).code() == Code::LogFull)
}

fn keys_full(bucket: &str) -> Fault {
    Fault::new(
        Code::UuidsKeysFull,
        format!("bucket {bucket}"),
        "it has no room for a further idempotency key",
    )
    .needs("keys that name an intake or a batch, not each request; a key is forgotten after a day")
    .remedy("send this request without idempotency-key, or later")
}

fn title(key: &str) -> String {
    format!("register {key}")
}

fn unanswered(key: &str) -> Fault {
    Fault::new(Code::LogUnreachable, title(key), "no answer")
}
