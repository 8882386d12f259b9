//! Faults of the daemon itself: it is killed or frozen, its clock is wrong, or a second one has another
//! configuration.

use super::{SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};

/// A day.
const STEP_SECONDS: i64 = 24 * 3600;

pub(super) static ALL: [Scenario; 5] = [
    Scenario {
        name: "daemon-frozen",
        fault: "a daemon is frozen (SIGSTOP), and a second one takes its leases",
        inject: &[Action::StartSecondDaemon, Action::FreezeDaemon],
        alert: Expected::Alert { name: "AnabranchDaemonDown", labels: &[], condition: Condition::AtOnce },
        shown: Shown::TakenOver,
        shown_within: SHOWN,
        sections: &[Section {
            heading: "target-fenced",
            table: &[means("Nothing, if it happens once", &[Action::ThawDaemon])],
        }],
        words: &[],
        afterwards: &[Action::EndSecondDaemon],
    },
    Scenario {
        name: "daemon-killed",
        fault: "the only daemon is killed",
        inject: &[Action::KillDaemon],
        alert: Expected::Alert { name: "AnabranchNoDaemon", labels: &[], condition: Condition::AtOnce },
        shown: Shown::NoAnswer,
        shown_within: SHOWN,
        sections: &[Section {
            heading: "First look",
            table: &[
                means("curl http://ADDRESS/readyz", &[Action::AskReadiness]),
                means("journalctl -u anabranch", &[Action::ReadLog]),
                means("systemctl start anabranch", &[Action::StartDaemon]),
                leave("systemctl reload anabranch", "NATS is there, so the command before it is enough"),
            ],
        }],
        words: &[("CODE", &["source-unreachable"]), ("TASK", &["reader/source-a"])],
        afterwards: &[],
    },
    Scenario {
        name: "clock-stepped",
        fault: "the daemon's clock is set forward by a day",
        inject: &[Action::StartDaemonWithClock, Action::StepClock(STEP_SECONDS)],
        alert: Expected::Nobody(
            "no decision depends on a wall clock: lag, leases and positions do not, so nothing stops and no row is lost.",
        ),
        shown: Shown::Current("nothing depends on the clock"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "One that was cut off",
            table: &[means("Correct the clock", &[Action::StepClock(0)])],
        }],
        words: &[],
        afterwards: &[Action::StartDaemon],
    },
    Scenario {
        name: "configurations",
        fault: "a second daemon has another configuration file",
        inject: &[Action::StartOtherDaemon],
        alert: Expected::Alert {
            name: "AnabranchConfigurationsDiffer",
            labels: &[],
            condition: Condition::AtOnce,
        },
        shown: Shown::Current("both daemons work, and each one shows the whole installation"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Servers and certificates",
            table: &[means("systemctl restart anabranch", &[Action::RestartSecondDaemon])],
        }],
        words: &[],
        afterwards: &[Action::EndSecondDaemon],
    },
    Scenario {
        name: "daemon-restarts",
        fault: "the daemon is killed and started five times",
        inject: &[Action::RestartDaemon(5)],
        alert: Expected::Alert { name: "AnabranchRestarts", labels: &[], condition: Condition::OverRange },
        shown: Shown::Current("each process continues where the one before it ended"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "First look",
            table: &[
                means("curl http://ADDRESS/readyz", &[Action::AskReadiness]),
                means("journalctl -u anabranch", &[Action::ReadLog]),
                leave("systemctl start anabranch", "the daemon answers"),
                leave("systemctl reload anabranch", "NATS is there, so the command before it is enough"),
            ],
        }],
        words: &[("CODE", &["source-unreachable"]), ("TASK", &["reader/source-a"])],
        afterwards: &[],
    },
];
