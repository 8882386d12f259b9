//! The envelope of a log message, beside its payload: the reader's checkpoint and the projectors' link check.
//!
//! The envelope travels as message headers, so that the end of a stream can be read without its payload and a person
//! can read it with any NATS tool. While the log is whole, the last message's envelope alone decides where capture
//! resumes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::change::Entity;
use crate::lsn::{Lsn, ResumePoint};

/// The server that wrote the binlog: this identifies it after a restart, a restore or a fail-over.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// `mariadb` or `mysql`.
    pub flavor: String,
    /// MySQL: `server_uuid`. MariaDB, which has none: `server_id`.
    pub id: String,
}

/// Writes `mariadb:7`.
impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.flavor, self.id)
    }
}

/// Numbers of the fields that a reader captures, by the entity's name.
///
/// New fields come at the end, so the number determines the fields. A reader drops an update that leaves all captured
/// fields as they were. A lane that reads more of them learns from this number which messages may lack such an update.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedFields(BTreeMap<String, usize>);

impl CapturedFields {
    /// Builds the header of a reader with these numbers. A user or a serial code that is not among them gets the fields
    /// that each table has. Other entities are named by readers that capture them, so that the headers of all other
    /// sources stay as they were.
    pub fn new(captured: impl IntoIterator<Item = (Entity, usize)>) -> Self {
        let required = |entity: Entity| (entity.name().to_owned(), entity.required_fields());
        let mut fields: BTreeMap<_, _> = [Entity::User, Entity::SerialCode].map(required).into();
        fields.extend(captured.into_iter().map(|(entity, number)| (entity.name().to_owned(), number)));
        Self(fields)
    }

    /// Returns how many fields of the entity were captured. A header without the entity was written when each entity
    /// had the fields that each of its tables has.
    pub fn of(&self, entity: Entity) -> usize {
        self.0.get(entity.name()).copied().unwrap_or_else(|| entity.required_fields())
    }
}

/// Writes `serial_code=10,user=2`, or `-`, since a header needs a value.
impl fmt::Display for CapturedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        for (place, (entity, fields)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{entity}={fields}")?;
        }
        Ok(())
    }
}

impl FromStr for CapturedFields {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "-" {
            return Ok(Self::default());
        }
        let entity = |part: &str| {
            let (name, fields) = part.split_once('=')?;
            Some((name.to_owned(), fields.parse().ok()?)).filter(|(name, _)| !name.is_empty())
        };
        text.split(',').map(entity).collect::<Option<_>>().map(Self).ok_or(())
    }
}

/// The envelope of one message.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Position of the message before this one; in the first message, the point where reading entered the binlog.
    pub previous: Lsn,
    /// Whether the source's configured history begins here: a lane without any progress may begin with this message.
    pub origin: bool,
    /// Whether the message begins in the middle of an event, whose first part is in the message before.
    pub continues: bool,
    /// Position of the last event that is complete in this message.
    pub position: Lsn,
    /// The point where reading enters the binlog to continue after this message.
    pub resume: ResumePoint,
    pub server: ServerIdentity,
    /// Number of the writer's attempt; each one is greater by one.
    pub term: u64,
    /// Commit time of the newest change, microseconds since the Unix epoch (MariaDB: whole seconds); 0 = unknown.
    pub committed_at_us: u64,
    /// Number of changes in the payload; 0 = a position message, a message with a position only.
    pub changes: u32,
    pub captured: CapturedFields,
    /// Number of the source's beginning ([`crate::beginning`]); 0 = it never began anew.
    #[serde(default)]
    pub beginning: u64,
}

/// A header is missing or not of its form.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("message header {name} is {found}; expected {expected}")]
pub struct InvalidEnvelope {
    pub name: &'static str,
    pub found: String,
    pub expected: &'static str,
}

const PREVIOUS: &str = "Anabranch-Previous";
const ORIGIN: &str = "Anabranch-Origin";
const CONTINUES: &str = "Anabranch-Continues";
const POSITION: &str = "Anabranch-Position";
const RESUME_FILE: &str = "Anabranch-Resume-File";
const RESUME_POSITION: &str = "Anabranch-Resume-Position";
const RESUME_GTID: &str = "Anabranch-Resume-Gtid";
const SERVER: &str = "Anabranch-Server";
const TERM: &str = "Anabranch-Term";
const COMMITTED: &str = "Anabranch-Committed-Us";
const CHANGES: &str = "Anabranch-Changes";
const FIELDS: &str = "Anabranch-Fields";
const BEGINNING: &str = "Anabranch-Beginning";
const READ_END: &str = "Anabranch-Read-End";
const PARTIAL: &str = "Anabranch-Partial-Gtid";
const CHECKSUM: &str = "Anabranch-Checksum";

