//! A crossing: where a source's stream goes on at a server that lacks transactions which were read.
//!
//! `touched.rs` writes it into a register of the source, beside that of the epochs. A reader takes it only where the
//! stream still ends at the crossing's end and the address leads to the crossing's server. It enters that server's
//! binlog after the last message of which the server has everything, and appends after the stream's end. In front of
//! the first changes stand rereads of the tables that the messages in between name, and withdrawals of those that the
//! server does not have and no lane can ask for. Only that message continues a lane that has the lost transactions,
//! because a direct feed is refused to it, so no lane passes the rereads by.
//!
//! A crossing needs no removal: once the reader has appended, the stream ends elsewhere.

use anabranch_schemas::beginning::GapRecord;
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Fault};
use crate::ports::{BinlogStart, LogEntry, Register, Registers};
use crate::records::BatchBuilder;

/// One crossing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// Id of the request for it, so that the same request is written once.
    pub request: String,
    /// Number of the beginning of the stream's end.
    pub beginning: u64,
    /// The stream's end, which holds transactions that the server lacks.
    pub end: Lsn,
    /// Position of the last message of which the server has everything.
    pub common: Lsn,
    /// Resume point of that message, and the server from which it was read.
    pub resume: ResumePoint,
    pub before: ServerIdentity,
    /// The server that lacks transactions.
    pub server: ServerIdentity,
    tables: Vec<CrossedTable>,
    /// Records of the newest crossings, this one last. Registers of versions without them have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<GapRecord>,
}

/// A table that is read again, or withdrawn because its wait would have no end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CrossedTable {
    entity: Entity,
    shard: ShardId,
    database: String,
    table: String,
    /// The server does not have the table, and no lane can ask for it, so its claims are removed.
    #[serde(default)]
    is_gone: bool,
}

