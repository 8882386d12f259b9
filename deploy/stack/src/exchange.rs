//! Sends one request and reads its answer, over verified TLS unless the server is plain: the stack checks by it that a
//! server serves its accounts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::managed_server::ManagedServer;

/// Limit of an exchange: above the wait that a request may ask of the server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of a health check: its page is short.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether plain HTTP on this port answers a path with 200.
pub(crate) fn is_healthy(port: u16, path: &str) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let status_line = || -> io::Result<[u8; 12]> {
        let mut stream = TcpStream::connect_timeout(&address, HEALTH_TIMEOUT)?;
        stream.set_read_timeout(Some(HEALTH_TIMEOUT))?;
        let question = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes())?;
        let mut start = [0; 12];
        stream.read_exact(&mut start)?;
        Ok(start)
    };
    status_line().is_ok_and(|start| &start == b"HTTP/1.1 200")
}

/// Sends the request and reads until the server closes, which the request must ask for.
pub(crate) fn exchange(managed: &ManagedServer, question: &str) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, managed.record.port));
    // Connecting comes first, since a server that is not up yet is polled a hundred times a second.
    let socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    if managed.record.spec.is_plain {
        return converse(socket, question);
    }

    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(managed.certificates.ca()).map_err(io::Error::other)?;
    for certificate in certificates {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), ServerName::from(address.ip())).map_err(io::Error::other)?;
    converse(StreamOwned::new(connection, socket), question)
}

fn converse(mut stream: impl Read + Write, question: &str) -> io::Result<String> {
    stream.write_all(question.as_bytes())?;

    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // Redis closes the connection without TLS's closing message.
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}
