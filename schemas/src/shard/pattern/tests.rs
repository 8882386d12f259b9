//! Table patterns: what they match, name and refuse.

use proptest::prelude::*;

use super::*;

const FLUX: &str = "flux_00_{db}.atom_{partition:02}_{month:02}";
const BY_YEAR: &str = "flux_00_{db}.atom_{partition:02}_{year}_{month:02}";

fn numbers(database: u32, table: u32) -> TableNumbers {
    TableNumbers { database, table, ..TableNumbers::default() }
}

#[test]
fn a_pattern_names_its_tables_and_no_others() {
    let pattern = TablePattern::parse("user_{db:02}.user_{table:03}").unwrap();
    assert_eq!(pattern.matches("user_07", "user_042"), Some(numbers(7, 42)));
    assert_eq!(pattern.matches("user_107", "user_1042"), Some(numbers(107, 1042)));
    for (database, table) in [
        ("user_7", "user_042"),
        ("user_07", "user_42"),
        ("user_007", "user_042"),
        ("user_07x", "user_042"),
        ("user_+7", "user_042"),
    ] {
        assert_eq!(pattern.matches(database, table), None, "{database}.{table}");
    }
    assert_eq!((pattern.database_like(), pattern.table_like()), ("user\\_%".into(), "user\\_%".into()));
    assert!(pattern.matches_database("user_07") && !pattern.matches_database("user_7"));
}

#[test]
fn likely_names_are_all_that_a_pattern_matches_with_its_digits() {
    for (pattern, expected, one) in [
        ("user_{db:02}.user_{table:03}", 100_000, ("user_07", "user_042")),
        ("inventory_{db}.serial_code_{table:02}", 10_000, ("inventory_12", "serial_code_03")),
        (FLUX, 130_000, ("flux_00_3", "atom_05_99")),
        ("a.b", 1, ("a", "b")),
    ] {
        let (parsed, mut count, mut has_one) = (TablePattern::parse(pattern).unwrap(), 0, false);
        let is_whole = parsed.visit_likely_names(1_000_000, &mut |database, table| {
            count += 1;
            has_one |= (database, table) == one;
            assert!(parsed.matches(database, table).is_some(), "{database}.{table}");
        });
        assert!(is_whole && has_one && count == expected, "{pattern}: {count}");
    }
    let many = TablePattern::parse("user_{db:010}.user_{table:010}").unwrap();
    assert!(!many.visit_likely_names(1_000_000, &mut |database, _| panic!("{database}")));
    assert!(!many.visit_likely_tables("user_0000000007", 1_000_000, &mut |table| panic!("{table}")));
}

#[test]
fn likely_tables_are_the_likely_names_of_one_database() {
    for (pattern, database, expected) in [
        (FLUX, "flux_00_3", 1_300),
        (BY_YEAR, "flux_00_3", 13_000),
        ("user_{db:02}.user_{table:03}", "user_07", 1_000),
        ("flux_{db:02}.atom_{db:02}_{month:02}", "flux_07", 13),
        (FLUX, "users", 0),
    ] {
        let (parsed, mut tables) = (TablePattern::parse(pattern).unwrap(), Vec::new());
        assert!(parsed.visit_likely_tables(database, 13_000, &mut |table| tables.push(table.to_owned())));
        let is_whole = tables.iter().all(|table| parsed.matches(database, table).is_some());
        assert!(is_whole && tables.len() == expected, "{pattern}: {}", tables.len());
    }
}

#[test]
fn a_table_of_documents_has_a_partition_and_a_month_that_may_disagree_with_its_database() {
    let pattern = TablePattern::parse(FLUX).unwrap();
    let found = |database: &str, table: &str| {
        pattern.matches(database, table).map(|found| (found.database, found.partition, found.month))
    };
    assert_eq!(found("flux_00_0", "atom_05_01"), Some((0, Some(5), Some(1))));
    assert_eq!(found("flux_00_9", "atom_99_99"), Some((9, Some(99), Some(99))));
    assert_eq!(found("flux_00_3", "atom_05_11"), Some((3, Some(5), Some(11))));
    for table in ["atom_05_12", "atom_05_98", "atom_5_01", "atom_05_1", "atom_05", "atom_05_01_old"] {
        assert_eq!(found("flux_00_0", table), None, "{table}");
    }
    assert_eq!(
        (pattern.database_like(), pattern.table_like()),
        ("flux\\_00\\_%".into(), "atom\\_%\\_%".into())
    );
}

#[test]
fn a_placeholder_in_both_names_has_one_number() {
    let pattern = TablePattern::parse("flux_{month:02}.atom_{partition}_{month:02}").unwrap();
    assert!(pattern.matches("flux_03", "atom_7_03").is_some());
    assert_eq!(pattern.matches("flux_03", "atom_7_04"), None);
    assert!(pattern.matches_database("flux_04"));
}

