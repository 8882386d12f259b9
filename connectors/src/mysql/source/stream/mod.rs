//! An open reading of one binlog: events become changes in a batch, in commit order.
//!
//! In reading order: `transport.rs` brings events, and this file takes them. `maps.rs`, with `alteration.rs`, knows the
//! tables that they are about; `pending.rs` makes rows into changes, `withheld.rs` keeps them until their group
//! (`group.rs`) has ended, and `xa.rs` keeps those of branches. Where groups begin and end is in `outcome.rs`, what
//! statements do in `statement.rs`. `reread.rs` has tables read again; `unseen.rs` and `last_warning.rs` warn.
//! `entry.rs` and `resume.rs` decide on a `beginning.rs`, and `follows.rs` whether a reading may go on after another
//! server's. `locate.rs` finds places of the past, and `inspect.rs` reads recordings, for tests.
//!
//! The only places that wait are those of the transport, and what was taken from it is kept in the reading until its
//! last row is in a batch, so a cancelled call loses nothing. Captured rows are withheld until their group has ended;
//! then they are released, and go on in the next batch when one is full. Bytes are read by `decode/`, questions are
//! asked by `server/`, and what happens to a batch is not known here.

mod alteration;
mod beginning;
mod entry;
mod follows;
mod group;
pub mod inspect;
mod last_warning;
mod locate;
mod maps;
mod outcome;
mod pending;
mod reread;
mod resume;
mod statement;
pub(super) mod transport;
mod unseen;
mod withheld;
mod xa;

use std::sync::Arc;

use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ChangeSource, Filled};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use mysql_async::binlog::events::{BinlogEventHeader, Event};

use self::beginning::Beginning;
use self::follows::Follows;
use self::group::Group;
use self::last_warning::LastWarning;
use self::maps::{MappedTable, TableMaps};
use self::outcome::{GroupEnd, Release};
use self::pending::{PendingRows, RowsBody};
use self::transport::{self, Events, Transport};
use self::unseen::Unseen;
use self::withheld::{MEMORY_BYTES_MAX, Room, Withheld, WithholdError};
use self::xa::Branches;
use crate::mysql::source::decode::character_sets::Collations;
use crate::mysql::source::decode::compressed;
use crate::mysql::source::decode::events::{self, Class};
use crate::mysql::source::decode::gtid::{self, Flavor, GroupStart, Gtid, Gtids};
use crate::mysql::source::decode::position::{FILE_START, Position, PositionError};
use crate::mysql::source::decode::rows::{self, Kind};
use crate::mysql::source::decode::wire::Malformed;
use crate::mysql::source::server::tables::CapturedTables;
use crate::spill::Spill;

/// Events of other tables can arrive faster than anybody waits: after so many the caller gets its turn.
const EVENTS_PER_FILL_MAX: usize = 16_384;

/// What a reading knows of its server.
#[derive(Debug)]
pub struct Server {
    pub identity: ServerIdentity,
    pub flavor: Flavor,
    pub has_lower_case_names: bool,
    pub collations: Collations,
}

/// A compressed transaction of MySQL whose events are being read.
#[derive(Debug)]
struct Payload {
    events: u64,
}

/// An open reading of a MySQL or MariaDB binlog.
pub struct MysqlStream<E = Transport> {
    events: E,
    source: String,
    server: ServerIdentity,
    flavor: Flavor,
    has_lower_case_names: bool,
    tables: CapturedTables,
    maps: TableMaps,
    unseen: Unseen,
    last_warning: LastWarning,
    position: Position,
    gtids: Option<Gtids>,
    sent: Lsn,
    /// GTID of the group of which a part was sent, and the rest was not.
    partial: Option<String>,
    entered_at: Option<(String, u64)>,
    entered_lsn: Lsn,
    is_by_gtid: bool,
    /// A resume point was given to the batch: only then may positions be.
    has_entry: bool,
    group: Group,
    payload: Option<Payload>,
    follows: Option<Follows>,
    /// Rows of the open group.
    withheld: Withheld,
    spill: Spill,
    branches: Branches,
    /// The last group has ended, and not all of its rows are in a batch.
    releasing: Option<Release>,
    ended: Option<GroupEnd>,
}

