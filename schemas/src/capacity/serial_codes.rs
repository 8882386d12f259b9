//! Figures of serial codes: inventory tables, mapping tables and the cache.

use crate::capacity::fields::{Fields, Invalid, Section};
use crate::capacity::sheet::{Sheet, Store, Unit};
use crate::capacity::term::{Amount, Term};

pub const SECTION: &str = "serial_codes";
const ROWS: Unit = Unit::Count("rows");
const YEARS: Unit = Unit::Count("years");
const NODES: Unit = Unit::Count("nodes");
/// Mapping databases by the length of the value: 15, 14, any other.
const MAPPING_DATABASES: f64 = 3.0;

/// Inputs for comparing ways to shard the inventory.
#[derive(Debug, Clone, Copy)]
pub struct Inventory {
    pub databases: f64,
    pub tables: f64,
    pub rows_per_table: Amount,
    pub devices_per_year: f64,
    pub agents: f64,
    /// Share of the largest agent's devices, of 1.
    pub largest_agent: f64,
}

pub fn compute(fields: &Fields) -> Result<(Sheet, Inventory), Vec<Invalid>> {
    let mut section = Section::new("[serial_codes]", fields);
    let mut sheet = Sheet::new(SECTION);
    let devices = section.whole("devices_per_year", "devices a year");
    let rows_max = section.range("rows_per_table", "rows a table");
    let per_year = mapping(&mut section, &mut sheet, &devices, &rows_max);
    let inventory = inventory(&mut section, &mut sheet, &devices, &rows_max);
    let parts: Vec<(&'static str, Term)> = sheet
        .figures
        .iter()
        .filter_map(|figure| match figure.name.as_str() {
            "serial_codes.mapping_15_years" => Some(("the mapping database of length 15", figure)),
            "serial_codes.mapping_14_years" => Some(("the mapping database of length 14", figure)),
            "serial_codes.mapping_other_years" => Some(("the mapping database of other lengths", figure)),
            "serial_codes.inventory_years" => Some(("the inventory", figure)),
            _ => None,
        })
        .map(|(part, figure)| (part, Term::written(figure.amount, figure.text())))
        .collect();
    sheet.first_full(YEARS, &parts);
    sheet.flow(&mut section, &per_year);
    sheet.note("rows are the mapping rows of one year");
    match section.finish() {
        faults if faults.is_empty() => Ok((sheet, inventory)),
        faults => Err(faults),
    }
}

/// Computes mapping tables; returns their rows of a year.
fn mapping(section: &mut Section<'_>, sheet: &mut Sheet, devices: &Term, rows_max: &Term) -> Term {
    let one_kind = section.whole("devices_of_one_kind_per_year", "devices of one kind a year");
    let lengths = [
        ("15", section.whole("codes_15", "codes of length 15")),
        ("14", section.whole("codes_14", "codes of length 14")),
        ("other", section.whole("codes_other", "codes of other lengths")),
    ];
    let codes = lengths[0].1.plus(&lengths[1].1).plus(&lengths[2].1);
    let codes = sheet.add("codes", "codes of a device", Unit::Count("codes"), &codes);
    let tables = section.whole("mapping_tables", "tables in each");
    let databases = Term::number(MAPPING_DATABASES, "databases");
    let in_one = tables.times(rows_max);
    let all = databases.times(&tables);
    sheet.add("mapping_tables", "mapping tables", Unit::Count("tables"), &all);
    let max = sheet.add("mapping_rows_max", "rows that all mapping tables hold", ROWS, &all.times(rows_max));
    let per_year = devices.times(&codes);
    let per_year = sheet.add("mapping_rows_per_year", "mapping rows of a year", ROWS, &per_year);
    let of_one_kind = one_kind.times(&codes);
    sheet.add("mapping_rows_of_one_kind", "mapping rows of one kind of device a year", ROWS, &of_one_kind);
    sheet.add(
        "mapping_years",
        "until all mapping tables are full, if they filled evenly",
        YEARS,
        &max.per(&per_year),
    );
    for (length, codes) in &lengths {
        let label = match *length {
            "15" => "until the mapping database of length 15 is full",
            "14" => "until the mapping database of length 14 is full",
            _ => "until the mapping database of other lengths is full",
        };
        let years = in_one.per(&devices.times(codes));
        sheet.add(&format!("mapping_{length}_years"), label, YEARS, &years);
    }
    let growth = section.growth();
    let database_bytes = section.bytes("database_bytes", "of disk a database");
    let row_bytes = mapping_bytes(section, sheet, &max, &per_year);
    sheet.stores.push(Store {
        name: "mapping tables",
        rows_now: 0.0,
        rows_per_year: per_year.amount.low,
        rows_max: max.amount,
        row_bytes: row_bytes.amount.low,
        database_bytes: database_bytes.amount.low,
        kept_years: None,
        growth,
    });
    per_year
}

/// Computes bytes of mapping rows in tables and cache; returns the bytes of a row.
fn mapping_bytes(section: &mut Section<'_>, sheet: &mut Sheet, max: &Term, per_year: &Term) -> Term {
    let uuid = section.whole("uuid_bytes", "bytes of a uuid");
    let code = section.whole("code_bytes", "bytes of a code");
    sheet.add(
        "mapping_row_bytes_written",
        "bytes of both columns of a mapping row",
        Unit::Bytes,
        &uuid.plus(&code),
    );
    let row_bytes = section.bytes("mapping_row_bytes", "a row");
    sheet.add("mapping_bytes_max", "bytes of full mapping tables", Unit::Bytes, &max.times(&row_bytes));
    let bytes = per_year.times(&row_bytes);
    let bytes = sheet.add("mapping_bytes_per_year", "mapping rows of a year", Unit::Bytes, &bytes);
    let years = section.above_zero("cache_years", "years in the cache");
    let node = section.bytes("cache_node_bytes", "of memory a node");
    let fill = section.share("cache_fill_percent", "of it in use");
    let copies = section.zero_or_more("cache_replicas", "replicas").plus(&Term::number(1.0, "primary"));
    let cached = sheet.add("cache_bytes", "rows in the cache", Unit::Bytes, &bytes.times(&years));
    let nodes = cached.per(&node.times(&fill)).rounded_up();
    let nodes = sheet.add("cache_nodes", "nodes of the cache, without replicas", NODES, &nodes);
    if fill.amount.high >= 1.0 {
        sheet.note("memory is taken as full to the last byte: a server needs headroom for its own use and for bursts");
    }
    sheet.add("cache_nodes_with_replicas", "nodes of the cache, with replicas", NODES, &nodes.times(&copies));
    let half = cached.per(&Term::number(2.0, "(half of the time)")).per(&node.times(&fill)).rounded_up();
    sheet.add("cache_nodes_of_half_the_time", "nodes of the cache if rows stay half as long", NODES, &half);
    row_bytes
}

fn inventory(section: &mut Section<'_>, sheet: &mut Sheet, devices: &Term, rows_max: &Term) -> Inventory {
    let databases = section.whole("inventory_databases", "databases");
    let tables = section.whole("inventory_tables", "tables in each");
    let row_bytes = section.bytes("inventory_row_bytes", "a row");
    let agents = section.whole("agents", "agents");
    let largest_agent = section.share("largest_agent_percent", "of all devices");
    let database_bytes = section.bytes("database_bytes", "of disk a database");
    let growth = section.growth();
    let all = databases.times(&tables);
    sheet.add("inventory_tables", "inventory tables", Unit::Count("tables"), &all);
    let max =
        sheet.add("inventory_rows_max", "rows that all inventory tables hold", ROWS, &all.times(rows_max));
    sheet.add("inventory_years", "until all inventory tables are full", YEARS, &max.per(devices));
    let bytes = devices.times(&row_bytes);
    sheet.add("inventory_bytes_per_year", "inventory rows of a year", Unit::Bytes, &bytes);
    let bytes = sheet.add(
        "inventory_bytes_max",
        "bytes of full inventory tables",
        Unit::Bytes,
        &max.times(&row_bytes),
    );
    let disks = bytes.per(&database_bytes).rounded_up();
    sheet.add(
        "inventory_disks",
        "databases that full inventory tables need",
        Unit::Count("databases"),
        &disks,
    );
    sheet.stores.push(Store {
        name: "inventory tables",
        rows_now: 0.0,
        rows_per_year: devices.amount.low,
        rows_max: max.amount,
        row_bytes: row_bytes.amount.low,
        database_bytes: database_bytes.amount.low,
        kept_years: None,
        growth,
    });
    Inventory {
        databases: databases.amount.low,
        tables: tables.amount.low,
        rows_per_table: rows_max.amount,
        devices_per_year: devices.amount.low,
        agents: agents.amount.low,
        largest_agent: largest_agent.amount.high,
    }
}
