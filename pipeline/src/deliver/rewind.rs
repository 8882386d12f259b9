//! Sets a lane back, so that it applies a part of the past once more.
//!
//! Only the progress row changes; that fences the process that runs the lane, which begins again from there. Rows keep
//! their versions, so a change that is applied twice leaves the same rows.

use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn, binlog_file_number};
use anabranch_schemas::timeline::Timeline;

use crate::epochs::Epochs;
use crate::error::{Code, Fault};
use crate::ports::{BinlogPoint, BinlogStart, LaneStore, Located, Log, Registers, SourceConnector};
use crate::records::{Flush, LaneId, Progress};

/// Attempts to change progress: a busy lane commits meanwhile, and each attempt reads its progress again.
const ATTEMPTS: u32 = 50;

/// The point to which a lane is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewind {
    /// Everything above this point is applied again.
    To(Located),
    /// The lane's rows are removed, and it begins as a new lane does.
    ToNothing,
}

/// The past of one source: its binlog, and the stream that says in which epoch its server is read.
#[derive(Debug)]
pub struct RewindSource<'a, S, L, M> {
    pub source: &'a str,
    pub connector: &'a S,
    pub log: &'a L,
    /// The registers, which hold the epochs.
    pub registers: &'a M,
    /// Entry of a lane without progress.
    pub start: &'a BinlogStart,
}

impl<S: SourceConnector, L: Log, M: Registers> RewindSource<'_, S, L, M> {
    pub async fn resolve(&self, point: BinlogPoint) -> Result<Rewind, Fault> {
        self.locate(point).await.map(Rewind::To)
    }

    /// Returns a rewind to nothing. It needs the source's history from its beginning, unless missing rows are accepted.
    pub async fn nothing(&self, accepts_missing: bool) -> Result<Rewind, Fault> {
        if *self.start == BinlogStart::Latest {
            let found = "the source's `start` is `latest`, so a new lane has no beginning";
            return Err(self.refused(found).needs("`start = \"earliest\"` or a GTID set"));
        }
        // Changes from before the set were never wanted.
        if let BinlogStart::Gtid(set) = self.start {
            return self.locate(BinlogPoint::Gtid(set.clone())).await.map(|_| Rewind::ToNothing);
        }
        let oldest = self.locate(BinlogPoint::Earliest).await?;
        if oldest.position.epoch() > FIRST_EPOCH {
            return Err(self
                .refused("the source has failed over since its beginning")
                .needs("`--from earliest`, which keeps the derived rows"));
        }
        let file = oldest.resume.file;
        if !accepts_missing && binlog_file_number(&file).is_ok_and(|number| number > 1) {
            return Err(self
                .refused(format!("the oldest binlog file is {file}"))
                .needs("the whole history: rows that were not changed since would be missing")
                .remedy("`--from earliest` keeps the rows; or --accept-missing-history"));
        }
        Ok(Rewind::ToNothing)
    }

    /// Locates a point in the epoch of the stream, if the present server is to be read in that epoch. For another
    /// server, or without a stream, the epoch does not exist yet, and a wrong one makes old changes look new.
    async fn locate(&self, point: BinlogPoint) -> Result<Located, Fault> {
        let Some(end) = self.log.end(self.source).await? else {
            return Err(self.refused("the stream is empty").needs("a message of the source's reader"));
        };
        let end = end.envelope;
        let reached = Timeline::of(end.position, &end.server);
        let mut epochs = Epochs::read(self.registers, self.source).await?;
        epochs.learn(reached.clone());
        let located = self.connector.locate(point, reached.epoch).await?;
        let present = epochs.latest().followed_by(&located.server);
        if present != reached {
            return Err(self
                .refused(format!("the stream is in epoch {reached}"))
                .needs(format!("epoch {present}, which the source's reader begins on the present server")));
        }
        Ok(located)
    }

    fn refused(&self, found: impl Into<String>) -> Fault {
        Fault::new(Code::ReplayRefused, format!("source {}", self.source), found)
    }
}

/// Changes the progress of a lane, which fences the process that runs it: that process begins again. Returns the
/// progress before. If `change` returns `None`, the progress stays.
pub(super) async fn amend(
    store: &mut impl LaneStore,
    change: impl Fn(&Progress) -> Result<Option<Progress>, Fault>,
) -> Result<Progress, Fault> {
    let mut attempt = 1;
    loop {
        let before = store.load().await?;
        let Some(after) = change(&before)? else { return Ok(before) };
        match store.commit(&Flush::new(after)).await {
            Err(fault) if fault.code() == Code::TargetFenced && attempt < ATTEMPTS => attempt += 1,
            ended => return ended.map(|()| before),
        }
    }
}

/// Raises the lane's revision and nothing else, and returns its position. The store then refuses a flush that is under
/// way, and the process that runs the lane repeats it.
pub async fn fence(store: &mut impl LaneStore) -> Result<Lsn, Fault> {
    let raised = |before: &Progress| Ok(Some(Progress { revision: before.revision + 1, ..before.clone() }));
    Ok(amend(store, raised).await?.position)
}

/// Sets the lane back; returns its progress before. With `is_rehearsal` nothing is changed.
///
/// A lane only goes back: changes that it skipped by going forward would be missing for ever. Only positions of one
/// epoch say what came first. A lane that reads an old part of the next server's binlog has a high position, and a
/// lower one of the server before may lie after that part. A lane that has not begun may be set anywhere, since the
/// operator thereby says where it begins.
pub async fn rewind(
    id: &LaneId,
    store: &mut impl LaneStore,
    to: &Rewind,
    is_rehearsal: bool,
) -> Result<Progress, Fault> {
    let rewound = |before: &Progress| {
        let after = match to {
            Rewind::To(located) => {
                let is_back = located.position < before.position;
                let is_in_its_epoch = located.position.epoch() == before.position.epoch();
                let has_begun = before.highest_position > Lsn::ZERO;
                if has_begun && !(is_back && is_in_its_epoch) {
                    let found = format!(
                        "{} is not before its position {}, in the epoch of that",
                        located.position, before.position
                    );
                    return Err(Fault::new(Code::ReplayRefused, format!("lane {id}"), found)
                        .needs("a point in the past: a lane that skips changes would be wrong for ever"));
                }
                before.rewound(located.position, located.resume.clone(), located.server.clone())
            }
            Rewind::ToNothing => before.rewound(Lsn::ZERO, Default::default(), before.timeline().server),
        };
        Ok((!is_rehearsal).then_some(after))
    };
    amend(store, rewound).await
}
