//! The progress row as SQL: select, first insert, and the fenced update that begins each flush.
//!
//! The fence is `revision = IF(revision = old, new, NULL)` on a NOT NULL column: in strict mode a stale writer's
//! statement fails with error 1048, and its transaction changes nothing.

use std::str::FromStr;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use super::MysqlTarget;
use super::session::{Session, TextRow};
use crate::mysql::connection::push_bytes;
use crate::progress::{StoredProgress, checksum, refresh_of, refresh_text};

/// Columns in the order in which rows are selected.
const COLUMNS: &[&str] = &[
    "projection",
    "source",
    "lane",
    "lanes",
    "layout",
    "revision",
    "position",
    "highest_position",
    "highest_change",
    "resume_file",
    "resume_position",
    "resume_gtid_set",
    "server_flavor",
    "server_id",
    "message_sequence",
    "message_id",
    "committed_at_us",
    "rows_applied",
    "refresh",
    "checksum",
];

impl Session {
    /// Reads all progress rows of a target.
    pub(super) async fn progress(&mut self, target: &MysqlTarget) -> Result<Vec<StoredProgress>, Fault> {
        let rows = self.rows(select(&target.progress_table(), None)).await?;
        rows.iter().map(|row| StoredProgress::from_row(&self.subject, row)).collect()
    }
}

/// Returns a string literal that means this text whatever the connection's character set.
pub(super) fn literal(text: &str) -> String {
    let mut sql = String::from("_utf8mb4 ");
    push_bytes(&mut sql, text.as_bytes());
    sql
}

fn key(lane: &LaneId) -> String {
    format!(
        "`projection` = {} AND `source` = {} AND `lane` = {}",
        literal(&lane.projection),
        literal(&lane.source),
        lane.lane
    )
}

/// Selects all rows, or the row of one lane.
///
/// One lane's row is selected with a lock, which waits for a commit in progress of unknown outcome: the answer is
/// final.
pub(super) fn select(table: &str, lane: Option<&LaneId>) -> String {
    let columns: Vec<String> = COLUMNS.iter().map(|column| format!("CAST(`{column}` AS CHAR)")).collect();
    let columns = columns.join(", ");
    match lane {
        Some(lane) => format!("SELECT {columns} FROM {table} WHERE {} LOCK IN SHARE MODE", key(lane)),
        None => format!("SELECT {columns} FROM {table} ORDER BY `projection`, `source`, `lane`"),
    }
}

/// Inserts the row of a new lane unless it exists.
pub(super) fn insert(table: &str, lane: &LaneId, lanes: u32, layout: &str) -> String {
    format!(
        "INSERT INTO {table} (`projection`, `source`, `lane`, `lanes`, `layout`, `revision`, `position`, \
         `highest_position`, `highest_change`, `resume_file`, `resume_position`, `resume_gtid_set`, `server_flavor`, `server_id`, \
         `committed_at_us`, `rows_applied`, `checksum`, `updated_at`) \
         VALUES ({}, {}, {}, {lanes}, {}, 0, 0, 0, 0, '', 0, '', '', '', 0, 0, {}, UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE `lane` = `lane`",
        literal(&lane.projection),
        literal(&lane.source),
        lane.lane,
        literal(layout),
        checksum(&lane.projection, &lane.source, lane.lane, &Progress::default())
    )
}

/// Sets the revision alone, so that [`update`] to the next one may follow in the same transaction.
pub(super) fn set_revision(table: &str, lane: &LaneId, revision: u64) -> String {
    format!("UPDATE {table} SET `revision` = {revision} WHERE {}", key(lane))
}

/// Checks the fence and stores the new progress in one statement. It fails with error 1048 when the stored revision is
/// not the one before, and changes no row when the row is gone.
pub(super) fn update(table: &str, lane: &LaneId, progress: &Progress) -> String {
    let (sequence, id) = match &progress.message {
        Some((sequence, id)) => (sequence.to_string(), literal(id)),
        None => ("NULL".to_owned(), "NULL".to_owned()),
    };
    let refresh = refresh_text(progress).map_or("NULL".to_owned(), |text| literal(&text));
    format!(
        "UPDATE {table} SET `revision` = IF(`revision` = {}, {}, NULL), `position` = {}, `highest_position` = {}, `highest_change` = {}, \
         `resume_file` = {}, `resume_position` = {}, `resume_gtid_set` = {}, `server_flavor` = {}, `server_id` = {}, \
         `message_sequence` = {sequence}, `message_id` = {id}, `committed_at_us` = {}, `rows_applied` = {}, \
         `refresh` = {refresh}, `checksum` = {}, `updated_at` = UTC_TIMESTAMP(6) WHERE {}",
        progress.revision.saturating_sub(1),
        progress.revision,
        progress.position.as_u64(),
        progress.highest_position.as_u64(),
        progress.highest_change.as_u64(),
        literal(&progress.resume.file),
        progress.resume.position,
        literal(&progress.resume.gtid_set),
        literal(&progress.server.flavor),
        literal(&progress.server.id),
        progress.committed_at_us,
        progress.rows,
        checksum(&lane.projection, &lane.source, lane.lane, progress),
        key(lane)
    )
}

