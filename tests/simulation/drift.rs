//! Drift that is planted by hand in rows of any lane, each time in one of its forms.

use anabranch_pipeline::ports::SourceConnector;
use anabranch_pipeline::records::Cell;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use crate::replay::NOBODY;
use crate::script::{SOURCES, TARGETS};
use crate::stage::{LANES, Stage, lane_id};

/// Highest of the low versions that hands give and changes never have.
const OLD: u64 = 3;

/// Whether a row of this version was planted by hand.
pub fn is_hand_made(version: Lsn) -> bool {
    version == Lsn::MAX || version.as_u64() <= OLD
}

/// Changes one or two rows of a lane.
pub async fn plant(stage: &Stage, random: &mut StdRng) {
    let at @ (source, target, _) =
        (random.random_range(0..SOURCES), random.random_range(0..TARGETS), random.random_range(0..LANES));
    // Tables appear with their first rows.
    let shards = stage.sources[source].shards().await.expect("it always knows");
    let Some(shard) = shards.into_iter().choose(random) else { return };
    let owned = stage.owned(at);
    let tables: Vec<u32> = owned.iter().copied().collect();
    let old = Lsn::from_u64(random.random_range(1..=OLD)).expect("an Lsn");
    let version = if random.random_ratio(1, 4) { Lsn::MAX } else { old };
    stage.log_line(|| format!("a hand changes rows of {}", lane_id(at)));
    stage.tamper(target, |rows| {
        let of_lane = |(table, of, _): &&(u32, ShardId, Box<[Cell]>)| owned.contains(table) && *of == shard;
        let found: Vec<_> = rows.keys().filter(of_lane).cloned().collect();
        let other = tables[random.random_range(0..tables.len())];
        let day = |text: &str| Box::new([Cell::Bytes(text.as_bytes().into())]);
        let Some(row) = found.into_iter().choose(random) else {
            // A row of a deleted user.
            let user = [0, 1, NOBODY][random.random_range(0..3)] + random.random_range(0..3);
            rows.insert((other, shard, [Cell::UInt(user)].into()), (version, day("01-01")));
            return;
        };
        let stored = rows[&row].1.clone();
        match random.random_range(0..7) {
            0 => _ = rows.remove(&row),
            // The right content in a wrong table.
            1 => {
                rows.remove(&row);
                rows.insert((other, row.1, row.2), (version, stored));
            }
            // One user in two tables.
            2 => _ = rows.insert((other, row.1, row.2), (version, day("01-03"))),
            3 => _ = rows.insert(row, (version, day("12-31"))),
            4 => _ = rows.insert(row, (version, day(""))),
            // Another user takes the row's place.
            5 => {
                let user = Cell::UInt(random.random_range(0..3));
                rows.remove(&row);
                rows.insert((row.0, row.1, [user].into()), (version, stored));
            }
            _ => {
                let user = Cell::UInt(NOBODY + random.random_range(0..3));
                rows.insert((other, row.1, [user].into()), (version, stored));
            }
        }
    });
}
