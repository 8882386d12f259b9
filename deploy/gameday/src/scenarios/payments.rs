//! Faults of payment documents: their counters.

use super::SHOWN;
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};
use crate::site::has_refusals;

/// Sets counters back as a copy of the server does, for the user partition whose documents the drill orders.
const GO_BACK: &str = "UPDATE flux_sequence.flux_sequence_07 SET next = 0";

pub(super) static ALL: [Scenario; 1] = [Scenario {
    name: "numbers-refused",
    fault: "the counters of a user partition go back below numbers that were given out",
    inject: &[
        Action::BeginPayments,
        Action::Sql { server: "target", statements: GO_BACK },
        Action::OrderIdentifier { is_refused: true },
    ],
    alert: Expected::Alert {
        name: "AnabranchPaymentNumbersRefused",
        labels: &[("code", "flux-sequence-lagging")],
        condition: Condition::OverRange,
    },
    shown: Shown::Sentence { sign: has_refusals, text: "Numbers of payment documents were refused" },
    shown_within: SHOWN,
    sections: &[Section { heading: "flux-sequence-lagging", table: &[] }],
    words: &[],
    afterwards: &[Action::OrderIdentifier { is_refused: false }, Action::RestoreFile],
}];
