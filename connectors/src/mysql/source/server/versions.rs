//! Decides which versions of a server can be a source, and which of them the tests ran on.

use std::collections::HashMap;

use anabranch_pipeline::error::{Code, Fault};

use super::session::Version;
use crate::mysql::source::decode::gtid::Flavor;

/// Oldest versions with full row metadata in the binlog; MySQL also owns a GTID until its transaction is visible.
const OLDEST_MARIADB: (u32, u32, u32) = (10, 6, 0);
const OLDEST_MYSQL: (u32, u32, u32) = (8, 0, 30);
/// Newest series that the tests ran on; a later one may log changes in a form unknown here.
const NEWEST_MARIADB: (u32, u32) = (11, 8);
const NEWEST_MYSQL: (u32, u32) = (9, 7);
/// Oldest MariaDB that the tests saw leave generated columns out of row events; 10.11 logs them.
const LEAVES_OUT_GENERATED: (u32, u32) = (11, 8);

/// Returns the fault of a server that is too old.
pub fn fault(version: Version, text: &str, subject: &str) -> Option<Fault> {
    let (oldest, needed) = match version.flavor {
        Flavor::MariaDb => (OLDEST_MARIADB, "MariaDB 10.6 or newer"),
        Flavor::MySql => (OLDEST_MYSQL, "MySQL 8.0.30 or newer"),
    };
    (version.number < oldest).then(|| {
        Fault::new(Code::SourceMetadataNotFull, subject, format!("version {text} is too old")).needs(needed)
    })
}

/// Returns the fault of a MariaDB server (12.3 or later) that keeps its binlog in InnoDB, in files of another format.
pub fn storage_fault(subject: &str, variables: &HashMap<String, String>) -> Option<Fault> {
    let engine =
        variables.get("binlog_storage_engine").filter(|engine| engine.eq_ignore_ascii_case("innodb"))?;
    let found = format!("binlog_storage_engine is {engine}: its binlog files have another format");
    let fault = Fault::new(Code::SourceFormatNotRow, subject, found).needs("a binlog in files of its own");
    Some(fault.remedy("remove binlog_storage_engine from the server's configuration and restart it"))
}

/// Returns the warning for a server that is newer than those that the tests ran on.
pub fn warning(version: Version, text: &str, subject: &str) -> Option<String> {
    let (newest, run) = match version.flavor {
        Flavor::MariaDb => (NEWEST_MARIADB, "MariaDB 10.11 and 11.8"),
        Flavor::MySql => (NEWEST_MYSQL, "MySQL 9.7"),
    };
    let (major, minor, _) = version.number;
    ((major, minor) > newest).then(|| {
        format!(
            "{subject}: version {text} is newer than those that Anabranch was run on ({run}); needed: one of these, or \
             a reconciliation every night, which finds changes that this version logs in another form"
        )
    })
}

/// Whether the server leaves generated columns, stored and virtual ones, out of the rows of updates and deletes.
pub fn leaves_out_generated(version: Version) -> bool {
    let (major, minor, _) = version.number;
    version.flavor == Flavor::MariaDb && (major, minor) >= LEAVES_OUT_GENERATED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> (bool, bool) {
        let version = Version::parse(text);
        (fault(version, text, "source a").is_some(), warning(version, text, "source a").is_some())
    }

    #[test]
    fn versions_that_were_not_run_are_warned_of_and_too_old_ones_refused() {
        for text in
            ["10.6.0-MariaDB", "10.11.19-MariaDB-log", "11.8.9-MariaDB-0+deb13u1", "8.0.30", "9.7.4-2"]
        {
            assert_eq!(says(text), (false, false), "{text}");
        }
        for text in ["10.5.29-MariaDB", "8.0.29-log", "5.7.44"] {
            assert_eq!(says(text), (true, false), "{text}");
        }
        for text in ["12.0.1-MariaDB", "12.3.1-MariaDB-log", "9.8.0", "10.0.0"] {
            assert_eq!(says(text), (false, true), "{text}");
        }
        let reported = warning(Version::parse("12.3.1-MariaDB"), "12.3.1-MariaDB", "source a").unwrap();
        assert!(
            reported.contains("source a: version 12.3.1-MariaDB") && reported.contains("11.8"),
            "{reported}"
        );
    }

    #[test]
    fn generated_columns_are_left_out_from_mariadb_11_8_on() {
        let leaves_out = |text: &str| leaves_out_generated(Version::parse(text));
        for text in ["11.8.0-MariaDB", "11.8.9-MariaDB-0+deb13u1", "12.3.1-MariaDB-log"] {
            assert!(leaves_out(text), "{text}");
        }
        for text in ["10.6.0-MariaDB", "10.11.19-MariaDB-log", "8.4.5", "9.7.4-2", "12.0.0"] {
            assert!(!leaves_out(text), "{text}");
        }
    }

    #[test]
    fn a_binlog_within_innodb_is_refused_by_name() {
        let variables = |value: &str| HashMap::from([("binlog_storage_engine".to_owned(), value.to_owned())]);
        assert!(storage_fault("source a", &variables("")).is_none());
        assert!(storage_fault("source a", &HashMap::new()).is_none());
        let fault = storage_fault("source a", &variables("innodb")).unwrap();
        assert_eq!(fault.code(), Code::SourceFormatNotRow);
        assert!(fault.to_string().contains("binlog_storage_engine is innodb"), "{fault}");
    }
}
