//! Tests of codes, which are unique and explained in the runbook, and of a fault's text.

use std::collections::HashSet;

use super::*;

#[test]
fn codes_are_unique_and_in_kebab_case() {
    let texts: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(texts.len(), Code::ALL.len());
    assert!(texts.iter().all(|text| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
}

#[test]
fn each_code_has_a_heading_in_the_runbook() {
    let runbook = include_str!("../../../deploy/RUNBOOK.md");
    for code in Code::ALL {
        assert!(runbook.contains(&format!("\n### {code}\n")), "deploy/RUNBOOK.md has no heading for {code}");
    }
}

#[test]
fn only_what_time_cannot_mend_stops_a_task() {
    let stops: Vec<_> = Code::ALL.iter().filter(|code| code.stops()).map(|code| code.as_str()).collect();
    assert_eq!(
        stops.join(" "),
        "source-server-changed source-diverged binlog-gtid-unknown binlog-event-unknown binlog-event-corrupt \
         binlog-statement binlog-rolled-back-rows binlog-xa-unread source-schema-changed log-foreign \
         log-version-unknown log-order-violated log-count-violated log-epoch-reused target-table-shape \
         target-is-source target-progress-lost target-progress-corrupt uuids-exhausted"
    );
    assert!(Code::ALL.iter().all(|code| !code.stops() || code.class() == Class::Definite));
}

#[test]
fn a_cause_that_repeats_what_was_said_is_shown_once() {
    #[derive(Debug)]
    struct Repeats(std::io::Error);
    impl fmt::Display for Repeats {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "outer: {}", self.0)
        }
    }
    impl StdError for Repeats {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }
    let fault =
        Fault::new(Code::Internal, "thing", "found").caused_by(Repeats(std::io::Error::other("inner")));
    assert_eq!(fault.to_string(), "[internal] thing: found; cause: outer: inner");
}

#[test]
fn a_connection_that_was_closed_is_told_without_a_librarys_manual() {
    let cause = "I/O error: peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
    let fault = Fault::new(Code::SourceUnreachable, "source a", "the connection failed").caused_by(cause);
    let text = fault.to_string();
    assert!(text.ends_with("cause: I/O error: the other side closed the connection in the middle"), "{text}");
}

#[test]
fn a_fault_reads_as_one_line() {
    let fault = Fault::new(Code::SourceFormatNotRow, "source source-a", "binlog_format is STATEMENT")
        .needs("ROW")
        .remedy("SET GLOBAL binlog_format = ROW")
        .caused_by("because");
    assert_eq!(
        fault.to_string(),
        "[source-format-not-row] source source-a: binlog_format is STATEMENT; needed: ROW; \
         remedy: SET GLOBAL binlog_format = ROW; cause: because"
    );
}
