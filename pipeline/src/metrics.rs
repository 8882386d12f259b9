//! Every metric: name, labels, unit, help. Nothing else in the code spells a metric's name.
//!
//! Label values are few: sources, projections, targets, lanes, codes, reasons. Never keys or row values.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const SOURCE_CHANGES: &str = "anabranch_source_changes_total";
pub const SOURCE_UNCHANGED: &str = "anabranch_source_unchanged_total";
pub const SOURCE_UNSEEN_CASCADES: &str = "anabranch_source_unseen_cascades_total";
pub const SOURCE_REREADS: &str = "anabranch_source_rereads_total";
pub const SOURCE_SPILLED: &str = "anabranch_source_spilled_bytes";
pub const CAPTURE_LAG: &str = "anabranch_capture_lag_seconds";
pub const LOG_MESSAGES: &str = "anabranch_log_messages_total";
pub const LOG_CHANGES: &str = "anabranch_log_changes_total";
pub const LOG_BYTES: &str = "anabranch_log_bytes_total";
pub const LOG_IN_FLIGHT: &str = "anabranch_log_in_flight_messages";
pub const LANE_DIRECT: &str = "anabranch_lane_direct";
pub const LANE_LAG: &str = "anabranch_lane_lag_seconds";
pub const LANE_ROWS: &str = "anabranch_lane_rows_total";
pub const LANE_CHANGES: &str = "anabranch_lane_changes_total";
pub const LANE_UNACCOUNTED: &str = "anabranch_lane_unaccounted_changes";
pub const LANE_FLUSHES: &str = "anabranch_lane_flushes_total";
pub const LANE_FLUSH_SECONDS: &str = "anabranch_lane_flush_seconds";
pub const REFRESH_ROWS: &str = "anabranch_refresh_rows_total";
pub const REFRESH_REREADS: &str = "anabranch_refresh_rereads";
pub const REFRESH_TABLES_LEFT: &str = "anabranch_refresh_tables_left";
pub const REFRESH_SECONDS_LEFT: &str = "anabranch_refresh_seconds_left";
pub const ROW_DEFECTS: &str = "anabranch_row_defects_total";
pub const LOOKUP_READINGS: &str = "anabranch_lookup_readings_total";
pub const HTTP_REQUEST_SECONDS: &str = "anabranch_http_request_seconds";
pub const CACHE_DELAY: &str = "anabranch_cache_delay_seconds";
pub const CACHE_BELIEVED: &str = "anabranch_cache_believed";
pub const CACHE_FILLS: &str = "anabranch_cache_fills_total";
pub const CACHE_INVALIDATIONS: &str = "anabranch_cache_invalidations_total";
pub const CACHE_FAULTS: &str = "anabranch_cache_faults_total";
pub const SEARCH_DOCUMENTS: &str = "anabranch_search_documents";
pub const SEARCH_TOMBSTONES: &str = "anabranch_search_tombstones";
pub const SEARCH_SWEPT: &str = "anabranch_search_tombstones_removed_total";
pub const SEARCH_DEAD_LETTERS: &str = "anabranch_search_dead_letters";
pub const RECONCILE_VERDICT: &str = "anabranch_reconcile_verdict";
pub const RECONCILE_ENDED: &str = "anabranch_reconcile_ended_timestamp_seconds";
pub const RECONCILE_ROWS: &str = "anabranch_reconcile_rows";
pub const RECONCILE_DRIFT: &str = "anabranch_reconcile_drift";
pub const RECONCILE_LEFT: &str = "anabranch_reconcile_drift_left";
pub const RECONCILE_AGAIN: &str = "anabranch_reconcile_drift_again";
pub const RECONCILE_SECONDS: &str = "anabranch_reconcile_seconds";
pub const RECONCILE_WINDOWS: &str = "anabranch_reconcile_windows";
pub const SPOT_CHECK_KEYS: &str = "anabranch_spot_check_keys_total";
pub const SPOT_CHECK_DRIFT: &str = "anabranch_spot_check_drift_total";
pub const SPOT_CHECK_SKIPPED: &str = "anabranch_spot_check_skipped_changes_total";
pub const TASK_STATE: &str = "anabranch_task_state";
pub const FAULTS: &str = "anabranch_faults_total";

/// Samples of lag are written when they are asked for, and only of what is known.
pub const CAPTURE_LAG_HELP: &str = "Age of the oldest known source position that the log does not hold yet, or of the source's last answer; 0 = none, absent = not known, by source";
pub const LANE_LAG_HELP: &str = "Age of the oldest known source position that the target does not hold yet, or of the source's last answer; 0 = none, absent = not known, by projection, target, source, lane";

/// Registers help texts and units; called once, when the recorder is installed.
pub fn describe() {
    describe_reconciliations();
    describe_capture();
    describe_lanes();
    describe_stores();
    describe_gauge!(
        TASK_STATE,
        "0 getting ready, 1 running, 2 retrying, 3 stopped, 4 standby: another process does it; by task"
    );
    describe_counter!(FAULTS, "Faults met, by task and code");
}

