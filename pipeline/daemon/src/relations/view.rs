//! The answers about payment documents, as JSON shows them.

use anabranch_pipeline::records::{FluxPlaces, RelationRow};
use anabranch_pipeline::relations::{PageBelow, RelatedDocument, WayEnd, WayUp};
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::flux::id::{FluxId, Parts, Region};
use anabranch_schemas::flux::placement::Kind;
use serde::Serialize;
use serde_json::Value as Json;

use crate::change_view::bytes_json;
use crate::lookup::LaneFreshness;

/// One document with its way up. Without claims no source table has it.
#[derive(Debug, Serialize)]
pub struct DocumentAnswer {
    #[serde(flatten)]
    pub document: DocumentView,
    pub parts: PartsView,
    /// The rule by which the identifier names its table: `month`, or `year` if it has a year digit.
    pub strategy: &'static str,
    /// The year digit; `None` = the identifier has none.
    pub year: Option<u8>,
    /// The tables that have the document; several while it is being moved, or when it is doubled.
    pub claims: Vec<ClaimView>,
    /// Parent, parent's parent and so on.
    pub above: Vec<DocumentView>,
    /// The reason why `above` ends there; `None` = no source table has the document.
    pub above_end: Option<EndView>,
    /// Differences between the document and its place, its parent or its other claims.
    pub odd: OddTexts,
    pub freshness: LaneFreshness,
}

/// A document without its claims. Where they differ, each value is that of the first claim that has one.
#[derive(Debug, Serialize)]
pub struct DocumentView {
    pub id: String,
    /// The kind, by the business code and the level; `None` = the configuration names none.
    pub kind: Option<&'static str>,
    pub parent: Option<Json>,
    pub amount: Option<Json>,
    pub created: Option<Json>,
}

/// The parts of an identifier: digits as text, and words where each digit has a meaning.
#[derive(Debug, Serialize)]
pub struct PartsView {
    pub date: String,
    pub version: String,
    pub region: &'static str,
    pub system: String,
    pub level: &'static str,
    pub business: String,
    pub side: &'static str,
    /// 00 for January to 11 for December, or 99.
    pub month: String,
    pub partition: String,
    pub reserved: String,
    pub sequence: String,
}

/// A claim: the table says that the document exists.
#[derive(Debug, Serialize)]
pub struct ClaimView {
    pub shard: String,
    /// `source`, `database` and `table` are `None` while the source that has the table was not asked yet.
    pub source: Option<String>,
    pub database: Option<String>,
    pub table: Option<String>,
    pub parent: Option<Json>,
    pub amount: Option<Json>,
    pub created: Option<Json>,
}

/// The reason why a way up ends.
#[derive(Debug, Serialize)]
pub struct EndView {
    pub reason: &'static str,
    /// The parent that the last document names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Json>,
}

/// Texts of differences, each once.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct OddTexts(pub Vec<String>);

/// A page of the documents below another one.
#[derive(Debug, Serialize)]
pub struct RelationsAnswer {
    pub id: String,
    /// Documents in the order of depth and identifier.
    pub documents: Vec<BelowView>,
    /// Documents are left out after this page, because there are too many of them or too many levels.
    pub is_cut: bool,
    pub freshness: LaneFreshness,
    /// Value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// A document below another one.
#[derive(Debug, Serialize)]
pub struct BelowView {
    /// 1 = it follows the document of the question.
    pub depth: u32,
    #[serde(flatten)]
    pub document: DocumentView,
}

impl DocumentAnswer {
    /// Returns the answer with unnamed tables.
    pub(super) fn new(
        id: &FluxId,
        document: Option<&RelatedDocument>,
        way: Option<WayUp>,
        places: &FluxPlaces,
        freshness: LaneFreshness,
    ) -> Self {
        let (above, end) = way.map(|way| (way.documents, way.end)).unzip();
        let mut odd = OddTexts::default();
        if document.is_some_and(RelatedDocument::has_two_parents) {
            odd.push("its tables name different parents".to_owned());
        }
        if let Some(WayEnd::Cycle(parent)) = &end {
            odd.push(format!("the way up comes to {parent} twice"));
        }
        let strategy = places.strategy(id);
        Self {
            document: DocumentView::new(id, document, places),
            parts: PartsView::from(id.parts()),
            strategy: strategy.name(),
            year: strategy.year(),
            claims: document.iter().flat_map(|document| &document.claims).map(ClaimView::from).collect(),
            above: above.iter().flatten().map(|document| DocumentView::of(document, places)).collect(),
            above_end: end.as_ref().map(EndView::from),
            odd,
            freshness,
        }
    }
}

impl OddTexts {
    /// Adds the differences between a claim and its place.
    pub(super) fn add(&mut self, places: &FluxPlaces, table: &TableIdentity<'_>, claim: &RelationRow) {
        let parent = claim.parent.as_deref().map(|parent| FluxId::parse_of(parent, places.system()));
        if let Some(Err(defect)) = &parent {
            self.push(format!("its parent is no identifier: {defect}"));
        }
        let parent = parent.and_then(Result::ok);
        let oddities = places.oddities(table, &claim.id, parent.as_ref());
        oddities.iter().for_each(|oddity| self.push(oddity.to_string()));
    }

