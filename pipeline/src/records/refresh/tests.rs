//! Tests of the stored state of a refresh.

use anabranch_schemas::lsn::FIRST_EPOCH;
use proptest::option;
use proptest::prelude::*;

use super::*;

fn numbered(number: u64) -> ShardId {
    ShardId::from_u64(number).unwrap()
}

fn chunk(position: u64, rows: u64, next: Option<&[u8]>) -> Chunk {
    let low = Lsn::new(1, 7, position).unwrap();
    let next = next.map(|key| ScanCursor(key.into()));
    Chunk { low, high: low, server: Default::default(), payload: Default::default(), rows, next }
}

fn keys() -> Scope {
    let texts = [b"7".as_slice(), b"\x00\xff ,"].map(|key| Cell::Bytes(key.into()));
    Scope::Keys(
        [(numbered(4), vec![Cell::UInt(0), Cell::UInt(u64::MAX)]), (numbered(9), texts.into())].into(),
    )
}

#[test]
fn the_text_is_read_back() {
    let whole = Refresh::new(Scope::Source);
    let begun =
        whole.after_table(numbered(7)).after_chunk(numbered(9), &chunk(320, 20, Some(&[0, 255, 16])), false);
    let read = begun.after_chunk(numbered(9), &chunk(640, 3, None), false);
    assert_eq!(begun.to_string(), "- 7 20 9 1:7:320 1 00ff10");
    assert_eq!(read.to_string(), "- 7 23 9 1:7:320 2 -");
    let keys = Refresh::new(keys());
    assert_eq!(keys.to_string(), "4=0,18446744073709551615;9=x37,x00ff202c - 0");
    let found = Refresh::new(Scope::Where(Some(numbered(4)), condition())).after_chunk(
        numbered(4),
        &chunk(320, 2, Some(&[1])),
        false,
    );
    assert_eq!(
        found.to_string(),
        "4?757365725f6964203e3d20273727&757365725f6964203c20273927 - 2 4 1:7:320 1 01"
    );
    let anywhere = Refresh::new(Scope::Where(None, condition()));
    let table = Refresh::new(Scope::Table(numbered(3)));
    let empty_in_epoch = Refresh { empty_in_epoch: Some(FIRST_EPOCH), ..whole.clone() };
    let empty_begun = Refresh { empty_in_epoch: Some(FIRST_EPOCH), ..begun.clone() };
    assert_eq!(empty_begun.to_string(), "- 7 20 empty_in_epoch:1 9 1:7:320 1 00ff10");
    let after_keys = Refresh::with_every_table(Some(keys.clone()));
    assert_eq!(after_keys.to_string(), format!("{keys} every"));
    for known in [whole, begun, read, table, keys, found, anywhere, empty_in_epoch, empty_begun, after_keys] {
        assert_eq!(known.to_string().parse(), Ok(known));
    }
    for text in [
        "",
        "-",
        "- - x",
        "- - 1 2",
        "- - 1 2 1:1:16 1 0",
        "- - 1 2 1:1:16 1 zz",
        "- - 1 2 x 1 -",
        "- - 1 every every",
        "- - 1 empty_in_epoch:",
        "- - 1 empty_in_epoch:1 2",
        "- - 1 empty_in_epoch:1 empty_in_epoch:1",
        "4= - 0",
        "=7 - 0",
        "4=x0 - 0",
        "4=7;5 - 0",
        "? - 0",
        "-? - 0",
        "-?61 - 0",
        "x?61203d20273727 - 0",
    ] {
        assert_eq!(text.parse::<Refresh>(), Err(InvalidRefresh), "{text}");
    }
}

proptest! {
    #[test]
    fn words_in_any_combination_are_read_back(
        every_waits: bool,
        hides_more: bool,
        empty_in_epoch in option::of(any::<u16>()),
        rereads in 0..4u64,
        is_begun: bool,
        is_reread: bool,
    ) {
        let rereads = (1..=rereads).map(|number| (numbered(number), Lsn::MAX)).collect();
        let table = TableRefresh { shard: numbered(9), first: Lsn::MAX, chunks: 3, after: None, is_reread };
        let table = is_begun.then_some(table);
        let refresh = Refresh { table, empty_in_epoch, rereads, every_waits, hides_more, ..Refresh::of_every_table() };
        prop_assert_eq!(refresh.to_string().parse::<Refresh>(), Ok(refresh));
    }
}

fn condition() -> Condition {
    let comparisons = ["user_id >= 7", "user_id < 9"].map(|text| text.parse().unwrap());
    Condition::new(comparisons.into()).unwrap()
}

