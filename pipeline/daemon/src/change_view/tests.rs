//! Tests of changes as JSON.

use std::borrow::Cow;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::*;

const SCHEMA: &str = include_str!("../../../../schemas/src/events/change.schema.json");

fn table() -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("a", "user_00", "user_001", 0),
        database: "user_00".into(),
        table: "user_001".into(),
    }
}

fn change<'t>(table: &'t TableIdentity<'static>, action: Action<'static>) -> Change<'t, 'static> {
    Change { lsn: Lsn::new(1, 42, 8192).unwrap(), table, action }
}

fn entry() -> LogEntry {
    LogEntry { sequence: 7, id: "x-1".to_owned(), envelope: Default::default() }
}

fn bytes(bytes: &'static [u8]) -> Value<'static> {
    Value::Bytes(Cow::Borrowed(bytes))
}

/// Returns every kind of value and every action.
fn samples() -> Vec<Action<'static>> {
    let date = Value::Date { year: 2000, month: 2, day: 30 };
    let datetime =
        Value::DateTime { year: 0, month: 0, day: 0, hour: 1, minute: 2, second: 3, microsecond: 4 };
    vec![
        Action::Insert { after: vec![Value::UInt(u64::MAX), date] },
        Action::Update { before: vec![Value::Int(-1), Value::Null], after: vec![bytes(b"7"), datetime] },
        Action::Delete { before: vec![Value::Double(1.5), bytes(b"\xff\0")] },
        Action::Insert {
            after: vec![Value::Timestamp { microseconds: 5 }, Value::Time { microseconds: -5 }],
        },
        Action::Insert { after: vec![Value::Null, Value::Null, Value::Int(3)] },
        Action::Withdraw,
        Action::Reread,
        Action::Retire,
    ]
}

#[test]
fn a_change_reads_as_documented() {
    let table = table();
    let action = Action::Update {
        before: vec![Value::UInt(7), Value::Date { year: 1990, month: 2, day: 30 }],
        after: vec![Value::UInt(7), bytes(b"\xff")],
    };
    assert_eq!(
        json_of(("a", 0), &entry(), 3, &change(&table, action)),
        json!({
            "source": "a", "sequence": 7, "index": 3, "lsn": "1:42:8192", "entity": "user",
            "database": "user_00", "table": "user_001", "shard": table.shard.to_string(), "action": "update",
            "before": { "user_id": 7, "birthday": { "date": "1990-02-30" } },
            "after": { "user_id": 7, "birthday": { "base64": "/w==" } },
        })
    );
}

#[test]
fn every_change_is_valid_by_the_schema() {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let table = table();
    for action in samples() {
        let value = json_of(("a", 0), &entry(), 0, &change(&table, action));
        validate(&schema, &schema, &value).unwrap_or_else(|problem| panic!("{problem}: {value}"));
    }
}

/// A reader tells the heir that is retired from a table that left.
#[test]
fn records_of_an_heir_say_so() {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let of = |table: &TableIdentity<'static>, generation| {
        let value = json_of(("a", generation), &entry(), 0, &change(table, Action::Retire));
        validate(&schema, &schema, &value).unwrap_or_else(|problem| panic!("{problem}: {value}"));
        value.get("heir").cloned()
    };
    let heir = table().heir("a", 0, 1);
    assert_eq!((of(&table(), 0), of(&heir, 0)), (None, Some(json!(true))));
    assert_eq!(of(&TableIdentity::every(Entity::User), 0), None);
    assert_eq!(of(&table(), 1), Some(json!(true)), "a table of another generation looks like an heir");
}

#[test]
fn the_schema_refuses_what_is_not_a_change() {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let table = table();
    let good = json_of(("a", 0), &entry(), 0, &change(&table, samples().remove(0)));
    for (pointer, wrong) in [
        ("/lsn", json!(42)),
        ("/lsn", json!("1:2")),
        ("/action", json!("truncate")),
        ("/after/birthday", json!({ "date": "x" })),
        ("/after/birthday", json!({ "blob": "x" })),
        ("/sequence", json!(0)),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = wrong;
        validate(&schema, &schema, &bad).expect_err(pointer);
    }
    let mut more = good.clone();
    more["colour"] = json!(1);
    validate(&schema, &schema, &more).expect_err("an unknown field");
    let mut fewer = good;
    fewer.as_object_mut().unwrap().remove("shard");
    validate(&schema, &schema, &fewer).expect_err("a missing field");
}

