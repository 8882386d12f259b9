//! Trees of payment documents: a recharge and everything that belongs to it, by the placement rules.

use anabranch_schemas::flux::id::{FluxId, Level, Month, SEQUENCES, Side};
use anabranch_schemas::flux::placement::{Kind, StorageAddress};
use jiff::civil::Date;
use rand::RngExt;
use rand::seq::SliceRandom;

use super::application::WorkerRows;
use super::report::WorkloadReport;
use crate::topology::{
    Document, FLUX_DATABASES, FLUX_DAYS, FLUX_KINDS, RECHARGE_DAYS, SourceTable, WITHOUT_KIND,
};

/// User partitions that an identifier can name.
const PARTITIONS: u8 = 100;
/// One document in so many has a sequence near the last one.
const TOP_SEQUENCES: u64 = 1_000;

/// A document to be written, and its parent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaf {
    pub document: Document,
    pub parent: Option<FluxId>,
}

/// Draws the documents of one tree, all for one place.
struct Grower<'a> {
    worker_rows: &'a mut WorkerRows,
    report: &'a mut WorkloadReport,
    leaves: Vec<Leaf>,
}

/// Returns the documents of one tree whose tables are on that server, in the order in which they are written: some
/// children before their parents.
pub(super) fn tree(worker_rows: &mut WorkerRows, source: usize, report: &mut WorkloadReport) -> Vec<Leaf> {
    let (partition, side) = place_on(worker_rows, source);
    let mut grower = Grower { worker_rows, report, leaves: Vec::new() };
    match grower.worker_rows.random.random_range(0..100) {
        0..3 => grower.without_kind(partition, side),
        3..8 if side == Side::Main => grower.withdrawal(partition),
        _ => grower.recharge(partition, side),
    }
    let Grower { worker_rows, report, mut leaves } = grower;
    if worker_rows.random.random_bool(0.3) {
        leaves.shuffle(&mut worker_rows.random);
        for (number, leaf) in leaves.iter().enumerate() {
            let is_later = |other: &Leaf| Some(other.document.id()) == leaf.parent;
            report.children_before_parents += u64::from(leaves[number..].iter().any(is_later));
        }
    }
    leaves
}

/// Returns a document at a place, with a sequence of its own.
pub(super) fn document_at(
    worker_rows: &mut WorkerRows,
    (level, business): (Level, u8),
    day: u64,
    address: StorageAddress,
) -> Document {
    worker_rows.next_id += 1;
    let number = worker_rows.next_id * worker_rows.workers + worker_rows.worker;
    let sequence = match worker_rows.next_id.is_multiple_of(TOP_SEQUENCES) {
        true => u64::from(SEQUENCES) - 1 - number,
        false => number,
    };
    let sequence = u32::try_from(sequence).expect("a workload has far fewer documents than sequences");
    Document { day, level, business, address, sequence }
}

/// Returns the place of a recharge of that day.
pub(super) fn place_of_recharge(day: u64, partition: u8, side: Side) -> StorageAddress {
    let date: Date = Document::date(day);
    StorageAddress::of_recharge(date, partition, side)
}

pub(super) fn is_recharge(document: &Document) -> bool {
    document.level == Level::Composite && business_of(Kind::Recharge) == document.business
}

/// Returns the business code of a kind; an atom has that of its composite instead.
pub(super) fn business_of(kind: Kind) -> u8 {
    let own = FLUX_KINDS.iter().find(|(_, kinds)| kinds.contains(&kind));
    own.map(|(business, _)| *business).expect("each kind has a business code")
}

/// Draws a user partition and a side whose databases are on that server.
fn place_on(worker_rows: &mut WorkerRows, source: usize) -> (u8, Side) {
    loop {
        let database = worker_rows.random.random_range(0..2 * FLUX_DATABASES);
        let table = SourceTable { entity: worker_rows.topology.entity, database, table: 0 };
        if worker_rows.topology.source_of(table) != source {
            continue;
        }
        let second = worker_rows.random.random_range(0..worker_rows.topology.rule.tables);
        let side = if database < FLUX_DATABASES { Side::Main } else { Side::FailOver };
        return ((database % FLUX_DATABASES * 10 + second) as u8, side);
    }
}

