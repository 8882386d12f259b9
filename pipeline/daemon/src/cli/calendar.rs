//! `calendar`: which birthday tables are read on a day, and why. It connects to nothing.

use anabranch_coupons::programme::Programme;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Calendar, CelebrationReason, LeapDayRule, Occurrence, celebrated};
use anabranch_schemas::lunar::{DISPUTED, LunarDate};
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;

use super::{Cli, Outcome};
use crate::exit::Exit;
use crate::output;

/// Print which birthday tables are read on a day, and why
#[derive(Debug, Args)]
pub struct Arguments {
    /// The day, such as 2027-02-28
    date: Date,
    /// Only the tables of this programme of the configuration; without it both calendars and both rules for 29 February
    #[arg(long, value_name = "NAME")]
    programme: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A day with the tables that are read on it.
#[derive(Debug, Serialize)]
struct DayView {
    date: String,
    /// The lunar day; `None` outside of 1901 to 2100.
    lunar_date: Option<String>,
    /// Another calendar may begin this lunar month one day later.
    is_disputed: bool,
    programme: Option<String>,
    tables: Vec<TableView>,
}

/// A table that is read, and why.
#[derive(Debug, Serialize)]
struct TableView {
    table: String,
    calendar: Calendar,
    occurrence: Option<String>,
    reason: CelebrationReason,
    /// The rule for 29 February under which the table is read; `None` where it is read under both.
    leap_day: Option<LeapDayRule>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let programme = match &arguments.programme {
        Some(name) => Some(programme(cli, name)?),
        None => None,
    };
    let view = day(arguments.date, programme.as_ref());
    let text = if arguments.json { output::json(&view) } else { view.text() };
    let _ = output::line(&text);
    Ok(Exit::Success)
}

fn programme(cli: &Cli, name: &str) -> Result<Programme, Vec<Fault>> {
    let programmes = Programme::parse_all(&cli.configuration()?.programmes)?;
    let names: Vec<&str> = programmes.iter().map(|programme| &*programme.name).collect();
    let fault = Fault::new(Code::ConfigInvalid, "--programme", format!("there is no programme `{name}`"))
        .needs(if names.is_empty() { "a [[programmes]] section".to_owned() } else { names.join(" or ") });
    programmes.into_iter().find(|programme| *programme.name == *name).ok_or_else(|| vec![fault])
}

fn day(date: Date, programme: Option<&Programme>) -> DayView {
    let rules = programme.map_or(vec![LeapDayRule::Feb28, LeapDayRule::Mar1], |known| vec![known.leap_day]);
    let calendars = programme.map_or(vec![Calendar::Solar, Calendar::Lunar], |known| known.calendars.clone());
    let mut tables: Vec<TableView> = Vec::new();
    for rule in rules {
        for found in celebrated(date, &calendars, rule) {
            let calendar = found.birthday.calendar();
            let table = found.birthday.table();
            if tables.iter().any(|known| known.table == table) {
                continue;
            }
            tables.push(TableView {
                table,
                calendar,
                occurrence: Occurrence::of(calendar, date).map(|occurrence| occurrence.to_string()),
                reason: found.reason,
                leap_day: (found.reason == CelebrationReason::NoLeapDayThisYear).then_some(rule),
            });
        }
    }
    DayView {
        date: date.to_string(),
        lunar_date: LunarDate::of(date).map(|lunar| lunar.to_string()),
        is_disputed: DISPUTED.iter().any(|(first, last)| (*first..=*last).contains(&date)),
        programme: programme.map(|known| known.name.to_string()),
        tables,
    }
}

impl DayView {
    fn text(&self) -> String {
        let lunar = self.lunar_date.as_deref().unwrap_or("not known outside of 1901 to 2100");
        let mut lines = vec![format!("{}, lunar date {lunar}", self.date)];
        if self.is_disputed {
            lines.push("other calendars may begin this lunar month one day later".to_owned());
        }
        for table in &self.tables {
            let rule = match table.leap_day {
                Some(LeapDayRule::Feb28) => " (rule feb28)",
                Some(LeapDayRule::Mar1) => " (rule mar1)",
                None => "",
            };
            let occurrence = table.occurrence.as_deref().unwrap_or("no occurrence");
            lines.push(format!("{}  {occurrence}  {}{rule}", table.table, table.reason.text()));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn a_day_names_its_tables_and_why() {
        assert_eq!(
            day(date(2027, 2, 28), None).text(),
            "2027-02-28, lunar date 2027-01-23\n\
             birthday_0228  solar:2027  the birthday is this day\n\
             birthday_0229  solar:2027  this year has no 29 February, and the rule celebrates it on this day (rule feb28)\n\
             lunar_birthday_0123  lunar:2027  the birthday is this day"
        );
        assert!(day(date(2057, 10, 1), None).text().contains("one day later"));
    }

    #[test]
    fn a_day_as_json_holds_each_part_on_its_own() {
        let value: serde_json::Value =
            serde_json::from_str(&output::json(&day(date(2025, 7, 26), None))).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "date": "2025-07-26", "lunar_date": "2025-06-02 (leap month)", "is_disputed": false,
                "programme": null,
                "tables": [{
                    "table": "birthday_0726", "calendar": "solar", "occurrence": "solar:2025",
                    "reason": "the_day_itself", "leap_day": null,
                }],
            })
        );
    }
}
