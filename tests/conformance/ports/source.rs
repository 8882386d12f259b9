//! A source: order, positions, entries of a stream, and the effect of another server.

use anabranch_connectors::memory::{Group, MemorySource, ScriptedRow, Weather};
use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_demo::FORGET_BINLOG;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, READER_REPLICA_SLOT, RowSource, SourceConnector};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;

use crate::source::{BATCH_BYTES, Database, DatabaseKind, Seen, SourceProbe};

/// A row change of table 0 or 1: the row before and after, as (user id, day of January 2000).
#[derive(Debug, Clone, Copy)]
pub struct Change {
    table: u32,
    user: u64,
    before: Option<u8>,
    pub after: Option<u8>,
}

pub fn insert(table: u32, user: u64, day: u8) -> Change {
    Change { table, user, before: None, after: Some(day) }
}

pub fn update(table: u32, user: u64, before: u8, after: u8) -> Change {
    Change { table, user, before: Some(before), after: Some(after) }
}

pub fn delete(table: u32, user: u64, before: u8) -> Change {
    Change { table, user, before: Some(before), after: None }
}

/// A server with two captured tables, and ways to disturb it.
pub trait Ground {
    type Connector: SourceConnector + RowSource;

    async fn start() -> Self;
    fn connector(&self) -> Self::Connector;
    /// Whether each event of a transaction has a position of its own.
    fn has_positions_inside(&self) -> bool;
    /// Commits one transaction with one event for each change.
    async fn commit(&self, changes: &[Change]);
    async fn truncate(&self, table: u32);
    async fn rotate(&self);
    /// Removes all files but the present one.
    async fn purge(&self);
    /// Resets the binlog, which then counts from the beginning, and commits as much as there was.
    async fn reset(&self);
}

pub struct Twin(MemorySource);

fn identity(number: u32) -> TableIdentity<'static> {
    let table = format!("t{number}");
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("source-a", "user_00", &table, 0),
        database: "user_00".into(),
        table: table.into(),
    }
}

fn scripted(change: &Change) -> Vec<ScriptedRow> {
    let row = |day| vec![Value::UInt(change.user), Value::Date { year: 2000, month: 1, day }];
    vec![ScriptedRow {
        table: identity(change.table),
        before: change.before.map(row),
        after: change.after.map(row),
    }]
}

impl Twin {
    fn prepare(&self, branch: u64, changes: &[Change]) {
        self.0.commit(Group::Prepare { branch, rows: changes.iter().map(scripted).collect() });
    }

    async fn read(&self, entry: BinlogStart) -> SourceProbe<anabranch_connectors::memory::MemoryStream> {
        SourceProbe::open(&self.0, entry).await.unwrap()
    }
}

impl Ground for Twin {
    type Connector = MemorySource;

    async fn start() -> Self {
        Self(MemorySource::new(Weather::calm()))
    }

    fn connector(&self) -> MemorySource {
        self.0.clone()
    }

    fn has_positions_inside(&self) -> bool {
        true
    }

    async fn commit(&self, changes: &[Change]) {
        self.0.commit(Group::Rows(changes.iter().map(scripted).collect()));
    }

    async fn truncate(&self, table: u32) {
        let row = ScriptedRow { table: identity(table), before: None, after: None };
        self.0.commit(Group::Rows(vec![vec![row]]));
    }

    async fn rotate(&self) {
        self.0.rotate();
    }

    async fn purge(&self) {
        self.0.purge([]);
    }

    async fn reset(&self) {
        self.0.reset();
        for user in 0..60 {
            self.commit(&[insert(0, 1000 + user, 1)]).await;
        }
    }
}

pub struct Server(Database);

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::of(Database::lent(kind).await?).await)
    }

    async fn of(database: Database) -> Self {
        let server = Self(database.with_tables().await);
        // The binlog begins here, without a past, as the twin's does.
        server.0.run(&[FORGET_BINLOG]).await;
        server
    }
}

impl Ground for Server {
    type Connector = MysqlSource;

