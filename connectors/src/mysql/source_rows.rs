//! Reads rows of users by key from the source tables that claims name, on their primaries.
//!
//! A shard id names a source table, so a user can be read by key although the application spreads users by name. Values
//! are read and decoded as in refreshes and reconciliations. If no given table has a row, the tables that birthday
//! tables claim for the user are read too: the user may have been renamed since. If the configuration names a column
//! with the time of a birthday's last change, the row includes it. Users of other sources do not depend on a source
//! that does not answer (`source_rows/listed.rs`).

mod listed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_coupons::ports::{SourceRow, SourceRows};
use anabranch_pipeline::config::{Config, EntityConfig};
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_pipeline::projections::key_of;
use anabranch_pipeline::records::Cell;
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::{Action, Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::shard::{ShardId, TablePattern};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

use self::listed::{ListedSource, TableKeys};
use super::cohort::MysqlCohort;
use super::source::MysqlSource;

/// Tables in one read.
const QUERY_TABLES: usize = 100;
/// Tables of one source for which one read waits in vain, at most: a lock that lasts delays it by minutes.
const LOCKED_TABLES_MAX: usize = 2;
/// Indexes of a user's fields in [`Entity::fields`]; the configuration may leave the last two out.
const BIRTHDAY: usize = 1;
const LUNAR_BIRTHDAY: usize = 2;
const BIRTHDAY_TYPE: usize = 3;

/// The source tables of all users. Clones share the connections, the listings and the sources that do not answer.
#[derive(Clone)]
pub struct MysqlSourceRows {
    sources: Arc<[ListedSource]>,
    cohort: MysqlCohort,
    /// Index of the time of the last change: after the captured columns, which all entries of users share.
    changed_at: usize,
    /// Patterns of the tables that have users.
    patterns: Vec<TablePattern>,
}

/// A user in a source table.
type UserOfShard = (ShardId, u64);

/// Rows that were found, and tables that could not be read.
#[derive(Debug, Default)]
struct RowsRead {
    rows: BTreeMap<UserOfShard, Vec<SourceRow>>,
    unreadable: BTreeSet<ShardId>,
}

impl MysqlSourceRows {
    /// Reads all sources that capture users. `cohort` knows the claims of users whom no given table has. It does not
    /// connect yet.
    pub fn new(config: &Config, cohort: MysqlCohort) -> Self {
        let sources = config.sources.iter().filter(|source| source.entities.contains(&Entity::User));
        let entities: Vec<EntityConfig> =
            config.entities.iter().cloned().map(EntityConfig::with_changed_at_column).collect();
        let source = |source| ListedSource::new(MysqlSource::new(source, &entities, config.limits.heartbeat));
        let users = || config.entities.iter().filter(|entity| entity.entity == Entity::User);
        Self {
            sources: sources.map(source).collect(),
            cohort,
            changed_at: users().next().map_or(0, |entity| entity.columns.len()),
            patterns: users().map(|entity| entity.tables.clone()).collect(),
        }
    }

    /// Checks that users and all their columns can be read by key: tries one table of each pattern and source.
    pub async fn check(&self) -> Vec<Fault> {
        let checks = self.sources.iter().map(async |listed| {
            let (source, mut faults) = (&listed.source, Vec::new());
            match RowSource::tables(source).await {
                Ok(tables) => {
                    let of = |pattern: &TablePattern| {
                        tables.iter().find(|table| pattern.matches(&table.database, &table.table).is_some())
                    };
                    for table in self.patterns.iter().filter_map(of) {
                        let no_keys = [(table.clone(), Vec::new())];
                        faults.extend(RowSource::rows(source, &no_keys, FIRST_EPOCH).await.err());
                    }
                }
                Err(fault) => faults.push(fault),
            }
            faults
        });
        join_all(checks).await.into_iter().flatten().collect()
    }

    /// Returns each user's rows in the given tables; `None` if one of the tables could not be read.
    async fn read(&self, users: &[(u64, Vec<ShardId>)]) -> Vec<Option<Vec<SourceRow>>> {
        let mut wanted: BTreeMap<ShardId, BTreeSet<u64>> = BTreeMap::new();
        for (user, shards) in users {
            shards.iter().for_each(|shard| _ = wanted.entry(*shard).or_default().insert(*user));
        }
        let found = self.read_tables(&wanted).await;
        let of_user = |(user, shards): &(u64, Vec<ShardId>)| {
            if shards.iter().any(|shard| found.unreadable.contains(shard)) {
                return None;
            }
            let shards: BTreeSet<ShardId> = shards.iter().copied().collect();
            let rows = shards.into_iter().filter_map(|shard| found.rows.get(&(shard, *user)));
            Some(rows.flatten().copied().collect())
        };
        users.iter().map(of_user).collect()
    }

    async fn read_tables(&self, wanted: &BTreeMap<ShardId, BTreeSet<u64>>) -> RowsRead {
        self.list_for(wanted).await;
        let mut found = RowsRead::default();
        let lacks_listing = self.sources.iter().any(ListedSource::lacks_listing);
        let mut of_source: BTreeMap<usize, Vec<TableKeys>> = BTreeMap::new();
        for (shard, users) in wanted {
            let table_of = |listed: &ListedSource| listed.tables().get(shard).cloned();
            let mut tables = self.sources.iter().map(table_of).enumerate();
            let Some((number, table)) = tables.find_map(|(number, table)| Some((number, table?))) else {
                // A shard that no source lists is a dropped table, without rows. A source that cannot be listed may
                // have the table.
                if lacks_listing {
                    found.unreadable.insert(*shard);
                }
                continue;
            };
            let keys = users.iter().map(|user| Cell::UInt(*user)).collect();
            of_source.entry(number).or_default().push((table, keys));
        }
        let queries = of_source.iter().map(|(number, keys)| self.read_source(&self.sources[*number], keys));
        for part in join_all(queries).await {
            found.rows.extend(part.rows);
            found.unreadable.extend(part.unreadable);
        }
        found
    }

    /// Lists the tables again where one of these shards is unknown: all sources at once. It ends when the shards are
    /// known, so no query waits for a source that has none of the tables.
    async fn list_for(&self, wanted: &BTreeMap<ShardId, BTreeSet<u64>>) {
        let are_known = || {
            let listed: Vec<_> = self.sources.iter().map(ListedSource::tables).collect();
            wanted.keys().all(|shard| listed.iter().any(|tables| tables.contains_key(shard)))
        };
        let mut listings: FuturesUnordered<_> = self.sources.iter().map(ListedSource::list).collect();
        while !are_known() && listings.next().await.is_some() {}
    }

    /// Reads one source. A failure concerns its own table only, unless the source as a whole does not answer. A table
    /// that is missing is unread once, until its source is listed again.
    async fn read_source(&self, source: &ListedSource, keys: &[TableKeys]) -> RowsRead {
        let (mut found, mut locked) = (RowsRead::default(), 0);
        let mut queries: Vec<&[TableKeys]> = keys.chunks(QUERY_TABLES).collect();
        while let Some(query) = queries.pop() {
            let read = if locked < LOCKED_TABLES_MAX { source.rows(query).await } else { Ok(None) };
            let read = match read {
                Ok(Some(chunk)) => {
                    rows_of(&chunk.payload, self.changed_at).map(|rows| found.rows.extend(rows)).map_err(Some)
                }
                // The cause is in the log already.
                Ok(None) => Err(None),
                Err(fault) => Err(Some(fault)),
            };
            let Err(fault) = read else { continue };
            if query.len() > 1 && fault.is_some() {
                queries.extend(query.chunks(1));
                continue;
            }
            if let Some(fault) = fault {
                if fault.code() == Code::SourceTableMissing {
                    query.iter().for_each(|(table, _)| source.forget(table.shard));
                }
                locked += usize::from(fault.class() == Class::Transient);
                tracing::warn!(%fault, tables = query.len(), "source rows of users cannot be read");
            }
            found.unreadable.extend(query.iter().map(|(table, _)| table.shard));
        }
        found
    }
}

impl SourceRows for MysqlSourceRows {
    async fn read_rows(&self, users: &[(u64, Vec<ShardId>)]) -> Result<Vec<Option<Vec<SourceRow>>>, Fault> {
        let mut found = self.read(users).await;
        let without: Vec<usize> = (0..users.len())
            .filter(|place| found[*place].as_ref().is_some_and(|rows| rows.is_empty()))
            .collect();
        if without.is_empty() {
            return Ok(found);
        }
        let sought: BTreeSet<u64> = without.iter().map(|place| users[*place].0).collect();
        let claims = match self.cohort.claims(&sought).await {
            Ok(claims) => claims,
            Err(fault) => {
                tracing::warn!(%fault, "the claims of users cannot be read");
                without.into_iter().for_each(|place| found[place] = None);
                return Ok(found);
            }
        };
        let claimed = |place: &usize| {
            let (user, _) = users[*place];
            (user, claims.get(&user).into_iter().flatten().copied().collect())
        };
        let further: Vec<(u64, Vec<ShardId>)> = without.iter().map(claimed).collect();
        for (place, rows) in without.into_iter().zip(self.read(&further).await) {
            found[place] = rows;
        }
        Ok(found)
    }
}

/// Returns the rows of a chunk; none of them if one cannot be decoded, since their tables are then read one by one.
fn rows_of(payload: &[u8], changed_at: usize) -> Result<BTreeMap<UserOfShard, Vec<SourceRow>>, Fault> {
    let broken = |error| Fault::new(Code::Internal, "source rows", "they cannot be decoded").caused_by(error);
    let mut rows = BTreeMap::<_, Vec<_>>::new();
    let mut changes = codec::decode(payload).map_err(broken)?;
    while let Some(change) = changes.next().map_err(broken)? {
        let Action::Insert { after } = &change.action else { continue };
        if let Some(Cell::UInt(user)) = key_of(Entity::User, after) {
            rows.entry((change.table.shard, user)).or_default().push(source_row(after, changed_at));
        }
    }
    Ok(rows)
}

/// Decodes a row; the time of the last change is at index `changed_at`, after the captured fields.
fn source_row(row: &[Value<'_>], changed_at: usize) -> SourceRow {
    let (row, tail) = row.split_at(changed_at.min(row.len()));
    let field = |place: usize| row.get(place).unwrap_or(&Value::Null);
    let solar = MonthDay::from_value(field(BIRTHDAY)).ok();
    SourceRow {
        born: solar.and_then(|_| born(field(BIRTHDAY))),
        solar,
        lunar: LunarMonthDay::from_value(field(LUNAR_BIRTHDAY)).ok(),
        // A value that names no calendar counts as solar, as in the birthday tables.
        calendar: Calendar::from_value(field(BIRTHDAY_TYPE)).unwrap_or(Calendar::Solar),
        changed_at: tail.first().and_then(moment),
    }
}

/// Returns a moment in UTC: a date is its midnight; `None` for a value that is no moment: nothing was changed.
fn moment(value: &Value<'_>) -> Option<Timestamp> {
    let civil: DateTime = match value {
        Value::Timestamp { microseconds } => {
            return Timestamp::from_microsecond(*microseconds).ok().filter(|_| *microseconds != 0);
        }
        Value::Date { .. } => whole_date(value)?.into(),
        Value::DateTime { hour, minute, second, microsecond, .. } => {
            let nanosecond = i32::try_from(*microsecond).ok()?.checked_mul(1_000)?;
            let [hour, minute, second] = [*hour, *minute, *second].map(i8::try_from);
            let time = Time::new(hour.ok()?, minute.ok()?, second.ok()?, nanosecond).ok()?;
            whole_date(value)?.to_datetime(time)
        }
        _ => return None,
    };
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

fn whole_date(value: &Value<'_>) -> Option<Date> {
    let (Value::Date { year, month, day } | Value::DateTime { year, month, day, .. }) = value else {
        return None;
    };
    Date::new(i16::try_from(*year).ok()?, i8::try_from(*month).ok()?, i8::try_from(*day).ok()?).ok()
}

/// Returns the whole date of a column whose month and day form a birthday.
fn born(value: &Value<'_>) -> Option<Date> {
    match value {
        Value::Date { .. } | Value::DateTime { .. } => whole_date(value),
        Value::Bytes(text) => std::str::from_utf8(text.trim_ascii().get(..10)?).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::TableIdentity;
    use anabranch_schemas::codec::Encoder;
    use anabranch_schemas::lsn::Lsn;

    use super::*;

    /// The tables of a chunk that cannot be decoded to its end are read again one by one.
    #[test]
    fn a_chunk_that_cannot_be_decoded_to_its_end_has_no_row() {
        let table = |number, name: &'static str| TableIdentity {
            entity: Entity::User,
            shard: ShardId::from_u64(number).unwrap(),
            database: "users".into(),
            table: name.into(),
        };
        let mut encoder = Encoder::default();
        encoder.insert(Lsn::MAX, &table(1, "a"), &[Value::UInt(7), Value::Null]);
        encoder.insert(Lsn::MAX, &table(2, "b"), &[Value::UInt(7), Value::Null]);
        let whole = encoder.finish();
        let found = rows_of(&whole, 2).unwrap();
        let rows: Vec<_> =
            found.iter().map(|((shard, user), rows)| (shard.as_u64(), *user, rows.len())).collect();
        assert_eq!(rows, [(1, 7, 1), (2, 7, 1)]);

        // The last row lacks its end, and the checksum is right.
        let mut broken = whole[..whole.len() - 5].to_vec();
        broken.extend_from_slice(&crc32fast::hash(&broken).to_le_bytes());
        assert_eq!(rows_of(&broken, 2).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_row_says_its_birthday_and_the_year_where_it_has_one() {
        let row = |birthday| source_row(&[Value::UInt(7), birthday], 2);
        let text = |text: &'static str| Value::Bytes(text.as_bytes().into());
        let expected = (Some(jiff::civil::date(2000, 2, 29)), MonthDay::new(2, 29));
        for birthday in [
            Value::Date { year: 2000, month: 2, day: 29 },
            text("2000-02-29"),
            text("2000-02-29 23:59:59"),
            text(" 2000-02-29T00:00"),
        ] {
            let row = row(birthday);
            assert_eq!((row.born, row.solar), expected);
        }
        for birthday in [
            Value::Null,
            text(""),
            text("1999-02-29"),
            text("02-29"),
            Value::Date { year: 0, month: 1, day: 1 },
        ] {
            let row = row(birthday);
            assert_eq!((row.born, row.solar), (None, None));
        }
        let of_type = |name| source_row(&[Value::UInt(7), Value::Null, text("08-30"), text(name)], 4);
        let lunar = of_type("lunar");
        assert_eq!((lunar.lunar, lunar.calendar), (LunarMonthDay::new(8, 30), Calendar::Lunar));
        assert_eq!(of_type("other").calendar, Calendar::Solar);
    }

    #[test]
    fn the_time_of_the_last_change_stands_behind_the_fields_and_is_none_where_it_is_no_moment() {
        let at = |value: Value<'static>| {
            let row = source_row(&[Value::UInt(7), Value::Null, value], 2);
            assert_eq!((row.lunar, row.calendar), (None, Calendar::Solar));
            row.changed_at.map(|at| at.to_string())
        };
        let date =
            Value::DateTime { year: 2027, month: 2, day: 28, hour: 9, minute: 8, second: 7, microsecond: 5 };
        assert_eq!(at(date).as_deref(), Some("2027-02-28T09:08:07.000005Z"));
        assert_eq!(
            at(Value::Date { year: 2027, month: 2, day: 28 }).as_deref(),
            Some("2027-02-28T00:00:00Z")
        );
        assert_eq!(at(Value::Timestamp { microseconds: 1_000_000 }).as_deref(), Some("1970-01-01T00:00:01Z"));
        assert_eq!(at(Value::Date { year: 0, month: 0, day: 0 }), None);
        assert_eq!(at(Value::Null), None);
        assert_eq!(source_row(&[Value::UInt(7), Value::Null], 2).changed_at, None);
    }
}
