//! Bounded reads of bytes from a server: every step is checked, none panics or allocates.

use thiserror::Error;

/// An error for bytes that break the format. Its text names the field, never the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("malformed event: {0}")]
pub struct Malformed(pub &'static str);

/// Reads forward through a slice; returned values borrow from the slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) =
            self.rest.split_at_checked(length).ok_or(Malformed("it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// Reads an unsigned little-endian number of at most 8 bytes.
    pub fn little(&mut self, bytes: usize) -> Result<u64, Malformed> {
        Ok(little(self.take(bytes)?))
    }

    /// Reads a length-encoded integer.
    pub fn length(&mut self) -> Result<usize, Malformed> {
        let bytes = match self.u8()? {
            short @ 0..=0xfa => return Ok(usize::from(short)),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => return Err(Malformed("a length is not a number")),
        };
        usize::try_from(self.little(bytes)?).map_err(|_| Malformed("a length is too large"))
    }
}

/// Decodes an unsigned little-endian number; only the first 8 bytes count.
pub fn little(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Decodes an unsigned big-endian number; only the last 8 bytes count.
pub fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_encoded_integers_have_four_forms() {
        for (bytes, length) in [
            (&[0xfa][..], 0xfa),
            (&[0xfc, 1, 2], 0x0201),
            (&[0xfd, 1, 2, 3], 0x03_0201),
            (&[0xfe, 1, 0, 0, 0, 0, 0, 0, 0], 1),
        ] {
            assert_eq!(Reader::new(bytes).length(), Ok(length));
        }
        for bytes in [&[][..], &[0xfb], &[0xff], &[0xfc, 1]] {
            assert!(Reader::new(bytes).length().is_err(), "{bytes:?}");
        }
    }
}
