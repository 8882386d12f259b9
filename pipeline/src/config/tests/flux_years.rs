//! Tests of `[flux.years]`, and of the full set of tables that the example for payment documents captures.

use std::collections::BTreeSet;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::flux::audit::TablePlace;
use anabranch_schemas::flux::id::{FluxId, Month};
use anabranch_schemas::flux::placement::StorageAddress;
use anabranch_schemas::flux::table::Names;
use anabranch_schemas::flux::years::{CutOver, Strategy, YearDigit};
use anabranch_schemas::shard::ShardId;

use super::*;

const TABLES: &str = r#"
[[entities]]
entity = "flux"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
level = "atom"
[[entities]]
entity = "flux"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
level = "composite"
"#;
const TABLES_BY_YEAR: &str = r#"
[[entities]]
entity = "flux"
tables = "flux_00_{db}.atom_{partition:02}_{year}_{month:02}"
level = "atom"
[[entities]]
entity = "flux"
tables = "flux_00_{db}.composite_{partition:02}_{year}_{month:02}"
level = "composite"
"#;

/// Returns a configuration with both kinds of tables and these lines of `[flux.years]`.
fn with_years(lines: &str) -> String {
    format!("{GOOD}{TABLES}{TABLES_BY_YEAR}[flux.years]\n{lines}\n")
}

#[test]
fn the_new_strategy_is_chosen_by_data_version_or_cut_over_date() {
    let years = |lines: &str| Config::parse(&with_years(lines)).unwrap().flux.unwrap().years.unwrap();
    let by_date = years("cut_over = \"2027-01-01\"");
    assert_eq!(by_date.cut_over, CutOver::Date(jiff::civil::date(2027, 1, 1)));
    assert_eq!(by_date.digit, YearDigit::First);
    let by_version = years("data_version = 8\ndigit = 23");
    assert_eq!((by_version.cut_over, by_version.digit), (CutOver::Version(8), YearDigit::Second));
    assert_eq!(Config::parse(&format!("{GOOD}{TABLES}[flux]\n")).unwrap().flux.unwrap().years, None);
    // A process that only makes identifiers captures no documents.
    assert!(Config::parse(&format!("{GOOD}[flux.years]\ncut_over = \"2027-01-01\"\n")).is_ok());
}

