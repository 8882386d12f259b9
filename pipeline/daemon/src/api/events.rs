//! `GET /v1/events`: the status once a second, as server-sent events.
//!
//! One producer makes each document, once for all streams, and only while a stream is open. A stream holds one of
//! [`STREAMS_MAX`] places until its client goes away, or until `unread.rs` drops a client that does not read. A client
//! that sends no token gets the document without the texts of faults, which name hosts and accounts, without the
//! holders of leases, and without the busiest tables.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_pipeline::error::Code;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::{Served, Shared, StatusAnswer};

/// Streams that may be open at once, fewer than the connections of `serve.rs`, so that other requests find room.
pub(super) const STREAMS_MAX: usize = 100;
/// Pause between two documents; the observations are polled about as often.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time without a document after which a comment shows the client that its connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// One second's document, ready to be sent.
#[derive(Debug)]
struct Tick {
    full: Bytes,
    short: Bytes,
}

/// State that the producer and all streams share.
#[derive(Debug)]
pub(super) struct Events {
    newest: watch::Sender<Option<Arc<Tick>>>,
    places: Arc<Semaphore>,
    /// Wakes the producer when a first stream has begun.
    begun: Notify,
    /// Ends every stream, so that the listener can stop.
    cancel: CancellationToken,
}

impl Events {
    pub fn new(cancel: CancellationToken) -> Self {
        let places = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { newest: watch::Sender::new(None), places, begun: Notify::new(), cancel }
    }
}

/// Makes the documents until `cancel`.
pub(super) async fn produce(served: Arc<Served>) {
    let events = &served.events;
    let work = async {
        loop {
            if events.newest.receiver_count() == 0 {
                events.begun.notified().await;
            }
            events.newest.send_replace(Some(Arc::new(tick(&served))));
            tokio::time::sleep(INTERVAL).await;
        }
    };
    events.cancel.run_until_cancelled(work).await;
}

fn tick(served: &Served) -> Tick {
    let mut answer = served.status(Instant::now());
    let full = event(&answer);
    answer.status.leave_out_faults();
    Tick { full, short: event(&answer) }
}

fn event(answer: &StatusAnswer) -> Bytes {
    let document = serde_json::to_string(answer).expect("a status holds text and numbers only");
    format!("event: status\ndata: {document}\n\n").into()
}

/// One client's stream.
struct Stream {
    /// A document that is sent without waiting for a newer one.
    first: Option<Arc<Tick>>,
    newest: watch::Receiver<Option<Arc<Tick>>>,
    is_known: bool,
    cancel: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// Returns the next bytes to send; `None` when the daemon stops.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(self.part(&first));
        }
        tokio::select! {
            () = self.cancel.cancelled() => None,
            changed = self.newest.changed() => {
                changed.ok()?;
                let newest = self.newest.borrow_and_update().clone()?;
                Some(self.part(&newest))
            }
            () = tokio::time::sleep(KEEP_ALIVE) => Some(Bytes::from_static(b": keep-alive\n\n")),
        }
    }

    fn part(&self, tick: &Tick) -> Bytes {
        if self.is_known { tick.full.clone() } else { tick.short.clone() }
    }
}

pub(super) async fn stream(
    State(Shared(served)): State<Shared>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let is_known = served.guard.knows_sender("/v1/events", &headers)?;
    let events = &served.events;
    let place = events.places.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{STREAMS_MAX} streams of events are open");
        Problem::new(Code::TooManyRequests, detail, "close a page that is not in use, or ask another daemon")
            .with_header(header::CONNECTION, "close")
    })?;
    let cancel = events.cancel.clone();
    // With other streams open, the newest document is at most a second old and is sent at once; else it may be old.
    let is_fresh = events.newest.receiver_count() > 0;
    let newest = events.newest.subscribe();
    let first = if is_fresh { newest.borrow().clone() } else { None };
    let stream = Stream { first, newest, is_known, cancel, _place: place };
    events.begun.notify_one();
    let parts = futures::stream::unfold(stream, |mut stream: Stream| async move {
        let part = stream.next().await?;
        Some((Ok::<_, Infallible>(part), stream))
    });
    let head = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((head, Body::from_stream(parts)).into_response())
}
