//! Carries actions out on servers and daemons. What is done to the content of stores stands in `stores.rs`, and what is
//! done about coupons in `coupons.rs`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anabranch_demo::{Connection, FORGET_BINLOG, SHOW_BINLOG_END, daemon as product};
use jiff::Timestamp;
use mysql_async::Row;
use serde_json::Value;
use tokio::time::Instant;

use super::daemon::Daemon;
use super::{CURRENT_MAX, POLL_INTERVAL, Site, blocking, has_paused, write_private};
use crate::error::{GamedayError, Result};
use crate::scenario::Action;

/// Limit until a server lets go of binlogs that a killed reader has read.
const PURGE_MAX: Duration = Duration::from_secs(60);
/// Time in which the workload changes rows that a stopped reader misses.
const MISSED_FOR: Duration = Duration::from_secs(3);
/// The name of a user whose row is damaged in the binlog, and that row: no workload has either, and the table is one of
/// the second source.
const DAMAGED: &str = "the-name-that-is-damaged";
const DAMAGED_ROW: &str = "
    DELETE FROM user_05.user_000 WHERE user_id = 5000000003;
    INSERT INTO user_05.user_000 (user_id, user_name, birthday)
    VALUES (5000000003, 'the-name-that-is-damaged', '1992-03-04')";
/// Head of the section of the configuration to which a setting is added.
const RECONCILE: &str = "[reconcile]\n";
/// A setting that makes another configuration, and changes nothing that a drill sees.
const OTHER_SETTING: &str = "lane_wait_seconds = 70\n";
/// Limit until a process that was started answers.
const PROCESS_MAX: Duration = Duration::from_secs(60);
/// Time in which a daemon that was frozen notices that others have its tasks.
const AWAKE_FOR: Duration = Duration::from_secs(10);

impl Site {
    /// Carries an action out; returns when its effect on the stack is reached.
    pub async fn act(&mut self, action: &Action) -> Result<()> {
        match *action {
            Action::Kill(name) => self.kill_server(name),
            Action::Start(name) => self.start_server(name),
            Action::Sql { server, statements } => self.run_sql(server, statements).await,
            Action::FillLog => self.fill_log().await,
            Action::EmptyLog => self.empty_log().await,
            Action::AskLog => self.ask_log().await,
            Action::FlushCache => self.flush_cache().await,
            Action::BlockIndex => self.block_index(true).await,
            Action::FreeIndex => self.block_index(false).await,
            Action::ForeignIndex => self.replace_index().await,
            Action::PurgeBinlog(source) => self.purge_binlog(source).await,
            Action::ForgetBinlog(source) => self.forget_binlog(source).await,
            Action::LoseUsers(source) => self.lose_users(source).await,
            Action::FailOverTooEarly(source) => self.fail_over_too_early(source).await,
            Action::DamageBinlog(source) => self.damage_binlog(source).await,
            Action::StopAtUnseenChanges => self.stop_at_unseen_changes().await,
            Action::TakeSourceOut(source) => self.take_source_out(source).await,
            Action::RestoreFile => self.restore_file().await,
            Action::AwaitPause => self.await_pause().await,
            Action::PauseLoad => Ok(self.load.stop().await?),
            Action::ResumeLoad => {
                self.load.start();
                Ok(())
            }
            Action::Drift => self.plant_drift().await,
            Action::DriftAgain => self.delete_derived_row().await,
            Action::ForgeMessage(source) => self.forge_message(source).await,
            Action::DeleteStream(source) => self.delete_stream(source).await,
            Action::ShortCertificate(source) => self.shorten_certificate(source),
            Action::Command(arguments) => self.command(&self.with_file(arguments), "").await.map(drop),
            Action::CommandAt { seconds, arguments } => self.command_at(seconds, arguments).await,
            Action::KillDaemon => self.main.kill(),
            Action::RestartDaemon(times) => self.restart_daemon(times).await,
            Action::StartDaemon => self.start_daemon(&[]),
            Action::StartDaemonWithClock => self.start_daemon_with_clock().await,
            Action::StepClock(seconds) => self.step_clock(seconds),
            Action::StartSecondDaemon | Action::RestartSecondDaemon => self.start_second_daemon("").await,
            Action::StartOtherDaemon => self.start_second_daemon(OTHER_SETTING).await,
            Action::EndSecondDaemon => self.end_second_daemon(),
            Action::FreezeDaemon => {
                self.main.freeze();
                Ok(())
            }
            Action::ThawDaemon => self.thaw_daemon().await,
            Action::AskReadiness => {
                let _no_answer_is_one_too = self.shown().ask("readyz").await;
                Ok(())
            }
            Action::ReadLog => {
                eprintln!("{}", self.main.log_tail());
                Ok(())
            }
            Action::BeginProgramme { name, days_ago } => self.begin_programme(name, days_ago).await,
            Action::EndProgramme => self.end_programme(),
            Action::TakeRoles(roles) => self.take_roles(roles),
            Action::StartCouponSystem => self.start_coupon_system().await,
            Action::StopCouponSystem => {
                self.stop_coupon_system();
                Ok(())
            }
            Action::MismatchCoupons => self.mismatch_coupons().await,
            Action::AwaitCoupons => self.await_coupons().await,
            Action::RestoreLedger => self.restore_ledger().await,
            Action::WriteStatement => self.write_statement().await,
            Action::BeginPayments => self.begin_payments().await,
            Action::OrderIdentifier { is_refused } => self.order_identifier(is_refused).await,
        }
    }

