//! The progress row as SQL: select, first insert, and the fenced update that begins each flush.
//!
//! The fence is `revision = IF(revision = old, new, NULL)` on a NOT NULL column: in strict mode a stale writer's
//! statement fails with error 1048, and its transaction changes nothing.

use std::fmt::Write as _;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::{LaneId, Progress};

use super::MysqlTarget;
use super::session::{Session, TextRow};
use crate::mysql::connection::push_bytes;
use crate::progress::{self, StoredProgress, Value};

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
    let columns: Vec<String> =
        progress::columns().map(|column| format!("CAST(`{column}` AS CHAR)")).collect();
    let columns = columns.join(", ");
    match lane {
        Some(lane) => format!("SELECT {columns} FROM {table} WHERE {} LOCK IN SHARE MODE", key(lane)),
        None => format!("SELECT {columns} FROM {table} ORDER BY `projection`, `source`, `lane`"),
    }
}

/// Returns a value as SQL.
fn sql(value: Value<'_>) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => literal(&text),
    }
}

/// Inserts the row of a new lane unless it exists.
pub(super) fn insert(table: &str, lane: &LaneId, lanes: u32, layout: &str) -> String {
    let (mut columns, mut values) = (String::new(), String::new());
    for (column, value) in progress::row(lane, lanes, layout, &Progress::default()) {
        let _ = write!(columns, "`{column}`, ");
        let _ = write!(values, "{}, ", sql(value));
    }
    format!(
        "INSERT INTO {table} ({columns}`updated_at`) VALUES ({values}UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE `lane` = `lane`"
    )
}

/// Sets the revision alone, so that [`update`] to the next one may follow in the same transaction.
pub(super) fn set_revision(table: &str, lane: &LaneId, revision: u64) -> String {
    format!("UPDATE {table} SET `revision` = {revision} WHERE {}", key(lane))
}

/// Checks the fence and stores the new progress in one statement. It fails with error 1048 when the stored revision is
/// not the one before, and changes no row when the row is gone.
pub(super) fn update(table: &str, lane: &LaneId, progress: &Progress) -> String {
    let mut update = format!(
        "UPDATE {table} SET `revision` = IF(`revision` = {}, {}, NULL)",
        progress.revision.saturating_sub(1),
        progress.revision
    );
    for (column, value) in progress::written(lane, progress) {
        if column != "revision" {
            let _ = write!(update, ", `{column}` = {}", sql(value));
        }
    }
    update + ", `updated_at` = UTC_TIMESTAMP(6) WHERE " + &key(lane)
}

impl StoredProgress {
    /// Parses a row of [`select`].
    pub(super) fn from_row(subject: &str, row: &TextRow) -> Result<Self, Fault> {
        let cell = |name: &'static str, is_number: bool| {
            let index = progress::columns().position(|column| column == name)?;
            match row.get(index)?.as_deref() {
                None => Some(Value::Null),
                Some(text) if is_number => text.parse().ok().map(Value::Number),
                Some(text) => Some(Value::Text(text.into())),
            }
        };
        Self::read(cell).map_err(|invalid| {
            Fault::new(
                Code::TargetProgressLost,
                format!("{subject}, progress row"),
                format!("column `{}` holds no valid value", invalid.name),
            )
            .needs("the row as Anabranch wrote it")
            .remedy("restore the control database together with the derived tables")
            .caused_by(invalid.cause)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the checksum of a lane without progress.
    fn checksum_of_a_new_lane() -> String {
        let lane =
            LaneId { projection: "birthday".into(), target: "t".into(), source: "source-a".into(), lane: 1 };
        let progress = Progress::default();
        let row = progress::row(&lane, 2, "by_day", &progress);
        row.into_iter().next_back().map(|(_, value)| sql(value)).unwrap()
    }

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
        let checksum = checksum_of_a_new_lane();
        let text = format!("birthday,source-a,1,2,by_day,0,0,0,0,,0,,,,NULL,NULL,0,0,NULL,{checksum}");
        let row: TextRow = text.split(',').map(|cell| (cell != "NULL").then(|| cell.to_owned())).collect();
        assert_eq!(StoredProgress::from_row("target t", &row).unwrap(), stored());
    }

    #[test]
    fn a_row_that_was_changed_by_hand_is_not_trusted_unless_its_checksum_was_taken_out() {
        let checksum = checksum_of_a_new_lane();
        let read = |position: u32, checksum: &str| {
            let text =
                format!("birthday,source-a,1,2,by_day,0,{position},0,0,,0,,,,NULL,NULL,0,0,NULL,{checksum}");
            let row: TextRow =
                text.split(',').map(|cell| (cell != "NULL").then(|| cell.to_owned())).collect();
            StoredProgress::from_row("target t", &row).unwrap().is_trusted
        };
        assert!(read(0, &checksum));
        assert!(!read(4711, &checksum));
        assert!(read(4711, "NULL"));
    }

    #[test]
    fn a_damaged_row_is_named() {
        let row: TextRow = vec![Some("x".to_owned()); progress::columns().count()];
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
