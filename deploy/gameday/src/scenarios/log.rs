//! Faults of the log: it has no room, for so long that a reader lags or a source is about to purge its binlog, or a
//! message is not as its head says.

use std::time::Duration;

use super::{LAG, RAISE_RETENTION, SHORT_RETENTION, SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};

/// The section that gives NATS room again.
const MAKE_ROOM: Section = Section {
    heading: "log-full",
    table: &[
        means("Free disk space on the NATS server", &[Action::EmptyLog]),
        leave("raise the limit of the account", "the disk was full, and no limit is too low"),
        means("nats account info", &[Action::AskLog]),
    ],
};

pub(super) static ALL: [Scenario; 4] = [
    Scenario {
        name: "log-full",
        fault: "the disk of NATS is full",
        inject: &[Action::FillLog],
        alert: Expected::Alert { name: "AnabranchTaskRetrying", labels: &[], condition: Condition::AtOnce },
        shown: Shown::Code("log-full"),
        shown_within: SHOWN,
        sections: &[MAKE_ROOM],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "reader-held",
        fault: "the disk of NATS is full for minutes, so a reader cannot go on",
        inject: &[Action::FillLog],
        alert: Expected::Alert {
            name: "AnabranchCaptureLag",
            labels: &[("source", "source-a")],
            condition: Condition::After(LAG),
        },
        shown: Shown::Code("log-full"),
        shown_within: SHOWN,
        sections: &[MAKE_ROOM],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "purge-near",
        fault: "a reader cannot go on, and its source keeps its binlog for five hours",
        inject: &[Action::FillLog, Action::Sql { server: "source-a", statements: SHORT_RETENTION }],
        alert: Expected::Alert {
            name: "AnabranchBinlogPurgeNear",
            labels: &[("source", "source-a")],
            condition: Condition::After(Duration::from_secs(60)),
        },
        shown: Shown::Code("log-full"),
        shown_within: SHOWN,
        sections: &[
            Section {
                heading: "What runs out: the binlog",
                table: &[
                    means(
                        "SHOW BINARY LOGS;",
                        &[Action::Sql { server: "source-a", statements: "SHOW BINARY LOGS" }],
                    ),
                    means(
                        "SELECT @@GLOBAL.binlog_expire_logs_seconds;",
                        &[Action::Sql {
                            server: "source-a",
                            statements: "SELECT @@GLOBAL.binlog_expire_logs_seconds",
                        }],
                    ),
                    means(
                        "SET GLOBAL binlog_expire_logs_seconds = SECONDS;",
                        &[Action::Sql { server: "source-a", statements: RAISE_RETENTION }],
                    ),
                ],
            },
            MAKE_ROOM,
        ],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "change-lost",
        fault: "a message of the log announces a change that it does not have",
        inject: &[Action::ForgeMessage("source-a")],
        alert: Expected::Alert {
            name: "AnabranchChangesUnaccounted",
            labels: &[("source", "source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("log-count-violated"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "log-count-violated",
            table: &[
                means("anabranch --config FILE status --json", &[Action::Command(&["status", "--json"])]),
                means("journalctl -u anabranch", &[Action::ReadLog]),
                leave("nats stream backup STREAM FOLDER", "the drill made the message, and keeps no proof"),
                means("nats stream rm STREAM", &[Action::DeleteStream("source-a")]),
                means("systemctl restart anabranch", &[Action::StartDaemon]),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
];
