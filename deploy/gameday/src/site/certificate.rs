//! A server certificate that ends within a day, of an authority that every client of the stack trusts beside its own.
//!
//! The stack keeps no key of its authority, so this one is made for the game day. It must be in the file of
//! authorities before a client reads it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_stack::Stack;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::write_private;
use crate::error::{GamedayError, Result};

/// Time for which the certificate is valid: longer than every drill.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// The files of the certificate.
#[derive(Debug)]
pub struct ShortCertificate {
    certificate: PathBuf,
    key: PathBuf,
}

impl ShortCertificate {
    /// Makes the certificate, and adds its authority to those of the stack.
    pub fn make(stack: &Stack) -> Result<Self> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "Anabranch game day CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate()?;
        let authority_certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);

        let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "localhost");
        server.is_ca = IsCa::ExplicitNoCa;
        server.use_authority_key_identifier_extension = true;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = Duration::from_secs(u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0));
        server.not_after = date_time_ymd(1970, 1, 1) + now + VALID;
        let server_key = KeyPair::generate()?;
        let server_certificate = server.signed_by(&server_key, &issuer)?;

        let file = |name: &str| stack.folder().join(name);
        let made = Self { certificate: file("gameday-server.pem"), key: file("gameday-server-key.pem") };
        write_private(&made.key, &server_key.serialize_pem())?;
        write_private(&made.certificate, &server_certificate.pem())?;
        append(&stack.ca_file(), &authority_certificate.pem())?;
        Ok(made)
    }

    /// Returns the flags of a MariaDB server that shows the certificate.
    pub fn flags(&self) -> [String; 2] {
        let Self { certificate, key } = self;
        [format!("--ssl-cert={}", certificate.display()), format!("--ssl-key={}", key.display())]
    }
}

fn append(file: &Path, text: &str) -> Result<()> {
    let opened = OpenOptions::new().append(true).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
    written.map_err(|source| GamedayError::File { action: "append to", path: file.to_path_buf(), source })
}
