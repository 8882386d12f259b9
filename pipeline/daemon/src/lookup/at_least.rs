//! Waits until the lanes of a projection and a source have passed a point of its binlog.
//!
//! The targets' progress rows are the truth about a lane's position; one query serves all waiting requests. A request
//! that waited in vain gets the requested point and the lane's position in one notation, and for a GTID also whether
//! the source has it.
//!
//! Progress says which GTIDs a lane has passed, even while an undecided XA branch keeps its resume point back. So no
//! source is asked before a request has waited in vain.
//!
//! A lane that has passed the point may still owe a table: rows of it changed without row events, and the lane is to
//! read it again. Any code may be in any table of the source, so a request waits for that too, whatever the position of
//! the lane's entry: an entry keeps the latest of several changes only. A lane that owes more tables than it can list
//! reads every table, and a request waits for that, too. It does not wait for any other refresh of every table. A lane
//! also owes the removal of claims of a table that was dropped or truncated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::directory::Directory;
use super::question::{At, AtLeast, Refusal};
use crate::wiring::{Wiring, holds_gtids, lanes};

/// Time that a request waits, at most; a change is findable within tens of milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Time between two reads of progress while a request waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Wait for a source that is asked which GTIDs it has given out.
const SOURCE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two queries of a source, however many requests wait: one short statement on a kept connection. It is
/// far shorter than [`WAIT_MAX`], so the answer has every commit from before a request began to wait.
const SOURCE_INTERVAL: Duration = Duration::from_millis(100);
/// Length to which a text cuts a GTID set: one of MySQL may name every server that ever existed.
const SHOWN_CHARACTERS_MAX: usize = 300;

/// Time of a query of a source, and the GTID set of its answer; `None` = no answer in time.
type GtidAnswer = (Instant, Option<String>);
type LaneProgress = Arc<BTreeMap<LaneId, Progress>>;

/// Positions of the lanes of one projection.
pub struct PassedPositions {
    wiring: Wiring,
    projection: String,
    lanes: Vec<LaneId>,
    /// Start of the last read of progress, and its result.
    last: Mutex<Option<(Instant, LaneProgress)>>,
    /// Last answer of each source. It is locked while the source is asked.
    sources: HashMap<String, Mutex<Option<GtidAnswer>>>,
}

impl PassedPositions {
    pub fn new(wiring: &Wiring, projection: &str) -> Self {
        let of_projection = |lane: &LaneId| lane.projection == projection;
        let lanes: Vec<LaneId> = lanes(wiring.config()).into_iter().filter(of_projection).collect();
        let sources = lanes.iter().map(|lane| (lane.source.clone(), Mutex::default())).collect();
        let (wiring, projection) = (wiring.clone(), projection.to_owned());
        Self { wiring, projection, lanes, last: Mutex::default(), sources }
    }

    /// Waits until all of them have passed the point and owe no table, 2 s at most. `directory` names tables.
    pub async fn wait(&self, at_least: &AtLeast, directory: &Directory) -> Result<(), Refusal> {
        let lanes: Vec<&LaneId> = self.lanes.iter().filter(|lane| lane.source == at_least.source).collect();
        if lanes.is_empty() {
            let (source, projection) = (&at_least.source, &self.projection);
            let found = format!("at_least names source `{source}`, which no lane of `{projection}` reads");
            return Err(Refusal::Malformed(found));
        }
        let deadline = Instant::now() + WAIT_MAX;
        let mut last = None;
        // Progress that another request has just read is there at once, also after the deadline.
        while Instant::now() < deadline
            && let Ok(known) = tokio::time::timeout_at(deadline, self.progress()).await
        {
            let known = known?;
            let mut lagging = None;
            for lane in &lanes {
                let progress = known.get(*lane);
                if !has_passed(progress, &at_least.at)? || owed(progress).is_some() {
                    lagging = Some((*lane, progress.cloned()));
                }
            }
            if lagging.is_none() {
                return Ok(());
            }
            last = lagging;
            sleep(POLL_INTERVAL).await;
        }
        Err(Refusal::Lagging(self.missing(at_least, last, directory).await))
    }