impl Crossing {
    /// Returns the crossing from the message `common` to a server, for a stream that ends with `end`. Each table comes
    /// with whether the server lacks it.
    pub(super) fn new(
        request: &str,
        (common, end): (&LogEntry, &Envelope),
        server: ServerIdentity,
        tables: impl IntoIterator<Item = (bool, TableIdentity<'static>)>,
    ) -> Self {
        let common = &common.envelope;
        let tables = tables.into_iter().map(|(is_gone, table)| CrossedTable {
            entity: table.entity,
            shard: table.shard,
            database: table.database.into_owned(),
            table: table.table.into_owned(),
            is_gone,
        });
        Self {
            request: request.to_owned(),
            beginning: end.beginning,
            end: end.position,
            common: common.position,
            resume: common.resume.clone(),
            before: common.server.clone(),
            server,
            tables: tables.collect(),
            gaps: Vec::new(),
        }
    }

    /// Returns the names of the tables that are read again, such as `user_00.user_001`, in the order of their shards.
    pub fn tables(&self) -> Vec<String> {
        self.names(false)
    }

    /// Returns the names of the tables that the server does not have and no lane can ask for: their derived rows are
    /// removed.
    pub fn gone_tables(&self) -> Vec<String> {
        self.names(true)
    }

    fn names(&self, are_gone: bool) -> Vec<String> {
        let meant = self.tables.iter().filter(|table| table.is_gone == are_gone);
        meant.map(|table| format!("{}.{}", table.database, table.table)).collect()
    }

    /// Whether a stream with this end goes on by the crossing.
    pub(super) fn continues(&self, end: &Envelope) -> bool {
        (self.end, self.beginning) == (end.position, end.beginning)
    }

    /// Returns the entry at which the present server is read on. A part of a transaction at the stream's end came after
    /// the request, from a server that was there once more. The present server must have that transaction too.
    pub(super) fn entry(&self, end: &Envelope) -> BinlogStart {
        let partial = end.resume.partial.clone().or_else(|| self.resume.partial.clone());
        let resume = ResumePoint { partial, ..self.resume.clone() };
        BinlogStart::Resume { resume, position: self.common, server: self.before.clone() }
    }

    /// Adds the rereads and withdrawals of the tables to the first batch that is read in `epoch`. They stand at the
    /// epoch's lowest position: below each change of the server, and above everything that was read before.
    pub(super) fn add_rereads(&self, batch: &mut BatchBuilder, epoch: u16) -> Result<(), Fault> {
        let at = Lsn::lowest(epoch).map_err(|error| {
            Fault::new(Code::Internal, "a crossing", format!("epoch {epoch}")).caused_by(error)
        })?;
        for CrossedTable { entity, shard, database, table, is_gone } in &self.tables {
            let (database, table) = (database.clone().into(), table.clone().into());
            let table = TableIdentity { entity: *entity, shard: *shard, database, table };
            if *is_gone {
                batch.withdraw(at, &table);
            } else {
                batch.reread(at, &table);
            }
        }
        Ok(())
    }
}

/// The register of a source's latest crossing, as it was read.
#[derive(Debug)]
pub(super) struct KnownCrossing {
    key: String,
    register: Register,
    pub(super) crossing: Option<Crossing>,
}

impl KnownCrossing {
    pub(super) async fn read<M: Registers>(registers: &M, source: &str) -> Result<Self, Fault> {
        let key = format!("crossings/{source}");
        let register = registers.read(&key).await?;
        let crossing = match register.value.as_str() {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|error| {
                Fault::new(Code::LogForeign, format!("register {key}"), "its value is not a crossing")
                    .needs("a bucket that only Anabranch writes")
                    .caused_by(error)
            })?),
        };
        Ok(Self { key, register, crossing })
    }

    /// Stores another crossing in place of this one.
    pub(super) async fn set<M: Registers>(&self, registers: &M, crossing: &Crossing) -> Result<(), Fault> {
        let value = serde_json::to_string(crossing).map_err(|error| {
            Fault::new(Code::Internal, format!("register {}", self.key), "it cannot be written")
                .caused_by(error)
        })?;
        registers.compare_and_set(&self.key, &self.register, value).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(epoch: u16, position: u64) -> Lsn {
        Lsn::new(epoch, 1, position).unwrap()
    }

    fn crossing() -> Crossing {
        let envelope = |position| Envelope { position, beginning: 2, ..Envelope::default() };
        let common = LogEntry { sequence: 7, id: "1-7".to_owned(), envelope: envelope(lsn(1, 160)) };
        let table = TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "user_00", "user_001", 0),
            database: "user_00".into(),
            table: "user_001".into(),
        };
        Crossing::new("one", (&common, &envelope(lsn(1, 320))), ServerIdentity::default(), [(false, table)])
    }

    #[test]
    fn a_crossing_is_read_back_and_names_its_tables() {
        let crossing = crossing();
        let text = serde_json::to_string(&crossing).unwrap();
        assert_eq!(serde_json::from_str::<Crossing>(&text).unwrap(), crossing);
        assert_eq!(crossing.tables(), ["user_00.user_001"]);
        let gone = text.replace("\"is_gone\":false", "\"is_gone\":true");
        let gone: Crossing = serde_json::from_str(&gone).unwrap();
        assert_eq!((gone.tables(), gone.gone_tables()), (Vec::new(), vec!["user_00.user_001".to_owned()]));
        let earlier = text.replace(",\"is_gone\":false", "");
        assert_eq!(serde_json::from_str::<Crossing>(&earlier).unwrap(), crossing);
    }

    #[test]
    fn a_crossing_is_for_one_end_of_the_stream() {
        let crossing = crossing();
        let end = Envelope { position: lsn(1, 320), beginning: 2, ..Envelope::default() };
        assert!(crossing.continues(&end));
        assert!(!crossing.continues(&Envelope { position: lsn(1, 336), ..end.clone() }), "it lost less");
        assert!(!crossing.continues(&Envelope { beginning: 3, ..end }), "it began anew");
    }

    #[test]
    fn a_server_must_have_the_transaction_of_which_a_part_came_later() {
        let partial = Some("0-1-7".to_owned());
        let resume = ResumePoint { partial: partial.clone(), ..ResumePoint::default() };
        let end = Envelope { position: lsn(1, 320), beginning: 2, resume, ..Envelope::default() };
        let entered = |crossing: &Crossing, end: &Envelope| match crossing.entry(end) {
            BinlogStart::Resume { resume, position, .. } => (position, resume.partial),
            other => panic!("{other:?}"),
        };
        assert_eq!(entered(&crossing(), &end), (lsn(1, 160), partial.clone()));
        // The common message may end within a transaction that the server has.
        let within = Crossing {
            resume: ResumePoint { partial: partial.clone(), ..ResumePoint::default() },
            ..crossing()
        };
        assert_eq!(entered(&within, &Envelope::default()), (lsn(1, 160), partial));
    }

    /// A change at or below the position before it would be skipped by each lane.
    #[test]
    fn the_rereads_lie_above_the_end_and_below_each_change_of_the_next_epoch() {
        let mut batch = BatchBuilder::new(1 << 16, Lsn::MAX.in_epoch(1).unwrap(), ResumePoint::default());
        crossing().add_rereads(&mut batch, 2).unwrap();
        batch.event_complete(Lsn::new(2, 1, 4).unwrap());
        batch.require_order("s").unwrap();
        let taken = batch.take();
        assert_eq!((taken.changes, taken.continues, batch.take().continues), (1, false, false));
    }
}
