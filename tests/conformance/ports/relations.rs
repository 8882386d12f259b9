//! The relation index of payment documents: rows by identifier and by parent, as lanes have written them.

mod heirs;
mod outlived;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_connectors::memory::{
    MemoryRelations, MemoryRows, MemoryStore, MemoryTarget, StoreKind, Weather,
};
use anabranch_connectors::mysql::store::{MysqlLane, MysqlRelations, MysqlRows};
use anabranch_pipeline::config::{Config, ProjectionConfig};
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRows, LaneStore, RelationStore};
use anabranch_pipeline::projections::flux_relations::FluxRelations;
use anabranch_pipeline::projections::{Defects, LaneScope, Projection};
use anabranch_pipeline::records::{
    Cell, CellRef, Claimed, DerivedRow, Flush, LaneId, Progress, RelationRow, Replacement,
};
use anabranch_schemas::change::{Action, Change, Entity, Row, TableIdentity, Value};
use anabranch_schemas::flux::id::{FluxId, SYSTEM};
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;

use self::heirs::documents_that_a_retention_job_deleted_stand_as_those_of_a_retired_table;
use crate::derived::{StoreSite, lsn};
use crate::source::DatabaseKind;

/// Connections of a reader, and so the statements that it runs at once.
const CONNECTIONS: usize = 3;

on_twin_and_both_kinds_of_server!(Twin, Server:
    documents_are_found_on_every_target_with_the_bytes_that_the_source_has,
    children_are_found_by_their_parents_and_by_nothing_that_resembles_them,
    the_first_children_of_all_tables_are_the_first_of_each_limit,
    more_identifiers_than_one_statement_takes_are_all_found,
    a_document_that_gets_another_parent_or_goes_leaves_nothing_behind,
    rows_of_a_retired_table_stand_and_are_told_from_those_of_the_next_one,
    documents_that_a_retention_job_deleted_stand_as_those_of_a_retired_table,
);

pub trait Ground: Sized {
    type Store: LaneStore;
    type Index: RelationStore;
    type Rows: DerivedRows + ForeignRows;

    async fn start() -> Self;
    fn projection(&self) -> Projection;
    /// The lane of each target, in the order of targets.
    fn lanes(&self) -> Vec<Self::Store>;
    fn index(&self) -> Self::Index;
    /// The derived rows on each target, in the order of targets.
    fn rows(&self) -> Vec<Self::Rows>;
}

/// Sections of an index on these targets, in a database of this name.
fn sections(targets: &[&str], database: &str) -> String {
    format!(
        "[[entities]]\nentity = \"flux\"\nremoval = \"retain\"\ntables = \"flux_00_{{db}}.document_{{partition:02}}\"\n\
         columns = {{ amount = \"amount\", created = \"created\" }}\n\
         [[projections]]\nname = \"relations\"\nkind = \"flux_relations\"\ntargets = {targets:?}\nlanes = 1\n\
         database = \"{database}\"\n"
    )
}

fn relations(config: &Config) -> &ProjectionConfig {
    config.projections.iter().find(|known| known.name == "relations").unwrap()
}

fn lane_id(target: &str) -> LaneId {
    let [projection, target, source] = ["relations", target, "source-a"].map(str::to_owned);
    LaneId { projection, target, source, lane: 0 }
}

pub struct Twin(Config, MemoryTarget);

impl Ground for Twin {
    type Store = MemoryStore;
    type Index = MemoryRelations;
    type Rows = MemoryRows;

    async fn start() -> Self {
        let text = "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n\
                    [[sources]]\nname = \"source-a\"\nurl = \"mysql://u:p@127.0.0.1:2\"\n\
                    [[targets]]\nname = \"target-a\"\nurl = \"mysql://u:p@127.0.0.1:3\"\n";
        let text = text.to_owned() + &sections(&["target-a"], "d");
        let config = Config::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        Self(config, MemoryTarget::new(Weather::calm(), StoreKind::Rows))
    }

    fn projection(&self) -> Projection {
        Projection::new(relations(&self.0))
    }

    fn lanes(&self) -> Vec<MemoryStore> {
        let tables: BTreeSet<u32> = self.projection().target_tables(0).map(|(index, _)| index).collect();
        vec![self.1.lane(lane_id("target-a"), Arc::new(tables))]
    }

