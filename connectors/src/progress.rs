//! The progress row of a lane, as every kind of target stores it: the lanes and the layout that it was made for, and
//! the check that Anabranch wrote it.

use std::collections::HashSet;
use std::str::FromStr;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::{InvalidRefresh, LaneId, PendingWithdrawals, Progress};
use anabranch_schemas::lsn::ResumePoint;

/// A progress row as a target stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProgress {
    pub projection: String,
    pub source: String,
    pub lane: u32,
    /// Number of lanes that the row was made for.
    pub lanes: u32,
    /// Layout that the row was made for.
    pub layout: String,
    pub progress: Progress,
    /// The row's checksum is right, or an operator has taken it out.
    pub is_trusted: bool,
}

/// Returns the checksum over everything that a commit writes; it shows that a row was changed by hand. It is the CRC-32
/// (IEEE) of the fields, each with its length.
pub(crate) fn checksum(projection: &str, source: &str, lane: u32, progress: &Progress) -> u32 {
    let (sequence, id) = progress.message.clone().unwrap_or_default();
    let numbers = [
        u64::from(lane),
        progress.revision,
        progress.position.as_u64(),
        progress.highest_position.as_u64(),
        progress.highest_change.as_u64(),
        progress.resume.position,
        sequence,
        u64::from(progress.message.is_some()),
        progress.committed_at_us,
        progress.rows,
    ];
    let refresh = refresh_text(progress);
    let texts = [
        projection,
        source,
        &progress.resume.file,
        &progress.resume.gtid_set,
        &progress.server.flavor,
        &progress.server.id,
        &id,
    ];
    let mut hasher = crc32fast::Hasher::new();
    numbers.iter().for_each(|number| hasher.update(&number.to_le_bytes()));
    for text in texts.into_iter().chain(refresh.as_deref()) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize()
}

/// Precedes the number of the source's beginning in the text of [`refresh_text`].
const BEGINNING: &str = "beginning:";
/// Precedes the number of captured fields in the text of [`refresh_text`].
const FIELDS: &str = "fields:";
/// Precedes the end of what was read in the text of [`refresh_text`].
const READ_END: &str = "read:";
/// Precedes the GTID of a group that was sent in part in the text of [`refresh_text`].
const PARTIAL: &str = "partial:";
/// Precedes the withdrawals that the lane owes in the text of [`refresh_text`].
const WITHDRAWN: &str = "withdrawn:";

/// Writes the state of a lane's refresh as text: `None` before the first refresh, empty while no refresh runs.
///
/// Words may precede it, each followed by a blank if a refresh was ever made:
/// - `beginning:2`: the source began anew;
/// - `fields:4`: the changes were captured with four fields of the entity at least, not with those of each table;
/// - `read:7:4096:0-1-50`: an undecided XA branch keeps the resume point before the end of what was read;
/// - `partial:0-1-51`: the position is within a group that is sent in parts;
/// - `withdrawn:1:7:160=1a2b`: claims of dropped or truncated tables are still to be removed.
///
/// Stores keep these words here, so none of them needs another column. A version that does not know a word refuses the
/// row.
pub(crate) fn refresh_text(progress: &Progress) -> Option<String> {
    let refresh = match &progress.refresh {
        Some(refresh) => Some(refresh.to_string()),
        None => progress.was_refreshed.then(String::new),
    };
    let beginning = (progress.beginning > 0).then(|| format!("{BEGINNING}{}", progress.beginning));
    let fields = progress.captured_fields.map(|fields| format!("{FIELDS}{fields}"));
    let read_end = progress.resume.read_end.as_ref().map(|end| format!("{READ_END}{end}"));
    let partial = progress.resume.partial.as_ref().map(|gtid| format!("{PARTIAL}{gtid}"));
    let withdrawn =
        (!progress.withdrawals.is_empty()).then(|| format!("{WITHDRAWN}{}", progress.withdrawals));
    let words = [beginning, fields, read_end, partial, withdrawn];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() {
        return refresh;
    }
    Some(words.into_iter().chain(refresh).collect::<Vec<String>>().join(" "))
}

