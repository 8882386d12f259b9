//! The three names of the `openssl` crate that `mysql_cdc` mentions, and nothing after them.
//!
//! `mysql_cdc` encrypts a password with OpenSSL in one login step of its own client. Anabranch uses its event
//! parser and GTID types only and connects through `mysql_async` with rustls, so that step is never reached.
//! Here it answers an error, which the client would hand on as a failed login. What this saves: OpenSSL's headers
//! or a build of several minutes, and a second TLS library in the binary.

pub mod error {
    use std::fmt;

    /// Says that the step needs the real OpenSSL.
    #[derive(Debug, Clone)]
    pub struct ErrorStack(());

    impl ErrorStack {
        pub(crate) fn unavailable() -> Self {
            Self(())
        }
    }

    impl fmt::Display for ErrorStack {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("mysql_cdc's own client is not supported in this build: it needs OpenSSL")
        }
    }

    impl std::error::Error for ErrorStack {}
}

pub mod rsa {
    use crate::error::ErrorStack;

    /// The padding that `mysql_cdc` asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Padding(());

    impl Padding {
        pub const PKCS1_OAEP: Padding = Padding(());
    }

    /// A key that cannot be made: see the crate's description.
    #[derive(Debug)]
    pub struct Rsa(std::convert::Infallible);

    impl Rsa {
        /// Always an error.
        pub fn public_key_from_pem(_pem: &[u8]) -> Result<Rsa, ErrorStack> {
            Err(ErrorStack::unavailable())
        }

        pub fn size(&self) -> u32 {
            match self.0 {}
        }

        pub fn public_encrypt(&self, _from: &[u8], _to: &mut [u8], _padding: Padding) -> Result<usize, ErrorStack> {
            match self.0 {}
        }
    }
}
