//! Every metric: name, type, labels, help. No other file spells a metric's name.
//!
//! Label values are few: sources, projections, targets, lanes, codes, reasons. They are never tables, keys or row
//! values. `docs/metrics.md` is generated from this table, and a test compares the two.

#[cfg(test)]
pub mod recorded;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};

use crate::error::Code;

/// Meaning of a metric's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only rises, from 0 at the start of the process.
    Counter,
    Gauge,
    /// Counts of durations in buckets.
    Histogram,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The definition of a metric.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Metric {
    /// Returns the unit that the name holds, most often as its last word.
    pub fn unit(&self) -> Unit {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name.rsplit_once('_') {
            Some((_, "seconds")) => Unit::Seconds,
            Some((_, "bytes")) => Unit::Bytes,
            _ if name.contains("_seconds_") => Unit::Seconds,
            _ => Unit::Count,
        }
    }

    /// Returns the metric of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|metric| metric.name == name)
    }

    /// Registers help and unit. A counter without labels begins at 0, but for the CPU time: the recorder does not keep
    /// it.
    fn describe(&self) {
        let (name, help) = (self.name, self.help);
        match self.kind {
            Kind::Counter => describe_counter!(name, self.unit(), help),
            Kind::Gauge => describe_gauge!(name, self.unit(), help),
            Kind::Histogram => describe_histogram!(name, self.unit(), help),
        }
        if self.kind == Kind::Counter && self.labels.is_empty() && self.name != PROCESS_CPU {
            counter!(name).increment(0);
        }
    }
}

/// Registers help texts and units, and begins the counters whose labels are known beforehand. The process calls it
/// once, when it installs the recorder.
pub fn describe() {
    ALL.iter().for_each(Metric::describe);
    for code in Code::ALL {
        counter!(RETRIES, "code" => code.as_str()).increment(0);
        if code.as_str().starts_with("cache-") {
            counter!(CACHE_FAULTS, "code" => code.as_str()).increment(0);
        }
        // The alert on these must see the first refusal as an increase.
        if matches!(code, Code::FluxServerChanged | Code::FluxServerVolatile | Code::FluxSequenceLagging) {
            counter!(FLUX_REFUSALS, "code" => code.as_str()).increment(0);
        }
    }
}

const SOURCE: &[&str] = &["source"];
const PROGRAMME: &[&str] = &["programme"];
const LANE: &[&str] = &["projection", "target", "source", "lane"];
/// Labels of a metric that shows all lanes of a source together, in one series a projection and target.
const LANES: &[&str] = &["projection", "target", "source"];
const POOL: &[&str] = &["dependency", "name", "pool"];

/// One entry a metric: the name of its constant, its own name, type, labels, help.
macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:ident, $labels:expr, $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: &str = $name;
        )+

        /// Every metric there is.
        pub const ALL: &[Metric] =
            &[$(Metric { name: $name, kind: Kind::$kind, labels: $labels, help: $help }),+];
    };
}

