//! The reconciliation of one projection: unit after unit, each scanned, rechecked and repaired before the next one.
//!
//! A unit is a range of shards with about [`UNIT_ROWS`] source rows; all units together cover every possible shard. The
//! checkpoint holds where the next unit begins and the findings so far, so an interrupted reconciliation resumes there.
//! A table that cannot be read costs only its own unit. Rows of shards that no source has are reported and never
//! judged: a table that is gone, or no longer visible, looks the same as one that was emptied.

mod foreign;

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backpressure::Backpressure;
use super::candidates::{CandidateBatch, SourceKey};
use super::lane_wait::LaneWait;
use super::placement::DoubledKey;
use super::recheck::{Recheck, Verdict, WindowVerdicts};
use super::repair::repair;
use super::report::{Drifted, StoreReport};
use super::scan::{Scanned, Sides, SourceTable, Unit, Unscanned};
use crate::config::reconcile::{Mode, ReconcileSettings};
use crate::error::Fault;
use crate::failpoints;
use crate::ports::{DerivedRows, Lanes, RowSource};
use crate::records::{AuditState, Cell};
use crate::retry::again;

/// Source rows of a unit: even if all of them differ, the default memory can list them.
const UNIT_ROWS: u64 = 2_000_000;
/// Tables of the first unit, before their size is known.
const FIRST_TABLES: usize = 8;
/// Derived rows that are checked after one barrier.
const WINDOW_ROWS: usize = 20_000;
/// Up to so many differences in a unit are repaired whatever their share.
const SHARE_KEYS_MIN: u64 = 100;

/// How far the reconciliation of one projection has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreState {
    pub report: StoreReport,
    /// The shard where the next unit begins; `None` = all units are done.
    pub next: Option<ShardId>,
    /// Tables of a unit: with them it has about [`UNIT_ROWS`], as far as their size is known.
    tables_a_unit: usize,
    /// The most tables of a unit, after a window ended before a unit with more was done.
    #[serde(default)]
    tables_max: Option<usize>,
    /// Up to this shard units are single tables, since one of them could not be read.
    careful_up_to: Option<ShardId>,
    /// The seed of hashes: new in each reconciliation, so that no collision hides a difference twice.
    seed: u64,
    /// How far the audit has come, when the store is a cache.
    #[serde(default)]
    pub audit: AuditState,
}

impl StoreState {
    /// Returns the share of all possible shards that is done, from 0 to 1; tables lie in them at random.
    pub fn share(&self) -> f64 {
        self.next.map_or(1.0, |next| next.as_u64() as f64 / (u64::MAX >> 1) as f64)
    }

    pub fn new(store: &str, seed: u64) -> Self {
        Self {
            report: StoreReport::new(store),
            next: ShardId::from_u64(0),
            tables_a_unit: FIRST_TABLES,
            tables_max: None,
            careful_up_to: None,
            seed,
            audit: AuditState::default(),
        }
    }
}

/// The store of a reconciliation's state, from which another process can resume it.
pub trait Checkpoint: Send {
    /// Stores the state; fails when another process has stored one since.
    fn store(&mut self, state: &StoreState) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The reconciliation of one projection.
pub struct Reconciliation<'a, S, D, L> {
    pub sides: &'a Sides<S, D>,
    pub lanes: &'a L,
    pub settings: &'a ReconcileSettings,
    pub lane_wait: LaneWait,
    /// Makes the hash of a source row's key for reports.
    pub hash_key: &'a (dyn Fn(&SourceTable, &SourceKey) -> String + Sync),
    /// Makes the hash of a derived row that belongs to no source table, from the stored number of its shard and its
    /// key.
    pub hash_foreign: &'a (dyn Fn(Option<u64>, &[Cell]) -> String + Sync),
    /// Tables that sources have and no pattern captures any more: their derived rows stand, and none is foreign.
    pub uncaptured: &'a BTreeSet<ShardId>,
}

