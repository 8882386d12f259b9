//! Leases: a key of a bucket whose entries expire; the holder rewrites it with the revision that it knows.
//!
//! The server's revision decides every step, so at most one process holds a key by the server's clock. The holder gives
//! up earlier, by its own monotonic clock, counted from the moment before each renewal was sent. So no two processes
//! hold it at once, unless a process is paused and finds out when it wakes: a lease saves work and fences nothing.
//! Per-key time to live is deliberately not used: the client library loses it with the first update.
//!
//! Processes that start together share the work: each begins at a random moment, and waits longer the more leases it
//! holds. No process gives a held lease away for that.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use async_nats::jetstream::kv::{CreateErrorKind, Operation, Store, UpdateErrorKind};
use bytes::Bytes;
use metrics::{Gauge, gauge};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::Connection;
use super::{NatsLog, error, setup};

/// Four renewals fit into a lease's life, so one or two lost answers do no harm.
const RENEWAL_INTERVAL: Duration = LEASE_TIME_TO_LIVE.checked_div(4).expect("four is not zero");
/// The holder stops this long before the server's end of the lease.
const MARGIN: Duration = LEASE_TIME_TO_LIVE.checked_div(8).expect("eight is not zero");
/// Wait for the answer to one renewal.
const RENEWAL_TIMEOUT: Duration = RENEWAL_INTERVAL;
/// Wait for a renewal in progress, and for the lease to be freed.
const RELEASE_TIMEOUT: Duration = LEASE_TIME_TO_LIVE.checked_div(2).expect("two is not zero");
/// Wait between two attempts to take a lease. A random part of up to half as much and [`COURTESY_MS`] are added: a
/// lease whose holder is gone has a new one within 5 s.
const ACQUIRE_INTERVAL_MS: u64 = 250;
/// The first attempt comes at a random moment within this time.
const FIRST_ATTEMPT_MS: u64 = 250;
/// Further wait for each lease that this process holds, up to five of them.
const COURTESY_MS: u64 = 40;
const COURTESY_LEASES_MAX: usize = 5;

impl Leases for NatsLog {
    type Lease = NatsLease;

    async fn acquire(&self, key: &str) -> Result<NatsLease, Fault> {
        self.acquire_or_stand_by(key, &|| ()).await
    }

    async fn acquire_or_stand_by(
        &self,
        key: &str,
        on_standby: &(dyn Fn() + Send + Sync),
    ) -> Result<NatsLease, Fault> {
        setup::require_leases(self.connection.context(), &self.config, &self.lease_bucket()).await?;
        let gauge = self.held_leases.gauge(key);
        let lease_request =
            LeaseRequest::new(Arc::clone(&self.connection), &self.lease_bucket(), key).await?;
        sleep(Duration::from_millis(rand::random_range(0..FIRST_ATTEMPT_MS))).await;
        loop {
            sleep(self.held_leases.courtesy()).await;
            let asked = Instant::now();
            failpoints::reach("lease-before-take").await;
            if let Some(revision) = lease_request.try_acquire().await? {
                failpoints::reach("lease-after-take").await;
                let held = self.held_leases.one_more(gauge, lease_request.holder.clone());
                return Ok(NatsLease::hold(lease_request, revision, asked, held));
            }
            on_standby();
            let jitter = rand::random_range(0..ACQUIRE_INTERVAL_MS / 2);
            sleep(Duration::from_millis(ACQUIRE_INTERVAL_MS + jitter)).await;
        }
    }
}

/// The values of the leases that this process holds.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldLeases(Arc<Mutex<BTreeSet<Bytes>>>);

impl HeldLeases {
    /// Returns the gauge that shows whether this process holds the lease; it starts at 0.
    fn gauge(&self, key: &str) -> Gauge {
        let gauge = gauge!(names::LEASE_HELD, "task" => key.to_owned());
        gauge.set(0.0);
        gauge
    }

    fn one_more(&self, gauge: Gauge, value: Bytes) -> HeldLease {
        self.lock().insert(value.clone());
        gauge.set(1.0);
        HeldLease { all: self.clone(), value, gauge }
    }

    /// Returns whether this process holds the lease of this value.
    pub(super) fn has(&self, value: &Bytes) -> bool {
        self.lock().contains(value)
    }

