//! An open stream of one binlog: it turns events into changes in a batch, in commit order.
//!
//! In the order of the flow: `transport.rs` brings events, and this file takes them. `cursor.rs` holds their position;
//! `maps.rs` and `alteration.rs` hold their tables. `pending.rs` makes rows into changes; `withheld.rs` keeps them
//! until their group (`group.rs`) has ended, and `xa.rs` keeps those of branches. `group_reader.rs` decides where
//! groups begin and end, and this file carries out its effects. `statement.rs` carries out statements, `reread.rs` has
//! tables read again, and `last_warning.rs` spaces warnings. `entry.rs` and `resume.rs` decide where a stream
//! starts (`beginning.rs`); `follows.rs` decides whether it may continue another server's. `locate.rs` finds past
//! positions, and `inspect.rs` reads recordings, for tests.
//!
//! Only the transport waits. The stream keeps an event until its last row is in a batch, so a cancelled call loses
//! nothing. It withholds captured rows until their group has ended; then it releases them, into the next batch when one
//! is full. `decode/` reads bytes, and `server/` queries the server. No file here knows what happens to a batch.

mod alteration;
mod beginning;
mod cursor;
mod entry;
mod follows;
mod group;
mod group_reader;
pub mod inspect;
mod last_warning;
mod locate;
mod maps;
mod pending;
mod reread;
mod resume;
mod statement;
pub(super) mod transport;
mod withheld;
mod xa;

use std::sync::Arc;

use anabranch_pipeline::config::{Removal, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ChangeSource, Filled};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use mysql_async::binlog::events::Event;

use self::beginning::StreamStart;
use self::cursor::{Cursor, Moment};
use self::group_reader::{Effect, GroupEvent, GroupReader};
use self::last_warning::LastWarning;
use self::maps::{MappedTable, Problem, TableMaps};
use self::pending::{PendingRows, RowsBody};
use self::transport::{Events, Transport};
use crate::mysql::source::decode::character_sets::Collations;
use crate::mysql::source::decode::compressed;
use crate::mysql::source::decode::events::{self, Class};
use crate::mysql::source::decode::gtid::{self, Flavor, GroupStart, Gtids};
use crate::mysql::source::decode::rows::{self, Kind};
use crate::mysql::source::decode::wire::Malformed;
use crate::mysql::source::decode::xid::Xid;
use crate::mysql::source::server::tables::CapturedTables;
use crate::spill::Spill;

/// Events of other tables can arrive without a pause: after so many `fill` returns to its caller.
const EVENTS_PER_FILL_MAX: usize = 16_384;

/// Properties of the server that a stream reads.
#[derive(Debug)]
pub struct Server {
    pub identity: ServerIdentity,
    pub flavor: Flavor,
    pub has_lower_case_names: bool,
    pub collations: Collations,
}

/// An open stream of a MySQL or MariaDB binlog.
pub struct MysqlStream<E = Transport> {
    events: E,
    server: ServerIdentity,
    has_lower_case_names: bool,
    tables: CapturedTables,
    maps: TableMaps,
    /// Captured tables with unseen changes by a foreign key that no batch has counted yet.
    cascaded: u64,
    last_warning: LastWarning,
    cursor: Cursor,
    groups: GroupReader,
    entered_lsn: Lsn,
}

impl<E: Events> MysqlStream<E> {
    pub(super) fn new(
        events: E,
        config: &SourceConfig,
        server: Server,
        tables: CapturedTables,
        beginning: StreamStart,
    ) -> Self {
        // A start by GTID set learns its position from the first group only. A stream that resumes links to the
        // position that was sent, also where it starts further on: at the end of another server, or after a file that
        // was purged.
        let entered_lsn = match beginning.position.lsn() {
            Ok(lsn) if !beginning.is_by_gtid && beginning.sent == Lsn::ZERO => lsn,
            _ => beginning.sent,
        };
        let cursor = Cursor::new(&config.name, beginning.position.clone(), beginning.start_position.clone());
        let spill = Spill::new(&config.spill_dir, &config.name);
        Self {
            events,
            server: server.identity,
            has_lower_case_names: server.has_lower_case_names,
            tables,
            maps: TableMaps::new(server.flavor, server.collations),
            cascaded: 0,
            last_warning: LastWarning::default(),
            cursor,
            groups: GroupReader::new(server.flavor, beginning, spill),
            entered_lsn,
        }
    }

    /// Handles one event; withholds its rows, if any.
    fn handle(&mut self, event: Event, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let header = event.header();
        let class = events::classify(header.event_type_raw());
        let is_inner = transport::is_inner(&event);
        self.groups.check_payload(is_inner, &self.cursor)?;
        if !is_inner {
            self.cursor.advance(class, &header);
        }
        let moment = Moment { lsn: self.cursor.lsn()?, seconds: header.timestamp() };
        self.apply(class, event, moment, batch)?;
        batch.pass_unseen(std::mem::take(&mut self.cascaded));
        // Within a group the position moves with captured rows only, and those leave when the group has ended. Between
        // groups the resume point moves with the position. So a position above the resume point says that rows after
        // the point were sent.
        if header.log_pos() != 0 && self.groups.pass(self.cursor.end()) {
            batch.event_complete(moment.lsn);
        }
        Ok(())
    }

