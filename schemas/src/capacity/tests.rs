//! Tests of every figure of the source documents beside the computed one, and of the faults of wrong plan files.

use super::claim::ClaimVerdict::{self, Differs, Equal, Rounded};
use super::fields::{Fields, Invalid};
use super::plan::{JudgedFigure, Plan};

const BIRTHDAYS: &str = include_str!("../../../deploy/plans/birthdays.toml");
const SERIAL_CODES: &str = include_str!("../../../deploy/plans/serial-codes.toml");
const FLUX: &str = include_str!("../../../deploy/plans/flux.toml");

fn read(text: &str) -> Result<Plan, Vec<Invalid>> {
    Plan::of(&toml::from_str::<Fields>(text).expect("the text is TOML"))
}

fn plan(text: &str) -> Plan {
    read(text).unwrap_or_else(|faults| panic!("{faults:#?}"))
}

fn judged<'p>(plan: &'p Plan, name: &str) -> &'p JudgedFigure {
    plan.figure(name).unwrap_or_else(|| panic!("no figure {name}"))
}

/// Line of the document, its text, the figure, its value, the verdict, and a part of why the claim differs or is odd.
type Row = (u32, &'static str, &'static str, &'static str, ClaimVerdict, &'static str);

/// Checks each row, and that the file makes no further claim.
fn check(text: &str, rows: &[Row]) {
    let plan = plan(text);
    for (line, says, name, ours, verdict, why) in rows {
        let judged = judged(&plan, name);
        assert_eq!(judged.figure.text(), *ours, "line {line}: {says}");
        let mut claims = judged.claims.iter().filter(|(claim, _)| claim.line == *line);
        let (claim, found) =
            claims.find(|(claim, _)| claim.says.contains(says)).unwrap_or_else(|| panic!("{says}"));
        assert_eq!(found, verdict, "line {line}: {says}");
        let reported = claim.why.as_deref().unwrap_or_default();
        assert!(reported.contains(why) && (reported.is_empty() == why.is_empty()), "line {line}: {reported}");
    }
    let claims = plan.systems.iter().flat_map(|system| &system.figures).flat_map(|judged| &judged.claims);
    assert_eq!(claims.count(), rows.len(), "the file claims what the table lacks");
}

#[test]
fn every_figure_of_birthdays_is_reproduced_or_explained() {
    check(
        BIRTHDAYS,
        &[
            (5, "100,000 tables", "birthdays.source_tables", "100,000 tables", Equal, ""),
            (18, "% 1000", "birthdays.source_tables_reached", "1,000 tables", Differs, "100 divides 1,000"),
            (25, "366", "birthdays.tables", "366 tables", Equal, ""),
            (46, "3-4", "birthdays.tables_per_database", "3–4 tables", Equal, ""),
            (66, "366th", "birthdays.rows_per_table", "1,366,120.22 rows", Rounded, "no average day"),
            (67, "100 times", "birthdays.databases_of_a_day", "1 database", Differs, "nothing is parallel"),
            (74, "lunar", "birthdays.lunar_tables", "360 tables", Differs, "29 or 30 days"),
        ],
    );
}

