//! Programmes as configured: the coupon, its users, its times and its rules.
//!
//! A programme is parsed once; the faults of all programmes are returned at once, each with the programme's name. A run
//! keeps a copy of its programme, so a change of the file holds from the next day on.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::num::{NonZeroU32, ParseIntError};
use std::str::FromStr;
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Calendar, LeapDayRule};
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

/// Days between two coupons of one programme: a year less the weeks by which lunar years move.
const GAP_DAYS: u32 = 300;
/// Rows of a page: the cost is flat from some hundred rows on.
const PAGE_ROWS: u32 = 1_000;
/// Coupons a second: the load that the source documents state.
const RATE_PER_SECOND: u32 = 10_000;
/// Age of a reconciliation, at most: one each night, and two hours of delay.
const RECONCILIATION_AGE_HOURS: u32 = 26;
/// A reconciliation that is older than a year says nothing about a day.
const RECONCILIATION_AGE_HOURS_MAX: u32 = 8_760;
/// A gap above two years would refuse coupons that every rule grants.
const GAP_DAYS_MAX: u32 = 731;
/// A longer cool-off would refuse a whole occurrence.
const COOL_OFF_DAYS_MAX: u32 = 365;
/// Names become parts of subjects and keys.
const NAME_BYTES_MAX: usize = 32;
/// Bytes of a coupon's name in calls and ledger rows, at most.
const COUPON_BYTES_MAX: usize = 128;

/// The reaction when the last good reconciliation is too old at the set time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutReconciliation {
    /// The day waits for a person or for a reconciliation.
    Stop,
    /// The day runs, and its report names the reconciliation that it relied on.
    Go,
}

/// A programme as written in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProgramme {
    name: String,
    coupon: String,
    time_zone: String,
    #[serde(default = "midnight")]
    starts_at: Written<Time>,
    #[serde(default = "noon")]
    noon_at: Written<Time>,
    /// The latest hour; `noon_at` by default.
    latest_at: Option<Written<Time>>,
    #[serde(default = "both")]
    calendars: Vec<Calendar>,
    leap_day: LeapDayRule,
    #[serde(default = "gap_days")]
    gap_days: u32,
    #[serde(default)]
    cool_off_days: u32,
    #[serde(default)]
    placeholder_dates: Vec<Written<Date>>,
    #[serde(default = "rate")]
    rate_per_second: u32,
    #[serde(default = "page_rows")]
    page_rows: u32,
    #[serde(default = "age")]
    reconciliation_age_hours: u32,
    #[serde(default = "waits_until")]
    waits_until: Written<Time>,
    #[serde(default = "go")]
    without_reconciliation: WithoutReconciliation,
}

impl RawProgramme {
    /// Reports an age that a file may not have. A run that an earlier release began may have it, and stays readable.
    fn check_age(&self, add_problem: &mut impl FnMut(String, &str)) {
        if self.reconciliation_age_hours > RECONCILIATION_AGE_HOURS_MAX {
            let found = format!("`reconciliation_age_hours` is {}", self.reconciliation_age_hours);
            add_problem(found, "at most 8760, which is a year");
        }
    }

    /// Reports values that make no sense in themselves.
    fn check(&self, add_problem: &mut impl FnMut(String, &str)) {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_name) {
            add_problem(format!("its name is `{}`", self.name), "1 to 32 of a-z, 0-9 and -");
        }
        if self.coupon.is_empty() || self.coupon.len() > COUPON_BYTES_MAX {
            add_problem(format!("`coupon` has {} bytes", self.coupon.len()), "1 to 128");
        }
        if self.calendars.is_empty()
            || self.calendars.len() > 2
            || self.calendars[1..].contains(&self.calendars[0])
        {
            add_problem("`calendars` is empty or names one twice".to_owned(), "solar, lunar or both");
        }
        if self.noon_at <= self.starts_at || self.waits_until < self.starts_at {
            add_problem(
                "`noon_at` or `waits_until` is before `starts_at`".to_owned(),
                "times of one day, in order",
            );
        }
        if self.latest_at.is_some_and(|latest_at| latest_at <= self.starts_at) {
            add_problem("`latest_at` is not after `starts_at`".to_owned(), "a later time of the same day");
        }
        if self.gap_days > GAP_DAYS_MAX {
            add_problem(format!("`gap_days` is {}", self.gap_days), "at most 731");
        }
        if self.cool_off_days > COOL_OFF_DAYS_MAX {
            add_problem(format!("`cool_off_days` is {}", self.cool_off_days), "at most 365");
        }
    }
}

