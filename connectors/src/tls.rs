//! Whether TLS is what failed: client libraries hide it in I/O errors within I/O errors, whose `source` skips it.

use std::error::Error as StdError;
use std::io;

/// Whether an error of TLS is somewhere beneath.
pub(crate) fn is_beneath(error: &(dyn StdError + 'static)) -> bool {
    let mut next = error.source();
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
