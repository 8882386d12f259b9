//! Figures of birthdays and coupons: source shards, birthday tables, and one day's coupons.

use crate::birthday;
use crate::capacity::fields::{Fields, Invalid, Section};
use crate::capacity::sheet::{Sheet, Store, Unit};
use crate::capacity::term::Term;

pub const SECTION: &str = "birthdays";
/// Months and days that bound the named days of a lunar year: 12 months of 30 days.
const LUNAR_MONTHS: f64 = 12.0;
const LUNAR_DAYS: f64 = 30.0;
const TABLES: Unit = Unit::Count("tables");
const ROWS: Unit = Unit::Count("rows");
const YEARS: Unit = Unit::Count("years");

pub fn compute(fields: &Fields) -> Result<Sheet, Vec<Invalid>> {
    let mut section = Section::new("[birthdays]", fields);
    let mut sheet = Sheet::new(SECTION);
    let users = section.whole("users", "users");
    source(&mut section, &mut sheet, &users);
    let days = Term::number(f64::from(birthday::TABLES), "days of a leap year");
    let per_day = users.per(&days);
    let per_day = tables(&mut section, &mut sheet, &days, &per_day);
    let placeholder = coupons(&mut section, &mut sheet, &users, &per_day);
    growth(&mut section, &mut sheet, &users, &days, &placeholder);
    sheet.flow(&mut section, &users);
    match section.finish() {
        faults if faults.is_empty() => Ok(sheet),
        faults => Err(faults),
    }
}

/// Computes the tables of the sharded source, and those that its rule can reach.
fn source(section: &mut Section<'_>, sheet: &mut Sheet, users: &Term) {
    let databases = section.whole("source_databases", "databases");
    let tables = section.whole("source_tables", "tables in each");
    let spread = section.choice("spread", ["literal", "spread"]);
    let all = sheet.add("source_tables", "source tables that exist", TABLES, &databases.times(&tables));
    let divisor = match spread {
        "literal" => common_divisor(databases.amount.low, tables.amount.low),
        _ => 1.0,
    };
    let divisor = Term::number(divisor, "(the common divisor that the rule repeats)");
    let reached = sheet.add(
        "source_tables_reached",
        "source tables that the rule can reach",
        TABLES,
        &all.per(&divisor),
    );
    if divisor.amount.low > 1.0 {
        sheet.note(
            "database and table are remainders of one hash, and their numbers have a common divisor, so the table's \
             number fixes the database; `spread` reaches all",
        );
    }
    sheet.add(
        "users_per_source_table",
        "users in a table that is reached",
        Unit::Count("users"),
        &users.per(&reached),
    );
    sheet.add(
        "users_per_source_table_if_all",
        "users in a table if all were reached",
        Unit::Count("users"),
        &users.per(&all),
    );
}

fn tables(section: &mut Section<'_>, sheet: &mut Sheet, days: &Term, per_day: &Term) -> Term {
    let databases = section.whole("birthday_databases", "databases");
    let layout = section.choice("layout", ["by_day", "by_user"]);
    let all = sheet.add("tables", "birthday tables, one a day", TABLES, days);
    let per_day = sheet.add("rows_per_table", "rows of an average day", ROWS, per_day);
    if section.flag("lunar") {
        let lunar = Term::number(LUNAR_MONTHS, "months").times(&Term::number(LUNAR_DAYS, "days"));
        sheet.add("lunar_tables", "tables of lunar birthdays", TABLES, &lunar);
        sheet.note("a lunar month has 29 or 30 days, so no table ends in 31");
    }
    let (each, parallel) = match layout {
        "by_day" => (all.per(&databases).dealt(), Term::number(1.0, "database that holds the day's table")),
        _ => (all, databases),
    };
    sheet.add("tables_per_database", "birthday tables in one database", TABLES, &each);
    sheet.add(
        "databases_of_a_day",
        "databases that one day is read from",
        Unit::Count("databases"),
        &parallel,
    );
    per_day
}

/// Computes the coupons of an average day and of a placeholder date; returns the rows of the latter.
fn coupons(section: &mut Section<'_>, sheet: &mut Sheet, users: &Term, per_day: &Term) -> Term {
    let rate = section.above_zero("coupons_per_second", "coupons a second");
    let page = section.whole("page_rows", "rows a page");
    let placeholder = section.share("placeholder_percent", "of all users");
    sheet.add("day_pages", "pages of an average day", Unit::Count("pages"), &per_day.per(&page).rounded_up());
    sheet.add("day_seconds", "coupons of an average day", Unit::Count("seconds"), &per_day.per(&rate));
    let rows = users.times(&placeholder);
    let rows = sheet.add("placeholder_rows", "rows of a date that stands for an unknown one", ROWS, &rows);
    sheet.add("placeholder_seconds", "coupons of that date", Unit::Count("seconds"), &rows.per(&rate));
    placeholder
}

fn growth(section: &mut Section<'_>, sheet: &mut Sheet, users: &Term, days: &Term, placeholder: &Term) {
    let new_users = section.above_zero("new_users_per_year", "new users a year");
    let growth = section.growth();
    let rows_max = section.range("rows_per_table", "rows a table");
    let row_bytes = section.bytes("row_bytes", "a row");
    let database_bytes = section.bytes("database_bytes", "of disk a database");
    let bytes = sheet.add("bytes", "bytes of all birthday rows", Unit::Bytes, &users.times(&row_bytes));
    let disks = bytes.per(&database_bytes).rounded_up();
    sheet.add("disks", "databases that these bytes fill", Unit::Count("databases"), &disks);
    let all = sheet.add("rows_max", "rows that all birthday tables hold", ROWS, &days.times(&rows_max));
    let average = all.minus(users).per(&new_users);
    let average = sheet.add("years", "until an average table is full", YEARS, &average);
    let one = rows_max.minus(&users.times(placeholder)).per(&new_users.times(placeholder));
    let one = sheet.add("placeholder_years", "until the table of a placeholder date is full", YEARS, &one);
    sheet.first_full(YEARS, &[("the table of a placeholder date", one), ("an average table", average)]);
    sheet.stores.push(Store {
        name: "birthday tables",
        rows_now: users.amount.low,
        rows_per_year: new_users.amount.low,
        rows_max: all.amount,
        row_bytes: row_bytes.amount.low,
        database_bytes: database_bytes.amount.low,
        kept_years: None,
        growth,
    });
}

/// Returns the greatest common divisor. The numbers are whole and below 10^15, which a float holds exactly.
fn common_divisor(one: f64, two: f64) -> f64 {
    let (mut one, mut two) = (one as u64, two as u64);
    while two > 0 {
        (one, two) = (two, one % two);
    }
    one.max(1) as f64
}
