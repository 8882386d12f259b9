//! Damaged events, by the code that reads real ones: every one is read or refused by name, without a panic and without
//! an allocation that its own length does not explain.
//!
//! The events were recorded from MariaDB 10.11: rows plain and compressed, XA branches, rollbacks, statements.
//! Checksums are not looked at here, since they would refuse nearly everything. `ANABRANCH_FUZZ_SEED` and
//! `ANABRANCH_FUZZ_ROUNDS` repeat or extend a run.

// A counting allocator has no safe form.
#![allow(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_connectors::mysql::source::inspect;
use anabranch_pipeline::config::{EntityConfig, Removal, ServerUrl, SourceConfig, UnseenChanges};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource};
use anabranch_pipeline::records::{Batch, BatchBuilder};
use anabranch_schemas::change::Entity;
use anabranch_schemas::codec;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::TablePattern;
use futures::FutureExt as _;
use mysql_async::binlog::BinlogVersion;
use mysql_async::binlog::events::Event;
use mysql_common::binlog::EventStreamReader;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use rand::{Rng, RngExt as _, SeedableRng as _};

/// Remembers the largest single allocation, and how much is allocated.
struct Counting;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static PRESENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Held by a test that measures, since the numbers are those of the process.
static MEASURING: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        let present = PRESENT.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(present, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        PRESENT.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RECORDED: &[u8] = include_bytes!("recorded/mariadb-10.11.binlog");
const FILE: &str = "binlog.000004";
const HEADER_BYTES: usize = 19;
const MARIADB_GTID: u8 = 162;
/// Length of a compressed event: nearly 1 GiB.
const CLAIM: [u8; 5] = [0x84, 0x3f, 0xff, 0xff, 0xff];
const ROUNDS: u64 = 10_000;
/// A buffer for inflating, grown once, and lists of a few hundred small things.
const ALLOCATION_BYTES_MAX: usize = 4 << 20;
const GROWTH_BYTES_MAX: usize = 16 << 20;
/// Maps that are kept for later statements, at about a kilobyte and a half each.
const MAPS_BYTES_MAX: usize = 32 << 20;
const TABLE_MAP: u8 = 19;
const INSERTED_ROWS: u8 = 23;
const XID: u8 = 16;
/// Rows for no table, by which a server closes a statement.
const NO_TABLE: u64 = 0xff_ffff;

/// The raw events of the recording, without the magic bytes of the file.
fn recorded() -> Vec<Vec<u8>> {
    let mut rest = &RECORDED[4..];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let size = u32::from_le_bytes(rest[9..13].try_into().unwrap()) as usize;
        let (event, tail) = rest.split_at(size);
        events.push(event.to_vec());
        rest = tail;
    }
    // The recording ends with a DROP DATABASE, which stops a source without a sharding rule.
    let is_drop = |event: &Vec<u8>| event.windows(13).any(|window| window == b"DROP DATABASE");
    let drop_group = events.iter().position(is_drop).expect("recorded") - 1;
    events.truncate(drop_group);
    events
}

/// Makes events as the client library does. It leaves out each one that the library cannot make: the library alone
/// bounds its own work then.
fn parsed(raw: &[Vec<u8>]) -> Vec<Event> {
    let mut reader = EventStreamReader::new(BinlogVersion::Version4);
    let mut made = |bytes: &Vec<u8>| catch_unwind(AssertUnwindSafe(|| reader.read(bytes.as_slice())));
    raw.iter().filter_map(|bytes| made(bytes).ok()?.ok()?).collect()
}

