//! A source with a replica: it is promoted and read on, or lacks a transaction that was read and stops by name.

use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, RowSource};
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use anabranch_stack::ServerSpec;

use crate::nats::blocking;
use crate::source::{BATCH_BYTES, Database, DatabaseKind, SourceProbe, WAIT_MAX};

/// Makes a test of each function on MariaDB, and on MySQL where the machine can have it.
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(super::Database::with_flags(&[]).with_tables().await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let Some(database) = super::Database::mysql_alone() else { return };
                super::$test(database.with_tables().await).await;
            })+
        }
    };
}

/// Makes a test of each function on MariaDB 11.8, where the machine can have it.
macro_rules! on_mariadb_11 {
    ($($test:ident),+ $(,)?) => {
        mod mariadb_11 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = super::DatabaseKind::MariaDb11;
                let Some(database) = super::Database::alone(kind) else { return };
                super::$test(database.with_tables().await).await;
            })+
        }
    };
}

on_both!(
    a_promoted_replica_is_read_on_without_loss_or_doubles,
    a_replica_that_lacks_what_was_read_stops_as_diverged,
    a_replica_that_lacks_what_follows_an_undecided_branch_stops_as_diverged,
    a_transaction_that_was_read_in_part_comes_again_whole,
    a_replica_tells_how_far_it_is,
);

// The resume point depends on the positions inside a transaction, which MariaDB 11.8 does not write.
on_mariadb_11!(
    a_promoted_replica_is_read_on_without_loss_or_doubles,
    a_replica_that_lacks_what_was_read_stops_as_diverged,
    a_transaction_that_was_read_in_part_comes_again_whole,
);

impl Database {
    async fn is_mariadb(&self) -> bool {
        self.ask("SELECT @@version").await.contains("MariaDB")
    }

    /// The kind of this server.
    async fn kind(&self) -> DatabaseKind {
        let version = self.ask("SELECT @@version").await;
        match version.contains("MariaDB") {
            true if version.starts_with("11.") => DatabaseKind::MariaDb11,
            true => DatabaseKind::MariaDb,
            false => DatabaseKind::MySql,
        }
    }

    /// A second server of the same stack and version that replicates this one from its first binlog on.
    async fn with_replica(&self) -> Database {
        let spec = match self.kind().await {
            DatabaseKind::MariaDb => ServerSpec::mariadb_source("replica"),
            DatabaseKind::MariaDb11 => ServerSpec::mariadb_11_source("replica"),
            DatabaseKind::MySql => ServerSpec::mysql_source("replica"),
        };
        let spec = match self.is_mariadb().await {
            true => {
                let domain = self.ask("SELECT CAST(@@gtid_domain_id AS CHAR)").await;
                spec.flag(format!("--gtid-domain-id={domain}"))
            }
            false => spec,
        };
        let spec = spec.without_fsync();
        let replica = blocking(|| {
            let stack = Arc::clone(self.stack());
            let server = stack.add(spec).unwrap();
            Database::of_server(stack, server, &self.prefix)
        });
        replica.replicate(self).await;
        replica
    }

    async fn replicate(&self, source: &Database) {
        let (port, user, password) =
            (source.server().port(), source.server().user(), source.server().password());
        let ca_file = source.ca_file();
        let of = |name: &str| {
            format!(
                "{name}_HOST = '127.0.0.1', {name}_PORT = {port}, {name}_USER = '{user}', \
                 {name}_PASSWORD = '{password}', {name}_SSL = 1, {name}_SSL_CA = '{}'",
                ca_file.display()
            )
        };
        match self.is_mariadb().await {
            true => {
                let change = format!("CHANGE MASTER TO {}, MASTER_USE_GTID = slave_pos", of("MASTER"));
                self.run(&["SET GLOBAL gtid_slave_pos = @@gtid_current_pos", &change]).await;
            }
            false => {
                let change =
                    format!("CHANGE REPLICATION SOURCE TO {}, SOURCE_AUTO_POSITION = 1", of("SOURCE"));
                self.run(&[&change]).await;
            }
        }
        self.run(&["START REPLICA"]).await;
    }

    /// The GTID set of its binlog.
    async fn groups(&self) -> String {
        match self.is_mariadb().await {
            true => self.ask("SELECT @@gtid_binlog_pos").await,
            false => self.ask("SELECT REPLACE(@@GLOBAL.gtid_executed, '\n', '')").await,
        }
    }

