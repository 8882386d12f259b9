//! TLS for clients that take a `rustls` configuration, and the check whether an error came from TLS. Client libraries
//! hide TLS errors in I/O errors within I/O errors, whose `source` skips them.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Configures a client that trusts the authorities of the file; without a file, those of the machine.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, Box<dyn StdError + Send + Sync>> {
    trusting(roots(ca_file)?)
}

/// Configures a client that trusts these authorities.
pub(crate) fn trusting(roots: RootCertStore) -> Result<ClientConfig, Box<dyn StdError + Send + Sync>> {
    Ok(ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// Reads the certificates of the file; without a file, those of the machine.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Box<dyn StdError + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file)? {
                roots.add(certificate?)?;
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if roots.is_empty() { Err("there is none".into()) } else { Ok(roots) }
}

/// Whether a cause of this error is an error of TLS.
pub(crate) fn is_beneath(error: &(dyn StdError + 'static)) -> bool {
    has_tls(error.source())
}

/// Whether this error or one of its causes is an error of TLS.
pub(crate) fn is_or_is_beneath(error: &(dyn StdError + 'static)) -> bool {
    has_tls(Some(error))
}

fn has_tls(mut next: Option<&(dyn StdError + 'static)>) -> bool {
    while let Some(error) = next {
        let mut innermost = error;
        while let Some(inner) = innermost.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            innermost = inner;
        }
        if innermost.is::<rustls::Error>() {
            return true;
        }
        next = error.source();
    }
    false
}