impl<E: Events> MysqlStream<E> {
    pub(super) fn new(
        events: E,
        config: &SourceConfig,
        server: Server,
        tables: CapturedTables,
        beginning: Beginning,
    ) -> Self {
        // A start by GTID set learns its place from the first group only. What goes on links to what was sent, also
        // where it begins further on: at the end of another server, or after a file that was purged.
        let entered_lsn = match beginning.position.lsn() {
            Ok(lsn) if !beginning.is_by_gtid && beginning.sent == Lsn::ZERO => lsn,
            _ => beginning.sent,
        };
        Self {
            events,
            source: config.name.clone(),
            server: server.identity,
            flavor: server.flavor,
            has_lower_case_names: server.has_lower_case_names,
            tables,
            maps: TableMaps::new(server.flavor, server.collations),
            unseen: Unseen::default(),
            last_warning: LastWarning::default(),
            position: beginning.position,
            gtids: beginning.gtids,
            sent: beginning.sent,
            partial: beginning.partial,
            entered_at: beginning.entered_at,
            entered_lsn,
            is_by_gtid: beginning.is_by_gtid,
            has_entry: false,
            group: Group::default(),
            payload: None,
            follows: beginning.follows,
            withheld: Withheld::default(),
            spill: Spill::new(&config.spill_dir, &config.name),
            branches: Branches::default(),
            releasing: None,
            ended: None,
        }
    }

    /// Takes one event in. Its rows, if any, are withheld.
    fn take(&mut self, event: Event, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let header = event.header();
        let class = events::classify(header.event_type_raw());
        if transport::is_inner(&event) {
            let Some(payload) = &mut self.payload else {
                return Err(self.corrupt("an event of a compressed transaction outside of one"));
            };
            payload.events += 1;
        } else {
            if let Some(payload) = &self.payload {
                let found = match payload.events {
                    0 => "a compressed transaction is empty",
                    _ => "a compressed transaction has no end",
                };
                return Err(self.corrupt(found));
            }
            self.advance(class, &header);
        }
        let lsn = self.lsn()?;
        self.apply(class, event, lsn, batch)?;
        self.unseen.hand_over(&self.source, lsn > self.sent, batch);
        // Within a group the position moves with its captured rows only, and those leave when it has ended; between
        // groups the resume point moves with it. So a position above the resume point says that rows after it were
        // sent.
        let is_between_groups = !self.group.is_open() && self.releasing.is_none();
        if is_between_groups && self.has_entry && header.log_pos() != 0 {
            batch.event_complete(lsn);
            self.ended.get_or_insert_default().position = self.position.end;
        }
        Ok(())
    }

    fn advance(&mut self, class: Class, header: &BinlogEventHeader) {
        let log_pos = header.log_pos();
        match class {
            // Sent again, with their own old position, when a reading starts in the middle of a file.
            Class::FormatDescription | Class::MariaDbGtidList | Class::MySqlPreviousGtids => {
                self.position.end = self.position.end.max(u64::from(log_pos));
            }
            _ if HEARTBEATS.contains(&header.event_type_raw()) => {}
            _ if is_unplaced(header) => self.position.pass(header.event_size()),
            _ if is_artificial(header) => {}
            _ => {
                // The first events of the file come before, from where they are.
                if matches!(class, Class::MariaDbGtid | Class::Rotate)
                    && let Some((_, entered_at)) = self.entered_at.take()
                {
                    self.position.end = entered_at;
                }
                self.position.advance(log_pos, header.event_size());
            }
        }
    }

