//! Computes the room that is left: in a source's binlog after its reader, in its stream, for a paused lane, of
//! certificates. Pure.

use std::time::Duration;

use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::lsn::{Lsn, binlog_file_number};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{LaneObservation, Observations, SourceObservation};
use crate::wiring::{BinlogKept, StreamState};

/// Share of its size, in percent, from which a stream drops messages by size rather than by age.
const STREAM_FULL_PERCENT: u64 = 90;

/// Returns the bytes of the binlog between two positions of one epoch; `None` when files between are not known.
pub(super) fn lag_bytes(files: &[(String, u64)], position: Lsn, head: Lsn) -> Option<u64> {
    if position.epoch() != head.epoch() {
        return None;
    }
    let (first, last) = (position.file_number(), head.file_number());
    if first >= last {
        let is_same_file = first == last;
        return Some(if is_same_file { head.position().saturating_sub(position.position()) } else { 0 });
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

/// Returns how long a stream still has the message after this one. The message was stored at `committed_at_us` or
/// later. `None` = there is no such message yet, or the stream drops none. A full stream drops what is older than its
/// oldest message is now.
fn dropped_in(stream: &StreamState, sequence: u64, committed_at_us: u64, clock_us: u64) -> Option<Duration> {
    if sequence >= stream.last_sequence {
        return None;
    }
    if sequence.saturating_add(1) < stream.first_sequence {
        return Some(Duration::ZERO);
    }
    let since = |at_us: u64| Duration::from_micros(clock_us.saturating_sub(at_us));
    let is_full = stream
        .bytes_max
        .is_some_and(|max| stream.bytes.saturating_mul(100) >= max.saturating_mul(STREAM_FULL_PERCENT));
    let reach = stream.first_at_us.filter(|_| is_full).map(since);
    let kept_for = reach.into_iter().chain(stream.age_max).min()?;
    Some(kept_for.saturating_sub(since(committed_at_us)))
}

/// Returns the time until neither the stream nor the binlog has what a lane needs next; `None` = one of them keeps it.
pub(super) fn lost_in(
    lane: &Progress,
    stream: Option<&StreamState>,
    kept: &BinlogKept,
    clock_us: u64,
) -> Option<Duration> {
    let committed = lane.committed_at_us;
    let purged = purged_in(kept, &lane.resume.file, committed, clock_us)?;
    let (Some(stream), Some((sequence, _))) = (stream, &lane.message) else { return Some(purged) };
    dropped_in(stream, *sequence, committed, clock_us).map(|dropped| dropped.max(purged))
}

impl SourceObservation {
    /// Returns the least time until the source purges binlog that its reader needs; see [`purged_in`].
    pub(super) fn purge_left(&self) -> Option<Duration> {
        purged_in(self.kept.as_ref()?, &self.needed_file, self.committed_at_us, self.clock_us)
    }
}

impl Observations {
    /// Returns the time that a paused lane has left; see [`lost_in`].
    pub(super) fn paused_left(&self, id: &LaneId, lane: &LaneObservation) -> Option<Duration> {
        self.pauses.borrow().as_ref()?.of_lane(id)?;
        let source = self.sources.get(&id.source)?;
        lost_in(lane.progress.as_ref()?, source.stream.as_ref(), source.kept.as_ref()?, source.clock_us)
    }
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
        assert_eq!(lag_bytes(&files(), at(9, 32), at(9, 160)), Some(128));
        assert_eq!(lag_bytes(&files(), at(7, 960), at(9, 160)), Some(40 + 500 + 160));
        assert_eq!(lag_bytes(&files(), at(6, 960), at(9, 160)), None);
        assert_eq!(lag_bytes(&files(), at(9, 160), at(9, 32)), Some(0), "the head was asked before");
        assert_eq!(lag_bytes(&[], at(9, 160), at(8, 32)), Some(0));
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
    fn what_a_lane_needs_is_lost_when_both_stream_and_binlog_have_dropped_it() {
        let (hour, hour_us) = (Duration::from_secs(3600), 3_600_000_000);
        let kept = BinlogKept { files: files(), purged_after: Some(2 * hour), certificate_ends: None };
        let stream = StreamState {
            messages: 11,
            bytes: 10,
            first_sequence: 10,
            last_sequence: 20,
            first_at_us: Some(hour_us),
            bytes_max: Some(1000),
            age_max: Some(5 * hour),
        };
        let mut lane = Progress {
            committed_at_us: hour_us,
            message: Some((12, "a-1".to_owned())),
            ..Progress::default()
        };
        lane.resume.file = "binlog.000008".to_owned();
        let left = |lane: &Progress, stream: &StreamState| lost_in(lane, Some(stream), &kept, 2 * hour_us);
        assert_eq!(left(&lane, &stream), Some(4 * hour), "the stream keeps it longer");
        assert_eq!(
            left(&lane, &StreamState { bytes: 950, ..stream }),
            Some(hour),
            "the full stream reaches back an hour"
        );
        assert_eq!(
            left(&lane, &StreamState { first_sequence: 14, ..stream }),
            Some(hour),
            "only the binlog has it"
        );
        assert_eq!(left(&lane, &StreamState { last_sequence: 12, ..stream }), None, "nothing has come since");
        assert_eq!(lost_in(&lane, None, &kept, 9 * hour_us), Some(Duration::ZERO));
        lane.resume.file = "binlog.000009".to_owned();
        assert_eq!(left(&lane, &stream), None, "the newest file is never purged");
    }

    #[test]
    fn the_end_of_a_certificate_is_read_with_days_of_one_and_two_digits() {
        assert_eq!(certificate_end("Jan  2 00:00:01 1970 GMT"), Some(86_401));
        assert_eq!(certificate_end("Nov 25 12:00:00 2026 GMT"), Some(1_795_608_000));
        assert_eq!(certificate_end("tomorrow"), None);
    }
}