#[test]
fn every_figure_of_serial_codes_is_reproduced_or_explained() {
    let mapping = "7,680,000,000–15,360,000,000 rows";
    let inventory = "1,600,000,000–3,200,000,000 rows";
    check(
        SERIAL_CODES,
        &[
            (
                86,
                "500 million",
                "serial_codes.mapping_rows_of_one_kind",
                "500,000,000 rows",
                Equal,
                "one kind",
            ),
            (125, "7.68-15.36", "serial_codes.mapping_rows_max", mapping, Equal, ""),
            (130, "1 billion", "serial_codes.mapping_rows_per_year", "1,000,000,000 rows", Equal, ""),
            (135, "0.1 KB", "serial_codes.mapping_row_bytes_written", "128 bytes", Equal, "cut off"),
            (137, "3.8-7.6", "serial_codes.mapping_bytes_max", "3.84–7.68 TB", Rounded, ""),
            (138, "500 GB", "serial_codes.mapping_bytes_per_year", "500 GB", Equal, ""),
            (139, "5 nodes", "serial_codes.cache_nodes", "5 nodes", Equal, "full to the last byte"),
            (139, "10 nodes", "serial_codes.cache_nodes_with_replicas", "10 nodes", Equal, ""),
            (146, "1.6-3.2", "serial_codes.inventory_rows_max", inventory, Equal, ""),
            (148, "16 years", "serial_codes.inventory_years", "8–16 years", Differs, "it is 8"),
            (152, "7.68-15.36", "serial_codes.mapping_rows_max", mapping, Equal, ""),
            (152, "30 years", "serial_codes.mapping_years", "7.68–15.36 years", Differs, "7.7 to 15.4"),
            (153, "500 GB", "serial_codes.cache_bytes", "500 GB", Equal, ""),
            (153, "10 nodes", "serial_codes.cache_nodes_with_replicas", "10 nodes", Equal, ""),
            (155, "3.2 billion", "serial_codes.inventory_rows_max", inventory, Differs, "upper end"),
            (155, "16 years", "serial_codes.inventory_years", "8–16 years", Differs, "it is 8"),
        ],
    );
}

#[test]
fn every_figure_of_flux_is_reproduced_or_explained() {
    let names = "name 100 pairs";
    check(
        FLUX,
        &[
            (23, "100 tables", "flux.pairs", "100 pairs", Differs, names),
            (26, "12*10", "flux.database_month_tables", "120 tables", Equal, ""),
            (28, "1,200", "flux.month_tables", "1,200 tables", Equal, ""),
            (28, "12,000", "flux.expanded_month_tables", "1,200 tables", Differs, names),
            (34, "10 years", "flux.years_until_reuse", "10 years", Equal, ""),
            (72, "50,000,000", "flux.recharge_composites_per_year", "18,250,000,000 documents", Equal, ""),
            (74, "73,000", "flux.recharge_atoms_per_year", "73,000,000,000 documents", Equal, ""),
            (76, "10,000,000 rows", "flux.rows_per_table", "10,000,000 rows a table", Equal, ""),
            (78, "1,825", "flux.recharge_composite_tables", "1,825 tables", Equal, ""),
            (80, "7,300", "flux.recharge_atom_tables", "7,300 tables", Equal, ""),
            (82, "1,200", "flux.month_tables", "1,200 tables", Equal, ""),
            (82, "6 times", "flux.recharge_atom_shortage", "6.08 times", Rounded, "7,300 / 1,200"),
            (82, "12,000", "flux.expanded_month_tables", "1,200 tables", Differs, names),
            (84, "16 TB", "flux.disk_bytes", "16 TB", Equal, ""),
            (84, "24 TB", "flux.month_table_bytes", "24 TB", Equal, "together are 48 TB"),
            (84, "8 TB short", "flux.disk_bytes_missing", "8 TB", Equal, "32 TB"),
            (84, "240 TB", "flux.expanded_table_bytes_if_named", "240 TB", Equal, "cannot name"),
            (84, "240 TB", "flux.expanded_disk_bytes", "160 TB", Differs, "160 TB of disks"),
            (84, "hold a year", "flux.year_databases", "115 databases", Differs, "115 and 124"),
            (
                90,
                "18,250,000,000",
                "flux.refund_composites_per_year",
                "1,825,000,000 documents",
                Differs,
                "misprinted",
            ),
            (90, "182.5 tables", "flux.refund_composite_tables", "182.5 tables", Equal, "misprinted"),
            (92, "547.5", "flux.refund_atom_tables", "547.5 tables", Equal, ""),
            (94, "100 tables", "flux.refund_tables", "100 tables", Equal, ""),
            (94, "6 times", "flux.refund_atom_shortage", "5.48 times", Rounded, "547.5 / 100"),
            (94, "1,000 tables", "flux.expanded_refund_tables", "100 tables", Differs, names),
        ],
    );
}

