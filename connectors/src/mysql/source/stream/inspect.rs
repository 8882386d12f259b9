//! Streams without a server, and single rows events decoded without a stream: for tests.

use anabranch_pipeline::config::{EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Row;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn, ResumePoint};
use mysql_async::binlog::events::Event;

use super::beginning::StreamStart;
use super::transport::Events;
use super::{MysqlStream, Server};
use crate::mysql::source::decode::compressed;
use crate::mysql::source::decode::events::{self, Class};
use crate::mysql::source::decode::gtid::{Flavor, Gtids};
use crate::mysql::source::decode::position::{FILE_START, Position};
use crate::mysql::source::decode::rows::{Plan, RowsEvent};
use crate::mysql::source::decode::table_map::TableMap;
use crate::mysql::source::decode::wire::{Malformed, Reader};
use crate::mysql::source::server::tables::CapturedTables;

/// Collations of the MariaDB server that made the recordings.
const COLLATIONS: [(u64, &str); 4] = [(8, "latin1"), (45, "utf8mb4"), (63, "binary"), (224, "utf8mb4")];

/// Recorded events; after the last one the connection breaks.
#[derive(Debug)]
pub struct Recording<I>(I);

impl<I: Iterator<Item = Event> + Send> Events for Recording<I> {
    async fn next(&mut self) -> Result<Event, Fault> {
        let broken = || Fault::new(Code::SourceUnreachable, "recording", "it has ended");
        self.0.next().ok_or_else(broken)
    }

    fn next_now(&mut self) -> Option<Result<Event, Fault>> {
        self.0.next().map(Ok)
    }
}

/// Opens a stream of events as a MariaDB server sends them from the start of this file. With `first_group` it sends
/// them after a GTID set, and the first group begins at that offset.
pub fn recorded<I: Iterator<Item = Event> + Send>(
    file: &str,
    first_group: Option<u64>,
    events: impl IntoIterator<IntoIter = I>,
    config: &SourceConfig,
    entities: &[EntityConfig],
) -> MysqlStream<Recording<I>> {
    let position = Position::new(FIRST_EPOCH, file.to_owned(), FILE_START);
    let beginning = StreamStart {
        position: position.expect("the name of a binlog file"),
        gtids: None,
        sent: Lsn::ZERO,
        partial: None,
        is_by_gtid: first_group.is_some(),
        start_position: first_group.map(|position| (file.to_owned(), position)),
        follows: None,
    };
    open_stream(beginning, events.into_iter(), config, entities)
}

/// Opens a stream that resumes: events as a MariaDB server sends them from the resume point. Those not above `sent`
/// were read before.
pub fn resumed<I: Iterator<Item = Event> + Send>(
    resume: &ResumePoint,
    sent: Lsn,
    events: impl IntoIterator<IntoIter = I>,
    config: &SourceConfig,
    entities: &[EntityConfig],
) -> MysqlStream<Recording<I>> {
    let position = Position::new(FIRST_EPOCH, resume.file.clone(), resume.position);
    let beginning = StreamStart {
        position: position.expect("the name of a binlog file"),
        gtids: Gtids::parse(Flavor::MariaDb, &resume.gtid_set),
        sent,
        partial: resume.partial.clone(),
        is_by_gtid: false,
        start_position: None,
        follows: None,
    };
    open_stream(beginning, events.into_iter(), config, entities)
}

fn open_stream<I: Iterator<Item = Event> + Send>(
    beginning: StreamStart,
    events: I,
    config: &SourceConfig,
    entities: &[EntityConfig],
) -> MysqlStream<Recording<I>> {
    let server = Server {
        identity: ServerIdentity { flavor: Flavor::MariaDb.as_str().to_owned(), id: "1".to_owned() },
        flavor: Flavor::MariaDb,
        has_lower_case_names: false,
        collations: COLLATIONS.map(|(id, name)| (id, name.to_owned())).into_iter().collect(),
    };
    let tables = CapturedTables::new(config, entities);
    MysqlStream::new(Recording(events), config, server, tables, beginning)
}

/// The images of one changed row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowImages {
    pub before: Option<Row<'static>>,
    pub after: Option<Row<'static>>,
}

