//! Windows of messages, taken one after the other.

use std::borrow::Cow;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::lsn::ResumePoint;

use super::*;

fn lsn(position: u64) -> Lsn {
    Lsn::new(1, 1, position * 16).unwrap()
}

fn lane() -> LaneId {
    LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 }
}

/// Returns a message after `previous` with one insert at each of `changes`, complete up to `position`.
fn message(sequence: u64, previous: u64, changes: &[u64], position: u64) -> Delivery {
    let table = TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("s", "d", "t", 0),
        database: Cow::Borrowed("d"),
        table: Cow::Borrowed("t"),
    };
    let mut encoder = codec::Encoder::default();
    for at in changes {
        encoder.insert(lsn(*at), &table, &[Value::UInt(*at)]);
    }
    let envelope = Envelope {
        previous: lsn(previous),
        position: lsn(position),
        changes: encoder.changes(),
        ..Envelope::default()
    };
    Delivery {
        envelope,
        payload: encoder.finish(),
        stored: Some((sequence, format!("a-{sequence}"))),
        read_at_us: 1_000 + sequence,
        follows: true,
        has_next: false,
    }
}

fn taken(window: &mut LaneWindow, message: &Delivery) -> Result<Vec<u64>, Code> {
    let mut seen = Vec::new();
    window
        .add_message(&lane(), message, |change, _| seen.push(change.lsn.position() / 16))
        .map_err(|fault| fault.code())?;
    Ok(seen)
}

#[test]
fn a_message_that_does_not_link_is_a_hole() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    assert_eq!(taken(&mut window, &message(1, 11, &[12], 12)), Err(Code::LogHole));
    assert_eq!(taken(&mut window, &message(1, 10, &[12], 12)), Ok(vec![12]));
}

#[test]
fn a_lane_without_progress_begins_only_where_the_history_begins() {
    let mut window = LaneWindow::new(Progress::default());
    let mut first = message(1, 5, &[6], 6);
    assert_eq!(taken(&mut window, &first), Err(Code::LogHole));
    first.envelope.origin = true;
    assert_eq!(taken(&mut window, &first), Ok(vec![6]));
    assert_eq!(taken(&mut window, &message(2, 7, &[8], 8)), Err(Code::LogHole));
}

#[test]
fn only_what_lies_above_the_position_is_applied() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    assert_eq!(taken(&mut window, &message(1, 0, &[8, 9, 10], 10)), Ok(vec![]));
    assert_eq!(taken(&mut window, &message(2, 10, &[11, 12], 12)), Ok(vec![11, 12]));
    assert_eq!(taken(&mut window, &message(3, 5, &[6, 7], 7)), Ok(vec![]));
    let all = ChangeCounts { announced: 7, applied: 2, passed: 5, overlapping: 0 };
    assert_eq!((window.counts(), all.unaccounted()), (all, 0));
    assert_eq!(window.progress().position, lsn(12), "a position never goes back");
    assert_eq!(taken(&mut window, &message(4, 10, &[11, 12, 13], 13)), Ok(vec![13]));
    assert_eq!(window.counts(), ChangeCounts { announced: 10, applied: 3, passed: 5, overlapping: 2 });
}

#[test]
fn a_change_that_is_not_above_the_position_before_its_message_stops_the_lane() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    assert_eq!(taken(&mut window, &message(1, 10, &[12, 10], 12)), Err(Code::LogOrderViolated));
    let mut later = LaneWindow::new(Progress { position: lsn(20), ..Progress::default() });
    assert_eq!(taken(&mut later, &message(1, 10, &[10], 12)), Err(Code::LogOrderViolated));
}

#[test]
fn a_message_with_fewer_or_more_changes_than_its_head_says_stops_the_lane() {
    for (says, unaccounted) in [(3, 1), (1, -1), (0, -2)] {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        assert_eq!(taken(&mut window, &message(1, 10, &[11], 11)), Ok(vec![11]));
        let mut other = message(2, 11, &[12, 13], 13);
        other.envelope.changes = says;
        assert_eq!(taken(&mut window, &other), Err(Code::LogCountViolated), "{says} in its head");
        assert_eq!(window.counts().unaccounted(), unaccounted);
        // The count is checked also where all of the message came before.
        let mut later = LaneWindow::new(Progress { position: lsn(20), ..Progress::default() });
        assert_eq!(taken(&mut later, &other), Err(Code::LogCountViolated), "{says} in its head");
    }
}

#[test]
fn the_parts_of_a_split_event_are_all_applied_also_when_sent_again() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    assert_eq!(taken(&mut window, &message(1, 10, &[20], 10)), Ok(vec![20]));
    assert_eq!(taken(&mut window, &message(2, 10, &[20, 20], 10)), Ok(vec![20, 20]));
    assert_eq!(taken(&mut window, &message(3, 10, &[20], 20)), Ok(vec![20]));
}