fn describe_reconciliations() {
    describe_gauge!(
        RECONCILE_VERDICT,
        "1 for the verdict of the last whole reconciliation of any process, else 0, by verdict"
    );
    describe_gauge!(
        RECONCILE_ENDED,
        Unit::Seconds,
        "When the last whole reconciliation of any process ended, since the Unix epoch; 0 = the history has none; alert on its age"
    );
    describe_gauge!(RECONCILE_ROWS, "Rows that the last reconciliation read on both sides, by store");
    describe_gauge!(
        RECONCILE_DRIFT,
        "Source rows whose derived rows the last reconciliation found wrong, by store"
    );
    describe_gauge!(RECONCILE_LEFT, "Of these, rows that are wrong still, by store");
    describe_gauge!(RECONCILE_AGAIN, "Of these, rows that the reconciliation before found too, by store");
    describe_gauge!(RECONCILE_SECONDS, Unit::Seconds, "Time that the last reconciliation took, by store");
    describe_gauge!(
        RECONCILE_WINDOWS,
        "Windows of the schedule in which the reconciliation under way, or the last one, was worked on"
    );
    describe_counter!(
        SPOT_CHECK_KEYS,
        "Changed source rows that were looked at again, by store, source, seconds after the change, and verdict"
    );
    describe_counter!(
        SPOT_CHECK_DRIFT,
        "Of these, rows whose derived rows were wrong, by store, source and seconds after the change"
    );
    describe_counter!(
        SPOT_CHECK_SKIPPED,
        "Changes that were too many to choose from, or could not be read, by source"
    );
}

fn describe_capture() {
    describe_counter!(SOURCE_CHANGES, "Captured row changes read from the binlog, by source");
    describe_counter!(
        SOURCE_UNCHANGED,
        "Those of them that changed no captured value and no key, so nothing was written, by source"
    );
    describe_counter!(
        SOURCE_UNSEEN_CASCADES,
        "Captured tables that a statement was to write and has no rows of, so that a foreign key may have changed some that the binlog does not show, by source"
    );
    describe_counter!(
        SOURCE_REREADS,
        "Times that a table was to be read again, because rows of it changed as row events do not show, by source"
    );
    describe_gauge!(
        SOURCE_SPILLED,
        Unit::Bytes,
        "Size of the temporary files in limits.spill_dir that hold rows whose transaction has not ended or is not decided, by source"
    );
    describe_counter!(LOG_MESSAGES, "Messages acknowledged by the log, by source");
    describe_counter!(LOG_CHANGES, "Row changes in messages acknowledged by the log, by source");
    describe_counter!(LOG_BYTES, Unit::Bytes, "Payload bytes acknowledged by the log, by source");
    describe_gauge!(LOG_IN_FLIGHT, "Messages sent and not yet acknowledged, by source");
}

fn describe_lanes() {
    describe_gauge!(
        LANE_DIRECT,
        "1 while the lane is fed from the binlog because the stream does not link, by projection, target, source, lane"
    );
    describe_counter!(
        LANE_ROWS,
        "Row mutations committed to the target, by projection, target, source, lane"
    );
    describe_counter!(
        LANE_CHANGES,
        "Row changes that the lane has taken and committed, by projection, target, source, lane and outcome: applied, or passed since they came before, with the reason: behind, a whole message; overlap, a part of one"
    );
    describe_gauge!(
        LANE_UNACCOUNTED,
        "Changes that messages since the lane's last commit should have had less those that it applied or passed; not 0 = one is lost, by projection, target, source, lane"
    );
    describe_counter!(
        LANE_FLUSHES,
        "Transactions committed to the target, by projection, target, source, lane"
    );
    describe_histogram!(
        LANE_FLUSH_SECONDS,
        Unit::Seconds,
        "Duration of a target transaction, by projection, target"
    );
    describe_counter!(
        REFRESH_ROWS,
        "Rows read from the source's tables by a refresh, by projection, target, source, lane"
    );
    describe_gauge!(
        REFRESH_REREADS,
        "Tables that a lane is to read again, because rows of them changed as row events do not show; until then its rows of them may be stale, by projection, target, source, lane"
    );
    describe_gauge!(
        REFRESH_TABLES_LEFT,
        "Tables of the source that a refresh has not finished, by projection, target, source, lane"
    );
    describe_gauge!(
        REFRESH_SECONDS_LEFT,
        "How long those will take if each takes as long as the ones before, by projection, target, source, lane"
    );
}

fn describe_stores() {
    describe_gauge!(
        CACHE_DELAY,
        "For how long the oldest change waits to be removed from the cache, by cache"
    );
    describe_gauge!(CACHE_BELIEVED, "1 = lookups are answered from the cache, 0 = they go past it, by cache");
    describe_counter!(CACHE_FILLS, "Complete sets stored in the cache");
    describe_counter!(CACHE_INVALIDATIONS, "Codes removed from the cache because their mapping rows changed");
    describe_counter!(CACHE_FAULTS, "Readings of and writings to the cache that failed, by code");
    describe_gauge!(
        SEARCH_DOCUMENTS,
        "Documents of the index that serves, without tombstones, by projection"
    );
    describe_gauge!(
        SEARCH_TOMBSTONES,
        "Tombstones of deleted or withdrawn documents in the index that serves, by projection"
    );
    describe_counter!(SEARCH_SWEPT, "Tombstones removed because of their age, by projection");
    describe_gauge!(
        SEARCH_DEAD_LETTERS,
        "Documents that the index rejected and that are parked, by projection"
    );
    describe_counter!(
        ROW_DEFECTS,
        "Changes to rows that are in no derived table, or hold an odd code, by projection, source and reason"
    );
    describe_counter!(
        LOOKUP_READINGS,
        "Readings of mapping tables for lookups, which the cache did not answer"
    );
    describe_histogram!(
        HTTP_REQUEST_SECONDS,
        Unit::Seconds,
        "Duration of a request to an endpoint for applications, by route and status"
    );
}
