//! Faults of coupon days: the coupon system, the ledger, the processes that dispatch and grant.

use std::time::Duration;

use super::{SHOWN, leave, means};
use crate::scenario::{Action, Condition, Expected, Scenario, Section, Shown};

const DAY_SECONDS: i64 = 24 * 3600;
/// Range over which the rule on the coupon system looks back. All of it must be bad, so the alert ends at once.
const AWAY: Duration = Duration::from_secs(900);
/// Every role but that of a granter; no token opens the API.
const WITHOUT_GRANTER: &[&str] = &["reader", "projector", "reconciler", "dispatcher"];
/// Every role that does nothing about coupons.
const WITHOUT_COUPONS: &[&str] = &["reader", "projector", "reconciler"];

pub(super) static ALL: [Scenario; 6] = [
    Scenario {
        name: "coupons-away",
        fault: "the coupon system does not answer",
        inject: &[Action::StopCouponSystem, Action::BeginProgramme { name: "away", days_ago: 0 }],
        alert: Expected::Alert {
            name: "AnabranchCouponSystemAway",
            labels: &[],
            condition: Condition::After(AWAY),
        },
        shown: Shown::Code("coupon-system-unreachable"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "coupon-system-unreachable",
            table: &[means(
                "See whether the coupon system is up",
                &[Action::StartCouponSystem, Action::AwaitCoupons],
            )],
        }],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
    Scenario {
        name: "coupons-mismatch",
        fault: "the coupon system answers that it knows keys with another coupon",
        inject: &[Action::MismatchCoupons, Action::BeginProgramme { name: "mismatch", days_ago: 0 }],
        alert: Expected::Alert {
            name: "AnabranchCouponLetters",
            labels: &[("programme", "mismatch")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Coupons("dead_letters"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Coupons that could not be granted",
            table: &[
                means(
                    "dispatch letters requeue KEY",
                    &[Action::Command(&["dispatch", "letters", "requeue", "--all"]), Action::AwaitCoupons],
                ),
                leave("letters drop KEY --outcome given", "a letter that was sent again ends by itself"),
                leave("letters drop KEY --outcome not-given", "a letter that was sent again ends by itself"),
            ],
        }],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
    Scenario {
        name: "coupons-missed",
        fault: "no process has the role granter",
        inject: &[Action::TakeRoles(WITHOUT_GRANTER), Action::BeginProgramme { name: "missed", days_ago: 0 }],
        alert: Expected::Alert {
            name: "AnabranchCouponsMissed",
            labels: &[("programme", "missed")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Coupons("missed"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "Members who lack their coupon",
            table: &[means("See whether granters run", &[Action::TakeRoles(&[]), Action::AwaitCoupons])],
        }],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
    Scenario {
        name: "coupon-day-late",
        fault: "the clock of the dispatcher is two days behind, so no day begins",
        inject: &[
            Action::StartDaemonWithClock,
            Action::StepClock(-2 * DAY_SECONDS),
            Action::BeginProgramme { name: "late", days_ago: 2 },
        ],
        alert: Expected::Alert {
            name: "AnabranchCouponDayLate",
            labels: &[("programme", "late")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Current("the page counts ages by the clock of its daemon, which is two days behind"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "A coupon day that is late",
            table: &[means("Correct a clock that is behind", &[Action::StepClock(0)])],
        }],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
    Scenario {
        name: "coupon-day-open",
        fault: "the coupon system does not answer for four days",
        // The days between are not waited for: the first one begins by a clock that is behind.
        inject: &[
            Action::StartDaemonWithClock,
            Action::StepClock(-4 * DAY_SECONDS),
            Action::StopCouponSystem,
            Action::BeginProgramme { name: "open", days_ago: 4 },
            Action::StepClock(0),
        ],
        alert: Expected::Alert {
            name: "AnabranchCouponDayOpen",
            labels: &[("programme", "open")],
            condition: Condition::AtOnce,
        },
        shown: Shown::Code("coupon-system-unreachable"),
        shown_within: SHOWN,
        sections: &[
            Section {
                heading: "coupon-system-unreachable",
                table: &[means("See whether the coupon system is up", &[Action::StartCouponSystem])],
            },
            Section {
                heading: "A coupon day that is not closed",
                table: &[
                    means("`reconcile --now` makes one", &[Action::Command(&["reconcile", "--now"])]),
                    means("Members may lack their coupon", &[Action::AwaitCoupons]),
                ],
            },
        ],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
    Scenario {
        name: "ledger-restored",
        fault: "the coupon ledger is restored from a copy that lacks the day's coupons",
        inject: &[
            Action::BeginProgramme { name: "restored", days_ago: 0 },
            Action::AwaitCoupons,
            Action::RestoreLedger,
        ],
        alert: Expected::Alert {
            name: "AnabranchCouponLedgerRestored",
            labels: &[],
            condition: Condition::OverRange,
        },
        shown: Shown::Code("coupon-ledger-restored"),
        shown_within: SHOWN,
        sections: &[Section {
            heading: "coupon-ledger-restored",
            table: &[
                means("Stop every granter and every dispatcher", &[Action::TakeRoles(WITHOUT_COUPONS)]),
                leave("Wait half an hour", "the calls of the drill had all been answered"),
                means("curl -H", &[Action::WriteStatement]),
            ],
        }],
        words: &[],
        afterwards: &[Action::EndProgramme],
    },
];
