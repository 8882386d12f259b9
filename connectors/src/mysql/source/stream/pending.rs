//! A rows event of a captured table on its way into batches or chunks: it may need more than one.
//!
//! Only this file makes rows events into changes. An update without effect ends here, before it is encoded. An update
//! that moves its row in the key by which chunks are read becomes a delete and an insert: a lane skips values that an
//! update keeps, and a row that left the part that a chunk reads is in no chunk. A row that a retention job deletes
//! passes to the heir of its table, which is retired (`server/heirs.rs`).

use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::Lsn;
use mysql_async::binlog::events::Event;

use super::maps::{MappedTable, Problem};
use crate::mysql::source::decode::rows::{Effect, Kind, RowsEvent, Update};
use crate::mysql::source::decode::wire::{Malformed, Reader};

/// Bytes of an event besides its body: a generous guess.
const OVERHEAD_BYTES: usize = 512;

/// The bytes of a rows event, as they came or inflated.
#[derive(Debug)]
pub enum RowsBody {
    Event(Box<Event>),
    Inflated(Vec<u8>),
}

impl RowsBody {
    /// Puts the inflated rows after the uncompressed frame of a compressed event.
    pub fn inflated(
        body: &[u8],
        kind: Kind,
        inflate: impl FnOnce(&[u8]) -> Result<Vec<u8>, Malformed>,
    ) -> Result<Self, Malformed> {
        let images = RowsEvent::read(body, kind, false)?.images;
        let mut whole = body[..body.len() - images.len()].to_vec();
        whole.append(&mut inflate(images)?);
        Ok(Self::Inflated(whole))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Event(event) => event.data(),
            Self::Inflated(bytes) => bytes,
        }
    }
}

/// A rows event with rows left.
#[derive(Debug)]
pub struct PendingRows {
    table: Arc<MappedTable>,
    kind: Kind,
    has_extra_data: bool,
    body: RowsBody,
    /// Bytes of row images already read.
    consumed: usize,
    lsn: Lsn,
    /// The shard to which deleted rows pass; `None` = they are deletions.
    heir: Option<TableIdentity<'static>>,
}

impl PendingRows {
    /// Checks the frame: it has as many columns as the table map, and row images have every captured one.
    pub fn new(
        table: Arc<MappedTable>,
        kind: Kind,
        has_extra_data: bool,
        body: RowsBody,
        lsn: Lsn,
    ) -> Result<Self, Problem> {
        let plan = table.plan().map_err(Problem::Stop)?;
        let event = RowsEvent::read(body.bytes(), kind, has_extra_data)?;
        if event.columns != plan.columns() {
            return Err(Malformed("rows with another number of columns than their table").into());
        }
        if [event.before, event.after].into_iter().flatten().any(|present| !plan.is_covered_by(present)) {
            return Err(Problem::Stop(
                Fault::new(Code::SourceImageNotFull, table.name(), "rows without a captured column")
                    .needs("binlog_row_image = FULL in every session, and on MariaDB 11 no captured generated column")
                    .remedy("SET GLOBAL binlog_row_image = FULL"),
            ));
        }
        Ok(Self { table, kind, has_extra_data, body, consumed: 0, lsn, heir: None })
    }

    /// Lets the deleted rows pass to a shard of their own, instead of ending.
    #[must_use]
    pub fn with_heir(self, heir: Option<TableIdentity<'static>>) -> Self {
        Self { heir, ..self }
    }

    /// Returns about how many bytes it holds in memory.
    pub fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.body.bytes().len()
    }

    pub fn table(&self) -> &TableIdentity<'static> {
        &self.table.table.identity
    }

    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Adds rows until the batch is full; returns whether no row is left.
    pub fn drain(&mut self, batch: &mut BatchBuilder) -> Result<bool, Problem> {
        let plan = self.table.plan().map_err(Problem::Stop)?;
        let event = RowsEvent::read(self.body.bytes(), self.kind, self.has_extra_data)?;
        let mut reader = Reader::new(event.images);
        reader.take(self.consumed)?;
        let (mut row, mut update) = (Vec::new(), Update::default());
        let identity = &self.table.table.identity;
        let mut is_first = self.consumed == 0;
        while !reader.is_empty() && !batch.is_full() {
            let length = reader.rest().len();
            let effect = match (event.before, event.after) {
                (Some(before), Some(after)) => plan.read_update(&mut reader, [before, after], &mut update)?,
                (Some(present), None) | (None, Some(present)) => {
                    plan.read_row(&mut reader, present, &mut row)?;
                    Effect::Moves
                }
                (None, None) => return Err(Malformed("rows without an image").into()),
            };
            if reader.rest().len() == length {
                return Err(Malformed("a row without bytes").into());
            }
            match self.kind {
                Kind::Insert => batch.insert(self.lsn, identity, &row),
                Kind::Delete => {
                    batch.delete(self.lsn, identity, &row);
                    if let Some(heir) = &self.heir {
                        // The record comes before the rows: they never stand as rows of an unknown shard.
                        if std::mem::take(&mut is_first) {
                            batch.retire(self.lsn, heir);
                        }
                        batch.insert(self.lsn, heir, &row);
                    }
                }
                Kind::Update => match effect {
                    Effect::Nothing => batch.pass_unchanged(1),
                    Effect::Rewrites => batch.update(self.lsn, identity, &update.before, &update.after),
                    Effect::Moves => {
                        batch.delete(self.lsn, identity, &update.before);
                        batch.insert(self.lsn, identity, &update.after);
                    }
                },
            }
        }
        self.consumed = event.images.len() - reader.rest().len();
        Ok(reader.is_empty())
    }
}
