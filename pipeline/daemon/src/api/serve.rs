//! Serves connections within bounds: their number, the time for the head of a request, and the time that a write waits.
//!
//! All connections share the file descriptors of the process. Without bounds, a client with many or idle connections
//! could use them up, and the daemon could not connect to sources, log and targets. Further connections wait in the
//! kernel's queue. `guard.rs` bounds single requests, and the time for a body.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::unread::WriteBound;

/// Connections at once: twice the requests that `guard.rs` lets in, so that probes and scrapes find room beside them.
const CONNECTIONS_MAX: u32 = 512;
/// Time for the request line and headers, which are one packet or a few; an idle connection ends after it too.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for a body: enough for 64 KiB over a slow line, and short enough to leave the answer its time.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
/// Time that a write may wait: a client that takes no bytes for so long has stopped reading its answer.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause before the next try when the process or machine has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Bounds that one listener sets its clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionBounds {
    pub connections: u32,
    pub head_time: Duration,
    /// Time for a body, which `guard.rs` enforces.
    pub body_time: Duration,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        Self { connections: CONNECTIONS_MAX, head_time: HEAD_TIME_MAX, body_time: BODY_TIME_MAX }
    }
}

/// Serves until `cancel`; then accepts no more, and returns when every connection has ended after its present request.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: ConnectionBounds,
    cancel: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(bounds.connections as usize));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(bounds.head_time);
    loop {
        // The permit is taken before the connection is accepted, so no descriptor is held without a permit.
        let accepted = async {
            let place = room.clone().acquire_owned().await.expect("it is never closed");
            (place, accept(&listener).await)
        };
        let (place, stream) = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = accepted => accepted,
        };
        let stream = WriteBound::new(stream, WRITE_TIME_MAX);
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let cancel = cancel.clone();
        tokio::spawn(async move {
            let _place = place;
            let mut connection = std::pin::pin!(connection);
            // The result is ignored: a client that breaks off or is too slow is no fault of the daemon's.
            _ = tokio::select! {
                ended = connection.as_mut() => ended,
                () = cancel.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
        });
    }
    drop(listener);
    _ = room.acquire_many(bounds.connections).await;
}

/// Accepts the next connection. Retries at once if a single connection failed, otherwise after [`ACCEPT_PAUSE`].
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) if of_one_connection(error.kind()) => {}
            Err(error) => {
                tracing::error!(%error, "the HTTP listener cannot take a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether an error concerns only the connection that was to be accepted, and not the listener.
fn of_one_connection(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}