    fn index(&self) -> MemoryRelations {
        self.1.relations(&FluxRelations::configured(relations(&self.0)).unwrap(), SYSTEM)
    }

    fn rows(&self) -> Vec<MemoryRows> {
        vec![self.1.derived(&self.projection())]
    }
}

pub struct Server(StoreSite);

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::on(StoreSite::further(kind).await?).await)
    }

    async fn on(site: StoreSite) -> Self {
        let database = format!("flux_relations_{}", site.prefix);
        let site = StoreSite { further: sections(&site.targets, &database), ..site };
        for target in &site.targets {
            let mut admin = site.admin_of(target).await;
            for grant in [
                "CREATE, SELECT ON {}.* TO 'anabranch_setup'@'127.0.0.1'",
                "SELECT, INSERT, UPDATE, DELETE ON {}.* TO 'anabranch_apply'@'127.0.0.1'",
            ] {
                admin.query_drop(format!("GRANT {}", grant.replace("{}", &database))).await.unwrap();
            }
            site.target(target).setup().await.unwrap();
        }
        Self(site)
    }
}

impl Ground for Server {
    type Store = MysqlLane;
    type Index = MysqlRelations;
    type Rows = MysqlRows;

    async fn start() -> Self {
        Self::on(StoreSite { targets: vec!["target-a", "target-b"], ..StoreSite::new().await }).await
    }

    fn projection(&self) -> Projection {
        Projection::new(relations(&self.0.config()))
    }

    fn lanes(&self) -> Vec<MysqlLane> {
        let lane = |target: &&str| self.0.target(target).lane(&lane_id(target)).unwrap();
        self.0.targets.iter().map(lane).collect()
    }

    fn index(&self) -> MysqlRelations {
        MysqlRelations::new(&self.0.config(), "relations", CONNECTIONS).unwrap()
    }

    fn rows(&self) -> Vec<MysqlRows> {
        let rows = |target: &&str| self.0.target(target).rows("relations", 1).unwrap();
        self.0.targets.iter().map(rows).collect()
    }
}

/// The lanes of all targets, and the position that they have reached.
struct Writer<S> {
    lanes: Vec<(S, Progress)>,
    projection: Projection,
    position: u64,
}

impl<S: LaneStore> Writer<S> {
    async fn of(ground: &impl Ground<Store = S>) -> Self {
        let mut lanes = Vec::new();
        for mut lane in ground.lanes() {
            let progress = lane.load().await.unwrap();
            lanes.push((lane, progress));
        }
        Self { lanes, projection: ground.projection(), position: 0 }
    }

    /// Commits changes, each of a numbered table of the source.
    async fn change(&mut self, changes: Vec<(u32, Action<'static>)>) {
        self.events(changes.into_iter().map(|change| vec![change]).collect()).await;
    }

    /// Commits row events; the changes of an event have one position.
    async fn events(&mut self, events: Vec<Vec<(u32, Action<'static>)>>) {
        let mut flushes: Vec<Flush> =
            self.lanes.iter().map(|(_, progress)| Flush::new(progress.clone())).collect();
        for event in events {
            self.position += 1;
            for (number, action) in event {
                let change = Change { lsn: lsn(self.position), table: &table(number), action };
                for (target, flush) in (0..).zip(&mut flushes) {
                    let scope = LaneScope { target, lane: 0 };
                    self.projection.project(&change, scope, flush, &mut Defects::default());
                }
            }
        }
        for ((lane, progress), mut flush) in self.lanes.iter_mut().zip(flushes) {
            flush.progress.revision += 1;
            flush.progress.position = lsn(self.position);
            flush.progress.highest_position = lsn(self.position);
            lane.commit(&flush).await.unwrap();
            *progress = flush.progress;
        }
    }

    /// Commits a repair that found no row of these documents of partition 05.
    async fn replace(&mut self, number: u32, sequences: &[u32]) {
        let key = |sequence: &u32| Cell::Bytes(id(5, *sequence).digits().as_slice().into());
        let rows: BTreeSet<_> =
            sequences.iter().map(|sequence| (table(number).shard, key(sequence))).collect();
        for (lane, progress) in &mut self.lanes {
            progress.revision += 1;
            let low = lsn(self.position);
            let mut flush = Flush::new(progress.clone());
            flush.replacement = Some(Replacement { low, column: 0, rows: rows.clone() });
            lane.commit(&flush).await.unwrap();
        }
    }

    async fn insert(&mut self, documents: &[(u32, Document)]) {
        let insert =
            |(number, document): &(u32, Document)| (*number, Action::Insert { after: document.row() });
        self.change(documents.iter().map(insert).collect()).await;
    }
}

fn table(number: u32) -> TableIdentity<'static> {
    let name = format!("document_{number:02}");
    let shard = ShardId::of("source-a", "flux_00_0", &name, 0);
    TableIdentity { entity: Entity::Flux, shard, database: "flux_00_0".into(), table: name.into() }
}

fn id(partition: u8, sequence: u32) -> FluxId {
    format!("2016060611031001005{partition:02}00{sequence:08}").parse().unwrap()
}

/// A row of a source.
#[derive(Debug, Clone)]
struct Document {
    id: FluxId,
    parent: Option<Vec<u8>>,
    amount: Option<&'static str>,
}

impl Document {
    fn of(partition: u8, sequence: u32, parent: Option<FluxId>) -> Self {
        let parent = parent.map(|parent| parent.digits().to_vec());
        Self { id: id(partition, sequence), parent, amount: None }
    }