    /// Waits until this replica has all transactions of the source.
    async fn catch_up(&self, source: &Database) {
        let end = source.groups().await;
        let wait = if self.is_mariadb().await { "MASTER_GTID_WAIT" } else { "WAIT_FOR_EXECUTED_GTID_SET" };
        let wait = format!("SELECT CAST({wait}('{end}', {}) AS CHAR)", WAIT_MAX.as_secs());
        assert_eq!(self.ask(&wait).await, "0", "the replica never had {end}");
    }

    async fn promote(&self) {
        self.run(&["STOP REPLICA", "RESET REPLICA ALL"]).await;
    }
}

fn end_of(probe: &SourceProbe) -> BinlogStart {
    probe.entry_after(probe.batches.len() - 1)
}

async fn a_promoted_replica_is_read_on_without_loss_or_doubles(old: Database) {
    let new = old.with_replica().await;
    let mut probe = old.read_latest().await;
    old.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)", "FLUSH BINARY LOGS"]).await;
    old.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)"]).await;
    probe.until_seen(2).await;
    probe.until_end(&old).await;
    let before = end_of(&probe);
    old.run(&["INSERT INTO $0.t0 VALUES (3, '', NULL)", "FLUSH BINARY LOGS"]).await;
    let at_end = {
        // Up to the end of the old server, in a file without a transaction: the new server has none after it yet.
        let mut probe = old.read(before.clone()).await;
        probe.until_seen(1).await;
        probe.until_end(&old).await;
        end_of(&probe)
    };
    new.catch_up(&old).await;
    new.promote().await;
    let mut quiet = new.read(at_end).await;
    quiet.until("the place on the quiet new server", |probe| probe.position().epoch() == 2).await;
    assert_eq!((quiet.texts(), quiet.resume().gtid_set), (vec![], new.groups().await));
    new.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    quiet.until_seen(1).await;
    assert_eq!(quiet.texts(), ["t0 + 4 NULL"]);

    let mut followed = new.read(before.clone()).await;
    assert_eq!(followed.stream.start_position(), probe.position(), "messages link across the fail-over");
    followed.until_seen(2).await;
    assert_eq!(followed.texts(), ["t0 + 3 NULL", "t0 + 4 NULL"]);
    assert!(followed.seen.iter().all(|seen| seen.lsn.epoch() == 2 && seen.lsn > probe.position()));
    followed.until("the end of the group", |probe| probe.position().epoch() == 2).await;

    // The new server continues in its epoch, also for a lane that the old one fed last.
    new.run(&["INSERT INTO $0.t0 VALUES (5, '', NULL)"]).await;
    let mut again = new.read(end_of(&followed)).await;
    again.until_seen(1).await;
    assert_eq!((again.texts(), again.seen[0].lsn.epoch()), (vec!["t0 + 5 NULL"], 2));
    let timeline = Timeline { epoch: 2, server: again.stream.server().clone() };
    let mut fed =
        SourceProbe::open_after(&new.source(), before.clone(), timeline, BATCH_BYTES).await.unwrap();
    fed.until_seen(3).await;
    let expected: Vec<_> = followed.seen.iter().chain(&again.seen).collect();
    assert!(fed.seen.iter().eq(expected), "the same change has the same position");

    // The old server comes back as a replica and is promoted in turn: its third life is a third epoch.
    let set = end_of(&again);
    old.replicate(&new).await;
    old.catch_up(&new).await;
    old.promote().await;
    old.run(&["INSERT INTO $0.t0 VALUES (6, '', NULL)"]).await;
    let mut third = old.read(set).await;
    third.until_seen(1).await;
    assert_eq!((third.texts(), third.seen[0].lsn.epoch()), (vec!["t0 + 6 NULL"], 3));
}