    /// Passes an event to the groups, and carries out its effect.
    fn on(&mut self, event: GroupEvent, moment: Moment, batch: &mut BatchBuilder) -> Result<(), Fault> {
        match self.groups.on(event, moment, &self.cursor)? {
            Effect::Nothing => Ok(()),
            Effect::Enter { resume, position } => {
                batch.group_complete(resume, 0);
                batch.event_complete(self.cursor.lsn_at(position)?);
                Ok(())
            }
            Effect::Release => self.groups.release(&self.tables, &self.cursor, batch),
            Effect::Undone(shards) => self.read_undone_again(shards, moment.lsn),
            Effect::Unread(xid) => {
                let tables = self.read_in_place_of(&xid, moment.lsn)?;
                self.on(GroupEvent::DecideUnread(tables), moment, batch)
            }
        }
    }

    fn apply(
        &mut self,
        class: Class,
        event: Event,
        moment: Moment,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let header = event.header();
        let event_bytes = header.event_size();
        match class {
            Class::Harmless => Ok(()),
            Class::FormatDescription => {
                self.maps.clear();
                Ok(())
            }
            Class::Rotate => self.rotate(&event, moment, batch),
            Class::MariaDbGtid => {
                let start = gtid::read_mariadb_gtid(header.server_id(), event.data());
                self.begin_group(start, event_bytes, moment, batch)
            }
            Class::MySqlGtid => {
                self.begin_group(gtid::read_mysql_gtid(event.data()), event_bytes, moment, batch)
            }
            Class::MySqlTaggedGtid => {
                self.begin_group(gtid::read_mysql_tagged_gtid(&event), event_bytes, moment, batch)
            }
            Class::AnonymousGtid => Err(self
                .cursor
                .fault(Code::SourceGtidOff, "a transaction without GTID")
                .needs("gtid_mode = ON")
                .remedy("SET GLOBAL gtid_mode = ON")),
            Class::MariaDbGtidList if !self.groups.knows_gtids() => {
                self.groups_before(gtid::read_mariadb_gtid_list(event.data()), moment, batch)
            }
            Class::MySqlPreviousGtids if !self.groups.knows_gtids() => {
                self.groups_before(gtid::read_mysql_previous(event.data()).map(Some), moment, batch)
            }
            Class::MariaDbGtidList => self.domains_before(event.data()),
            Class::MySqlPreviousGtids => Ok(()),
            Class::TransactionPayload => self.on(GroupEvent::Payload, moment, batch),
            Class::Xid => self.on(GroupEvent::Commit, moment, batch),
            Class::XaPrepare => {
                let prepared = Xid::from_prepare(event.data());
                let (xid, is_one_phase) = prepared.map_err(|error| self.cursor.malformed(error))?;
                self.on(GroupEvent::Prepare { xid, is_one_phase }, moment, batch)
            }
            Class::Query | Class::LoadQuery | Class::CompressedQuery => {
                self.query(class, &event, moment, batch)
            }
            Class::TableMap => {
                let result = self.maps.read(event.data(), &mut self.tables);
                result.map_err(|problem| self.unreadable(problem))
            }
            Class::Rows { kind, has_extra_data, is_compressed } => {
                self.rows(kind, has_extra_data, is_compressed, event, moment)
            }
            Class::PartialRows => self.partial_rows(event.data(), moment.lsn),
            Class::Incident => {
                let found = "the server wrote that events are missing here (INCIDENT)";
                Err(self.cursor.fault(Code::BinlogEventUnknown, found).needs("a refresh of this source"))
            }
            Class::Unknown => {
                let found = format!("an event of type {}", header.event_type_raw());
                Err(self.cursor.fault(Code::BinlogEventUnknown, found).needs("a type that this build knows"))
            }
        }
    }

    /// Takes in the groups before a file, as its first events list them.
    fn groups_before(
        &mut self,
        gtids: Result<Option<Gtids>, Malformed>,
        moment: Moment,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let gtids = gtids.map_err(|error| self.cursor.malformed(error))?;
        self.on(GroupEvent::Before(gtids), moment, batch)
    }

    /// Forgets the domains that were deleted before a file, as its first events list the others.
    fn domains_before(&mut self, body: &[u8]) -> Result<(), Fault> {
        let listed = gtid::read_mariadb_gtid_list(body).map_err(|error| self.cursor.malformed(error))?;
        if let Some(listed) = listed {
            self.groups.forget_deleted_domains(&listed);
        }
        Ok(())
    }

