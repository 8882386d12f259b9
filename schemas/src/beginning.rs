//! The beginnings of a source: each time a person has its reading begin anew, the next number is used.
//!
//! The transactions before a beginning are unknown: the server was reset or restored, or its binlog cannot be read. So
//! a beginning gets its own epoch, a position, and a number that each message and each progress row carries. Number 0
//! is the source's first reading, of which nothing is written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::envelope::ServerIdentity;
use crate::lsn::{Lsn, ResumePoint};
use crate::timeline::{InvalidTimeline, Timeline};

/// Records of gaps that a register keeps, at most: the newest ones.
const GAP_RECORDS_MAX: usize = 8;

/// A record of a gap in the reading of a source: who asked for it, when and why, and what no reader reads.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapRecord {
    /// Id of the request.
    pub request: String,
    /// The person who asked: `user@host`.
    pub who: String,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The fault that kept the source from being read on.
    pub why: String,
    /// Position up to which everything was read, if one is known.
    pub read: Option<Lsn>,
    /// Position from which the source is read on.
    pub position: Lsn,
    pub server: ServerIdentity,
    /// Tables that are read again, or whose derived rows are removed; `None` = all tables.
    pub tables: Option<u64>,
}

impl GapRecord {
    /// Adds the record to those of earlier requests, of which the newest stay.
    pub fn add_to(self, records: &mut Vec<Self>) {
        records.push(self);
        let surplus = records.len().saturating_sub(GAP_RECORDS_MAX);
        records.drain(..surplus);
    }
}

/// One beginning, and the point from which reading continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// Number of the beginning, from 1.
    pub number: u64,
    /// Id of the request for it, so that the same request is written once. Empty when the register was lost since.
    pub request: String,
    /// The position below everything that is read.
    pub position: Lsn,
    pub resume: ResumePoint,
    pub server: ServerIdentity,
}

/// The register of a source: the latest epoch and its server, the latest beginning, and records of the newest ones.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    pub epoch: u16,
    pub server: ServerIdentity,
    pub beginning: Option<Beginning>,
    /// Records of the beginnings, the newest last. Registers of versions without them have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<GapRecord>,
}

impl Registered {
    pub fn new(timeline: Timeline, beginning: Option<Beginning>) -> Self {
        Self { epoch: timeline.epoch, server: timeline.server, beginning, gaps: Vec::new() }
    }

    pub fn timeline(&self) -> Timeline {
        Timeline { epoch: self.epoch, server: self.server.clone() }
    }
}

/// Writes `2 mariadb:7` for a source that never began anew, as all versions read it; otherwise JSON, which versions
/// without beginnings refuse.
impl fmt::Display for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.beginning {
            None => self.timeline().fmt(f),
            Some(_) => f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?),
        }
    }
}

impl FromStr for Registered {
    type Err = InvalidTimeline;

    fn from_str(text: &str) -> Result<Self, InvalidTimeline> {
        match text.starts_with('{') {
            true => serde_json::from_str(text).map_err(|_| InvalidTimeline),
            false => Ok(Self::new(text.parse()?, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back_and_older_texts_stay_readable() {
        let server = ServerIdentity { flavor: "mariadb".to_owned(), id: "7".to_owned() };
        let timeline = Timeline { epoch: 2, server: server.clone() };
        let never = Registered::new(timeline.clone(), None);
        assert_eq!(never.to_string(), "2 mariadb:7");
        let position = Lsn::new(2, 1, 320).unwrap();
        let gtid_set = "0-7-1,1-7-2".to_owned();
        let resume = ResumePoint {
            file: "a binlog.000001".to_owned(),
            position: 329,
            gtid_set,
            ..ResumePoint::default()
        };
        let beginning = Beginning { number: 1, request: "r".to_owned(), position, resume, server };
        let begun = Registered::new(timeline, Some(beginning));
        for known in [never, begun] {
            assert_eq!(known.to_string().parse(), Ok(known));
        }
        assert_eq!("{".parse::<Registered>(), Err(InvalidTimeline));
    }

    #[test]
    fn a_register_without_records_keeps_its_bytes_and_the_newest_records_stay() {
        let before = r#"{"epoch":2,"server":{"flavor":"mariadb","id":"7"},"beginning":{"number":1,"request":"r","position":5,"resume":{"file":"f","position":4,"gtid_set":""},"server":{"flavor":"mariadb","id":"7"}}}"#;
        let mut registered: Registered = before.parse().unwrap();
        assert_eq!((registered.to_string().as_str(), registered.gaps.len()), (before, 0));
        for at_ms in 1..=20 {
            GapRecord { at_ms, who: "ann@db-1".to_owned(), ..GapRecord::default() }
                .add_to(&mut registered.gaps);
        }
        let kept: Vec<u64> = registered.gaps.iter().map(|gap| gap.at_ms).collect();
        assert_eq!(kept, (13..=20).collect::<Vec<_>>());
        assert_eq!(registered.to_string().parse(), Ok(registered));
    }

    #[test]
    fn a_version_that_knows_no_beginnings_refuses_the_register() {
        let begun = Registered { epoch: 2, ..Registered::default() };
        let beginning = Beginning {
            number: 1,
            request: String::new(),
            position: Lsn::ZERO,
            resume: ResumePoint { file: "a b:c".to_owned(), ..ResumePoint::default() },
            server: ServerIdentity::default(),
        };
        let text = Registered { beginning: Some(beginning), ..begun }.to_string();
        assert_eq!(text.parse::<Timeline>(), Err(InvalidTimeline));
    }
}
