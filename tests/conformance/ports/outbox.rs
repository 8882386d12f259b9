//! The outbox of mapping tables: pending entries, the lanes that count, and a new life of the cache.

use std::time::Duration;

use anabranch_connectors::memory::{MemoryMapping, Weather};
use anabranch_connectors::mysql::store::{MysqlLane, MysqlOutbox};
use anabranch_pipeline::ports::{CacheRecord, Outbox, OutboxBacklog};
use anabranch_pipeline::records::Progress;
use anabranch_schemas::change::Action;
use anabranch_schemas::serial::StoredCode;

use super::cache::{LONG, code, set};
use crate::derived::StoreSite;
use crate::source::DatabaseKind;
use crate::store_mapping::{TABLES, apply, boxed, lane};

/// Mapping tables of one target, with a lane that notes touched codes and one that does not.
pub trait Ground {
    type Outbox: Outbox;

    async fn start() -> Self;
    fn outbox(&self) -> &Self::Outbox;
    /// Commits one flush that touches this code alone.
    async fn flush(&mut self, code: &StoredCode);
    async fn flush_without_cache(&mut self, code: &StoredCode);
    /// Brings rows and clock into the distance that they have after the clock was set back.
    async fn set_clock_back(&self, by: Duration);
}

pub struct Twin(MemoryMapping);

impl Ground for Twin {
    type Outbox = MemoryMapping;

    async fn start() -> Self {
        Self(MemoryMapping::new(Weather::calm()))
    }

    fn outbox(&self) -> &MemoryMapping {
        &self.0
    }

    async fn flush(&mut self, code: &StoredCode) {
        self.0.flush(vec![(code.clone(), set(1))]);
    }

    async fn flush_without_cache(&mut self, code: &StoredCode) {
        self.0.flush_without_cache(vec![(code.clone(), set(1))]);
    }

    async fn set_clock_back(&self, by: Duration) {
        self.0.set_clock_back(by);
    }
}

pub struct Server {
    site: StoreSite,
    outbox: MysqlOutbox,
    positions: u64,
}

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::of(StoreSite::further(kind).await?).await)
    }

    async fn of(site: StoreSite) -> Self {
        let site = StoreSite { mapping_tables: TABLES, is_cached: true, ..site };
        site.target("target-a").setup().await.unwrap();
        let outbox = site.target("target-a").outbox("serials").unwrap();
        Self { site, outbox, positions: 0 }
    }

    /// Inserts by a lane of a new process.
    async fn insert(&mut self, is_cached: bool, code: &StoredCode) {
        self.positions += 1;
        self.site.is_cached = is_cached;
        let (mut lane, progress): (MysqlLane, Progress) = lane(&self.site).await;
        let row = boxed(self.positions, code.as_bytes());
        apply(&mut lane, progress, vec![(self.positions, 0, Action::Insert { after: row })]).await;
    }
}

impl Ground for Server {
    type Outbox = MysqlOutbox;

    async fn start() -> Self {
        Self::of(StoreSite::new().await).await
    }

    fn outbox(&self) -> &MysqlOutbox {
        &self.outbox
    }

    async fn flush(&mut self, code: &StoredCode) {
        self.insert(true, code).await;
    }

    async fn flush_without_cache(&mut self, code: &StoredCode) {
        self.insert(false, code).await;
    }

    async fn set_clock_back(&self, by: Duration) {
        let (prefix, seconds) = (&self.site.prefix, by.as_secs());
        let later = format!("`written_at` + INTERVAL {seconds} SECOND");
        self.site.sql(format!("UPDATE anabranch_{prefix}.outbox SET `written_at` = {later}")).await;
    }
}

on_twin_and_both_kinds_of_server!(Twin, Server:
    what_was_touched_is_pending_in_order_until_it_is_said_to_be_drained,
    only_who_knows_the_record_has_a_say,
    a_flush_that_notes_nothing_takes_the_record_away,
    a_row_from_before_its_clock_was_set_back_is_not_young,
    a_record_keeps_the_time_to_live_that_it_began_with_until_that_is_set,
);

fn record(incarnation: &str, time_to_live: Duration) -> CacheRecord {
    CacheRecord { incarnation: incarnation.to_owned(), time_to_live }
}

async fn pending(outbox: &impl Outbox) -> (Vec<u64>, Vec<StoredCode>) {
    let rows = outbox.pending(10).await.unwrap();
    (rows.iter().map(|row| row.id).collect(), rows.into_iter().flat_map(|row| row.codes).collect())
}

