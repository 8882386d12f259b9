//! Tests of the placement audit: by key, of payment documents, and of the book of keys.

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Level, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::Kind;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread, TablePattern};

use super::*;
use crate::config::{EntityConfig, Removal, UnseenChanges};
use crate::records::{FluxPlaces, FluxSource, FluxTables};

fn table(database: u32, number: u32) -> TableIdentity<'static> {
    let (database, table) = (format!("user_{database}"), format!("user_{number}"));
    let shard = ShardId::of("a", &database, &table, 0);
    TableIdentity { entity: Entity::User, shard, database: database.into(), table: table.into() }
}

fn audit(spread: Spread) -> PlacementAudit {
    audit_by(ShardingRule { hash: NameHash::Crc32, spread, databases: 10, tables: 100 })
}

fn audit_by(rule: ShardingRule) -> PlacementAudit {
    let config = EntityConfig {
        entity: Entity::User,
        tables: TablePattern::parse("user_{db}.user_{table}").unwrap(),
        columns: vec!["user_id".into(), "birthday".into()],
        level: None,
        rule: Some(rule),
        sharding_column: Some("user_name".into()),
        changed_at_column: None,
        unseen_changes: UnseenChanges::default(),
        removal: Removal::default(),
        retention_marker: None,
    };
    let places = Arc::new(FluxPlaces::new(SYSTEM, &[], Vec::new(), Vec::new()));
    PlacementAudit::new(Rules::of(Entity::User, &[config], &places), 7)
}

fn put(audit: &PlacementAudit, table: &TableIdentity<'static>, user: u64, name: &str) {
    let mut table_audit = audit.table_audit(table);
    table_audit.row(&[Value::UInt(user), Value::Null, Value::Bytes(name.as_bytes().to_vec().into())]);
    table_audit.hand_over();
}

#[test]
fn a_row_is_compared_with_the_place_that_its_rule_has_for_it() {
    let audit = audit(Spread::Spread);
    // CRC32('alice') = 663665735: database 5, table 73.
    put(&audit, &table(5, 73), 1, "alice");
    put(&audit, &table(5, 74), 2, "alice");
    let found = audit.placement();
    assert_eq!((found.rows, found.undecided, found.share_of_keys), (2, 0, 1.0));
    assert_eq!(found.misplaced, BTreeMap::from([("user_5.user_74".to_owned(), 1)]));
    assert!(audit.doubles().is_empty() && found.unreachable.is_empty());
}

#[test]
fn a_rule_that_grew_from_five_to_ten_databases_names_exactly_the_rows_that_did_not_move() {
    let rule =
        |databases| ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases, tables: 100 };
    let (before, after) = (rule(5), rule(10));
    let names: Vec<String> = (0..200).map(|user| format!("user {user}")).collect();
    let of_rule = |rule: ShardingRule, name: &str| rule.locate(name).unwrap();
    let stay = names.iter().filter(|name| of_rule(before, name) == of_rule(after, name)).count() as u64;
    for (layout, rule, misplaced) in [(before, before, 0), (before, after, 200 - stay), (after, after, 0)] {
        let audit = audit_by(rule);
        for (name, user) in names.iter().zip(1..) {
            let (database, number) = of_rule(layout, name);
            put(&audit, &table(database, number), user, name);
        }
        let found = audit.placement();
        let named: u64 = found.misplaced.values().sum();
        assert_eq!((found.rows, found.undecided, named), (200, 0, misplaced), "{layout:?} {rule:?}");
    }
    assert!(stay < 200, "{stay}");
}

#[test]
fn a_key_in_two_tables_is_seen_and_a_rule_that_reaches_too_few_is_told() {
    let audit = audit(Spread::Literal);
    put(&audit, &table(5, 73), 1, "alice");
    put(&audit, &table(5, 73), 1, "alice");
    assert!(audit.doubles().is_empty(), "twice in one table is the table's matter");
    put(&audit, &table(6, 1), 1, "bob");
    let key = SourceKey { shard: table(6, 1).shard, key: Cell::UInt(1) };
    assert_eq!(audit.doubles(), [(key, table(5, 73).shard)]);
    assert_eq!(
        audit.placement().unreachable,
        ["the rule of user_{db}.user_{table} reaches 100 of 1000 tables"]
    );
}