    async fn start() -> Self {
        Self::further(DatabaseKind::MariaDb).await.unwrap()
    }

    fn connector(&self) -> MysqlSource {
        self.0.source()
    }

    fn has_positions_inside(&self) -> bool {
        self.0.lent_as() != Some(DatabaseKind::MariaDb11)
    }

    async fn commit(&self, changes: &[Change]) {
        let date = |day: u8| format!("'2000-01-{day:02}'");
        let statement = |change: &Change| {
            let Change { table, user, .. } = *change;
            match (change.before, change.after) {
                (None, Some(day)) => format!("INSERT INTO $0.t{table} VALUES ({user}, '', {})", date(day)),
                (Some(_), Some(day)) => {
                    format!("UPDATE $0.t{table} SET birthday = {} WHERE user_id = {user}", date(day))
                }
                _ => format!("DELETE FROM $0.t{table} WHERE user_id = {user}"),
            }
        };
        let statements: Vec<String> = changes.iter().map(statement).collect();
        let mut all = vec!["BEGIN"];
        all.extend(statements.iter().map(String::as_str));
        all.push("COMMIT");
        self.0.run(&all).await;
    }

    async fn truncate(&self, table: u32) {
        self.0.run(&[&format!("TRUNCATE TABLE $0.t{table}")]).await;
    }

    async fn rotate(&self) {
        self.0.run(&["FLUSH BINARY LOGS"]).await;
    }

    async fn purge(&self) {
        let file = self.0.source().head().await.unwrap().file_number();
        self.0.run(&[&format!("PURGE BINARY LOGS TO 'binlog.{file:06}'")]).await;
    }

    async fn reset(&self) {
        self.0.run(&[FORGET_BINLOG, "CREATE DATABASE $9", "DROP DATABASE $9"]).await;
        for user in 0..60 {
            self.commit(&[insert(0, 1000 + user, 1)]).await;
        }
    }
}

on_twin_and_every_server!(Twin, Server:
    changes_come_in_commit_order_and_rows_of_one_event_share_a_position,
    every_entry_begins_where_it_says,
    a_reading_goes_on_behind_every_batch_without_loss_or_repetition,
    a_reading_of_a_quiet_source_tells_its_place,
    a_new_file_moves_the_resume_point_and_a_purged_one_is_named,
    a_new_file_of_a_quiet_source_moves_the_position_too,
    a_reset_server_is_not_read_on,
    a_second_reading_of_a_replica_slot_ends_the_first_and_other_slots_go_on,
);

async fn changes_come_in_commit_order_and_rows_of_one_event_share_a_position(ground: impl Ground) {
    let source = ground.connector();
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    ground.commit(&[insert(0, 1, 1), update(0, 1, 1, 2), insert(1, 1, 3)]).await;
    ground.truncate(0).await;
    ground.commit(&[delete(1, 1, 3)]).await;
    probe.until_seen(5).await;
    assert_eq!(
        probe.texts(),
        [
            "t0 + 1 2000-01-01",
            "t0 1 2000-01-01 ~ 1 2000-01-02",
            "t1 + 1 2000-01-03",
            "t0 withdrawn",
            "t1 - 1 2000-01-03"
        ]
    );
    let lsns: Vec<_> = probe.seen.iter().map(|seen| seen.lsn).collect();
    assert!(lsns.is_sorted() && lsns[2] < lsns[3] && lsns[3] < lsns[4], "{:?}", probe.seen);
    if ground.has_positions_inside() {
        assert!(lsns[0] < lsns[1] && lsns[1] < lsns[2], "{:?}", probe.seen);
    } else {
        assert!(lsns[0] == lsns[2], "one position for the whole: {:?}", probe.seen);
    }
    probe.until_end_of(&source).await;
    assert!(probe.position() >= probe.seen[4].lsn);
}