    fn courtesy(&self) -> Duration {
        let leases = self.lock().len().min(COURTESY_LEASES_MAX);
        Duration::from_millis(COURTESY_MS * leases as u64)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Bytes>> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held lease among the [`HeldLeases`], until it is dropped.
#[derive(Debug)]
struct HeldLease {
    all: HeldLeases,
    value: Bytes,
    gauge: Gauge,
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.all.lock().remove(&self.value);
        self.gauge.set(0.0);
    }
}

/// One process's request for one key.
struct LeaseRequest {
    bucket: Store,
    key: String,
    /// Host, process id and 64 random bits: unique for ever.
    holder: Bytes,
    title: String,
    /// Keeps the connection open.
    _connection: Arc<Connection>,
}

/// Outcome of a renewal.
enum Renewal {
    Renewed(u64),
    /// Another process holds the key, or the key is gone.
    Refused,
    Unanswered,
}

impl LeaseRequest {
    async fn new(connection: Arc<Connection>, bucket: &str, key: &str) -> Result<Self, Fault> {
        let title = format!("lease {key}");
        let store = connection.context().get_key_value(bucket).await.map_err(|error| {
            Fault::new(Code::LogUnreachable, format!("bucket {bucket}"), "no answer").caused_by(error)
        })?;
        let holder = format!("{} {} {:016x}", host(), std::process::id(), rand::random::<u64>());
        Ok(Self { bucket: store, key: valid_key(key), holder: holder.into(), title, _connection: connection })
    }

    /// Takes the key if it is free; returns its revision, or `None` if another process holds it.
    async fn try_acquire(&self) -> Result<Option<u64>, Fault> {
        match self.bucket.create(&self.key, self.holder.clone()).await {
            Ok(revision) => Ok(Some(revision)),
            Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(None),
            // A lost race or a lost answer: the read of the entry then reports a server that is gone.
            Err(error) => match self.bucket.entry(&self.key).await {
                // The key was created; only the answer was lost.
                Ok(Some(entry)) if entry.value == self.holder => Ok(Some(entry.revision)),
                Ok(_) => {
                    match error::refusal_beneath(&error).map(|refusal| error::refused(&self.title, refusal)) {
                        Some(fault) if fault.code() != Code::LogFenced => Err(fault),
                        _ => {
                            tracing::debug!(lease = self.title, %error, "not taken");
                            Ok(None)
                        }
                    }
                }
                Err(error) => {
                    Err(Fault::new(Code::LogUnreachable, self.title.clone(), "no answer").caused_by(error))
                }
            },
        }
    }

    async fn renew(&self, revision: u64) -> Renewal {
        let update = self.bucket.update(&self.key, self.holder.clone(), revision);
        match timeout(RENEWAL_TIMEOUT, update).await {
            Ok(Ok(revision)) => Renewal::Renewed(revision),
            Ok(Err(error)) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                self.after_refusal().await
            }
            Ok(Err(_)) | Err(_) => Renewal::Unanswered,
        }
    }

    /// Renews after a refusal if the key still holds our value: an earlier renewal was stored, and its answer was lost.
    async fn after_refusal(&self) -> Renewal {
        let entry = match timeout(RENEWAL_TIMEOUT, self.bucket.entry(&self.key)).await {
            Ok(Ok(entry)) => entry,
            Ok(Err(_)) | Err(_) => return Renewal::Unanswered,
        };
        let ours = entry.filter(|entry| entry.operation == Operation::Put && entry.value == self.holder);
        let Some(entry) = ours else { return Renewal::Refused };
        match timeout(RENEWAL_TIMEOUT, self.bucket.update(&self.key, self.holder.clone(), entry.revision))
            .await
        {
            Ok(Ok(revision)) => Renewal::Renewed(revision),
            Ok(Err(error)) if error.kind() == UpdateErrorKind::WrongLastRevision => Renewal::Refused,
            Ok(Err(_)) | Err(_) => Renewal::Unanswered,
        }
    }

    /// Frees the key if its revision is still ours.
    async fn free(&self, revision: u64) {
        failpoints::reach("lease-before-release").await;
        let delete = self.bucket.delete_expect_revision(&self.key, Some(revision));
        match timeout(RENEWAL_TIMEOUT, delete).await {
            Ok(Ok(())) => {}
            // The key expires after its time to live.
            Ok(Err(error)) => tracing::debug!(lease = self.title, %error, "not released"),
            Err(_) => tracing::debug!(lease = self.title, "not released in time"),
        }
        failpoints::reach("lease-after-release").await;
    }
}

/// A held key; a task of its own renews it.
#[derive(Debug)]
pub struct NatsLease {
    title: String,
    lost: watch::Receiver<Option<&'static str>>,
    release: oneshot::Sender<()>,
    renewal: Renewing,
    _held: HeldLease,
}