impl<S: RowSource + 'static, D: DerivedRows + 'static, L: Lanes> Reconciliation<'_, S, D, L> {
    /// Resumes from `state` until all units are done or `cancel`; stores the state after each unit. When no unit is
    /// done before `cancel`, later units have half as many tables: a reconciliation gets on in windows of any length
    /// that a single table fits into.
    pub async fn run(
        &self,
        state: &mut StoreState,
        checkpoint: &mut impl Checkpoint,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let tables = match self.replicas_hold(&mut state.report, cancel).await {
            true => self.tables(&mut state.report).await,
            false if cancel.is_cancelled() => return Ok(()),
            false => None,
        };
        let Some(tables) = tables else {
            state.report.unproven.add_all();
            state.next = None;
            return checkpoint.store(state).await;
        };
        let begun_anew = state.next == ShardId::from_u64(0);
        let mut is_any_through = false;
        while let Some(next) = state.next {
            let began = Instant::now();
            let unit = cut(&tables, next, state);
            let (end, tables_of_unit, before) = (*unit.shards.end(), unit.tables.len(), state.clone());
            let ended = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                ended = self.unit(unit, &tables, state) => Some(ended),
            };
            let Some(ended) = ended else {
                *state = before;
                if is_any_through {
                    return Ok(());
                }
                state.tables_max = Some((tables_of_unit / 2).max(1));
                return checkpoint.store(state).await;
            };
            is_any_through = true;
            state.next = match ended {
                UnitEnd::Through => end.as_u64().checked_add(1).and_then(ShardId::from_u64),
                UnitEnd::InPieces => Some(next),
                UnitEnd::Store => None,
            };
            state.report.seconds += began.elapsed().as_secs_f64();
            failpoints::reach("reconciliation-before-checkpoint").await;
            checkpoint.store(state).await?;
            failpoints::reach("reconciliation-after-checkpoint").await;
        }
        self.place(&tables, begun_anew, &mut state.report).await;
        Ok(())
    }

    /// Reports the placement audit; reads keys in two tables once more, as a row may have moved meanwhile.
    async fn place(
        &self,
        tables: &BTreeMap<ShardId, SourceTable>,
        begun_anew: bool,
        report: &mut StoreReport,
    ) {
        let Some(audit) = &self.sides.audit else { return };
        let mut placement = audit.placement();
        if !begun_anew {
            placement.not_audited.push(
                "the reconciliation was cut off: only rows after that position were compared".to_owned(),
            );
            placement.share_of_keys = 0.0;
        }
        for (key, other) in audit.doubles() {
            let other = SourceKey { shard: other, key: key.key.clone() };
            let (Some(one), Some(two)) = (tables.get(&key.shard), tables.get(&other.shard)) else { continue };
            let mut places = [(one, &key), (two, &other)];
            if join_all(places.map(|(table, key)| self.is_in_source(table, key))).await == [true, true] {
                // Which of the two was read first is chance.
                places.sort_by_key(|(table, _)| (table.name(), &*table.source));
                let key_hash = (self.hash_key)(places[0].0, places[0].1);
                let names = places.map(|(table, _)| table.name());
                placement.doubles.push(DoubledKey { key_hash, tables: names });
            }
        }
        report.placement = Some(placement);
    }

    async fn is_in_source(&self, table: &SourceTable, key: &SourceKey) -> bool {
        let Some(source) = self.sides.primaries.get(&table.source) else { return false };
        let keys = [(table.identity.clone(), vec![key.key.clone()])];
        let read = again(|| source.rows(&keys, FIRST_EPOCH)).await;
        read.is_ok_and(|chunk| chunk.rows > 0)
    }

    /// Returns whether each replica has come as far as its source was when the reconciliation began. A replica's older
    /// rows look right where the stores are as old, so they prove nothing about the stores.
    async fn replicas_hold(&self, report: &mut StoreReport, cancel: &CancellationToken) -> bool {
        for name in &self.sides.replicated {
            let (Some(replica), Some(primary)) =
                (self.sides.sources.get(name), self.sides.primaries.get(name))
            else {
                continue;
            };
            let held = tokio::select! {
                held = self.replica_holds(&**replica, &**primary) => held,
                () = cancel.cancelled() => return false,
            };
            match held {
                Ok(true) => {}
                Ok(false) => {
                    report
                        .set_incomplete(format!("the replica of source {name} lags, or replicates nothing"));
                    return false;
                }
                Err(fault) => {
                    report.set_incomplete(format!(
                        "the lag of the replica of source {name} is not known: {fault}"
                    ));
                    return false;
                }
            }
        }
        true
    }

    async fn replica_holds(&self, replica: &S, primary: &S) -> Result<bool, Fault> {
        let end = again(|| primary.replication_end()).await?;
        let until = Instant::now() + self.lane_wait.standstill();
        loop {
            let is_held = again(|| replica.has_replicated(&end)).await?;
            if is_held || Instant::now() >= until {
                return Ok(is_held);
            }
        }
    }

    /// Returns every captured table of the projection; `None` when a source does not answer. Without its answer, rows
    /// of unknown tables look the same as rows of tables that are gone.
    async fn tables(&self, report: &mut StoreReport) -> Option<BTreeMap<ShardId, SourceTable>> {
        let mut all = BTreeMap::new();
        let entity = self.sides.projection.entity();
        for (name, source) in &self.sides.sources {
            match again(|| source.tables()).await {
                Ok(tables) => {
                    let before = all.len();
                    let of_entity = tables.into_iter().filter(|table| table.entity == entity);
                    all.extend(
                        of_entity
                            .map(|identity| (identity.shard, SourceTable { source: name.clone(), identity })),
                    );
                    if all.len() == before {
                        let entity = entity.name();
                        report.set_incomplete(format!(
                            "source {name} shows no table of {entity}: check its patterns and grants"
                        ));
                    }
                }
                Err(fault) => {
                    report.set_incomplete(format!("the tables of source {name} are not known: {fault}"));
                    return None;
                }
            }
        }
        Some(all)
    }

    /// Reconciles one unit, from scan to repair.
    async fn unit(
        &self,
        unit: Unit,
        tables: &BTreeMap<ShardId, SourceTable>,
        state: &mut StoreState,
    ) -> UnitEnd {
        let (backpressure, pace) = Backpressure::of(&self.settings.limits);
        let mut scan = self.sides.scan(&unit, state.seed, self.settings.memory.get(), &pace);
        let recheck = Recheck { sides: self.sides, lanes: self.lanes, tables, lane_wait: &self.lane_wait };
        let (mut wrong, mut rows, mut is_read) = (WrongKeys::default(), 0, false);
        let ended = loop {
            let scanned = tokio::select! {
                scanned = scan.next() => scanned,
                () = backpressure.watch(self.sides, self.lanes, &self.settings.limits) => unreachable!("it never ends"),
            };
            let scanned = match scanned {
                Ok(Some(scanned)) => scanned,
                Ok(None) => break UnitEnd::Through,
                Err(why) => break not_scanned(why, &unit, is_read, state),
            };
            failpoints::reach("reconciliation-scanned").await;
            rows += scanned.rows_source;
            if !std::mem::replace(&mut is_read, true) {
                state.report.tables += unit.tables.len() as u64;
                if let Some(a_table) = rows.checked_div(unit.tables.len() as u64) {
                    state.tables_a_unit = (UNIT_ROWS / a_table.max(1)).clamp(1, UNIT_ROWS) as usize;
                }
            }
            if !self.judge(&recheck, scanned, rows, &mut state.report, &mut wrong).await {
                break UnitEnd::Through;
            }
        };
        if wrong.is_partial {
            state.report.unproven.add(unit.tables.keys().copied());
        }
        if is_read {
            self.settle(&recheck, wrong, rows, &mut state.report).await;
        }
        ended
    }

    /// Judges the candidates of a slice; returns whether to go on. `rows` counts the source rows of the whole unit.
    async fn judge(
        &self,
        recheck: &Recheck<'_, S, D, L>,
        scanned: Scanned,
        rows: u64,
        report: &mut StoreReport,
        wrong: &mut WrongKeys,
    ) -> bool {
        report.count_source_rows(scanned.rows_of_sources);
        report.rows_expected += scanned.rows_expected;
        report.rows_derived += scanned.rows_derived;
        report.retired_tables += scanned.retired.len() as u64;
        report.retired_rows += scanned.retired.values().sum::<u64>();
        self.report_foreign(scanned.unowned, recheck.tables, report).await;
        for mut window in scanned.candidates.windows(WINDOW_ROWS) {
            // Derived rows of one source row may lie in several slices; the row counts once and is read back with all
            // of its tables.
            window.retain(|key, tables| match wrong.keys.get_mut(key) {
                Some(known) => {
                    known.append(tables);
                    false
                }
                None => true,
            });
            if wrong.is_beyond(self.settings, report, rows) {
                report.is_gate_closed = true;
                report
                    .set_incomplete("more rows differ than the gate lets pass; the others were not checked");
                return false;
            }
            report.candidates += window.len() as u64;
            match recheck.judge(window).await {
                Ok(judged) => self.count_verdicts(judged, recheck.tables, report, wrong),
                Err(fault) => {
                    report.set_incomplete(format!("not rechecked: {fault}"));
                    wrong.is_partial = true;
                    return false;
                }
            }
        }
        true
    }

    /// Repairs the wrong rows of a unit, if the drift gate and the mode allow it.
    async fn settle(
        &self,
        recheck: &Recheck<'_, S, D, L>,
        wrong: WrongKeys,
        rows: u64,
        report: &mut StoreReport,
    ) {
        if wrong.is_partial {
            return;
        }
        failpoints::reach("reconciliation-rechecked").await;
        report.is_gate_closed |= wrong.is_beyond(self.settings, report, rows);
        if report.is_gate_closed || self.settings.mode == Mode::Report {
            report.left += wrong.keys.len() as u64;
            return;
        }
        self.repair(recheck, wrong, report).await;
    }

    fn count_verdicts(
        &self,
        judged: WindowVerdicts,
        tables: &BTreeMap<ShardId, SourceTable>,
        report: &mut StoreReport,
        wrong: &mut WrongKeys,
    ) {
        judged.unread.into_iter().for_each(|why| report.set_incomplete(why));
        for (key, (verdict, of_key)) in judged.verdicts {
            report.count(verdict, 1);
            if verdict == Verdict::Unreadable {
                report.unproven.add([key.shard]);
            }
            if let (true, Some(table)) = (verdict.is_drift(), tables.get(&key.shard)) {
                let key_hash = (self.hash_key)(table, &key);
                report.list(Drifted { source: table.source.clone(), table: table.name(), verdict, key_hash });
                wrong.keys.insert(key, of_key);
            }
        }
    }

    async fn repair(&self, recheck: &Recheck<'_, S, D, L>, wrong: WrongKeys, report: &mut StoreReport) {
        let mut of_source: BTreeMap<&str, Vec<&SourceKey>> = BTreeMap::new();
        for key in wrong.keys.keys() {
            if let Some(table) = recheck.tables.get(&key.shard) {
                of_source.entry(&table.source).or_default().push(key);
            }
        }
        for (source, keys) in of_source {
            report.repaired += keys.len() as u64;
            if let Err(why) = repair(self.lanes, &self.lane_wait, source, &keys).await {
                report.set_incomplete(format!("not repaired: {why}"));
            }
        }
        failpoints::reach("reconciliation-repaired").await;
        if wrong.keys.is_empty() {
            return;
        }
        let keys = wrong.keys.len() as u64;
        let shards: BTreeSet<ShardId> = wrong.keys.keys().map(|key| key.shard).collect();
        match recheck.judge(wrong.keys).await {
            Ok(judged) => {
                judged.unread.into_iter().for_each(|why| report.set_incomplete(why));
                let is_known = |verdict: &Verdict| verdict.is_drift() || *verdict == Verdict::InFlight;
                let unknown = judged.verdicts.iter().filter(|(_, (verdict, _))| !is_known(verdict));
                report.unproven.add(unknown.map(|(key, _)| key.shard));
                report.read_back(keys, judged.verdicts.values().map(|(verdict, _)| *verdict));
            }
            Err(fault) => {
                report.set_incomplete(format!("{keys} repaired rows were not read back: {fault}"));
                report.unproven.add(shards);
            }
        }
    }
}

