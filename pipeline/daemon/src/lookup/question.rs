//! Questions of a lookup, and reasons to refuse one: parsed once, for HTTP and command line alike.

use std::str::FromStr;
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::CACHED_CLAIMS_MAX;
use anabranch_pipeline::records::DeviceClaim;
use anabranch_schemas::lsn::{Lsn, binlog_file_number};
use anabranch_schemas::serial::{CodeKind, StoredCode, UUID_BYTES_MAX};
use anabranch_schemas::shard::ShardId;
use thiserror::Error;

/// Claims a page, at most: as many as the cache holds of one code.
pub const PAGE_CLAIMS_MAX: usize = CACHED_CLAIMS_MAX;
/// Claims of a page with rows, at most: they cost a query of the source for each table.
const ROWS_MAX: usize = 100;
/// Bytes of a code, at most; labels hold a few hundred.
const CODE_BYTES_MAX: usize = 4096;

/// The reason why there is no answer.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The question makes no sense as it is.
    #[error("{0}")]
    Malformed(String),
    #[error("too many lookups wait already")]
    Busy,
    /// The lanes did not reach the requested point in time.
    #[error("{0}")]
    Lagging(String),
    #[error("{0}")]
    Failed(Arc<Fault>),
}

impl Refusal {
    /// Returns the code of this refusal for HTTP, command line and runbook.
    pub fn code(&self) -> Code {
        match self {
            Self::Malformed(_) => Code::LookupMalformed,
            Self::Busy => Code::TooManyRequests,
            Self::Lagging(_) => Code::LookupLagging,
            Self::Failed(fault) => fault.code(),
        }
    }
}

/// A question for the devices of one code.
#[derive(Debug, Clone)]
pub struct LookupQuestion {
    pub code: Vec<u8>,
    pub kind: Option<CodeKind>,
    /// Claims of a page, at most.
    pub limit: usize,
    pub after: Option<Cursor>,
    /// The answer shows the inventory rows too.
    pub with_rows: bool,
}

/// Returns the code if it can be looked up: 1 to [`CODE_BYTES_MAX`] bytes of any value.
pub fn code(bytes: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    match bytes.len() {
        0 => Err(Refusal::Malformed("the code is empty: no device has an empty code".to_owned())),
        length if length > CODE_BYTES_MAX => Err(Refusal::Malformed(format!(
            "the code has {length} bytes; at most {CODE_BYTES_MAX} are looked up"
        ))),
        _ => Ok(bytes),
    }
}

impl LookupQuestion {
    pub fn new(
        bytes: Vec<u8>,
        kind: Option<&str>,
        limit: Option<usize>,
        after: Option<&str>,
        with_rows: bool,
    ) -> Result<Self, Refusal> {
        let code = code(bytes)?;
        let kind = kind.map(self::kind).transpose()?;
        let most = if with_rows { ROWS_MAX } else { PAGE_CLAIMS_MAX };
        let limit = limit.unwrap_or(most);
        if !(1..=most).contains(&limit) {
            return Err(Refusal::Malformed(format!("limit is {limit}; it can be 1 to {most}")));
        }
        let after = after.map(str::parse).transpose()?;
        Ok(Self { code, kind, limit, after, with_rows })
    }

    /// Returns the forms in which the code may be stored, with the kind of a form that only one kind has.
    pub(super) fn candidates(&self) -> Vec<(StoredCode, Option<CodeKind>)> {
        match self.kind {
            None => StoredCode::candidates(&self.code),
            Some(kind) => {
                StoredCode::new(kind, &self.code).map(|code| (code, Some(kind))).into_iter().collect()
            }
        }
    }

    pub(super) fn is_first_page(&self) -> bool {
        self.after.is_none()
    }
}

fn kind(name: &str) -> Result<CodeKind, Refusal> {
    CodeKind::from_name(name).ok_or_else(|| {
        let names = CodeKind::ALL.map(CodeKind::name).join(", ");
        Refusal::Malformed(format!("kind is not one of {names}"))
    })
}