/// The task that renews a lease; dropping this stops it.
#[derive(Debug)]
struct Renewing(JoinHandle<()>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NatsLease {
    fn hold(lease_request: LeaseRequest, revision: u64, asked: Instant, held: HeldLease) -> Self {
        let (lost_sender, lost) = watch::channel(None);
        let (release, released) = oneshot::channel();
        let title = lease_request.title.clone();
        let renewal = Renewing(tokio::spawn(renew(lease_request, revision, asked, released, lost_sender)));
        Self { title, lost, release, renewal, _held: held }
    }
}

impl Lease for NatsLease {
    async fn lost(&mut self) -> Fault {
        let found = match self.lost.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or("lost"),
            Err(_) => "its renewal ended",
        };
        Fault::new(Code::LeaseLost, self.title.clone(), found)
    }

    async fn release(mut self) {
        // This fails only if the lease was lost before. A lease that is not freed in time expires.
        if self.release.send(()).is_ok() {
            timeout(RELEASE_TIMEOUT, &mut self.renewal.0).await.ok();
        }
    }
}

/// Renews until the lease is lost or released. `asked` is when the last successful write was sent.
async fn renew(
    lease_request: LeaseRequest,
    mut revision: u64,
    mut asked: Instant,
    mut released: oneshot::Receiver<()>,
    lost: watch::Sender<Option<&'static str>>,
) {
    let late = "could not be renewed in time";
    loop {
        let deadline = asked + LEASE_TIME_TO_LIVE - MARGIN;
        tokio::select! {
            biased;
            request = &mut released => {
                // Without a request the lease was dropped: it expires.
                if request.is_ok() {
                    lease_request.free(revision).await;
                }
                return;
            }
            () = sleep_until(deadline) => {
                lost.send_replace(Some(late));
                return;
            }
            () = sleep(RENEWAL_INTERVAL) => {}
        }
        failpoints::reach("lease-before-renewal").await;
        let sent = Instant::now();
        let renewal = tokio::select! {
            biased;
            () = sleep_until(deadline) => {
                lost.send_replace(Some(late));
                return;
            }
            renewal = lease_request.renew(revision) => renewal,
        };
        match renewal {
            Renewal::Renewed(new) => {
                (revision, asked) = (new, sent);
                failpoints::reach("lease-after-renewal").await;
            }
            Renewal::Unanswered => {}
            Renewal::Refused => {
                lost.send_replace(Some("another process took it"));
                return;
            }
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown".to_owned() } else { name.trim().to_owned() }
}

/// Encodes a key: letters, digits, `-`, `_` and `/` stay, every other byte becomes `=XX`.
pub(super) fn valid_key(key: &str) -> String {
    key.bytes()
        .map(|byte| match byte {
            b'-' | b'_' | b'/' => char::from(byte).to_string(),
            _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            _ => format!("={byte:02x}"),
        })
        .collect()
}

/// Decodes a key of [`valid_key`].
pub(super) fn key_of(valid: &str) -> String {
    let mut parts = valid.split('=');
    let mut key = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (number, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        key.extend(u8::from_str_radix(number, 16).ok());
        key.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8_lossy(&key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_decoded_as_it_was() {
        for key in ["lane/birthday/target-a/source_b/0", "a.b c=é", "reader/=41", ""] {
            assert_eq!(key_of(&valid_key(key)), key);
        }
        assert_eq!(key_of("a=zz="), "a", "a foreign key is no reason to fail");
    }

    #[test]
    fn keys_are_valid_and_stay_different() {
        assert_eq!(valid_key("lane/birthday/target-a/source_b/0"), "lane/birthday/target-a/source_b/0");
        assert_eq!(valid_key("a.b c=é"), "a=2eb=20c=3d=c3=a9");
        assert_ne!(valid_key("a b"), valid_key("a=20b"));
    }

    #[test]
    fn a_lease_has_a_new_holder_within_five_seconds() {
        let pause_ms =
            ACQUIRE_INTERVAL_MS * 3 / 2 + FIRST_ATTEMPT_MS.max(COURTESY_MS * COURTESY_LEASES_MAX as u64);
        assert!(LEASE_TIME_TO_LIVE + Duration::from_millis(pause_ms) < Duration::from_secs(5));
    }

    #[test]
    fn a_lost_answer_leaves_time_for_two_more_renewals() {
        assert!(RENEWAL_TIMEOUT + 2 * RENEWAL_INTERVAL < LEASE_TIME_TO_LIVE - MARGIN);
    }
}