    fn row(&self) -> Row<'static> {
        let bytes = |bytes: Option<Vec<u8>>| bytes.map_or(Value::Null, |bytes| Value::Bytes(bytes.into()));
        let created = match self.amount {
            None => Value::Null,
            Some(_) => Value::DateTime {
                year: 2016,
                month: 6,
                day: 6,
                hour: 23,
                minute: 59,
                second: 59,
                microsecond: 0,
            },
        };
        vec![
            bytes(Some(self.id.digits().to_vec())),
            bytes(self.parent.clone()),
            bytes(self.amount.map(|amount| amount.as_bytes().to_vec())),
            created,
        ]
    }

    /// The document as the index has it: an empty text is no parent.
    fn stored(&self, number: u32) -> RelationRow {
        RelationRow {
            id: self.id,
            shard: table(number).shard,
            parent: self.parent.clone().filter(|parent| !parent.is_empty()).map(Into::into),
            amount: self.amount.map(|amount| amount.as_bytes().into()),
            created: self.amount.map(|_| b"2016-06-06 23:59:59".as_slice().into()),
        }
    }
}

fn stored(documents: &[(u32, Document)]) -> Vec<RelationRow> {
    let mut rows: Vec<_> = documents.iter().map(|(number, document)| document.stored(*number)).collect();
    rows.sort_by_key(RelationRow::order);
    rows
}

async fn documents_are_found_on_every_target_with_the_bytes_that_the_source_has(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    let mut documents = vec![
        (1, Document { amount: Some("12.5000"), ..Document::of(5, 1, None) }),
        (2, Document { amount: Some("-0.0001"), ..Document::of(15, 2, Some(id(5, 1))) }),
        (3, Document { parent: Some(b"\xff\0'\\ ".to_vec()), ..Document::of(95, 3, None) }),
        (4, Document { parent: Some(vec![b'7'; 64]), ..Document::of(5, 4, None) }),
        (5, Document { parent: Some(Vec::new()), ..Document::of(6, 5, None) }),
    ];
    // Two tables of the source have one document.
    documents.push((6, documents[1].1.clone()));
    writer.insert(&documents).await;
    let index = ground.index();
    let unknown = id(5, 99);
    let mut ids: Vec<FluxId> = documents.iter().map(|(_, document)| document.id).collect();
    ids.insert(2, unknown);
    assert_eq!(index.documents(&ids).await.unwrap(), stored(&documents));
    assert_eq!(index.documents(&ids[..1]).await.unwrap(), stored(&documents[..1]));
    assert_eq!(index.documents(&[unknown]).await.unwrap(), []);
    assert_eq!(index.documents(&[]).await.unwrap(), []);
    assert_eq!(index.children(&[], 10).await.unwrap(), []);
}