    /// Returns the answer to a request that waited in vain: the lagging lane, as it was seen last.
    async fn missing(
        &self,
        at_least: &AtLeast,
        last: Option<(&LaneId, Option<Progress>)>,
        directory: &Directory,
    ) -> String {
        let wanted = format!("{} of source {} was asked for", at_least.said, at_least.source);
        let Some((lane, progress)) = last else {
            return format!("{wanted}; the positions of the lanes are not known");
        };
        if let (Ok(true), Some(owed)) = (has_passed(progress.as_ref(), &at_least.at), owed(progress.as_ref()))
        {
            let table = |shard| match directory.table(shard) {
                Some((_, table)) => format!("table {}.{}", table.identity.database, table.identity.table),
                None => format!("the table of shard {shard}"),
            };
            let work = match owed {
                Owed::Table(shard) => {
                    format!("read {} again, whose rows changed without row events", table(shard))
                }
                Owed::Every => {
                    "read every table again, as rows may have changed without row events".to_owned()
                }
                Owed::Removal(shard) => {
                    format!("remove the rows of {}, which was dropped or truncated", table(shard))
                }
            };
            return format!("{wanted}; lane {lane} has passed it, and is to {work}");
        }
        let lane_state = describe_lane(progress.as_ref(), at_least);
        let mut text = format!("{wanted}; lane {lane} {lane_state}");
        if let (At::Gtids(gtids), Some(progress)) = (&at_least.at, progress) {
            let given_out = self.given_out(&at_least.source).await;
            let has = |set: &String| holds_gtids(&progress.server.flavor, set, gtids);
            text.push_str(&match given_out.as_ref().map(|set| (set, has(set))) {
                Some((_, Some(true))) => "; the source has given it out".to_owned(),
                Some((set, Some(false))) => {
                    format!("; the source has not given it out: it is at GTID {}", shortened(set))
                }
                Some((_, None)) | None => {
                    "; the source did not answer whether it has given it out".to_owned()
                }
            });
        }
        text
    }

    /// Returns the GTIDs that a source has given out; `None` = no answer in time.
    async fn given_out(&self, source: &str) -> Option<String> {
        let mut asked = self.sources.get(source)?.lock().await;
        if let Some((asked_at, said)) = &*asked
            && asked_at.elapsed() < SOURCE_INTERVAL
        {
            return said.clone();
        }
        let set = async { self.wiring.source(source)?.written_gtids().await };
        let said = tokio::time::timeout(SOURCE_TIMEOUT, set).await.ok().and_then(Result::ok);
        *asked = Some((Instant::now(), said.clone()));
        said
    }

    /// Returns the progress of every lane that has begun; it is at most [`POLL_INTERVAL`] old.
    async fn progress(&self) -> Result<LaneProgress, Fault> {
        let mut last = self.last.lock().await;
        if let Some((began, known)) = &*last
            && began.elapsed() < POLL_INTERVAL
        {
            return Ok(Arc::clone(known));
        }
        let began = Instant::now();
        let mut targets: Vec<&str> = self.lanes.iter().map(|lane| lane.target.as_str()).collect();
        targets.dedup();
        let mut known = BTreeMap::new();
        for target in targets {
            known.extend(self.wiring.progress(target).await?);
        }
        let known = Arc::new(known);
        *last = Some((began, Arc::clone(&known)));
        Ok(known)
    }
}

/// Returns a lane's position, in the notation of the request as far as it goes.
fn describe_lane(progress: Option<&Progress>, at_least: &AtLeast) -> String {
    let Some(progress) = progress.filter(|progress| progress.position != Lsn::ZERO) else {
        return "has not begun".to_owned();
    };
    let position = progress.position;
    match &at_least.at {
        At::Lsn(_) => format!("is at {position}"),
        At::File { .. } => {
            let name = at_least.said.rsplit_once('.').map_or("binlog", |(name, _)| name);
            format!("is at {name}.{:06}:{} ({position})", position.file_number(), position.position())
        }
        At::Gtids(_) => format!("is at GTID {} ({position})", shortened(progress.resume.read_gtids())),
    }
}

/// Returns a GTID set on one line, cut to [`SHOWN_CHARACTERS_MAX`] characters.
fn shortened(set: &str) -> String {
    let set: String = set.split_whitespace().collect();
    match set.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &set[..end]),
        None if set.is_empty() => "none".to_owned(),
        None => set,
    }
}

/// The tables that a lane is to read again, or to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// Rows of this table changed without row events.
    Table(ShardId),
    /// Rows of any table may have, or rows of more tables did than the lane lists.
    Every,
    /// This table was dropped or truncated.
    Removal(ShardId),
}

/// Returns what the lane is to read again or to remove, if there is something.
fn owed(progress: Option<&Progress>) -> Option<Owed> {
    let progress = progress?;
    if let Some(shard) = progress.withdrawals.first() {
        return Some(Owed::Removal(shard));
    }
    let refresh = progress.refresh.as_ref()?;
    match refresh.every_waits {
        true => Some(Owed::Every),
        false => refresh.rereads.keys().next().copied().map(Owed::Table),
    }
}