/// Reads the parts of progress that [`refresh_text`] wrote; the other fields are empty.
pub(crate) fn refresh_of(text: Option<&str>) -> Result<Progress, InvalidRefresh> {
    let (beginning, text) = word(text, BEGINNING)?;
    let (captured_fields, text) = word(text, FIELDS)?;
    let (read_end, text) = word(text, READ_END)?;
    let (partial, text) = word(text, PARTIAL)?;
    let (withdrawals, text): (Option<PendingWithdrawals>, _) = word(text, WITHDRAWN)?;
    let refresh = text.filter(|text| !text.is_empty()).map(str::parse).transpose()?;
    let beginning = beginning.unwrap_or_default();
    Ok(Progress {
        refresh,
        was_refreshed: text.is_some(),
        beginning,
        captured_fields,
        withdrawals: withdrawals.unwrap_or_default(),
        resume: ResumePoint { read_end, partial, ..ResumePoint::default() },
        ..Progress::default()
    })
}

/// Takes a word from the text's beginning; returns its value, if the word is there, and the rest of the text.
fn word<'t, T: FromStr>(
    text: Option<&'t str>,
    name: &str,
) -> Result<(Option<T>, Option<&'t str>), InvalidRefresh> {
    let Some(rest) = text.and_then(|text| text.strip_prefix(name)) else { return Ok((None, text)) };
    let (value, rest) = rest.split_once(' ').map_or((rest, None), |(value, rest)| (value, Some(rest)));
    Ok((Some(value.parse().map_err(|_| InvalidRefresh)?), rest))
}

impl StoredProgress {
    /// Returns the progress from which the lane resumes, if the row is whole and made for the lane.
    pub(crate) fn assigned_to(self, subject: &str, assignment: &Assignment) -> Result<Progress, Fault> {
        if !self.is_trusted {
            return Err(self.damaged(subject));
        }
        match self.mismatch(subject, assignment.lanes, &assignment.fingerprint()) {
            Some(fault) => Err(fault),
            None => Ok(self.progress),
        }
    }

    /// Returns the fault for a row that is not trusted: no lane may resume from it.
    pub fn damaged(&self, subject: &str) -> Fault {
        let row = format!("{subject}, progress of {}/{}/{}", self.projection, self.source, self.lane);
        Fault::new(
            Code::TargetProgressCorrupt,
            row,
            "its checksum is wrong: it was changed by hand or damaged",
        )
        .needs("the row as Anabranch wrote it")
        .remedy(format!(
            "restore it; or `anabranch --config FILE begin-anew --source {} --lost-progress`: its lanes with \
                 damaged progress go on at the stream's end and read all tables",
            self.source
        ))
    }

    /// Returns why the row does not belong to these lanes and this layout; `None` if it does.
    pub(crate) fn mismatch(&self, subject: &str, lanes: u32, layout: &str) -> Option<Fault> {
        let row = format!("{subject}, progress of {}/{}/{}", self.projection, self.source, self.lane);
        if self.lanes != lanes {
            let found = format!("it was made for {} lanes", self.lanes);
            return Some(
                Fault::new(Code::TargetProgressLost, row, found).needs(format!("{lanes} lanes")).remedy(
                    format!(
                        "set `lanes = {}` for projection {}, or {}",
                        self.lanes, self.projection, START_ANEW
                    ),
                ),
            );
        }
        (self.layout != layout).then(|| {
            Fault::new(Code::TargetProgressLost, row, format!("it was made for the layout `{}`", self.layout))
                .needs(format!("the configured layout `{layout}`"))
                .remedy(format!("set the projection's layout back, or {START_ANEW}"))
        })
    }
}

/// The remedy when nothing else helps: an operator starts the projection anew on the target.
pub(crate) const START_ANEW: &str = "start the projection anew on this target: empty its derived tables (delete its \
     index), delete its rows from `progress` and `enrolled`, run `anabranch --config FILE setup`";

/// The command that stores progress for lanes that have none.
pub(crate) const BEGIN_LOST: &str = "`anabranch --config FILE begin-anew --source NAME --lost-progress`: its lanes \
     without progress go on at the stream's end and read all tables";