async fn backlog(outbox: &impl Outbox) -> OutboxBacklog {
    outbox.backlog().await.unwrap().expect("a row is pending")
}

async fn span(outbox: &impl Outbox) -> (u64, u64) {
    let OutboxBacklog { oldest, newest, .. } = backlog(outbox).await;
    (oldest, newest)
}

async fn what_was_touched_is_pending_in_order_until_it_is_said_to_be_drained(mut ground: impl Ground) {
    let codes = ["A", "B", "C"].map(code);
    assert_eq!(ground.outbox().backlog().await.unwrap(), None);
    for code in &codes {
        ground.flush(code).await;
    }
    let outbox = ground.outbox();
    let (ids, touched) = pending(outbox).await;
    assert_eq!(touched, codes);
    assert_eq!(outbox.pending(2).await.unwrap().len(), 2, "the oldest, as many as are asked for");
    assert_eq!(span(outbox).await, (ids[0], ids[2]));
    outbox.begin(None, &record("life", LONG)).await.unwrap();
    outbox.drained(&ids[..2], "life").await.unwrap();
    assert_eq!(pending(outbox).await.1, codes[2..]);
    assert_eq!(span(outbox).await, (ids[2], ids[2]));
    outbox.drained(&ids[2..], "life").await.unwrap();
    assert_eq!(outbox.backlog().await.unwrap(), None);
    outbox.forget().await.unwrap();
    outbox.repeat().await.unwrap();
    assert_eq!(pending(outbox).await.1, codes, "what was drained lately is kept for another life");
}

async fn only_who_knows_the_record_has_a_say(mut ground: impl Ground) {
    ground.flush(&code("A")).await;
    let outbox = ground.outbox();
    let (ids, _) = pending(outbox).await;
    outbox.drained(&ids, "life").await.unwrap();
    assert_eq!(pending(outbox).await.0, ids, "there is no record");
    outbox.begin(Some("life"), &record("round", LONG)).await.unwrap();
    assert_eq!(outbox.record().await.unwrap(), None, "what it follows is not there");
    outbox.begin(None, &record("round", LONG)).await.unwrap();
    outbox.begin(None, &record("late", LONG)).await.unwrap();
    outbox.drained(&ids, "life").await.unwrap();
    outbox.settle("another round", "life").await.unwrap();
    assert_eq!(pending(outbox).await.0, ids);
    assert_eq!(outbox.record().await.unwrap(), Some(record("round", LONG)));
    outbox.drained(&ids, "round").await.unwrap();
    outbox.settle("round", "life").await.unwrap();
    assert!(pending(outbox).await.0.is_empty());
    assert_eq!(outbox.record().await.unwrap(), Some(record("life", LONG)));
}

async fn a_flush_that_notes_nothing_takes_the_record_away(mut ground: impl Ground) {
    ground.outbox().begin(None, &record("life", LONG)).await.unwrap();
    ground.flush(&code("A")).await;
    assert!(ground.outbox().record().await.unwrap().is_some());
    ground.flush_without_cache(&code("B")).await;
    assert_eq!(ground.outbox().record().await.unwrap(), None);
    assert_eq!(pending(ground.outbox()).await.1, [code("A")]);
}

async fn a_row_from_before_its_clock_was_set_back_is_not_young(mut ground: impl Ground) {
    ground.flush(&code("A")).await;
    ground.set_clock_back(LONG).await;
    let age = backlog(ground.outbox()).await.age;
    assert!(age > LONG / 2 && age <= LONG, "{age:?}");
}

async fn a_record_keeps_the_time_to_live_that_it_began_with_until_that_is_set(ground: impl Ground) {
    let outbox = ground.outbox();
    outbox.set_time_to_live(LONG).await.unwrap();
    assert_eq!(outbox.record().await.unwrap(), None, "there is nothing to set it of");
    outbox.begin(None, &record("life", LONG)).await.unwrap();
    outbox.begin(Some("life"), &record("round", LONG / 2)).await.unwrap();
    assert_eq!(outbox.record().await.unwrap(), Some(record("round", LONG)));
    outbox.set_time_to_live(LONG / 2).await.unwrap();
    assert_eq!(outbox.record().await.unwrap(), Some(record("round", LONG / 2)));
}
