//! Figures of payment documents: recharges and refunds, their tables by month, disks and counters.

use crate::capacity::fields::{Fields, Invalid, Section};
use crate::capacity::sheet::{Sheet, Store, Unit};
use crate::capacity::term::{Amount, Term};
use crate::flux::{id, table};

pub const SECTION: &str = "flux";
const DAYS: Unit = Unit::Count("days");
const DATABASES: Unit = Unit::Count("databases");
const TABLES: Unit = Unit::Count("tables");
const TIMES: Unit = Unit::Count("times");
const DOCUMENTS: Unit = Unit::Count("documents");
/// Logical tables: composites and atoms.
const LOGICAL_TABLES: f64 = 2.0;
/// Years that the year digit of an identifier tells apart.
const YEAR_DIGITS: f64 = 10.0;

/// Rates and sizes from which every figure here is computed.
struct Rates {
    recharges: Term,
    recharge_atoms: Term,
    refunds: Term,
    refund_atoms: Term,
    row_bytes: Term,
    table_bytes: Term,
    database_bytes: Term,
    rows_per_table: Term,
    days: Term,
}

/// Pairs of database and table that a user partition names, and the tables by month.
struct Layout {
    pairs: Term,
    month_tables: Term,
}

pub fn compute(fields: &Fields) -> Result<Sheet, Vec<Invalid>> {
    let mut section = Section::new("[flux]", fields);
    let mut sheet = Sheet::new(SECTION);
    let databases = section.whole("databases", "databases");
    let expanded = section.whole("expanded_databases", "databases");
    let rates = rates(&mut section, &mut sheet);
    let (today, per_database) = layouts(&mut section, &mut sheet, &databases, &expanded);
    let year = recharges(&mut sheet, &rates, &today);
    let refunds = refunds(&mut sheet, &rates, &today);
    disks(&mut sheet, &rates, (&databases, &expanded), &per_database, &today);
    counters(&mut sheet, &rates, &today);
    online(&mut section, &mut sheet, &rates, &today, (&year, &refunds));
    full(&mut sheet, &rates, &today, &databases);
    sheet.flow(&mut section, &year.plus(&refunds));
    sheet.note("rows are the documents of one year");
    match section.finish() {
        faults if faults.is_empty() => Ok(sheet),
        faults => Err(faults),
    }
}

fn rates(section: &mut Section<'_>, sheet: &mut Sheet) -> Rates {
    let recharges = section.whole("recharges_per_day", "recharges a day");
    let recharge_atoms = section.above_zero("atoms_per_recharge", "atoms each");
    let share = section.share("refund_percent", "of recharges");
    let refund_atoms = section.above_zero("atoms_per_refund", "atoms each");
    let row_bytes = section.bytes("row_bytes", "a row");
    let table_bytes = section.bytes("table_bytes", "a table");
    let database_bytes = section.bytes("database_bytes", "of disk a database");
    let rows_per_table = table_bytes.per(&row_bytes);
    let rows_per_table =
        sheet.add("rows_per_table", "rows that a table holds", Unit::Count("rows a table"), &rows_per_table);
    let refunds = sheet.add(
        "refunds_per_day",
        "refunds of a day",
        Unit::Count("refunds a day"),
        &recharges.times(&share),
    );
    let days = Term::number(365.0, "days");
    Rates {
        recharges,
        recharge_atoms,
        refunds,
        refund_atoms,
        row_bytes,
        table_bytes,
        database_bytes,
        rows_per_table,
        days,
    }
}

/// Computes tables of today and of more databases; returns today's layout, and the tables of a database for a month.
fn layouts(
    section: &mut Section<'_>,
    sheet: &mut Sheet,
    databases: &Term,
    expanded: &Term,
) -> (Layout, Term) {
    let tables = section.whole("tables_per_database", "tables in each");
    let digits = section.whole("partition_digits", "digits of the user partition");
    let months = Term::number(f64::from(table::MONTHS), "months");
    let digits = digits.amount.low.min(9.0);
    let named = Term::number(10f64.powf(digits), &format!("pairs that {digits} digits name"));
    let all = databases.times(&tables);
    let pairs = sheet.add("pairs", "pairs of database and table", Unit::Count("pairs"), &all.minimum(&named));
    let month_tables =
        sheet.add("month_tables", "tables by month of one logical table", TABLES, &pairs.times(&months));
    let of_database = tables.times(&months);
    sheet.add(
        "database_month_tables",
        "tables by month of one logical table in a database",
        TABLES,
        &of_database,
    );
    let more = expanded.times(&tables);
    let more_pairs =
        sheet.add("expanded_pairs", "pairs with more databases", Unit::Count("pairs"), &more.minimum(&named));
    if more.amount.high > named.amount.low {
        sheet.note(format!(
            "{digits} digits name {} pairs of database and table, however many databases there are; {} need another digit",
            named.amount, more.amount
        ));
    }
    sheet.add(
        "expanded_month_tables",
        "tables by month with more databases",
        TABLES,
        &more_pairs.times(&months),
    );
    sheet.add(
        "expanded_month_tables_if_named",
        "tables by month if a third digit named them",
        TABLES,
        &more.times(&months),
    );
    let years = Term::number(YEAR_DIGITS, "years of one digit");
    sheet.add(
        "years_until_reuse",
        "years until a table by year and month comes round",
        Unit::Count("years"),
        &years,
    );
    let by_year = month_tables.times(&years);
    sheet.add("year_month_tables", "tables by year and month of one logical table", TABLES, &by_year);
    sheet.note("the strategy by year and month has no fewer tables than the one by month");
    sheet.add("refund_tables", "tables without month of one logical table", TABLES, &pairs);
    sheet.add("expanded_refund_tables", "tables without month with more databases", TABLES, &more_pairs);
    (Layout { pairs, month_tables }, of_database)
}

