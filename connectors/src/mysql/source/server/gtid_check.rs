//! Checks whether the event at a position of MySQL's binlog contradicts a set of groups before it.
//!
//! MariaDB reports the GTIDs at a position; MySQL has no such query. That MySQL has all the groups proves little: a
//! server that was reset numbers its new groups like the old ones. But on such a server hardly ever a group starts at
//! the position, or it is one that the set has. A group that the set only lacks proves nothing: `gtid_purged` names
//! groups that no file has.

use anabranch_pipeline::error::{Code, Fault};

use super::session::{Session, column_text};
use crate::mysql::source::decode::gtid::{Flavor, Gtids};

/// An event as the server lists it.
struct ListedEvent {
    position: u64,
    kind: String,
    info: String,
}

impl Session {
    /// Whether the position can be the one after these groups (MySQL). The file must be kept and at least that long.
    pub async fn may_be_after(&mut self, gtids: &Gtids, file: &str, position: u64) -> Result<bool, Fault> {
        let found = match self.events(file, &format!("FROM {position} LIMIT 1")).await {
            // The server gives the same error for a file that was purged meanwhile.
            Err(fault) if fault.code() == Code::BinlogEventCorrupt => {
                let is_kept = self.binlogs().await?.iter().any(|(name, _)| name == file);
                return if is_kept { Ok(false) } else { Err(self.purged_meanwhile(file)) };
            }
            found => found?,
        };
        let Some(event) = found.first() else { return Ok(true) };
        match event.kind.as_str() {
            // No event begins there: the server shows the next one.
            _ if event.position != position => Ok(false),
            kind if kind.starts_with("Gtid") => Ok(next(&event.info).is_some_and(|next| !gtids.hold(&next))),
            "Rotate" | "Stop" => Ok(true),
            "Format_desc" | "Previous_gtids" => self.may_be_before(gtids, file).await,
            // Any other event is in the middle of a group.
            _ => Ok(false),
        }
    }

    async fn events(&mut self, file: &str, which: &str) -> Result<Vec<ListedEvent>, Fault> {
        let file = file.replace(['\'', '\\'], "");
        let rows = self.rows(format!("SHOW BINLOG EVENTS IN '{file}' {which}")).await?;
        Ok(rows
            .iter()
            .map(|row| ListedEvent {
                position: column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0),
                kind: column_text(row, 2).unwrap_or_default(),
                info: column_text(row, 5).unwrap_or_default(),
            })
            .collect())
    }

    /// Whether the set and the groups before a file agree on the last group that the server itself numbered, as far as
    /// both have one.
    async fn may_be_before(&mut self, gtids: &Gtids, file: &str) -> Result<bool, Fault> {
        let server = self.identity().await?;
        // The first two events are the file's format and the groups before it.
        let found = self.events(file, "LIMIT 2").await?;
        let before = found.iter().find(|event| event.kind == "Previous_gtids");
        let before = before.and_then(|event| Gtids::parse(Flavor::MySql, &event.info.replace('\n', "")));
        let last = |set: &Gtids| set.last_of(&server.id);
        let before = before.as_ref().and_then(last);
        Ok(before.is_none() || last(gtids).is_none_or(|last| Some(last) == before))
    }

    fn purged_meanwhile(&self, file: &str) -> Fault {
        Fault::new(
            Code::SourceUnreachable,
            self.subject(),
            format!("binlog file {file} was purged while it was read"),
        )
    }
}

/// Reads the group of `SET @@SESSION.GTID_NEXT= 'uuid:tag:7'`.
fn next(info: &str) -> Option<Gtids> {
    Gtids::parse(Flavor::MySql, info.split('\'').nth(1)?)
}
