//! The newest change of a key in the log.
//!
//! A stream has no index by key, so the search reads blocks of messages from the end of each stream backwards, until a
//! block has a change of the key, or its time or its number of messages is used up. The answer says how far it came.
//! The withdrawal of a whole table names no keys, so it is not found.

use std::collections::BTreeSet;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LogMessage, LogReader as _};
use anabranch_pipeline::projections::key_of;
use anabranch_pipeline::records::Cell;
use anabranch_schemas::change::{Action, Change, Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::serial::{self, CodeKind, StoredCode};
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::question::TracedEntity;
use super::view::{ChangeView, SearchedView, UnreadView};
use crate::wiring::{Log, TailFrom};

/// Messages at the end of a stream that are searched, at most.
const MESSAGES_MAX: u64 = 20_000;
/// Messages of the first block; each further block is four times as large.
const BLOCK_MESSAGES: u64 = 500;
const BLOCK_GROWTH: u64 = 4;

/// The rows whose changes are searched for.
pub(super) struct WantedRows {
    pub(super) entity: Entity,
    pub(super) keys: BTreeSet<Cell>,
    /// Devices with one of these codes are searched for too.
    pub(super) codes: Vec<StoredCode>,
}

/// A change of a wanted row.
pub(super) struct FoundChange {
    pub(super) key: Cell,
    pub(super) view: ChangeView,
}

/// The newest change in all streams, and how far they were searched.
pub(super) struct LogSearch {
    pub(super) change: Option<FoundChange>,
    pub(super) searched: SearchedView,
}

/// The search of one stream.
#[derive(Default)]
struct StreamSearch {
    change: Option<FoundChange>,
    messages: u64,
    /// Every message that may hold a later change was read.
    is_whole: bool,
    unread: Option<String>,
}

/// Searches the streams of all traced sources at the same time.
pub(super) async fn search(traced: &TracedEntity<'_>, wanted: &WantedRows, until: Instant) -> LogSearch {
    let streams: Vec<_> =
        traced.sources.iter().map(|source| of_source(traced, source, wanted, until)).collect();
    let searches = join_all(streams).await;
    let mut searched = SearchedView { is_whole: true, ..SearchedView::default() };
    let mut newest: Option<FoundChange> = None;
    for (source, search) in traced.sources.iter().zip(searches) {
        searched.messages += search.messages;
        searched.is_whole &= search.is_whole;
        let unread = search.unread.map(|why| UnreadView { source: (*source).to_owned(), why });
        searched.unread.extend(unread);
        let time = |change: &FoundChange| change.view.committed_at_us;
        newest = match (newest, search.change) {
            (Some(known), Some(found)) if time(&known) >= time(&found) => Some(known),
            (known, found) => found.or(known),
        };
    }
    LogSearch { change: newest, searched }
}

async fn of_source(
    traced: &TracedEntity<'_>,
    source: &str,
    wanted: &WantedRows,
    until: Instant,
) -> StreamSearch {
    let mut search = StreamSearch::default();
    let work = async {
        let log = traced.wiring.log().await?;
        backwards(log, source, wanted, &mut search).await
    };
    let ended = timeout_at(until, work).await;
    // After the time the search has what it found, and is not whole.
    if let Ok(Err(fault)) = ended {
        search.unread = Some(fault.to_string());
    }
    search
}

/// Searches blocks from the end of a stream on, until one has a change of a wanted row.
async fn backwards(
    log: &Log,
    source: &str,
    wanted: &WantedRows,
    search: &mut StreamSearch,
) -> Result<(), Fault> {
    let state = log.stream_state(source).await?;
    let (first, mut end) = (state.first_sequence, state.last_sequence);
    if state.messages == 0 {
        search.is_whole = true;
        return Ok(());
    }
    let oldest = first.max((end + 1).saturating_sub(MESSAGES_MAX));
    let mut block = BLOCK_MESSAGES;
    loop {
        let begin = (end + 1).saturating_sub(block).max(oldest);
        read_block(log, source, (begin, end), wanted, search).await?;
        if search.change.is_some() || begin <= first {
            search.is_whole = true;
            return Ok(());
        }
        if begin <= oldest {
            return Ok(());
        }
        end = begin - 1;
        block *= BLOCK_GROWTH;
    }
}

/// Reads the messages from `begin` to `end`; the last change of a wanted row stays.
async fn read_block(
    log: &Log,
    source: &str,
    (begin, end): (u64, u64),
    wanted: &WantedRows,
    search: &mut StreamSearch,
) -> Result<(), Fault> {
    let mut reader = log.tail(source, TailFrom::Sequence(begin)).await?;
    loop {
        let message = reader.next().await?;
        let sequence = message.entry.sequence;
        // Retention may have removed messages meanwhile.
        if sequence <= end {
            search.messages += 1;
            let found = wanted.last_in(source, &message)?;
            search.change = found.or(search.change.take());
        }
        if sequence >= end {
            return Ok(());
        }
    }
}

impl WantedRows {
    /// Returns the last change of a wanted row in a message.
    fn last_in(&self, source: &str, message: &LogMessage) -> Result<Option<FoundChange>, Fault> {
        let sequence = message.entry.sequence;
        let corrupt = |error| {
            let subject = format!("source {source} message {sequence}");
            Fault::new(Code::LogMessageCorrupt, subject, "its payload cannot be read").caused_by(error)
        };
        let mut found = None;
        // A position message has no payload.
        if message.entry.envelope.changes == 0 {
            return Ok(found);
        }
        let mut changes = codec::decode(&message.payload).map_err(corrupt)?;
        while let Some(change) = changes.next().map_err(corrupt)? {
            if let Some(key) = self.key_in(&change) {
                let table = change.table;
                let view = ChangeView {
                    source: source.to_owned(),
                    table: format!("{}.{}", table.database, table.table),
                    kind: kind(&change.action),
                    position: change.lsn.to_string(),
                    sequence,
                    committed_at_us: message.entry.envelope.committed_at_us,
                };
                found = Some(FoundChange { key, view });
            }
        }
        Ok(found)
    }

    /// Returns the key of the changed row, if it is wanted; the key after the change before that of before.
    fn key_in(&self, change: &Change<'_, '_>) -> Option<Cell> {
        if change.table.entity != self.entity {
            return None;
        }
        let (before, after) = change.action.images()?;
        [after, before].into_iter().flatten().find_map(|row| {
            let key = key_of(self.entity, row)?;
            (self.keys.contains(&key) || self.has_code(row)).then_some(key)
        })
    }

    fn has_code(&self, row: &[Value<'_>]) -> bool {
        let is_wanted = |kind: CodeKind| {
            let code = row.get(usize::from(kind.number())).and_then(serial::text);
            let stored = code.and_then(|code| StoredCode::new(kind, &code));
            stored.is_some_and(|stored| self.codes.contains(&stored))
        };
        !self.codes.is_empty() && CodeKind::ALL.into_iter().any(is_wanted)
    }
}

fn kind(action: &Action<'_>) -> &'static str {
    match action {
        Action::Insert { .. } => "insert",
        Action::Update { .. } => "update",
        // An action on a whole table has no key.
        _ => "delete",
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_pipeline::ports::LogEntry;
    use anabranch_schemas::change::TableIdentity;
    use anabranch_schemas::codec::Encoder;
    use anabranch_schemas::envelope::Envelope;
    use anabranch_schemas::lsn::Lsn;
    use anabranch_schemas::shard::ShardId;

    use super::*;

    fn device(uuid: u64, imei: &'static str) -> Vec<Value<'static>> {
        vec![Value::UInt(uuid), Value::Bytes(imei.as_bytes().into())]
    }

    fn message() -> LogMessage {
        let table = TableIdentity {
            entity: Entity::SerialCode,
            shard: ShardId::of("a", "d", "t", 0),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        };
        let at = |offset| Lsn::new(1, 4, offset).unwrap();
        let mut encoder = Encoder::default();
        encoder.insert(at(16), &table, &device(10, "490154203237518"));
        encoder.update(at(32), &table, &device(20, "1"), &device(20, "2"));
        encoder.delete(at(48), &table, &device(10, "490154203237518"));
        encoder.insert(at(64), &table, &device(30, "3"));
        let envelope = Envelope { changes: 4, committed_at_us: 7, ..Envelope::default() };
        let entry = LogEntry { sequence: 9, id: "1-1".to_owned(), envelope };
        LogMessage { entry, payload: encoder.finish(), stored_at_us: 0, has_next: false }
    }

    fn found(keys: &[&str], code: Option<&str>) -> Option<(&'static str, String)> {
        let wanted = WantedRows {
            entity: Entity::SerialCode,
            keys: keys.iter().map(|key| Cell::Bytes(key.as_bytes().into())).collect(),
            codes: code.and_then(|code| StoredCode::exact(code.as_bytes())).into_iter().collect(),
        };
        let change = wanted.last_in("a", &message()).unwrap()?;
        assert_eq!((change.view.sequence, change.view.table.as_str()), (9, "d.t"));
        Some((change.view.kind, change.view.position))
    }

    #[test]
    fn the_last_change_of_a_key_or_of_a_code_is_found_in_a_message() {
        let at = |kind, position: &str| Some((kind, position.to_owned()));
        assert_eq!(found(&["10"], None), at("delete", "1:4:48"));
        assert_eq!(found(&["20"], None), at("update", "1:4:32"));
        assert_eq!(found(&[], Some("490154203237518")), at("delete", "1:4:48"));
        assert_eq!(found(&[], Some("1")), at("update", "1:4:32"));
        assert_eq!(found(&["40"], Some("40")), None);
    }
}