#[test]
fn what_the_documents_leave_out_is_computed_too() {
    for (text, rows) in [
        (
            BIRTHDAYS,
            &[
                ("birthdays.users_per_source_table", "500,000 users"),
                ("birthdays.users_per_source_table_if_all", "5,000 users"),
                ("birthdays.day_seconds", "136.61 seconds"),
                ("birthdays.day_pages", "1,367 pages"),
                ("birthdays.placeholder_rows", "25,000,000–50,000,000 rows"),
                ("birthdays.first_full", "0 years"),
                ("birthdays.streams", "2 streams"),
                ("birthdays.lanes", "4 lanes"),
                ("birthdays.target_connections", "4 connections"),
                ("birthdays.source_connections", "6 connections"),
                ("birthdays.load_hours", "0.75 hours"),
                ("birthdays.reconcile_hours", "0.13 hours"),
            ][..],
        ),
        (
            SERIAL_CODES,
            &[
                ("serial_codes.mapping_tables", "1,536 tables"),
                ("serial_codes.mapping_15_years", "6.4–12.8 years"),
                ("serial_codes.mapping_14_years", "12.8–25.6 years"),
                ("serial_codes.mapping_other_years", "6.4–12.8 years"),
                ("serial_codes.cache_nodes_of_half_the_time", "3 nodes"),
                ("serial_codes.first_full", "6.4–12.8 years"),
                ("serial_codes.streams", "5 streams"),
                ("serial_codes.lanes", "30 lanes"),
                ("serial_codes.target_connections", "30 connections"),
                ("serial_codes.source_connections", "35 connections"),
                ("serial_codes.load_hours", "12.18 hours"),
                ("serial_codes.reconcile_hours", "0.53 hours"),
            ],
        ),
        (
            FLUX,
            &[
                ("flux.month_table_bytes_of_both", "48 TB"),
                ("flux.year_bytes", "182.5 TB"),
                ("flux.year_bytes_with_refunds", "197.1 TB"),
                ("flux.year_databases_with_refunds", "124 databases"),
                ("flux.online_databases", "153 databases"),
                ("flux.recharge_composite_shortage", "1.52 times"),
                ("flux.refund_atoms_per_year", "5,475,000,000 documents"),
                ("flux.year_month_tables", "12,000 tables"),
                ("flux.identifiers_per_day", "270,000,000 identifiers a day"),
                ("flux.identifiers_per_counter", "2,700,000 identifiers a day"),
                ("flux.counter_used", "2.7 %"),
                ("flux.recharge_atom_days", "5 days"),
                ("flux.disk_days", "29.63 days"),
                ("flux.first_full", "5 days"),
                ("flux.streams", "3 streams"),
                ("flux.lanes", "12 lanes"),
                ("flux.target_connections", "12 connections"),
                ("flux.source_connections", "15 connections"),
                ("flux.load_hours", "506.94 hours"),
                ("flux.reconcile_hours", "52.14 hours"),
            ],
        ),
    ] {
        let plan = plan(text);
        for (name, ours) in rows {
            assert_eq!(judged(&plan, name).figure.text(), *ours, "{name}");
        }
    }
}

#[test]
fn a_figure_prints_the_formula_that_it_was_computed_by() {
    let plan = plan(SERIAL_CODES);
    let formula = |name| judged(&plan, name).figure.formula.clone();
    assert_eq!(
        formula("serial_codes.mapping_rows_max"),
        "3 databases × 512 tables in each × 5,000,000–10,000,000 rows a table"
    );
    assert_eq!(
        formula("serial_codes.cache_nodes"),
        "500 GB of rows in the cache ÷ (100 GB of memory a node × 100 % of it in use), rounded up"
    );
}

#[test]
fn the_rule_that_a_plan_warns_of_is_the_rule_of_the_shards() {
    use crate::shard::{NameHash, ShardingRule, Spread};
    for (word, spread) in [("literal", Spread::Literal), ("spread", Spread::Spread)] {
        let rule = ShardingRule { hash: NameHash::Crc32, spread, databases: 100, tables: 1000 };
        let text = BIRTHDAYS.replace("spread = \"literal\"", &format!("spread = \"{word}\""));
        let plan = plan(&text);
        let reached = judged(&plan, "birthdays.source_tables_reached").figure.amount.low;
        assert_eq!(reached as u64, rule.reachable_tables());
    }
}

