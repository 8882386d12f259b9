//! Computes the room that is left: in a source's binlog after its reader, in its stream, of certificates. Pure.

use std::time::Duration;

use anabranch_schemas::lsn::{Lsn, binlog_file_number};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::wiring::BinlogKept;

/// Returns the bytes of the binlog between two positions of one epoch; `None` when files between are not known.
pub(super) fn bytes_behind(files: &[(String, u64)], position: Lsn, head: Lsn) -> Option<u64> {
    if position.epoch() != head.epoch() {
        return None;
    }
    let (first, last) = (position.file_number(), head.file_number());
    if first >= last {
        let is_behind = first == last;
        return Some(if is_behind { head.position().saturating_sub(position.position()) } else { 0 });
    }
    let size = |number: u32| {
        let is_it = |(name, _): &&(String, u64)| binlog_file_number(name).is_ok_and(|found| found == number);
        files.iter().find(is_it).map(|(_, size)| *size)
    };
    let first_size = size(first)?.saturating_sub(position.position());
    let between: u64 = (first + 1..last).map(size).sum::<Option<u64>>()?;
    Some(first_size + between + head.position())
}

/// Returns the least time until a server purges the file at which reading must resume. The file was written to at
/// `committed_at_us` or later. `None` = it is the newest file, which is never purged, or nothing is purged by age.
pub(super) fn purged_in(
    kept: &BinlogKept,
    needed: &str,
    committed_at_us: u64,
    clock_us: u64,
) -> Option<Duration> {
    let after = kept.purged_after?;
    let newest = kept.files.last().map(|(name, _)| name.as_str());
    if committed_at_us == 0 || needed.is_empty() || newest == Some(needed) {
        return None;
    }
    Some(after.saturating_sub(Duration::from_micros(clock_us.saturating_sub(committed_at_us))))
}

/// Parses an end such as `Aug  9 12:00:00 2027 GMT`; returns seconds since the Unix epoch.
pub(super) fn certificate_end(text: &str) -> Option<i64> {
    let end = DateTime::strptime("%b %e %H:%M:%S %Y GMT", text.trim()).ok()?;
    Some(end.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: u32, position: u64) -> Lsn {
        Lsn::new(1, file, position).unwrap()
    }

    fn files() -> Vec<(String, u64)> {
        [("binlog.000007", 1000), ("binlog.000008", 500), ("binlog.000009", 160)]
            .map(|(name, size)| (name.to_owned(), size))
            .to_vec()
    }

    #[test]
    fn bytes_behind_are_counted_over_files_and_unknown_where_one_is_gone() {
        assert_eq!(bytes_behind(&files(), at(9, 32), at(9, 160)), Some(128));
        assert_eq!(bytes_behind(&files(), at(7, 960), at(9, 160)), Some(40 + 500 + 160));
        assert_eq!(bytes_behind(&files(), at(6, 960), at(9, 160)), None);
        assert_eq!(bytes_behind(&files(), at(9, 160), at(9, 32)), Some(0), "the head was asked before");
        assert_eq!(bytes_behind(&[], at(9, 160), at(8, 32)), Some(0));
    }

    #[test]
    fn a_file_is_purged_so_long_after_its_last_commit_and_the_newest_one_never() {
        let hour = Duration::from_secs(3600);
        let kept = BinlogKept { files: files(), purged_after: Some(hour), certificate_ends: None };
        let ten_minutes_us = 600_000_000;
        let of = |needed, committed, clock| purged_in(&kept, needed, committed, clock);
        assert_eq!(of("binlog.000008", 1, 1 + ten_minutes_us), Some(Duration::from_secs(3000)));
        assert_eq!(of("binlog.000008", 1, 1 + 10 * ten_minutes_us), Some(Duration::ZERO));
        assert_eq!(of("binlog.000009", 1, 1 + ten_minutes_us), None);
        assert_eq!(of("binlog.000008", 0, ten_minutes_us), None, "no commit is known");
        let kept = BinlogKept { purged_after: None, ..kept.clone() };
        assert_eq!(purged_in(&kept, "binlog.000008", 1, ten_minutes_us), None);
    }

    #[test]
    fn the_end_of_a_certificate_is_read_with_days_of_one_and_two_digits() {
        assert_eq!(certificate_end("Jan  2 00:00:01 1970 GMT"), Some(86_401));
        assert_eq!(certificate_end("Nov 25 12:00:00 2026 GMT"), Some(1_795_608_000));
        assert_eq!(certificate_end("tomorrow"), None);
    }
}
