//! The codes by which this process has lately refused numbers of payment documents.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::Code;

use super::Observatory;

/// Time for which a refusal is shown. The alert `AnabranchPaymentNumbersRefused` looks back as long.
const SHOWN_FOR: Duration = Duration::from_secs(600);
/// Codes of counters that give no number out. Any other refusal is the answer to a wrong order.
const CODES: [Code; 3] = [Code::FluxServerChanged, Code::FluxServerVolatile, Code::FluxSequenceLagging];

impl Observatory {
    /// Records that an order of identifiers was refused.
    pub fn order_refused(&self, code: Code, now: Instant) {
        if CODES.contains(&code) {
            self.lock().refusals.insert(code.as_str(), now);
        }
    }

    /// Returns the codes of the last minutes.
    pub(super) fn refusals(&self, now: Instant) -> Vec<String> {
        let all = self.lock();
        let lately = all.refusals.iter().filter(|(_, at)| now.saturating_duration_since(**at) < SHOWN_FOR);
        lately.map(|(code, _)| (*code).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_refusal_is_shown_for_ten_minutes_and_a_wrong_order_never() {
        let observatory = Observatory { all: Arc::default(), recent: Arc::default() };
        let now = Instant::now();
        observatory.order_refused(Code::FluxIdMalformed, now);
        observatory.order_refused(Code::FluxSequenceLagging, now);
        assert_eq!(observatory.refusals(now + Duration::from_secs(599)), ["flux-sequence-lagging"]);
        assert!(observatory.refusals(now + Duration::from_secs(600)).is_empty());
    }
}