impl Envelope {
    /// Returns header names and values, with their checksum. An empty GTID set is written as `-`, since a header needs
    /// a value.
    pub fn to_headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = self.fields();
        headers.push((CHECKSUM, self.checksum()));
        headers
    }

    /// Returns the CRC-32 (IEEE) of the lines `name: value` of all other headers, in the order of this file, in
    /// hexadecimal.
    fn checksum(&self) -> String {
        let mut hasher = crc32fast::Hasher::new();
        for (name, value) in self.fields() {
            hasher.update(format!("{name}: {value}\n").as_bytes());
        }
        format!("{:08x}", hasher.finalize())
    }

    /// Returns all headers but the checksum. There is none for beginning 0, for a read end at the resume point, or for
    /// a group that was sent whole, so that earlier versions read such a message.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let gtid_set =
            if self.resume.gtid_set.is_empty() { "-".to_owned() } else { self.resume.gtid_set.clone() };
        let mut fields = vec![
            (PREVIOUS, self.previous.to_string()),
            (ORIGIN, self.origin.to_string()),
            (CONTINUES, self.continues.to_string()),
            (POSITION, self.position.to_string()),
            (RESUME_FILE, self.resume.file.clone()),
            (RESUME_POSITION, self.resume.position.to_string()),
            (RESUME_GTID, gtid_set.replace('\n', "")),
            (SERVER, format!("{}:{}", self.server.flavor, self.server.id)),
            (TERM, self.term.to_string()),
            (COMMITTED, self.committed_at_us.to_string()),
            (CHANGES, self.changes.to_string()),
            (FIELDS, self.captured.to_string()),
        ];
        if self.beginning > 0 {
            fields.push((BEGINNING, self.beginning.to_string()));
        }
        fields.extend(self.resume.read_end.as_ref().map(|end| (READ_END, end.to_string())));
        fields.extend(self.resume.partial.as_ref().map(|gtid| (PARTIAL, gtid.clone())));
        fields
    }

    /// Reads the headers back; ignores unknown ones, and names one that is missing, malformed or changed.
    pub fn from_headers<'h>(
        header: impl Fn(&'static str) -> Option<&'h str>,
    ) -> Result<Self, InvalidEnvelope> {
        let text = |name| {
            header(name).ok_or(InvalidEnvelope { name, found: "missing".to_owned(), expected: "a value" })
        };
        let server = text(SERVER)?;
        let (flavor, id) = server.split_once(':').ok_or_else(|| InvalidEnvelope {
            name: SERVER,
            found: server.to_owned(),
            expected: "flavor:id",
        })?;
        let gtid_set = match text(RESUME_GTID)? {
            "-" => String::new(),
            set => set.to_owned(),
        };
        let envelope = Self {
            previous: parse(PREVIOUS, text(PREVIOUS)?, "epoch:file:position")?,
            origin: parse(ORIGIN, text(ORIGIN)?, "true or false")?,
            continues: parse(CONTINUES, text(CONTINUES)?, "true or false")?,
            position: parse(POSITION, text(POSITION)?, "epoch:file:position")?,
            resume: ResumePoint {
                file: text(RESUME_FILE)?.to_owned(),
                position: parse(RESUME_POSITION, text(RESUME_POSITION)?, "a number of bytes")?,
                gtid_set,
                read_end: header(READ_END)
                    .map(|end| parse(READ_END, end, "file number:position:GTIDs"))
                    .transpose()?,
                partial: header(PARTIAL).map(str::to_owned),
            },
            server: ServerIdentity { flavor: flavor.to_owned(), id: id.to_owned() },
            term: parse(TERM, text(TERM)?, "a number")?,
            committed_at_us: parse(COMMITTED, text(COMMITTED)?, "microseconds")?,
            changes: parse(CHANGES, text(CHANGES)?, "a number")?,
            captured: parse(FIELDS, text(FIELDS)?, "entity=number,…")?,
            beginning: match header(BEGINNING) {
                Some(number) => parse(BEGINNING, number, "a number")?,
                None => 0,
            },
        };
        let checksum = text(CHECKSUM)?;
        if checksum != envelope.checksum() {
            let (found, expected) = (checksum.to_owned(), "the CRC-32 of the other headers");
            return Err(InvalidEnvelope { name: CHECKSUM, found, expected });
        }
        Ok(envelope)
    }
}

