//! GTID sets of both servers: parsed from text and control events, extended group by group, printed as text.
//!
//! `mysql_cdc` does the arithmetic (`GtidList`, `GtidSet`) and reads MariaDB's lists of GTIDs. Its parsers index
//! without checks and know no tags, so this file checks text and lengths first and keeps a tagged set as one `GtidSet`
//! for each tag. It also reads the events that begin a group, since the library's parser is created anew for each
//! event.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr as _;

use anabranch_schemas::envelope::ServerIdentity;
use mysql_async::Sid;
use mysql_async::binlog::events::{Event, GtidEvent};
use mysql_cdc::events::binlog_event::BinlogEvent;
use mysql_cdc::events::event_header::EventHeader;
use mysql_cdc::events::event_parser::EventParser;
use mysql_cdc::providers::mariadb::gtid::gtid::Gtid as MariaDbGtid;
use mysql_cdc::providers::mariadb::gtid::gtid_list::GtidList;
use mysql_cdc::providers::mysql::gtid::gtid::Gtid as MySqlGtid;
use mysql_cdc::providers::mysql::gtid::gtid_set::GtidSet;
use mysql_cdc::providers::mysql::gtid::interval::Interval;
use mysql_cdc::providers::mysql::gtid::uuid::Uuid;
use mysql_cdc::providers::mysql::gtid::uuid_set::UuidSet;

use super::wire::{Malformed, Reader, little};

const UUID_BYTES: usize = 16;
const UUID_TEXT_BYTES: usize = 36;
/// End of the clock values in MySQL's GTID event: after flags, uuid, number, type code of the clock, two values.
const GTID_CLOCK_END: usize = 1 + UUID_BYTES + 8 + 1 + 16;
const COMMIT_TIME_BYTES: usize = 7;
const MARIADB_GTID_LIST: u8 = 163;

/// The kind of server that wrote a binlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    MariaDb,
    MySql,
}

impl Flavor {
    pub fn as_str(self) -> &'static str {
        match self {
            Flavor::MariaDb => "mariadb",
            Flavor::MySql => "mysql",
        }
    }
}

/// The id of one group.
#[derive(Debug, Clone)]
pub enum Gtid {
    MariaDb(MariaDbGtid),
    MySql { uuid: [u8; UUID_BYTES], tag: String, number: u64 },
}

impl Gtid {
    /// Whether this server was the first to write the group.
    pub fn is_by(&self, server: &ServerIdentity) -> bool {
        match self {
            Self::MariaDb(gtid) => server.id == gtid.server_id.to_string(),
            Self::MySql { uuid, .. } => server.id.eq_ignore_ascii_case(&Uuid::new(*uuid).uuid),
        }
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MariaDb(gtid) => gtid.fmt(f),
            Self::MySql { uuid, tag, number } => {
                f.write_str(&Uuid::new(*uuid).uuid)?;
                if !tag.is_empty() {
                    write!(f, ":{tag}")?;
                }
                write!(f, ":{number}")
            }
        }
    }
}

/// A set of groups.
#[derive(Debug)]
pub enum Gtids {
    MariaDb(GtidList),
    /// Sets by tag; the empty tag is for untagged GTIDs.
    MySql(BTreeMap<String, GtidSet>),
}

impl Gtids {
    pub fn empty(flavor: Flavor) -> Self {
        match flavor {
            Flavor::MariaDb => Self::MariaDb(GtidList::new()),
            Flavor::MySql => Self::MySql(BTreeMap::new()),
        }
    }

    /// Parses the server's own notation; `None` when the text is not in it.
    pub fn parse(flavor: Flavor, text: &str) -> Option<Self> {
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        match flavor {
            Flavor::MariaDb => {
                let well_formed = parts().all(|part| {
                    let numbers: Vec<_> = part.split('-').collect();
                    let [domain, server, sequence] = numbers[..] else { return false };
                    is_number(domain) && is_number(server) && is_number(sequence)
                });
                let text = parts().collect::<Vec<_>>().join(",");
                well_formed.then(|| GtidList::parse(&text).ok()).flatten().map(Self::MariaDb)
            }
            Flavor::MySql => {
                let mut sets = BTreeMap::new();
                for part in parts() {
                    read_mysql_part(part, &mut sets)?;
                }
                Some(Self::MySql(sets))
            }
        }
    }

    /// Adds a complete group.
    pub fn append(&mut self, gtid: Gtid) {
        match (self, gtid) {
            (Self::MariaDb(list), Gtid::MariaDb(gtid)) => {
                list.add_gtid(gtid);
            }
            (Self::MySql(sets), Gtid::MySql { uuid, tag, number }) => {
                let set = sets.entry(tag).or_insert_with(GtidSet::new);
                // `add_gtid` fails only for a uuid other than the key of the set.
                let _ = set.add_gtid(MySqlGtid::new(Uuid::new(uuid), number));
            }
            // A stream's flavor is fixed when it opens: no other pair can meet.
            _ => debug_assert!(false, "a GTID of the other server"),
        }
    }