/// A time or a date, written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Written<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

impl<T: Display> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

const fn midnight() -> Written<Time> {
    Written(jiff::civil::time(0, 0, 0, 0))
}
const fn noon() -> Written<Time> {
    Written(jiff::civil::time(12, 0, 0, 0))
}
const fn waits_until() -> Written<Time> {
    Written(jiff::civil::time(2, 0, 0, 0))
}
fn both() -> Vec<Calendar> {
    vec![Calendar::Solar, Calendar::Lunar]
}
const fn gap_days() -> u32 {
    GAP_DAYS
}
const fn rate() -> u32 {
    RATE_PER_SECOND
}
const fn page_rows() -> u32 {
    PAGE_ROWS
}
const fn age() -> u32 {
    RECONCILIATION_AGE_HOURS
}
const fn go() -> WithoutReconciliation {
    WithoutReconciliation::Go
}

/// The version of a programme: 32 bits of a hash of its rules as a run keeps them.
///
/// Equal rules have one version in every file and process, so no process counts versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgrammeVersion(u32);

impl ProgrammeVersion {
    /// Returns the version of rules as [`Programme::to_text`] wrote them.
    pub fn of(text: &str) -> Self {
        let [first, second, third, fourth, ..] = xxh3_64(text.as_bytes()).to_be_bytes();
        Self(u32::from_be_bytes([first, second, third, fourth]))
    }
}

impl Display for ProgrammeVersion {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08x}", self.0)
    }
}

impl FromStr for ProgrammeVersion {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u32::from_str_radix(text, 16).map(Self)
    }
}

/// One kind of birthday coupon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programme {
    pub name: Arc<str>,
    /// The coupon that calls ask for.
    pub coupon: Arc<str>,
    /// The zone whose midnight begins a day.
    pub time_zone: TimeZone,
    pub starts_at: Time,
    /// Time when the day's tables are read again for late joiners.
    pub noon_at: Time,
    /// Time from which a user whose source row cannot be read counts as missed, until it can be.
    pub latest_at: Time,
    pub calendars: Vec<Calendar>,
    pub leap_day: LeapDayRule,
    /// Days between two celebrated days, at least.
    pub gap_days: u32,
    /// Days after a change of the birthday in the source row without a coupon; 0 is off, whatever time the row has.
    pub cool_off_days: u32,
    /// Birthdays that forms fill in for people.
    pub placeholder_dates: Vec<Date>,
    pub rate_per_second: NonZeroU32,
    /// Users that a freeze reads at once; pages that wait are written together.
    pub page_rows: NonZeroU32,
    pub reconciliation_age: SignedDuration,
    /// Time until which a day waits for a reconciliation.
    pub waits_until: Time,
    pub without_reconciliation: WithoutReconciliation,
}

impl Programme {
    /// Parses the programmes of a file; the error has all of their problems.
    pub fn parse_all(tables: &[toml::Table]) -> Result<Vec<Self>, Vec<Fault>> {
        let (mut programmes, mut faults) = (Vec::new(), Vec::new());
        for (number, table) in (1..).zip(tables) {
            match Self::parse(number, table, true) {
                Ok(programme) => programmes.push(programme),
                Err(found) => faults.extend(found),
            }
        }
        let mut names = BTreeSet::new();
        for programme in &programmes {
            if !names.insert(&programme.name) {
                let subject = format!("programme {}", programme.name);
                faults.push(
                    invalid(subject, "two programmes have this name").needs("a different name for each"),
                );
            }
        }
        if faults.is_empty() { Ok(programmes) } else { Err(faults) }
    }

