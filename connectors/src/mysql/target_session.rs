//! Statements with which each session on a target or a server of counters begins.
//!
//! Sessions rely on them whatever the server's defaults are:
//!
//! - Strict mode makes a moved fence, a text that is too long and a number out of range errors.
//! - Times are written and read in UTC.
//! - A single statement is a transaction of its own. Otherwise writes would be rolled back at the end, and a kept
//!   session would read one old snapshot for ever.
//! - No gap is locked, as lanes insert into the outbox while it is drained.

/// Statements of every session, in one text.
pub(super) const TARGET_SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     time_zone = '+00:00', autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Returns the statements of every session, followed by settings of one use, such as `innodb_lock_wait_timeout = 5`.
pub(super) fn target_session_with(settings: &str) -> String {
    format!("{TARGET_SESSION}; SET SESSION {settings}")
}
