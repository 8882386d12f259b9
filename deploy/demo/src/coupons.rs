//! A coupon day of the demo: the witness gives the coupons, and each user whose day it is must get exactly one.
//!
//! A command begins the day, as an outside scheduler would. The first requests fail on purpose: a 429, errors after the
//! work, lost answers, all of them slow. When the workload has ended, the sources show which users must have a coupon,
//! and the witness's book which users have one. With lunar birthdays, some users celebrate by the lunar calendar.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_schemas::celebration::Calendar;
use anabranch_stack::Stack;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value as Json;
use tokio::time::Instant;

use crate::daemon::Commands;
use crate::error::{DemoError, Result};
use crate::lunar::LunarBirthdays;
use crate::topology::Topology;
use crate::verify::BirthdayLayer;
use crate::witness::{Faults, Witness, WitnessClient, WitnessOptions};

/// The programme's name.
const PROGRAMME: &str = "birthday";
/// Token that the daemon sends to the coupon system.
const TOKEN: &str = "token-of-the-witness";
/// Limit from the beginning of the day to the last coupon. A system that asks for a pause gets a minute's rest.
const DAY_MAX: Duration = Duration::from_secs(240);
/// Number of requests for coupons that fail before all succeed.
const FAULTY_REQUESTS: u64 = 6;
/// A call without an answer is queried after half an hour. The demo ages the ledger by half an hour at this interval.
const AGED_EACH: Duration = Duration::from_secs(10);
/// Tables over which the ledger is spread.
const LEDGER_PARTS: u32 = 16;
/// Interval of the dispatcher's passes, which publish users without a coupon again.
const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// A programme whose midnight and noon are past, and its coupon system.
#[derive(Debug)]
pub struct CouponDay {
    witness: Witness,
    zone: String,
    day: Date,
    /// Whether the programme celebrates by both calendars.
    is_lunar: bool,
}

/// Result of a day.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CouponReport {
    pub day: String,
    /// Users whose day it is, according to the sources.
    pub eligible: u64,
    /// Users among them who celebrate by the lunar calendar.
    pub eligible_lunar: u64,
    /// Lunar birthdays of the day; none without `--lunar`, and none in a leap month.
    pub lunar_birthdays: Vec<String>,
    /// Coupons in the witness's book.
    pub given: u64,
    /// Users with more than one coupon, with none, and with one though it is not their day.
    pub doubled: u64,
    pub missed: u64,
    pub strangers: u64,
    /// Users of the day's table whose columns show the coupon.
    pub marked: u64,
    pub seconds: f64,
}

impl CouponReport {
    /// Returns the line of the summary.
    pub fn text(&self) -> String {
        let Self { day, eligible, eligible_lunar, given, marked, seconds, .. } = self;
        let lunar = match self.lunar_birthdays.is_empty() {
            true => String::new(),
            false => format!(", {eligible_lunar} of them by the lunar calendar"),
        };
        format!(
            "coupons of {day}: {given} given to {eligible} users{lunar} in {seconds:.1} s, and {marked} rows show them"
        )
    }

    /// Returns the reasons why a verified run fails.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (count, what) in [
            (self.doubled, "have more than one coupon"),
            (self.missed, "have no coupon"),
            (self.strangers, "have a coupon, and it is not their day"),
            (self.eligible.abs_diff(self.marked), "have columns that do not follow the ledger"),
        ] {
            if count > 0 {
                problems.push(format!("coupons: {count} users {what}"));
            }
        }
        if self.eligible == self.eligible_lunar {
            problems.push(format!("coupons: nobody has the birthday {}", self.day));
        }
        if self.eligible_lunar == 0 && !self.lunar_birthdays.is_empty() {
            problems
                .push(format!("coupons: nobody has the lunar birthday {}", self.lunar_birthdays.join(", ")));
        }
        problems
    }
}