#[test]
fn what_a_condition_finds_is_taken_a_chunk_at_a_time_and_swept_away_by_nothing() {
    let refresh = Refresh::new(Scope::Where(None, condition()));
    let begun = refresh.after_chunk(numbered(4), &chunk(320, 2, Some(&[1])), false);
    assert!(begun.wants(numbered(4)) && begun.table.is_some());
    let through = begun.after_chunk(numbered(4), &chunk(640, 1, None), false);
    assert_eq!((through.table, through.done, through.rows), (None, Some(numbered(4)), 3));
    assert!(!Refresh::new(Scope::Where(Some(numbered(4)), condition())).wants(numbered(5)));
}

#[test]
fn a_table_is_swept_unless_the_lane_had_no_rows_in_the_same_epoch() {
    let swept = Refresh::new(Scope::Source);
    let empty_in_epoch = |epoch| Refresh { empty_in_epoch: Some(epoch), ..Refresh::new(Scope::Source) };
    let is_through = |refresh: &Refresh, next| {
        let later = refresh.after_chunk(numbered(4), &chunk(320, 2, next), false);
        assert_eq!(later.empty_in_epoch, refresh.empty_in_epoch);
        later.table.is_none() && later.done == Some(numbered(4))
    };
    assert!(is_through(&empty_in_epoch(FIRST_EPOCH), None));
    assert!(!is_through(&empty_in_epoch(FIRST_EPOCH), Some(&[1])));
    assert!(!is_through(&empty_in_epoch(FIRST_EPOCH + 1), None));
    assert!(!is_through(&swept, None));
}

#[test]
fn keys_of_all_tables_are_taken_in_one_chunk() {
    let refresh = Refresh::new(keys());
    let left = |refresh: &Refresh| -> Vec<(ShardId, usize)> {
        refresh.keys().unwrap().map(|(shard, keys)| (shard, keys.len())).collect()
    };
    assert_eq!(left(&refresh), [(numbered(4), 2), (numbered(9), 2)]);
    // An earlier version took the keys table by table, and left this state.
    assert_eq!(left(&refresh.after_table(numbered(4))), [(numbered(9), 2)]);
    let through = refresh.after_chunk(numbered(4), &chunk(320, 3, None), false);
    assert!(left(&through).is_empty());
    assert_eq!((through.rows, through.table), (3, None));
}

#[test]
fn so_many_keys_of_any_kind_fit_into_the_progress_row() {
    let all = |keys: Vec<Cell>| Scope::Keys([(numbered(u64::MAX >> 1), keys)].into());
    let long = |length| Cell::Bytes(vec![0; length].into());
    let full = all(vec![long(UUID_BYTES_MAX); KEYS_MAX]);
    assert_eq!(full.problem(), None);
    assert!(Refresh::new(full).to_string().len() < usize::from(u16::MAX));
    let refused = [vec![], vec![Cell::UInt(1); KEYS_MAX + 1], vec![long(0)], vec![long(UUID_BYTES_MAX + 1)]];
    for keys in refused.into_iter().chain([vec![Cell::Null], vec![Cell::Int(1)]]) {
        assert!(all(keys.clone()).problem().is_some(), "{keys:?}");
    }
}

/// Keys go first, so they are stored beside the tables that come to wait meanwhile.
#[test]
fn tables_that_wait_leave_the_keys_of_a_request_their_room_in_the_progress_row() {
    let shard = |number: usize| numbered((u64::MAX >> 1) - number as u64);
    let longest = Cell::Bytes(vec![0xff; UUID_BYTES_MAX].into());
    let mut listed = Refresh::new(Scope::Keys([(shard(0), vec![longest; KEYS_MAX])].into()));
    let owed = loop {
        let next = Refresh::with_reread(Some(listed.clone()), shard(listed.rereads.len()), Lsn::MAX);
        if next.rereads.is_empty() {
            break next;
        }
        listed = next;
    };
    let text = listed.to_string();
    assert!((50 * 1024..53 * 1024).contains(&text.len()), "{} bytes", text.len());
    assert_eq!(text.parse(), Ok(listed.clone()));
    assert_eq!((owed.scope, owed.every_waits), (listed.scope, true));
}

#[test]
fn tables_that_are_through_are_not_wanted_again() {
    let refresh = Refresh::new(Scope::Source).after_table(numbered(7));
    assert_eq!([6, 7, 8].map(|number| refresh.wants(numbered(number))), [false, false, true]);
    let one = Refresh::new(Scope::Table(numbered(7)));
    assert_eq!([6, 7, 8].map(|number| one.wants(numbered(number))), [false, true, false]);
    assert!(!one.after_table(numbered(7)).wants(numbered(7)));
}