fn damage(raw: &mut Vec<Vec<u8>>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..4) {
        let index = random.random_range(1..raw.len());
        match random.random_range(0..8) {
            0 => drop(raw.remove(index)),
            1 => {
                let copy = raw[random.random_range(1..raw.len())].clone();
                raw.insert(index, copy);
            }
            2 => {
                let other = random.random_range(1..raw.len());
                raw.swap(index, other);
            }
            3 => {
                let event = &mut raw[index];
                let length = random.random_range(HEADER_BYTES + 4..=event.len());
                event.truncate(length);
            }
            4 => {
                // A compressed event that claims to be huge.
                let has_room = |event: &[u8]| event.len() > HEADER_BYTES + CLAIM.len();
                let is_compressed = |event: &&mut Vec<u8>| (165..=168).contains(&event[4]) && has_room(event);
                let Some(event) = raw.iter_mut().filter(is_compressed).choose(random) else { continue };
                let at = random.random_range(HEADER_BYTES..event.len() - CLAIM.len());
                event[at..at + CLAIM.len()].copy_from_slice(&CLAIM);
            }
            _ => {
                let event = &mut raw[index];
                for _ in 0..random.random_range(1..6) {
                    // Not the length: the packet has its own. Type, position and body may be anything.
                    let at = random.random_range(0..event.len());
                    if !(9..13).contains(&at) {
                        event[at] = if random.random_bool(0.3) { 0xff } else { random.random() };
                    }
                }
            }
        }
    }
    for event in raw {
        let size = event.len() as u32;
        event[9..13].copy_from_slice(&size.to_le_bytes());
    }
}

struct Ground {
    config: SourceConfig,
    entities: Vec<EntityConfig>,
}

impl Ground {
    fn new() -> Self {
        let entity = EntityConfig {
            entity: Entity::User,
            tables: TablePattern::parse("user_f{db}.t{table}").unwrap(),
            columns: vec!["user_id".into(), "birthday".into()],
            level: None,
            rule: None,
            sharding_column: None,
            changed_at_column: None,
            unseen_changes: UnseenChanges::default(),
            removal: Removal::default(),
            retention_marker: None,
        };
        let config = SourceConfig {
            name: "source-a".to_owned(),
            url: ServerUrl::try_from("mysql://u:p@127.0.0.1:3306".to_owned()).unwrap(),
            ca_file: None,
            replica_server_id: NonZeroU32::MIN,
            start: BinlogStart::Earliest,
            replica: None,
            generation: 0,
            entities: vec![Entity::User],
            flux: None,
            retention_min: Duration::ZERO,
            spill_dir: std::env::temp_dir(),
        };
        Self { config, entities: vec![entity] }
    }

    /// Reads all; the number of changes and how it ended.
    fn read(&self, events: Vec<Event>) -> (u32, Fault) {
        let mut stream = inspect::recorded(FILE, None, events, &self.config, &self.entities);
        let mut batch = BatchBuilder::new(4096, Lsn::ZERO, ResumePoint::default());
        let mut changes = 0;
        loop {
            let filled = stream.fill(&mut batch).now_or_never().expect("a recording never waits");
            changes += batch.take().changes;
            if let Err(fault) = filled {
                return (changes, fault);
            }
        }
    }

    /// All batches of at most about this many bytes, read from a resume point or, without one, from the file's start.
    fn batches(&self, limit_bytes: usize, from: Option<(&ResumePoint, Lsn)>, raw: &[Vec<u8>]) -> Vec<Read> {
        let (resume, sent) = from.map_or_else(Default::default, |(resume, sent)| (resume.clone(), sent));
        let mut stream = match from {
            None => inspect::recorded(FILE, None, parsed(raw), &self.config, &self.entities),
            Some(_) => {
                let sent_again = events_from(raw, resume.position);
                inspect::resumed(&resume, sent, parsed(&sent_again), &self.config, &self.entities)
            }
        };
        let mut batch = BatchBuilder::new(limit_bytes, sent, resume);
        let mut all = Vec::new();
        loop {
            let filled = stream.fill(&mut batch).now_or_never().expect("a recording never waits");
            batch.require_order("source-a").unwrap();
            let Batch { payload, position, resume, continues, .. } = batch.take();
            let mut changes = Vec::new();
            let mut decoder = codec::decode(&payload).unwrap();
            while let Some(change) = decoder.next().unwrap() {
                changes.push((change.lsn, format!("{:?} {:?}", change.table, change.action)));
            }
            all.push(Read { changes, position, resume, continues });
            if let Err(fault) = filled {
                assert_eq!(fault.code(), Code::SourceUnreachable, "{fault}");
                return all;
            }
        }
    }

