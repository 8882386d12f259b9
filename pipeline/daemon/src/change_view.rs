//! A change as JSON, as `anabranch tail` prints it. `schemas/src/events/change.schema.json` describes it.
//!
//! No information is lost: positions and shard ids are text because they outgrow the numbers of many JSON readers, and
//! bytes that are not UTF-8 are Base64. Integers are JSON integers of up to 64 bits.

use anabranch_pipeline::ports::LogEntry;
use anabranch_schemas::change::{Action, Change, Entity, Value};
use anabranch_schemas::serial;
use serde_json::{Map, Value as Json, json};

/// Conditions that a change must meet; `None` = any change does.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Physical database and table of the change.
    pub table: Option<(String, String)>,
    /// User id or uuid of the row, as text.
    pub key: Option<String>,
    /// Only changes at this position or later.
    pub from: Option<anabranch_schemas::lsn::Lsn>,
}

impl Filter {
    pub fn passes(&self, change: &Change<'_, '_>) -> bool {
        let table = self.table.as_ref().is_none_or(|(database, table)| {
            *database == change.table.database && *table == change.table.table
        });
        table
            && self.from.is_none_or(|from| change.lsn >= from)
            && self.key.as_deref().is_none_or(|key| {
                let (before, after) = change.action.images().unwrap_or_default();
                before.into_iter().chain(after).any(|row| has_key(row, key))
            })
    }
}

/// Returns whether the row's key, its first field, is this text.
fn has_key(row: &[Value<'_>], key: &str) -> bool {
    row.first().and_then(serial::text).is_some_and(|text| *text == *key.as_bytes())
}

/// Returns one change of the message `entry`. `index` counts the changes of the message from 0, and `generation` is the
/// source's owner generation: a shard that is no table of the source is an heir's.
pub fn json_of(
    (source, generation): (&str, u32),
    entry: &LogEntry,
    index: u64,
    change: &Change<'_, '_>,
) -> Json {
    let mut out = json!({
        "source": source,
        "sequence": entry.sequence,
        "index": index,
        "lsn": change.lsn.to_string(),
        "entity": change.table.entity.name(),
        "database": change.table.database,
        "table": change.table.table,
        "shard": change.table.shard.to_string(),
        "action": action_name(&change.action),
    });
    let table = change.table;
    if !table.is_every() && !table.is_table_of(source, generation) {
        out["heir"] = json!(true);
    }
    let entity = table.entity;
    match &change.action {
        Action::Insert { after } => out["after"] = row(entity, after),
        Action::Update { before, after } => {
            out["before"] = row(entity, before);
            out["after"] = row(entity, after);
        }
        Action::Delete { before } => out["before"] = row(entity, before),
        Action::Withdraw | Action::Reread | Action::Retire => {}
    }
    out
}

fn action_name(action: &Action<'_>) -> &'static str {
    match action {
        Action::Insert { .. } => "insert",
        Action::Update { .. } => "update",
        Action::Delete { .. } => "delete",
        Action::Withdraw => "withdraw",
        Action::Reread => "reread",
        Action::Retire => "retire",
    }
}

/// Returns a row by the entity's field names. Values of a newer build without a name here are called `field_7`.
fn row(entity: Entity, values: &[Value<'_>]) -> Json {
    let names = entity.field_names();
    let named = values.iter().enumerate().map(|(index, value)| {
        let name = names.get(index).map_or_else(|| format!("field_{index}"), |name| (*name).to_owned());
        (name, value_json(value))
    });
    Json::Object(named.collect::<Map<_, _>>())
}

fn value_json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Int(number) => json!(number),
        Value::UInt(number) => json!(number),
        // JSON has no NaN and no infinities; MySQL stores none either.
        Value::Double(number) => json!(number),
        Value::Bytes(bytes) => bytes_json(bytes),
        Value::Date { year, month, day } => json!({ "date": format!("{year:04}-{month:02}-{day:02}") }),
        Value::DateTime { year, month, day, hour, minute, second, microsecond } => {
            let date = format!("{year:04}-{month:02}-{day:02}");
            json!({ "datetime": format!("{date} {hour:02}:{minute:02}:{second:02}.{microsecond:06}") })
        }
        Value::Timestamp { microseconds } => json!({ "timestamp_us": microseconds }),
        Value::Time { microseconds } => json!({ "time_us": microseconds }),
    }
}

/// Returns UTF-8 as text and other bytes as Base64.
pub fn bytes_json(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": base64(bytes) }),
    }
}

/// Encodes bytes in the standard alphabet, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = (group >> (18 - 6 * place)) as usize & 63;
            out.push(if place <= chunk.len() { char::from(ALPHABET[digit]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests;
