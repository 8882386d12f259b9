//! Which payment documents belong together: the way up from a document, and everything below it.
//!
//! Sources are captured apart, so a child may be in the index before its parent, and a parent may never come: its table
//! was dropped. A document that is moved between tables, or doubled, is one document with several claims. Each loop
//! here is bounded, whatever the parents say: cycles are cut, levels and documents are counted.

use std::collections::HashSet;
use std::fmt;

use anabranch_schemas::flux::id::FluxId;

use crate::error::Fault;
use crate::ports::RelationStore;
use crate::records::RelationRow;

/// Levels above or below a document, at most. Real chains have three: recharge, refund, clearing.
pub const LEVELS_MAX: u32 = 16;
/// Rows below a document, at most: some megabytes. A recharge has fewer than ten documents.
pub const TREE_ROWS_MAX: usize = 10_000;

/// One document: all rows of its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelatedDocument {
    pub id: FluxId,
    /// At least one row, in the order of shards.
    pub claims: Vec<RelationRow>,
}

impl RelatedDocument {
    /// Joins the rows of each identifier, which follow one another.
    fn of(rows: Vec<RelationRow>) -> Vec<Self> {
        let mut documents: Vec<Self> = Vec::new();
        for row in rows {
            match documents.last_mut() {
                Some(last) if last.id == row.id => last.claims.push(row),
                _ => documents.push(Self { id: row.id, claims: vec![row] }),
            }
        }
        documents
    }

    /// Returns the parent's identifier as the first claim has it that names one.
    pub fn parent(&self) -> Option<&[u8]> {
        self.claims.iter().find_map(|claim| claim.parent.as_deref())
    }

    /// Returns the amount as the first claim has it that names one.
    pub fn amount(&self) -> Option<&[u8]> {
        self.claims.iter().find_map(|claim| claim.amount.as_deref())
    }

    /// Returns the time as the first claim has it that names one.
    pub fn created(&self) -> Option<&[u8]> {
        self.claims.iter().find_map(|claim| claim.created.as_deref())
    }

    /// Returns whether two claims differ in the parent.
    pub fn has_two_parents(&self) -> bool {
        self.claims.iter().any(|claim| claim.parent != self.claims[0].parent)
    }
}

/// The documents above another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayUp {
    /// Parent, parent's parent and so on.
    pub documents: Vec<RelatedDocument>,
    pub end: WayEnd,
}

/// The reason why a way up ends at its last document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WayEnd {
    /// The document follows nothing.
    Top,
    /// The index has no document of this identifier.
    MissingParent(FluxId),
    /// The parent is no identifier of this system.
    MalformedParent(Box<[u8]>),
    /// The parent is a document that the way has passed.
    Cycle(FluxId),
    /// The parent lies more than [`LEVELS_MAX`] levels above.
    TooManyLevels(FluxId),
}

impl WayEnd {
    /// Returns the reason in one word for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Top => "top",
            Self::MissingParent(_) => "missing_parent",
            Self::MalformedParent(_) => "malformed_parent",
            Self::Cycle(_) => "cycle",
            Self::TooManyLevels(_) => "too_many_levels",
        }
    }
}

/// Returns the document of an identifier; `None` when no source table has it.
pub async fn document(store: &impl RelationStore, id: &FluxId) -> Result<Option<RelatedDocument>, Fault> {
    let rows = store.documents(std::slice::from_ref(id)).await?;
    Ok(RelatedDocument::of(rows).into_iter().next())
}

/// Returns the way from a document up to the one that follows nothing.
pub async fn way_up(store: &impl RelationStore, document: &RelatedDocument) -> Result<WayUp, Fault> {
    let (mut documents, mut passed) = (Vec::<RelatedDocument>::new(), HashSet::from([document.id]));
    let end = loop {
        let last = documents.last().unwrap_or(document);
        let Some(named) = last.parent() else { break WayEnd::Top };
        let Ok(parent) = FluxId::parse_of(named, last.id.parts().system) else {
            break WayEnd::MalformedParent(named.into());
        };
        if !passed.insert(parent) {
            break WayEnd::Cycle(parent);
        }
        if documents.len() >= LEVELS_MAX as usize {
            break WayEnd::TooManyLevels(parent);
        }
        match self::document(store, &parent).await? {
            Some(document) => documents.push(document),
            None => break WayEnd::MissingParent(parent),
        }
    };
    Ok(WayUp { documents, end })
}

/// The end of a page: depth below the root, and identifier. Its text is `depth.id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCursor {
    pub depth: u32,
    pub id: FluxId,
}

impl PageCursor {
    fn is_before(&self, depth: u32, id: &FluxId) -> bool {
        (self.depth, self.id.digits()) < (depth, id.digits())
    }

    /// Reads the cursor of a page of documents of a system.
    pub fn parse_of(text: &str, system: u16) -> Option<Self> {
        let (depth, id) = text.split_once('.')?;
        let depth = depth.parse().ok().filter(|depth| (1..=LEVELS_MAX).contains(depth))?;
        Some(Self { depth, id: FluxId::parse_of(id.as_bytes(), system).ok()? })
    }
}

impl fmt::Display for PageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.depth, self.id)
    }
}

/// A document below another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentBelow {
    /// 1 = its parent is the root.
    pub depth: u32,
    pub document: RelatedDocument,
}

/// Some of the documents below a root, in the order of depth and identifier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageBelow {
    pub documents: Vec<DocumentBelow>,
    /// The end of this page; `None` = it is the last one.
    pub next: Option<PageCursor>,
    /// Documents are left out after this page, because the tree has more than [`TREE_ROWS_MAX`] rows or
    /// [`LEVELS_MAX`] levels.
    pub is_cut: bool,
}

/// Returns at most `limit` documents below `root` after a cursor, level by level. Of the levels before the page only
/// identifiers are kept. The root may be missing. A document that lies on several levels comes on the first of them.
pub async fn below(
    store: &impl RelationStore,
    root: &FluxId,
    after: Option<&PageCursor>,
    limit: usize,
) -> Result<PageBelow, Fault> {
    let (mut page, mut seen, mut parents) = (PageBelow::default(), HashSet::from([*root]), vec![*root]);
    let mut room = TREE_ROWS_MAX;
    for depth in 1..=LEVELS_MAX + 1 {
        // The level after the last one is only asked whether it has a document.
        let wanted = if depth > LEVELS_MAX { 0 } else { room };
        let mut rows = store.children(&parents, wanted + 1).await?;
        page.is_cut = rows.len() > wanted;
        rows.truncate(wanted);
        room -= rows.len();
        parents.clear();
        for document in RelatedDocument::of(rows) {
            if !seen.insert(document.id) {
                continue;
            }
            parents.push(document.id);
            if after.is_some_and(|after| !after.is_before(depth, &document.id)) {
                continue;
            }
            if page.documents.len() == limit {
                let last = page.documents.last();
                page.next = last.map(|last| PageCursor { depth: last.depth, id: last.document.id });
                page.is_cut = false;
                return Ok(page);
            }
            page.documents.push(DocumentBelow { depth, document });
        }
        if page.is_cut || parents.is_empty() {
            break;
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests;