/// End of a page: `candidate.shard.kind.uuid`, the uuid in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub candidate: usize,
    pub claim: DeviceClaim,
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DeviceClaim { shard, uuid, kind } = &self.claim;
        write!(f, "{}.{shard}.{}.", self.candidate, kind.number())?;
        uuid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Cursor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let parse = || {
            let [candidate, shard, kind, uuid]: [&str; 4] =
                text.split('.').collect::<Vec<_>>().try_into().ok()?;
            let is_uuid = !uuid.is_empty() && uuid.is_ascii() && uuid.len() <= 2 * UUID_BYTES_MAX;
            let bytes = is_uuid
                .then(|| uuid.as_bytes().chunks(2))?
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
            let claim = DeviceClaim {
                shard: ShardId::from_u64(shard.parse().ok()?)?,
                kind: CodeKind::from_number(kind.parse().ok()?)?,
                uuid: bytes.collect::<Option<_>>()?,
            };
            Some(Self { candidate: candidate.parse().ok()?, claim })
        };
        parse().ok_or_else(|| Refusal::Malformed("after is not the `next` of an answer".to_owned()))
    }
}

/// A point in the binlog of a source that the answer must have passed: `source:1:42:8192`, `source:binlog.000042:8192`
/// or `source:0-1-42`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtLeast {
    pub source: String,
    pub at: At,
    /// `at` as it was written.
    pub said: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    Lsn(Lsn),
    /// A point in a binlog file of the server that is read now.
    File {
        number: u32,
        position: u64,
    },
    /// A GTID set in the server's notation.
    Gtids(String),
}

impl FromStr for AtLeast {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let malformed = || {
            let forms = "source:epoch:file:position, source:binlog.000042:8192 or source:GTID-set";
            Refusal::Malformed(format!("at_least is not of the form {forms}"))
        };
        let (source, rest) = text.split_once(':').ok_or_else(malformed)?;
        let file = || {
            let (name, position) = rest.split_once(':')?;
            Some(At::File { number: binlog_file_number(name).ok()?, position: position.parse().ok()? })
        };
        let at = match rest.parse() {
            Ok(lsn) => At::Lsn(lsn),
            Err(_) => file()
                .or_else(|| rest.contains('-').then(|| At::Gtids(rest.to_owned())))
                .ok_or_else(malformed)?,
        };
        Ok(Self { source: source.to_owned(), at, said: rest.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_position_a_file_or_a_gtid_set() {
        let at = |text: &str| text.parse::<AtLeast>().map(|place| place.at);
        assert_eq!(at("a:1:42:8192").unwrap(), At::Lsn("1:42:8192".parse().unwrap()));
        assert_eq!(at("a:binlog.000042:8192").unwrap(), At::File { number: 42, position: 8192 });
        assert_eq!(at("a:0-1-42,1-1-7").unwrap(), At::Gtids("0-1-42,1-1-7".to_owned()));
        let uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9";
        assert_eq!(at(&format!("a:{uuid}")).unwrap(), At::Gtids(uuid.to_owned()));
        for text in ["", "a", "a:", "a:1", "a:1:2:3:4", "a:binlog:7", "a:binlog.000001:x"] {
            assert!(matches!(at(text), Err(Refusal::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() {
        let claim = DeviceClaim {
            shard: ShardId::from_u64(258).unwrap(),
            uuid: b"7\xff".as_slice().into(),
            kind: CodeKind::BoxNo,
        };
        let cursor = Cursor { candidate: 1, claim };
        assert_eq!(cursor.to_string(), "1.258.4.37ff");
        assert_eq!("1.258.4.37ff".parse::<Cursor>().unwrap(), cursor);
        for text in [
            "",
            "1.258.4.",
            "1.258.4.zz",
            "1.258.9.37",
            "1.18446744073709551615.4.37",
            "1.2.3.37.4",
            "1.2.4.é",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
        let long = format!("1.2.4.{}", "37".repeat(65));
        assert!(long.parse::<Cursor>().is_err());
    }

    #[test]
    fn a_question_that_cannot_be_answered_is_told_why() {
        let ask = |code: &[u8], kind: Option<&str>, limit, rows| {
            LookupQuestion::new(code.to_vec(), kind, limit, None, rows)
                .map(drop)
                .map_err(|refusal| refusal.to_string())
        };
        assert!(ask(b"", None, None, false).unwrap_err().contains("empty"));
        assert!(ask(&[b'7'; 4097], None, None, false).unwrap_err().contains("4097 bytes"));
        assert!(ask(b"7", Some("imei"), None, false).unwrap_err().contains("imei1, imei2, meid"));
        assert!(ask(b"7", None, Some(0), false).unwrap_err().contains("1 to 1000"));
        assert!(ask(b"7", None, Some(101), true).unwrap_err().contains("1 to 100"));
        for odd in [&b"\0"[..], b"\xff\xfe", b"*?\"{}", b"imei1:[* TO *]", b" "] {
            ask(odd, Some("box_no"), Some(1), true).unwrap();
        }
    }
}
