//! The grounds of the suite of derived rows: each projection on its twin and on its real server.

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_connectors::memory::{MemoryRows, MemoryStore, MemoryTarget, StoreKind, Weather};
use anabranch_connectors::mysql::store::{MysqlLane, MysqlRows};
use anabranch_connectors::search::{SearchLane, SearchRows};
use anabranch_pipeline::config::Config;
use anabranch_pipeline::ports::{DerivedRows, ForeignRows, LaneStore};
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::records::LaneId;

use crate::derived::StoreSite;
use crate::source::DatabaseKind;

const LANES: u32 = 2;

/// One projection with two lanes on one target.
pub trait Ground: Sized {
    type Store: LaneStore;
    type Rows: DerivedRows + ForeignRows;

    async fn start() -> Self;
    fn projection(&self) -> Projection;
    fn rows(&self) -> Self::Rows;
    fn lane(&self, lane: u32) -> Self::Store;
}

pub struct Twin(Projection, MemoryTarget);

impl Twin {
    /// A projection that needs no server.
    fn of(projection: &str, store_kind: StoreKind) -> Self {
        let text = format!(
            "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n\
             [[entities]]\nentity = \"user\"\ntables = \"user_{{db}}.user_{{table}}\"\n\
             [[entities]]\nentity = \"serial_code\"\ntables = \"inventory_{{db}}.serial_code_{{table}}\"\n\
             [[sources]]\nname = \"source-a\"\nurl = \"mysql://u:p@127.0.0.1:2\"\n\
             [[targets]]\nname = \"target-a\"\nurl = \"{}\"\n\
             [[projections]]\nname = \"one\"\ntargets = [\"target-a\"]\nlanes = {LANES}\n{projection}\n",
            if store_kind == StoreKind::Rows { "mysql://u:p@127.0.0.1:3" } else { "https://u:p@127.0.0.1:3" },
        );
        let config = Config::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        Self(Projection::new(&config.projections[0]), MemoryTarget::new(Weather::calm(), store_kind))
    }

    fn lane(&self, lane: u32) -> MemoryStore {
        let id = lane_id("one", "target", lane);
        let tables = self.0.target_tables(0).filter(|(_, table)| table.lane == lane);
        let tables: BTreeSet<u32> = tables.map(|(index, _)| index).collect();
        self.1.lane(id, Arc::new(tables))
    }
}

fn lane_id(projection: &str, target: &str, lane: u32) -> LaneId {
    LaneId {
        projection: projection.to_owned(),
        target: target.to_owned(),
        source: "source-a".to_owned(),
        lane,
    }
}

pub struct BirthdayTwin(Twin);
pub struct MappingTwin(Twin);
pub struct DocumentsTwin(Twin);

/// The grounds of twins differ only in their projection.
macro_rules! twins {
    ($($ground:ident = $projection:literal, $store_kind:ident;)+) => {$(
        impl Ground for $ground {
            type Store = MemoryStore;
            type Rows = MemoryRows;

            async fn start() -> Self {
                Self(Twin::of($projection, StoreKind::$store_kind))
            }

            fn projection(&self) -> Projection {
                self.0.0.clone()
            }

            fn rows(&self) -> MemoryRows {
                self.0.1.derived(&self.0.0)
            }

            fn lane(&self, lane: u32) -> MemoryStore {
                self.0.lane(lane)
            }
        }
    )+};
}

twins! {
    BirthdayTwin = "kind = \"birthday\"\nlayout = \"by_day\"\ndatabases = 1\ndatabase = \"d\"\ntable = \"b_{mmdd}\"", Rows;
    MappingTwin = "kind = \"serial_mapping\"\ntables = 2\ndatabase = \"d_{length}\"\ntable = \"m_{table}\"", Rows;
    DocumentsTwin = "kind = \"serial_documents\"\nindex = \"documents\"", Documents;
}

pub struct BirthdayServer(pub StoreSite);
pub struct MappingServer(pub StoreSite);

impl BirthdayServer {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::of(StoreSite::further(kind).await?).await)
    }

    async fn of(site: StoreSite) -> Self {
        let site = StoreSite { lanes: LANES, ..site };
        site.target("target-a").setup().await.unwrap();
        Self(site)
    }
}

impl Ground for BirthdayServer {
    type Store = MysqlLane;
    type Rows = MysqlRows;

    async fn start() -> Self {
        Self::of(StoreSite::new().await).await
    }

    fn projection(&self) -> Projection {
        self.0.projection()
    }

    fn rows(&self) -> MysqlRows {
        self.0.target("target-a").rows("birthday", 1).unwrap()
    }

    fn lane(&self, lane: u32) -> MysqlLane {
        self.0.target("target-a").lane(&lane_id("birthday", "target-a", lane)).unwrap()
    }
}

impl Ground for MappingServer {
    type Store = MysqlLane;
    type Rows = MysqlRows;

    async fn start() -> Self {
        let site = StoreSite { mapping_tables: 2, ..StoreSite::new().await };
        site.target("target-a").setup().await.unwrap();
        Self(site)
    }

    fn projection(&self) -> Projection {
        Projection::new(&self.0.config().projections[1])
    }

    fn rows(&self) -> MysqlRows {
        self.0.target("target-a").rows("serials", 1).unwrap()
    }

    /// The one lane of this ground.
    fn lane(&self, _: u32) -> MysqlLane {
        self.0.target("target-a").lane(&lane_id("serials", "target-a", 0)).unwrap()
    }
}

pub struct DocumentsServer(pub crate::search::SearchSite);

impl Ground for DocumentsServer {
    type Store = SearchLane;
    type Rows = SearchRows;

    async fn start() -> Self {
        Self(
            crate::search::SearchSite { lanes: LANES, ..crate::search::SearchSite::new().await }
                .ready()
                .await,
        )
    }

    fn projection(&self) -> Projection {
        self.0.target().lane(&crate::search::lane_id("source-a", 0)).unwrap().projection().clone()
    }

    fn rows(&self) -> SearchRows {
        self.0.target().rows("documents").unwrap()
    }

    fn lane(&self, lane: u32) -> SearchLane {
        self.0.target().lane(&crate::search::lane_id("source-a", lane)).unwrap()
    }
}
