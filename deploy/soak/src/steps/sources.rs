//! A source fails over to its replica, and a source forgets its binlog and begins anew.

use std::fs;
use std::time::Duration;

use anabranch_demo::{DemoError, Endpoint, FORGET_BINLOG, Result};
use anabranch_schemas::change::Entity;
use tokio::time::Instant;

use super::servers::on_thread;
use crate::journal::Journal;
use crate::site::{BEGINS_ANEW, FAILS_OVER, STANDBY, Site, TARGET};

/// Limit until a replica has every transaction of its source.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);
/// Seconds of one question for it, below the limit of an answer.
const CATCH_UP_SECONDS: u32 = 10;
/// Limit until a server lets go of binlogs that a killed reader has read.
const FORGET_MAX: Duration = Duration::from_secs(60);
/// Limit until every lane has begun anew and has read its tables: a task that could not reach its server pauses for up
/// to 60 s.
const BEGUN_MAX: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Rows that each table of users loses, and as many that change, while nothing reads them: few enough for the gate.
const UNREAD_ROWS: u32 = 8;
/// Option that the command names if the drift gate has refused it.
const REFUSAL: &str = "--open-gate";

impl Site {
    /// Kills the source while nothing writes, and the replica too, promotes it, and has every daemon read it.
    pub(super) async fn fail_over(&mut self, journal: &Journal) -> Result<()> {
        let fleet = self.fleet();
        let killed = fleet.kill_all(journal).await?;
        self.load.stop().await?;
        self.catch_up().await?;
        let source = self.server(FAILS_OVER)?;
        let old_url = source.url();
        on_thread(move || source.kill()).await?;
        self.kill_server(STANDBY, Duration::ZERO).await?;
        self.replace_source()?;
        let promote = "STOP REPLICA; RESET REPLICA ALL";
        self.admin(FAILS_OVER).await?.execute("promote the replica", promote).await?;
        self.replace_in_files(&old_url, &self.server(FAILS_OVER)?.url())?;
        killed.start()?;
        let before = self.load.changes_by_entity();
        self.load.start();
        journal.note("the replica is the source now");
        self.until_more_changes(&before).await
    }

    /// Has a source lose and change rows and forget its binlog while no daemon reads it, and lets it begin anew beside
    /// the load.
    pub(super) async fn begin_anew(&mut self, journal: &Journal) -> Result<()> {
        let fleet = self.fleet();
        let killed = fleet.kill_all(journal).await?;
        self.load.stop().await?;
        let lost = self.lose_rows().await?;
        journal.note(&format!("{BEGINS_ANEW} has lost {lost} rows"));
        if lost == 0 {
            journal.problem(format!("{BEGINS_ANEW} has no users that it could lose"));
        }
        self.forget_binlog().await?;
        killed.start()?;
        let before = self.load.changes_by_entity();
        self.load.start();
        // The command is refused until the server shows that it lacks what was read. An open gate is needed where a
        // truncated table has emptied more since the last reconciliation than the gate lets pass.
        self.beginnings += 1;
        let id = format!("soak-{}", self.beginnings);
        let confirmed =
            ["begin-anew", "--source", BEGINS_ANEW, "--confirm", BEGINS_ANEW, "--id", &id, "--json"];
        let begun = match self.command_unless(&confirmed, Some(REFUSAL)).await? {
            Some(begun) => begun,
            None => {
                journal.note("the gate refuses it: too many rows are missing since the last reconciliation");
                self.command(&[&confirmed[..], &[REFUSAL]].concat()).await?
            }
        };
        let begun: serde_json::Value = serde_json::from_str(begun.trim()).unwrap_or_default();
        let number = begun["beginning"].as_u64().unwrap_or_default();
        journal.note(&format!("{BEGINS_ANEW} begins anew (beginning {number})"));
        self.until_begun(number).await?;
        journal.note("its lanes have read their tables");
        self.until_more_changes(&before).await
    }

    /// Deletes and changes rows of each table of users; returns the number of deleted rows.
    async fn lose_rows(&self) -> Result<u64> {
        let mut connection = self.admin(BEGINS_ANEW).await?;
        let mut lost = 0;
        let is_there = |endpoint: &Endpoint| endpoint.name == BEGINS_ANEW;
        let users = self.tables().into_iter().filter(|(_, table)| table.entity == Entity::User);
        for (_, source_table) in users.filter(|(endpoint, _)| is_there(endpoint)) {
            let table = source_table.quoted();
            let few = format!("ORDER BY user_id LIMIT {UNREAD_ROWS}");
            let count = format!("SELECT COUNT(*) FROM (SELECT user_id FROM {table} {few}) AS few");
            lost += connection.first::<u64>("count rows", count).await?.unwrap_or_default();
            let change =
                format!("DELETE FROM {table} {few}; UPDATE {table} SET birthday = '1966-06-06' {few}");
            connection.execute("lose rows", change).await?;
        }
        Ok(lost)
    }

    async fn catch_up(&self) -> Result<()> {
        let mut source = self.admin(FAILS_OVER).await?;
        let end: Option<String> = source.first("read the end", "SELECT @@gtid_binlog_pos").await?;
        let wait = format!("SELECT MASTER_GTID_WAIT('{}', {CATCH_UP_SECONDS})", end.unwrap_or_default());
        let deadline = Instant::now() + CATCH_UP_MAX;
        while self.admin(STANDBY).await?.first::<i64>("wait for the replica", wait.as_str()).await? != Some(0)
        {
            if Instant::now() >= deadline {
                return Err(Self::late("the replica has every transaction".to_owned(), CATCH_UP_MAX));
            }
        }
        Ok(())
    }

    /// Has the configuration of each daemon name another server.
    fn replace_in_files(&self, old: &str, new: &str) -> Result<()> {
        for file in &self.files {
            let failed = |action| move |source| DemoError::File { action, path: file.clone(), source };
            let text = fs::read_to_string(file).map_err(failed("read"))?;
            fs::write(file, text.replace(old, new)).map_err(failed("write"))?;
        }
        Ok(())
    }

    async fn forget_binlog(&self) -> Result<()> {
        // The server refuses as long as the connection of a killed reader is there.
        let deadline = Instant::now() + FORGET_MAX;
        loop {
            let forgotten = self.admin(BEGINS_ANEW).await?.execute("forget the binlog", FORGET_BINLOG).await;
            match forgotten {
                Err(error) if error.is_binlog_in_use() && Instant::now() < deadline => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                ended => return ended,
            }
        }
    }

    /// Waits until every lane to tables has begun anew with this number, and reads no table any more.
    async fn until_begun(&self, number: u64) -> Result<()> {
        let lagging = format!(
            "SELECT COUNT(*) FROM anabranch.progress WHERE source = '{BEGINS_ANEW}' AND \
             (COALESCE(refresh, '') NOT REGEXP '^beginning:{number}( |$)' \
             OR refresh NOT REGEXP '^((beginning|fields):[0-9]+ ?)*$')"
        );
        let deadline = Instant::now() + BEGUN_MAX;
        while self.admin(TARGET).await?.first::<u64>("look at progress", lagging.as_str()).await? != Some(0) {
            if Instant::now() >= deadline {
                let what = format!("every lane of {BEGINS_ANEW} has begun anew and has read its tables");
                return Err(Self::late(what, BEGUN_MAX));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