    /// Position of each change.
    fn positions(&self, first_group: Option<u64>, events: Vec<Event>) -> Vec<u64> {
        let mut stream = inspect::recorded(FILE, first_group, events, &self.config, &self.entities);
        let mut batch = BatchBuilder::new(4096, Lsn::ZERO, ResumePoint::default());
        let mut positions = Vec::new();
        while stream.fill(&mut batch).now_or_never().expect("a recording never waits").is_ok() {
            let taken = batch.take();
            let mut changes = codec::decode(&taken.payload).unwrap();
            while let Some(change) = changes.next().unwrap() {
                positions.push(change.lsn.position());
            }
        }
        positions
    }
}

/// The content of a batch, and its end.
struct Read {
    changes: Vec<(Lsn, String)>,
    position: Lsn,
    resume: ResumePoint,
    continues: bool,
}

/// Events as MariaDB 11.4 and later write them: within a group only the first and the last event have a position.
fn without_positions(mut raw: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let first = raw.iter().position(|event| event[4] == MARIADB_GTID).expect("recorded");
    for index in first..raw.len() - 1 {
        if raw[index][4] != MARIADB_GTID && raw[index + 1][4] != MARIADB_GTID {
            raw[index][13..17].fill(0);
        }
    }
    raw
}

/// The description of the file, and the events from a place on.
fn events_from(raw: &[Vec<u8>], position: u64) -> Vec<Vec<u8>> {
    let mut begins = 4;
    let mut events = vec![raw[0].clone()];
    for event in raw {
        if begins >= position && begins > 4 {
            events.push(event.clone());
        }
        begins += event.len() as u64;
    }
    events
}

/// Changes that lanes apply of consecutive messages: of each message only those above the position.
fn applied<'r>(batches: impl IntoIterator<Item = &'r Read>) -> Vec<&'r str> {
    let (mut position, mut applied) = (Lsn::ZERO, Vec::new());
    for batch in batches {
        let above = batch.changes.iter().filter(|(lsn, _)| *lsn > position);
        applied.extend(above.map(|(_, change)| change.as_str()));
        position = position.max(batch.position);
    }
    applied
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The four bytes of an event's position do not say how often they have wrapped, and events of the file's start come
/// first.
#[test]
fn a_reading_that_enters_behind_four_gibibytes_places_changes_there() {
    const WRAP: u64 = 1 << 32;
    let ground = Ground::new();
    let raw = recorded();
    let first = raw.iter().find(|event| event[4] == MARIADB_GTID).expect("recorded");
    let first_ends = u32::from_le_bytes(first[13..17].try_into().unwrap());
    let first_begins = u64::from(first_ends) - first.len() as u64;
    let near = ground.positions(None, parsed(&raw));
    let far = ground.positions(Some(WRAP + first_begins), parsed(&raw));
    assert!(!near.is_empty());
    assert_eq!(far, near.iter().map(|position| position + WRAP).collect::<Vec<_>>());
}

/// Else what was read would look like a part of a transaction, which a promoted replica must hold.
#[test]
fn the_events_at_the_start_of_a_file_move_the_place_to_resume_from() {
    let ground = Ground::new();
    let mut raw = recorded();
    raw.truncate(raw.iter().position(|event| event[4] == MARIADB_GTID).expect("recorded"));
    let mut stream = inspect::recorded(FILE, None, parsed(&raw), &ground.config, &ground.entities);
    let mut batch = BatchBuilder::new(4096, Lsn::ZERO, ResumePoint::default());
    while stream.fill(&mut batch).now_or_never().expect("a recording never waits").is_ok() {}
    let end = 4 + raw.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!((batch.position().position(), batch.resume().position), (end / 16 * 16, end));
}

