//! Tests of the machine that reads groups: no server, no connection.

use super::super::withheld::tests::Ground;
use super::*;
use crate::mysql::source::decode::gtid;
use crate::mysql::source::decode::position::{FILE_START, Position};

const GTID_EVENT_BYTES: u32 = 42;

fn position() -> Position {
    Position::new(1, "binlog.000001".to_owned(), FILE_START).unwrap()
}

/// A reader that knows the groups before its start.
fn reader(sent: Lsn) -> GroupReader {
    let gtids = Some(Gtids::empty(Flavor::MariaDb));
    let beginning = StreamStart { sent, ..StreamStart::fresh(position(), gtids) };
    GroupReader::new(Flavor::MariaDb, beginning, Spill::new(&std::env::temp_dir(), "source-a"))
}

/// Returns the cursor after an event that ends at `end`.
fn at(end: u64) -> Cursor {
    let mut cursor = Cursor::new("source-a", position(), None);
    cursor.reach(end);
    cursor
}

fn on(groups: &mut GroupReader, event: GroupEvent, end: u64) -> Effect {
    let at = at(end);
    let moment = Moment { lsn: at.lsn().unwrap(), seconds: 7 };
    groups.on(event, moment, &at).unwrap()
}

/// Begins a transaction of MariaDB with this sequence number.
fn begin(sequence: u64) -> GroupEvent {
    let body = [&sequence.to_le_bytes()[..], &[0; 5]].concat();
    let start = gtid::read_mariadb_gtid(1, &body).unwrap();
    GroupEvent::Begin { start, event_bytes: GTID_EVENT_BYTES }
}

fn batch() -> BatchBuilder {
    BatchBuilder::new(1 << 20, Lsn::ZERO, ResumePoint::default())
}

/// Pushes three rows of an event that ends at `end`.
fn push(groups: &mut GroupReader, ground: &Ground, end: u64) {
    let at = at(end);
    groups.push(ground.event(at.lsn().unwrap(), 0, 3), &at).unwrap();
}

/// Takes in the end of a group; returns the number of its changes and the resume point after it.
fn end(groups: &mut GroupReader, ground: &Ground, event: GroupEvent, end: u64) -> (u32, ResumePoint) {
    let effect = on(groups, event, end);
    assert!(matches!(effect, Effect::Release), "{effect:?}");
    let mut batch = batch();
    groups.release(&ground.tables, &at(end), &mut batch).unwrap();
    groups.settle(&at(end), &mut batch);
    assert!(!groups.is_releasing());
    let batch = batch.take();
    (batch.changes, batch.resume)
}

#[test]
fn reading_may_resume_where_the_first_group_begins_and_behind_each_that_ended() {
    let (mut groups, ground) = (reader(Lsn::ZERO), Ground::new());
    let effect = on(&mut groups, begin(5), 300);
    let Effect::Enter { resume, position } = effect else { panic!("{effect:?}") };
    assert_eq!((resume.position, position), (258, 258));
    push(&mut groups, &ground, 400);
    assert!(!groups.pass(400), "within a group");
    let (changes, resume) = end(&mut groups, &ground, GroupEvent::Commit, 431);
    assert_eq!((changes, resume.position, resume.gtid_set.as_str()), (3, 431, "0-1-5"));
    assert!(groups.pass(500));
    assert!(matches!(on(&mut groups, begin(6), 600), Effect::Nothing));
    push(&mut groups, &ground, 700);
    let (changes, resume) = end(&mut groups, &ground, GroupEvent::RollBack, 731);
    assert_eq!((changes, resume.position, resume.gtid_set.as_str()), (0, 731, "0-1-6"));
}

#[test]
fn a_new_file_that_lists_a_domain_no_more_ends_it_in_the_resume_point() {
    let parse = |text| Gtids::parse(Flavor::MariaDb, text).unwrap();
    for (is_by_gtid, expected) in [(false, "0-1-5"), (true, "7-1-3,0-1-5")] {
        let start = StreamStart::fresh(position(), Some(parse("7-1-3")));
        let start = StreamStart { is_by_gtid, ..start };
        let spill = Spill::new(&std::env::temp_dir(), "source-a");
        let (mut groups, ground) = (GroupReader::new(Flavor::MariaDb, start, spill), Ground::new());
        groups.forget_deleted_domains(&parse("0-1-1"));
        let _ = on(&mut groups, begin(5), 300);
        let (_, resume) = end(&mut groups, &ground, GroupEvent::Commit, 331);
        groups.forget_deleted_domains(&parse("0-1-5"));
        assert_eq!(resume.gtid_set, "7-1-3,0-1-5", "the list of the first file may be old");
        let _ = on(&mut groups, GroupEvent::NewFile, 4);
        groups.forget_deleted_domains(&parse("0-1-5"));
        assert!(groups.pass(400));
        let mut batch = batch();
        groups.settle(&at(400), &mut batch);
        assert_eq!(batch.take().resume.gtid_set, expected, "by GTID set: {is_by_gtid}");
    }
}