/// The end of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnitEnd {
    Through,
    /// The unit is read again, one table at a time.
    InPieces,
    /// Nothing more of the store can be read.
    Store,
}

/// Returns how a unit that cannot be read ends; a unit of which a part was judged is not read again.
fn not_scanned(why: Unscanned, unit: &Unit, is_read: bool, state: &mut StoreState) -> UnitEnd {
    match why {
        Unscanned::Unread { shard: Some(shard), fault } if unit.tables.len() > 1 && !is_read => {
            tracing::warn!(%shard, %fault, "a table cannot be read: the unit is read again, table by table");
            state.careful_up_to = Some(*unit.shards.end());
            UnitEnd::InPieces
        }
        Unscanned::Unread { shard: Some(_), fault } => {
            // The rest of a partly judged unit stays unjudged.
            state.report.unproven.add(unit.tables.keys().copied());
            state.report.set_incomplete(format!("not read: {fault}"));
            UnitEnd::Through
        }
        Unscanned::Unread { shard: None, fault } => {
            state.report.unproven.add_all();
            state.report.set_incomplete(format!("not read to its end: {fault}"));
            UnitEnd::Store
        }
        Unscanned::TooMuch => {
            let found = "more rows differ than can be listed; `anabranch refresh` reads the tables again";
            state.report.set_incomplete(found);
            state.report.is_gate_closed = true;
            UnitEnd::Through
        }
    }
}