#[test]
fn base64_is_as_in_rfc_4648() {
    for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
        assert_eq!(base64(plain.as_bytes()), coded);
    }
}

#[test]
fn filters_select_by_table_key_and_position() {
    let table = table();
    let rename = change(&table, Action::Update { before: vec![Value::Int(7)], after: vec![bytes(b"8")] });
    let key = |key: &str| Filter { key: Some(key.to_owned()), ..Filter::default() };
    assert!(key("7").passes(&rename) && key("8").passes(&rename) && !key("9").passes(&rename));
    assert!(!key("7").passes(&change(&table, Action::Withdraw)));
    let named =
        |name: &str| Filter { table: Some(("user_00".to_owned(), name.to_owned())), ..Filter::default() };
    assert!(named("user_001").passes(&rename) && !named("user_002").passes(&rename));
    let from = |position| Filter { from: Some(Lsn::new(1, 42, position).unwrap()), ..Filter::default() };
    assert!(from(8192).passes(&rename) && !from(8208).passes(&rename));
}

/// Validates by the part of JSON Schema that this schema uses; an unknown keyword fails the test.
fn validate(root: &Json, schema: &Json, value: &Json) -> Result<(), String> {
    let fail = |why: &str| Err(format!("{why} at {value}"));
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "properties" => {}
            "$ref" => {
                let target =
                    root.pointer(rule.as_str().unwrap().trim_start_matches('#')).expect("a known reference");
                validate(root, target, value)?;
            }
            "type" if !is_type(rule.as_str().unwrap(), value) => return fail(&format!("not of type {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => return fail("not in the enum"),
            "minimum" if value.as_i64().unwrap_or(i64::MAX) < rule.as_i64().unwrap() => {
                return fail("too small");
            }
            "pattern" if !value.as_str().is_some_and(|text| matches(rule.as_str().unwrap(), text)) => {
                return fail("does not match");
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        return fail(&format!("without {name}"));
                    }
                }
            }
            "additionalProperties" => {
                let named = schema.get("properties");
                for (name, inner) in value.as_object().expect("the type was checked") {
                    match (named.and_then(|named| named.get(name)), rule) {
                        (Some(schema), _) => validate(root, schema, inner)?,
                        (None, Json::Bool(false)) => return fail(&format!("unknown property {name}")),
                        (None, schema) => validate(root, schema, inner)?,
                    }
                }
            }
            "anyOf" if !rule.as_array().unwrap().iter().any(|one| validate(root, one, value).is_ok()) => {
                return fail("none of the alternatives");
            }
            "type" | "enum" | "minimum" | "pattern" | "anyOf" => {}
            unknown => panic!("the schema uses {unknown}, which this test does not know"),
        }
    }
    Ok(())
}

fn is_type(name: &str, value: &Json) -> bool {
    match name {
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}

/// Matches the patterns of this schema: digits in groups between separators.
fn matches(pattern: &str, text: &str) -> bool {
    let digits = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts = |separator: char| text.split(separator).collect::<Vec<_>>();
    match pattern {
        "^[0-9]+$" => digits(text, 1..=usize::MAX),
        "^[0-9]+:[0-9]+:[0-9]+$" => {
            parts(':').len() == 3 && parts(':').iter().all(|part| digits(part, 1..=usize::MAX))
        }
        "^[0-9]{4,5}-[0-9]{2}-[0-9]{2}$" => match parts('-').as_slice() {
            [year, month, day] => digits(year, 4..=5) && digits(month, 2..=2) && digits(day, 2..=2),
            _ => false,
        },
        other => panic!("the schema uses the pattern {other}, which this test does not know"),
    }
}