fn parse<T: FromStr>(name: &'static str, text: &str, expected: &'static str) -> Result<T, InvalidEnvelope> {
    text.parse().map_err(|_| InvalidEnvelope { name, found: text.to_owned(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Envelope {
        Envelope {
            previous: Lsn::new(1, 7, 160).unwrap(),
            origin: true,
            continues: true,
            position: Lsn::new(1, 7, 3200).unwrap(),
            resume: ResumePoint {
                file: "binlog.000007".into(),
                position: 3200,
                gtid_set: "1-1-9".into(),
                ..ResumePoint::default()
            },
            server: ServerIdentity { flavor: "mariadb".into(), id: "1".into() },
            term: 3,
            committed_at_us: 1_700_000_000_000_000,
            changes: 12,
            captured: CapturedFields::new([(Entity::User, 4)]),
            beginning: 0,
        }
    }

    #[test]
    fn a_beginning_is_a_header_of_its_own_and_none_is_beginning_0() {
        let begun = Envelope { beginning: 2, ..sample() };
        let names = |envelope: &Envelope| envelope.to_headers().len();
        assert_eq!(names(&begun), names(&sample()) + 1);
        let headers = begun.to_headers();
        let find = |name| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
        assert_eq!(Envelope::from_headers(find), Ok(begun.clone()));
        // The checksum finds a header that was removed, too.
        let without = |name| find(name).filter(|_| name != BEGINNING);
        assert_eq!(Envelope::from_headers(without).unwrap_err().name, CHECKSUM);
        let broken = |name| if name == BEGINNING { Some("x") } else { find(name) };
        assert_eq!(Envelope::from_headers(broken).unwrap_err().name, BEGINNING);
    }

    #[test]
    fn what_was_read_behind_the_resume_point_has_headers_only_where_there_is_some() {
        let mut later = sample();
        later.resume.read_end = Some("7:4096:1-1-12".parse().unwrap());
        later.resume.partial = Some("1-1-13".to_owned());
        assert_eq!(later.to_headers().len(), sample().to_headers().len() + 2);
        let headers = later.to_headers();
        let find = |name| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
        assert_eq!(Envelope::from_headers(find), Ok(later.clone()));
        for taken_out in [READ_END, PARTIAL] {
            let without = |name| find(name).filter(|_| name != taken_out);
            assert_eq!(Envelope::from_headers(without).unwrap_err().name, CHECKSUM);
        }
        let broken = |name| if name == READ_END { Some("7:x:1-1-12") } else { find(name) };
        assert_eq!(Envelope::from_headers(broken).unwrap_err().name, READ_END);
    }

    #[test]
    fn headers_round_trip() {
        for gtid_set in ["1-1-9", "", "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5:tag:1"] {
            let mut envelope = sample();
            envelope.resume.gtid_set = gtid_set.to_owned();
            let headers = envelope.to_headers();
            let find = |name| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
            assert_eq!(Envelope::from_headers(find), Ok(envelope));
        }
    }

    #[test]
    fn a_header_says_how_many_fields_of_each_entity_were_captured() {
        let plain = CapturedFields::new([]);
        assert_eq!(plain.to_string(), "serial_code=10,user=2", "as before there was a third field of users");
        let lunar = CapturedFields::new([(Entity::User, 4)]);
        assert_eq!(lunar.to_string(), "serial_code=10,user=4");
        let documents = CapturedFields::new([(Entity::Flux, 4)]);
        assert_eq!(documents.to_string(), "flux=4,serial_code=10,user=2");
        assert_eq!((documents.of(Entity::Flux), lunar.of(Entity::Flux)), (4, 2));
        let read = |text: &str| text.parse::<CapturedFields>().map(|captured| captured.of(Entity::User));
        assert_eq!([read("serial_code=10,user=4"), read("user=0"), read("-")], [Ok(4), Ok(0), Ok(2)]);
        for text in ["", "user", "user=", "=2", "user=-1", "user=2,", "user=99999999999999999999"] {
            assert_eq!(read(text), Err(()), "{text}");
        }
    }

    #[test]
    fn a_header_that_was_changed_is_found_out_by_the_checksum() {
        let (headers, other) = (sample().to_headers(), Envelope::default().to_headers());
        for ((changed, value), (_, instead)) in headers.iter().zip(&other) {
            assert_ne!(value, instead);
            let find = |name| {
                let (_, value) = headers.iter().find(|(n, _)| *n == name)?;
                Some(if name == *changed { instead.as_str() } else { value.as_str() })
            };
            assert_eq!(Envelope::from_headers(find).unwrap_err().name, CHECKSUM, "{changed}");
        }
    }

    #[test]
    fn each_missing_or_malformed_header_is_named() {
        let headers = sample().to_headers();
        for (missing, _) in &headers {
            let find =
                |name| headers.iter().find(|(n, _)| *n == name && n != missing).map(|(_, v)| v.as_str());
            assert_eq!(Envelope::from_headers(find).unwrap_err().name, *missing);
        }
        for broken in
            [PREVIOUS, ORIGIN, CONTINUES, POSITION, RESUME_POSITION, SERVER, TERM, COMMITTED, CHANGES, FIELDS]
        {
            let find = |name| {
                let value = headers.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
                if name == broken { Some("x") } else { value }
            };
            assert_eq!(Envelope::from_headers(find).unwrap_err().name, broken);
        }
    }
}