/// Returns the column names of a TABLE_MAP event (`binlog_row_metadata=FULL`).
pub fn column_names(table_map: &[u8]) -> Result<Vec<String>, Malformed> {
    let columns = TableMap::read(table_map)?.columns(Flavor::MariaDb)?;
    let names = columns.iter().map(|column| {
        let name = column.name.ok_or(Malformed("no column names"))?;
        Ok(String::from_utf8_lossy(name).into_owned())
    });
    names.collect()
}

/// Decodes these columns, in this order, of all rows of an event (bodies without header and checksum), by the code that
/// captures.
pub fn decode_rows(
    table_map: &[u8],
    event_type: u8,
    body: &[u8],
    columns: &[String],
) -> Result<Vec<RowImages>, Malformed> {
    let Class::Rows { kind, has_extra_data, is_compressed } = events::classify(event_type) else {
        return Err(Malformed("not a rows event"));
    };
    let map = TableMap::read(table_map)?.columns(Flavor::MariaDb)?;
    let plan = Plan::new(&map, columns).map_err(|_| Malformed("a column is missing or cannot be decoded"))?;
    let event = RowsEvent::read(body, kind, has_extra_data)?;
    if event.columns != plan.columns() {
        return Err(Malformed("rows with another number of columns than their table"));
    }
    let inflated = if is_compressed { Some(compressed::inflate(event.images)?) } else { None };
    let mut reader = Reader::new(inflated.as_deref().unwrap_or(event.images));
    let mut rows = Vec::new();
    while !reader.is_empty() {
        let length = reader.rest().len();
        let mut image = |present: Option<&[u8]>| -> Result<Option<Row<'static>>, Malformed> {
            let Some(present) = present else { return Ok(None) };
            let mut row = Vec::new();
            plan.read_row(&mut reader, present, &mut row)?;
            Ok(Some(row.into_iter().map(|value| value.into_owned()).collect()))
        };
        let images = RowImages { before: image(event.before)?, after: image(event.after)? };
        if reader.rest().len() == length {
            return Err(Malformed("a row without bytes"));
        }
        rows.push(images);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mysql::source::decode::table_map::tests::sample;

    /// Two updates of the sample table, as MariaDB writes them.
    fn update() -> Vec<u8> {
        let mut body = vec![7, 0, 0, 0, 0, 0, 1, 0, 2, 0b11, 0b11];
        for id in [5, 6] {
            body.extend([0b00, id, 0, 0, 0, 0x5d, 0xd0, 0x0f]);
            body.extend([0b10, id, 0, 0, 0]);
        }
        body
    }

    fn names() -> Vec<String> {
        vec!["id".to_owned(), "birthday".to_owned()]
    }

    #[test]
    fn both_images_of_each_row_are_decoded() {
        let rows = decode_rows(&sample(), 24, &update(), &names()).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(column_names(&sample()).unwrap(), names());
    }

    #[test]
    fn every_cut_of_an_event_is_refused() {
        let body = update();
        for length in 0..body.len() {
            let result = decode_rows(&sample(), 24, &body[..length], &names());
            // A cut between two rows leaves a whole event; so does a cut before the first.
            let between_rows = length == 11 || length == 24;
            assert_eq!(result.is_ok(), between_rows, "cut at {length}: {result:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn damaged_events_are_read_or_refused_without_panic(
            map_damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            body_damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            map_cut in any::<prop::sample::Index>(),
            body_cut in any::<prop::sample::Index>(),
            cuts: bool,
            event_type in prop_oneof![23..=25u8, 30..=32u8, 166..=168u8],
        ) {
            let (mut map, mut body) = (sample(), update());
            for (bytes, damage) in [(&mut map, map_damage), (&mut body, body_damage)] {
                for (index, value) in damage {
                    let at = index.index(bytes.len());
                    bytes[at] = value;
                }
            }
            if cuts {
                map.truncate(map_cut.index(map.len()));
                body.truncate(body_cut.index(body.len()));
            }
            let _ = decode_rows(&map, event_type, &body, &names());
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_panic(map: Vec<u8>, body: Vec<u8>, event_type: u8) {
            let _ = column_names(&map);
            let _ = decode_rows(&map, event_type, &body, &names());
            let _ = decode_rows(&sample(), event_type, &body, &names());
        }
    }
}