    /// Whether the group is among these.
    pub fn has(&self, gtid: &Gtid) -> bool {
        match (self, gtid) {
            (Self::MariaDb(_), Gtid::MariaDb(gtid)) => {
                self.domains().any(|(domain, _, last)| domain == gtid.domain_id && last >= gtid.sequence)
            }
            (Self::MySql(sets), Gtid::MySql { uuid, tag, number }) => {
                sets.get(tag).and_then(|set| set.uuid_sets.get(&Uuid::new(*uuid).uuid)).is_some_and(|set| {
                    set.intervals.iter().any(|known| (known.start..=known.end).contains(number))
                })
            }
            _ => false,
        }
    }

    /// Whether the group is the one that the same server wrote directly after the last one here.
    pub fn are_continued_by(&self, next: &Gtid) -> bool {
        match (self, next) {
            (Self::MariaDb(_), Gtid::MariaDb(next)) => self
                .domains()
                .any(|last| last == (next.domain_id, next.server_id, next.sequence.saturating_sub(1))),
            (Self::MySql(sets), Gtid::MySql { uuid, tag, number }) => sets
                .get(tag)
                .and_then(|set| set.uuid_sets.get(&Uuid::new(*uuid).uuid))
                .and_then(|set| set.intervals.last())
                .is_some_and(|interval| interval.end + 1 == *number),
            _ => false,
        }
    }

    /// Whether every group of `others` is among these.
    pub fn hold(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::MariaDb(_), Self::MariaDb(_)) => others.domains().all(|(domain, _, sequence)| {
                self.domains().any(|(known, _, last)| known == domain && last >= sequence)
            }),
            (Self::MySql(sets), Self::MySql(others)) => others.iter().all(|(tag, wanted)| {
                wanted.uuid_sets.iter().all(|(uuid, wanted)| {
                    let known = sets.get(tag).and_then(|set| set.uuid_sets.get(uuid));
                    wanted.intervals.iter().all(|wanted| {
                        let covers =
                            |known: &Interval| known.start <= wanted.start && wanted.end <= known.end;
                        known.is_some_and(|known| known.intervals.iter().any(covers))
                    })
                })
            }),
            _ => false,
        }
    }

    /// Whether the two are the same set.
    pub fn is(&self, other: &Self) -> bool {
        self.hold(other) && other.hold(self)
    }

    /// Returns the set for MySQL's replication request: one entry for each uuid and tag. A part that the library cannot
    /// read fails the whole set: without it the server would send all groups of that uuid again.
    pub fn sids(&self) -> Result<Vec<Sid<'static>>, Malformed> {
        let Self::MySql(sets) = self else { return Ok(Vec::new()) };
        let parts = sets
            .iter()
            .flat_map(|(tag, set)| set.uuid_sets.values().map(move |uuid_set| mysql_part(tag, uuid_set)));
        parts.map(|part| Sid::from_str(&part).map_err(|_| Malformed("a part of the GTID set"))).collect()
    }

    /// Removes the domains that are not known any more, if another domain of the set is (MariaDB).
    pub fn keep_known_domains(&mut self, is_known: impl Fn(u32) -> bool) {
        if let Self::MariaDb(list) = self
            && list.gtids.iter().any(|gtid| is_known(gtid.domain_id))
        {
            list.gtids.retain(|gtid| is_known(gtid.domain_id));
        }
    }

    /// Returns the last untagged number of this server (MySQL).
    pub fn last_of(&self, uuid: &str) -> Option<u64> {
        let Self::MySql(sets) = self else { return None };
        let mut of_servers = sets.get("")?.uuid_sets.iter();
        let (_, set) = of_servers.find(|(known, _)| known.eq_ignore_ascii_case(uuid))?;
        set.intervals.last().map(|interval| interval.end)
    }

    /// Returns domain, server and sequence of the last group of each domain (MariaDB).
    pub fn domains(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        let gtids = match self {
            Self::MariaDb(list) => list.gtids.as_slice(),
            Self::MySql(_) => &[],
        };
        gtids.iter().map(|gtid| (gtid.domain_id, gtid.server_id, gtid.sequence))
    }
}

/// Whether the set, in the notation of a server of this flavor, holds every group of `wanted`; `None` when one of them
/// is not in that notation.
pub fn holds_gtids(flavor: &str, set: &str, wanted: &str) -> Option<bool> {
    let flavor = [Flavor::MariaDb, Flavor::MySql].into_iter().find(|known| known.as_str() == flavor)?;
    Some(Gtids::parse(flavor, set)?.hold(&Gtids::parse(flavor, wanted)?))
}