    fn begin_group(
        &mut self,
        start: Result<GroupStart, Malformed>,
        event_bytes: u32,
        moment: Moment,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let start = start.map_err(|error| self.cursor.malformed(error))?;
        self.maps.statement_ended();
        self.on(GroupEvent::Begin { start, event_bytes }, moment, batch)
    }

    /// Moves to the file that a Rotate event names: the present one or a new one.
    fn rotate(&mut self, event: &Event, moment: Moment, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let rotation = transport::rotation(event);
        let (file, end) = rotation.ok_or_else(|| self.cursor.corrupt("a Rotate event cannot be read"))?;
        self.groups.settle(&self.cursor, batch);
        let is_artificial = cursor::is_artificial(&event.header());
        if file == self.cursor.file() && is_artificial {
            // The first event of a stream says where it starts.
            self.cursor.reach(end);
            return self.on(GroupEvent::Between, moment, batch);
        }
        if !is_artificial {
            batch.event_complete(moment.lsn);
        }
        self.cursor.enter(file, end)?;
        self.maps.clear();
        self.on(GroupEvent::NewFile, moment, batch)
    }

    /// Returns the captured table of a rows event; `None` for other tables.
    fn captured(&mut self, kind: Kind, body: &[u8], lsn: Lsn) -> Result<Option<Arc<MappedTable>>, Fault> {
        let table_id = rows::table_id(body).map_err(|error| self.cursor.malformed(error))?;
        self.maps.has_rows(table_id, kind);
        if kind != Kind::Delete && self.maps.is_retention_marker(table_id) {
            self.groups.note_retention();
        }
        if rows::ends_statement(body) {
            for child in self.maps.statement_ended() {
                self.read_child_again(&child, lsn)?;
            }
        }
        match self.maps.get(table_id) {
            Some(table) => Ok(table.clone()),
            // A server closes a statement without rows by an event for no table.
            None if body.len() <= ROWS_WITHOUT_TABLE_BYTES => Ok(None),
            None => Err(self.cursor.corrupt("rows without the table map event that must precede them")),
        }
    }

    fn partial_rows(&mut self, body: &[u8], lsn: Lsn) -> Result<(), Fault> {
        let Some(table) = self.captured(Kind::Update, body, lsn)? else { return Ok(()) };
        Err(self
            .cursor
            .fault(Code::BinlogEventUnknown, format!("a partial update of {}", table.name()))
            .needs("whole rows in row events")
            .remedy("SET GLOBAL binlog_row_value_options = ''"))
    }

    fn rows(
        &mut self,
        kind: Kind,
        has_extra_data: bool,
        is_compressed: bool,
        event: Event,
        Moment { lsn, seconds }: Moment,
    ) -> Result<(), Fault> {
        let Some(table) = self.captured(kind, event.data(), lsn)? else { return Ok(()) };
        // Also for rows that were sent before: the record at the group's end depends on the group alone.
        if let Some(fault) = table.unfit().or_else(|| self.unshown(&table)) {
            return self.read_again(&table.table, fault, lsn);
        }
        if !self.groups.wants(lsn) {
            return Ok(());
        }
        let body = if is_compressed {
            RowsBody::inflated(event.data(), kind, compressed::inflate)
        } else {
            Ok(RowsBody::Event(Box::new(event)))
        };
        let body = body.map_err(|error| self.cursor.malformed(error))?;
        let is_retained = kind == Kind::Delete && table.table.removal == Removal::Retain;
        let heir = (is_retained && self.groups.is_retention())
            .then(|| self.tables.heir(&table.table.identity, seconds));
        let pending = PendingRows::new(table, kind, has_extra_data, body, lsn);
        let pending = pending.map_err(|problem| self.unreadable(problem))?;
        self.groups.push(pending.with_heir(heir), &self.cursor)
    }

    fn unreadable(&self, problem: Problem) -> Fault {
        problem.into_fault(|found| self.cursor.corrupt(found))
    }

    /// Takes events that have arrived, until the batch is full.
    fn fill_now(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        for _ in 0..EVENTS_PER_FILL_MAX {
            self.groups.release(&self.tables, &self.cursor, batch)?;
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            match self.events.next_now() {
                None => return Ok(Filled::Drained),
                Some(event) => {
                    self.handle(event.map_err(|fault| self.groups.refused(fault, &self.cursor))?, batch)?;
                }
            }
        }
        Ok(Filled::Drained)
    }
}

impl<E: Events> ChangeSource for MysqlStream<E> {
    async fn fill(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        if !self.groups.is_releasing() {
            let event = self.events.next().await;
            self.handle(event.map_err(|fault| self.groups.refused(fault, &self.cursor))?, batch)?;
        }
        let filled = self.fill_now(batch);
        self.groups.settle(&self.cursor, batch);
        filled
    }

    fn start_position(&self) -> Lsn {
        self.entered_lsn
    }

    fn server(&self) -> &ServerIdentity {
        &self.server
    }
}

/// Bytes of a rows event for no table, at most: table id, flags, and an empty frame.
const ROWS_WITHOUT_TABLE_BYTES: usize = 12;
