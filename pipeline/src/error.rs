//! One kind of error for everything that an operator or a client can meet: a [`Fault`] with a stable [`Code`]. A
//! condition has one code in logs, on the command line and in answers of the HTTP API.
//!
//! A fault names its subject, the state that was found, the state that is needed and the remedy. It never holds row
//! values or secrets. [`Code::class`] decides exit codes and HTTP statuses, [`Code::stops_after`] whether a task ends
//! by it; `deploy/RUNBOOK.md` has one heading for each code.

use std::error::Error as StdError;
use std::fmt;

/// Prospect of a retry; exit codes and HTTP statuses follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The condition may pass by itself.
    Transient,
    /// The same request fails every time, until a person mends the cause.
    Definite,
    /// An assumption of Anabranch's own code is broken.
    Bug,
}

macro_rules! codes {
    (@attempts) => { None };
    (@attempts $attempts:literal) => { Some($attempts) };
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal, $class:ident $(, stops $attempts:literal)?;)+) => {
        /// Stable error codes. Logs, `status` and the runbook show their texts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Code {
            pub const ALL: &[Code] = &[$(Code::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text),+ }
            }

            pub fn class(self) -> Class {
                match self { $(Code::$variant => Class::$class),+ }
            }

            /// Number of attempts in a row that end with this code at the same position, after which a task stops until
            /// an operator asks for a restart. `None`: the task retries for ever, since the cause outside may heal.
            pub fn stops_after(self) -> Option<u32> {
                match self { $(Code::$variant => codes!(@attempts $($attempts)?)),+ }
            }
        }
    };
}