    fn push(&mut self, text: String) {
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

impl DocumentView {
    fn of(document: &RelatedDocument, places: &FluxPlaces) -> Self {
        Self::new(&document.id, Some(document), places)
    }

    fn new(id: &FluxId, document: Option<&RelatedDocument>, places: &FluxPlaces) -> Self {
        Self {
            id: id.to_string(),
            kind: places.kind(id).map(Kind::name),
            parent: document.and_then(RelatedDocument::parent).map(bytes_json),
            amount: document.and_then(RelatedDocument::amount).map(bytes_json),
            created: document.and_then(RelatedDocument::created).map(bytes_json),
        }
    }
}

impl From<&Parts> for PartsView {
    fn from(parts: &Parts) -> Self {
        Self {
            date: parts.date.to_string(),
            version: parts.version.to_string(),
            region: match parts.region {
                Region::UnitedStates => "us",
                Region::Singapore => "singapore",
            },
            system: format!("{:03}", parts.system),
            level: parts.level.name(),
            business: format!("{:02}", parts.business),
            side: parts.side.name(),
            month: format!("{:02}", parts.month.digits()),
            partition: format!("{:02}", parts.partition),
            reserved: format!("{:02}", parts.reserved),
            sequence: format!("{:08}", parts.sequence),
        }
    }
}

impl From<&RelationRow> for ClaimView {
    fn from(row: &RelationRow) -> Self {
        Self {
            shard: row.shard.to_string(),
            source: None,
            database: None,
            table: None,
            parent: row.parent.as_deref().map(bytes_json),
            amount: row.amount.as_deref().map(bytes_json),
            created: row.created.as_deref().map(bytes_json),
        }
    }
}

impl ClaimView {
    pub(super) fn name(&mut self, source: String, table: &TableIdentity<'_>) {
        self.source = Some(source);
        self.database = Some(table.database.to_string());
        self.table = Some(table.table.to_string());
    }
}

impl From<&WayEnd> for EndView {
    fn from(end: &WayEnd) -> Self {
        let parent = match end {
            WayEnd::Top => None,
            WayEnd::MissingParent(parent) | WayEnd::Cycle(parent) | WayEnd::TooManyLevels(parent) => {
                Some(Json::String(parent.to_string()))
            }
            WayEnd::MalformedParent(parent) => Some(bytes_json(parent)),
        };
        Self { reason: end.name(), parent }
    }
}

impl RelationsAnswer {
    pub(super) fn new(id: &FluxId, page: PageBelow, places: &FluxPlaces, freshness: LaneFreshness) -> Self {
        let documents = page.documents.iter().map(|below| BelowView {
            depth: below.depth,
            document: DocumentView::of(&below.document, places),
        });
        Self {
            id: id.to_string(),
            documents: documents.collect(),
            is_cut: page.is_cut,
            freshness,
            next: page.next.map(|next| next.to_string()),
        }
    }
}
