//! The HTTP listener: metrics, health, readiness, status. It changes nothing and shows no row values.
//!
//! `/healthz` says that the process lives, `/readyz` that every task runs and makes progress.

pub mod client;

use std::net::SocketAddr;
use std::time::Instant;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::supervise::TaskStates;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::observe::{Observatory, Reason, StatusView};

/// What the handlers show.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The configuration's name.
    pub name: String,
    pub observatory: Observatory,
    pub tasks: TaskStates,
    pub metrics: PrometheusHandle,
}

/// Answer of `/v1/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusAnswer {
    pub name: String,
    pub version: String,
    #[serde(flatten)]
    pub status: StatusView,
}

/// Answer of `/readyz`.
#[derive(Debug, Serialize)]
struct ReadyAnswer {
    ready: bool,
    reasons: Vec<Reason>,
}

/// A bound listener, not serving yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Listener {
    /// Port 0 takes any free port; [`Listener::address`] has the one taken.
    pub async fn bind(address: SocketAddr) -> Result<Self, Fault> {
        let failed = |error: std::io::Error| {
            Fault::new(Code::ListenFailed, "http.listen", format!("{address} cannot be bound"))
                .needs("an address of this machine and a free port")
                .remedy(format!(
                    "find the holder: ss -ltnp 'sport = :{}'; or set another http.listen, or port 0 for any free one",
                    address.port()
                ))
                .caused_by(error)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Serves until `cancel`; requests that are being answered are finished.
    pub async fn serve(self, shown: Shown, cancel: CancellationToken) {
        let served = axum::serve(self.listener, router(shown))
            .with_graceful_shutdown(async move { cancel.cancelled().await });
        if let Err(error) = served.await {
            tracing::error!(%error, "the HTTP listener ended");
        }
    }
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/v1/status", get(status))
        .with_state(shown)
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    shown.observatory.measure_lag(Instant::now());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shown.metrics.render())
}

async fn healthy() -> &'static str {
    "ok\n"
}

async fn ready(State(shown): State<Shown>) -> impl IntoResponse {
    let reasons = shown.observatory.reasons_against_ready(&shown.tasks.snapshot(), Instant::now());
    let code = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(ReadyAnswer { ready: reasons.is_empty(), reasons }))
}

async fn status(State(shown): State<Shown>) -> Json<StatusAnswer> {
    let status = shown.observatory.status(&shown.tasks.snapshot(), Instant::now());
    Json(StatusAnswer { name: shown.name, version: env!("CARGO_PKG_VERSION").to_owned(), status })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_pipeline::config::Config;
    use anabranch_pipeline::supervise::{Supervisor, TaskHandle};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const CONFIG: &str = include_str!("../../../../deploy/anabranch.example.toml");

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_readiness_status_and_metrics_are_served() {
        let config = Config::parse(CONFIG).unwrap();
        let tasks = TaskStates::default();
        let cancel = CancellationToken::new();
        let mut supervisor = Supervisor::new(tasks.clone(), cancel.clone(), Duration::from_secs(1));
        supervisor.spawn("reader/elsewhere", |_: TaskHandle, _| async {
            Err(Fault::new(Code::BinlogPurged, "source elsewhere", "binlog.000001 is gone"))
        });
        supervisor.finished().await;
        let shown = Shown {
            name: config.name.clone(),
            observatory: Observatory::new(&config),
            tasks,
            metrics: crate::telemetry::install().unwrap(),
        };
        metrics::counter!(anabranch_pipeline::metrics::FAULTS, "task" => "t", "code" => "c").increment(1);
        metrics::histogram!(anabranch_pipeline::metrics::LANE_FLUSH_SECONDS).record(0.003);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address;
        let server = tokio::spawn(listener.serve(shown, cancel.clone()));

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.0 200"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.0 503") && ready.contains("\"code\":\"binlog-purged\""), "{ready}");
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("anabranch_faults_total{"), "{metrics}");
        assert!(metrics.contains("anabranch_lane_flush_seconds_bucket{le=\"0.005\"} 1"), "{metrics}");
        let answer = client::status(address).await.expect("the daemon answers");
        assert_eq!(answer.name, config.name);
        assert_eq!(answer.status.tasks[0].state, "stopped");

        let taken = Listener::bind(address).await.unwrap_err();
        assert_eq!(taken.code(), Code::ListenFailed);
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        cancel.cancel();
        server.await.unwrap();
        assert!(client::status(address).await.is_none(), "nobody listens any more");
    }
}