#[test]
fn a_third_digit_reaches_what_two_do_not() {
    let pairs = |text: &str| judged(&plan(text), "flux.expanded_pairs").figure.amount.low;
    assert_eq!(pairs(FLUX), f64::from(crate::flux::table::PARTITIONS));
    let text =
        FLUX.split("[[claims]]").next().unwrap().replace("partition_digits = 2", "partition_digits = 3");
    assert_eq!(pairs(&text), 1_000.0);
    let plan = plan(&text);
    for (name, tables) in
        [("flux.expanded_month_tables", "12,000 tables"), ("flux.expanded_refund_tables", "1,000 tables")]
    {
        assert_eq!(judged(&plan, name).figure.text(), tables, "{name}");
    }
}

#[test]
fn every_difference_of_the_shipped_plans_has_its_reason() {
    for text in [BIRTHDAYS, SERIAL_CODES, FLUX] {
        for judged in plan(text).systems.iter().flat_map(|system| &system.figures) {
            for (claim, verdict) in &judged.claims {
                assert!(*verdict != Differs || claim.why.is_some(), "{}", claim.says);
            }
        }
    }
}

#[test]
fn shardings_are_compared_by_what_they_hold_and_cost() {
    let shardings = plan(SERIAL_CODES).shardings().expect("a plan of serial codes compares them");
    let text = |sharding: usize, name: &str| {
        let name = format!("compare.{name}");
        shardings[sharding].figures.iter().find(|figure| figure.name == name).unwrap().text()
    };
    for (name, ours) in [
        ("tables", ["64 tables", "320 tables", "320 tables"]),
        (
            "rows_max",
            [
                "320,000,000–640,000,000 rows",
                "1,600,000,000–3,200,000,000 rows",
                "1,600,000,000–3,200,000,000 rows",
            ],
        ),
        ("largest_share", ["100 %", "30 %", "20 %"]),
        ("years", ["1.6–3.2 years", "5.33–10.67 years", "8–16 years"]),
        ("agents_out", ["1,000 agents", "200 agents", "1,000 agents"]),
        ("transfer_databases", ["1 database", "2 databases", "5 databases"]),
    ] {
        assert_eq!([text(0, name), text(1, name), text(2, name)], ours.map(str::to_owned), "{name}");
    }
    assert!(plan(FLUX).shardings().is_none());
}

#[test]
fn a_store_of_a_plan_grows_year_by_year() {
    let plan = plan(FLUX);
    let [recharges, refunds] = plan.systems[0].stores.as_slice() else { panic!("two stores") };
    let recharges = super::growth::grow(recharges, 3);
    assert_eq!(recharges.iter().map(|year| year.databases).collect::<Vec<_>>(), [115.0, 153.0, 153.0]);
    let refunds = super::growth::grow(refunds, 3);
    assert_eq!(refunds.iter().map(|year| year.databases).collect::<Vec<_>>(), [10.0, 13.0, 13.0]);
}