async fn a_replica_that_lacks_what_was_read_stops_as_diverged(old: Database) {
    let new = old.with_replica().await;
    let mut probe = old.read_latest().await;
    old.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    probe.until_seen(1).await;
    probe.until_end(&old).await;
    new.catch_up(&old).await;
    new.run(&["STOP REPLICA"]).await;
    let whole = end_of(&probe);
    let has_positions_inside = old.kind().await != DatabaseKind::MariaDb11;
    let values: Vec<_> = (100..20_100).map(|id| format!("({id}, REPEAT('x', 40), NULL)")).collect();
    old.run(&[&format!("INSERT INTO $0.t0 VALUES {}", values.join(","))]).await;
    probe.until_seen(20_001).await;
    probe.until_end(&old).await;
    let part = (0..probe.batches.len())
        .map(|index| probe.entry_after(index))
        .find(|entry| {
            let (BinlogStart::Resume { resume, position, .. }, BinlogStart::Resume { resume: before, .. }) =
                (entry, &whole)
            else {
                panic!("a resume")
            };
            let is_in_part = resume.position == before.position && resume.partial.is_some();
            is_in_part && (position.position() > resume.position) == has_positions_inside
        })
        .expect("a batch ends in the middle of the transaction");
    // An earlier build did not record that transaction's GTID.
    let mut unnamed = part.clone();
    let BinlogStart::Resume { resume, .. } = &mut unnamed else { panic!("a resume") };
    assert!(resume.partial.take().is_some_and(|gtid| !whole_set(&whole).contains(&gtid)));
    // Without positions inside the transaction nothing but its GTID tells that a part of it was read.
    let unnamed = has_positions_inside.then_some(unnamed);

    // The new server has no later transaction: it lacks the one that was read in part, and the one that was read whole.
    let diverged = async |entry: &BinlogStart| {
        let fault = SourceProbe::open(&new.source(), entry.clone()).await.err().expect("it must not be read");
        assert_eq!(fault.code(), Code::SourceDiverged, "{fault}");
        fault
    };
    diverged(&part).await;
    if let Some(unnamed) = &unnamed {
        diverged(unnamed).await;
    }
    let fault = diverged(&end_of(&probe)).await;
    let server = probe.stream.server();
    assert!(fault.to_string().contains(&format!("{}:{}", server.flavor, server.id)), "{fault}");
    let mut holds = new.read(whole.clone()).await;
    // A transaction of its own takes the number of the lost one.
    new.run(&["RESET REPLICA ALL", "INSERT INTO $0.t0 VALUES (2, '', NULL)"]).await;
    holds.until_seen(1).await;
    assert_eq!(holds.texts(), ["t0 + 2 NULL"]);
    diverged(&part).await;
    if let Some(unnamed) = unnamed {
        let mut probe = new.read(unnamed).await;
        probe.until_fault(Code::SourceDiverged).await;
        assert_eq!(probe.texts(), [""; 0]);
    }

    // The old server lacks the new one's transactions as well.
    let fault = SourceProbe::open(&old.source(), end_of(&holds)).await.err().expect("it must not be read");
    assert_eq!(fault.code(), Code::SourceDiverged, "{fault}");
}

fn whole_set(entry: &BinlogStart) -> &str {
    let BinlogStart::Resume { resume, .. } = entry else { panic!("a resume") };
    &resume.gtid_set
}