async fn every_entry_begins_where_it_says(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let mut first = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
    first.until_end_of(&source).await;
    let middle = first.resume().gtid_set;
    ground.commit(&[insert(0, 2, 1)]).await;
    ground.commit(&[insert(0, 3, 1)]).await;

    let mut earliest = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
    earliest.until_end_of(&source).await;
    assert_eq!(earliest.texts(), ["t0 + 1 2000-01-01", "t0 + 2 2000-01-01", "t0 + 3 2000-01-01"]);

    let mut by_gtid = SourceProbe::open(&source, BinlogStart::Gtid(middle)).await.unwrap();
    by_gtid.until_end_of(&source).await;
    assert_eq!(by_gtid.resume(), earliest.resume());
    assert_eq!(by_gtid.seen[..], earliest.seen[1..], "the same change has the same position");

    let mut latest = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    ground.commit(&[insert(0, 4, 1)]).await;
    latest.until_seen(1).await;
    assert_eq!(latest.texts(), ["t0 + 4 2000-01-01"]);
}

async fn a_reading_goes_on_behind_every_batch_without_loss_or_repetition(ground: impl Ground) {
    let source = ground.connector();
    for user in 0..6 {
        let changes: Vec<_> = (0..4).map(|n| insert((n % 2) as u32, user * 10 + n, 1)).collect();
        ground.commit(&changes).await;
    }
    let mut probe = SourceProbe::open_with(&source, BinlogStart::Earliest, 60).await.unwrap();
    probe.until_end_of(&source).await;
    assert!(probe.batches.len() > 6, "{} batches", probe.batches.len());
    for index in 0..probe.batches.len() {
        let sent = probe.batches[index].position;
        if probe.batches[index].resume.file.is_empty() {
            continue;
        }
        let kept = probe.seen[..probe.seen_with[index]].iter().filter(|seen| seen.lsn <= sent);
        let mut again = SourceProbe::open(&source, probe.entry_after(index)).await.unwrap();
        again.until_end_of(&source).await;
        let whole: Vec<&Seen> = kept.chain(&again.seen).collect();
        assert!(whole.iter().copied().eq(&probe.seen), "after batch {index} at {sent}");
        if !again.batches.is_empty() {
            assert_eq!(again.resume(), probe.resume(), "after batch {index}");
        }
    }
}

/// Otherwise a lane on a direct feed would not learn that it is at the end, and would keep its feed.
async fn a_reading_of_a_quiet_source_tells_its_place(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let mut probe = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
    probe.until_end_of(&source).await;
    let end = probe.entry_after(probe.batches.len() - 1);
    let mut again = SourceProbe::open(&source, end).await.unwrap();
    again.until("its place", |again| !again.batches.is_empty()).await;
    assert_eq!((again.position(), again.resume()), (probe.position(), probe.resume()));
}

async fn a_new_file_moves_the_resume_point_and_a_purged_one_is_named(ground: impl Ground) {
    let source = ground.connector();
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    ground.commit(&[insert(1, 0, 1)]).await;
    probe.until_seen(1).await;
    probe.until_end_of(&source).await;
    let old = probe.entry_after(probe.batches.len() - 1);
    let before = probe.resume().file;
    for user in 1..=3 {
        ground.commit(&[insert(0, user, 1)]).await;
        ground.rotate().await;
    }
    probe.until("the last file", |probe| probe.resume().file[..] > before[..]).await;
    probe.until_seen(4).await;
    while probe.resume().file == before {
        probe.step().await.unwrap();
    }
    let file = probe.resume().file;
    assert!(file > before, "a quiet source would resume from a purged file");

    let mut resumed = SourceProbe::open(&source, probe.entry_after(probe.batches.len() - 1)).await.unwrap();
    ground.commit(&[insert(0, 4, 1)]).await;
    resumed.until_seen(1).await;

    ground.purge().await;
    let fault = SourceProbe::open(&source, old).await.err().unwrap();
    assert_eq!(fault.code(), Code::BinlogPurged, "{fault}");
}