#[test]
fn a_number_is_read_whole_and_within_its_range() {
    let pattern = TablePattern::parse("flux_{db}.t_{month}_{partition}").unwrap();
    let months = |table: &str| pattern.matches("flux_0", table).and_then(|found| found.month);
    for month in [0, 9, 11, 99] {
        assert_eq!(months(&format!("t_{month}_5")), Some(month));
    }
    for table in ["t_00_5", "t_12_5", "t_98_5", "t_100_5", "t_011_5", "t__5", "t_1_4294967296"] {
        assert_eq!(pattern.matches("flux_0", table), None, "{table}");
    }
    let last = pattern.matches("flux_0", "t_1_4294967295").and_then(|found| found.partition);
    assert_eq!(last, Some(u32::MAX));
    assert!(!pattern.matches_database("flux_4294967296"));
    let (database, table) = TablePattern::parse(FLUX).unwrap().names(3, 17);
    assert_eq!((database.as_str(), table.as_str()), ("flux_00_3", "atom_17_00"));
}

#[test]
fn a_malformed_pattern_says_why() {
    for (text, reason) in [
        ("user", "no dot"),
        (".user", "an empty name"),
        ("user_{db.t", "without a `}`"),
        ("user}.t", "without a `{`"),
        ("user_{table}.t", "{table} before the dot"),
        ("user_{day}.t", "a placeholder other than"),
        ("u_{db:99}.t", "a width"),
        ("t.a_{month:0}", "a width"),
        ("t.a_{}", "a placeholder other than"),
        ("t.", "an empty name"),
        ("u_{db}{partition}.t", "without text between"),
    ] {
        let error = TablePattern::parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn overlapping_patterns_are_seen() {
    let overlap =
        |a: &str, b: &str| TablePattern::parse(a).unwrap().overlaps(&TablePattern::parse(b).unwrap());
    assert!(overlap("user_{db:02}.user_{table:03}", "user_{db:02}.user_{table:03}"));
    assert!(overlap("user_{db:02}.user_{table:03}", "user_03.user_004"));
    assert!(overlap("user_{db}.t", "user_1{db}.t"));
    assert!(overlap("user_{db}1.t", "user_{db}01.t"));
    assert!(!overlap("user_{db}1.t", "user_{db}2.t"));
    assert!(!overlap("user_{db:02}.user_{table:03}", "user_{db:02}.account_{table:03}"));
    assert!(!overlap("user_a.t", "user_b.t"));
    assert!(overlap(FLUX, "flux_00_{db}.atom_{table}_99"));
    assert!(!overlap(FLUX, "flux_00_{db}.composite_{partition:02}_{month:02}"));
    assert!(!overlap(FLUX, "flux_00_{db}.atom_{table}"));
    assert!(!overlap(FLUX, BY_YEAR), "both strategies are captured side by side");
    assert!(overlap(BY_YEAR, "flux_00_{db}.atom_05_7_{month:02}"));
}

#[test]
fn a_table_by_year_has_one_digit_of_a_year_beside_partition_and_month() {
    let pattern = TablePattern::parse(BY_YEAR).unwrap();
    let found = |table: &str| {
        let found = pattern.matches("flux_00_0", table)?;
        Some((found.partition, found.year, found.month))
    };
    assert_eq!(found("atom_05_7_00"), Some((Some(5), Some(7), Some(0))));
    assert_eq!(found("atom_05_0_99"), Some((Some(5), Some(0), Some(99))));
    for table in ["atom_05_00", "atom_05_10_00", "atom_05_07_00", "atom_05_7_12", "atom_05_7", "atom_05__00"]
    {
        assert_eq!(found(table), None, "{table}");
    }
    assert_eq!(TablePattern::parse(FLUX).unwrap().matches("flux_00_0", "atom_05_00").unwrap().year, None);
}

#[test]
fn a_pattern_reaches_the_tables_that_the_digits_of_identifiers_name() {
    for (pattern, expected) in [
        (FLUX, 1_300),
        (BY_YEAR, 13_000),
        ("flux_00_{db}.atom_{partition:02}_{year}", 1_000),
        ("flux_{db}.atom_{month:02}", 130),
        ("flux.atom", 1),
    ] {
        let pattern = TablePattern::parse(pattern).unwrap();
        assert_eq!(pattern.tables_of_documents(), expected, "{pattern}");
        assert_eq!(pattern.has_year(), pattern.to_string().contains("{year}"));
    }
}

proptest! {
    #[test]
    fn names_and_numbers_round_trip(db in 0..100_000u32, table in 0..100_000u32) {
        let pattern = TablePattern::parse("user_{db:02}.user_{table:03}_x").unwrap();
        let (database, name) = pattern.names(db, table);
        prop_assert_eq!(pattern.matches(&database, &name), Some(numbers(db, table)));
    }
}
