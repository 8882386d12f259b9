//! Plants drift in derived stores while everything runs: by SQL, by Redis commands, by HTTP.
//!
//! The drift stands for a restored backup, a script that writes where it must not, a disk that corrupts data. It is
//! planted in rows that no workload touches any more and in rows that no source has, so only a repair removes it. When
//! the stores are equal in the end, each drift was found; when as many keys were repaired as planted, nothing else was.
//! Drift is counted by keys: of the source row from which a derived row seems to come, and by codes for a cache.

mod birthdays;
mod cache;
mod documents;
mod mapping;
mod reconciliation;
mod relations;
mod rows;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

pub use self::reconciliation::{Judgement, Reconciliation, Store};
use crate::error::Result;
use crate::verify::{Layer, Verification};
use crate::workload::{SetAside, is_zero};

/// Rows that are set aside for each drift of a store: some claim nothing, and some kinds need rows that are alike.
const ROWS_A_DRIFT: usize = 3;
/// A version that no log will ever reach.
const FUTURE_LSN: u64 = 1 << 62;
/// Keys of rows that no source has are above this, and below those near the top that workloads use.
const NOBODY: u64 = 1 << 61;

/// A kind of drift of one layer.
#[derive(Debug, Clone, Copy)]
struct Drift<K> {
    kind: K,
    name: &'static str,
    /// Number of keys that differ when it is planted once.
    keys: u64,
}

const fn drift<K>(kind: K, name: &'static str, keys: u64) -> Drift<K> {
    Drift { kind, name, keys }
}

/// Number of differing keys, by kind.
pub type Kinds = BTreeMap<&'static str, u64>;

/// Planted drift.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Planted {
    pub seed: u64,
    /// Drift by the name of the layer.
    pub layers: BTreeMap<&'static str, Kinds>,
    /// Payment documents that were put into a source table that their digits do not name. That is no drift of a store.
    #[serde(skip_serializing_if = "is_zero")]
    pub misplaced: u64,
}

impl Planted {
    pub fn total(&self) -> u64 {
        self.layers.values().flat_map(Kinds::values).sum()
    }

    /// Returns the number of keys planted in one layer.
    pub fn of(&self, layer: &str) -> u64 {
        self.layers.get(layer).into_iter().flat_map(Kinds::values).sum()
    }
}

/// Plants drift in stores of some sources.
#[derive(Debug)]
pub struct Planter<'a> {
    audits: &'a [Verification],
    random: StdRng,
    seed: u64,
    /// Last invented number; it rises over all rounds, so that no number is invented twice.
    nobody: u64,
}

impl<'a> Planter<'a> {
    /// Prints the seed, so that a failed run can be repeated.
    pub fn new(audits: &'a [Verification], seed: u64) -> Self {
        eprintln!("drift seed {seed}");
        Self { audits, random: StdRng::seed_from_u64(seed), seed, nobody: NOBODY }
    }

    /// Returns the number of rows of each entity to set aside for that many drifts.
    pub fn rows_needed(drifts: u64) -> usize {
        drifts as usize * ROWS_A_DRIFT
    }

    /// Plants drift of so many keys, of every kind that the layers can have, in rows that are set aside.
    pub async fn plant(&mut self, drifts: u64, aside: &[SetAside]) -> Result<Planted> {
        let mut planted = Planted { seed: self.seed, ..Planted::default() };
        let mut left = drifts;
        for (number, audit) in self.audits.iter().enumerate() {
            let layers = self.audits.len() - number;
            let share = left / layers as u64;
            left -= share;
            let own: Vec<SetAside> = self.share_of(number, aside);
            let mut hand = Hand { random: &mut self.random, nobody: &mut self.nobody };
            let (topology, name) = (&audit.topology, audit.name());
            let kinds = match &audit.layer {
                Layer::Birthday(layer) => birthdays::plant(topology, layer, &own, share, &mut hand).await?,
                Layer::Mapping(layer) => mapping::plant(topology, layer, &own, share, &mut hand).await?,
                Layer::Cache(layer) => cache::plant(topology, layer, &own, share, &mut hand).await?,
                Layer::Documents(layer) => documents::plant(layer, &own, share, &mut hand).await?,
                Layer::Relations(layer) => {
                    let misplaced = relations::misplace(topology, &own).await?;
                    planted.misplaced += misplaced as u64;
                    relations::plant(topology, layer, &own[misplaced..], share, &mut hand).await?
                }
            };
            planted.layers.insert(name, kinds);
        }
        Ok(planted)
    }

    /// Returns a layer's share of its entity's rows. Shares differ, so the repair of one store does not repair another.
    fn share_of(&self, number: usize, aside: &[SetAside]) -> Vec<SetAside> {
        let entity = self.audits[number].topology.entity;
        let is_alike = |audit: &&Verification| audit.topology.entity == entity;
        let before = self.audits[..number].iter().filter(is_alike).count();
        let layers = self.audits.iter().filter(is_alike).count();
        let own = aside.iter().filter(|row| row.source_table.entity == entity);
        own.skip(before).step_by(layers).copied().collect()
    }
}

/// Random numbers and unused keys of a planter.
struct Hand<'a> {
    random: &'a mut StdRng,
    nobody: &'a mut u64,
}

impl Hand<'_> {
    /// Returns a number that no row has.
    fn nobody(&mut self) -> u64 {
        *self.nobody += 1;
        *self.nobody
    }

    /// Takes kinds in random order, round after round, until so many keys are used; counts the keys. It leaves out a
    /// kind that does not fit any more or finds no rows.
    fn draw<K: Copy>(
        &mut self,
        all: &[Drift<K>],
        mut left: u64,
        mut take: impl FnMut(&mut Self, &Drift<K>) -> bool,
    ) -> Kinds {
        let (mut drawn, mut round) = (Kinds::new(), Vec::new());
        let mut failures = 0;
        while left > 0 && failures <= all.len() {
            let Some(drift) = round.pop() else {
                round = all.to_vec();
                round.shuffle(self.random);
                continue;
            };
            if drift.keys > left || !take(self, &drift) {
                failures += 1;
                continue;
            }
            failures = 0;
            left -= drift.keys;
            *drawn.entry(drift.name).or_default() += drift.keys;
        }
        drawn
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.random_range(0..limit.max(1))
    }
}
