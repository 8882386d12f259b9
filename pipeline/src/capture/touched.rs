//! Lets a source go on at a server that lacks transactions which were read, and has only their tables read again.
//!
//! A replica that took over before it had everything still has most of what was read. The log names the rest: all of it
//! lies in the messages after the last one of which the server has everything. A table that no such message names is in
//! the derived stores as it was in the server at that message, so the server's own binlog continues it from there. The
//! tables that are named may be further than the server, or elsewhere: they are read again. So is a named table that
//! the server does not have: each lane has its absence proved. One without a usual name is withdrawn instead, because
//! no lane could ask for it. `crossing.rs` says how the reader goes on. The only write here sets the register of
//! crossings.
//!
//! That holds only as far as the log can tell everything that a lane has. So the command refuses while a target does
//! not answer, a lane is further than the stream or is replayed, or the stream ends within a transaction, and where the
//! log has lost a message after the common one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_schemas::beginning::GapRecord;
use anabranch_schemas::change::{Action, Change, TableIdentity};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::time::timeout;

use super::begin::{BeginAnew, PROBE, Probed, is_mended};
use super::crossing::{Crossing, KnownCrossing};
use super::open::{present, resume_at};
use crate::epochs::Epochs;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::ports::{
    ChangeSource, Log, LogEntry, LogMessage, LogReader, PROBE_REPLICA_SLOT, ReadFrom, Registers, RowSource,
    SourceConnector, TableVisibility,
};
use crate::records::Progress;

/// Tables that are read again, at most. A lane reads all tables when more wait than its progress has room for.
const TABLES_MAX: usize = 1_000;
/// Time for one message of the log: all of them are stored.
const MESSAGE: Duration = Duration::from_secs(30);
/// The way for a source whose lost transactions are not in the log.
const WHOLE: &str = "run the command without `--touched`: then all tables are read again";

type Tables = BTreeMap<ShardId, TableIdentity<'static>>;

/// The part of everything that was read up to a message that a server has.
enum Held {
    /// The server has everything, and its binlog from there on.
    Whole(ServerIdentity),
    Purged,
    InPart,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    pub crossing: Crossing,
    /// Reason for which the source cannot be read on; `None` for a request that was written before.
    pub why: Option<String>,
    /// The same request was written before, so nothing was written now.
    pub is_repeated: bool,
}

