//! Accepts and serves connections; closes idle ones, and those whose fate is to get no answer.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::book::Book;
use super::faults::Dice;
use super::service::{ClosesConnection, Shared, WitnessState, router};
use crate::error::{DemoError, Result};

/// Options of a witness.
#[derive(Debug, Clone)]
pub struct WitnessOptions {
    pub listen: SocketAddr,
    /// File of the book, which is created if missing.
    pub file: PathBuf,
    /// Token that clients must send as `authorization: Bearer …`.
    pub token: Option<String>,
    /// Time for which a key is remembered.
    pub key_memory: Duration,
    /// Time for which a connection may be idle.
    pub idle: Duration,
    /// Files of a certificate and its key; `None` = plain text.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Seed of the dice that decide faults.
    pub seed: u64,
}

impl WitnessOptions {
    /// Makes options of a witness as the contract describes it, over plain text.
    pub fn new(listen: SocketAddr, file: PathBuf) -> Self {
        let (key_memory, idle) = (Duration::from_secs(24 * 3600), Duration::from_secs(60));
        Self { listen, file, token: None, key_memory, idle, tls: None, seed: 0 }
    }
}

/// A running witness; it ends when it is dropped.
#[derive(Debug)]
pub struct Witness {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Witness {
    /// Reads the book and listens.
    pub async fn start(options: &WitnessOptions) -> Result<Self> {
        let file = |source| DemoError::File {
            action: "open the witness's book in",
            path: options.file.clone(),
            source,
        };
        let state = WitnessState {
            book: Book::open(&options.file).map_err(file)?,
            dice: Dice::new(options.seed),
            calls: 0,
            single_calls: 0,
        };
        let (key_memory, token) = (options.key_memory, options.token.clone());
        let router = router(Arc::new(Shared { state: Mutex::new(state), key_memory, token }));
        let tls = options.tls.as_ref().map(acceptor).transpose()?;
        let not_bound = |source| DemoError::PortNotFound { source };
        let listener = TcpListener::bind(options.listen).await.map_err(not_bound)?;
        let address = listener.local_addr().map_err(not_bound)?;
        let task = tokio::spawn(accept(listener, router, tls, options.idle));
        Ok(Self { address, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends.
    pub async fn wait(mut self) {
        // The task never ends by itself.
        _ = (&mut self.task).await;
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, idle: Duration) {
    // The connections are dropped with the task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        _ = stream.set_nodelay(true);
        while connections.try_join_next().is_some() {}
        let (router, tls) = (router.clone(), tls.clone());
        connections.spawn(async move {
            match tls {
                None => serve(stream, router, idle).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => serve(stream, router, idle).await,
                    Err(error) => eprintln!("a client's TLS failed: {error}"),
                },
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, idle: Duration) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let answering = router.call(request);
        async move {
            let Ok(response) = answering.await;
            match response.extensions().get::<ClosesConnection>() {
                None => Ok(response),
                // The library silently closes the connection of a service that fails.
                Some(_) => Err(io::Error::other("the answer is lost")),
            }
        }
    });
    let mut builder = http1::Builder::new();
    // An idle connection waits for the head of its next request.
    builder.timer(TokioTimer::new()).header_read_timeout(idle);
    // A client that disconnects is no fault of the witness.
    _ = builder.serve_connection(TokioIo::new(stream), answer).await;
}

fn acceptor((certificate, key): &(PathBuf, PathBuf)) -> Result<TlsAcceptor> {
    let read = || -> std::result::Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<std::result::Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(key)?;
        Ok(ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?)
    };
    let config = read().map_err(|error| DemoError::File {
        action: "use the certificate in",
        path: certificate.clone(),
        source: io::Error::other(error),
    })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