#[test]
fn each_mistake_of_the_strategy_by_year_is_named_with_its_key() {
    for (lines, expected) in [
        ("", "flux.years.cut_over: missing; needed: one of flux.years.cut_over and flux.years.data_version"),
        (
            "cut_over = \"2027-01-01\"\ndata_version = 8",
            "flux.years.data_version: beside flux.years.cut_over; needed: one of",
        ),
        ("cut_over = \"2027-02-30\"", "flux.years.cut_over: `2027-02-30`; needed: a date of the calendar"),
        ("cut_over = \"soon\"", "flux.years.cut_over: `soon`; needed: a date of the calendar"),
        ("cut_over = 2027", "invalid type: integer, expected a string"),
        ("data_version = 2", "flux.years.data_version: 2; needed: 0, 1 or 8"),
        ("data_version = 8\ndigit = 21", "flux.years.digit: 21; needed: 22 or 23"),
        ("data_version = 8\ndigit = 24", "flux.years.digit: 24; needed: 22 or 23"),
        ("data_version = 8\ndigit = 256", "expected u8"),
        ("data_version = 8\nyear = 7", "unknown field `year`"),
    ] {
        let found = problems(&with_years(lines));
        assert!(found.contains(expected), "{lines}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    for (months, is_right) in [(11, false), (12, true), (108, true), (109, false)] {
        let section = format!("[flux]\nretention_months = {months}\n[flux.years]");
        let text = with_years("data_version = 8").replace("[flux.years]", &section);
        match Config::parse(&text) {
            Ok(_) => assert!(is_right, "{months}"),
            Err(_) => {
                let found = problems(&text);
                let expected = format!("flux.retention_months: {months}; needed: 12 to 108 months beside");
                assert!(!is_right && found.contains(&expected), "{found}");
            }
        }
    }
}

#[test]
fn the_new_strategy_must_not_have_fewer_tables_than_today() {
    let years = "[flux.years]\ndata_version = 8\n";
    let without = problems(&format!("{GOOD}{TABLES}{years}"));
    for level in ["composite", "atom"] {
        let expected = format!(
            "entities.tables: 0 tables by year of {level} level, fewer than the 1300 without a year; needed: at least"
        );
        assert!(without.contains(&expected), "{without}");
    }
    // By year alone, ten years make fewer tables than thirteen months.
    let by_year_alone =
        TABLES_BY_YEAR.replace("atom_{partition:02}_{year}_{month:02}", "yearly_{partition:02}_{year}");
    let found = problems(&format!("{GOOD}{TABLES}{by_year_alone}{years}"));
    assert!(found.contains("1000 tables by year of atom level, fewer than the 1300"), "{found}");
    assert_eq!(found.lines().count(), 1, "{found}");
    let unnamed = problems(&format!("{GOOD}{TABLES}{TABLES_BY_YEAR}"));
    let expected = "entities.tables: `flux_00_{db}.atom_{partition:02}_{year}_{month:02}`; needed: no {year}, or a section";
    assert!(unnamed.contains(expected), "{unnamed}");
}

/// One table of a configuration, with the place that its name and source stand for.
struct NamedTable {
    source: &'static str,
    database: String,
    table: String,
    place: TablePlace,
}

/// Returns every table of one server side: ten partitions a database, twelve months and 99, atoms and composites.
fn tables_of_side(region: Region, side: Side, year: Option<u8>) -> Vec<NamedTable> {
    let names = match year {
        None => Names::default(),
        Some(_) => {
            Names::parse_by_year(Names::DATABASE, Names::ATOM_BY_YEAR, Names::COMPOSITE_BY_YEAR).unwrap()
        }
    };
    let mut all = Vec::new();
    for partition in 0..100 {
        for month in (0..12).map(Month::Of).chain([Month::No]) {
            for level in [Level::Atom, Level::Composite] {
                let at = StorageAddress { side, partition, month };
                let (database, table) = names.of_year(level, at, year.unwrap_or_default());
                let source = match (side, partition / 10) {
                    (Side::FailOver, _) => "fail-over",
                    (Side::Main, 0..5) => "main-a",
                    (Side::Main, _) => "main-b",
                };
                let place = TablePlace {
                    database: Some(partition / 10),
                    partition: Some(partition),
                    month: Some(month),
                    level: Some(level),
                    region: Some(region),
                    side: Some(side),
                    strategy: Some(year.map_or(Strategy::Month, Strategy::Year)),
                };
                all.push(NamedTable { source, database, table, place });
            }
        }
    }
    all
}

#[test]
fn ten_databases_with_ten_partitions_twelve_months_and_99_over_two_servers_and_one_fail_over_are_captured() {
    let config = Config::parse(raw::EXAMPLES[2]).expect("the example of payment documents is right");
    let sources: Vec<&str> = config.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(sources, ["main-a", "main-b", "fail-over"]);
    let (mut shards, mut counts) = (BTreeSet::new(), Vec::new());
    for year in [None, Some(0), Some(7), Some(9)] {
        let sides = [Side::Main, Side::FailOver];
        let tables: Vec<NamedTable> =
            sides.into_iter().flat_map(|side| tables_of_side(Region::UnitedStates, side, year)).collect();
        for NamedTable { source, database, table, place } in &tables {
            let of = |config: &&EntityConfig| config.tables.matches(database, table).is_some();
            let matching: Vec<&EntityConfig> = config.entities.iter().filter(of).collect();
            assert!(matches!(&matching[..], [one] if one.level == place.level), "{database}.{table}");
            let shard = ShardId::of(source, database, table, 0);
            let identity = TableIdentity {
                entity: Entity::Flux,
                shard,
                database: database.as_str().into(),
                table: table.as_str().into(),
            };
            assert_eq!(config.flux_places.of_table(&identity), *place, "{database}.{table} of {source}");
            assert!(shards.insert(shard), "{database}.{table} of {source} twice");
        }
        counts.push(tables.len());
    }
    // 1,200 tables by month and 100 without one, atoms and composites, main and fail-over.
    assert_eq!(counts, [2 * 2 * (1_200 + 100); 4]);
    for name in ["atom_05_12", "atom_5_01", "atom_05", "composite_05_01_old", "atom_05_10_01"] {
        assert!(config.entity_of(Entity::Flux, "flux_00_0", name).is_none(), "{name}");
    }
    let example: FluxId = "2016060611031103099052400029904".parse().unwrap();
    assert_eq!(config.flux.unwrap().years.unwrap().strategy(&example), Strategy::Month);
}