codes! {
    /// The configuration file cannot be read.
    ConfigUnreadable = "config-unreadable", Definite;
    /// The configuration is not TOML, has unknown keys or values that make no sense.
    ConfigInvalid = "config-invalid", Definite;
    /// A file that a command is to write is there already, or cannot be written.
    FileUnwritable = "file-unwritable", Definite;

    /// A reconciliation was requested that cannot be run.
    ReconcileRefused = "reconcile-refused", Definite;
    /// A past reconciliation differs from what was signed.
    HistoryBroken = "history-broken", Definite;

    /// The connection to a source failed or broke.
    SourceUnreachable = "source-unreachable", Transient;
    /// The source sent nothing in time, not even a heartbeat.
    SourceStalled = "source-stalled", Transient;
    /// The source refused the user, the password or TLS.
    SourceAccessDenied = "source-access-denied", Definite;
    /// A privilege is missing on the source.
    SourceGrantMissing = "source-grant-missing", Definite;
    /// The binary log is off.
    SourceBinlogOff = "source-binlog-off", Definite;
    /// `binlog_format` is not ROW.
    SourceFormatNotRow = "source-format-not-row", Definite;
    /// `binlog_row_image` is not FULL.
    SourceImageNotFull = "source-image-not-full", Definite;
    /// `binlog_row_metadata` is not FULL, so events carry no column names.
    SourceMetadataNotFull = "source-metadata-not-full", Definite;
    /// GTIDs are off.
    SourceGtidOff = "source-gtid-off", Definite;
    /// No table matches a configured pattern.
    SourceTableMissing = "source-table-missing", Definite;
    /// A captured table lacks a captured column.
    SourceColumnMissing = "source-column-missing", Definite;
    /// A captured table has two columns whose names are those of one captured column.
    SourceColumnAmbiguous = "source-column-ambiguous", Definite;
    /// A captured column has a type that cannot be captured.
    SourceColumnUnsupported = "source-column-unsupported", Definite;
    /// A captured table has no primary key by which its rows can be read a part at a time.
    SourceTableUnkeyed = "source-table-unkeyed", Definite;
    /// A captured table keeps the history of its rows and logs that history as rows too.
    SourceTableVersioned = "source-table-versioned", Definite;
    /// A captured table has an engine without transactions.
    SourceTableNotTransactional = "source-table-not-transactional", Definite;
    /// The server was reset or restored, or cannot be compared with the one that wrote the log so far.
    SourceServerChanged = "source-server-changed", Definite, stops 1;
    /// Another server lacks transactions that were read from the server before it.
    SourceDiverged = "source-diverged", Definite, stops 1;
    /// The binlog that is needed next was purged.
    BinlogPurged = "binlog-purged", Definite;
    /// The server cannot start from the configured or stored GTID set.
    BinlogGtidUnknown = "binlog-gtid-unknown", Definite, stops 1;
    /// An event has a type that this build does not know.
    BinlogEventUnknown = "binlog-event-unknown", Definite, stops 1;
    /// An event's checksum or structure is wrong.
    BinlogEventCorrupt = "binlog-event-corrupt", Definite, stops 3;
    /// A data change on a captured table was logged as a statement.
    BinlogStatement = "binlog-statement", Definite, stops 1;
    /// Captured rows were undone to a savepoint that the binlog does not have.
    BinlogRolledBackRows = "binlog-rolled-back-rows", Definite, stops 1;
    /// An XA branch was committed whose rows were not read.
    BinlogXaUnread = "binlog-xa-unread", Definite, stops 1;
    /// Rows whose transaction has no outcome yet cannot be kept in a temporary file.
    SourceSpillFailed = "source-spill-failed", Transient;
    /// A captured column was dropped, renamed or retyped while running.
    SourceSchemaChanged = "source-schema-changed", Definite, stops 1;

    /// The connection to the cache failed or broke.
    CacheUnreachable = "cache-unreachable", Transient;
    /// The cache refused the user, the password or a command.
    CacheAccessDenied = "cache-access-denied", Definite;
    /// The cache answered with an error: out of memory, a replica, a key of another type.
    CacheRejected = "cache-rejected", Transient;

    /// The connection to NATS failed or broke.
    LogUnreachable = "log-unreachable", Transient;
    /// NATS refused the user, the password or TLS.
    LogAccessDenied = "log-access-denied", Definite;
    /// The NATS server is older than the oldest supported version.
    LogServerTooOld = "log-server-too-old", Definite;
    /// JetStream is not enabled for this account.
    LogWithoutJetStream = "log-without-jetstream", Definite;
    /// The stream or bucket does not exist (yet). Tasks check for it again, so set-up needs no restart.
    LogStreamMissing = "log-stream-missing", Transient;
    /// The stream's settings are not the ones that correctness needs.
    LogSettingsDiffer = "log-settings-differ", Definite;
    /// The stream holds messages that Anabranch did not write.
    LogForeign = "log-foreign", Definite, stops 1;
    /// The stream's storage is full.
    LogFull = "log-full", Transient;
    /// Another writer appended: this attempt is over.
    LogFenced = "log-fenced", Transient;
    /// A message has a codec version that this build does not know.
    LogVersionUnknown = "log-version-unknown", Definite, stops 1;
    /// A message's checksum or form is wrong.
    LogMessageCorrupt = "log-message-corrupt", Definite;
    /// The stream does not continue where the lane stopped: messages are gone.
    LogHole = "log-hole", Definite;
    /// A change is not above the position before it, so lanes would skip it.
    LogOrderViolated = "log-order-violated", Definite, stops 1;
    /// A message has more or fewer changes than its head says.
    LogCountViolated = "log-count-violated", Definite, stops 1;
    /// The stream assigns an epoch to another server than the lane does.
    LogEpochReused = "log-epoch-reused", Definite, stops 1;
    /// The stream is in an earlier epoch than the lane: its reader is not there yet, or the log lost messages.
    LogEpochLagging = "log-epoch-lagging", Transient;
    /// Another process holds, or took, the lease.
    LeaseLost = "lease-lost", Transient;
    /// The connection to a target failed or broke, or deadlocks and lock time-outs outlasted the retries.
    TargetUnreachable = "target-unreachable", Transient;
    /// The target takes no writes: a replica, or a server in the middle of a fail-over.
    TargetReadOnly = "target-read-only", Transient;
    /// The target refused the user, the password or TLS.
    TargetAccessDenied = "target-access-denied", Definite;
    /// A privilege is missing on the target.
    TargetGrantMissing = "target-grant-missing", Definite;
    /// A derived or control table does not exist, or a table of coupons lacks a column that set-up adds.
    TargetTableMissing = "target-table-missing", Definite;
    /// A derived or control table has other columns or keys than needed.
    TargetTableShape = "target-table-shape", Definite, stops 1;
    /// The target is also a captured source: changes would loop.
    TargetIsSource = "target-is-source", Definite, stops 1;
    /// Another process moved this lane's progress: this process is stale.
    TargetFenced = "target-fenced", Transient;
    /// The progress row of a lane is gone or was made for another number of lanes.
    TargetProgressLost = "target-progress-lost", Definite, stops 1;
    /// The progress row of a lane was changed by hand, or is damaged.
    TargetProgressCorrupt = "target-progress-corrupt", Definite, stops 1;
    /// A lane cannot be set to the point at which a replay was asked to begin.
    ReplayRefused = "replay-refused", Definite;
    /// A source cannot begin anew.
    BeginAnewRefused = "begin-anew-refused", Definite;
    /// A source or a table cannot be removed, because it is there or a process works on it.
    RemoveRefused = "remove-refused", Definite;
    /// A lane cannot be asked for the requested refresh.
    RefreshRefused = "refresh-refused", Definite;
    /// The target refuses a statement for a reason that will not pass.
    TargetRejected = "target-rejected", Definite;
    /// A lookup's code, kind, page or position, or a part of a search, makes no sense. Questions about payment
    /// documents get it for a page or position.
    LookupMalformed = "lookup-malformed", Definite;
    /// The lanes of a mapping or relation index did not reach the position that a lookup waits for.
    LookupLagging = "lookup-lagging", Transient;
    /// The configuration has no mapping tables that a lookup could ask.
    LookupUnconfigured = "lookup-unconfigured", Definite;
    /// The configuration has no search documents.
    SearchUnconfigured = "search-unconfigured", Definite;

    /// A text is no identifier of a payment document, or a name is none of its tables.
    FluxIdMalformed = "flux-id-malformed", Definite;
    /// An identifier cannot be the parent of a document of this kind, or data that decides its placement is missing.
    FluxParentUnfit = "flux-parent-unfit", Definite;
    /// A payment document is stored elsewhere than its kind and its parent say.
    FluxMisplaced = "flux-misplaced", Definite;
    /// The configuration has no sequence that identifiers of payment documents could come from, or no index of their
    /// relations.
    FluxUnconfigured = "flux-unconfigured", Definite;
    /// An identifier was asked for with a date that its counters do not serve, or clocks differ by days.
    FluxDateRefused = "flux-date-refused", Definite;
    /// A counter of identifiers has given out all of its 100 million numbers.
    FluxSequenceExhausted = "flux-sequence-exhausted", Definite;
    /// A counter of identifiers is gone, or is below numbers that were given out.
    FluxSequenceLagging = "flux-sequence-lagging", Definite;
    /// The counters of identifiers lie on another server than the one that gave out numbers before.
    FluxServerChanged = "flux-server-changed", Definite;
    /// The server of the counters answers before a commit is on its disk.
    FluxServerVolatile = "flux-server-volatile", Definite;
    /// No further request key can be remembered before older ones have had their time.
    FluxKeysFull = "flux-keys-full", Transient;
    /// A table of payment documents must not be dropped now: it is not due, not retained, or the index lacks its rows.
    FluxRetentionRefused = "flux-retention-refused", Definite;
    /// A plan cannot be read, or has fields, numbers or texts that make no sense.
    PlanInvalid = "plan-invalid", Definite;

    /// No route of the HTTP API has this path.
    RouteUnknown = "route-unknown", Definite;
    /// The route does not serve this method.
    MethodNotAllowed = "method-not-allowed", Definite;
    /// The configuration has no token, so endpoints for applications are closed.
    TokensMissing = "tokens-missing", Definite;
    /// A request has no token, or none of the configured ones.
    TokenRefused = "token-refused", Definite;
    /// The token of an application does not open this route.
    TokenScopeMissing = "token-scope-missing", Definite;
    /// A request for a change has no operator's token, or the configuration has no operator.
    OperatorRefused = "operator-refused", Definite;
    /// More requests, or reads of mapping tables, wait than the limit allows.
    TooManyRequests = "too-many-requests", Transient;
    /// A request had no answer in time.
    TimedOut = "timed-out", Transient;
    /// The body of a request did not arrive in time.
    BodyLate = "body-late", Transient;
    /// The body of a request is larger than the API reads.
    BodyTooLarge = "body-too-large", Definite;
    /// The body of a request broke off.
    BodyUnreadable = "body-unreadable", Definite;
    /// A request does not say that its body is JSON.
    ContentTypeMissing = "content-type-missing", Definite;
    /// The body of a request is not JSON.
    BodyNotJson = "body-not-json", Definite;
    /// The body of a request is JSON of another shape than the route reads.
    BodyNotUnderstood = "body-not-understood", Definite;

    /// No task of this process holds a machine number at the moment, so it can give out no uuid.
    UuidsUnavailable = "uuids-unavailable", Transient;
    /// The requested number of uuids is more than one request may get, or less.
    CountOutOfRange = "count-out-of-range", Definite;
    /// An idempotency key is empty or too long.
    KeyMalformed = "key-malformed", Definite;
    /// An idempotency key was used before with another count.
    KeyReused = "key-reused", Definite;
    /// A machine number has given out every uuid up to the end of the range, or the clock is beyond it.
    UuidsExhausted = "uuids-exhausted", Definite, stops 1;
    /// No further idempotency key can be remembered before older ones are a day old.
    UuidsKeysFull = "uuids-keys-full", Transient;
    /// A text that was to be explained is no code of this build.
    CodeUnknown = "code-unknown", Definite;
    /// A port could not be bound.
    ListenFailed = "listen-failed", Definite;
    /// The connection to the coupon system failed or broke.
    CouponSystemUnreachable = "coupon-system-unreachable", Transient;
    /// The coupon system refuses requests as a whole: token, TLS, address or form.
    CouponSystemRefused = "coupon-system-refused", Definite;
    /// The ledger of coupons lacks entries that its register knows: it was restored from an older copy.
    CouponLedgerRestored = "coupon-ledger-restored", Definite;
    /// A coupon day was requested that cannot be run or shown.
    DispatchRefused = "dispatch-refused", Definite;

    /// A defect of Anabranch itself.
    Internal = "internal", Bug;
}