impl StoredProgress {
    /// Parses a row of [`select`]. An operator sets the checksum to NULL to confirm that the row is right.
    pub(super) fn from_row(subject: &str, row: &TextRow) -> Result<Self, Fault> {
        let mut cells = Cells { subject, row };
        let message = match (cells.optional("message_sequence"), cells.optional("message_id")) {
            (Some(_), Some(id)) => Some((cells.number("message_sequence")?, id.to_owned())),
            _ => None,
        };
        let reads = refresh_of(cells.optional("refresh"))
            .map_err(|error| cells.unreadable("refresh").caused_by(error))?;
        let stored_checksum: Option<u32> =
            cells.optional("checksum").is_some().then(|| cells.number("checksum")).transpose()?;
        let mut stored = Self {
            projection: cells.text("projection"),
            source: cells.text("source"),
            lane: cells.number("lane")?,
            lanes: cells.number("lanes")?,
            layout: cells.text("layout"),
            progress: Progress {
                revision: cells.number("revision")?,
                position: cells.lsn("position")?,
                highest_position: cells.lsn("highest_position")?,
                highest_change: cells.lsn("highest_change")?,
                resume: ResumePoint {
                    file: cells.text("resume_file"),
                    position: cells.number("resume_position")?,
                    gtid_set: cells.text("resume_gtid_set"),
                    ..reads.resume
                },
                server: ServerIdentity { flavor: cells.text("server_flavor"), id: cells.text("server_id") },
                message,
                committed_at_us: cells.number("committed_at_us")?,
                rows: cells.number("rows_applied")?,
                ..reads
            },
            is_trusted: false,
        };
        let expected = checksum(&stored.projection, &stored.source, stored.lane, &stored.progress);
        stored.is_trusted = stored_checksum.is_none_or(|found| found == expected);
        Ok(stored)
    }
}

/// A row whose cells are read by name.
struct Cells<'r> {
    subject: &'r str,
    row: &'r TextRow,
}

impl<'r> Cells<'r> {
    fn optional(&self, name: &'static str) -> Option<&'r str> {
        let index = COLUMNS.iter().position(|column| *column == name).expect("a name of the list above");
        self.row.get(index)?.as_deref()
    }

    fn text(&self, name: &'static str) -> String {
        self.optional(name).unwrap_or_default().to_owned()
    }

    fn number<T: FromStr>(&mut self, name: &'static str) -> Result<T, Fault> {
        self.optional(name).and_then(|text| text.parse().ok()).ok_or_else(|| self.unreadable(name))
    }

    fn lsn(&mut self, name: &'static str) -> Result<Lsn, Fault> {
        Lsn::from_u64(self.number(name)?).map_err(|error| self.unreadable(name).caused_by(error))
    }

    fn unreadable(&self, name: &str) -> Fault {
        Fault::new(
            Code::TargetProgressLost,
            format!("{}, progress row", self.subject),
            format!("column `{name}` holds no valid value"),
        )
        .needs("the row as Anabranch wrote it")
        .remedy("restore the control database together with the derived tables")
    }
}

#[cfg(test)]
mod tests {
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
    fn a_row_of_a_new_lane_reads_as_a_new_lane() {
        let checksum = checksum("birthday", "source-a", 1, &Progress::default());
        let text = format!("birthday,source-a,1,2,by_day,0,0,0,0,,0,,,,NULL,NULL,0,0,NULL,{checksum}");
        let row: TextRow = text.split(',').map(|cell| (cell != "NULL").then(|| cell.to_owned())).collect();
        assert_eq!(StoredProgress::from_row("target t", &row).unwrap(), stored());
    }

    #[test]
    fn a_row_that_was_changed_by_hand_is_not_trusted_unless_its_checksum_was_taken_out() {
        let checksum = checksum("birthday", "source-a", 1, &Progress::default());
        let read = |position: u32, checksum: &str| {
            let text =
                format!("birthday,source-a,1,2,by_day,0,{position},0,0,,0,,,,NULL,NULL,0,0,NULL,{checksum}");
            let row: TextRow =
                text.split(',').map(|cell| (cell != "NULL").then(|| cell.to_owned())).collect();
            StoredProgress::from_row("target t", &row).unwrap().is_trusted
        };
        assert!(read(0, &checksum.to_string()));
        assert!(!read(4711, &checksum.to_string()));
        assert!(read(4711, "NULL"));
    }

    #[test]
    fn a_damaged_row_is_named() {
        let row: TextRow = vec![Some("x".to_owned()); COLUMNS.len()];
        let fault = StoredProgress::from_row("target t", &row).unwrap_err();
        assert_eq!(fault.code(), Code::TargetProgressLost);
    }

    #[test]
    fn statements_are_ascii_whatever_the_texts_are() {
        let lane = LaneId { projection: "p".into(), target: "t".into(), source: "s'".into(), lane: 0 };
        let mut progress = Progress::default();
        progress.resume.file = "büch;.000001".into();
        progress.message = Some((7, "ä-7".into()));
        for sql in [update("`c`.`progress`", &lane, &progress), insert("`c`.`progress`", &lane, 2, "lä'yout")]
        {
            assert!(sql.is_ascii() && !sql.contains("s'\"") && !sql.contains(';'), "{sql}");
        }
    }
}