/// Lanes that a target knows: their progress, and the pairs (projection, source) that ever had a progress row.
#[derive(Debug)]
pub(crate) struct Enrolment {
    /// The target's name for the store of progress, as faults show it.
    place: String,
    pub(crate) rows: Vec<StoredProgress>,
    pub(crate) enrolled: HashSet<(String, String)>,
}

impl Enrolment {
    pub(crate) fn at(place: String) -> Self {
        Self { place, rows: Vec::new(), enrolled: HashSet::new() }
    }

    pub(crate) fn row(&self, lane: &LaneId) -> Option<&StoredProgress> {
        self.rows.iter().find(|row| {
            row.projection == lane.projection && row.source == lane.source && row.lane == lane.lane
        })
    }

    /// Whether progress rows of that source were ever made here.
    pub(crate) fn knows(&self, projection: &str, source: &str) -> bool {
        self.enrolled.contains(&(projection.to_owned(), source.to_owned()))
            || self.rows.iter().any(|row| row.projection == projection && row.source == source)
    }

    pub(crate) fn knows_projection(&self, projection: &str) -> bool {
        self.enrolled.iter().any(|(name, _)| name == projection)
            || self.rows.iter().any(|row| row.projection == projection)
    }

    /// Whether any lane of the projection has applied anything.
    pub(crate) fn has_moved(&self, projection: &str) -> bool {
        self.rows.iter().any(|row| row.projection == projection && row.progress.revision > 0)
    }

    /// Returns the decision that a lane needs from an operator: its row is lost or was made for something else.
    pub(crate) fn loss(&self, subject: &str, assignment: &Assignment, lane: &LaneId) -> Option<Fault> {
        let mismatch =
            |row: &StoredProgress| row.mismatch(subject, assignment.lanes, &assignment.fingerprint());
        match self.row(lane) {
            Some(row) => mismatch(row),
            None if self.knows(&lane.projection, &lane.source) => {
                // If the number of lanes was raised, other lanes' rows give a better fault than "gone".
                let other =
                    self.rows.iter().find(|r| r.projection == lane.projection && r.source == lane.source);
                Some(other.and_then(mismatch).unwrap_or_else(|| self.lost(lane)))
            }
            None => None,
        }
    }

    fn lost(&self, lane: &LaneId) -> Fault {
        let found = format!("its row in {} does not exist any more", self.place);
        Fault::new(Code::TargetProgressLost, format!("lane {lane}"), found)
            .needs("the row, which alone says which changes the derived rows have")
            .remedy(format!("restore progress together with the derived rows; or {BEGIN_LOST}"))
    }

    /// Returns the lanes of a source whose row is missing or damaged; none if any row of them was made for another
    /// layout or number of lanes.
    pub(crate) fn lost_lanes(&self, assignment: &Assignment, target: &str, source: &str) -> Vec<LaneId> {
        let layout = assignment.fingerprint();
        let is_other = |row: &StoredProgress| row.lanes != assignment.lanes || row.layout != layout;
        let is_of_source = |row: &StoredProgress| row.projection == assignment.name && row.source == source;
        if self.rows.iter().any(|row| is_of_source(row) && is_other(row)) {
            return Vec::new();
        }
        let mut lanes = assignment.lane_ids(target);
        lanes.retain(|lane| lane.source == source && self.row(lane).is_none_or(|row| !row.is_trusted));
        lanes
    }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::records::{Refresh, ScanCursor, TableRefresh};
    use anabranch_schemas::lsn::{Lsn, ReadEnd};
    use anabranch_schemas::shard::ShardId;

    use super::*;

    fn stored() -> StoredProgress {
        StoredProgress {
            projection: "birthday".into(),
            source: "source-a".into(),
            lane: 1,
            lanes: 2,
            layout: "by_day".into(),
            progress: Progress::default(),
            is_trusted: true,
        }
    }