#[test]
fn a_full_book_looks_for_a_share_of_the_keys_and_says_so() {
    let audit = audit(Spread::Spread);
    let place = table(5, 73);
    let mut table_audit = audit.table_audit(&place);
    for user in 0..2 * BOOK_KEYS as u64 {
        table_audit.row(&[Value::UInt(user), Value::Null, Value::Null]);
    }
    table_audit.hand_over();
    let found = audit.placement();
    assert_eq!(found.undecided, 2 * BOOK_KEYS as u64);
    assert!((0.2..=0.5).contains(&found.share_of_keys), "{}", found.share_of_keys);
}

/// An audit of atoms and composites in Singapore's main and fail-over database.
fn flux_audit() -> PlacementAudit {
    let tables = |name: &str, level| FluxTables {
        pattern: TablePattern::parse(&format!("flux_00_{{db}}.{name}_{{partition:02}}_{{month:02}}"))
            .unwrap(),
        level: Some(level),
    };
    let source = |name: &str, side| FluxSource {
        name: name.to_owned(),
        generation: 0,
        site: Some((Region::Singapore, side)),
    };
    let places = FluxPlaces::new(
        SYSTEM,
        &[(3, Kind::Refund), (3, Kind::RefundClearing)],
        vec![tables("atom", Level::Atom), tables("composite", Level::Composite)],
        vec![source("main", Side::Main), source("fail-over", Side::FailOver)],
    );
    PlacementAudit::new(Rules::of(Entity::Flux, &[], &Arc::new(places)), 7)
}

fn flux_table(source: &str, database: &str, table: &str) -> TableIdentity<'static> {
    let shard = ShardId::of(source, database, table, 0);
    let (database, table) = (database.to_owned().into(), table.to_owned().into());
    TableIdentity { entity: Entity::Flux, shard, database, table }
}

fn put_document(audit: &PlacementAudit, table: &TableIdentity<'static>, rows: &[(&str, Option<&str>)]) {
    let mut table_audit = audit.table_audit(table);
    for (id, parent) in rows {
        let text = |text: &str| Value::Bytes(text.as_bytes().to_vec().into());
        table_audit.row(&[text(id), parent.map_or(Value::Null, text)]);
    }
    table_audit.hand_over();
}

/// An atom of a refund in Singapore's main database, partition 05, and the refund.
const ATOM: &str = "2016060611031103099052400029904";
const REFUND: &str = "2016060611031003099052400029903";

#[test]
fn a_payment_document_is_compared_with_its_table_its_source_and_its_parent() {
    let audit = flux_audit();
    let (main, elsewhere) =
        (flux_table("main", "flux_00_0", "atom_05_99"), flux_table("fail-over", "flux_00_0", "atom_05_00"));
    put_document(&audit, &main, &[(ATOM, Some(REFUND)), ("31", None), (ATOM, None)]);
    let found = audit.placement();
    assert_eq!((found.rows, found.undecided, found.misplaced.len()), (3, 1, 0));
    assert!(found.odd_documents.is_empty() && found.odd.is_empty() && found.not_audited.is_empty());
    assert!(!serde_json::to_string(&found).unwrap().contains("odd"), "older reports have no such fields");

    let second = "2016060611031103099052400029905";
    put_document(&audit, &elsewhere, &[(ATOM, Some(REFUND)), (second, Some("none"))]);
    put_document(&audit, &flux_table("main", "flux_00_0", "composite_05_99"), &[(REFUND, Some(REFUND))]);
    let found = audit.placement();
    let elsewhere = "flux_00_0.atom_05_00";
    assert_eq!(
        found.misplaced,
        BTreeMap::from([(elsewhere.to_owned(), 2), ("flux_00_0.composite_05_99".to_owned(), 1)])
    );
    let counts = [("flux_parent_malformed", 1), ("parent_unfit", 1), ("source_side", 2), ("table_month", 2)];
    assert_eq!(found.odd_documents, BTreeMap::from(counts.map(|(reason, count)| (reason.to_owned(), count))));
    let document = |at: usize| {
        let OddDocument { table, id, parent, .. } = &found.odd[at];
        (table.as_str(), id.as_str(), parent.as_deref())
    };
    assert_eq!(document(0), (elsewhere, ATOM, Some(REFUND)));
    assert_eq!(document(1), (elsewhere, second, None));
    assert_eq!(document(2), ("flux_00_0.composite_05_99", REFUND, Some(REFUND)));
    assert_eq!(
        found.odd[0].what,
        "digits 18 to 19 (month) are 99 (no month); expected by its table: 00, and digit 17 (main or fail-over) is 0 \
         (main); expected by its source: 1 (fail-over)"
    );
    let what = &found.odd[1].what;
    assert!(
        what.contains(", and its parent is no identifier: character 1, in digits 1 to 8 (date)"),
        "{what}"
    );
    // The atom is in two tables of two sources.
    assert_eq!(audit.doubles().len(), 1);
    let read: Placement = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
    assert_eq!(read, found);
}

