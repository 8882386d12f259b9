//! Faults of lanes: they are paused, they cannot keep up, or a table does not fit what they read.

use super::{LAG, RAISE_RETENTION, SHORT_RETENTION, SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};
use crate::site::{has_paused, loses_changes};

const PAUSE: &[&str] = &["pause", "--projection", "birthday", "--reason", "a drill"];
/// Renames a captured column, and adds a row that lacks it: no workload has this user.
const RENAME: &str = "
    ALTER TABLE user_00.user_000 RENAME COLUMN birthday TO born;
    DELETE FROM user_00.user_000 WHERE user_id = 5000000002;
    INSERT INTO user_00.user_000 (user_id, user_name, born) VALUES (5000000002, 'game day', '1991-06-18')";
const RENAME_BACK: &str = "ALTER TABLE user_00.user_000 RENAME COLUMN born TO birthday";

pub(super) static ALL: [Scenario; 4] = [
    Scenario {
        name: "lane-paused",
        fault: "a person pauses a projection and does not resume it",
        inject: &[Action::Command(PAUSE)],
        alert: Expected::Alert { name: "AnabranchLanePaused", labels: &[], condition: Condition::AtOnce },
        shown: Shown::Sentence { sign: has_paused, text: "lanes paused by an operator" },
        shown_within: SHOWN,
        sections: &[Section { heading: "Paused lanes", table: &[] }],
        words: &[("NAME", &["birthday"])],
        afterwards: &[],
    },
    Scenario {
        name: "pause-too-long",
        fault: "a projection is paused, and log and binlog keep its changes for five hours",
        // The binlog begins a new file after the pause, so the lanes need one that may be purged.
        inject: &[
            Action::Command(PAUSE),
            Action::AwaitPause,
            Action::Sql { server: "source-a", statements: SHORT_RETENTION },
        ],
        alert: Expected::Alert {
            name: "AnabranchPausedLaneLosesChanges",
            labels: &[("projection", "birthday"), ("source", "source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Sentence { sign: loses_changes, text: "needs changes that log and binlog lose in" },
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Paused lanes that lose changes",
            table: &[
                means(
                    "SET GLOBAL binlog_expire_logs_seconds = SECONDS;",
                    &[Action::Sql { server: "source-a", statements: RAISE_RETENTION }],
                ),
                leave("anabranch --config FILE setup", "the source keeps its binlogs for longer"),
            ],
        }],
        words: &[("NAME", &["birthday"])],
        afterwards: &[],
    },
    Scenario {
        name: "lane-late",
        fault: "the target takes no writes for minutes, beside the changes of the workload",
        inject: &[Action::Sql { server: "target", statements: "SET GLOBAL read_only = ON" }],
        alert: Expected::Alert {
            name: "AnabranchLaneLag",
            labels: &[("target", "target")],
            condition: Condition::After(LAG),
        },
        shown: Shown::Code("target-read-only"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "target-read-only",
            table: &[
                means(
                    "SELECT @@GLOBAL.read_only;",
                    &[Action::Sql { server: "target", statements: "SELECT @@GLOBAL.read_only" }],
                ),
                means(
                    "SET GLOBAL read_only = OFF;",
                    &[Action::Sql { server: "target", statements: "SET GLOBAL read_only = OFF" }],
                ),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "column-renamed",
        fault: "a captured column is renamed",
        // Statements of the workload name the column.
        inject: &[Action::PauseLoad, Action::Sql { server: "source-a", statements: RENAME }],
        alert: Expected::Alert {
            name: "AnabranchTableOwed",
            labels: &[("projection", "birthday"), ("source", "source-a")],
            condition: Condition::OverRange,
        },
        shown: Shown::Refreshing,
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Tables that wait to be read again",
            table: &[
                means("journalctl -u anabranch", &[Action::ReadLog]),
                means(
                    "`check` names the remedy",
                    &[
                        Action::Command(&["check"]),
                        Action::Sql { server: "source-a", statements: RENAME_BACK },
                        Action::ResumeLoad,
                    ],
                ),
                leave("SET GLOBAL binlog_format = ROW;", "no session changes rows by text"),
                leave("remove --table TABLE", "the source has the table"),
            ],
        }],
        words: &[],
        afterwards: &[Action::ResumeLoad],
    },
];
