//! Whole coupon days through the daemon: a day's cost beside few and many users, 1 January, and the lag of live changes
//! while a day runs.
//!
//! One daemon runs the lanes. `dispatch run` freezes and publishes the day in a second process, and a granter works in
//! a third. The coupon system is the demo's witness in this process, whose book waits for the disk. The day is granted
//! from 01:00 on in a zone that is chosen for it, so only midnight is frozen.

use anabranch_demo::verify::DerivedLayout;
use anabranch_tests::Turn;
use serde_json::json;

use crate::Scale;
use crate::coupon_town::Town;
use crate::latency::{Load, PROCESSES};
use crate::load::beside;
use crate::meter::{Measured, median};
use crate::report::{Line, Report};

const COST_MOST: f64 = 1.10;
const JANUARY_LEAST: f64 = 0.80;
const JANUARY_MEMORY_MB: f64 = 200.0;
const LAG_MOST: f64 = 3.0;
/// Above a granter's rate, so that a day lasts as long as the changes that are measured beside it.
const GRANTS_A_SECOND_MOST: u64 = 12_000;
/// Time of the freeze, and of the wait for the last commits.
const LAG_SPARE_SECONDS: u64 = 10;

/// A measured day.
#[derive(Debug, Clone, Copy)]
struct DayMeasured {
    members: u64,
    pass: Measured,
    pass_memory_bytes: u64,
    granted: u64,
    grants: Measured,
    granter_memory_bytes: u64,
}

impl DayMeasured {
    fn frozen_a_second(&self) -> f64 {
        self.members as f64 / self.pass.seconds
    }

    fn granted_a_second(&self) -> f64 {
        self.granted as f64 / self.grants.seconds
    }

    fn memory_mb(&self) -> f64 {
        self.pass_memory_bytes.max(self.granter_memory_bytes) as f64 / 1e6
    }

    /// Microseconds of CPU of all servers and processes, for each member.
    fn cpu_us(&self) -> f64 {
        let of = |measured: &Measured, count: u64| {
            (measured.server_cpu_seconds + measured.own_cpu_seconds) * 1e6 / count as f64
        };
        of(&self.pass, self.members) + of(&self.grants, self.granted)
    }
}

/// Runs the next programme's day: the pass of the dispatcher, and its first grants.
async fn day(town: &mut Town<'_>, members: u64, grants: u64) -> DayMeasured {
    town.begin_programme();
    let (pass, pass_memory_bytes) = town.pass(members).await;
    let (granted, grants, granter_memory_bytes) = town.grant(grants).await;
    DayMeasured { members, pass, pass_memory_bytes, granted, grants, granter_memory_bytes }
}

async fn days(town: &mut Town<'_>, scale: &Scale, members: u64) -> Vec<DayMeasured> {
    let mut days = Vec::new();
    for _ in 0..scale.rounds {
        days.push(day(town, members, members).await);
    }
    days
}

fn of(days: &[DayMeasured], value: impl Fn(&DayMeasured) -> f64) -> f64 {
    median(days.iter().map(value))
}

/// Measures the same day beside a tenth of the users and beside all of them, and 1 January among all of them.
pub async fn measure(turn: Turn<'_>, layout: DerivedLayout, scale: &Scale, report: &mut Report) {
    let (users, common) = (scale.day_users, scale.day_users / 400);
    let mut town = Town::begin(turn, layout).await;
    town.fill_day(1, common).await;
    town.fill_others(users / 10).await;
    let few = days(&mut town, scale, common).await;
    town.fill_others(users).await;
    let many = days(&mut town, scale, common).await;
    report.add(cost(layout, users, &few, &many));
    town.fill_day(common + 1, users / 10).await;
    let january = day(&mut town, users / 10, users / 100).await;
    report.add(line_of_january(layout, &many, &january));
    town.end().await;
}

