//! A coupon system over HTTP, by the contract in `docs/coupon-system.md`.
//!
//! A call is sent once, over a connection that was opened before: nothing here repeats a call or reopens its closed
//! connection. A page of the statement is asked for again after a fault that may pass. `connection.rs` opens and keeps
//! connections, `messages.rs` has the bodies, `outcome.rs` translates a status. Redirects are not followed.

mod connection;
mod messages;
mod outcome;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_coupons::ports::{Answer, CouponSystem, GiftPage};
use anabranch_coupons::records::CouponKey;
use anabranch_pipeline::config::{Secret, ServerUrl};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::retry;
use jiff::Timestamp;
use tokio::time::Instant;

pub use self::connection::CouponConnection;
use self::connection::{Connector, Exchange};
use self::outcome::Refusal;

/// Most keys of one request; the contract promises room for as many.
const REQUEST_KEYS_MAX: usize = 100;
/// After a refusal no request is sent for this time.
const REFUSAL_PAUSE: Duration = Duration::from_secs(30);

/// Address of the coupon system, and settings of calls.
#[derive(Debug, Clone)]
pub struct CouponSystemSettings {
    /// `https://host:port`, or `http://` for plain text. Its user and password are not used.
    pub url: ServerUrl,
    /// Sent as `authorization: Bearer …`.
    pub token: Option<Secret>,
    /// The authorities that are trusted for `https://`; `None` = those of the machine.
    pub ca_file: Option<PathBuf>,
    /// A request carries many keys; otherwise it carries one.
    pub is_batched: bool,
    /// The longest wait for a connection, and for an answer.
    pub timeout: Duration,
}

/// The coupon system. Its users share its connections.
#[derive(Debug)]
pub struct HttpCouponSystem {
    connector: Connector,
    is_batched: bool,
    /// The last refusal of a whole request, and the time until which no request is sent.
    refusal: Mutex<Option<(Refusal, Instant)>>,
}

impl HttpCouponSystem {
    /// Reads the authorities; it does not connect yet.
    pub fn new(settings: &CouponSystemSettings) -> Result<Self, Fault> {
        let connector = Connector::new(settings)?;
        Ok(Self { connector, is_batched: settings.is_batched, refusal: Mutex::default() })
    }

    /// The coupon system, as faults name it.
    pub fn subject(&self) -> &str {
        self.connector.subject()
    }

    fn refusal(&self) -> MutexGuard<'_, Option<(Refusal, Instant)>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault of the last refusal while its pause lasts.
    fn require_no_refusal(&self) -> Result<(), Fault> {
        let now = Instant::now();
        let mut refusal = self.refusal();
        if refusal.as_ref().is_some_and(|(_, until)| *until <= now) {
            *refusal = None;
        }
        refusal.as_ref().map_or(Ok(()), |(refusal, _)| Err(refusal.fault(self.subject())))
    }

    fn record_refusal(&self, refusal: Refusal) {
        let pause = refusal.pause().unwrap_or(REFUSAL_PAUSE);
        tracing::warn!(fault = %refusal.fault(self.subject()), "the coupon system refused a request");
        *self.refusal() = Some((refusal, Instant::now() + pause));
    }

    /// Sends one request for these coupons; returns the meaning of its answer for each coupon.
    async fn ask_for(&self, connection: &CouponConnection, coupons: &[(CouponKey, Arc<str>)]) -> Vec<Answer> {
        let request = match coupons {
            [(key, coupon)] if !self.is_batched => messages::single(key, coupon),
            coupons => messages::batch(coupons),
        };
        let answers = match connection.send(request).await {
            Exchange::NotSent => Ok(vec![Answer::ConnectionExpired; coupons.len()]),
            Exchange::Unanswered(fault) => {
                tracing::debug!(%fault, "a call has no answer");
                Ok(vec![Answer::Unknown; coupons.len()])
            }
            Exchange::Answered(response) if self.is_batched => outcome::of_batch(&response, coupons),
            Exchange::Answered(response) => outcome::of_single(&response).map(|answer| vec![answer]),
        };
        answers.unwrap_or_else(|refusal| {
            self.record_refusal(refusal);
            vec![Answer::Busy; coupons.len()]
        })
    }

    async fn known_keys(&self, keys: &[CouponKey]) -> Result<Vec<bool>, Fault> {
        let connection = self.connect().await?;
        match connection.send(messages::query(keys)).await {
            Exchange::NotSent => Err(unreachable(self.subject(), "the connection was closed")),
            Exchange::Unanswered(fault) => Err(fault),
            Exchange::Answered(response) => {
                outcome::of_query(&response, keys, self.subject())?.map_err(|refusal| self.refused(refusal))
            }
        }
    }

    /// Asks once for a page of the statement, when the pause after the last refusal is over.
    async fn page(&self, since: Timestamp, position: u64) -> Result<Option<GiftPage>, Fault> {
        if let Some(pause) = self.pause() {
            tokio::time::sleep(pause).await;
        }
        let connection = self.connect().await?;
        match connection.send(messages::given(since, position)).await {
            Exchange::NotSent => Err(unreachable(self.subject(), "the connection was closed")),
            Exchange::Unanswered(fault) => Err(fault),
            Exchange::Answered(response) => outcome::of_given(&response, position, self.subject())?
                .map_err(|refusal| self.refused(refusal)),
        }
    }

    /// Records a refusal and returns its fault.
    fn refused(&self, refusal: Refusal) -> Fault {
        let fault = refusal.fault(self.subject());
        self.record_refusal(refusal);
        fault
    }
}

impl CouponSystem for HttpCouponSystem {
    type Connection = CouponConnection;

    async fn connect(&self) -> Result<CouponConnection, Fault> {
        self.require_no_refusal()?;
        self.connector.connect().await
    }

    async fn call(
        &self,
        connection: &CouponConnection,
        coupons: &[(CouponKey, Arc<str>)],
    ) -> Result<Vec<Answer>, Fault> {
        let at_once = if self.is_batched { REQUEST_KEYS_MAX } else { 1 };
        let mut answers = Vec::with_capacity(coupons.len());
        for some in coupons.chunks(at_once) {
            // A system that has just refused a request is not sent the next one.
            match self.require_no_refusal() {
                Ok(()) => answers.extend(self.ask_for(connection, some).await),
                Err(_) => answers.extend(some.iter().map(|_| Answer::Busy)),
            }
        }
        Ok(answers)
    }

    fn pause(&self) -> Option<Duration> {
        self.refusal().as_ref().map(|(_, until)| until.saturating_duration_since(Instant::now()))
    }

    async fn knows(&self, keys: &[CouponKey]) -> Result<Vec<bool>, Fault> {
        let mut known = Vec::with_capacity(keys.len());
        for some in keys.chunks(REQUEST_KEYS_MAX) {
            known.extend(self.known_keys(some).await?);
        }
        Ok(known)
    }

    async fn statement(&self, since: Timestamp, position: u64) -> Result<Option<GiftPage>, Fault> {
        // The question changes nothing. Without another attempt one lost page would discard all pages before it.
        retry::again(|| Box::pin(self.page(since, position))).await
    }
}

fn unreachable(subject: &str, found: &str) -> Fault {
    Fault::new(Code::CouponSystemUnreachable, subject, found)
}
