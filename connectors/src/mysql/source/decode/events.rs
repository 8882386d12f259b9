//! The closed list of binlog event types: handled, known to carry no change, or a named stop.
//!
//! Sources of the numbers: `sql/log_event.h` of MariaDB, `libs/mysql/binlog/event/binlog_event.h` of MySQL. A type that
//! is not in the list stops the source: it could carry rows.

use super::rows::Kind;

/// The meaning of an event type for the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Query,
    /// `LOAD DATA` logged as text: a Query with a longer header.
    LoadQuery,
    Xid,
    XaPrepare,
    Rotate,
    FormatDescription,
    TableMap,
    Rows {
        kind: Kind,
        /// The event is of version 2, with extra data.
        has_extra_data: bool,
        is_compressed: bool,
    },
    /// An update that holds only the changed parts of JSON columns.
    PartialRows,
    CompressedQuery,
    MariaDbGtid,
    MariaDbGtidList,
    MySqlGtid,
    MySqlTaggedGtid,
    MySqlPreviousGtids,
    /// A transaction without GTID.
    AnonymousGtid,
    /// A whole compressed transaction; its events follow.
    TransactionPayload,
    /// Carries no change: the server is alive, or other events say the same.
    Harmless,
    /// The server reports that events are missing.
    Incident,
    Unknown,
}

/// Classifies the type byte of an event's header.
pub fn classify(event_type: u8) -> Class {
    let rows = |kind, has_extra_data, is_compressed| Class::Rows { kind, has_extra_data, is_compressed };
    match event_type {
        2 => Class::Query,
        // 3 STOP, 5 INTVAR, 13 RAND, 14 USER_VAR (a statement follows), 9 APPEND_BLOCK, 11 DELETE_FILE, 17
        // BEGIN_LOAD_QUERY (a LOAD DATA statement follows), 27 and 41 HEARTBEAT, 28 IGNORABLE, 29 ROWS_QUERY,
        // 36 TRANSACTION_CONTEXT, 37 VIEW_CHANGE, 160 ANNOTATE_ROWS, 161 BINLOG_CHECKPOINT, 164 START_ENCRYPTION.
        3 | 5 | 9 | 11 | 13 | 14 | 17 | 27 | 28 | 29 | 36 | 37 | 41 | 160 | 161 | 164 => Class::Harmless,
        4 => Class::Rotate,
        15 => Class::FormatDescription,
        16 => Class::Xid,
        18 => Class::LoadQuery,
        19 => Class::TableMap,
        23 => rows(Kind::Insert, false, false),
        24 => rows(Kind::Update, false, false),
        25 => rows(Kind::Delete, false, false),
        26 => Class::Incident,
        30 => rows(Kind::Insert, true, false),
        31 => rows(Kind::Update, true, false),
        32 => rows(Kind::Delete, true, false),
        33 => Class::MySqlGtid,
        34 => Class::AnonymousGtid,
        35 => Class::MySqlPreviousGtids,
        38 => Class::XaPrepare,
        39 => Class::PartialRows,
        40 => Class::TransactionPayload,
        42 => Class::MySqlTaggedGtid,
        162 => Class::MariaDbGtid,
        163 => Class::MariaDbGtidList,
        165 => Class::CompressedQuery,
        166 => rows(Kind::Insert, false, true),
        167 => rows(Kind::Update, false, true),
        168 => rows(Kind::Delete, false, true),
        _ => Class::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_outside_the_list_are_unknown() {
        let known = (0..=255u8).filter(|event_type| classify(*event_type) != Class::Unknown).count();
        assert_eq!(known, 42);
        for event_type in [0, 1, 6, 20, 43, 169, 255] {
            assert_eq!(classify(event_type), Class::Unknown, "{event_type}");
        }
    }
}