    #[test]
    fn what_a_lane_reads_of_its_tables_is_read_back_and_rows_from_before_there_were_words_mean_the_same() {
        let text = |progress: &Progress| refresh_text(progress);
        let plain = Progress::default();
        let through = Progress { was_refreshed: true, ..plain.clone() };
        let under_way = Progress { refresh: Some(Refresh::of_every_table()), ..through.clone() };
        for progress in [plain, through, under_way.clone()] {
            for captured_fields in [None, Some(3), Some(4)] {
                for beginning in [0, 1, 12] {
                    for read_end in [None, Some("7:4096:0-1-50,1-7-2")] {
                        let partial = beginning.eq(&1).then(|| "0-1-51".to_owned());
                        let read_end = read_end.map(|end| end.parse().unwrap());
                        let resume = ResumePoint { read_end, partial, ..ResumePoint::default() };
                        let progress = Progress { captured_fields, beginning, resume, ..progress.clone() };
                        assert_eq!(refresh_of(text(&progress).as_deref()), Ok(progress));
                    }
                }
            }
        }
        let both = Progress { captured_fields: Some(4), beginning: 2, ..under_way };
        assert_eq!(text(&both).as_deref(), Some("beginning:2 fields:4 - - 0"));
        let withdrawals = "1:7:160=1a".parse().unwrap();
        let owes = Progress { withdrawals, ..Progress::default() };
        assert_eq!(text(&owes).as_deref(), Some("withdrawn:1:7:160=1a"));
        assert_eq!(refresh_of(text(&owes).as_deref()), Ok(owes));
        let old = |text| refresh_of(text).map(|progress| (progress.captured_fields, progress.beginning));
        for text in [None, Some(""), Some("- - 0")] {
            assert_eq!(old(text), Ok((None, 0)));
        }
        let damaged = [
            "fields:",
            "fields:x",
            "fields:-1",
            "fields:4 x",
            "fields:4  ",
            "beginning:x",
            "beginning: ",
            "read:7:4",
        ];
        for damaged in damaged {
            assert_eq!(old(Some(damaged)), Err(InvalidRefresh), "{damaged}");
        }
    }

    /// A column of type TEXT has 64 KiB. The numbers are the longest that there are.
    #[test]
    fn a_thousand_waiting_tables_fit_the_progress_row_beside_all_withdrawals_that_it_lists() {
        let shard = |number: u64| ShardId::from_u64((u64::MAX >> 1) - number).unwrap();
        let owed = |number| (shard(number), Lsn::MAX);
        let after = Some(ScanCursor([0xff; 1_500].into()));
        let table =
            TableRefresh { shard: shard(0), first: Lsn::MAX, chunks: u64::MAX, after, is_reread: true };
        let refresh = Refresh {
            rows: u64::MAX,
            rereads: (0..1_000).map(owed).collect(),
            table: Some(table),
            ..Refresh::of_every_table()
        };
        let gtid_set = ["0-4294967295-18446744073709551615"; 60].join(",");
        let read_end = Some(ReadEnd { file_number: u32::MAX, position: u64::MAX, gtid_set });
        let partial = Some("0-4294967295-18446744073709551615".to_owned());
        let without = Progress {
            refresh: Some(refresh),
            was_refreshed: true,
            captured_fields: Some(4),
            beginning: u64::MAX,
            resume: ResumePoint { read_end, partial, ..ResumePoint::default() },
            ..Progress::default()
        };
        let listed = (without.withdrawals_room().min(16 * 1024) - 54) / 17;
        let withdrawn = (0..listed as u64).map(|number| format!("{:x}", shard(number).as_u64()));
        let withdrawn = withdrawn.collect::<Vec<_>>().join(",");
        let withdrawals = format!("{}-{}={withdrawn}", Lsn::MAX, Lsn::MAX).parse().unwrap();
        let owes = Progress { withdrawals, ..without };
        let text = refresh_text(&owes).unwrap();
        assert!((55_000..65_536).contains(&text.len()), "{} bytes", text.len());
        assert_eq!(refresh_of(Some(&text)), Ok(owes));
    }

    #[test]
    fn another_number_of_lanes_or_layout_does_not_fit() {
        assert!(stored().mismatch("target t", 2, "by_day").is_none());
        assert!(stored().mismatch("target t", 3, "by_day").unwrap().to_string().contains("`lanes = 2`"));
        assert!(stored().mismatch("target t", 2, "by_user").unwrap().to_string().contains("by_user"));
    }
}