impl fmt::Display for Gtids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MariaDb(list) => list.fmt(f),
            Self::MySql(sets) => {
                let mut parts: Vec<_> = sets
                    .iter()
                    .flat_map(|(tag, set)| set.uuid_sets.values().map(move |set| mysql_part(tag, set)))
                    .collect();
                parts.sort();
                f.write_str(&parts.join(","))
            }
        }
    }
}

/// Parses MariaDB's `domain-server-sequence,…`, in which a domain may occur several times; skips parts of another form.
pub fn mariadb_state(text: &str) -> Vec<(u32, u32, u64)> {
    let gtid = |part: &str| {
        let mut numbers = part.trim().splitn(3, '-');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    text.split(',').filter_map(gtid).collect()
}

/// Query for MySQL's transactions that are being committed, or that have their GTID before a commit, see [`owned`].
pub const OWNED: &str = "SELECT @@GLOBAL.gtid_owned";

/// Parses the GTIDs of `uuid:23#7:25#9uuid:tag:4#7`: transactions, each with the thread that owns it. The server (9.7)
/// puts no separator between a thread's number and the next uuid; only uuids have hyphens, four of them, the first
/// after 8 digits.
pub fn owned(list: &str) -> impl Iterator<Item = String> {
    let hyphens = list.match_indices('-').map(|(at, _)| at).step_by(4);
    let starts: Vec<usize> = hyphens.map(|at| at.saturating_sub(8)).chain([list.len()]).collect();
    let servers: Vec<&str> = starts.windows(2).filter_map(|ends| list.get(ends[0]..ends[1])).collect();
    servers.into_iter().flat_map(|server| {
        let mut parts = server.split(':');
        let mut of = parts.next().unwrap_or_default().to_owned();
        parts.filter_map(move |part| match part.split_once('#') {
            Some((number, _)) => Some(format!("{of}:{number}")),
            None => {
                of = format!("{of}:{part}");
                None
            }
        })
    })
}

fn mysql_part(tag: &str, set: &UuidSet) -> String {
    let text = set.to_string();
    if tag.is_empty() { text } else { format!("{}:{tag}{}", &set.source_id.uuid, &text[UUID_TEXT_BYTES..]) }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses `uuid:1-9:tag:1:4-5`: intervals before the first tag are untagged.
fn read_mysql_part(part: &str, sets: &mut BTreeMap<String, GtidSet>) -> Option<()> {
    let mut fields = part.split(':').map(str::trim);
    let uuid_text = fields.next()?.to_ascii_lowercase();
    let hex = uuid_text.bytes().filter(u8::is_ascii_hexdigit).count();
    if uuid_text.len() != UUID_TEXT_BYTES || hex != 2 * UUID_BYTES {
        return None;
    }
    let uuid = Uuid::parse(uuid_text.clone()).ok()?;
    let mut tag = String::new();
    let mut intervals: BTreeMap<String, Vec<Interval>> = BTreeMap::new();
    for field in fields {
        if field.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            tag = field.to_ascii_lowercase();
            continue;
        }
        let (start, end) = field.split_once('-').unwrap_or((field, field));
        let (start, end) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
        if start == 0 || end < start || end == u64::MAX {
            return None;
        }
        intervals.entry(tag.clone()).or_default().push(Interval::new(start, end));
    }
    if intervals.is_empty() {
        return None;
    }
    for (tag, mut more) in intervals {
        let set = sets.entry(tag).or_insert_with(GtidSet::new);
        if let Some(known) = set.uuid_sets.remove(&uuid.uuid) {
            more.extend(known.intervals);
        }
        more.sort_by_key(|interval| interval.start);
        set.uuid_sets.insert(uuid.uuid.clone(), UuidSet::new(uuid.clone(), more));
    }
    Some(())
}

/// The start of a group, as its GTID event describes it.
#[derive(Debug)]
pub struct GroupStart {
    pub gtid: Gtid,
    /// The group is one statement without BEGIN and COMMIT (MariaDB).
    pub is_standalone: bool,
    /// The group has the rows of an undecided XA branch (MariaDB).
    pub is_prepared_xa: bool,
    /// Commit time (MySQL); 0 = unknown.
    pub committed_at_us: u64,
}

/// Reads MariaDB's GTID event.
pub fn read_mariadb_gtid(server_id: u32, body: &[u8]) -> Result<GroupStart, Malformed> {
    const STANDALONE: u8 = 1;
    const PREPARED_XA: u8 = 64;
    let mut reader = Reader::new(body);
    let (sequence, domain_id, flags) = (reader.little(8)?, reader.little(4)? as u32, reader.u8()?);
    Ok(GroupStart {
        gtid: Gtid::MariaDb(MariaDbGtid::new(domain_id, server_id, sequence)),
        is_standalone: flags & STANDALONE != 0,
        is_prepared_xa: flags & PREPARED_XA != 0,
        committed_at_us: 0,
    })
}

/// Reads MariaDB's list of GTIDs at the start of a file; `None` for the artificial forms with flags, which have another
/// meaning.
pub fn read_mariadb_gtid_list(body: &[u8]) -> Result<Option<Gtids>, Malformed> {
    const COUNT_MASK: u64 = (1 << 28) - 1;
    let count_and_flags = Reader::new(body).little(4)?;
    if count_and_flags & !COUNT_MASK != 0 {
        return Ok(None);
    }
    if (body.len() as u64) < 4 + 16 * count_and_flags {
        return Err(Malformed("a GTID list is too short"));
    }
    match EventParser::new().parse_event(&header(MARIADB_GTID_LIST, 0), body) {
        Ok(BinlogEvent::MariaDbGtidListEvent(event)) => {
            // A domain may occur several times, once for each server id; the last entry is the newest.
            let mut list = GtidList::new();
            for gtid in event.gtid_list.gtids {
                list.add_gtid(gtid);
            }
            Ok(Some(Gtids::MariaDb(list)))
        }
        _ => Err(Malformed("a GTID list cannot be read")),
    }
}

/// Reads MySQL's GTID event (untagged).
pub fn read_mysql_gtid(body: &[u8]) -> Result<GroupStart, Malformed> {
    const ORIGINAL_TIME_FOLLOWS: u64 = 1 << 55;
    let mut reader = Reader::new(body);
    reader.u8()?;
    let uuid = reader.take(UUID_BYTES)?.try_into().map_err(|_| Malformed("a GTID without uuid"))?;
    let number = reader.little(8)?;
    let time = body.get(GTID_CLOCK_END..GTID_CLOCK_END + COMMIT_TIME_BYTES).map_or(0, little);
    Ok(GroupStart {
        gtid: Gtid::MySql { uuid, tag: String::new(), number },
        is_standalone: false,
        is_prepared_xa: false,
        committed_at_us: time & (ORIGINAL_TIME_FOLLOWS - 1),
    })
}

/// Reads MySQL's GTID event of a group whose GTID has a tag.
pub fn read_mysql_tagged_gtid(event: &Event) -> Result<GroupStart, Malformed> {
    let read = std::panic::catch_unwind(|| event.read_event::<GtidEvent>());
    let Ok(Ok(read)) = read else { return Err(Malformed("a tagged GTID event cannot be read")) };
    Ok(GroupStart {
        gtid: Gtid::MySql {
            uuid: read.sid(),
            tag: read.tag().map(ToString::to_string).unwrap_or_default(),
            number: read.gno(),
        },
        is_standalone: false,
        is_prepared_xa: false,
        committed_at_us: read.immediate_commit_timestamp(),
    })
}

/// Reads MySQL's set of GTIDs before a file. The highest byte of the count says whether entries have tags.
pub fn read_mysql_previous(body: &[u8]) -> Result<Gtids, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.little(8)?;
    let is_tagged = count >> 56 != 0;
    let count = if is_tagged { count >> 8 & ((1 << 48) - 1) } else { count };
    let mut sets: BTreeMap<String, GtidSet> = BTreeMap::new();
    // Each turn reads at least 24 bytes, so the event's own length bounds the loop.
    for _ in 0..count {
        let uuid: [u8; UUID_BYTES] =
            reader.take(UUID_BYTES)?.try_into().map_err(|_| Malformed("a GTID set without uuid"))?;
        let mut tag = String::new();
        if is_tagged {
            // The length is a variable-length number; tags have at most 32 letters, so it is one byte, shifted by one.
            let length = usize::from(reader.u8()? >> 1);
            tag = String::from_utf8(reader.take(length)?.to_vec())
                .map_err(|_| Malformed("a tag is not text"))?;
        }
        let mut intervals = Vec::new();
        for _ in 0..reader.little(8)? {
            let (start, end) = (reader.little(8)?, reader.little(8)?);
            if start == 0 || end <= start {
                return Err(Malformed("an empty interval of GTIDs"));
            }
            intervals.push(Interval::new(start, end - 1));
        }
        let uuid = Uuid::new(uuid);
        let set = sets.entry(tag).or_insert_with(GtidSet::new);
        set.uuid_sets.insert(uuid.uuid.clone(), UuidSet::new(uuid, intervals));
    }
    Ok(Gtids::MySql(sets))
}

/// Makes the header that `mysql_cdc`'s parser needs, for an event whose checksum is cut off already.
fn header(event_type: u8, server_id: u32) -> EventHeader {
    EventHeader {
        timestamp: 0,
        event_type,
        server_id,
        event_length: 0,
        next_event_position: 0,
        event_flags: 0,
    }
}

#[cfg(test)]
mod tests;