#[test]
fn a_window_with_many_withdrawals_is_full_before_it_has_a_row() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    let withdraw =
        |change: &Change<'_, '_>, flush: &mut Flush| flush.withdraw(change.table.shard, change.lsn);
    let changes = vec![20; WITHDRAWALS_MAX - 1];
    window.add_message(&lane(), &message(1, 10, &changes, 10), withdraw).unwrap();
    assert!(!window.is_full(1000));
    window.add_message(&lane(), &message(2, 10, &[20], 10), withdraw).unwrap();
    assert!(window.is_full(1000) && window.rows() == 0);
    window.keep_withdrawals_of(&BTreeSet::new());
    assert!(!window.is_full(1000) && window.has_moved());
}

#[test]
fn a_damaged_payload_is_told_and_counts_for_nothing() {
    let mut window = LaneWindow::new(Progress { position: lsn(0), ..Progress::default() });
    let mut damaged = message(1, 0, &[1], 1);
    let mut bytes = damaged.payload.to_vec();
    bytes[3] ^= 1;
    damaged.payload = bytes.into();
    assert_eq!(taken(&mut window, &damaged), Err(Code::LogMessageCorrupt));
    // Its changes come by a direct feed.
    assert_eq!(taken(&mut window, &message(1, 0, &[1], 1)), Ok(vec![1]));
    assert_eq!(window.counts().unaccounted(), 0);
}

#[test]
fn an_epoch_is_noted_before_its_first_rows() {
    let (old, above) = (lsn(10), Lsn::new(2, 1, 160).unwrap());
    let stored = Progress { revision: 4, position: old, highest_position: old, ..Progress::default() };
    let mut window = LaneWindow::new(stored.clone());
    let next = |changes: &[u64]| {
        let mut next = message(1, 10, changes, 12);
        next.envelope.position = above;
        next
    };
    window.add_message(&lane(), &next(&[]), |_, _| ()).unwrap();
    assert!(window.epoch_record().is_none(), "there are no rows of it");
    let mut window = LaneWindow::new(stored);
    let withdraw =
        |change: &Change<'_, '_>, flush: &mut Flush| flush.withdraw(change.table.shard, change.lsn);
    window.add_message(&lane(), &next(&[11]), withdraw).unwrap();
    let note = window.epoch_record().expect("the first rows").progress;
    assert_eq!((note.revision, note.position, note.highest_position), (5, old, above));
    window.epoch_recorded(note);
    assert!(window.epoch_record().is_none());
    assert_eq!(window.flush().progress.revision, 6);
}

#[test]
fn a_fail_over_within_a_replay_has_all_tables_read_and_the_note_of_the_epoch_says_so() {
    let of_epoch = |epoch, position: u64| Lsn::new(epoch, 1, position * 16).unwrap();
    let mut entering = message(1, 10, &[11], 12);
    entering.envelope.position = of_epoch(2, 10);
    for (highest, is_cut_short) in [(lsn(15), true), (lsn(10), false), (of_epoch(2, 8), false)] {
        let stored = Progress { position: lsn(10), highest_position: highest, ..Progress::default() };
        let mut window = LaneWindow::new(stored);
        let withdraw =
            |change: &Change<'_, '_>, flush: &mut Flush| flush.withdraw(change.table.shard, change.lsn);
        window.add_message(&lane(), &entering, withdraw).unwrap();
        let (progress, rereads) = (window.progress(), window.flush.rereads.len());
        assert_eq!(
            (progress.may_begin_anew(), rereads),
            (is_cut_short, usize::from(is_cut_short)),
            "{highest}"
        );
        assert_eq!(progress.highest_change, of_epoch(2, 10), "older chunks do not count");
        let note = window.epoch_record().map(|note| note.progress.may_begin_anew());
        assert_eq!(note, (highest.epoch() == 1).then_some(is_cut_short), "{highest}");
    }
    // The replay ends before the other server comes.
    let stored = Progress { position: lsn(10), highest_position: lsn(15), ..Progress::default() };
    let mut window = LaneWindow::new(stored);
    taken(&mut window, &message(1, 10, &[11], 15)).unwrap();
    entering.envelope.previous = lsn(15);
    entering.payload = Bytes::new();
    entering.envelope.changes = 0;
    taken(&mut window, &entering).unwrap();
    assert_eq!((window.progress().position, window.progress().may_begin_anew()), (of_epoch(2, 10), false));
}

#[test]
fn what_was_applied_before_an_epoch_is_behind_no_chunk_that_is_older_than_its_first_message() {
    let begins = Lsn::new(2, 4, 160).unwrap();
    let of_epoch = |previous: u64| {
        let mut message = message(1, previous, &[], 12);
        message.envelope.position = begins;
        message
    };
    let stored = Progress { position: lsn(10), highest_change: lsn(9), ..Progress::default() };
    let mut window = LaneWindow::new(stored);
    taken(&mut window, &message(1, 10, &[11], 12)).unwrap();
    assert_eq!(window.progress().highest_change, lsn(11));
    taken(&mut window, &of_epoch(12)).unwrap();
    assert_eq!(window.progress().highest_change, begins);
    let mut later = of_epoch(12);
    (later.envelope.previous, later.envelope.position) = (begins, Lsn::new(2, 4, 320).unwrap());
    taken(&mut window, &later).unwrap();
    assert_eq!(window.progress().highest_change, begins, "a position alone changes nothing");
}

