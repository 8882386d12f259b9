//! Faults of the log.

use super::{SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};

pub(super) static ALL: [Scenario; 1] = [Scenario {
    name: "log-full",
    fault: "the disk of NATS is full",
    inject: &[Action::FillLog],
    alert: Expected::Alert { name: "AnabranchTaskRetrying", labels: &[], condition: Condition::AtOnce },
    shown: Shown::Code("log-full"),
    shown_within: SHOWN,
    sections: &[Section {
        heading: "log-full",
        table: &[
            means("Free disk space on the NATS server", &[Action::EmptyLog]),
            leave("raise the limit of the account", "the disk was full, and no limit is too low"),
            means("nats account info", &[Action::AskLog]),
        ],
    }],
    words: &[],
    afterwards: &[],
}];
