//! The end of a server's certificate, for servers that do not say it: NATS, Redis, OpenSearch, the coupon system.
//!
//! A TLS handshake shows the certificate. The handshake accepts every certificate, because one that has ended or that
//! no authority vouches for must be shown too. The connection is closed at once: it carries no account and no request.

use std::io::{Error as IoError, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::parse_x509_certificate;

/// Bytes of the line with which a NATS server begins in plain text, at most.
const INFO_BYTES_MAX: usize = 64 * 1024;

/// Returns the end of the certificate of the server at this address, in seconds since the Unix epoch; `None` for a
/// scheme without TLS. A failure has the given code.
pub async fn certificate_ends(url: &ServerUrl, unreachable: Code) -> Result<Option<i64>, Fault> {
    let starts_plain = match url.scheme() {
        "tls" => true,
        "rediss" | "https" => false,
        _ => return Ok(None),
    };
    let failed = |error: IoError| {
        Fault::new(unreachable, url.address(), "its certificate could not be read").caused_by(error)
    };
    shown(url, starts_plain).await.map(Some).map_err(failed)
}

async fn shown(url: &ServerUrl, starts_plain: bool) -> Result<i64, IoError> {
    let mut stream = TcpStream::connect((host(url), url.port())).await?;
    if starts_plain {
        skip_line(&mut stream).await?;
    }
    let provider = Arc::new(ring::default_provider());
    let seen = Arc::new(SeenCertificate { provider: provider.clone(), ends: Mutex::new(None) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(IoError::other)?
        .dangerous()
        .with_custom_certificate_verifier(seen.clone())
        .with_no_client_auth();
    let name = ServerName::try_from(host(url).to_owned()).map_err(IoError::other)?;
    // A server that demands a certificate of the client has shown its own before it refuses.
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let ends = *seen.ends.lock().unwrap_or_else(PoisonError::into_inner);
    ends.ok_or_else(|| match handshake {
        Err(error) => error,
        Ok(_) => IoError::new(ErrorKind::InvalidData, "the certificate is not X.509"),
    })
}

/// Returns the host without the brackets of an IPv6 address.
fn host(url: &ServerUrl) -> &str {
    url.host().trim_start_matches('[').trim_end_matches(']')
}

/// Reads the plain line after which a NATS server begins TLS.
async fn skip_line(stream: &mut TcpStream) -> Result<(), IoError> {
    for _ in 0..INFO_BYTES_MAX {
        if stream.read_u8().await? == b'\n' {
            return Ok(());
        }
    }
    Err(IoError::new(ErrorKind::InvalidData, "the server's first line does not end"))
}

/// Accepts every certificate and remembers when it ends.
#[derive(Debug)]
struct SeenCertificate {
    provider: Arc<CryptoProvider>,
    ends: Mutex<Option<i64>>,
}

impl ServerCertVerifier for SeenCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let ends = parse_x509_certificate(certificate).ok();
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) =
            ends.map(|(_, certificate)| certificate.validity().not_after.timestamp());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
