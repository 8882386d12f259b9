//! One question and its answer, over verified TLS unless the server is plain: how the stack sees that a server serves
//! its accounts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::place::ManagedServer;

/// Above what a question may ask the server to wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the question and reads until the server closes, which the question must ask for.
pub(crate) fn exchange(place: &ManagedServer, question: &str) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, place.record.port));
    // Connected first: a server that is not up yet is asked a hundred times a second.
    let socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    if place.record.spec.is_plain {
        return converse(socket, question);
    }

    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(place.certificates.ca()).map_err(io::Error::other)?;
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
        // Redis closes the connection without a farewell of TLS.
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}