    fn kill_server(&self, name: &str) -> Result<()> {
        let server = self.server(name)?;
        Ok(blocking(|| server.kill())?)
    }

    fn start_server(&self, name: &str) -> Result<()> {
        let server = self.server(name)?;
        Ok(blocking(|| server.restart())?)
    }

    async fn run_sql(&self, server: &str, statements: &str) -> Result<()> {
        Ok(self.admin(server).await?.execute("run the drill's statements", statements).await?)
    }

    fn shorten_certificate(&self, source: &str) -> Result<()> {
        let flags = self.certificate.flags();
        let server = self.server(source)?;
        Ok(blocking(|| server.restart_with(&flags.each_ref().map(String::as_str)))?)
    }

    /// Purges while the daemon is away and the workload changes rows.
    async fn purge_binlog(&self, source: &str) -> Result<()> {
        tokio::time::sleep(MISSED_FOR).await;
        let mut admin = self.admin(source).await?;
        admin.execute("begin a new binlog", "FLUSH BINARY LOGS").await?;
        let newest = newest_binlog(&mut admin).await?;
        // The server keeps files in use by a reader, and the killed daemon's connection may end a moment later.
        let deadline = Instant::now() + PURGE_MAX;
        loop {
            admin.execute("purge", format!("PURGE BINARY LOGS TO '{newest}'")).await?;
            if admin.rows::<Row>("list the binlogs", "SHOW BINARY LOGS").await?.len() == 1 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("the old binlogs of {source} are purged");
                return Err(GamedayError::Late { what, seconds: PURGE_MAX.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Writes a row of a captured table, and flips a bit of it in the binlog: one of the rows event, as the text of the
    /// statement stands before it. The server does not check the event when it sends it.
    async fn damage_binlog(&self, source: &str) -> Result<()> {
        let mut admin = self.admin(source).await?;
        admin.execute("write a row", DAMAGED_ROW).await?;
        let path = self.server(source)?.folder().join("db").join(newest_binlog(&mut admin).await?);
        let failed = |source| GamedayError::File { action: "damage", path: path.clone(), source };
        let bytes = fs::read(&path).map_err(failed)?;
        let Some(at) = bytes.windows(DAMAGED.len()).rposition(|part| part == DAMAGED.as_bytes()) else {
            let reason = "its binlog lacks the row".to_owned();
            return Err(GamedayError::AnswerUnfit { server: "the source", reason });
        };
        let binlog = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        binlog.write_all_at(&[bytes[at] ^ 0b10], at as u64).map_err(failed)
    }

    async fn forget_binlog(&mut self, source: &str) -> Result<()> {
        self.load.stop().await?;
        let forgotten = self.reset_binlog(source).await;
        self.load.start();
        forgotten
    }

    /// Has a source forget its binlog. It refuses as long as the connection of a killed reader is there.
    pub(super) async fn reset_binlog(&self, source: &str) -> Result<()> {
        let mut admin = self.admin(source).await?;
        let deadline = Instant::now() + PURGE_MAX;
        loop {
            match admin.execute("forget the binlog", FORGET_BINLOG).await {
                Err(error) if error.is_binlog_in_use() && Instant::now() < deadline => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                ended => return Ok(ended?),
            }
        }
    }

    /// Starts the first daemon, after an orderly stop if it runs.
    pub(super) fn start_daemon(&mut self, environment: &[(String, String)]) -> Result<()> {
        self.main.stop()?;
        let port = self.main.port();
        let (file, roles) = (&self.file, self.roles);
        self.main = Daemon::start(&self.stack, &self.binary, (file, port), (environment, roles))?;
        if environment.is_empty() {
            self.clock = None;
        }
        Ok(())
    }

    /// Kills the daemon and starts it again, `times` times. It waits until Prometheus has scraped each new process: the
    /// rule on restarts counts only processes that were scraped.
    async fn restart_daemon(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.main.kill()?;
            let killed = Timestamp::now().as_millisecond();
            self.start_daemon(&[])?;
            self.until(PROCESS_MAX, "the restarted daemon answers", |_| true).await?;
            let instance = format!("127.0.0.1:{}", self.main.port());
            let started = format!("process_start_time_seconds{{job=\"anabranch\", instance=\"{instance}\"}}");
            let started_since = format!("{started} * 1000 > {killed}");
            self.until_scraped(&started_since, "the restarted daemon").await?;
        }
        Ok(())
    }

    async fn await_pause(&self) -> Result<()> {
        self.until(CURRENT_MAX, "the tasks of the paused lanes have ended their work", has_paused).await
    }

    /// Waits until the daemon answers with such a status.
    async fn until(&self, limit: Duration, what: &str, is_reached: fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if self.status().await.is_some_and(|status| is_reached(&status)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(GamedayError::Late { what: what.to_owned(), seconds: limit.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Starts the daemon with a clock of its own, and waits until it works.
    async fn start_daemon_with_clock(&mut self) -> Result<()> {
        let (clock, variables) = blocking(|| self.stack.clock("gameday"))?;
        clock.step_to(0)?;
        self.start_daemon(&variables)?;
        self.clock = Some(clock);
        self.until_current(CURRENT_MAX).await
    }

    /// Runs a command with a clock of its own.
    async fn command_at(&self, seconds: i64, arguments: &[&str]) -> Result<()> {
        let (clock, variables) = blocking(|| self.stack.clock("gameday-command"))?;
        clock.step_to(seconds)?;
        self.command_with(&self.with_file(arguments), "", &variables).await?;
        Ok(())
    }

    fn step_clock(&self, seconds: i64) -> Result<()> {
        match &self.clock {
            Some(clock) => Ok(clock.step_to(seconds)?),
            // The daemon has the machine's clock already.
            None => Ok(()),
        }
    }

    /// Starts a second daemon, after an orderly stop if it runs, and waits until it shows everything as current. It has
    /// the configuration of the first daemon, a port of its own, and this line.
    async fn start_second_daemon(&mut self, setting: &str) -> Result<()> {
        let port = match self.second.take() {
            Some(mut second) => {
                second.stop()?;
                second.port()
            }
            None => product::free_port()?,
        };
        let listen = |port: u16| format!("listen = \"127.0.0.1:{port}\"");
        let failed = |source| GamedayError::File { action: "read", path: self.file.clone(), source };
        let text = std::fs::read_to_string(&self.file).map_err(failed)?;
        let file = self.file.with_file_name("gameday-second.toml");
        let text = text.replace(&listen(self.main.port()), &listen(port));
        write_private(&file, &text.replacen(RECONCILE, &format!("{RECONCILE}{setting}"), 1))?;
        self.second = Some(Daemon::start(&self.stack, &self.binary, (&file, port), (&[], &[]))?);
        self.prometheus.scrape_also(Some(port))?;
        self.until_current(CURRENT_MAX).await
    }

    fn end_second_daemon(&mut self) -> Result<()> {
        self.prometheus.scrape_also(None)?;
        self.main.thaw();
        match self.second.take() {
            Some(mut second) => second.stop(),
            None => Ok(()),
        }
    }

    /// Lets the frozen daemon continue, and notes the codes that it shows when it finds its tasks taken.
    async fn thaw_daemon(&self) -> Result<()> {
        self.main.thaw();
        let deadline = Instant::now() + AWAKE_FOR;
        while Instant::now() < deadline {
            if let Some(status) = self.main.ask("v1/status").await {
                self.note(&status);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

async fn newest_binlog(admin: &mut Connection) -> Result<String> {
    let newest = admin.first::<Row>("find the newest binlog", SHOW_BINLOG_END).await?;
    newest.as_ref().and_then(|row| row.get(0)).ok_or_else(|| GamedayError::AnswerUnfit {
        server: "the source",
        reason: "it names no newest binlog".to_owned(),
    })
}
