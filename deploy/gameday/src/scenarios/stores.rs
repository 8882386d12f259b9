//! Faults of stores: the target, the cache, the index, rows that a person changed, and the lack of a proof.

use std::time::Duration;

use super::{KILLED_SHOWN, SHOWN, SPOT_CHECK_SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};
use crate::site::has_drift;

/// Time for which a lane tries a search cluster that says that it is too busy, as one with a block does.
const BUSY: Duration = Duration::from_secs(60);
const BUSY_SHOWN: Duration = Duration::from_secs(120);

/// 27 hours ago.
const LONG_AGO: i64 = -27 * 3600;
const RECONCILE: &[&str] = &["reconcile", "--now"];

pub(super) static ALL: [Scenario; 8] = [
    Scenario {
        name: "target-read-only",
        fault: "the target takes no writes",
        inject: &[Action::Sql { server: "target", statements: "SET GLOBAL read_only = ON" }],
        alert: Expected::Alert { name: "AnabranchTaskRetrying", labels: &[], condition: Condition::AtOnce },
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
        name: "redis-flushed",
        fault: "Redis is flushed",
        inject: &[Action::FlushCache],
        alert: Expected::Nobody(
            "an empty cache holds nothing stale. Lookups read the mapping tables and fill it again.",
        ),
        shown: Shown::Current("an empty cache is a right cache"),
        shown_within: SHOWN,
        sections: &[Section { heading: "cache-unreachable", table: &[] }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "redis-killed",
        fault: "Redis is killed",
        inject: &[Action::Kill("redis")],
        alert: Expected::Alert {
            name: "AnabranchCachePassed",
            labels: &[("cache", "redis")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("cache-unreachable"),
        shown_within: KILLED_SHOWN,
        sections: &[Section {
            heading: "cache-unreachable",
            table: &[means("Check that Redis runs", &[Action::Start("redis")])],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "search-refuses",
        fault: "OpenSearch refuses writes to the index",
        inject: &[Action::BlockIndex],
        alert: Expected::Alert {
            name: "AnabranchTaskRetrying",
            labels: &[],
            condition: Condition::After(BUSY),
        },
        shown: Shown::Code("target-unreachable"),
        shown_within: BUSY_SHOWN,
        sections: &[Section {
            heading: "target-unreachable",
            table: &[
                leave("free the disks", "the disks have room: the drill made the block itself"),
                means(
                    "remove the block `index.blocks.read_only_allow_delete` from the index",
                    &[Action::FreeIndex],
                ),
            ],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "document-rejected",
        fault: "the index rejects a document",
        inject: &[Action::ForeignIndex],
        alert: Expected::Alert {
            name: "AnabranchDocumentsRejected",
            labels: &[("projection", "documents")],
            condition: Condition::AtOnce,
        },
        shown: Shown::DeadLetter,
        shown_within: SHOWN,
        sections: &[Section { heading: "Documents that an index rejects", table: &[] }],
        words: &[("PROJECTION", &["documents"])],
        afterwards: &[],
    },
    Scenario {
        name: "drift-planted",
        fault: "a derived row is deleted by hand",
        inject: &[Action::Drift],
        alert: Expected::Alert {
            name: "AnabranchDriftSeen",
            labels: &[("store", "birthday"), ("source", "source-a")],
            condition: Condition::AfterSpotCheck,
        },
        shown: Shown::Sentence { sign: has_drift, text: "Spot checks found" },
        shown_within: SPOT_CHECK_SHOWN,
        sections: &[Section {
            heading: "Between two nightly reconciliations",
            table: &[leave("increase(anabranch_spot_check_drift_total", "it is the rule's expression")],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "drift-again",
        fault: "a row that a reconciliation repaired is deleted by hand once more",
        inject: &[Action::Drift, Action::Command(RECONCILE), Action::DriftAgain, Action::Command(RECONCILE)],
        alert: Expected::Alert {
            name: "AnabranchDriftAgain",
            labels: &[("store", "birthday")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Verdict("repaired"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Alerts",
            table: &[leave("Find the writer", "the drill deleted the row, and does not do so again")],
        }],
        words: &[],
        afterwards: &[],
    },
    Scenario {
        name: "proof-missing",
        fault: "the last reconciliation ended 27 hours ago",
        // It ends by a clock that is behind.
        inject: &[Action::CommandAt { seconds: LONG_AGO, arguments: RECONCILE }],
        alert: Expected::Alert {
            name: "AnabranchReconciliationMissing",
            labels: &[],
            condition: Condition::AtOnce,
        },
        shown: Shown::Current("the page says that the last proof is too old"),
        shown_within: SHOWN,
        sections: &[Section { heading: "The nightly reconciliation", table: &[] }],
        words: &[],
        afterwards: &[],
    },
];
