//! Faults of sources: the server, its binlog, its certificate, the rights of the account.

use super::{KILLED_SHOWN, RAISE_RETENTION, SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};
use crate::site::shows_certificate_end;

/// Takes the right to read one database of a source away: the grant is on a pattern of databases.
const REVOKE: &str = r"
    REVOKE SELECT ON `user\_%`.* FROM 'anabranch_capture'@'127.0.0.1';
    GRANT SELECT ON `user\_01`.* TO 'anabranch_capture'@'127.0.0.1';
    GRANT SELECT ON `user\_02`.* TO 'anabranch_capture'@'127.0.0.1';
    GRANT SELECT ON `user\_03`.* TO 'anabranch_capture'@'127.0.0.1';
    GRANT SELECT ON `user\_04`.* TO 'anabranch_capture'@'127.0.0.1'";
/// Restores the documented grants.
const GRANT: &str = r"
    REVOKE SELECT ON `user\_01`.* FROM 'anabranch_capture'@'127.0.0.1';
    REVOKE SELECT ON `user\_02`.* FROM 'anabranch_capture'@'127.0.0.1';
    REVOKE SELECT ON `user\_03`.* FROM 'anabranch_capture'@'127.0.0.1';
    REVOKE SELECT ON `user\_04`.* FROM 'anabranch_capture'@'127.0.0.1';
    GRANT SELECT ON `user\_%`.* TO 'anabranch_capture'@'127.0.0.1'";

pub(super) static ALL: [Scenario; 8] = [
    Scenario {
        name: "source-killed",
        fault: "a source is killed",
        inject: &[Action::Kill("source-a")],
        alert: Expected::Alert {
            name: "AnabranchServerUnreachable",
            labels: &[("dependency", "source"), ("name", "source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("source-unreachable"),
        shown_within: KILLED_SHOWN,
        sections: &[Section {
            heading: "source-unreachable",
            table: &[
                means("Check that the server runs", &[Action::Start("source-a")]),
                leave("SELECT @@GLOBAL.gtid_owned;", "the message names no transaction, and it is not MySQL"),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "source-down",
        fault: "a source is killed and stays down",
        inject: &[Action::Kill("source-b")],
        alert: Expected::Alert {
            name: "AnabranchServerDown",
            labels: &[("dependency", "source"), ("name", "source-b")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("source-unreachable"),
        shown_within: KILLED_SHOWN,
        sections: &[Section {
            heading: "Servers and certificates",
            table: &[
                means("Bring the server back", &[Action::Start("source-b")]),
                leave("systemctl restart anabranch", "it is a step of AnabranchConfigurationsDiffer"),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "sources-unseen",
        fault: "every source is down when the daemon starts",
        inject: &[Action::Kill("source-a"), Action::Kill("source-b"), Action::StartDaemon],
        alert: Expected::Alert { name: "AnabranchLagUnknown", labels: &[], condition: Condition::AtOnce },
        shown: Shown::Code("source-unreachable"),
        shown_within: SHOWN,
        sections: &[
            Section {
                heading: "First look",
                table: &[
                    means("curl http://ADDRESS/readyz", &[Action::AskReadiness]),
                    means("journalctl -u anabranch", &[Action::ReadLog]),
                    leave("systemctl start anabranch", "the daemon answers"),
                    leave("systemctl reload anabranch", "NATS is there, so the command before it is enough"),
                ],
            },
            Section {
                heading: "source-unreachable",
                table: &[
                    means(
                        "Check that the server runs",
                        &[Action::Start("source-a"), Action::Start("source-b")],
                    ),
                    leave(
                        "SELECT @@GLOBAL.gtid_owned;",
                        "the message names no transaction, and it is not MySQL",
                    ),
                ],
            },
        ],
        words: &[("CODE", &["source-unreachable"]), ("TASK", &["reader/source-a"])],
        afterwards: &[],
    },
    Scenario {
        name: "certificate-ends",
        fault: "the certificate of a source ends tomorrow",
        inject: &[Action::ShortCertificate("source-b")],
        alert: Expected::Alert {
            name: "AnabranchCertificateEnds",
            labels: &[("dependency", "source"), ("name", "source-b")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Sentence {
            sign: shows_certificate_end,
            text: "The certificate of source source-b ends in",
        },
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Servers and certificates",
            table: &[
                means("Renew it on that server", &[Action::Start("source-b")]),
                leave("systemctl restart anabranch", "it is a step of AnabranchConfigurationsDiffer"),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "table-unreadable",
        fault: "the capture account may not read a table any more",
        inject: &[
            Action::Sql { server: "source-a", statements: REVOKE },
            Action::Command(&["reconcile", "--now"]),
        ],
        alert: Expected::Alert {
            name: "AnabranchReconciliationUnproved",
            labels: &[("verdict", "incomplete")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Verdict("incomplete"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Missing rows",
            table: &[means("Remove the cause", &[Action::Sql { server: "source-a", statements: GRANT }])],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "binlog-purged",
        fault: "a source purges its binlog while the daemon is away",
        inject: &[Action::KillDaemon, Action::PurgeBinlog("source-a"), Action::StartDaemon],
        alert: Expected::Alert {
            name: "AnabranchTaskRetrying",
            labels: &[("task", "reader/source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("binlog-purged"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "binlog-purged",
            table: &[means(
                "SET GLOBAL binlog_expire_logs_seconds = SECONDS;",
                &[Action::Sql { server: "source-a", statements: RAISE_RETENTION }],
            )],
        }],
        words: &[("NAME", &["birthday", "mapping", "documents"]), ("SOURCE", &["source-a"])],
        afterwards: &[],
    },
    Scenario {
        name: "source-reset",
        fault: "a source forgets its binlog (RESET MASTER) while the daemon is away",
        inject: &[Action::KillDaemon, Action::ForgetBinlog("source-b"), Action::StartDaemon],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "reader/source-b")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("source-server-changed"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "source-server-changed",
            table: &[leave("systemctl restart anabranch", "the address leads to the right server")],
        }],
        words: &[("SOURCE", &["source-b"])],
        afterwards: &[],
    },
    Scenario {
        name: "source-diverged",
        fault: "a source fails over to a server that lacks a transaction that was read",
        inject: &[Action::FailOverTooEarly("source-a")],
        alert: Expected::Alert {
            name: "AnabranchTaskStopped",
            labels: &[("task", "reader/source-a")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("source-diverged"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "source-diverged",
            table: &[
                leave("anabranch --config FILE restart reader/SOURCE", "no server has the transaction"),
                leave(
                    "anabranch --config FILE begin-anew --source SOURCE --dry-run",
                    "the step before it is not refused",
                ),
                leave(
                    "anabranch --config FILE begin-anew --source SOURCE",
                    "the step before it is not refused",
                ),
            ],
        }],
        words: &[("SOURCE", &["source-a"])],
        afterwards: &[],
    },
];
