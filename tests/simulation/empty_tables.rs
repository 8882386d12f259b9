//! A refresh of hundreds of tables without rows costs a few commits, and ends equal to the source all the same.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_connectors::memory::{Group, MemoryLog, MemorySource, MemoryStore, MemoryTarget, ScriptedRow};
use anabranch_pipeline::ports::{LaneStore, Located};
use anabranch_pipeline::records::{Cell, Flush, LaneId, Mutation, MutationAction, Progress, Refresh, Scope};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::sleep;

use crate::loads::StaleSource;
use crate::one_lane::{self, OneLane, WAIT_MAX, append_changes, end, progress_at, project, twins};
use crate::script;

const TABLES: usize = 500;
/// Commits of the whole refresh, at most: a read and a sweep of each table would take a thousand.
const COMMITS_MAX: u64 = 40;

fn table(number: usize) -> TableIdentity<'static> {
    let name = format!("user_{number:03}");
    let shard = ShardId::of("source-0", "user_00", &name, 0);
    TableIdentity { shard, table: name.into(), ..script::table(0) }
}

fn row(number: usize, user: u64) -> ScriptedRow {
    let birthday = Value::Date { year: 1990, month: 1, day: 3 };
    ScriptedRow { table: table(number), before: None, after: Some(vec![Value::UInt(user), birthday]) }
}

/// A lane that is to refresh all tables of a source, and the stream that it reads.
struct Ground {
    log: MemoryLog,
    source: MemorySource,
    target: MemoryTarget,
    id: LaneId,
    begun: Located,
}

impl Ground {
    /// Table 7 of the source has a row. The store has a row of table 3, which the source lost unseen.
    async fn start() -> Self {
        let ((log, source), target, id) = (twins(), one_lane::target(), one_lane::id("source-0"));
        let emptied = |number| ScriptedRow { table: table(number), before: None, after: None };
        source.commit(Group::Rows(vec![(0..TABLES).map(emptied).collect()]));
        source.commit(Group::Rows(vec![vec![row(7, 1)]]));
        let begun = end(&source).await;
        let ground = Self { log, source, target, id, begun };
        ground.append(Lsn::ZERO, &ground.begun, codec::Encoder::default()).await;
        let mut flush = Flush::new(Progress {
            refresh: Some(Refresh::new(Scope::Source)),
            was_refreshed: true,
            ..progress_at(ground.begun.clone())
        });
        flush.push(Mutation {
            table: 0,
            shard: table(3).shard,
            key: [Cell::UInt(2)].into(),
            lsn: Lsn::from_u64(1).unwrap(),
            action: MutationAction::Upsert([].into()),
        });
        ground.store().commit(&flush).await.unwrap();
        ground
    }

    fn store(&self) -> MemoryStore {
        self.target.lane(self.id.clone(), Arc::new([0].into()))
    }

    async fn append(&self, previous: Lsn, located: &Located, changes: codec::Encoder) {
        let (Located { position, resume, server }, origin) = (located.clone(), previous == Lsn::ZERO);
        let envelope = Envelope { previous, origin, position, resume, server, ..Envelope::default() };
        append_changes(&self.log, envelope, changes).await;
    }

    /// Runs the lane beside a script, and then until it has nothing more to do.
    async fn run(&self, script: impl AsyncFnOnce()) {
        let lane = OneLane::new(&self.id, &self.log, &self.source);
        let script = async {
            script().await;
            sleep(WAIT_MAX).await;
        };
        lane.run(&mut self.store(), project, script).await.unwrap();
        assert_eq!(self.progress().refresh, None, "it is through");
    }

    fn progress(&self) -> Progress {
        self.target.progress("source-0")[&self.id].clone()
    }

    fn rows(&self) -> BTreeSet<(ShardId, Box<[Cell]>)> {
        self.target.rows().into_keys().map(|(_, shard, key)| (shard, key)).collect()
    }
}

fn derived(number: usize, user: u64) -> (ShardId, Box<[Cell]>) {
    (table(number).shard, [Cell::UInt(user)].into())
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_empty_tables_are_refreshed_by_a_few_commits() {
    let ground = Ground::start().await;
    let before = ground.progress().revision;
    ground.run(async || ()).await;
    assert_eq!(ground.rows(), [derived(7, 1)].into(), "what stood of table 3 is swept");
    let commits = ground.progress().revision - before;
    assert!(commits < COMMITS_MAX, "{commits} commits");
}

/// The table was empty when all were read, and its first row came without a row event.
#[tokio::test(start_paused = true)]
async fn a_table_that_was_empty_is_read_again_with_all_others() {
    let ground = Ground::start().await;
    // The last tables that the lane asked for are those that it remembers.
    let last = (10..TABLES).max_by_key(|number| table(*number).shard).unwrap();
    ground
        .run(async || {
            sleep(WAIT_MAX).await;
            ground.source.commit(Group::Unseen(vec![vec![row(last, 5)]]));
            let located = end(&ground.source).await;
            let mut changes = codec::Encoder::default();
            changes.reread(located.position, &TableIdentity::every(Entity::User));
            ground.append(ground.begun.position, &located, changes).await;
        })
        .await;
    assert_eq!(ground.rows(), [derived(7, 1), derived(last, 5)].into());
}

/// The table is the last one, so no other table is left whose first row the lane could ask for.
#[tokio::test(start_paused = true)]
async fn an_unreadable_table_that_waits_leaves_its_turn_behind_empty_tables() {
    let ground = Ground::start().await;
    let last = (0..TABLES).max_by_key(|number| table(*number).shard).unwrap();
    let (shard, mut progress) = (table(last).shard, ground.progress());
    progress.revision += 1;
    progress.refresh = Some(Refresh::with_reread(progress.refresh, shard, progress.position));
    let mut flush = Flush::new(progress);
    // The source lost a row unseen.
    flush.push(Mutation {
        table: 0,
        shard,
        key: [Cell::UInt(9)].into(),
        lsn: Lsn::from_u64(1).unwrap(),
        action: MutationAction::Upsert([].into()),
    });
    ground.store().commit(&flush).await.unwrap();
    let source = StaleSource::new(ground.source.clone());
    *source.unreadable.lock().unwrap() = Some(shard);
    let through = async {
        sleep(WAIT_MAX).await;
        let refresh = ground.progress().refresh.unwrap();
        let waiting: Vec<ShardId> = refresh.rereads.into_keys().collect();
        assert_eq!((refresh.scope, waiting), (Scope::Rereads, vec![shard]), "all others are read");
        assert_eq!(ground.rows(), [derived(7, 1), derived(last, 9)].into(), "its claims stay");
        *source.unreadable.lock().unwrap() = None;
        sleep(WAIT_MAX).await;
    };
    let lane = OneLane::new(&ground.id, &ground.log, &source);
    lane.run(&mut ground.store(), project, through).await.unwrap();
    assert_eq!(ground.progress().refresh, None, "it is through");
    assert_eq!(ground.rows(), [derived(7, 1)].into());
}