/// Computes recharges of a year and the tables that they fill; returns composites and atoms of a year.
fn recharges(sheet: &mut Sheet, rates: &Rates, today: &Layout) -> Term {
    let composites = rates.recharges.times(&rates.days);
    let composites =
        sheet.add("recharge_composites_per_year", "composites of recharges a year", DOCUMENTS, &composites);
    let atoms = composites.times(&rates.recharge_atoms);
    let atoms = sheet.add("recharge_atoms_per_year", "atoms of recharges a year", DOCUMENTS, &atoms);
    let needed = composites.per(&rates.rows_per_table);
    let needed =
        sheet.add("recharge_composite_tables", "tables that a year's composites fill", TABLES, &needed);
    sheet.add(
        "recharge_composite_shortage",
        "times as many tables of composites as there are",
        TIMES,
        &needed.per(&today.month_tables),
    );
    let needed = atoms.per(&rates.rows_per_table);
    let needed = sheet.add("recharge_atom_tables", "tables that a year's atoms fill", TABLES, &needed);
    sheet.add(
        "recharge_atom_shortage",
        "times as many tables of atoms as there are",
        TIMES,
        &needed.per(&today.month_tables),
    );
    composites.plus(&atoms)
}

fn refunds(sheet: &mut Sheet, rates: &Rates, today: &Layout) -> Term {
    let composites = rates.refunds.times(&rates.days);
    let composites =
        sheet.add("refund_composites_per_year", "composites of refunds a year", DOCUMENTS, &composites);
    let atoms = composites.times(&rates.refund_atoms);
    let atoms = sheet.add("refund_atoms_per_year", "atoms of refunds a year", DOCUMENTS, &atoms);
    let needed = composites.per(&rates.rows_per_table);
    sheet.add("refund_composite_tables", "tables that a year's composites of refunds fill", TABLES, &needed);
    let needed = atoms.per(&rates.rows_per_table);
    let needed =
        sheet.add("refund_atom_tables", "tables that a year's atoms of refunds fill", TABLES, &needed);
    sheet.add(
        "refund_atom_shortage",
        "times as many tables of atoms of refunds as there are",
        TIMES,
        &needed.per(&today.pairs),
    );
    composites.plus(&atoms)
}

/// Compares bytes of disks with bytes of full tables.
fn disks(
    sheet: &mut Sheet,
    rates: &Rates,
    (databases, expanded): (&Term, &Term),
    month_tables: &Term,
    today: &Layout,
) {
    let disks = databases.times(&rates.database_bytes);
    let disks = sheet.add("disk_bytes", "all disks", Unit::Bytes, &disks);
    let tables = today.month_tables.times(&rates.table_bytes);
    let tables =
        sheet.add("month_table_bytes", "full tables by month of one logical table", Unit::Bytes, &tables);
    sheet.add(
        "disk_bytes_missing",
        "bytes of these tables that no disk holds",
        Unit::Bytes,
        &tables.minus(&disks),
    );
    let both = tables.times(&Term::number(LOGICAL_TABLES, "logical tables (composites, atoms)"));
    sheet.add(
        "month_table_bytes_of_both",
        "full tables by month of composites and atoms",
        Unit::Bytes,
        &both,
    );
    let disks = expanded.times(&rates.database_bytes);
    let disks = sheet.add("expanded_disk_bytes", "all disks of more databases", Unit::Bytes, &disks);
    let tables = expanded.times(month_tables).times(&rates.table_bytes);
    let tables = sheet.add(
        "expanded_table_bytes_if_named",
        "full tables by month if a third digit named them",
        Unit::Bytes,
        &tables,
    );
    if tables.amount.high > disks.amount.low {
        let (tables, disks) = (Unit::Bytes.text(tables.amount), Unit::Bytes.text(disks.amount));
        sheet.note(format!("{tables} of tables stand on {disks} of disks"));
    }
}

