//! The present holders of leases, for people who look: one pass over the bucket, in which each key has one message.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::ConsumerErrorKind;
use bytes::Bytes;
use futures::StreamExt;

use super::lease::key_of;
use super::{NatsLog, error};

/// The server removes the consumer of a pass after this time.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(5);
/// Room for renewals that arrive during a pass: each of them is one more message of a key.
const RENEWALS_MAX: u64 = 256;

/// The process that holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    pub host: String,
    pub process_id: u32,
    /// This process holds the lease.
    pub is_own: bool,
}

impl NatsLog {
    /// Returns the holder of each held lease by the lease's key. A lease that changes hands during the call may be
    /// returned with either holder, or be left out.
    pub async fn lease_holders(&self) -> Result<BTreeMap<String, LeaseHolder>, Fault> {
        let bucket = self.lease_bucket();
        let title = format!("bucket {bucket}");
        let consumer = self.holders_consumer(&bucket, &title).await?;
        let pending = consumer.cached_info().num_pending;
        let mut holders = BTreeMap::new();
        if pending == 0 {
            return Ok(holders);
        }
        let unanswered = || Fault::new(Code::LogUnreachable, title.clone(), "its keys cannot be read");
        let messages_max =
            usize::try_from(pending.saturating_mul(2).saturating_add(RENEWALS_MAX)).unwrap_or(usize::MAX);
        let mut messages = consumer
            .fetch()
            .max_messages(messages_max)
            .messages()
            .await
            .map_err(|error| unanswered().caused_by(error))?;
        let prefix = format!("$KV.{bucket}.");
        while let Some(message) = messages.next().await {
            let message = message.map_err(|error| unanswered().caused_by(error))?;
            if let Some(key) = message.subject.strip_prefix(&prefix) {
                // The message that deletes a key is empty.
                match self.holder(&message.payload) {
                    Some(holder) => holders.insert(key_of(key), holder),
                    None => holders.remove(&key_of(key)),
                };
            }
            // The last message that the bucket has now ends the pass.
            if message.info().is_ok_and(|info| info.pending == 0) {
                break;
            }
        }
        Ok(holders)
    }

    async fn holders_consumer(&self, bucket: &str, title: &str) -> Result<PullConsumer, Fault> {
        let config = pull::Config {
            description: Some("Anabranch: holders of leases".to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE_THRESHOLD,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let stream = format!("KV_{bucket}");
        let made = self.connection.context().create_consumer_on_stream(config, stream.as_str()).await;
        made.map_err(|error| match error.kind() {
            ConsumerErrorKind::JetStream(refusal) => error::refused(title, refusal),
            _ => Fault::new(Code::LogUnreachable, title, "no consumer could be made").caused_by(error),
        })
    }

    /// Parses the value of a lease: host, process id and random bits.
    fn holder(&self, value: &Bytes) -> Option<LeaseHolder> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.rsplitn(3, ' ').skip(1);
        let process_id = parts.next()?.parse().ok()?;
        let host = parts.next()?.to_owned();
        Some(LeaseHolder { host, process_id, is_own: self.held_leases.has(value) })
    }
}