metrics! {
    SOURCE_CHANGES = "anabranch_source_changes_total", Counter, SOURCE,
        "Captured row changes read from the binlog.";
    SOURCE_UNCHANGED = "anabranch_source_unchanged_total", Counter, SOURCE,
        "Captured row changes that changed no captured value and no key, so that nothing was written.";
    SOURCE_UNSEEN_CASCADES = "anabranch_source_unseen_cascades_total", Counter, SOURCE,
        "Captured tables that a statement names and has no rows of, so that a foreign key may have changed rows that the binlog does not show.";
    SOURCE_REREADS = "anabranch_source_rereads_total", Counter, SOURCE,
        "Requests to read a table again, because rows of it changed without row events.";
    SOURCE_SPILLED = "anabranch_source_spilled_bytes", Gauge, SOURCE,
        "Size of the temporary files in limits.spill_dir that hold rows whose transaction has not ended or is not decided.";
    CAPTURE_LAG = "anabranch_capture_lag_seconds", Gauge, SOURCE,
        "Age of the oldest known source position that the log does not hold yet, or of the source's last answer; 0 = none, absent = not known.";
    LOG_MESSAGES = "anabranch_log_messages_total", Counter, SOURCE,
        "Messages acknowledged by the log.";
    LOG_CHANGES = "anabranch_log_changes_total", Counter, SOURCE,
        "Row changes in messages acknowledged by the log.";
    LOG_BYTES = "anabranch_log_bytes_total", Counter, SOURCE,
        "Payload bytes acknowledged by the log.";
    LOG_IN_FLIGHT = "anabranch_log_in_flight_messages", Gauge, SOURCE,
        "Messages sent and not yet acknowledged.";
    LOG_WAIT = "anabranch_log_wait_seconds", Histogram, SOURCE,
        "Times for which a reader with a full batch read nothing, because the log had not acknowledged the messages in flight; the rate of the sum is the share of time in which the log is the limit.";
    SOURCE_COMMITTED = "anabranch_source_committed_timestamp_seconds", Gauge, SOURCE,
        "Commit time of the newest change in the stream, by the source's clock, since the Unix epoch.";
    BINLOG_LAG = "anabranch_source_binlog_lag_bytes", Gauge, SOURCE,
        "Bytes of the binlog between the end of the stream and the source's newest known position.";
    BINLOG_KEPT = "anabranch_source_binlog_kept_bytes", Gauge, SOURCE,
        "Size of the binlog that the source still has.";
    BINLOG_PURGE = "anabranch_source_binlog_purge_seconds", Gauge, SOURCE,
        "Time, at least, until the source purges binlog that its reader needs; absent = the reader needs only the newest file, or nothing is purged by age.";
    STREAM_BYTES = "anabranch_log_stream_bytes", Gauge, SOURCE,
        "Size of the stream.";
    STREAM_BYTES_MAX = "anabranch_log_stream_max_bytes", Gauge, SOURCE,
        "Size above which the stream drops its oldest messages; absent = none.";
    STREAM_OLDEST = "anabranch_log_oldest_timestamp_seconds", Gauge, SOURCE,
        "When the oldest message of the stream was stored, since the Unix epoch; absent = the stream is empty.";
    STREAM_AGE_MAX = "anabranch_log_stream_max_age_seconds", Gauge, SOURCE,
        "Age at which the stream drops a message; absent = none.";

    LANE_COMMITTED = "anabranch_lane_committed_timestamp_seconds", Gauge, LANES,
        "Commit time of the newest change that any lane of the source has in the target, by the source's clock, since the Unix epoch.";
    LANE_VISIBLE = "anabranch_lane_visible_seconds", Histogram, &["projection", "target"],
        "Time from the commit in a MySQL source until the newest change of a target transaction is visible. MariaDB says commit times in whole seconds, so its changes are left out: see anabranch_lane_read_to_visible_seconds.";
    LANE_READ_TO_VISIBLE = "anabranch_lane_read_to_visible_seconds", Histogram, &["projection", "target"],
        "Time since the newest change of a target transaction was read until it is visible, of every source: from the moment at which the log stored its message (clock of the NATS server), or this process read it for a direct feed, to the commit in the target (clock of this process). The time from the commit in the source to the reading is not in it.";
    LANE_FLUSH_FILL = "anabranch_lane_flush_fill_ratio", Histogram, &["projection", "target"],
        "Rows of a target transaction over limits.flush_rows; 1 = full, so the target is the limit.";
    LANE_WAIT = "anabranch_lane_wait_seconds", Histogram, &["projection", "target"],
        "Times for which a lane waited for a message of its feed, or for rows that a refresh reads; the rate of the sum, over the number of lanes, is the share of time in which neither the lane nor the target is the limit. The rate of the sum of anabranch_lane_flush_seconds is the share of the target.";
    LANE_DIRECT = "anabranch_lane_direct_feeds", Gauge, LANES,
        "Lanes of the source that are fed from the binlog because the stream does not link.";
    LANE_PAUSED_LEFT = "anabranch_lane_paused_left_seconds", Gauge, LANE,
        "Time, at the present rate of changes, until neither the stream nor the source's binlog has what a paused lane needs next; absent = the lane is not paused, or what it needs is not removed, or not known to be.";
    LANE_LAG = "anabranch_lane_lag_seconds", Gauge, LANE,
        "Age of the oldest known source position that the target does not hold yet, or of the source's last answer; 0 = none, absent = not known.";
    LANE_ROWS = "anabranch_lane_rows_total", Counter, LANES,
        "Row mutations committed to the target.";
    LANE_CHANGES = "anabranch_lane_changes_total", Counter, &["projection", "target", "source", "lane", "outcome", "reason"],
        "Row changes that the lane has taken and committed. The outcome is applied, or passed because the lane had them; the reason is then duplicate (a whole message) or overlap (a part of one), and one series without the label lane counts all lanes of the source.";
    LANE_UNACCOUNTED = "anabranch_lane_unaccounted_changes", Gauge, LANES,
        "Changes that messages since a lane's last commit should have had and that it neither applied nor passed, or had too many; summed over the source's lanes. Not 0 = one is lost.";
    LANE_FLUSHES = "anabranch_lane_flushes_total", Counter, LANES,
        "Transactions committed to the target.";
    LANE_REPEATED = "anabranch_lane_repeated_flushes_total", Counter, &["projection", "target"],
        "Transactions that the target ended for a deadlock or a lock time-out, or that a lost connection ended before COMMIT: the lane began each anew.";
    LANE_FLUSH_SECONDS = "anabranch_lane_flush_seconds", Histogram, &["projection", "target"],
        "Duration of a target transaction.";
    REFRESH_ROWS = "anabranch_refresh_rows_total", Counter, LANES,
        "Rows read from the source's tables by a refresh.";
    REFRESH_COMPARED = "anabranch_refresh_compared_rows_total", Counter, &["projection", "target"],
        "Rows of owed tables that a lane compared with its derived rows, in place of writing each: of tables that changed without row events, and of every table while all are owed, as after begin-anew.";
    REFRESH_DIFFERING = "anabranch_refresh_differing_rows_total", Counter, &["projection", "target"],
        "Source rows whose derived rows differed at the end of such a comparison: the lane writes up to 256 alone, otherwise the whole table. A comparison with more than it can list counts none.";
    REFRESH_REREADS = "anabranch_refresh_rereads", Gauge, LANES,
        "Tables that a lane is to read again, because rows of them changed without row events; until then its derived rows of them may be stale. It is at least 1 while a lane must read all tables. The lane with the most counts.";
    REFRESH_WITHDRAWALS = "anabranch_refresh_withdrawals", Gauge, LANES,
        "Tables that were dropped or truncated and of which a lane is still to remove derived rows. The lane with the most counts.";
    REFRESH_TABLES_LEFT = "anabranch_refresh_tables_left", Gauge, LANES,
        "Tables of the source that a refresh has not finished, of the lane with the most.";
    REFRESH_SECONDS_LEFT = "anabranch_refresh_seconds_left", Gauge, LANES,
        "Expected time until these tables are read, if each takes as long as the ones before, of the lane with the longest.";
    ROW_DEFECTS = "anabranch_row_defects_total", Counter, &["projection", "source", "reason"],
        "Changes to rows that are in no derived table, or have an invalid code or birthday type, or to payment documents that stand elsewhere than their digits, table, source or parent say, or whose amount is too long.";

    LOOKUP_QUERIES = "anabranch_lookup_queries_total", Counter, &[],
        "Reads of mapping tables for lookups that the cache did not answer.";
    FLUX_IDENTIFIERS = "anabranch_flux_identifiers_total", Counter, &[],
        "Identifiers of payment documents given out.";
    FLUX_LEASES = "anabranch_flux_leases_total", Counter, &[],
        "Ranges of numbers leased from the counters of payment documents.";
    FLUX_REFUSALS = "anabranch_flux_refusals_total", Counter, &["code"],
        "Leases that a counter of payment documents refused; flux-server-changed, flux-server-volatile and flux-sequence-lagging wait for a person.";
    FLUX_USED = "anabranch_flux_counter_used_ratio", Gauge, &[],
        "Greatest share of a counter of today or later that this process leased; at 1 the counter gives out nothing more that day.";
    HTTP_REQUEST_SECONDS = "anabranch_http_request_seconds", Histogram, &["route", "status"],
        "Duration of a request to an endpoint for applications.";
    HTTP_APPLICATION_REQUESTS = "anabranch_http_application_requests_total", Counter, &["application"],
        "Requests with the token of an application, by its name in the configuration; refused ones count too.";
    HTTP_IN_FLIGHT = "anabranch_http_requests_in_flight", Gauge, &[],
        "Requests to endpoints for applications that are being answered; above 256 they are refused.";
    CACHE_LOOKUPS = "anabranch_cache_lookups_total", Counter, &["outcome", "reason"],
        "Codes that lookups asked for. The outcome is hit, miss, or bypassed with the reason why the cache was not asked.";
    CACHE_DELAY = "anabranch_cache_delay_seconds", Gauge, &["cache"],
        "Time for which the oldest change has waited to be removed from the cache.";
    CACHE_BELIEVED = "anabranch_cache_believed", Gauge, &["cache"],
        "1 = lookups are answered from the cache, 0 = they go past it.";
    CACHE_FILLS = "anabranch_cache_fills_total", Counter, &[],
        "Complete sets stored in the cache.";
    CACHE_INVALIDATIONS = "anabranch_cache_invalidations_total", Counter, &[],
        "Codes removed from the cache because their mapping rows changed.";
    CACHE_FAULTS = "anabranch_cache_faults_total", Counter, &["code"],
        "Reads and writes of the cache that failed.";
    SEARCH_DOCUMENTS = "anabranch_search_documents", Gauge, &["projection"],
        "Documents of the index that serves, without tombstones.";
    SEARCH_TOMBSTONES = "anabranch_search_tombstones", Gauge, &["projection"],
        "Tombstones of deleted or withdrawn documents in the index that serves.";
    SEARCH_SWEPT = "anabranch_search_tombstones_removed_total", Counter, &["projection"],
        "Tombstones removed because of their age.";
    RETIRED_ROWS_REMOVED = "anabranch_retired_rows_removed_total", Counter, &["projection"],
        "Derived rows of retired source tables that were removed because they had outlived their table.";
    RETIRED_TABLES_FORGOTTEN = "anabranch_retired_tables_forgotten_total", Counter, &["projection"],
        "Retired source tables of which no derived row is left.";
    RETIRED_TABLES_EARLY = "anabranch_retired_tables_early_total", Counter, &["source"],
        "Source tables that were retired before they were due by flux.retention_months, as seen by a task each hour.";
    SEARCH_DEAD_LETTERS = "anabranch_search_dead_letters", Gauge, &["projection"],
        "Documents that the index rejected and that are kept as dead letters.";
    SEARCH_OLDEST_LETTER = "anabranch_search_oldest_dead_letter_timestamp_seconds", Gauge, &["projection"],
        "Time at which the dead letter that has waited longest was parked; 0 without one.";

    RECONCILE_VERDICT = "anabranch_reconcile_verdict", Gauge, &["verdict"],
        "1 for the verdict of the last whole reconciliation of any process, else 0.";
    RECONCILE_ENDED = "anabranch_reconcile_ended_timestamp_seconds", Gauge, &[],
        "When the last whole reconciliation of any process ended, since the Unix epoch; 0 = the history has none; alert on its age.";
    RECONCILE_ROWS = "anabranch_reconcile_rows", Gauge, &["store"],
        "Rows that the last reconciliation read on both sides.";
    RECONCILE_DRIFT = "anabranch_reconcile_drift", Gauge, &["store"],
        "Source rows whose derived rows the last reconciliation found wrong.";
    RECONCILE_LEFT = "anabranch_reconcile_drift_left", Gauge, &["store"],
        "Source rows that the last reconciliation found wrong and that are wrong still.";
    RECONCILE_AGAIN = "anabranch_reconcile_drift_again", Gauge, &["store"],
        "Source rows that the last reconciliation found wrong and the one before too.";
    RECONCILE_SECONDS = "anabranch_reconcile_seconds", Gauge, &["store"],
        "Time that the last reconciliation took.";
    RECONCILE_WINDOWS = "anabranch_reconcile_windows", Gauge, &[],
        "Windows of the schedule in which the reconciliation under way, or the last one, was worked on.";
    RECONCILE_MISPLACED = "anabranch_reconcile_misplaced_rows", Gauge, &["store"],
        "Source rows that the last reconciliation found in another table than the rule or a document's digits and parent say.";
    RECONCILE_UNDERWAY = "anabranch_reconcile_underway", Gauge, &[],
        "1 while a reconciliation of any process is not over, also between its windows, else 0.";
    RECONCILE_SHARE = "anabranch_reconcile_share_ratio", Gauge, &[],
        "Share of its present store that the reconciliation under way has compared.";
    RECONCILE_UNDERWAY_ROWS = "anabranch_reconcile_underway_rows", Gauge, &[],
        "Rows that the reconciliation under way has read on both sides.";
    RECONCILE_HELD = "anabranch_reconcile_held", Gauge, &[],
        "1 while a reconciliation of this process waits because a source, a replica or a lane is too busy.";
    RECONCILE_NEXT = "anabranch_reconcile_next_timestamp_seconds", Gauge, &[],
        "When the next reconciliation of the schedule is due, since the Unix epoch; absent = there is no schedule.";
    SPOT_CHECK_KEYS = "anabranch_spot_check_keys_total", Counter, &["store", "source", "check", "after", "verdict"],
        "Changed source rows that were checked so many seconds after the change. The check is last, or earlier: another one of the row follows.";
    SPOT_CHECK_DRIFT = "anabranch_spot_check_drift_total", Counter, &["store", "source", "check", "after"],
        "Changed source rows whose derived rows were wrong, so many seconds after the change. The check is last, or earlier: another one of the row follows.";
    SPOT_CHECK_SKIPPED = "anabranch_spot_check_skipped_changes_total", Counter, &["source"],
        "Changes that no spot check could choose, because they were too many or could not be read.";

    COUPON_WAVES = "anabranch_coupon_frozen_waves", Gauge, PROGRAMME,
        "Waves of the newest coupon day that are frozen: 0 none yet, 1 midnight, 2 noon, 3 catch-up; absent = no day has begun, or it is not known.";
    COUPON_CLOSED = "anabranch_coupon_day_closed", Gauge, PROGRAMME,
        "1 = the newest coupon day is closed: each member has a coupon, a refusal or a dead letter.";
    COUPON_DAY_BEGAN = "anabranch_coupon_day_timestamp_seconds", Gauge, PROGRAMME,
        "When the newest coupon day began by the rules of its programme, since the Unix epoch.";
    COUPON_SEEN = "anabranch_coupon_seen_timestamp_seconds", Gauge, PROGRAMME,
        "When a dispatcher last ended a pass over the programme, since the Unix epoch.";
    COUPON_FREEZE_DELAY = "anabranch_coupon_freeze_delay_seconds", Gauge, &["programme", "wave"],
        "Time from the beginning of the newest coupon day until the wave was frozen.";
    COUPON_OPEN_BEFORE = "anabranch_coupon_open_days", Gauge, PROGRAMME,
        "Coupon days before the newest one that are not closed.";
    COUPON_OLDEST_OPEN = "anabranch_coupon_oldest_open_timestamp_seconds", Gauge, PROGRAMME,
        "When the oldest coupon day that is not closed began, since the Unix epoch; absent = every day is closed.";
    COUPON_MEMBERS = "anabranch_coupon_members", Gauge, &["programme", "outcome"],
        "Members of the newest coupon day by outcome: granted, already_granted, refused, failed, in_flight, missed. Their sum is the cohort.";
    COUPON_REFUSED = "anabranch_coupon_refused_members", Gauge, &["programme", "reason"],
        "Members of the newest coupon day who get no coupon, by the reason.";
    COUPON_UNREADABLE = "anabranch_coupon_unreadable_members", Gauge, PROGRAMME,
        "Members of the newest coupon day who are missed because their source row could not be read by the latest hour.";
    COUPON_LETTERS = "anabranch_coupon_dead_letters", Gauge, PROGRAMME,
        "Dead letters of all days of the programme: each waits for a person.";
    COUPON_CARRIED = "anabranch_coupon_carried_total", Counter, &["programme", "outcome"],
        "Users of messages that granters have carried. The outcome is done, or later: another message follows.";
    COUPON_HELD = "anabranch_coupon_held", Gauge, &[],
        "1 while coupons of this process leave the servers to lanes of birthday tables that lag (`coupon_system.lane_lag_ms`); else 0.";
    COUPON_BREAKER = "anabranch_coupon_breaker_open", Gauge, &[],
        "1 while granters of this process send no requests, because the coupon system does not answer or asks for a pause, and after such a pause until a call is answered, for eight minutes at most; else 0.";

    TASK_STATE = "anabranch_task_state", Gauge, &["task"],
        "0 getting ready, 1 running, 2 retrying, 3 stopped, 4 standby: another process does it, 5 paused: until `anabranch resume`.";
    FAULTS = "anabranch_faults_total", Counter, &["task", "code"],
        "Faults that ended an attempt of the task. The series of a code begins with its first fault; anabranch_retries_total has every code from 0.";

    LEASE_HELD = "anabranch_lease_held", Gauge, &["task"],
        "1 while this process holds the lease of the task, else 0.";
    DEPENDENCY_UP = "anabranch_dependency_up", Gauge, &["dependency", "name"],
        "1 = the last poll of the server was answered, 0 = it failed; absent = none for a minute. The coupon system is only connected to.";
    DEPENDENCY_ANSWER = "anabranch_dependency_answer_seconds", Gauge, &["dependency", "name"],
        "Duration of the last successful poll of the server.";
    POOL_IN_USE = "anabranch_pool_connections_in_use", Gauge, POOL,
        "Connections of the pools of this name that queries of this process use.";
    POOL_MAX = "anabranch_pool_connections_max", Gauge, POOL,
        "Connections that the pools of this name may have at once.";
    POOL_WAITING = "anabranch_pool_waiting", Gauge, POOL,
        "Queries of this process that wait for a connection of a pool, because all are in use.";
    CERTIFICATE_ENDS = "anabranch_certificate_ends_timestamp_seconds", Gauge, &["dependency", "name"],
        "When the certificate of a source, a target, a cache, the log or the coupon system expires, since the Unix epoch.";
    BUILD = "anabranch_build_info", Gauge, &["version", "commit"],
        "Always 1: the version of the process, and the commit that it was built from where the build named it.";
    CONFIGURATION = "anabranch_configuration_info", Gauge, &["configuration"],
        "Always 1: a hash of the configuration without secrets and http.listen, equal in processes of one version and configuration.";
    PROCESS_CPU = "process_cpu_seconds_total", Counter, &[],
        "CPU time of the process.";
    PROCESS_RESIDENT = "process_resident_memory_bytes", Gauge, &[],
        "Memory of the process that is in RAM.";
    PROCESS_VIRTUAL = "process_virtual_memory_bytes", Gauge, &[],
        "Memory that the process has reserved.";
    PROCESS_FILES = "process_open_fds", Gauge, &[],
        "Open files and connections.";
    PROCESS_FILES_MAX = "process_max_fds", Gauge, &[],
        "Limit of open files and connections.";
    PROCESS_THREADS = "process_threads", Gauge, &[],
        "Threads of the process.";
    PROCESS_STARTED = "process_start_time_seconds", Gauge, &[],
        "When the process began, since the Unix epoch.";
    RETRIES = "anabranch_retries_total", Counter, &["code"],
        "Attempts that were begun again after a fault, of tasks and of steps within them.";
}