/// Computes identifiers of a day, and how much of a counter they use.
fn counters(sheet: &mut Sheet, rates: &Rates, today: &Layout) {
    let one = Term::number(1.0, "composite");
    let recharge = rates.recharges.times(&one.plus(&rates.recharge_atoms));
    let refund = rates.refunds.times(&one.plus(&rates.refund_atoms));
    let per_day = sheet.add(
        "identifiers_per_day",
        "identifiers of a day",
        Unit::Count("identifiers a day"),
        &recharge.plus(&refund),
    );
    let per_counter = per_day.per(&today.pairs);
    let per_counter = sheet.add(
        "identifiers_per_counter",
        "identifiers of a day in one counter",
        Unit::Count("identifiers a day"),
        &per_counter,
    );
    sheet.note("each counter is that of one date, region, user partition, and main or fail-over database");
    let size = Term::number(f64::from(id::SEQUENCES), "numbers of eight digits");
    sheet.add("counter_used", "share of a counter that a day uses", Unit::Share, &per_counter.per(&size));
}

/// Computes the rows that stay online, and the databases that they need.
fn online(
    section: &mut Section<'_>,
    sheet: &mut Sheet,
    rates: &Rates,
    today: &Layout,
    (year, refunds): (&Term, &Term),
) {
    let months = section.whole("months_online", "months online");
    let growth = section.growth();
    let twelve = Term::number(f64::from(table::MONTHS), "months");
    let of_tables = today.pairs.times(&months);
    sheet.add("year_month_tables_online", "tables by year and month that are online", TABLES, &of_tables);
    let bytes = year.times(&rates.row_bytes);
    let bytes = sheet.add("year_bytes", "recharges of a year", Unit::Bytes, &bytes);
    let databases = |bytes: &Term| bytes.per(&rates.database_bytes).rounded_up();
    sheet.add("year_databases", "databases that hold the recharges of a year", DATABASES, &databases(&bytes));
    let refund_bytes = refunds.times(&rates.row_bytes);
    let refund_bytes = sheet.add("refund_bytes", "refunds of a year", Unit::Bytes, &refund_bytes);
    let both = sheet.add(
        "year_bytes_with_refunds",
        "recharges and refunds of a year",
        Unit::Bytes,
        &bytes.plus(&refund_bytes),
    );
    sheet.add("year_databases_with_refunds", "databases that hold both", DATABASES, &databases(&both));
    let kept = bytes.times(&months).per(&twelve);
    let kept = sheet.add("online_bytes", "recharges that are online", Unit::Bytes, &kept);
    sheet.add(
        "online_databases",
        "databases that hold the recharges that are online",
        DATABASES,
        &databases(&kept),
    );
    let kept_years = Some(months.amount.low / f64::from(table::MONTHS));
    let store = |name, rows: &Term, tables: &Term| Store {
        name,
        rows_now: 0.0,
        rows_per_year: rows.amount.low,
        rows_max: Amount::of(tables.amount.low * LOGICAL_TABLES * rates.rows_per_table.amount.low),
        row_bytes: rates.row_bytes.amount.low,
        database_bytes: rates.database_bytes.amount.low,
        kept_years,
        growth,
    };
    sheet.stores.push(store("recharges", year, &today.month_tables));
    // No month ends a table of refunds: a job deletes the old rows, and its marker keeps them in the index.
    sheet.stores.push(store("refunds", refunds, &today.pairs));
}

/// Computes the days until each kind of table, or a disk, is full.
fn full(sheet: &mut Sheet, rates: &Rates, today: &Layout, databases: &Term) {
    let days = |sheet: &mut Sheet, name: &str, label, rows: &Term| {
        let days = rates.rows_per_table.per(&rows.per(&today.pairs));
        sheet.add(name, label, DAYS, &days)
    };
    let (recharges, refunds) = (&rates.recharges, &rates.refunds);
    let (atoms, refund_atoms) = (recharges.times(&rates.recharge_atoms), refunds.times(&rates.refund_atoms));
    let composite =
        days(sheet, "recharge_composite_days", "until a month's table of composites is full", recharges);
    let atom = days(sheet, "recharge_atom_days", "until a month's table of atoms is full", &atoms);
    let refund =
        days(sheet, "refund_composite_days", "until a table of composites of refunds is full", refunds);
    let refund_atom =
        days(sheet, "refund_atom_days", "until a table of atoms of refunds is full", &refund_atoms);
    let rows = recharges.plus(&atoms).plus(refunds).plus(&refund_atoms);
    let disk = databases.times(&rates.database_bytes).per(&rows.times(&rates.row_bytes));
    let disk = sheet.add("disk_days", "until the disks are full", DAYS, &disk);
    sheet.first_full(
        DAYS,
        &[
            ("a month's table of composites", composite),
            ("a month's table of atoms", atom),
            ("a table of composites of refunds", refund),
            ("a table of atoms of refunds", refund_atom),
            ("the disk of a database", disk),
        ],
    );
}