#[test]
fn tables_that_wait_are_read_out_of_turn_and_leave_the_turn_where_it_was() {
    let (at, first) = (Lsn::new(1, 7, 160).unwrap(), Lsn::new(1, 7, 320).unwrap());
    let whole = Refresh::with_reread(Some(Refresh::new(Scope::Source)), numbered(9), at);
    let begun = whole.after_chunk(numbered(9), &chunk(320, 2, None), true);
    assert_eq!(begun.to_string(), "- - 2 rereads:9@1:7:160 again:9 1:7:320 1 -");
    assert_eq!(begun.to_string().parse(), Ok(begun.clone()));
    let swept = begun.after_sweep(numbered(9), first);
    assert!(swept.rereads.is_empty() && swept.done.is_none() && swept.wants(numbered(4)));
    // The table waited no longer when its first chunk was written: its turn has not come either.
    let withdrawn =
        whole.without_reread(numbered(9), at).after_chunk(numbered(9), &chunk(320, 2, None), true);
    assert!(withdrawn.after_sweep(numbered(9), first).wants(numbered(4)));
}

#[test]
fn a_table_waits_until_it_was_read_from_its_latest_change_on() {
    let at = |position| Lsn::new(1, 7, position).unwrap();
    let alone = Refresh::with_reread(None, numbered(9), at(320));
    let read = alone.after_chunk(numbered(9), &chunk(480, 2, None), true);
    let changed = Refresh::with_reread(Some(read.clone()), numbered(9), at(640));
    assert_eq!(changed.table, read.table, "the reading goes on");
    let once_more = changed.after_sweep(numbered(9), at(480));
    assert_eq!((&once_more.table, &once_more.rereads), (&None, &changed.rereads), "it began too early");
    assert_eq!(read.after_sweep(numbered(9), at(160)).rereads, read.rereads, "it was read too early");
    assert_eq!(alone.clone().without_reread(numbered(9), at(160)), alone, "it changed after the withdrawal");
    assert_eq!(changed.after_scope().map(|left| left.rereads), Some([(numbered(9), at(640))].into()));
    let many = (0..=REREADS_MAX as u64)
        .fold(None, |refresh, table| Some(Refresh::with_reread(refresh, numbered(table), at(160))));
    let many = many.expect("some tables wait");
    let owed = Refresh { every_waits: true, ..Refresh::of_every_table() };
    assert_eq!(many, owed, "the progress row has no room for so many");
    assert_eq!((many.to_string().parse(), many.after_scope()), (Ok(owed.clone()), None));
    assert_eq!(Refresh::with_every_table(Some(many)), owed, "they still wait");
}

/// A column is missing, or a lost grant hides the table.
#[test]
fn a_table_that_cannot_be_read_to_its_end_is_still_to_be_read() {
    let waiting = Refresh::with_reread(None, numbered(9), Lsn::new(1, 7, 160).unwrap());
    let begun = waiting.after_chunk(numbered(9), &chunk(320, 2, Some(&[1])), true);
    let aside = begun.after_table(numbered(9));
    assert_eq!((&aside.table, &aside.rereads), (&None, &waiting.rereads));
    assert_eq!(aside.after_scope().map(|left| left.rereads), Some(waiting.rereads));
}

/// A statement by text may name as many tables as the configuration can.
#[test]
fn a_hundred_thousand_tables_at_once_are_one_reading_of_all() {
    let mut refresh = None;
    let mut longest = 0;
    for table in 0..100_000 {
        let waiting = Refresh::with_reread(refresh, numbered(table), Lsn::new(1, 7, 160).unwrap());
        longest = longest.max(waiting.rereads.len());
        refresh = Some(waiting);
    }
    let refresh = refresh.unwrap();
    assert!(refresh.reads_every_table() && refresh.every_waits && longest <= REREADS_MAX);
    let text = refresh.to_string();
    assert!(text.len() < 64 * 1024 && text.parse() == Ok(refresh), "{} bytes", text.len());
}

#[test]
fn repairs_of_keys_are_kept_and_go_before_every_table() {
    let repair = Refresh::with_reread(Some(Refresh::new(keys())), numbered(4), Lsn::MAX);
    let every = Refresh::with_every_table(Some(repair));
    assert_eq!((&every.scope, every.reads_every_table()), (&keys(), true));
    let rereads = every.rereads.clone();
    assert_eq!(rereads, [(numbered(4), Lsn::MAX)].into(), "no list may have the table");
    let after = every.after_scope().unwrap();
    assert_eq!(after, Refresh { every_waits: true, rereads, ..Refresh::of_every_table() });
    let read = after.after_sweep(numbered(4), Lsn::MAX);
    assert_eq!(read.after_scope(), None, "its turn answers its entry");
    let hiding = Refresh { hides_more: true, ..read };
    assert!(!Refresh::with_every_table(Some(hiding)).hides_more, "it begins anew");
    for read in [Scope::Source, Scope::Rereads, Scope::Table(numbered(4))] {
        let all = Refresh::with_every_table(Some(Refresh::new(read)));
        let owed = Refresh { every_waits: true, ..Refresh::of_every_table() };
        assert_eq!(all, owed, "it is read with all others");
    }
}
