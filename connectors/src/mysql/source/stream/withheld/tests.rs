//! Tests of withheld rows.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::config::{EntityConfig, Removal, ServerUrl, SourceConfig, UnseenChanges};
use anabranch_pipeline::ports::BinlogStart;
use anabranch_schemas::change::{Entity, Value};
use anabranch_schemas::shard::TablePattern;
use proptest::prelude::*;

use super::*;
use crate::mysql::source::decode::character_sets::Collations;
use crate::mysql::source::decode::gtid::Flavor;
use crate::mysql::source::decode::rows::Kind;
use crate::mysql::source::decode::table_map::{TableMap, tests::sample};
use crate::mysql::source::stream::maps::TableMaps;
use crate::mysql::source::stream::pending::RowsBody;

pub struct Ground {
    pub tables: CapturedTables,
    maps: TableMaps,
    table_id: u64,
}

impl Ground {
    pub fn new() -> Self {
        let body = sample();
        let map = TableMap::read(&body).unwrap();
        let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let pattern = format!("{}.{}", name(map.database), name(map.table));
        let entity = EntityConfig {
            entity: Entity::User,
            tables: TablePattern::parse(&pattern).unwrap(),
            columns: vec!["id".into(), "birthday".into()],
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
            ca_file: None::<PathBuf>,
            replica_server_id: NonZeroU32::MIN,
            start: BinlogStart::Earliest,
            generation: 0,
            entities: vec![Entity::User],
            flux: None,
            replica: None,
            retention_min: Duration::ZERO,
            spill_dir: std::env::temp_dir(),
        };
        let mut tables = CapturedTables::new(&config, &[entity]);
        let mut maps = TableMaps::new(Flavor::MariaDb, Collations::default());
        maps.read(&body, &mut tables).unwrap();
        Self { tables, maps, table_id: map.table_id }
    }

    /// Returns an event of this many rows at this position.
    pub fn event(&self, lsn: Lsn, first: u32, rows: u32) -> PendingRows {
        let mut body = self.table_id.to_le_bytes()[..6].to_vec();
        body.extend([1, 0, 2, 0b11]);
        for id in first..first + rows {
            body.push(0b10);
            body.extend(id.to_le_bytes());
        }
        let table = self.maps.get(self.table_id).unwrap().clone().expect("captured");
        PendingRows::new(table, Kind::Insert, false, RowsBody::Inflated(body), lsn).unwrap()
    }
}

fn lsn(number: u64) -> Lsn {
    Lsn::new(1, 1, number * 16).unwrap()
}

/// Releases everything; returns position and id of each change.
fn released(mut rows: Withheld, at: Option<Lsn>, sent: Lsn, ground: &Ground) -> Vec<(Lsn, u64)> {
    let mut batch = BatchBuilder::new(512, sent, ResumePoint::default());
    let mut all: Vec<(Lsn, u64)> = Vec::new();
    loop {
        let is_done = rows.release(at, at.unwrap_or(Lsn::MAX), sent, &ground.tables, &mut batch).unwrap();
        let taken = batch.take();
        let mut decoder = codec::decode(&taken.payload).unwrap();
        while let Some(change) = decoder.next().unwrap() {
            let Action::Insert { after } = change.action else { panic!("only inserts") };
            let Value::UInt(id) = after[0] else { panic!("a number") };
            all.push((change.lsn, id));
        }
        // A change not above the batch's position must be in this batch or an earlier one.
        if at.is_none() {
            assert!(all.last().is_none_or(|(lsn, _)| taken.position <= *lsn), "{}", taken.position);
        }
        if is_done {
            return all;
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Event(u32),
    Savepoint(u8),
    RollbackTo(u8),
    Encode,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..400u32).prop_map(Step::Event),
        1 => (0..3u8).prop_map(Step::Savepoint),
        1 => (0..3u8).prop_map(Step::RollbackTo),
        1 => Just(Step::Encode),
    ]
}

proptest! {
    #[test]
    fn what_is_released_is_what_was_not_rolled_back(
        steps in proptest::collection::vec(step(), 0..30),
        memory_left in prop_oneof![Just(0), 0..40_000usize, Just(usize::MAX)],
        sent in 0..12u64,
        decided: bool,
    ) {
        let ground = Ground::new();
        let folder = tempfile::tempdir().unwrap();
        let spill = Spill::new(folder.path(), "source-a");
        let room = RowStorage { memory_bytes: memory_left, spill };
        let mut rows = Withheld::default();
        let mut expected: Vec<(Lsn, u64)> = Vec::new();
        let mut savepoints: Vec<(String, usize)> = Vec::new();
        let mut next = 0;
        for (number, step) in steps.iter().enumerate() {
            let at = lsn(number as u64 + 1);
            match step {
                Step::Event(count) => {
                    rows.push(ground.event(at, next, *count));
                    expected.extend((next..next + count).map(|id| (at, u64::from(id))));
                    next += count;
                }
                Step::Savepoint(name) => {
                    let name = format!("s{name}");
                    rows.set_savepoint(&name.to_uppercase());
                    savepoints.retain(|(known, _)| *known != name);
                    savepoints.push((name, expected.len()));
                }
                Step::RollbackTo(name) => {
                    let name = format!("s{name}");
                    let known = savepoints.iter().position(|(known, _)| *known == name);
                    prop_assert_eq!(rows.rollback_to(&name), known.is_some());
                    if let Some(known) = known {
                        expected.truncate(savepoints[known].1);
                        savepoints.truncate(known + 1);
                    }
                }
                Step::Encode => rows.encode(&room).unwrap(),
            }
        }
        prop_assert!(rows.memory_bytes() <= memory_left);
        let at = decided.then(|| lsn(1000));
        let sent = lsn(sent);
        match at {
            // The rows of a branch are encoded, and all of them count, whatever their positions.
            Some(at) => {
                rows.encode(&room).unwrap();
                expected.iter_mut().for_each(|(lsn, _)| *lsn = at);
            }
            None => expected.retain(|(lsn, _)| *lsn > sent),
        }
        prop_assert_eq!(released(rows, at, sent, &ground), expected);
    }
}

#[test]
fn a_savepoint_that_was_never_set_is_told() {
    let ground = Ground::new();
    let mut rows = Withheld::default();
    rows.push(ground.event(lsn(1), 0, 1));
    assert!(!rows.rollback_to("s"));
    assert!(!rows.is_empty());
}