#[test]
fn an_identifier_of_another_system_has_no_place_and_a_parent_of_one_is_odd() {
    let audit = flux_audit();
    let of_another_system = |id: &str| id.replacen("11031", "11032", 1);
    let (id, parent) = (of_another_system(ATOM), of_another_system(REFUND));
    let main = flux_table("main", "flux_00_0", "atom_05_99");
    put_document(&audit, &main, &[(id.as_str(), Some(REFUND)), (ATOM, Some(parent.as_str()))]);
    let found = audit.placement();
    assert_eq!((found.rows, found.undecided, found.odd.len()), (2, 1, 1));
    assert_eq!(found.malformed.len(), 1);
    assert!(found.malformed[0].what.contains("the identifier belongs to another system"), "{found:?}");
    assert_eq!(found.odd_documents, BTreeMap::from([("flux_parent_malformed".to_owned(), 1)]));
    let OddDocument { id, parent, what, .. } = &found.odd[0];
    assert_eq!((id.as_str(), parent.as_deref()), (ATOM, None));
    assert!(what.contains("the identifier belongs to another system"), "{what}");
}

#[test]
fn documents_whose_business_code_has_no_kind_are_counted_and_named_as_not_audited() {
    let audit = flux_audit();
    let (main, elsewhere) =
        (flux_table("main", "flux_00_0", "atom_05_99"), flux_table("main", "flux_00_0", "atom_05_00"));
    put_document(&audit, &main, &[(ATOM, Some(REFUND))]);
    let found = audit.placement();
    assert_eq!((found.without_kind, found.not_audited.len()), (0, 0));
    assert!(!serde_json::to_string(&found).unwrap().contains("without_kind"));

    // Its parent has another user partition, but no kind says that they are equal.
    let of_code_04 = ATOM.replacen("0311030", "0311040", 1);
    let next_user = REFUND.replacen("990524", "990624", 1);
    let row = (of_code_04.as_str(), Some(next_user.as_str()));
    put_document(&audit, &main, &[row]);
    put_document(&audit, &elsewhere, &[row]);
    for _ in 0..2 {
        let found = audit.placement();
        assert_eq!((found.rows, found.without_kind, found.odd.len()), (3, 2, 1));
        assert_eq!(found.odd_documents, BTreeMap::from([("table_month".to_owned(), 1)]));
        assert_eq!(
            found.not_audited,
            [
                "flux.kinds has no kind for the business code and level of 2 payment documents: they are compared \
                 neither with the rule of a kind nor with their parent"
            ]
        );
        let read: Placement = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(read, found);
    }
}

#[test]
fn odd_documents_are_counted_all_and_the_first_are_listed_whatever_was_read_first() {
    let audited = |numbers: &[u32]| {
        let audit = flux_audit();
        for number in numbers {
            let table = flux_table("main", "flux_00_1", &format!("atom_1{number}_99"));
            let ids: Vec<String> = (0..80).map(|row| format!("{}{number}{row:02}", &ATOM[..28])).collect();
            let rows: Vec<(&str, Option<&str>)> = ids.iter().map(|id| (id.as_str(), None)).collect();
            put_document(&audit, &table, &rows);
        }
        audit.placement()
    };
    let found = audited(&[3, 1, 2]);
    let counts = ["database", "table_partition"].map(|reason| (reason.to_owned(), 240));
    assert_eq!(found.odd_documents, BTreeMap::from(counts));
    assert_eq!(found.odd.len(), ODD_DOCUMENTS_MAX);
    let tables = [0, 99].map(|at: usize| found.odd[at].table.as_str());
    assert_eq!(tables, ["flux_00_1.atom_11_99", "flux_00_1.atom_12_99"]);
    assert_eq!(found, audited(&[1, 2, 3]));
}

