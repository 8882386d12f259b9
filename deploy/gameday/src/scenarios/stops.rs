//! Stops that a person ends: a lane without its progress, a change by text where such changes stop the source, a binlog
//! that is damaged, a server that was restored in part. And a source that left for good.

use super::{SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};

const FORGET_PROGRESS: &str =
    "DELETE FROM anabranch.progress WHERE projection = 'birthday' AND source = 'source-a'";
/// A change by text of a row that no workload has.
const BY_TEXT: &str = "
    DELETE FROM user_00.user_000 WHERE user_id = 5000000004;
    INSERT INTO user_00.user_000 (user_id, user_name, birthday) VALUES (5000000004, 'game day', '1991-06-19');
    SET SESSION binlog_format = STATEMENT;
    UPDATE user_00.user_000 SET birthday = '1992-07-08' WHERE user_id = 5000000004";
const ROW_FORMAT: &str = "SET GLOBAL binlog_format = ROW";
const RENEW_ESTIMATE: &str = "ANALYZE NO_WRITE_TO_BINLOG TABLE user_05.user_000";

pub(super) static ALL: [Scenario; 5] = [
    Scenario {
        name: "progress-lost",
        fault: "a person deletes the progress of lanes while the daemon is away",
        inject: &[
            Action::KillDaemon,
            Action::Sql { server: "target", statements: FORGET_PROGRESS },
            Action::StartDaemon,
        ],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "lane/birthday/target/source-a/0")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("target-progress-lost"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "target-progress-lost",
            table: &[
                leave("systemctl restart anabranch", "nobody changed the configuration"),
                leave("anabranch --config FILE setup", "neither source nor projection is new"),
                leave("anabranch --config FILE restart --all", "there is no backup"),
                leave("--lost-progress --without-retired", "no entity retains rows"),
            ],
        }],
        words: &[("SOURCE", &["source-a"])],
        afterwards: &[],
    },
    Scenario {
        name: "change-by-text",
        fault: "a session changes a row by text, and the configuration has the source stop for that",
        inject: &[Action::StopAtUnseenChanges, Action::Sql { server: "source-a", statements: BY_TEXT }],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "reader/source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("binlog-statement"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "binlog-statement",
            table: &[means(
                "SET GLOBAL binlog_format = ROW;",
                &[Action::Sql { server: "source-a", statements: ROW_FORMAT }],
            )],
        }],
        words: &[("NAME", &["birthday", "mapping", "documents"]), ("SOURCE", &["source-a"])],
        afterwards: &[Action::RestoreFile],
    },
    Scenario {
        name: "source-left",
        fault: "a source leaves the configuration for good, and its derived rows stand",
        inject: &[Action::TakeSourceOut("source-b")],
        alert: Expected::Nobody(
            "the rows of a source that left stand until a person removes them, and reconciliations name them.",
        ),
        shown: Shown::Current("no task belongs to the source any more"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Remove a source or a table",
            table: &[
                leave("anabranch --config FILE remove --source SOURCE --with-log", "the source comes back"),
                leave("nats stream rm NAME_SOURCE", "the source comes back"),
                leave("remove --table TABLE", "the source goes with all its tables"),
            ],
        }],
        words: &[("SOURCE", &["source-b"])],
        afterwards: &[Action::RestoreFile],
    },
    // The damaged file stays in the source's binlog until the next drill.
    Scenario {
        name: "binlog-damaged",
        fault: "a bit of a binlog is flipped while the daemon is away",
        inject: &[Action::KillDaemon, Action::DamageBinlog("source-b"), Action::StartDaemon],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "reader/source-b")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("binlog-event-corrupt"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "binlog-event-corrupt",
            table: &[
                leave("mariadb-binlog --verify-binlog-checksum BINLOG", "the drill damaged the file itself"),
                leave("anabranch --config FILE restart reader/SOURCE", "the file is not whole"),
            ],
        }],
        words: &[("SOURCE", &["source-b"])],
        afterwards: &[],
    },
    // The last drill: the source has lost rows, and later reconciliations would count them.
    Scenario {
        name: "restored-in-part",
        fault: "a source is restored from a backup that lacks three of four users",
        inject: &[Action::KillDaemon, Action::LoseUsers("source-b"), Action::StartDaemon],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "reader/source-b")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("source-server-changed"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "begin-anew-refused",
            table: &[
                leave("anabranch --config FILE refresh --projection NAME", "the reader cannot go on"),
                means(
                    "ANALYZE NO_WRITE_TO_BINLOG TABLE DATABASE.TABLE;",
                    &[Action::Sql { server: "source-b", statements: RENEW_ESTIMATE }],
                ),
            ],
        }],
        words: &[("SOURCE", &["source-b"])],
        afterwards: &[],
    },
];
