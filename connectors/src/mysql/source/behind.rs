//! Whether a place of MySQL's binlog is right behind a set of groups.
//!
//! MariaDB is asked for the GTIDs at a place. MySQL has no such question; that it has all the groups says little, as a
//! server that was reset numbers its new ones as the old. So what stands at the place must continue the set: the next
//! group, or the file behind.

use anabranch_pipeline::error::{Code, Fault};

use super::gtid::{Flavor, Gtids};
use super::session::{Session, column_text};

/// The first events of a file: its format, and the groups before it.
const FIRST_EVENTS: &str = "LIMIT 2";
/// While groups are committed, the end of the binlog may be another one at each look.
const LOOKS: usize = 3;

/// An event as the server lists it.
struct Listed {
    position: u64,
    kind: String,
    info: String,
}

impl Session {
    /// MySQL; the file is among those that are kept. What another server wrote is followed only to the next group.
    pub(super) async fn is_behind(
        &mut self,
        gtids: &Gtids,
        file: &str,
        position: u64,
    ) -> Result<bool, Fault> {
        for _ in 0..LOOKS {
            let found = match self.events(file, &format!("FROM {position} LIMIT 1")).await {
                Err(fault) if fault.code() == Code::BinlogEventCorrupt => return Ok(false),
                found => found?,
            };
            match found.first() {
                // None begins there, and it shows the next one.
                Some(event) if event.position != position => return Ok(false),
                Some(event) if event.kind.starts_with("Gtid") => {
                    return self.is_next(gtids, &event.info).await;
                }
                Some(event) if !matches!(event.kind.as_str(), "Rotate" | "Stop") => return Ok(true),
                _ => {}
            }
            if let Some(next) = self.file_behind(file).await? {
                return self.is_before(gtids, &next).await;
            }
            if !self.has_more_than(gtids).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn events(&mut self, file: &str, which: &str) -> Result<Vec<Listed>, Fault> {
        let file = file.replace(['\'', '\\'], "");
        let rows = self.rows(format!("SHOW BINLOG EVENTS IN '{file}' {which}")).await?;
        Ok(rows
            .iter()
            .map(|row| Listed {
                position: column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0),
                kind: column_text(row, 2).unwrap_or_default(),
                info: column_text(row, 5).unwrap_or_default(),
            })
            .collect())
    }

    async fn file_behind(&mut self, file: &str) -> Result<Option<String>, Fault> {
        let files = self.binlogs().await?.into_iter().map(|(name, _)| name);
        Ok(files.skip_while(|name| name != file).nth(1))
    }

    /// Whether these are the groups before a file.
    async fn is_before(&mut self, gtids: &Gtids, file: &str) -> Result<bool, Fault> {
        let found = self.events(file, FIRST_EVENTS).await?;
        let before = found.iter().find(|event| event.kind == "Previous_gtids");
        let before = before.and_then(|event| Gtids::parse(Flavor::MySql, &event.info.replace('\n', "")));
        Ok(before.is_some_and(|before| before.is(gtids)))
    }

    /// Whether the group of `SET @@SESSION.GTID_NEXT= 'uuid:tag:7'` is none of these, and the one before it is, if the
    /// server numbers it itself.
    async fn is_next(&mut self, gtids: &Gtids, info: &str) -> Result<bool, Fault> {
        let server = self.identity().await?;
        let next = info.split('\'').nth(1).and_then(|gtid| gtid.rsplit_once(':'));
        let Some((of, Ok(number))) = next.map(|(of, number)| (of, number.parse::<u64>())) else {
            return Ok(false);
        };
        let holds = |number: u64| {
            let group = Gtids::parse(Flavor::MySql, &format!("{of}:{number}"));
            group.is_some_and(|group| gtids.hold(&group))
        };
        let is_own = of.split(':').next().is_some_and(|uuid| uuid.eq_ignore_ascii_case(&server.id));
        Ok(!holds(number) && (!is_own || number == 1 || holds(number - 1)))
    }
}