/// Returns whether the lane's tables hold everything up to the point, as they do for epochs before the lane's own.
fn has_passed(progress: Option<&Progress>, at: &At) -> Result<bool, Refusal> {
    let malformed = |found: &str| Refusal::Malformed(format!("at_least: {found}"));
    let Some(progress) = progress.filter(|progress| progress.position != Lsn::ZERO) else { return Ok(false) };
    match at {
        At::Lsn(lsn) => Ok(progress.position >= *lsn),
        At::File { number, position } => {
            let lsn = Lsn::new(progress.position.epoch(), *number, *position);
            Ok(progress.position >= lsn.map_err(|_| malformed("a position beyond every binlog"))?)
        }
        At::Gtids(wanted) => holds_gtids(&progress.server.flavor, progress.resume.read_gtids(), wanted)
            .ok_or_else(|| malformed("not a GTID set of this source's server")),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::records::{Refresh, Scope};
    use anabranch_schemas::envelope::ServerIdentity;
    use anabranch_schemas::lsn::ResumePoint;

    use super::*;

    fn at(text: &str) -> At {
        format!("a:{text}").parse::<AtLeast>().unwrap().at
    }

    #[test]
    fn where_a_lane_is_is_said_in_the_notation_of_the_place() {
        let progress = Progress {
            position: "2:7:4096".parse().unwrap(),
            resume: ResumePoint { gtid_set: "0-1-42,\n1-1-7".to_owned(), ..ResumePoint::default() },
            ..Progress::default()
        };
        let said = |text: &str, progress| describe_lane(progress, &format!("a:{text}").parse().unwrap());
        for (text, expected) in [
            ("2:8:4", "is at 2:7:4096"),
            ("mariadb-bin.000008:4", "is at mariadb-bin.000007:4096 (2:7:4096)"),
            ("0-1-43", "is at GTID 0-1-42,1-1-7 (2:7:4096)"),
        ] {
            assert_eq!(said(text, Some(&progress)), expected);
        }
        assert_eq!(said("0-1-43", None), "has not begun");
        assert_eq!(said("0-1-43", Some(&Progress::default())), "has not begun");
        assert_eq!(shortened(&"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9,".repeat(100)).chars().count(), 301);
        assert_eq!(shortened(""), "none");
    }

    #[test]
    fn a_lane_has_passed_what_lies_not_above_its_position() {
        let progress = Progress {
            position: "2:7:4096".parse().unwrap(),
            resume: ResumePoint { gtid_set: "0-1-42".to_owned(), ..ResumePoint::default() },
            server: ServerIdentity { flavor: "mariadb".to_owned(), id: "1".to_owned() },
            ..Progress::default()
        };
        for (text, expected) in [
            ("2:7:4096", true),
            ("2:7:4112", false),
            ("1:9:4", true),
            ("3:1:4", false),
            ("binlog.000007:4096", true),
            ("binlog.000008:4", false),
            ("0-1-42", true),
            ("0-2-43", false),
        ] {
            assert_eq!(has_passed(Some(&progress), &at(text)).unwrap(), expected, "{text}");
        }
        assert!(!has_passed(None, &at("1:1:4")).unwrap(), "a lane that has not begun has passed nothing");
        assert!(has_passed(Some(&progress), &at("no-gtid-set")).is_err());
    }

    #[test]
    fn a_lane_owes_a_table_until_it_has_read_it_again_and_every_table_when_it_cannot_list_them() {
        let shard = ShardId::of("a", "d", "t", 0);
        let in_refresh = |refresh| Progress { refresh, ..Progress::default() };
        let at = "2:7:4096".parse().unwrap();
        let waits = Refresh::with_reread(None, shard, at);
        assert_eq!(owed(Some(&in_refresh(Some(waits)))), Some(Owed::Table(shard)));
        let shards = (0..2_000).map(|table| ShardId::of("a", "d", "t", table));
        let many = shards.fold(None, |refresh, shard| Some(Refresh::with_reread(refresh, shard, at)));
        assert_eq!(owed(Some(&in_refresh(many))), Some(Owed::Every));
        let unknown = Refresh::with_every_table(None);
        assert_eq!(owed(Some(&in_refresh(Some(unknown)))), Some(Owed::Every), "as after an unread XA branch");
        assert_eq!(owed(Some(&in_refresh(Some(Refresh::new(Scope::Source))))), None);
        assert_eq!((owed(Some(&in_refresh(None))), owed(None)), (None, None));
        let withdrawals = "1:7:160=1a".parse().unwrap();
        let removes = Progress { withdrawals, ..Progress::default() };
        assert_eq!(owed(Some(&removes)), Some(Owed::Removal(ShardId::from_u64(26).unwrap())));
    }

    #[test]
    fn a_lane_has_passed_what_it_has_read_though_it_resumes_before_an_undecided_branch() {
        let read_end = Some("7:4096:0-1-50".parse().unwrap());
        let progress = Progress {
            position: "2:7:4096".parse().unwrap(),
            resume: ResumePoint { gtid_set: "0-1-42".to_owned(), read_end, ..ResumePoint::default() },
            server: ServerIdentity { flavor: "mariadb".to_owned(), id: "1".to_owned() },
            ..Progress::default()
        };
        for (text, expected) in [("0-1-42", true), ("0-1-50", true), ("0-1-51", false), ("1-1-1", false)] {
            assert_eq!(has_passed(Some(&progress), &at(text)).unwrap(), expected, "{text}");
        }
        let said = describe_lane(Some(&progress), &"a:0-1-51".parse().unwrap());
        assert_eq!(said, "is at GTID 0-1-50 (2:7:4096)");
    }
}