#[test]
fn at_the_first_whole_message_all_tables_are_read_from_its_position_on() {
    let ends = FieldsTaken { noted: Some(4), is_lacking: false, begins_lack: false, ends_lack: true };
    let stored = Progress { position: lsn(10), ..Progress::default() };
    for (rows, empty_in_epoch) in [(0, Some(1)), (7, None)] {
        let mut window = LaneWindow::new(Progress { rows, ..stored.clone() });
        taken(&mut window, &message(1, 10, &[], 12)).unwrap();
        assert!(!window.note_fields(FieldsTaken { noted: None, ends_lack: false, ..ends }));
        assert!(window.progress().refresh.is_none());
        assert!(window.note_fields(ends));
        let (progress, rereads) = (window.progress(), &window.flush.rereads);
        assert_eq!((progress.highest_change, progress.captured_fields), (lsn(12), Some(4)));
        let refresh = progress.refresh.as_ref().expect("it reads its tables");
        assert_eq!((refresh.empty_in_epoch, &rereads[..]), (empty_in_epoch, &[Reread::Every][..]), "{rows}");
    }
}

#[test]
fn a_window_knows_when_its_newest_applied_change_was_read_until_it_is_committed() {
    let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
    taken(&mut window, &message(1, 10, &[11], 12)).unwrap();
    assert_eq!(window.read_at_us(), 1_001);
    taken(&mut window, &message(2, 12, &[13, 14], 14)).unwrap();
    assert_eq!(window.read_at_us(), 1_002);
    taken(&mut window, &message(3, 14, &[], 20)).unwrap();
    assert_eq!(window.read_at_us(), 1_002, "a position message brings no change");
    window.committed();
    assert_eq!(window.read_at_us(), 0);
    // Passed changes were visible before.
    taken(&mut window, &message(4, 18, &[19], 20)).unwrap();
    assert_eq!(window.read_at_us(), 0);
}

#[test]
fn a_commit_raises_the_revision_by_one_and_empties_the_window() {
    let mut window = LaneWindow::new(Progress { revision: 4, position: lsn(0), ..Progress::default() });
    taken(&mut window, &message(9, 0, &[], 3)).unwrap();
    assert!(window.has_moved() && !window.has_rows());
    assert_eq!(window.flush().progress.revision, 5);
    window.committed();
    assert!(!window.has_moved());
    assert_eq!(window.flush().progress.revision, 6);
}

/// The message with the part is gone, and the reader continued without knowing of it.
#[test]
fn a_part_that_the_stream_forgot_keeps_a_lane_from_following_another_server() {
    let resume = |part: Option<&str>| ResumePoint { partial: part.map(Into::into), ..ResumePoint::default() };
    let within = || {
        let progress = Progress { position: lsn(10), resume: resume(Some("0-1-7")), ..Progress::default() };
        LaneWindow::new(progress)
    };
    let mut of_other = message(2, 10, &[], 0);
    of_other.envelope.position = Lsn::new(2, 1, 32).unwrap();
    let mut window = within();
    assert_eq!(taken(&mut window, &message(1, 9, &[10], 10)), Ok(vec![]));
    assert_eq!(window.progress().resume.partial.as_deref(), Some("0-1-7"));
    assert_eq!(taken(&mut window, &of_other), Err(Code::LogHole));
    // The message before it reports the part, so the reader asked the other server for the group.
    let mut window = within();
    let mut part = message(1, 10, &[11], 10);
    part.envelope.resume = resume(Some("0-1-7"));
    assert_eq!(taken(&mut window, &part), Ok(vec![11]));
    window.committed();
    assert_eq!(taken(&mut window, &of_other), Ok(vec![]));
    assert_eq!(window.progress().resume.partial, None);
}

#[test]
fn a_payload_of_a_newer_version_stops_the_lane_by_name_and_says_who_is_upgraded_first() {
    let mut window = LaneWindow::new(Progress { position: lsn(0), ..Progress::default() });
    let mut newer = message(1, 0, &[1], 1);
    let mut bytes = newer.payload[..newer.payload.len() - 4].to_vec();
    bytes[0] = u8::MAX;
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    newer.payload = bytes.into();
    let fault = window.add_message(&lane(), &newer, |_, _| panic!("no change can be read")).unwrap_err();
    assert_eq!(fault.code(), Code::LogVersionUnknown);
    let causes = fault.causes().join("; ");
    assert!(causes.contains("codec version 255") && causes.contains("upgrade the reader of the log first"));
}
