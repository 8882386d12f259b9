//! Pages of a scan that break half-way: their rows do not count.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{Group, MemoryRows, MemorySource, ScriptedRow, Weather};
use anabranch_pipeline::reconcile::{Sides, SourceTable, Unit};
use anabranch_pipeline::throttle::Pace;
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::shard::ShardId;

use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, limits};

const WAIT_MAX: Duration = Duration::from_secs(60);
const USERS: u64 = 40;
/// Seeds of the test; a page breaks once in 250 times.
const SEEDS: u64 = 1_000;

#[tokio::test(start_paused = true)]
async fn a_page_that_breaks_when_it_is_read_in_part_is_counted_once() {
    let stage = Stage::calm(Layout::ByDay, limits(1024, 10, WAIT_MAX));
    let table = script::table(0);
    let rows = (1..=USERS).map(|user| {
        let birthday = Value::Date { year: 1990, month: 1, day: 3 };
        ScriptedRow { table: table.clone(), before: None, after: Some(vec![Value::UInt(user), birthday]) }
    });
    let (number, rows) = (|number| ShardId::from_u64(number).expect("63 bits"), rows.collect::<Vec<_>>());
    let source = || SourceTable { source: SOURCE_NAMES[0].to_owned(), identity: table.clone() };
    let unit = Unit { shards: number(0)..=number(u64::MAX >> 1), tables: [(table.shard, source())].into() };
    let mut broken = 0;
    for seed in 0..SEEDS {
        let weather = Weather::stormy(seed, 1);
        let source = Arc::new(MemorySource::new(weather.clone()));
        source.commit(Group::Rows(vec![rows.clone()]));
        let sides: Sides<MemorySource, MemoryRows> = Sides {
            projection: stage.projection().clone(),
            replicated: BTreeSet::new(),
            sources: [(SOURCE_NAMES[0].to_owned(), source)].into(),
            primaries: [].into(),
            targets: Vec::new(),
            audit: None,
        };
        let pace = Pace::unbounded();
        let scanned = sides.scan(&unit, seed, 1 << 20, &pace).next().await.expect("it is tried again");
        let scanned = scanned.expect("nothing was read before");
        // A snapshot may not see the newest group.
        assert!([0, USERS].contains(&scanned.rows_source), "seed {seed}: {scanned:?}");
        assert_eq!(scanned.rows_expected, scanned.rows_source, "seed {seed}");
        broken += weather.strikes();
    }
    assert!(broken > 0, "none broke");
}