    fn apply(&mut self, class: Class, event: Event, lsn: Lsn, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let header = event.header();
        match class {
            Class::Harmless => Ok(()),
            Class::FormatDescription => {
                self.maps.clear();
                Ok(())
            }
            Class::Rotate => self.rotate(&event, batch),
            Class::MariaDbGtid => {
                let start = gtid::read_mariadb_gtid(header.server_id(), event.data());
                let start = start.map_err(|error| self.malformed(error))?;
                self.begin_group(start, header.event_size(), batch)
            }
            Class::MySqlGtid => {
                let start = gtid::read_mysql_gtid(event.data()).map_err(|error| self.malformed(error))?;
                self.begin_group(start, header.event_size(), batch)
            }
            Class::MySqlTaggedGtid => {
                let start = gtid::read_mysql_tagged_gtid(&event).map_err(|error| self.malformed(error))?;
                self.begin_group(start, header.event_size(), batch)
            }
            Class::AnonymousGtid => Err(self
                .fault(Code::SourceGtidOff, "a transaction without GTID")
                .needs("gtid_mode = ON")
                .remedy("SET GLOBAL gtid_mode = ON")),
            Class::MariaDbGtidList if self.gtids.is_none() => {
                self.gtids =
                    gtid::read_mariadb_gtid_list(event.data()).map_err(|error| self.malformed(error))?;
                self.enter(batch)
            }
            Class::MySqlPreviousGtids if self.gtids.is_none() => {
                let gtids = gtid::read_mysql_previous(event.data()).map_err(|error| self.malformed(error))?;
                self.gtids = Some(gtids);
                self.enter(batch)
            }
            Class::MariaDbGtidList | Class::MySqlPreviousGtids => Ok(()),
            Class::TransactionPayload => {
                self.payload = Some(Payload { events: 0 });
                Ok(())
            }
            Class::Xid => self.commit_group(lsn, header.timestamp(), batch),
            Class::XaPrepare => self.prepare_branch(event.data(), lsn, header.timestamp(), batch),
            Class::Query | Class::LoadQuery | Class::CompressedQuery => self.query(class, &event, lsn, batch),
            Class::TableMap => {
                let result = self.maps.read(event.data(), &mut self.tables);
                result.map_err(|problem| {
                    problem.into_fault(|found| self.fault(Code::BinlogEventCorrupt, found))
                })
            }
            Class::Rows { kind, has_extra_data, is_compressed } => {
                self.rows(kind, has_extra_data, is_compressed, event, lsn)
            }
            Class::PartialRows => match self.captured(event.data())? {
                None => Ok(()),
                Some(table) => Err(self
                    .fault(Code::BinlogEventUnknown, format!("an update of {} in parts", table.name()))
                    .needs("whole rows")
                    .remedy("SET GLOBAL binlog_row_value_options = ''")),
            },
            Class::Incident => Err(self
                .fault(Code::BinlogEventUnknown, "the server wrote that events are missing here (INCIDENT)")
                .needs("a refresh of this source")),
            Class::Unknown => Err(self
                .fault(Code::BinlogEventUnknown, format!("an event of type {}", header.event_type_raw()))
                .needs("a type that this build knows")),
        }
    }

    /// A new file. What was open in the old one was cut off by a crash of the server and never happened.
    fn rotate(&mut self, event: &Event, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let (file, end) =
            transport::rotation(event).ok_or_else(|| self.corrupt("a Rotate event cannot be read"))?;
        self.settle(batch);
        if file == self.position.file && is_artificial(&event.header()) {
            // The first event of a reading says where it begins.
            self.position.end = end.max(self.position.end);
            return self.enter(batch);
        }
        if !is_artificial(&event.header()) {
            batch.event_complete(self.lsn()?);
        }
        self.entered_at.take_if(|(name, _)| *name != file);
        self.position = Position::new(self.position.epoch, file, end.max(FILE_START))
            .map_err(|error| self.no_lsn(&error))?;
        self.group = Group::default();
        self.withheld = Withheld::default();
        self.maps.clear();
        // So that a quiet source does not resume from a file that is purged meanwhile.
        self.enter(batch)
    }

    /// The captured table of a rows event; `None` for other tables.
    fn captured(&mut self, body: &[u8]) -> Result<Option<Arc<MappedTable>>, Fault> {
        let table_id = rows::table_id(body).map_err(|error| self.malformed(error))?;
        self.maps.has_rows(table_id);
        if rows::ends_statement(body) {
            for table in self.maps.statement_ended() {
                self.unseen.note(&table);
            }
        }
        match self.maps.get(table_id) {
            Some(table) => Ok(table.clone()),
            // A server closes a statement without rows by an event for no table.
            None if body.len() <= ROWS_WITHOUT_TABLE_BYTES => Ok(None),
            None => Err(self.corrupt("rows of a table that was not introduced")),
        }
    }