    fn parse(number: usize, table: &toml::Table, is_configured: bool) -> Result<Self, Vec<Fault>> {
        let raw: RawProgramme = table.clone().try_into().map_err(|error| {
            let name = table.get("name").and_then(toml::Value::as_str);
            let subject =
                name.map_or_else(|| format!("programme {number}"), |name| format!("programme {name}"));
            vec![invalid(subject, "it cannot be read").caused_by(error)]
        })?;
        let subject = format!("programme {}", raw.name);
        let mut faults = Vec::new();
        let mut add_problem = |found: String, needed: &str| {
            faults.push(invalid(subject.clone(), found).needs(needed));
        };
        raw.check(&mut add_problem);
        if is_configured {
            raw.check_age(&mut add_problem);
        }
        let rate_per_second = NonZeroU32::new(raw.rate_per_second);
        let page_rows = NonZeroU32::new(raw.page_rows);
        for (key, is_zero) in [
            ("rate_per_second", rate_per_second.is_none()),
            ("page_rows", page_rows.is_none()),
            ("reconciliation_age_hours", raw.reconciliation_age_hours == 0),
        ] {
            if is_zero {
                add_problem(format!("`{key}` is 0"), "a number above 0");
            }
        }
        let time_zone = TimeZone::get(&raw.time_zone).ok();
        if time_zone.is_none() {
            add_problem(
                format!("there is no time zone `{}`", raw.time_zone),
                "a name of the tz database: Asia/Shanghai",
            );
        }
        let (Some(time_zone), Some(rate_per_second), Some(page_rows), true) =
            (time_zone, rate_per_second, page_rows, faults.is_empty())
        else {
            return Err(faults);
        };
        Ok(Self {
            name: raw.name.into(),
            coupon: raw.coupon.into(),
            time_zone,
            starts_at: raw.starts_at.0,
            noon_at: raw.noon_at.0,
            latest_at: raw.latest_at.unwrap_or(raw.noon_at).0,
            calendars: raw.calendars,
            leap_day: raw.leap_day,
            gap_days: raw.gap_days,
            cool_off_days: raw.cool_off_days,
            placeholder_dates: raw.placeholder_dates.into_iter().map(|written| written.0).collect(),
            rate_per_second,
            page_rows,
            reconciliation_age: SignedDuration::from_hours(raw.reconciliation_age_hours.into()),
            waits_until: raw.waits_until.0,
            without_reconciliation: raw.without_reconciliation,
        })
    }

    /// Writes the programme as a file has it, so that a run keeps the rules that it began with.
    ///
    /// # Errors
    ///
    /// Fails when the time zone has no name.
    pub fn to_text(&self) -> Result<String, Fault> {
        let subject = || format!("programme {}", self.name);
        let unnamed = || invalid(subject(), "its time zone has no name").needs("a name of the tz database");
        let hours = self.reconciliation_age.as_hours();
        let raw = RawProgramme {
            name: self.name.to_string(),
            coupon: self.coupon.to_string(),
            time_zone: self.time_zone.iana_name().ok_or_else(unnamed)?.to_owned(),
            starts_at: Written(self.starts_at),
            noon_at: Written(self.noon_at),
            latest_at: Some(Written(self.latest_at)),
            calendars: self.calendars.clone(),
            leap_day: self.leap_day,
            gap_days: self.gap_days,
            cool_off_days: self.cool_off_days,
            placeholder_dates: self.placeholder_dates.iter().map(|date| Written(*date)).collect(),
            rate_per_second: self.rate_per_second.get(),
            page_rows: self.page_rows.get(),
            reconciliation_age_hours: u32::try_from(hours).unwrap_or(u32::MAX),
            waits_until: Written(self.waits_until),
            without_reconciliation: self.without_reconciliation,
        };
        toml::to_string(&raw).map_err(|error| invalid(subject(), "it cannot be written").caused_by(error))
    }

    /// Returns the version of these rules; `None` if they cannot be written, and then no run begins with them.
    pub fn version(&self) -> Option<ProgrammeVersion> {
        self.to_text().ok().map(|text| ProgrammeVersion::of(&text))
    }

    /// Parses a programme that [`Self::to_text`] wrote.
    pub fn from_text(text: &str) -> Result<Self, Fault> {
        let table: toml::Table = text.parse().map_err(|error| {
            invalid("programme of a run".to_owned(), "its text cannot be read").caused_by(error)
        })?;
        Self::parse(1, &table, false).map_err(|mut faults| faults.swap_remove(0))
    }

    /// Returns the instant of a local time: the moment after the leap where the clock leaves it out, the first where it
    /// comes twice. `None` only beyond the year 9999.
    pub fn at(&self, day: Date, time: Time) -> Option<Timestamp> {
        let zoned = day.to_datetime(time).to_zoned(self.time_zone.clone()).ok()?;
        Some(zoned.timestamp())
    }

    /// Returns when a day goes on without a reconciliation that is young enough; `None` = it waits without limit.
    pub fn goes_on_at(&self, day: Date) -> Option<Timestamp> {
        match self.without_reconciliation {
            WithoutReconciliation::Go => self.at(day, self.waits_until),
            WithoutReconciliation::Stop => None,
        }
    }
}

