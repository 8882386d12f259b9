//! The drift that spot checks of this process found: rows that were still wrong at the last check after a change.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Observatory;

/// Time for which drift is shown after the last wrong row. The alert `AnabranchDriftSeen` looks back as long.
const SHOWN_FOR: Duration = Duration::from_secs(3600);

/// The drift of one store and one source.
#[derive(Debug, Clone, Copy)]
pub(super) struct DriftObservation {
    rows: u64,
    /// Time of the last wrong row.
    at: Instant,
}

impl DriftObservation {
    fn is_shown(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < SHOWN_FOR
    }
}

/// The drift of one store and one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftView {
    pub store: String,
    pub source: String,
    /// Wrong rows since the drift began; it ends an hour after the last one.
    pub rows: u64,
}

impl Observatory {
    /// Records a row that was still wrong at the last spot check after a change.
    pub fn drift_seen(&self, store: &str, source: &str, now: Instant) {
        let mut all = self.lock();
        let begun = DriftObservation { rows: 0, at: now };
        let seen = all.drifts.entry((store.to_owned(), source.to_owned())).or_insert(begun);
        if !seen.is_shown(now) {
            *seen = begun;
        }
        *seen = DriftObservation { rows: seen.rows + 1, at: now };
    }

    /// Returns each drift whose last wrong row was found within the hour.
    pub(super) fn drifts(&self, now: Instant) -> Vec<DriftView> {
        let all = self.lock();
        let shown = all.drifts.iter().filter(|(_, seen)| seen.is_shown(now));
        let view = |((store, source), seen): (&(String, String), &DriftObservation)| DriftView {
            store: store.clone(),
            source: source.clone(),
            rows: seen.rows,
        };
        shown.map(view).collect()
    }
}