#[test]
fn documents_with_a_malformed_identifier_are_listed_as_visible_text_of_bounded_length() {
    let audit = flux_audit();
    let (main, other) =
        (flux_table("main", "flux_00_0", "atom_05_99"), flux_table("main", "flux_00_0", "atom_05_00"));
    let long = "7".repeat(MALFORMED_BYTES_MAX + 1);
    let whole = "8".repeat(MALFORMED_BYTES_MAX);
    put_document(
        &audit,
        &main,
        &[("31", Some(REFUND)), ("a\n\"é", None), (long.as_str(), None), (ATOM, None)],
    );
    put_document(&audit, &other, &[(whole.as_str(), None)]);
    let mut not_text = audit.table_audit(&other);
    not_text.row(&[Value::Bytes(vec![0xff, 0].into()), Value::Null]);
    not_text.row(&[Value::UInt(42), Value::Null]);
    not_text.hand_over();
    let found = audit.placement();
    assert_eq!((found.rows, found.undecided, found.misplaced.len(), found.odd.len()), (7, 6, 0, 0));
    let ids: Vec<(&str, &str)> =
        found.malformed.iter().map(|document| (document.table.as_str(), document.id.as_str())).collect();
    let (other, main) = ("flux_00_0.atom_05_00", "flux_00_0.atom_05_99");
    let cut = format!("{}... (65 bytes)", "7".repeat(MALFORMED_BYTES_MAX));
    assert_eq!(
        ids,
        [
            (other, "42"),
            (other, whole.as_str()),
            (other, "\\xff\\x00"),
            (main, "31"),
            (main, cut.as_str()),
            (main, "a\\n\\\"\\xc3\\xa9"),
        ]
    );
    assert_eq!(found.malformed[3].what, "it has 2 digits; expected: 31");
    let read: Placement = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
    assert_eq!(read, found);
}

#[test]
fn malformed_identifiers_are_counted_all_and_the_first_are_listed_whatever_was_read_first() {
    let audited = |numbers: &[u32]| {
        let audit = flux_audit();
        for number in numbers {
            let table = flux_table("main", "flux_00_1", &format!("atom_1{number}_99"));
            let ids: Vec<String> = (0..80).map(|row| format!("none {row:02}")).collect();
            let rows: Vec<(&str, Option<&str>)> = ids.iter().map(|id| (id.as_str(), None)).collect();
            put_document(&audit, &table, &rows);
        }
        audit.placement()
    };
    let found = audited(&[3, 1, 2]);
    assert_eq!((found.undecided, found.malformed.len()), (240, MALFORMED_MAX));
    let listed =
        [0, 99].map(|at: usize| (found.malformed[at].table.as_str(), found.malformed[at].id.as_str()));
    assert_eq!(listed, [("flux_00_1.atom_11_99", "none 00"), ("flux_00_1.atom_12_99", "none 19")]);
    assert_eq!(found, audited(&[1, 2, 3]));
}

#[test]
fn a_chunk_that_is_read_again_counts_once() {
    let audit = flux_audit();
    let table = flux_table("main", "flux_00_0", "atom_05_00");
    let mut table_audit = audit.table_audit(&table);
    let row = [Value::Bytes(ATOM.as_bytes().into()), Value::Null];
    let malformed = [Value::Bytes(b"31".as_slice().into()), Value::Null];
    for _ in 0..2 {
        table_audit.forget();
        table_audit.row(&row);
        table_audit.row(&malformed);
    }
    table_audit.hand_over();
    let found = audit.placement();
    assert_eq!((found.rows, found.odd.len(), found.odd_documents["table_month"]), (2, 1, 1));
    assert_eq!((found.undecided, found.malformed.len()), (1, 1));
}