/// Otherwise a lane that has been there and is set back would not get there again, and would count as replaying.
async fn a_new_file_of_a_quiet_source_moves_the_position_too(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let mut probe = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
    probe.until_end_of(&source).await;
    let before = probe.position();
    ground.rotate().await;
    probe.until_end_of(&source).await;
    let end = probe.position();
    assert_eq!(end.file_number(), before.file_number() + 1);
    assert_eq!(probe.batches.last().unwrap().position, end, "it was told");
    assert!(probe.resume().file.ends_with(&format!("{:06}", end.file_number())));

    let mut from_nothing =
        SourceProbe::open_replica_slot(&source, BinlogStart::Earliest, READER_REPLICA_SLOT + 1)
            .await
            .unwrap();
    from_nothing.until_end_of(&source).await;
    // A moment later, MariaDB notes in a new file that it needs no older one.
    probe.until("the same end", |probe| probe.position() >= from_nothing.position()).await;
    from_nothing.until("the same end", |other| other.position() >= probe.position()).await;
    assert_eq!((from_nothing.position(), from_nothing.resume()), (probe.position(), probe.resume()));
    ground.purge().await;
    let mut resumed = SourceProbe::open(&source, probe.entry_after(probe.batches.len() - 1)).await.unwrap();
    ground.commit(&[insert(0, 2, 1)]).await;
    resumed.until_seen(1).await;
}

async fn a_reset_server_is_not_read_on(ground: impl Ground) {
    let source = ground.connector();
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    ground.commit(&[insert(0, 1, 1)]).await;
    probe.until_seen(1).await;
    probe.until_end_of(&source).await;
    let entry = probe.entry_after(probe.batches.len() - 1);
    ground.reset().await;
    let fault = SourceProbe::open(&source, entry).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceServerChanged, "{fault}");
}