async fn children_are_found_by_their_parents_and_by_nothing_that_resembles_them(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    let (recharge, missing) = (id(5, 1), id(15, 77));
    let children = [
        (1, Document::of(5, 2, Some(recharge))),
        // A misplaced child: its user partition is not that of its parent.
        (2, Document::of(16, 3, Some(recharge))),
        (1, Document::of(5, 4, Some(missing))),
    ];
    let resembling = [
        (1, Document::of(5, 1, None)),
        (1, Document { parent: Some([&recharge.digits()[..], b" "].concat()), ..Document::of(5, 6, None) }),
        (1, Document { parent: Some([&recharge.digits()[..], b"\0"].concat()), ..Document::of(5, 7, None) }),
        (1, Document { parent: Some(recharge.digits()[1..].to_vec()), ..Document::of(5, 8, None) }),
        (1, Document::of(5, 9, Some(id(6, 1)))),
    ];
    writer.insert(&children).await;
    writer.insert(&resembling).await;
    let index = ground.index();
    assert_eq!(index.children(&[recharge], 10).await.unwrap(), stored(&children[..2]));
    assert_eq!(index.children(&[missing], 10).await.unwrap(), stored(&children[2..]));
    assert_eq!(index.children(&[missing, recharge], 10).await.unwrap(), stored(&children));
    assert_eq!(index.children(&[id(5, 2), id(95, 1)], 10).await.unwrap(), []);
}

async fn the_first_children_of_all_tables_are_the_first_of_each_limit(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    let parents: Vec<FluxId> = [5, 15, 25, 95].map(|partition| id(partition, 1)).into();
    // Consecutive children have parents in different tables; some are doubled.
    let children: Vec<(u32, Document)> = (0..40)
        .flat_map(|number: u32| {
            let parent = parents[number as usize % parents.len()];
            let document = Document::of(parent.parts().partition, 100 + number, Some(parent));
            (0..1 + u32::from(number.is_multiple_of(5))).map(move |table| (table, document.clone()))
        })
        .collect();
    writer.insert(&children).await;
    let (index, all) = (ground.index(), stored(&children));
    assert_eq!(all.len(), 48);
    for limit in [0, 1, 2, 7, 47, 48, 49] {
        let found = index.children(&parents, limit).await.unwrap();
        assert_eq!(found, all[..limit.min(all.len())], "{limit}");
    }
}

async fn more_identifiers_than_one_statement_takes_are_all_found(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    let chain: Vec<(u32, Document)> =
        (1..=450).map(|number| (1, Document::of(5, number, Some(id(5, number - 1))))).collect();
    writer.insert(&chain).await;
    let ids: Vec<FluxId> = chain.iter().map(|(_, document)| document.id).collect();
    let index = ground.index();
    assert_eq!(index.documents(&ids).await.unwrap(), stored(&chain));
    assert_eq!(index.children(&ids, 1_000).await.unwrap(), stored(&chain[1..]));
    assert_eq!(index.children(&ids, 300).await.unwrap(), stored(&chain[1..301]));
}

async fn a_document_that_gets_another_parent_or_goes_leaves_nothing_behind(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    let (before, after) =
        (Document::of(5, 2, Some(id(15, 1))), Document { amount: Some("1"), ..Document::of(5, 2, None) });
    let other = Document { parent: Some(id(25, 1).digits().to_vec()), ..after.clone() };
    let index = ground.index();
    let parents = [id(15, 1), id(25, 1)];
    let mut stored_now: Option<Document> = None;
    for next in [Some(before), Some(other), Some(after), None] {
        let action = match (stored_now.take(), &next) {
            (None, Some(after)) => Action::Insert { after: after.row() },
            (Some(before), Some(after)) => Action::Update { before: before.row(), after: after.row() },
            (Some(before), None) => Action::Delete { before: before.row() },
            (None, None) => unreachable!("the document is there"),
        };
        writer.change(vec![(1, action)]).await;
        let expected: Vec<_> = next.iter().map(|document| document.stored(1)).collect();
        assert_eq!(index.documents(&[id(5, 2)]).await.unwrap(), expected);
        for parent in parents {
            let is_child = |row: &&RelationRow| row.parent.as_deref() == Some(&parent.digits()[..]);
            let children: Vec<_> = expected.iter().filter(is_child).cloned().collect();
            assert_eq!(index.children(&[parent], 10).await.unwrap(), children, "{parent}");
        }
        stored_now = next;
    }
}

