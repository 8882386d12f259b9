//! A server certificate that ends within a day, of an authority that every client of the stack trusts beside its own.
//!
//! The stack keeps no key of its authority, so this one is made for the game day. It must be in the file of
//! authorities before a client reads it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_stack::{SignedCertificate, Stack};

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
        let now = Duration::from_secs(u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0));
        let signed = SignedCertificate::make("Anabranch game day CA", Some(now + VALID))?;
        let file = |name: &str| stack.folder().join(name);
        let made = Self { certificate: file("gameday-server.pem"), key: file("gameday-server-key.pem") };
        write_private(&made.key, &signed.key)?;
        write_private(&made.certificate, &signed.certificate)?;
        append(&stack.ca_file(), &signed.authority)?;
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