fn cost(layout: DerivedLayout, users: u64, few: &[DayMeasured], many: &[DayMeasured]) -> Line {
    let text = |days: &[DayMeasured]| {
        format!(
            "pass {:.1} s, {:.1} k grants/s, {:.0} µs",
            of(days, |day| day.pass.seconds),
            of(days, DayMeasured::granted_a_second) / 1e3,
            of(days, DayMeasured::cpu_us)
        )
    };
    let ratio = of(many, DayMeasured::cpu_us) / of(few, DayMeasured::cpu_us);
    Line {
        figure: match layout {
            DerivedLayout::ByDay => "cost of a day, by_day",
            DerivedLayout::ByUser => "cost of a day, by_user",
        },
        measured: format!("beside {} M: {}", users as f64 / 1e6, text(many)),
        limit: format!("beside {} M: {}", users as f64 / 1e7, text(few)),
        ratio: format!("{ratio:.2} ×"),
        cpu: format!("all {:.0}", of(many, DayMeasured::cpu_us)),
        bar: format!("CPU ≤ {COST_MOST:.2} ×"),
        passes: Some(ratio <= COST_MOST),
        detail: json!({ "ratio": ratio, "few": each(few), "many": each(many) }),
    }
}

fn line_of_january(layout: DerivedLayout, common: &[DayMeasured], january: &DayMeasured) -> Line {
    let frozen = january.frozen_a_second() / of(common, DayMeasured::frozen_a_second);
    let granted = january.granted_a_second() / of(common, DayMeasured::granted_a_second);
    let (ratio, memory) = (frozen.min(granted), january.memory_mb());
    Line {
        figure: match layout {
            DerivedLayout::ByDay => "1 January, by_day",
            DerivedLayout::ByUser => "1 January, by_user",
        },
        measured: format!(
            "{} M in {:.1} s, {:.1} k grants/s, {memory:.0} MB",
            january.members as f64 / 1e6,
            january.pass.seconds,
            january.granted_a_second() / 1e3
        ),
        limit: format!(
            "a common day: {} k in {:.1} s, {:.1} k grants/s",
            common[0].members / 1_000,
            of(common, |day| day.pass.seconds),
            of(common, DayMeasured::granted_a_second) / 1e3
        ),
        ratio: format!("{:.0} %", ratio * 100.0),
        cpu: format!("all {:.0}", january.cpu_us()),
        bar: format!("≥ {:.0} %, {JANUARY_MEMORY_MB} MB", JANUARY_LEAST * 100.0),
        passes: Some(ratio >= JANUARY_LEAST && memory <= JANUARY_MEMORY_MB),
        detail: json!({
            "ratio": ratio, "frozen": frozen, "granted": granted, "memory_mb": memory,
            "january": each(std::slice::from_ref(january)), "common": each(common),
        }),
    }
}

fn each(days: &[DayMeasured]) -> Vec<serde_json::Value> {
    let one = |day: &DayMeasured| {
        json!({
            "members": day.members, "pass_seconds": day.pass.seconds, "granted": day.granted,
            "grant_seconds": day.grants.seconds, "cpu_us": day.cpu_us(), "memory_mb": day.memory_mb(),
        })
    };
    days.iter().map(one).collect()
}

/// Measures the lag of live changes while a day is frozen and granted, in turn with the changes alone.
pub async fn lag(turn: Turn<'_>, scale: &Scale, report: &mut Report) {
    let members = (scale.latency_seconds + LAG_SPARE_SECONDS) * GRANTS_A_SECOND_MOST;
    let mut town = Town::begin(turn, DerivedLayout::ByDay).await;
    town.fill_day(1, members).await;
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    let mut carried = 0.0;
    for _ in 0..scale.rounds {
        let mut load = Load::begin(&town.site, &town.lanes, 0, scale).await;
        load.skip(town.changes);
        alone.push(load.run(false).await);
        town.changes = load.written();
        load.finish().await;
        town.begin_programme();
        let granting = town.site.installation.run_with(&["--role", "dispatcher", "--role", "granter"], &[]);
        let mut load = Load::begin(&town.site, &town.lanes, 0, scale).await;
        load.skip(town.changes);
        with.push(load.run(false).await);
        town.changes = load.written();
        load.finish().await;
        let now = Town::carried(&granting).await;
        assert!(
            now > 0.0 && now < members as f64,
            "the day lasts as long as the changes: {now}, {}",
            granting.log()
        );
        carried += now;
    }
    report.note(&format!("lag beside a coupon day: {carried} users were granted meanwhile"));
    report.add(beside("lag beside a coupon day", &with, &alone, &PROCESSES, LAG_MOST));
    town.end().await;
}
