//! A table that was truncated loses its derived rows in parts, whatever comes between two of them.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_connectors::memory::{Group, MemoryLog, MemorySource, MemoryStore, MemoryTarget, ScriptedRow};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ClaimsPage, LaneStore, Located, ShardPage};
use anabranch_pipeline::records::{Cell, DerivedRow, Flush, LaneId, Mutation, MutationAction, Progress};
use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::{sleep, timeout};

use crate::one_lane::{self, OneLane, WAIT_MAX, append_changes, end, progress_at, project, twins};
use crate::script;

/// Users of the table before it is truncated: some parts.
const USERS: u64 = 8;

/// A store that is cut off after so many commits.
struct Cut {
    store: MemoryStore,
    commits: u32,
    /// Whether reads of derived rows are answered.
    answers: bool,
}

impl LaneStore for Cut {
    async fn load(&mut self) -> Result<Progress, Fault> {
        self.store.load().await
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let Some(left) = self.commits.checked_sub(1) else {
            return Err(Fault::new(Code::TargetUnreachable, "the target", "the lane is cut off"));
        };
        self.commits = left;
        self.store.commit(flush).await
    }

    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        self.store.shards_with_rows(shards).await
    }

    async fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        if !self.answers {
            std::future::pending::<()>().await;
        }
        self.store.withdrawn_claims(withdrawals, page, limit).await
    }

    async fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        if !self.answers {
            std::future::pending::<()>().await;
        }
        self.store.rows_of_shard(page, limit, visit).await
    }

    fn is_atomic(&self) -> bool {
        self.store.is_atomic()
    }
}

/// One lane of one derived table, and the stream that it reads.
struct Ground {
    log: MemoryLog,
    source: MemorySource,
    target: MemoryTarget,
    id: LaneId,
    /// The stream's end.
    last: Lsn,
}

impl Ground {
    /// A lane that has the users of the first table.
    async fn start() -> Self {
        let ((log, source), target, id) = (twins(), one_lane::target(), one_lane::id("source-0"));
        let mut ground = Self { log, source, target, id, last: Lsn::ZERO };
        let located = ground.append(|_, _| ()).await;
        let position = located.position;
        let mut flush = Flush::new(progress_at(located));
        for user in 1..=USERS {
            flush.push(Mutation {
                table: 0,
                shard: script::table(0).shard,
                key: [Cell::UInt(user)].into(),
                lsn: position,
                action: MutationAction::Upsert([].into()),
            });
        }
        ground.store().commit(&flush).await.unwrap();
        ground
    }

    fn store(&self) -> MemoryStore {
        self.target.lane(self.id.clone(), Arc::new([0].into()))
    }

    /// Appends the message of one more group with these changes.
    async fn append(&mut self, write: impl FnOnce(Lsn, &mut codec::Encoder)) -> Located {
        self.source.commit(Group::Rows(Vec::new()));
        let located = end(&self.source).await;
        let Located { position, resume, server } = located.clone();
        let mut changes = codec::Encoder::default();
        write(position, &mut changes);
        let (previous, origin) = (self.last, self.last == Lsn::ZERO);
        let envelope = Envelope { previous, origin, position, resume, server, ..Envelope::default() };
        append_changes(&self.log, envelope, changes).await;
        self.last = position;
        located
    }

    /// Runs the lane until it is cut off after these commits, or has nothing more to do.
    async fn run(&self, commits: u32) -> Result<(), Fault> {
        self.run_on(Cut { store: self.store(), commits, answers: true }).await
    }

    async fn run_on(&self, mut store: Cut) -> Result<(), Fault> {
        let lane = OneLane::new(&self.id, &self.log, &self.source);
        lane.run(&mut store, project, sleep(WAIT_MAX)).await
    }

    fn progress(&self) -> Progress {
        self.target.progress("source-0")[&self.id].clone()
    }

    /// Users of the truncated table, and of all others.
    fn users(&self) -> (Vec<u64>, Vec<u64>) {
        let rows = self.target.rows().into_keys().map(|(_, shard, key)| match key[0] {
            Cell::UInt(user) => (shard == script::table(0).shard, user),
            ref other => panic!("{other:?}"),
        });
        let (own, others): (Vec<_>, Vec<_>) = rows.partition(|(is_own, _)| *is_own);
        let of = |rows: Vec<(bool, u64)>| rows.into_iter().map(|(_, user)| user).collect();
        (of(own), of(others))
    }
}

fn other() -> TableIdentity<'static> {
    let shard = ShardId::of("source-0", "user_00", "user_900", 0);
    TableIdentity { shard, table: "user_900".into(), ..script::table(0) }
}

fn row(user: u64) -> [Value<'static>; 2] {
    [Value::UInt(user), Value::Date { year: 1990, month: 1, day: 3 }]
}

/// The lane is cut off between two parts, and the table exists again and is replaced meanwhile by a statement that also
/// fills it: the withdrawal and the rows have one position.
#[tokio::test(start_paused = true)]
async fn a_truncated_table_goes_in_parts_with_other_changes_in_between() {
    let mut ground = Ground::start().await;
    let truncated = ground.append(|at, changes| changes.withdraw(at, &script::table(0))).await.position;
    ground
        .append(|at, changes| {
            changes.insert(at, &script::table(0), &row(100));
            changes.insert(at, &other(), &row(50));
        })
        .await;
    // The commit of the changes, and one part.
    ground.run(2).await.unwrap_err();
    let (own, others) = ground.users();
    assert_eq!(
        (own.len() > 1, own.len() <= USERS as usize, own.contains(&100)),
        (true, true, true),
        "{own:?}"
    );
    assert_eq!(others, [50], "the change waits for no removal");
    let progress = ground.progress();
    assert_eq!((progress.position, progress.withdrawals.are_owed_at(truncated)), (ground.last, true));
    assert!(progress.refresh.is_none() && !progress.was_refreshed);

    ground
        .append(|at, changes| {
            changes.withdraw(at, &script::table(0));
            changes.insert(at, &script::table(0), &row(101));
        })
        .await;
    ground.append(|at, changes| changes.insert(at, &script::table(0), &row(102))).await;
    ground.run(u32::MAX).await.unwrap();
    assert_eq!(ground.users(), (vec![101, 102], vec![50]));
    assert!(ground.progress().withdrawals.is_empty());
}

/// A target that is overloaded may answer such a read after many minutes, and a daemon has seconds to end.
#[tokio::test(start_paused = true)]
async fn a_lane_ends_while_its_target_does_not_answer_with_derived_rows() {
    for is_reread in [false, true] {
        let mut ground = Ground::start().await;
        let after = Some(row(1).to_vec());
        let row = ScriptedRow { table: script::table(0), before: None, after };
        ground.source.commit(Group::Rows(vec![vec![row]]));
        ground
            .append(|at, changes| match is_reread {
                true => changes.reread(at, &script::table(0)),
                false => changes.withdraw(at, &script::table(0)),
            })
            .await;
        let store = Cut { store: ground.store(), commits: u32::MAX, answers: false };
        let ended = timeout(2 * WAIT_MAX, ground.run_on(store)).await;
        ended.expect("it ends with the daemon").unwrap();
        let progress = ground.progress();
        assert_eq!((progress.withdrawals.is_empty(), progress.refresh.is_some()), (is_reread, is_reread));
        ground.run(u32::MAX).await.unwrap();
        let progress = ground.progress();
        assert!(progress.withdrawals.is_empty() && progress.refresh.is_none(), "{progress:?}");
    }
}