/// All rows of such a group share the position of its first event, so that they are one event, in parts.
#[test]
fn events_without_positions_lose_nothing_at_any_border_of_batches_nor_at_any_restart() {
    let ground = Ground::new();
    let whole = ground.batches(1 << 20, None, &recorded());
    let expected = applied(&whole);
    assert_eq!(expected.len(), 17);
    let raw = without_positions(recorded());
    for limit_bytes in [40, 60, 100, 1 << 20] {
        let batches = ground.batches(limit_bytes, None, &raw);
        assert_eq!(applied(&batches), expected, "{limit_bytes} bytes");
        assert_eq!(batches.iter().any(|batch| batch.continues), limit_bytes < 1 << 20, "{limit_bytes} bytes");
        let all: Vec<_> = batches.iter().flat_map(|batch| &batch.changes).collect();
        for Read { position, resume, .. } in &batches {
            let again = ground.batches(limit_bytes, Some((resume, *position)), &raw);
            let again: Vec<_> = again.iter().flat_map(|batch| &batch.changes).collect();
            // A reader that is cut off within a group begins it again at its first part.
            let tail: Vec<_> = all.iter().copied().filter(|(lsn, _)| lsn > position).collect();
            assert_eq!(again, tail, "{limit_bytes} bytes, from {position}");
        }
    }
}

#[test]
fn damaged_events_are_read_or_refused_within_bounds() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let ground = Ground::new();
    let whole = recorded();
    let (changes, fault) = ground.read(parsed(&whole));
    // Three rows, three changed, two and one beside a branch and a savepoint, six compressed (a seventh changes
    // nothing), two withdrawn tables.
    assert_eq!((changes, fault.code()), (17, Code::SourceUnreachable), "{fault}");

    let seed = number("ANABRANCH_FUZZ_SEED", rand::rng().next_u64());
    let rounds = number("ANABRANCH_FUZZ_ROUNDS", ROUNDS);
    println!("ANABRANCH_FUZZ_SEED={seed} ANABRANCH_FUZZ_ROUNDS={rounds}");
    std::panic::set_hook(Box::new(|_| {}));
    let mut refused = 0;
    for round in 0..rounds {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(round));
        // The damage and the library's own reading of events are within, so that a panic of theirs tells its seed.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let mut raw = whole.clone();
            damage(&mut raw, &mut random);
            let events = parsed(&raw);
            LARGEST.store(0, Ordering::Relaxed);
            let before = PRESENT.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            (ground.read(events).1, before)
        }));
        let Ok((fault, before)) = read else {
            drop(std::panic::take_hook());
            panic!("a panic with seed {}, which is round 0 of it", seed.wrapping_add(round));
        };
        refused += u64::from(fault.code() != Code::SourceUnreachable);
        let (largest, grown) =
            (LARGEST.load(Ordering::Relaxed), PEAK.load(Ordering::Relaxed).saturating_sub(before));
        if largest > ALLOCATION_BYTES_MAX || grown > GROWTH_BYTES_MAX {
            drop(std::panic::take_hook());
            panic!("{largest} bytes at once, {grown} in all, with seed {}", seed.wrapping_add(round));
        }
    }
    drop(std::panic::take_hook());
    println!("{refused} of {rounds} refused by name");
    assert!(refused > rounds / 10, "the damage does not reach the reader: {refused} of {rounds} refused");
}

/// An event of a group as MariaDB 11.4 and later write it: without a position.
fn unplaced(event_type: u8, body: &[u8]) -> Vec<u8> {
    const CHECKSUM_BYTES: usize = 4;
    let mut event = vec![0; HEADER_BYTES];
    event[4] = event_type;
    event[9..13].copy_from_slice(&((HEADER_BYTES + body.len() + CHECKSUM_BYTES) as u32).to_le_bytes());
    event.extend_from_slice(body);
    event.extend_from_slice(&[0; CHECKSUM_BYTES]);
    event
}

/// The map of a table (user_id INT UNSIGNED, birthday DATE), as long as that of a table with a few dozen columns.
fn table_map(table_id: u64, database: &str, table: &str) -> Vec<u8> {
    const UNKNOWN_METADATA: u8 = 250;
    let mut body = table_id.to_le_bytes()[..6].to_vec();
    body.extend([1, 0]);
    for name in [database, table] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.push(0);
    }
    body.extend([2, 3, 10, 0, 0b10]);
    body.extend([1, 1, 0x80]);
    body.extend([4, 17, 7]);
    body.extend_from_slice(b"user_id");
    body.push(8);
    body.extend_from_slice(b"birthday");
    body.extend([UNKNOWN_METADATA, 0xfc, 0, 3]);
    body.resize(body.len() + 0x300, 7);
    unplaced(TABLE_MAP, &body)
}