/// Returns the sequence of the digits in a derived row's key.
fn sequence(key: &[CellRef<'_>]) -> u32 {
    let [CellRef::Bytes(digits)] = key else { panic!("{key:?}") };
    std::str::from_utf8(&digits[23..]).unwrap().parse().unwrap()
}

/// Returns the sequences of all rows, in order: those that source rows should make, and those of retired tables. No row
/// is foreign where `known` are the shards of all source tables.
async fn foreign_and_retired(ground: &impl Ground, known: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (projection, mut claimed, mut retired) = (ground.projection(), Vec::new(), Vec::new());
    let whole = ShardId::from_u64(0).unwrap()..=ShardId::from_u64(u64::MAX >> 1).unwrap();
    let known: BTreeSet<ShardId> = known.iter().map(|number| table(*number).shard).collect();
    let limit = NonZeroUsize::new(2).unwrap();
    for (rows, place) in ground.rows().iter().zip(0..) {
        for (index, _) in projection.target_tables(place) {
            let mut after = None;
            loop {
                let visit = &mut |row: DerivedRow<'_>| match row {
                    DerivedRow::Claimed(row) => claimed.push(sequence(row.key)),
                    DerivedRow::Retired(row) => retired.push(sequence(row.key)),
                    DerivedRow::Stray(row) => panic!("{row:?}"),
                };
                after = rows.page(index, whole.clone(), after.as_ref(), limit, visit).await.unwrap();
                if after.is_none() {
                    break;
                }
            }
            loop {
                let (found, next) = rows.foreign(index, &known, after.as_ref(), limit).await.unwrap();
                assert_eq!(found, []);
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    claimed.sort_unstable();
    retired.sort_unstable();
    (claimed, retired)
}

async fn rows_of_a_retired_table_stand_and_are_told_from_those_of_the_next_one(ground: impl Ground) {
    let mut writer = Writer::of(&ground).await;
    // Each of them stands in two tables, as its parent has another partition.
    let old = [1, 2, 3].map(|sequence| (1, Document::of(5, sequence, Some(id(15, 9)))));
    let beside = [(2, Document::of(5, 10, None))];
    writer.insert(&old).await;
    writer.insert(&beside).await;
    writer.change(vec![(1, Action::Retire)]).await;
    assert_eq!(foreign_and_retired(&ground, &[2]).await, (vec![10], vec![1, 1, 2, 2, 3, 3]));

    let changed = Document { amount: Some("1"), ..old[2].1.clone() };
    let new = [(1, changed), (1, Document::of(5, 4, None))];
    writer.insert(&new).await;
    let index = ground.index();
    let ids: Vec<FluxId> = [1, 2, 3, 4, 10].map(|sequence| id(5, sequence)).into();
    let all = stored(&[&old[..2], &new, &beside].concat());
    assert_eq!(index.documents(&ids).await.unwrap(), all);
    assert_eq!(foreign_and_retired(&ground, &[1, 2]).await, (vec![3, 3, 4, 10], vec![1, 1, 2, 2]));
    let (place, table_5) = (0..).zip(ground.rows()).next().unwrap();
    let sought = [1, 3].map(|sequence| DerivedRowQuery {
        table: ground
            .projection()
            .target_tables(place)
            .map(|(index, _)| index)
            .find(|index| *index == 5)
            .unwrap(),
        shard: table(1).shard,
        key: Cell::Bytes(id(5, sequence).digits().as_slice().into()),
    });
    let mut seen = Vec::new();
    table_5.rows(&sought, &mut |row: Claimed<'_>| seen.push(sequence(row.key))).await.unwrap();
    assert_eq!(seen, [3], "a single row of a retired table is no row to compare either");

    // A repair of rows that the next table does not have, a withdrawal of it, and one of a lane that begins again.
    writer.replace(1, &[1, 2]).await;
    assert_eq!(index.documents(&ids).await.unwrap(), all);
    writer.change(vec![(1, Action::Withdraw)]).await;
    let position = writer.position;
    let mut writer = Writer { position, ..Writer::of(&ground).await };
    writer.change(vec![(1, Action::Withdraw)]).await;
    let kept = stored(&[&old[..2], &beside].concat());
    assert_eq!(index.documents(&ids).await.unwrap(), kept);
    assert_eq!(foreign_and_retired(&ground, &[2]).await, (vec![10], vec![1, 1, 2, 2]));
    // A row event inside the table deletes its document as always.
    writer.change(vec![(1, Action::Delete { before: old[0].1.row() })]).await;
    assert_eq!(foreign_and_retired(&ground, &[2]).await, (vec![10], vec![2, 2]));
}
