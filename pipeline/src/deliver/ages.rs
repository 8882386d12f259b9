//! How old the newest change of a flush is when it is visible: since its commit in the source, and since its reading.
//!
//! The two ends of an age are read from two clocks, so a step of one of them shows in it.

use std::time::Duration;

use crate::records::Progress;

/// Returns the time since the commit in the source. `None` for MariaDB, which says commit times in whole seconds, and
/// for a replay, whose changes were visible before.
pub(super) fn since_commit(progress: &Progress, now_us: u64) -> Option<Duration> {
    let has_commit_time = progress.committed_at_us > 0 && progress.server.flavor == "mysql";
    (has_commit_time && !progress.is_replaying()).then(|| since(progress.committed_at_us, now_us))
}

/// Returns the time since the change was read at `read_at_us`, from a source of either kind. `None` when that moment is
/// not known (0), and for a replay.
pub(super) fn since_read(progress: &Progress, read_at_us: u64, now_us: u64) -> Option<Duration> {
    (read_at_us > 0 && !progress.is_replaying()).then(|| since(read_at_us, now_us))
}

/// Returns zero when the clock of `at_us` is ahead.
fn since(at_us: u64, now_us: u64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(at_us))
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::envelope::ServerIdentity;
    use anabranch_schemas::lsn::Lsn;

    use super::*;

    const NOW_US: u64 = 1_700_000_000_250_000;

    fn progress_of(flavor: &str) -> Progress {
        let server = ServerIdentity { flavor: flavor.into(), ..ServerIdentity::default() };
        Progress { server, committed_at_us: NOW_US - 250_000, ..Progress::default() }
    }

    #[test]
    fn mysql_has_both_ages_and_mariadb_only_the_one_since_the_reading() {
        let (mysql, mariadb) = (progress_of("mysql"), progress_of("mariadb"));
        assert_eq!(since_commit(&mysql, NOW_US), Some(Duration::from_millis(250)));
        assert_eq!(since_commit(&mariadb, NOW_US), None);
        for progress in [&mysql, &mariadb] {
            assert_eq!(since_read(progress, NOW_US - 4_000, NOW_US), Some(Duration::from_millis(4)));
        }
    }

    #[test]
    fn an_unknown_moment_has_no_age_and_a_clock_that_is_ahead_makes_none() {
        let mariadb = progress_of("mariadb");
        assert_eq!(since_read(&mariadb, 0, NOW_US), None);
        assert_eq!(since_read(&mariadb, NOW_US + 9, NOW_US), Some(Duration::ZERO));
        assert_eq!(since_commit(&Progress { committed_at_us: 0, ..progress_of("mysql") }, NOW_US), None);
    }

    #[test]
    fn a_replay_shows_no_age() {
        let position = Lsn::new(1, 1, 32).expect("a position");
        let replaying = Progress { highest_position: position, ..progress_of("mysql") };
        assert!(replaying.is_replaying());
        assert_eq!(since_commit(&replaying, NOW_US), None);
        assert_eq!(since_read(&replaying, NOW_US - 1, NOW_US), None);
    }
}