/// Source rows of a unit that are wrong.
#[derive(Debug, Default)]
struct WrongKeys {
    keys: CandidateBatch,
    /// Whether some candidates could not be judged.
    is_partial: bool,
}

impl WrongKeys {
    /// Returns whether more is wrong than may be repaired without the word of a person: an empty source must not empty
    /// the stores.
    fn is_beyond(&self, settings: &ReconcileSettings, report: &StoreReport, rows: u64) -> bool {
        let of_unit = self.keys.len() as u64;
        let share = of_unit as f64 / rows.max(1) as f64;
        report.drifted() > settings.gate_keys || of_unit > SHARE_KEYS_MIN && share > settings.gate_share
    }
}

/// Returns the unit that begins at the shard `next`.
fn cut(tables: &BTreeMap<ShardId, SourceTable>, next: ShardId, state: &StoreState) -> Unit {
    let is_careful = state.careful_up_to.is_some_and(|end| next <= end);
    let count = if is_careful { 1 } else { state.tables_a_unit.min(state.tables_max.unwrap_or(usize::MAX)) };
    let mut following = tables.range(next..);
    let of_unit = following.by_ref().take(count).map(|(shard, table)| (*shard, table.clone())).collect();
    let last = following.next().and_then(|(shard, _)| ShardId::from_u64(shard.as_u64().checked_sub(1)?));
    let highest = ShardId::from_u64(u64::MAX >> 1).expect("63 bits");
    Unit { shards: next..=last.unwrap_or(highest), tables: of_unit }
}
