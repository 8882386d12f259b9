//! Passwords and certificates, made anew for each instance and readable only by their owner.
//!
//! One certificate authority signs one server certificate that all servers of the instance share. Clients verify it
//! with `ca.pem` as they would verify a real one: nothing in the stack turns verification off.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::distr::{Alphanumeric, SampleString};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::error::Result;
use crate::layout::{make_folder, write_private};

/// Characters of a password: letters and digits only, so that it needs no quoting in SQL, URLs and configuration files.
/// 24 of 62 characters are 142 bits.
const PASSWORD_CHARACTERS: usize = 24;

pub(crate) fn random_password() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), PASSWORD_CHARACTERS)
}

/// Paths of the PEM files of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.folder.join("server.pem")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.folder.join("server-key.pem")
    }

    /// Writes the files unless an earlier start of the same instance did. `server.pem` comes last and marks success.
    pub(crate) fn make(&self) -> Result<()> {
        if self.server().is_file() {
            return Ok(());
        }
        make_folder(&self.folder)?;
        let made = SignedCertificate::make("Anabranch development CA", None)?;
        write_private(&self.ca(), &made.authority)?;
        write_private(&self.server_key(), &made.key)?;
        write_private(&self.server(), &made.certificate)
    }
}

/// A certificate of a server on this machine, and the authority that signed it, as PEM texts.
///
/// The authority's key is not kept: it must never sign anything else.
pub struct SignedCertificate {
    pub authority: String,
    pub certificate: String,
    /// The certificate's private key.
    pub key: String,
}

impl SignedCertificate {
    /// Makes both. The certificate is valid until this time since the Unix epoch, or as long as the authority.
    pub fn make(authority_name: &str, valid_until: Option<Duration>) -> Result<Self> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, authority_name);
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
        // Both are needed: cluster links (NATS routes, OpenSearch transport) present the same certificate as clients.
        server.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(valid_until) = valid_until {
            server.not_after = date_time_ymd(1970, 1, 1) + valid_until;
        }
        let server_key = KeyPair::generate()?;
        let server_certificate = server.signed_by(&server_key, &issuer)?;
        Ok(Self {
            authority: authority_certificate.pem(),
            certificate: server_certificate.pem(),
            key: server_key.serialize_pem(),
        })
    }
}