async fn a_second_reading_of_a_replica_slot_ends_the_first_and_other_slots_go_on(ground: impl Ground) {
    let source = ground.connector();
    let mut first = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    let mut other =
        SourceProbe::open_replica_slot(&source, BinlogStart::Latest, READER_REPLICA_SLOT + 1).await.unwrap();
    let mut second = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    ground.commit(&[insert(0, 1, 1)]).await;
    second.until_seen(1).await;
    other.until_seen(1).await;
    let ended = async {
        loop {
            if let Err(fault) = first.step().await {
                return fault;
            }
        }
    };
    let fault = crate::nats::within(ended).await;
    assert_eq!(fault.class(), Class::Transient, "{fault}");
    assert_eq!(fault.found(), "another replica has this server id", "{fault}");
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_branch_come_where_it_is_committed_and_resuming_reads_it_again() {
    let ground = Twin::start().await;
    ground.prepare(1, &[insert(0, 1, 1), insert(0, 2, 1)]);
    ground.commit(&[insert(1, 3, 1)]).await;
    ground.prepare(2, &[insert(1, 4, 1)]);
    ground.0.commit(Group::RollBackBranch(2));
    let mut probe = ground.read(BinlogStart::Earliest).await;
    probe.until_end_of(&ground.0).await;
    assert_eq!(probe.texts(), ["t1 + 3 2000-01-01"]);
    assert_eq!(probe.resume().gtid_set, "", "before the oldest undecided branch");

    let mut again = ground.read(probe.entry_after(probe.batches.len() - 1)).await;
    ground.0.commit(Group::CommitBranch(1));
    again.until_seen(2).await;
    assert_eq!(again.texts(), ["t0 + 1 2000-01-01", "t0 + 2 2000-01-01"]);
    assert_eq!(again.seen[0].lsn, again.seen[1].lsn, "the position of XA COMMIT");
    assert!(again.seen[0].lsn > probe.position());
    assert_eq!(again.resume().gtid_set, "1-5");
    // The branch's commit is above the position, and its rows are before the entry: every table is read again.
    let mut late = ground.read(BinlogStart::Gtid("1-2".to_owned())).await;
    late.until_seen(1).await;
    assert_eq!(late.texts(), [" again"]);
}

#[tokio::test(start_paused = true)]
async fn another_server_that_holds_all_is_followed_in_a_new_epoch() {
    let ground = Twin::start().await;
    ground.commit(&[insert(0, 1, 1)]).await;
    let mut probe = ground.read(BinlogStart::Earliest).await;
    probe.until_end_of(&ground.0).await;
    let (old, old_server) = (probe.position(), probe.stream.server().clone());
    let entry = probe.entry_after(probe.batches.len() - 1);
    ground.commit(&[insert(0, 2, 1)]).await;
    ground.0.fail_over();
    assert!(probe.step().await.is_err(), "the old server is gone");
    ground.commit(&[insert(0, 3, 1)]).await;

    let mut next = ground.read(entry.clone()).await;
    next.until_seen(2).await;
    assert_eq!(next.texts(), ["t0 + 2 2000-01-01", "t0 + 3 2000-01-01"]);
    assert!(next.seen[0].lsn > old && next.seen[0].lsn.epoch() == 2);
    assert_ne!(*next.stream.server(), old_server);
    // The resume point of every batch belongs to the server that the batch names.
    let mut again = ground.read(next.entry_after(0)).await;
    ground.commit(&[insert(0, 4, 1)]).await;
    again.until_seen(1).await;
    assert_eq!(again.texts().last(), Some(&"t0 + 4 2000-01-01"));
    // Back again: the first server, and not its old positions.
    assert!(ground.0.fail_back(&[]));
    let mut back = ground.read(next.entry_after(next.batches.len() - 1)).await;
    back.until_seen(1).await;
    assert_eq!((back.texts(), back.seen[0].lsn.epoch()), (vec!["t0 + 4 2000-01-01"], 3));
    // The caller gives a direct feed its epoch.
    let timeline = Timeline { epoch: 3, server: back.stream.server().clone() };
    let mut reported = SourceProbe::open_after(&ground.0, entry, timeline, BATCH_BYTES).await.unwrap();
    reported.until_seen(3).await;
    assert_eq!(reported.seen.last(), back.seen.last());

    let last = back.entry_after(back.batches.len() - 1);
    ground.0.fail_over_lagging(1);
    ground.commit(&[insert(0, 9, 1)]).await;
    let fault = SourceProbe::open(&ground.0, last).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceDiverged, "it lacks what was read");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lacks_what_follows_an_undecided_branch_is_not_followed() {
    let ground = Twin::start().await;
    ground.prepare(1, &[insert(0, 1, 1)]);
    ground.commit(&[insert(1, 3, 1)]).await;
    let mut probe = ground.read(BinlogStart::Earliest).await;
    probe.until_end_of(&ground.0).await;
    let end = probe.entry_after(probe.batches.len() - 1);
    assert_eq!((probe.resume().gtid_set.as_str(), probe.resume().read_gtids()), ("", "1-2"));
    ground.0.fail_over_lagging(1);
    ground.commit(&[insert(0, 9, 1)]).await;
    let fault = SourceProbe::open(&ground.0, end).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceDiverged, "it lacks what was read");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lacks_a_transaction_of_which_a_part_was_read_is_not_followed() {
    let ground = Twin::start().await;
    ground.commit(&[insert(0, 1, 1)]).await;
    ground.commit(&(2..12).map(|user| insert(0, user, 1)).collect::<Vec<_>>()).await;
    let mut probe =
        SourceProbe::open_after(&ground.0, BinlogStart::Earliest, Timeline::default(), 64).await.unwrap();
    probe.until("a part", |probe| probe.resume().partial.is_some()).await;
    let part = probe.entry_after(probe.batches.len() - 1);
    assert_eq!(probe.resume().partial.as_deref(), Some("1-2"));
    assert!(probe.seen.len() < 11);
    probe.until_seen(11).await;
    probe.until_end_of(&ground.0).await;
    assert_eq!(probe.resume().partial, None, "it was read whole");
    ground.0.fail_over();
    // The whole transaction comes again.
    let mut followed = ground.read(part.clone()).await;
    followed.until_seen(10).await;
    assert_eq!(followed.resume().partial, None);
    ground.0.fail_over_lagging(1);
    ground.commit(&[insert(0, 9, 1)]).await;
    let fault = SourceProbe::open(&ground.0, part).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceDiverged, "it lacks what was read");
}