#[test]
fn a_group_within_another_is_refused() {
    let mut groups = reader(Lsn::ZERO);
    let _ = on(&mut groups, begin(5), 300);
    let moment = Moment { lsn: at(400).lsn().unwrap(), seconds: 7 };
    assert!(groups.on(begin(6), moment, &at(400)).is_err());
}

#[test]
fn the_rows_of_a_branch_wait_for_its_decision_and_reading_resumes_before_it() {
    let (mut groups, ground) = (reader(Lsn::ZERO), Ground::new());
    let xid = Xid::from_sql(b"X'61',X'',1").unwrap();
    let _ = on(&mut groups, begin(5), 300);
    assert!(matches!(on(&mut groups, GroupEvent::BeginXaBranch, 350), Effect::Nothing));
    push(&mut groups, &ground, 400);
    let prepare = GroupEvent::Prepare { xid: xid.clone(), is_one_phase: false };
    let (changes, resume) = end(&mut groups, &ground, prepare, 431);
    assert_eq!((changes, resume.position), (0, 258));
    assert_eq!(resume.read_end.map(|read_end| read_end.position), Some(431));
    let _ = on(&mut groups, begin(6), 500);
    let decide = GroupEvent::Decide { xid, is_commit: true };
    let (changes, resume) = end(&mut groups, &ground, decide, 531);
    assert_eq!((changes, resume.position, resume.read_end), (3, 531, None));
}

#[test]
fn a_branch_whose_rows_were_not_read_has_tables_read_again_unless_that_was_sent() {
    let xid = Xid::from_sql(b"X'61',X'',1").unwrap();
    let decide = |is_commit| GroupEvent::Decide { xid: xid.clone(), is_commit };
    let (mut groups, ground) = (reader(Lsn::ZERO), Ground::new());
    let _ = on(&mut groups, begin(5), 300);
    let effect = on(&mut groups, decide(true), 331);
    assert!(matches!(&effect, Effect::Unread(unread) if *unread == xid), "{effect:?}");
    let tables = ground.tables.all().map(|table| table.identity.clone()).collect();
    let (changes, _) = end(&mut groups, &ground, GroupEvent::DecideUnread(tables), 331);
    assert_eq!(changes, 1);
    let _ = on(&mut groups, begin(6), 400);
    assert!(matches!(on(&mut groups, decide(false), 431), Effect::Release));
    let mut groups = reader(at(331).lsn().unwrap());
    let _ = on(&mut groups, begin(5), 300);
    assert!(matches!(on(&mut groups, decide(true), 331), Effect::Release));
}

#[test]
fn rows_that_are_undone_to_an_unknown_savepoint_are_told() {
    let (mut groups, ground) = (reader(Lsn::ZERO), Ground::new());
    let back = || GroupEvent::RollBackTo("s".to_owned());
    let _ = on(&mut groups, begin(5), 300);
    assert!(matches!(on(&mut groups, back(), 350), Effect::Nothing), "there are no rows");
    push(&mut groups, &ground, 400);
    let effect = on(&mut groups, back(), 450);
    assert!(matches!(&effect, Effect::Undone(shards) if shards.len() == 1), "{effect:?}");
    let _ = on(&mut groups, GroupEvent::Savepoint("s".to_owned()), 500);
    assert!(matches!(on(&mut groups, back(), 550), Effect::Nothing));
}

#[test]
fn a_compressed_transaction_has_a_beginning_and_an_end() {
    let mut groups = reader(Lsn::ZERO);
    assert!(groups.check_payload(true, &at(300)).is_err());
    groups.check_payload(false, &at(300)).unwrap();
    let _ = on(&mut groups, GroupEvent::Payload, 300);
    assert!(groups.check_payload(false, &at(300)).is_err());
    groups.check_payload(true, &at(300)).unwrap();
    assert!(groups.check_payload(false, &at(300)).is_err());
    let _ = on(&mut groups, GroupEvent::Commit, 300);
    groups.check_payload(false, &at(400)).unwrap();
}
