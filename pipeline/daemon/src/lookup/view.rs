//! The answer to a lookup, as JSON shows it.

use anabranch_pipeline::records::DeviceClaim;
use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::shard::ShardId;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::question::{Cursor, LookupQuestion};
use crate::change_view::bytes_json;
use crate::observe::StatusView;

/// Devices that have a code.
#[derive(Debug, Serialize)]
pub struct LookupAnswer {
    pub code: Json,
    pub devices: Vec<DeviceView>,
    pub from: AnswerOrigin,
    pub freshness: Freshness,
    /// Value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// Origin of the claims of an answer, or of their absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerOrigin {
    Cache,
    Mapping,
    /// Cache and mapping tables: one answered for the code as it is written, the other for it as a MEID in capitals.
    CacheAndMapping,
    /// One of the others, and then compared with the inventory's rows.
    Inventory,
}

impl AnswerOrigin {
    /// Returns the origin in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Mapping => "mapping",
            Self::CacheAndMapping => "cache and mapping",
            Self::Inventory => "inventory",
        }
    }
}

/// Age that the rows of one projection's lanes may have.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LaneFreshness {
    /// Lag of the slowest lane; `None` = not known.
    pub lag_ms: Option<u64>,
    /// A lane applies its past once more: rows of the meantime may be missing.
    pub replaying: bool,
}

/// Age that an answer may have.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Freshness {
    #[serde(flatten)]
    pub lanes: LaneFreshness,
    pub cache_bypassed: Option<String>,
    /// Lag of the cache after the mapping tables, at most; `None` = no claim is from the cache.
    pub cache_delay_ms: Option<u64>,
}

/// One device: all claims of a uuid on this page.
#[derive(Debug, Serialize)]
pub struct DeviceView {
    #[serde(serialize_with = "text_or_base64")]
    pub uuid: Box<[u8]>,
    pub claims: Vec<ClaimView>,
}

/// A claim: the table says that the device has the code.
#[derive(Debug, Serialize)]
pub struct ClaimView {
    pub kind: &'static str,
    #[serde(skip)]
    pub code_kind: CodeKind,
    #[serde(serialize_with = "as_text")]
    pub shard: ShardId,
    /// `source`, `database` and `table` are `None` while the source that has the table was not asked yet.
    pub source: Option<String>,
    pub database: Option<String>,
    pub table: Option<String>,
    /// Whether the inventory row has the code now; left out when it was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<Json>,
}

impl LookupAnswer {
    pub(super) fn new(
        question: &LookupQuestion,
        claims: Vec<DeviceClaim>,
        from: AnswerOrigin,
        freshness: Freshness,
        next: Option<&Cursor>,
    ) -> Self {
        let mut devices: Vec<DeviceView> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for DeviceClaim { shard, uuid, kind } in claims {
            let place = *places.entry(uuid.clone()).or_insert_with(|| {
                devices.push(DeviceView { uuid, claims: Vec::new() });
                devices.len() - 1
            });
            devices[place].claims.push(ClaimView {
                kind: kind.name(),
                code_kind: kind,
                shard,
                source: None,
                database: None,
                table: None,
                confirmed: None,
                row: None,
            });
        }
        Self { code: bytes_json(&question.code), devices, from, freshness, next: next.map(Cursor::to_string) }
    }

    pub(super) fn claims_mut(&mut self) -> impl Iterator<Item = &mut ClaimView> {
        self.devices.iter_mut().flat_map(|device| &mut device.claims)
    }
}

impl DeviceView {
    /// Returns whether several tables claim the device: it is being moved, or was.
    pub(super) fn is_disputed(&self) -> bool {
        self.claims.iter().any(|claim| claim.shard != self.claims[0].shard)
    }
}

impl LaneFreshness {
    /// Returns the freshness by the state of the projection's lanes.
    pub fn of(projection: &str, status: &StatusView) -> Self {
        let lanes = || status.lanes.iter().filter(|lane| lane.projection == projection);
        let lags: Option<Vec<f64>> = lanes().map(|lane| lane.lag_seconds).collect();
        let slowest = lags.filter(|lags| !lags.is_empty()).map(|lags| lags.into_iter().fold(0.0, f64::max));
        Self {
            lag_ms: slowest.map(|seconds| (seconds * 1000.0) as u64),
            replaying: lanes().any(|lane| lane.state == "replaying"),
        }
    }
}

fn text_or_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    bytes_json(bytes).serialize(serializer)
}

fn as_text<S: Serializer>(shard: &ShardId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(shard)
}