fn invalid(subject: String, found: impl Into<String>) -> Fault {
    Fault::new(Code::ConfigInvalid, subject, found)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const GOOD: &str =
        "name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'Asia/Shanghai'\nleap_day = 'feb28'\n";

    fn parse(texts: &[String]) -> Result<Vec<Programme>, String> {
        let tables: Vec<toml::Table> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Programme::parse_all(&tables)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    fn with(from: &str, to: &str) -> String {
        if from.is_empty() { format!("{GOOD}{to}") } else { GOOD.replace(from, to) }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert!(parse(&[GOOD.to_owned()]).is_ok());
        for (from, to, named) in [
            ("Asia/Shanghai", "Asia/Peking-Town", "there is no time zone `Asia/Peking-Town`"),
            ("", "page_rows = 0", "`page_rows` is 0"),
            ("", "rate_per_second = 0", "`rate_per_second` is 0"),
            ("", "reconciliation_age_hours = 0", "`reconciliation_age_hours` is 0"),
            ("", "reconciliation_age_hours = 8761", "`reconciliation_age_hours` is 8761"),
            ("", "colour = 'red'", "unknown field `colour`"),
            ("", "calendars = []", "`calendars` is empty"),
            ("", "calendars = ['solar', 'solar']", "names one twice"),
            ("", "noon_at = '00:00'", "before `starts_at`"),
            ("", "latest_at = '00:00'", "`latest_at` is not after `starts_at`"),
            ("", "gap_days = 1000", "`gap_days` is 1000"),
            ("", "cool_off_days = 366", "`cool_off_days` is 366"),
            ("'birthday'", "'Birth day'", "its name is `Birth day`"),
            ("'cake'", "''", "`coupon` has 0 bytes"),
            ("leap_day = 'feb28'", "", "missing field `leap_day`"),
            ("feb28", "feb30", "unknown variant `feb30`"),
        ] {
            let reported = parse(&[with(from, to)]).unwrap_err();
            assert!(reported.contains(named) && reported.contains("config-invalid"), "{to}: {reported}");
        }
    }

    #[test]
    fn a_programme_that_was_written_down_is_read_as_it_was() {
        let all = "starts_at = '00:30'\nnoon_at = '11:00'\nlatest_at = '20:00'\ncalendars = ['lunar']\ngap_days = 7\ncool_off_days = 3\n\
                   placeholder_dates = ['1900-01-01']\nrate_per_second = 5\npage_rows = 9\n\
                   reconciliation_age_hours = 30\nwaits_until = '03:00'\nwithout_reconciliation = 'stop'\n";
        for text in [GOOD.to_owned(), with("", all), with("Asia/Shanghai", "UTC")] {
            let programme = parse(&[text]).unwrap().remove(0);
            let read = Programme::from_text(&programme.to_text().unwrap()).unwrap();
            assert_eq!(read, programme);
            assert_eq!(read.version(), programme.version());
            let version = programme.version().unwrap();
            assert_eq!((version.to_string().len(), version.to_string().parse()), (8, Ok(version)));
        }
    }

    #[test]
    fn a_run_whose_age_of_a_reconciliation_was_never_bounded_is_still_read() {
        let longest = parse(&[with("", "reconciliation_age_hours = 8760\n")]).unwrap().remove(0);
        let stored = longest.to_text().unwrap().replace("= 8760", "= 4294967295");
        let read = Programme::from_text(&stored).unwrap();
        assert_eq!(read.reconciliation_age, SignedDuration::from_hours(u32::MAX.into()));
    }

    #[test]
    fn the_latest_hour_is_noon_unless_it_is_set() {
        let latest = |more: &str| parse(&[with("", more)]).unwrap().remove(0).latest_at.to_string();
        assert_eq!([latest(""), latest("noon_at = '09:00'")], ["12:00:00", "09:00:00"]);
        assert_eq!(latest("latest_at = '18:30'"), "18:30:00");
    }

    #[test]
    fn two_programmes_with_one_name_are_named() {
        let reported = parse(&[GOOD.to_owned(), GOOD.to_owned()]).unwrap_err();
        assert!(reported.contains("programme birthday: two programmes have this name"), "{reported}");
    }

    #[test]
    fn zones_with_summer_time_have_each_midnight_once() {
        // Midnight does not come on this day in Santiago: the clock goes from 00:00 to 01:00.
        let santiago = &parse(&[with("Asia/Shanghai", "America/Santiago")]).unwrap()[0];
        let starts = |day| santiago.at(day, santiago.starts_at).unwrap().to_string();
        assert_eq!(starts(date(2027, 9, 4)), "2027-09-04T04:00:00Z");
        assert_eq!(starts(date(2027, 9, 5)), "2027-09-05T04:00:00Z");
        assert_eq!(starts(date(2027, 9, 6)), "2027-09-06T03:00:00Z");
    }
}
