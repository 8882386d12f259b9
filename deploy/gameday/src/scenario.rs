//! A drill as data: the fault, the alert that it needs, what the page shows, and the runbook's steps that end it.

use std::time::Duration;

use serde_json::Value;

/// One drill.
#[derive(Debug)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// The fault, as the report names it.
    pub fault: &'static str,
    pub inject: &'static [Action],
    pub alert: Expected,
    pub shown: Shown,
    /// Limit from the fault until the daemon's status shows it.
    pub shown_within: Duration,
    /// Sections whose steps are taken, one after the other.
    pub sections: &'static [Section],
    /// Values of the runbook's words in capitals; a command is run once for each value.
    pub words: &'static [(&'static str, &'static [&'static str])],
    /// Work after the drill that belongs to no runbook, such as ending a second daemon.
    pub afterwards: &'static [Action],
}

/// The alert that a fault fires.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    Alert {
        name: &'static str,
        /// Labels that the firing alert has.
        labels: &'static [(&'static str, &'static str)],
        condition: Condition,
    },
    /// Nobody is woken, for this reason.
    Nobody(&'static str),
}

/// The time that an alert's expression needs, beside its `for`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It is true at the next scrape, and false again at the first one after the repair.
    AtOnce,
    /// The daemon tries for so long before it reports a fault.
    After(Duration),
    /// A spot check must look at the row, and the expression looks back over a range.
    AfterSpotCheck,
    /// It is true at the next scrape, and the expression looks back over a range.
    OverRange,
}

/// The signs of a fault that the daemon shows.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// A source, lane, store or task has this code.
    Code(&'static str),
    /// The newest reconciliation has this verdict.
    Verdict(&'static str),
    /// A document is parked.
    DeadLetter,
    /// The status has this sign, and the page's sentence contains this text.
    Sentence { sign: fn(&Value) -> bool, text: &'static str },
    /// A lane reads a table again, or waits until it can.
    Refreshing,
    /// The newest coupon day counts something under this name.
    Coupons(&'static str),
    /// Another daemon works on every task, and its page shows that.
    TakenOver,
    /// No daemon answers, so there is no page.
    NoAnswer,
    /// Everything stays current, for this reason.
    Current(&'static str),
}

/// A section of the runbook with the meaning of its steps.
#[derive(Debug)]
pub struct Section {
    pub heading: &'static str,
    /// Steps that are no commands of `anabranch`, or mean something else in the stack.
    pub table: &'static [Step],
}

/// A text of the runbook and its meaning in the stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub text: &'static str,
    pub means: Meaning,
}

/// The meaning of a step in the stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning {
    Do(&'static [Action]),
    /// The step is left out, for this reason.
    Leave(&'static str),
}

/// Something that is done to the stack, the daemon or the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ends a server with SIGKILL.
    Kill(&'static str),
    /// Starts a server with its own flags, after an orderly stop if it runs.
    Start(&'static str),
    /// Runs statements on a server as its administrator.
    Sql {
        server: &'static str,
        statements: &'static str,
    },
    /// Fills the storage of NATS by a stream of somebody else.
    FillLog,
    EmptyLog,
    /// Asks NATS for the use of the account, as `nats account info` does.
    AskLog,
    FlushCache,
    BlockIndex,
    FreeIndex,
    /// Replaces the index by one with a foreign mapping, and adds a device that it rejects.
    ForeignIndex,
    /// Removes all binlogs of a source but the newest one.
    PurgeBinlog(&'static str),
    /// Lets a source forget its binlog and its GTIDs.
    ForgetBinlog(&'static str),
    /// Removes three of four users of a source beside its binlog, and lets it forget the binlog.
    LoseUsers(&'static str),
    /// Kills the daemon, has a source fail over to a server that lacks the last transaction, and starts the daemon.
    FailOverTooEarly(&'static str),
    /// Flips a bit of a row in the newest binlog of a source.
    DamageBinlog(&'static str),
    /// Starts the daemon with `unseen_changes = "stop"`, until [`Action::RestoreFile`].
    StopAtUnseenChanges,
    /// Starts the daemon with a file that lacks a source, until [`Action::RestoreFile`].
    TakeSourceOut(&'static str),
    /// Starts the daemon with the file of the beginning.
    RestoreFile,
    /// Waits until the tasks of all paused lanes have ended their work.
    AwaitPause,
    /// Ends the changes of the workload until [`Action::ResumeLoad`].
    PauseLoad,
    ResumeLoad,
    /// Deletes the derived row of a user whose row has just changed.
    Drift,
    /// Deletes the same derived row once more.
    DriftAgain,
    /// Appends a copy of a message of this source to the log, whose head announces a change too many.
    ForgeMessage(&'static str),
    /// Deletes the stream of a source.
    DeleteStream(&'static str),
    /// Restarts a source with a certificate that ends within a day.
    ShortCertificate(&'static str),
    /// Runs a command of the product, whatever its exit code is.
    Command(&'static [&'static str]),
    /// Runs a command whose wall clock is so many seconds off the machine's, whatever its exit code is.
    CommandAt {
        seconds: i64,
        arguments: &'static [&'static str],
    },
    KillDaemon,
    /// Kills and starts the daemon so many times; Prometheus scrapes each process.
    RestartDaemon(u32),
    /// Starts the daemon, after an orderly stop if it runs.
    StartDaemon,
    /// Starts the daemon as [`Action::StartDaemon`] does, with a wall clock that can be stepped.
    StartDaemonWithClock,
    /// Steps the daemon's wall clock to so many seconds off the machine's.
    StepClock(i64),
    /// Starts a second daemon with the configuration of the first, which Prometheus scrapes too.
    StartSecondDaemon,
    /// Starts a second daemon with another configuration.
    StartOtherDaemon,
    /// Starts the second daemon anew, with the configuration of the first.
    RestartSecondDaemon,
    EndSecondDaemon,
    /// Freezes the first daemon (SIGSTOP).
    FreezeDaemon,
    /// Lets it continue (SIGCONT).
    ThawDaemon,
    /// Asks `/readyz`, which may have no answer.
    AskReadiness,
    /// Reads the end of the daemon's log.
    ReadLog,
    /// Adds a programme of coupons whose first day is so many days ago by the daemon's clock.
    BeginProgramme {
        name: &'static str,
        days_ago: u32,
    },
    EndProgramme,
    /// Starts the daemon anew with these roles alone; none = all of them.
    TakeRoles(&'static [&'static str]),
    StartCouponSystem,
    StopCouponSystem,
    /// Has the coupon system answer one request that it knows each key with another coupon.
    MismatchCoupons,
    /// Waits until each member of every coupon day has a coupon.
    AwaitCoupons,
    /// Puts the copy of the ledger from before the programme's first coupon in its place.
    RestoreLedger,
    /// Writes the statement of the coupon system into files.
    WriteStatement,
    /// Starts the daemon with counters of payment documents, until [`Action::RestoreFile`], and orders identifiers.
    BeginPayments,
    /// Orders an identifier of a payment document. The counter must refuse it or give one out.
    OrderIdentifier {
        is_refused: bool,
    },
}