fn faults(from: &str, to: &str) -> String {
    let faults = read(&FLUX.replace(from, to)).expect_err("the plan is wrong");
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_field_that_makes_no_sense_is_told_with_its_value_and_what_is_expected() {
    let whole = "a whole number from 1 to 10^15";
    for (value, found) in [
        ("0", "its value is 0"),
        ("-5", "its value is -5"),
        ("2.5", "its value is 2.5"),
        ("nan", "its value is NaN"),
        ("inf", "its value is inf"),
        ("9223372036854775807", "its value is 9223372036854775807"),
        ("\"ten\"", "its value is \"ten\""),
        ("[1, 2]", "its value is [1, 2]"),
        ("true", "its value is true"),
        ("{ a = 1 }", "its value is a table"),
    ] {
        assert_eq!(
            faults("\ndatabases = 10\n", &format!("\ndatabases = {value}\n")),
            format!("[flux] databases: {found}; expected: {whole}")
        );
    }
    let absent = faults("\ndatabases = 10\n", "\n");
    assert_eq!(absent, format!("[flux] databases: the field is absent; expected: {whole}"));
    let unknown = faults("\ndatabases = 10\n", "\ndatabases = 10\nserver_count = 3\n");
    assert!(
        unknown
            .starts_with("[flux] server_count: no such field (its value is 3); expected: one of databases,")
    );
    let percent = faults("refund_percent = 10", "refund_percent = 101");
    assert_eq!(
        percent,
        "[flux] refund_percent: its value is 101; expected: a percentage above 0, up to 100, or two as [low, high]"
    );
    let growth = faults("growth_percent = 0", "growth_percent = -1");
    assert_eq!(growth, "[flux] growth_percent: its value is -1; expected: a percentage from 0 to 1,000");
    let backwards = read(&SERIAL_CODES.replace("[5_000_000, 10_000_000]", "[10, 5]")).unwrap_err();
    assert_eq!(backwards[0].field, "[serial_codes] rows_per_table");
    let twice =
        read(&SERIAL_CODES.replace("database_bytes = 1_600_000_000_000", "database_bytes = 0")).unwrap_err();
    assert_eq!(twice.len(), 1, "{twice:?}");
    let choice = read(&BIRTHDAYS.replace("\"by_day\"", "\"by_year\"")).unwrap_err();
    assert_eq!(choice[0].expected, "\"by_day\" or \"by_user\"");
}

#[test]
fn sections_and_claims_that_make_no_sense_are_told() {
    let reported =
        |text: &str| read(text).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(reported("").contains("it has no section of a system"));
    assert!(reported("[fluxes]\n").contains("fluxes: no such section or field"));
    assert!(reported("flux = 3\n").contains("flux: it is not a table"));
    assert!(
        reported(&format!("claims = 3\n{FLUX}").replace("[[claims]]", "[[other]]"))
            .contains("claims: it is not a list")
    );
    let unknown = reported(&FLUX.replace("\"flux.pairs\"", "\"flux.pair\""));
    assert!(
        unknown.contains("number 1, figure: no figure of this plan is called \"flux.pair\""),
        "{unknown}"
    );
    let unsaid = reported(&FLUX.replace("says = \"up to 100 databases, in each up to 100 tables\"", ""));
    assert!(unsaid.contains("[[claims]] number 1, says: the field is absent; expected: a text"), "{unsaid}");
}

#[test]
fn a_claim_is_rounded_only_within_its_last_place_and_a_tenth() {
    let verdict = |value: &str| {
        let text = FLUX.replace("value = 547.5", &format!("value = {value}"));
        judged(&plan(&text), "flux.refund_atom_tables").claims[0].1
    };
    for (value, expected) in [
        ("547.5", Equal),
        ("547", Rounded),
        ("548", Rounded),
        ("500", Rounded),
        ("600", Rounded),
        ("546", Differs),
        ("1000", Differs),
    ] {
        assert_eq!(verdict(value), expected, "{value}");
    }
}

#[test]
fn extreme_numbers_stay_numbers() {
    let mut text = FLUX.split("[[claims]]").next().unwrap().to_owned();
    for (from, to) in [
        ("recharges_per_day = 50_000_000", "recharges_per_day = 1_000_000_000_000_000"),
        ("row_bytes = 2_000", "row_bytes = 1"),
        ("growth_percent = 0", "growth_percent = 1000"),
    ] {
        text = text.replace(from, to);
    }
    let plan = plan(&text);
    for figure in plan.systems.iter().flat_map(|system| &system.figures) {
        assert!(
            figure.figure.amount.low.is_finite() && figure.figure.amount.high.is_finite(),
            "{}",
            figure.figure.name
        );
    }
    for store in &plan.systems[0].stores {
        assert!(
            super::growth::grow(store, 100)
                .iter()
                .all(|year| year.rows.is_finite() && year.bytes.is_finite())
        );
    }
}