impl<S: SourceConnector + RowSource, L: Log, M: Registers> BeginAnew<'_, S, L, M> {
    /// Writes the crossing to the present server; with `is_rehearsal` only returns it. The inputs are those of
    /// [`Self::run`].
    pub async fn run_touched(
        &self,
        lanes: &[Progress],
        are_all: bool,
        is_rehearsal: bool,
    ) -> Result<Touched, Fault> {
        let known = KnownCrossing::read(self.registers, self.source).await?;
        if let Some(crossing) = known.crossing.as_ref().filter(|known| known.request == self.request) {
            return Ok(Touched { crossing: crossing.clone(), why: None, is_repeated: true });
        }
        let mut epochs = Epochs::read(self.registers, self.source).await?;
        let Some(end) = self.log.end(self.source).await? else {
            return Err(self
                .refused("its stream is empty")
                .needs("the messages that were read")
                .remedy(WHOLE));
        };
        epochs.learn_of_stream(&end.envelope);
        lanes.iter().for_each(|lane| epochs.learn_of_lane(lane));
        if !are_all {
            return Err(self
                .refused("a target does not answer, or a lane has no progress")
                .needs("the progress of every lane: it may be further than the stream"));
        }
        self.require_whole_log(&epochs, &end.envelope, lanes)?;
        let why = self.divergence(epochs.latest(), &end.envelope).await?;
        if lanes.iter().any(|lane| lane.rows > 0) {
            self.require_rows().await?;
        }
        let (common, server) = self.common(&epochs, &end).await?;
        let tables = self.tables_between(&common, &end).await?;
        self.require_readable(epochs.latest(), &common).await?;
        let gone = self.gone(&tables).await?;
        let tables = tables.into_values().map(|table| (gone.contains(&table.shard), table));
        let mut crossing = Crossing::new(self.request, (&common, &end.envelope), server, tables);
        let why = why.to_string();
        self.add_record(&mut crossing, &known, &why);
        if !is_rehearsal {
            failpoints::reach("begin-anew-before-register").await;
            known.set(self.registers, &crossing).await?;
            failpoints::reach("begin-anew-after-register").await;
        }
        Ok(Touched { crossing, why: Some(why), is_repeated: false })
    }

    /// Puts the record of the request into the crossing, after those of the crossing before it.
    fn add_record(&self, crossing: &mut Crossing, known: &KnownCrossing, why: &str) {
        let record = self.record(why, Some(crossing.end), (crossing.common, &crossing.server));
        let tables = crossing.tables().len() + crossing.gone_tables().len();
        crossing.gaps = known.crossing.as_ref().map_or_else(Vec::new, |before| before.gaps.clone());
        GapRecord { tables: Some(tables as u64), ..record }.add_to(&mut crossing.gaps);
    }

    /// Requires that the log tells everything that the lanes have.
    fn require_whole_log(
        &self,
        epochs: &Epochs<'_, M>,
        end: &Envelope,
        lanes: &[Progress],
    ) -> Result<(), Fault> {
        if end.beginning != epochs.number() {
            return Err(self.refused("it begins anew already").needs("the end of that"));
        }
        if end.resume.partial.is_some() {
            return Err(self
                .refused("its stream ends within a transaction, of which lanes have a part")
                .needs("a stream that ends between two transactions")
                .remedy(WHOLE));
        }
        for lane in present(lanes, epochs.number()) {
            // A lane may have stored a part of an earlier crossing, all of which lies at the lowest position of an
            // epoch. That part is in the stream, whose end is below it too.
            let changed = if lane.highest_change.is_lowest() { Lsn::ZERO } else { lane.highest_change };
            let reached = lane.position.max(lane.highest_position).max(changed);
            if reached > end.position {
                let found = format!("a lane is at {reached}, and its stream ends at {}", end.position);
                return Err(self
                    .refused(found)
                    .needs("a stream that has all that its lanes have")
                    .remedy(WHOLE));
            }
            if lane.is_replaying() {
                return Err(self
                    .refused(format!("a lane is replayed: it is at {}", lane.position))
                    .needs("lanes that apply a change for the first time")
                    .remedy(WHOLE));
            }
        }
        Ok(())
    }

    /// Returns the fault by which the present server lacks what was read; refuses the request for any other state.
    async fn divergence(&self, latest: &Timeline, end: &Envelope) -> Result<Fault, Fault> {
        let entry = resume_at(&end.resume, end.position, &end.server);
        match self.probe(latest, entry).await {
            Probed::Stopped(fault) if fault.code() == Code::SourceDiverged => Ok(fault),
            Probed::Stopped(fault) if is_mended(fault.code()) => Err(self
                .refused(format!("its reader stops with {}", fault.code()))
                .needs("source-diverged: a server that has most of what was read")
                .remedy(WHOLE)
                .caused_by(fault)),
            Probed::Stopped(fault) => Err(fault),
            runs => Err(self.runs(end.position, &runs)),
        }
    }

    /// Returns the last message of which the present server has everything, and that server. Positions rise from
    /// message to message, and so do the transactions that a server must have.
    async fn common(
        &self,
        epochs: &Epochs<'_, M>,
        end: &LogEntry,
    ) -> Result<(LogEntry, ServerIdentity), Fault> {
        let latest = epochs.latest();
        // Messages of an earlier beginning tell nothing of this one.
        let begun = match epochs.beginning() {
            Some(beginning) => beginning.position,
            None if end.envelope.beginning == 0 => Lsn::ZERO,
            None => {
                return Err(self
                    .refused("the register of its beginning was lost")
                    .needs("the position at which its present beginning lies")
                    .remedy(WHOLE));
            }
        };
        let oldest = self.log.first_at(self.source, begun).await?;
        let mut low = oldest.map_or(u64::MAX, |entry| entry.envelope.position.as_u64());
        let (mut high, mut common, mut purged) = (end.envelope.position.as_u64(), None, None);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = Lsn::from_u64(middle).expect("it lies between two positions");
            let found = self.log.first_at(self.source, at).await?;
            let Some(entry) = found.filter(|entry| entry.envelope.position.as_u64() < high) else {
                high = middle;
                continue;
            };
            match self.held(latest, &entry).await? {
                Held::Whole(server) => {
                    low = entry.envelope.position.as_u64() + 1;
                    common = Some((entry, server));
                }
                Held::Purged => {
                    low = entry.envelope.position.as_u64() + 1;
                    purged = Some(entry.envelope.position);
                }
                Held::InPart => high = middle,
            }
        }
        common.ok_or_else(|| {
            let found = match purged {
                Some(at) => format!("the server has everything up to {at}, and purged its binlog after that"),
                None => "its stream no longer has what lies beyond the last transaction that the server has"
                    .to_owned(),
            };
            self.refused(found)
                .needs("a message of which the server has everything, and the binlog from there on")
                .remedy(WHOLE)
        })
    }

    /// Returns whether the present server has everything up to a message.
    async fn held(&self, latest: &Timeline, entry: &LogEntry) -> Result<Held, Fault> {
        let Envelope { resume, position, server, .. } = &entry.envelope;
        let opened =
            self.connector.open(resume_at(resume, *position, server), latest, PROBE_REPLICA_SLOT).await;
        match opened {
            Ok(source) => Ok(Held::Whole(source.server().clone())),
            // It has everything, and its binlog begins later.
            Err(fault) if fault.code() == Code::BinlogPurged => Ok(Held::Purged),
            Err(fault) if is_mended(fault.code()) => Ok(Held::InPart),
            Err(fault) => Err(fault),
        }
    }

    /// Requires that the present server is read on from the common message for some time.
    async fn require_readable(&self, latest: &Timeline, common: &LogEntry) -> Result<(), Fault> {
        let Envelope { resume, position, server, .. } = &common.envelope;
        match timeout(PROBE, self.probe(latest, resume_at(resume, *position, server))).await {
            Ok(Probed::Stopped(fault)) => Err(self
                .refused(format!(
                    "the server cannot be read on from {position}, up to where it has everything"
                ))
                .needs("its binlog from there on")
                .remedy(WHOLE)
                .caused_by(fault)),
            Ok(Probed::Passed | Probed::CutOff(..)) | Err(_) => Ok(()),
        }
    }

    /// Returns the tables that are named in the messages after `common`, up to the stream's end.
    async fn tables_between(&self, common: &LogEntry, end: &LogEntry) -> Result<Tables, Fault> {
        let from = ReadFrom::After { sequence: common.sequence, id: common.id.clone() };
        let opened = self.log.reader(self.source, from).await;
        let mut reader = opened.map_err(|fault| self.lost(fault))?;
        let mut tables = Tables::new();
        loop {
            let Ok(next) = timeout(MESSAGE, reader.next()).await else {
                let found = format!("its stream does not bring the messages up to {}", end.envelope.position);
                return Err(Fault::new(Code::LogUnreachable, format!("source {}", self.source), found));
            };
            let message = next.map_err(|fault| self.lost(fault))?;
            self.add_tables(&message, &mut tables)?;
            if message.entry.sequence >= end.sequence {
                return Ok(tables);
            }
        }
    }

    /// Adds the tables that a message names.
    ///
    /// Rows that a retention job deleted pass to an heir of their table. No server lists it, so a lane would wait for
    /// it without end. The table itself is read again, as it is for their deletion.
    fn add_tables(&self, message: &LogMessage, tables: &mut Tables) -> Result<(), Fault> {
        if message.payload.is_empty() {
            return Ok(());
        }
        let unreadable = |error| {
            self.refused(format!("message {} of its stream cannot be read", message.entry.sequence))
                .needs("every message that the server lacks")
                .remedy(WHOLE)
                .caused_by(error)
        };
        let mut changes = codec::decode(&message.payload).map_err(unreadable)?;
        while let Some(change) = changes.next().map_err(unreadable)? {
            if change.table.is_every() {
                let found = format!("message {} has every table read again", message.entry.sequence);
                return Err(self.refused(found).needs("changes of single tables").remedy(WHOLE));
            }
            self.require_not_retired(&change)?;
            if tables.contains_key(&change.table.shard) {
                continue;
            }
            let shard = change.table.table_shard(self.source, self.generation);
            tables
                .entry(shard)
                .or_insert_with(|| TableIdentity { shard, ..change.table.clone().into_owned() });
        }
        if tables.len() > TABLES_MAX {
            let found = format!("more than {TABLES_MAX} tables have changes that the server lacks");
            return Err(self.refused(found).needs("fewer, as all tables are read beyond that").remedy(WHOLE));
        }
        Ok(())
    }

    /// Refuses a table that left by a retention rule: lanes keep what they had of it, and no reading takes that back.
    fn require_not_retired(&self, change: &Change<'_, '_>) -> Result<(), Fault> {
        if change.action != Action::Retire || !change.table.is_table_of(self.source, self.generation) {
            return Ok(());
        }
        let TableIdentity { database, table, .. } = change.table;
        let found =
            format!("{database}.{table} left by a retention rule, in a transaction that the server lacks");
        Err(self.refused(found).needs("tables that the server has as they were read").remedy(WHOLE))
    }

    /// Returns the tables that the present server does not have and that no lane can ask for: it would wait for a
    /// reading of them without end. Any other absent table is to be read as well, because a server that takes over
    /// before the reader came may have it. A lane that finds none ends its wait by a proof that the table is absent.
    async fn gone(&self, tables: &Tables) -> Result<BTreeSet<ShardId>, Fault> {
        let listed = self.connector.tables().await?;
        let listed: BTreeSet<ShardId> = listed.into_iter().map(|table| table.shard).collect();
        let mut gone = BTreeSet::new();
        for table in tables.values().filter(|table| !listed.contains(&table.shard)) {
            let name = format!("{}.{}", table.database, table.table);
            // `absence` answers less: a table that the server has and one that it hides are both not proved absent, and
            // the two refusals ask a person for different things. Each lane needs the proof, and asks for it later.
            match self.connector.visibility(&table.database, &table.table).await? {
                TableVisibility::Hidden(fault) => {
                    return Err(self
                        .refused(format!("the server does not say whether it has the table {name}"))
                        .needs("SELECT on its database for the capture account")
                        .caused_by(fault));
                }
                TableVisibility::Gone if table.entity.may_retire() => {
                    return Err(self
                        .refused(format!("the server does not have the table {name} of payment documents"))
                        .needs("the table: a withdrawal could remove documents that a retention rule keeps")
                        .remedy(WHOLE));
                }
                TableVisibility::Gone if self.has_usual_name(table) => {}
                TableVisibility::Gone => _ = gone.insert(table.shard),
                TableVisibility::Readable => {
                    return Err(self
                        .refused(format!("the server has the table {name}, and it is not captured any more"))
                        .needs("a pattern that captures it")
                        .remedy(WHOLE));
                }
            }
        }
        Ok(gone)
    }

    /// Whether lanes can ask for the table by its name.
    fn has_usual_name(&self, table: &TableIdentity<'static>) -> bool {
        let mut is_usual = false;
        self.connector
            .visit_likely_tables(table.entity, &mut |likely| is_usual |= likely.shard == table.shard);
        is_usual
    }

    /// Translates a fault of the log: a message that it lost may have named any table.
    fn lost(&self, fault: Fault) -> Fault {
        if !matches!(fault.code(), Code::LogHole | Code::LogMessageCorrupt) {
            return fault;
        }
        self.refused("its stream lacks a message after the last transaction that the server has")
            .needs("every message that the server lacks")
            .remedy(WHOLE)
            .caused_by(fault)
    }
}