impl Code {
    /// Returns the code of a text such as `binlog-purged`; `None` if no code has it.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }

    /// Whether a task may stop by this code: input, stored state or configuration is wrong, and time mends nothing.
    pub fn stops(self) -> bool {
        self.stops_after().is_some()
    }

    /// Whether the code concerns one table that does not fit, while others of the same source do.
    pub fn is_of_one_table(self) -> bool {
        matches!(
            self,
            Code::SourceColumnMissing
                | Code::SourceColumnAmbiguous
                | Code::SourceColumnUnsupported
                | Code::SourceTableVersioned
                | Code::SourceTableNotTransactional
        )
    }

    /// Whether a refresh of all tables mends this code: the binlog lacks something that the tables have, or holds
    /// something at one position that rows do not show. A lane that reads all tables of the source again needs neither.
    pub fn is_mended_by_refresh(self) -> bool {
        matches!(
            self,
            Code::BinlogPurged
                | Code::BinlogEventUnknown
                | Code::BinlogEventCorrupt
                | Code::BinlogStatement
                | Code::BinlogRolledBackRows
                | Code::BinlogXaUnread
                | Code::SourceImageNotFull
                | Code::SourceMetadataNotFull
                | Code::SourceSchemaChanged
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error beneath a fault.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// One failure: code, subject, state that was found, state that is needed, remedy, cause.
#[derive(Debug)]
pub struct Fault {
    code: Code,
    subject: String,
    found: String,
    needed: Option<String>,
    remedy: Option<String>,
    cause: Option<Cause>,
}

impl Fault {
    /// `subject` is the thing's name as the operator knows it (`source source-a`, `table user_00.user_001`), `found`
    /// its state or value.
    pub fn new(code: Code, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self { code, subject: subject.into(), found: found.into(), needed: None, remedy: None, cause: None }
    }

    /// Sets the state that is needed instead.
    #[must_use]
    pub fn needs(mut self, needed: impl Into<String>) -> Self {
        self.needed = Some(needed.into());
        self
    }

    /// Sets the statement or command that repairs the failure.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a step to the end of the remedy.
    #[must_use]
    pub fn then(self, step: impl Into<String>) -> Self {
        let step = step.into();
        let remedy = match &self.remedy {
            Some(before) => format!("{before}; then {step}"),
            None => step,
        };
        self.remedy(remedy)
    }

    /// Sets the error beneath. It is printed, so it must hold no row values.
    #[must_use]
    pub fn caused_by<C: Into<Cause>>(mut self, cause: C) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn class(&self) -> Class {
        self.code.class()
    }

    pub fn subject(&self) -> &str {
        &self.subject
    }

    pub fn found(&self) -> &str {
        &self.found
    }

    pub fn needed(&self) -> Option<&str> {
        self.needed.as_deref()
    }

    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// Returns the texts of the errors beneath, outermost first. Some libraries repeat the inner error in the outer
    /// one's text; such a repetition is left out.
    pub fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = StdError::source(self);
        while let Some(error) = next {
            let text = plain(error.to_string());
            if !causes.iter().any(|said| said.contains(&text)) {
                causes.push(text);
            }
            next = error.source();
        }
        causes
    }
}

/// Replaces a library's text that only refers its reader to the library's manual by its meaning.
fn plain(text: String) -> String {
    match text.find("peer closed connection without sending TLS close_notify") {
        Some(at) => format!("{}the other side closed the connection in the middle", &text[..at]),
        None => text,
    }
}

/// One line: `[code] subject: found; needed: …; remedy: …: cause`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}: {}", self.code, self.subject, self.found)?;
        if let Some(needed) = &self.needed {
            write!(f, "; needed: {needed}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; remedy: {remedy}")?;
        }
        self.causes().iter().try_for_each(|cause| write!(f, "; cause: {cause}"))
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests;
