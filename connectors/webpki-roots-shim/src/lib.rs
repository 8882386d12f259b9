//! The one name of the `webpki-roots` crate, and no authority after it.
//!
//! `sqlx` always adds the authorities of this crate, or those of the machine, to the ones that it is told to trust: it
//! has no third choice. A connection that is to trust `ca_file` alone would take the certificate of any public
//! authority. Here the list is empty, so `sqlx` trusts what it is told. `mysql_async` has its built-in list turned off.

#![no_std]
#![forbid(unsafe_code)]

use pki_types::TrustAnchor;

/// The list of trusted authorities, which is empty.
pub const TLS_SERVER_ROOTS: &[TrustAnchor<'static>] = &[];
