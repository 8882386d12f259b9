//! Times for which lanes have been in states that alerts wait for, as this process has seen them.

use std::time::Instant;

use anabranch_schemas::lsn::Lsn;
use serde::{Deserialize, Serialize};

use super::LaneObservation;

/// Times since which a lane has been in these states; `None` = it is not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lasting {
    direct: Option<Instant>,
    owed: Option<Instant>,
    withdrawn: Option<Instant>,
}

/// Times for which a lane has been in these states, as this process has seen it; `None` = it is not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LastingView {
    /// It reads the binlog in place of the stream.
    #[serde(default)]
    pub direct_seconds: Option<f64>,
    /// Tables wait to be read again.
    #[serde(default)]
    pub owed_seconds: Option<f64>,
    /// It is to remove rows of dropped or truncated tables.
    #[serde(default)]
    pub withdrawn_seconds: Option<f64>,
}

impl Lasting {
    pub(super) fn view(&self, now: Instant) -> LastingView {
        let seconds = |since: Option<Instant>| Some(now.saturating_duration_since(since?).as_secs_f64());
        LastingView {
            direct_seconds: seconds(self.direct),
            owed_seconds: seconds(self.owed),
            withdrawn_seconds: seconds(self.withdrawn),
        }
    }
}

impl LaneObservation {
    /// Takes in the states of the progress that was read at `now`.
    pub(super) fn note_lasting(&mut self, now: Instant) {
        let Some(progress) = &self.progress else { return };
        let is_direct = progress.position > Lsn::ZERO && progress.message.is_none();
        let (is_owed, is_withdrawn) = (self.owed_tables() > 0, !progress.withdrawals.is_empty());
        let since = |before: Option<Instant>, is_so: bool| is_so.then(|| before.unwrap_or(now));
        self.lasting = Lasting {
            direct: since(self.lasting.direct, is_direct),
            owed: since(self.lasting.owed, is_owed),
            withdrawn: since(self.lasting.withdrawn, is_withdrawn),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_pipeline::records::Progress;

    use super::*;

    #[test]
    fn a_time_begins_and_ends_with_its_state() {
        let start = Instant::now();
        let mut lane = LaneObservation::default();
        let mut see = |message: Option<(u64, String)>, second: u64| {
            let now = start + Duration::from_secs(second);
            let position = Lsn::new(1, 7, 16).unwrap();
            lane.progress = Some(Progress { position, message, ..Progress::default() });
            lane.note_lasting(now);
            lane.lasting.view(now).direct_seconds
        };
        assert_eq!(see(None, 1), Some(0.0));
        assert_eq!(see(None, 5), Some(4.0));
        assert_eq!(see(Some((1, "a-1".to_owned())), 6), None);
        assert_eq!(see(None, 9), Some(0.0));
    }
}