impl CouponDay {
    /// Starts the coupon system; its book is in the stack's folder.
    pub async fn begin(stack: &Stack, is_lunar: bool) -> Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut options = WitnessOptions::new(listen, stack.folder().join("coupons.book"));
        options.token = Some(TOKEN.to_owned());
        let (zone, day) = afternoon(Timestamp::now())?;
        let day = Self { witness: Witness::start(&options).await?, zone, day, is_lunar };
        let faults = Faults {
            slow_ms: 50,
            busy: 0.2,
            retry_after_seconds: 1,
            error_after: 0.4,
            lost_after: 0.4,
            requests: Some(FAULTY_REQUESTS),
            ..Faults::default()
        };
        day.client()?.set_faults(&faults).await?;
        Ok(day)
    }

    fn client(&self) -> Result<WitnessClient> {
        WitnessClient::new(format!("http://{}", self.witness.address()), Some(TOKEN))
    }

    /// Returns the sections of the daemon's configuration.
    pub fn configuration(&self) -> String {
        let calendars = if self.is_lunar { "\"solar\", \"lunar\"" } else { "\"solar\"" };
        format!(
            "\n[[programmes]]\nname = \"{PROGRAMME}\"\ncoupon = \"cake\"\ntime_zone = \"{}\"\nleap_day = \"feb28\"\n\
             calendars = [{calendars}]\nnoon_at = \"00:01\"\nwaits_until = \"00:00\"\n\
             [coupon_system]\nurl = \"http://{}\"\ntoken = \"{TOKEN}\"\n",
            self.zone,
            self.witness.address()
        )
    }

    /// Runs the day to its last coupon, and compares the book with the sources. Both must not change meanwhile. The
    /// layers are those of the programme's calendars.
    pub async fn run(
        &self,
        commands: &Commands,
        topology: &Topology,
        layers: &[&BirthdayLayer],
    ) -> Result<CouponReport> {
        let (start, mut aged_at) = (Instant::now(), Instant::now());
        let day = self.day.to_string();
        loop {
            succeeded(commands.run(&["dispatch", "run", &day]).await?)?;
            let shown = succeeded(commands.run(&["dispatch", "status", "--json"]).await?)?;
            let days: Json = serde_json::from_str(&shown).unwrap_or_default();
            let is_none = |field: &str| days[0][field].as_u64() == Some(0);
            if is_none("missed") && is_none("in_flight") || start.elapsed() >= DAY_MAX {
                break;
            }
            tokio::time::sleep(PASS_INTERVAL).await;
            if aged_at.elapsed() >= AGED_EACH {
                age_attempts(layers).await?;
                aged_at = Instant::now();
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let (mut eligible, mut eligible_lunar, mut marked) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for layer in layers {
            let (birthdays, year) = self.celebrated(layer.calendar);
            // A leap month celebrates no lunar birthday.
            if birthdays.is_empty() {
                continue;
            }
            let users = layer.celebrating(topology, &birthdays, self.is_lunar).await?;
            match layer.calendar {
                Calendar::Solar => eligible.extend(users),
                Calendar::Lunar => eligible_lunar.extend(users),
            }
            marked.extend(layer.marked(&birthdays, year).await?);
        }
        // A user with rows in two tables may celebrate by both calendars, and gets one coupon all the same.
        eligible_lunar.retain(|user| !eligible.contains(user));
        eligible.extend(eligible_lunar.iter().copied());
        let gifts = self.client()?.gifts().await?;
        let having: BTreeSet<u64> = gifts.iter().filter_map(|gift| gift.user.parse().ok()).collect();
        let count = |count: usize| count as u64;
        Ok(CouponReport {
            day,
            eligible: count(eligible.len()),
            eligible_lunar: count(eligible_lunar.len()),
            lunar_birthdays: match self.is_lunar {
                true => LunarBirthdays::of(self.day).birthdays,
                false => Vec::new(),
            },
            given: count(gifts.len()),
            // Keys do not matter here: one day of one programme gives a user one coupon.
            doubled: count(gifts.len() - having.len()),
            missed: count(eligible.difference(&having).count()),
            strangers: count(having.difference(&eligible).count()),
            marked: count(marked.intersection(&eligible).count()),
            seconds,
        })
    }

    /// Returns `MM-DD` of the birthdays that the day celebrates by a calendar, and the year of their coupons.
    fn celebrated(&self, calendar: Calendar) -> (Vec<String>, i32) {
        match calendar {
            Calendar::Solar => (self.solar_birthdays(), self.day.year().into()),
            Calendar::Lunar => {
                let LunarBirthdays { birthdays, year } = LunarBirthdays::of(self.day);
                (birthdays, year)
            }
        }
    }

    /// Returns the solar birthdays that the day celebrates: 29 February too if the year has none.
    fn solar_birthdays(&self) -> Vec<String> {
        let mut days = vec![self.day.strftime("%m-%d").to_string()];
        if days[0] == "02-28" && !self.day.in_leap_year() {
            days.push("02-29".to_owned());
        }
        days
    }
}

/// Ages the ledger by half an hour, after which other granters take unfinished attempts over.
async fn age_attempts(layers: &[&BirthdayLayer]) -> Result<()> {
    let Some(target) = layers.first().and_then(|layer| layer.targets.first()) else { return Ok(()) };
    let age = |part| {
        format!(
            "UPDATE anabranch_coupons.coupon_ledger_{part:02} SET changed_at = changed_at - INTERVAL 31 MINUTE \
             WHERE state IN ('reserved', 'issued')"
        )
    };
    let sql: Vec<String> = (0..LEDGER_PARTS).map(age).collect();
    target.connect(&[]).await?.execute("let half an hour pass in the ledger", sql.join(";")).await
}

/// Returns a zone in which it is early afternoon now, so that midnight and noon are past, and the day there.
pub fn afternoon(now: Timestamp) -> Result<(String, Date)> {
    let offset = 13 - i64::from(now.to_zoned(TimeZone::UTC).hour());
    // The tz database has UTC-12 to UTC+14, with the sign inverted.
    let offset = if offset < -12 { offset + 24 } else { offset };
    let name = if offset < 0 { format!("Etc/GMT+{}", -offset) } else { format!("Etc/GMT-{offset}") };
    let zone =
        TimeZone::get(&name).map_err(|source| DemoError::ZoneUnknown { zone: name.clone(), source })?;
    Ok((name, now.to_zoned(zone).date()))
}

fn succeeded(finished: crate::daemon::Finished) -> Result<String> {
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    let (program, status) = ("anabranch dispatch".to_owned(), finished.status.to_string());
    Err(DemoError::Program { program, status, log: finished.stderr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_zone_with_an_afternoon_at_every_hour() {
        for hour in 0..24 {
            let now = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(hour);
            let (zone, day) = afternoon(now).unwrap();
            let local = now.to_zoned(TimeZone::get(&zone).unwrap());
            assert_eq!((local.hour(), local.date()), (13, day), "{zone}");
        }
    }

    #[test]
    fn each_lack_is_a_problem() {
        let good = CouponReport {
            eligible: 9,
            eligible_lunar: 2,
            lunar_birthdays: vec!["01-01".to_owned()],
            given: 9,
            marked: 9,
            ..CouponReport::default()
        };
        assert!(good.problems().is_empty());
        let bad = [
            CouponReport { doubled: 1, ..good.clone() },
            CouponReport { missed: 1, ..good.clone() },
            CouponReport { strangers: 1, ..good.clone() },
            CouponReport { marked: 8, ..good.clone() },
            CouponReport { eligible_lunar: 9, ..good.clone() },
            CouponReport { eligible_lunar: 0, ..good },
        ];
        assert!(bad.iter().all(|report| report.problems().len() == 1), "{bad:?}");
    }
}