impl Grower<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        self.worker_rows.random.random_bool(probability)
    }

    fn root(&mut self, kind: Kind, day: u64, address: StorageAddress) -> Document {
        let content = (kind.level(), business_of(kind));
        let document = document_at(self.worker_rows, content, day, address);
        self.leaves.push(Leaf { document, parent: None });
        document
    }

    /// Adds a document below a parent, up to a month later.
    fn below(&mut self, kind: Kind, parent: &Document) -> Document {
        let id = parent.id();
        let address = kind.address_below(&id).expect("the workload draws parents that fit");
        let business = match kind {
            Kind::Atom => parent.business,
            kind => business_of(kind),
        };
        let day = (parent.day + self.worker_rows.random.random_range(0..30)).min(FLUX_DAYS - 1);
        let document = document_at(self.worker_rows, (kind.level(), business), day, address);
        self.leaves.push(Leaf { document, parent: Some(id) });
        document
    }

    fn atoms(&mut self, parent: &Document, atoms: usize) {
        for _ in 0..atoms {
            self.below(Kind::Atom, parent);
        }
    }

    /// A recharge with four atoms; a tenth of them is refunded, with three atoms each.
    fn recharge(&mut self, partition: u8, side: Side) {
        let day = self.worker_rows.random.random_range(0..RECHARGE_DAYS);
        let recharge = self.root(Kind::Recharge, day, place_of_recharge(day, partition, side));
        self.report.recharges += 1;
        self.report.recharges_in_fail_over += u64::from(side == Side::FailOver);
        self.atoms(&recharge, 4);
        match self.chance(0.9) {
            true => {
                self.below(Kind::Capture, &recharge);
                self.report.captures += 1;
            }
            false => {
                self.below(Kind::Cancel, &recharge);
                self.report.cancels += 1;
            }
        }
        if self.chance(0.6) {
            self.below(Kind::RechargeClearing, &recharge);
            self.report.clearings += 1;
        }
        if self.chance(0.1) {
            self.refund(&recharge);
        }
        if self.chance(0.05) {
            self.below(Kind::Chargeback, &recharge);
            self.report.chargebacks += 1;
            if self.chance(0.5) {
                self.below(Kind::ChargebackReversal, &recharge);
                self.report.chargeback_reversals += 1;
            }
        }
    }

    fn refund(&mut self, recharge: &Document) {
        let refund = self.below(Kind::Refund, recharge);
        self.report.refunds += 1;
        self.atoms(&refund, 3);
        let kind = if self.chance(0.8) { Kind::RefundClearing } else { Kind::ReturnedRefundClearing };
        self.below(kind, &refund);
        self.report.clearings += 1;
    }

    fn withdrawal(&mut self, partition: u8) {
        let day = self.worker_rows.random.random_range(0..FLUX_DAYS);
        let withdrawal = self.root(Kind::Withdrawal, day, StorageAddress::of_withdrawal(partition));
        self.below(Kind::WithdrawalAtom, &withdrawal);
        self.report.withdrawals += 1;
    }

    /// A document without a kind, which no rule places: its parent is a recharge of any user partition.
    fn without_kind(&mut self, partition: u8, side: Side) {
        let (day, parents_day) = (
            self.worker_rows.random.random_range(0..FLUX_DAYS),
            self.worker_rows.random.random_range(0..RECHARGE_DAYS),
        );
        let content = (Level::Composite, WITHOUT_KIND);
        let address = StorageAddress { side, partition, month: Month::No };
        let document = document_at(self.worker_rows, content, day, address);
        let parents_partition = self.worker_rows.random.random_range(0..PARTITIONS);
        let parent = Document {
            day: parents_day,
            level: Level::Composite,
            business: business_of(Kind::Recharge),
            address: place_of_recharge(parents_day, parents_partition, Side::Main),
            sequence: document.sequence,
        };
        self.leaves.push(Leaf { document, parent: Some(parent.id()) });
        self.report.documents_without_kind += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::topology::Topology;
    use crate::workload::model::Model;

    fn worker_rows() -> WorkerRows {
        let endpoint = |name: &str| Endpoint {
            name: name.to_owned(),
            port: 0,
            user: String::new(),
            password: String::new(),
            ca_file: "ca.pem".into(),
        };
        let sources = ["source-a", "source-b", "source-f"].map(endpoint).to_vec();
        WorkerRows {
            topology: Topology::flux(sources, 3),
            random: StdRng::seed_from_u64(5),
            model: Model::new(3),
            worker: 1,
            workers: 4,
            next_id: 0,
            deleted: Vec::new(),
        }
    }

    #[test]
    fn each_document_is_on_its_server_and_follows_the_rule_of_its_kind() {
        let (mut worker_rows, mut report) = (worker_rows(), WorkloadReport::default());
        let (mut seen, mut documents) = (HashSet::new(), 0);
        for number in 0..3_000 {
            let source = number % 3;
            for Leaf { document, parent } in tree(&mut worker_rows, source, &mut report) {
                documents += 1;
                assert_eq!(worker_rows.topology.source_of(document.source_table()), source);
                assert!(seen.insert(document.id()), "{}", document.id());
                assert_eq!(Document::of(document.number()).id(), document.id());
                let kinds = FLUX_KINDS.iter().find(|(business, _)| *business == document.business);
                let kind =
                    kinds.and_then(|(_, kinds)| kinds.iter().find(|kind| kind.level() == document.level));
                let Some(kind) = kind else {
                    assert_eq!(document.business, WITHOUT_KIND);
                    continue;
                };
                assert_eq!(kind.audit(&document.id(), parent.as_ref()), Ok(Vec::new()), "{kind:?}");
            }
        }
        assert!(report.refunds > 0 && report.children_before_parents > 0, "{report:?}");
        // The command line counts on about seven documents a recharge.
        assert!((6..=9).contains(&(documents / report.recharges)), "{documents} {report:?}");
    }
}