    fn rows(
        &mut self,
        kind: Kind,
        has_extra_data: bool,
        is_compressed: bool,
        event: Event,
        lsn: Lsn,
    ) -> Result<(), Fault> {
        let Some(table) = self.captured(event.data())? else { return Ok(()) };
        // Whatever was sent: the record at the group's end depends on the group alone.
        if let Some(fault) = table.unfit() {
            return self.read_again(&table.table, fault, lsn);
        }
        // A branch may be decided above what was sent, wherever its rows stand.
        if lsn <= self.sent && !self.group.is_xa_branch() {
            return Ok(());
        }
        let body = if is_compressed {
            RowsBody::inflated(event.data(), kind, compressed::inflate)
        } else {
            Ok(RowsBody::Event(Box::new(event)))
        };
        let body = body.map_err(|error| self.malformed(error))?;
        let pending = PendingRows::new(table, kind, has_extra_data, body, lsn)
            .map_err(|problem| problem.into_fault(|found| self.fault(Code::BinlogEventCorrupt, found)))?;
        if self.withheld.push(pending) { self.encode_withheld() } else { Ok(()) }
    }

    fn encode_withheld(&mut self) -> Result<(), Fault> {
        let room = self.withheld_room();
        self.withheld.encode(&room).map_err(|error| self.cannot_withhold(error))
    }

    /// Where encoded rows of the open group may be.
    fn withheld_room(&self) -> Room {
        let memory_bytes = MEMORY_BYTES_MAX.saturating_sub(self.branches.memory_bytes());
        Room { memory_bytes, spill: self.spill.clone() }
    }

    fn cannot_withhold(&self, error: WithholdError) -> Fault {
        error.into_fault(|code, found| self.fault(code, found))
    }

    fn lsn(&self) -> Result<Lsn, Fault> {
        self.position.lsn().map_err(|error| self.no_lsn(&error))
    }

    fn no_lsn(&self, error: &PositionError) -> Fault {
        self.fault(Code::BinlogEventCorrupt, error.to_string())
            .needs("binlog files with numbers up to 1048575 and positions up to 64 GiB")
    }

    /// A fault at the present position.
    fn fault(&self, code: Code, found: impl Into<String>) -> Fault {
        let subject = format!("source {} at {}:{}", self.source, self.position.file, self.position.end);
        Fault::new(code, subject, found)
    }

    fn corrupt(&self, found: &str) -> Fault {
        self.fault(Code::BinlogEventCorrupt, found)
    }

    fn malformed(&self, error: Malformed) -> Fault {
        self.corrupt(error.0)
    }
}

impl<E: Events> MysqlStream<E> {
    /// Takes what has arrived, until the batch is full.
    fn fill_now(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        for _ in 0..EVENTS_PER_FILL_MAX {
            self.release(batch)?;
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            match self.events.next_now() {
                None => return Ok(Filled::Drained),
                Some(event) => self.take(event.map_err(|fault| self.refused(fault))?, batch)?,
            }
        }
        Ok(Filled::Drained)
    }
}

impl<E: Events> ChangeSource for MysqlStream<E> {
    async fn fill(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        if self.releasing.is_none() {
            let event = self.events.next().await.map_err(|fault| self.refused(fault))?;
            self.take(event, batch)?;
        }
        let filled = self.fill_now(batch);
        self.settle(batch);
        filled
    }

    fn entered_at(&self) -> Lsn {
        self.entered_lsn
    }

    fn server(&self) -> &ServerIdentity {
        &self.server
    }
}

const HEARTBEATS: [u8; 2] = [27, 41];
/// Table id, flags, and at most an empty frame.
const ROWS_WITHOUT_TABLE_BYTES: usize = 12;

const ARTIFICIAL: u16 = 0x20;

/// Made by the dump thread, not read from the file.
fn is_artificial(header: &BinlogEventHeader) -> bool {
    header.log_pos() == 0 || header.flags_raw() & ARTIFICIAL != 0
}

/// Read from the file, where it stands without its position: within a transaction MariaDB 11.4 and later write none.
fn is_unplaced(header: &BinlogEventHeader) -> bool {
    header.log_pos() == 0 && header.flags_raw() & ARTIFICIAL == 0
}