/// The last rows of a statement; without a row they belong to no table.
fn last_rows(table_id: u64, row: &[u8]) -> Vec<u8> {
    let mut body = table_id.to_le_bytes()[..6].to_vec();
    body.extend([1, 0]);
    if table_id != NO_TABLE {
        body.extend([2, 0b11]);
    }
    body.extend_from_slice(row);
    unplaced(INSERTED_ROWS, &body)
}

const ROW: [u8; 8] = [0b00, 5, 0, 0, 0, 0x5d, 0xd0, 0x0f];

impl Ground {
    /// Reads one transaction of these events; the number of its changes and how much memory grew meanwhile.
    fn one_transaction(&self, events: impl Iterator<Item = Vec<u8>> + Send) -> (u64, usize) {
        let mut before = recorded();
        let first = before.iter().position(|event| event[4] == MARIADB_GTID).expect("recorded");
        before.truncate(first + 1);
        // The group may have been one statement: now it is a transaction, which its XID ends.
        before[first][HEADER_BYTES + 12] = 0;
        let mut end = unplaced(XID, &[0; 8]);
        end[13..17].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reader = EventStreamReader::new(BinlogVersion::Version4);
        let events = before.into_iter().chain(events).chain([end]);
        let events = events.map(move |raw| {
            let event = reader.read(raw.as_slice()).unwrap().expect("it was made whole");
            if raw[4] == TABLE_MAP {
                let mut table_id = [0; 8];
                table_id[..6].copy_from_slice(&event.data()[..6]);
                let kept = reader.get_tme(u64::from_le_bytes(table_id));
                assert!(kept.is_none(), "the client library keeps a table map");
            }
            event
        });
        let mut stream = inspect::recorded(FILE, None, events, &self.config, &self.entities);
        let present = PRESENT.load(Ordering::Relaxed);
        PEAK.store(present, Ordering::Relaxed);
        let mut batch = BatchBuilder::new(4096, Lsn::ZERO, ResumePoint::default());
        let mut changes = 0;
        loop {
            let filled = stream.fill(&mut batch).now_or_never().expect("a recording never waits");
            changes += u64::from(batch.take().changes);
            if let Err(fault) = filled {
                assert_eq!(fault.code(), Code::SourceUnreachable, "{fault}");
                return (changes, PEAK.load(Ordering::Relaxed).saturating_sub(present));
            }
        }
    }
}

/// A server whose `table_definition_cache` is smaller than its tables opens them again for each statement, and numbers
/// them anew each time. All in one transaction, so that no end of a group helps.
#[test]
fn a_million_table_ids_leave_no_more_than_a_bounded_number_of_maps() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let ground = Ground::new();
    let others = (1..=1_000_000u64)
        .flat_map(|id| [table_map(id, "elsewhere", &format!("t{}", id % 2_000)), last_rows(id, &ROW)]);
    let (0, grown) = ground.one_transaction(others) else { panic!("no captured row was written") };
    assert!(grown <= MAPS_BYTES_MAX, "{grown} bytes for other tables");

    let captured = (1..=100_000u64)
        .flat_map(|id| [table_map(id, "user_f0", &format!("t{}", id % 100)), last_rows(NO_TABLE, &[])]);
    let (0, grown) = ground.one_transaction(captured) else { panic!("no row was written") };
    assert!(grown <= MAPS_BYTES_MAX, "{grown} bytes for captured tables");
}

/// Under LOCK TABLES a statement is introduced by the maps of all tables that are locked.
#[test]
fn a_statement_keeps_all_of_its_maps_whatever_their_number() {
    const LOCKED: u64 = 20_000;
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let ground = Ground::new();
    for statements in 1..=2 {
        let one = (1..=LOCKED)
            .map(|id| table_map(id, if id % 100 == 1 { "user_f0" } else { "elsewhere" }, &format!("t{id}")))
            .chain([last_rows(1, &ROW)]);
        let events = std::iter::repeat_n(one, statements).flatten();
        assert_eq!(ground.one_transaction(events).0, statements as u64);
    }
}