/// An undecided branch keeps the resume point before it, and later transactions are in the log all the same.
async fn a_replica_that_lacks_what_follows_an_undecided_branch_stops_as_diverged(old: Database) {
    let new = old.with_replica().await;
    let mut probe = old.read_latest().await;
    let branch =
        ["XA START 'late'", "INSERT INTO $0.t0 VALUES (2, '', NULL)", "XA END 'late'", "XA PREPARE 'late'"];
    old.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    old.run(&branch).await;
    probe.until_seen(1).await;
    probe.until_end(&old).await;
    new.catch_up(&old).await;
    new.run(&["STOP REPLICA"]).await;
    old.run(&["FLUSH BINARY LOGS", "INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;
    probe.until_seen(2).await;
    probe.until_end(&old).await;
    let (end, resume) = (end_of(&probe), probe.resume());
    assert_eq!(resume.read_gtids(), old.groups().await);
    assert_ne!(resume.gtid_set, resume.read_gtids(), "the point lies before the branch");

    let diverged = async || {
        let fault = SourceProbe::open(&new.source(), end.clone()).await.err().expect("it must not be read");
        assert_eq!(fault.code(), Code::SourceDiverged, "{fault}");
    };
    diverged().await;
    // The same server is read on, unless it lacks at that position the transaction that was read there.
    let mut again = old.read(end.clone()).await;
    old.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    again.until_seen(1).await;
    assert_eq!(again.texts(), ["t0 + 4 NULL"]);
    let after = old.groups().await;
    let BinlogStart::Resume { resume, position, server } = end.clone() else { panic!("a resume") };
    let ReadEnd { file_number, position: place, gtid_set } = resume.read_end.clone().expect("a branch");
    let other = |file_number, position, gtid_set| Some(ReadEnd { file_number, position, gtid_set });
    let beyond = other(file_number + 1, place, gtid_set.clone());
    for read_end in [other(file_number, place, after), other(file_number, 1 << 31, gtid_set), beyond] {
        let resume = ResumePoint { read_end, ..resume.clone() };
        let entry = BinlogStart::Resume { resume, position, server: server.clone() };
        let fault = SourceProbe::open(&old.source(), entry).await.err().expect("it must not be read");
        assert_eq!(fault.code(), Code::SourceServerChanged, "{fault}");
    }

    // A server with all transactions is followed, and decides the branch.
    new.run(&["START REPLICA"]).await;
    new.catch_up(&old).await;
    new.promote().await;
    let mut followed = new.read(end.clone()).await;
    new.run(&["XA COMMIT 'late'"]).await;
    followed.until_seen(3).await;
    assert_eq!(followed.texts(), ["t0 + 3 NULL", "t0 + 4 NULL", "t0 + 2 NULL"]);
    followed.until("the end of the group", |probe| probe.resume().read_end.is_none()).await;
}

async fn a_transaction_that_was_read_in_part_comes_again_whole(old: Database) {
    let new = old.with_replica().await;
    let mut probe = old.read_latest().await;
    let values: Vec<_> = (100..20_100).map(|id| format!("({id}, REPEAT('x', 40), NULL)")).collect();
    old.run(&[&format!("INSERT INTO $0.t0 VALUES {}", values.join(","))]).await;
    probe.until_seen(20_000).await;
    new.catch_up(&old).await;
    new.promote().await;
    let first = probe.batches.iter().position(|batch| batch.changes > 0).expect("changes were seen");
    assert!(probe.seen_with[first] < 20_000, "a batch ends in the middle");
    let mut followed = new.read(probe.entry_after(first)).await;
    followed.until_seen(20_000).await;
    assert!(followed.texts() == probe.texts());
    assert!(followed.seen.iter().all(|seen| seen.lsn.epoch() == 2));
    // A batch of less than one event, after an unknown server.
    new.run(&["INSERT INTO $0.t0 SELECT user_id + 50000, REPEAT('x', 40), NULL FROM $0.t0 LIMIT 50"]).await;
    let latest = Timeline { epoch: 2, ..Timeline::default() };
    let mut part = SourceProbe::open_after(&new.source(), end_of(&followed), latest, 64).await.unwrap();
    part.until("the first row", |part| !part.seen.is_empty()).await;
    assert!(part.seen.len() < 50);
    assert_eq!(part.position().epoch(), 3, "its place is told before its first row");
}

/// A reconciliation that reads a replica waits for this.
async fn a_replica_tells_how_far_it_is(old: Database) {
    let new = old.with_replica().await;
    new.catch_up(&old).await;
    let (source, replica) = (old.source(), new.source());
    assert!(replica.has_replicated(&source.replication_end().await.unwrap()).await.unwrap());
    assert_eq!(source.pressure().await.unwrap().replica_lag, None, "it replicates nothing");
    anabranch_tests::until("the lag of a replica that has all", async || {
        replica.pressure().await.unwrap().replica_lag == Some(Duration::ZERO)
    })
    .await;
    new.run(&["STOP REPLICA"]).await;
    old.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let end = source.replication_end().await.unwrap();
    assert!(!replica.has_replicated(&end).await.unwrap());
    new.run(&["START REPLICA"]).await;
    anabranch_tests::until("a replica that has all", async || replica.has_replicated(&end).await.unwrap())
        .await;
    let pressure = replica.pressure().await.unwrap();
    assert!(pressure.running_threads > 0 && pressure.head > Lsn::ZERO);
}

/// A lane on a direct feed is a second replica of the server.
#[tokio::test(flavor = "multi_thread")]
async fn readings_of_different_replica_slots_do_not_end_each_other() {
    let database = Database::shared().with_tables().await;
    let source = database.source();
    let mut replica_slots = Vec::new();
    for replica_slot in 0..3 {
        replica_slots
            .push(SourceProbe::open_replica_slot(&source, BinlogStart::Latest, replica_slot).await.unwrap());
    }
    for id in 1..4 {
        database.run(&[&format!("INSERT INTO $0.t0 VALUES ({id}, '', NULL)")]).await;
        for probe in &mut replica_slots {
            probe.until_seen(id).await;
        }
    }
    let mut same = SourceProbe::open_replica_slot(&source, BinlogStart::Latest, 2).await.unwrap();
    database.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    same.until_seen(1).await;
    let mut last = replica_slots.pop().unwrap();
    last.until_fault(Code::SourceUnreachable).await;
    for probe in &mut replica_slots {
        probe.until_seen(4).await;
    }
}
