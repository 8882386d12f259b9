//! Tests of the tables that a lane is to read again.

use std::ops::Range;

use super::*;

#[test]
fn a_lane_counts_the_tables_that_wait_and_names_some_that_it_could_not_read() {
    let world = world();
    let shard = |number| ShardId::from_u64(number).unwrap();
    let waiting =
        (0..8).fold(None, |refresh, number| Some(Refresh::with_reread(refresh, shard(number), Lsn::MAX)));
    let progress = Progress { revision: 1, position: at(1), refresh: waiting, ..Progress::default() };
    let stored = |progress: Progress| {
        world.observatory.progress_seen("t", &Ok([(world.lane.clone(), progress)].into()), world.second(1));
    };
    stored(progress.clone());
    let unread = |number| UnreadTable {
        shard: shard(number),
        table: Some(format!("d.u{number}")),
        code: Code::SourceColumnMissing,
        fault: "[source-column-missing] x".to_owned(),
    };
    let of_lane = |numbers: Range<u64>| (world.lane.clone(), numbers.map(unread).collect::<Vec<_>>());
    world.observatory.unread_seen([of_lane(1..20)].into_iter());
    let lane = world.view(1).lanes.remove(0);
    let named: Vec<_> = lane.owed.iter().filter_map(|owed| owed.table.as_deref()).collect();
    assert_eq!((lane.owed_tables, named), (8, vec!["d.u1", "d.u2", "d.u3", "d.u4", "d.u5"]));
    assert_eq!(lane.owed[0].code, "source-column-missing");
    stored(Progress { refresh: Some(Refresh::with_every_table(None)), ..progress.clone() });
    let lane = world.view(1).lanes.remove(0);
    assert_eq!((lane.owed_tables, lane.owed), (1, Vec::new()), "every table waits, and none is listed");
    stored(Progress { refresh: None, ..progress });
    assert_eq!(world.view(1).lanes[0].owed_tables, 0);
}
