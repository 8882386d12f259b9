//! Source tables that left by a retention rule: a lane stores them beside its progress, readers tell their derived rows
//! from others, and the rows go once they have outlived their table.
//!
//! A retired generation of a table is the pair (shard, position): its rows are those of the shard whose version is not
//! above the position. Rows of a table of that name that exists again have higher versions. So a retirement changes no
//! derived row. No lane writes or removes a retired row afterwards, unless a change of the same document raises its
//! version, and then the row is no retired one any more.
//!
//! Documents that a retention job deletes row by row pass to an heir of their table, whose shard is retired with each
//! event of the job. So the retirements of a shard within a month are one, the last: its rows stay some days longer.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::{ForeignRow, ForeignRows as _};
use anabranch_pipeline::records::{Cell, CellRef, LaneId, RetiredShards, Retirement};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::Row;
use mysql_async::prelude::Queryable;

use super::ddl::RETIRED_TABLE;
use super::progress::literal;
use super::rows::{MysqlRows, Part, TIMEOUT, cells};
use crate::mysql::connection::quote_table;

/// A retired table, as the target stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetiredTable {
    pub shard: ShardId,
    pub source: String,
    pub database: String,
    pub table: String,
}

/// A retirement, and the newest of its documents in one derived table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetiredDocument {
    pub table: RetiredTable,
    pub position: u64,
    /// Day on which the lane passed it, as YYYY-MM-DD in UTC.
    pub retired_on: String,
    pub newest: Newest,
    /// The derived table that was asked, by its number.
    pub derived_table: u32,
}

/// The identifier of the newest document of a retirement in one derived table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Newest {
    /// The derived table has no row of the retirement.
    Missing,
    Found(Vec<u8>),
    /// Rows of the next table of that name have greater identifiers.
    Hidden,
}

/// Rows of the next table that a search for the newest document of a retirement reads, at most: some ten milliseconds.
const HIDING_ROWS_MAX: u64 = 10_000;

/// The result of one step of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlived {
    /// Derived rows that were removed.
    pub rows: u64,
    /// Retired tables without a row left: the target has forgotten them.
    pub tables: u64,
    /// Nothing has outlived its table at this moment.
    pub is_done: bool,
    /// The place after which the next step goes on; `None` = it starts at the beginning.
    pub place: Option<SweepPlace>,
}

/// A place within the rows of a retired table. A lost place costs time only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepPlace {
    /// Shard, lane and position of the retirement.
    retirement: (u64, u32, u64),
    /// Number of derived tables that are through.
    tables: usize,
    /// Shard and key of the last row that was examined.
    after: Option<(u64, Box<[Cell]>)>,
}

/// Returns the statement that stores retirements. One that a replay meets again changes nothing: the lane knows a later
/// one of its shard, or the same one. An earlier one may be superseded, and must not come back.
pub(super) fn insert(
    table: &str,
    lane: &LaneId,
    retirements: &[Retirement],
    known: &RetiredShards,
) -> Option<String> {
    let is_new = |retired: &&Retirement| known.get(&retired.table.shard).is_none_or(|at| *at < retired.at);
    let row = |Retirement { table, at }: &Retirement| {
        format!(
            "({}, {}, {}, {}, {}, {}, {}, UTC_TIMESTAMP(6))",
            literal(&lane.projection),
            table.shard,
            lane.lane,
            at.as_u64(),
            literal(&lane.source),
            literal(&table.database),
            literal(&table.table)
        )
    };
    let rows: Vec<String> = retirements.iter().filter(is_new).map(row).collect();
    (!rows.is_empty()).then(|| {
        format!(
            "INSERT INTO {table} (`projection`, `shard_id`, `lane`, `position`, `source`, `source_database`, \
             `source_table`, `retired_at`) VALUES {} ON DUPLICATE KEY UPDATE `source` = {table}.`source`",
            rows.join(", ")
        )
    })
}

/// Returns the statement that removes earlier retirements of these shards in the present month, which the last one
/// covers; `None` if the lane knows none of them. The months are those of the calendar, so a table that is retired each
/// day still has a retirement of each month, and the rows of each go.
pub(super) fn supersede(
    table: &str,
    lane: &LaneId,
    retirements: &[Retirement],
    known: &RetiredShards,
) -> Option<String> {
    let is_known = |retired: &&Retirement| known.get(&retired.table.shard).is_some_and(|at| *at < retired.at);
    let before = |Retirement { table, at }: &Retirement| {
        format!("(`shard_id` = {} AND `position` < {})", table.shard, at.as_u64())
    };
    let earlier: Vec<String> = retirements.iter().filter(is_known).map(before).collect();
    (!earlier.is_empty()).then(|| {
        format!(
            "DELETE FROM {table} WHERE `projection` = {} AND `lane` = {} AND `retired_at` >= UTC_DATE() - INTERVAL \
             (DAYOFMONTH(UTC_DATE()) - 1) DAY AND ({})",
            literal(&lane.projection),
            lane.lane,
            earlier.join(" OR ")
        )
    })
}

/// Selects the retired shards of a lane, each with the position of its last retirement.
pub(super) fn select(table: &str, lane: &LaneId) -> String {
    format!(
        "SELECT `shard_id`, MAX(`position`) FROM {table} WHERE `projection` = {} AND `source` = {} AND `lane` = {} \
         GROUP BY `shard_id`",
        literal(&lane.projection),
        literal(&lane.source),
        lane.lane
    )
}

/// Parses a row of [`select`].
pub(super) fn shard_of((shard, position): (u64, u64)) -> Option<(ShardId, Lsn)> {
    Some((ShardId::from_u64(shard)?, Lsn::from_u64(position).ok()?))
}

pub(super) fn add(retired: &mut RetiredShards, retirements: &[Retirement]) {
    for Retirement { table, at } in retirements {
        let last = retired.entry(table.shard).or_insert(*at);
        *last = (*last).max(*at);
    }
}

/// Shard, source, database, table, position and day of a retirement; the greatest identifier of its shard, and whether
/// the retirement covers that row.
type StoredRetirement = (u64, String, String, String, u64, String, Option<Vec<u8>>, Option<u64>);

fn newest_document(row: Row, derived_table: u32) -> Option<RetiredDocument> {
    let (shard, source, database, table, position, retired_on, id, is_covered) =
        mysql_async::from_row_opt::<StoredRetirement>(row).ok()?;
    let table = RetiredTable { shard: ShardId::from_u64(shard)?, source, database, table };
    let newest = match (id, is_covered) {
        (None, _) => Newest::Missing,
        (Some(id), Some(1)) => Newest::Found(id),
        (Some(_), _) => Newest::Hidden,
    };
    Some(RetiredDocument { table, position, retired_on, newest, derived_table })
}

impl MysqlRows {
    /// Returns whether the target has the table of retired source tables; only a target of payment documents can.
    async fn has_retired(&self) -> Result<bool, Fault> {
        if !self.assignment.projection.entity().may_retire() {
            return Ok(false);
        }
        if self.has_retired.get().is_some() {
            return Ok(true);
        }
        let sql = format!(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = {} AND table_name = {}",
            literal(&self.target.0.control_database),
            literal(RETIRED_TABLE)
        );
        let has = !self.pool.rows(sql).await?.is_empty();
        if has {
            // A set-up may make the table while this process runs, and nothing removes it.
            _ = self.has_retired.set(());
        }
        Ok(has)
    }

    /// Returns the SQL expression that is 1 for a row of a retired source table and 0 for others; `None` where no table
    /// can be retired. The row and its retirement were committed together, so one statement sees both or neither.
    pub(super) async fn retired_expression(&self, index: u32) -> Result<Option<String>, Fault> {
        if !self.has_retired().await? {
            return Ok(None);
        }
        let lane = self.assignment.projection.tables().get(index as usize).map_or(0, |table| table.lane);
        let table = self.table(index)?;
        let name = quote_table(&table.database, &table.table);
        Ok(Some(format!(
            "COALESCE({name}.`lsn` <= (SELECT MAX(`r`.`position`) FROM {} AS `r` WHERE `r`.`projection` = {} AND \
             `r`.`shard_id` = {name}.`shard_id` AND `r`.`lane` = {lane}), 0)",
            self.target.retired_table(),
            literal(&self.assignment.name)
        )))
    }

    /// Returns the source tables that were retired and that still have derived rows, each once.
    pub async fn retired_tables(&self) -> Result<Vec<RetiredTable>, Fault> {
        if !self.has_retired().await? {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT DISTINCT `shard_id`, `source`, `source_database`, `source_table` FROM {} WHERE `projection` = {}",
            self.target.retired_table(),
            literal(&self.assignment.name)
        );
        let table = |row: Row| {
            let (shard, source, database, table) =
                mysql_async::from_row_opt::<(u64, String, String, String)>(row).ok()?;
            Some(RetiredTable { shard: ShardId::from_u64(shard)?, source, database, table })
        };
        Ok(self.pool.rows(sql).await?.into_iter().filter_map(table).collect())
    }

    /// Returns the newest document of each table that was retired in the last `days` days, or at any time: once for
    /// each derived table of its lane. It reads the row with the greatest identifier of each shard and no other, so
    /// [`Self::newest_hidden`] has to look behind rows of a next table.
    pub async fn newest_retired(&self, days: Option<u32>) -> Result<Vec<RetiredDocument>, Fault> {
        if !self.has_retired().await? {
            return Ok(Vec::new());
        }
        let retired = self.target.retired_table();
        let mut condition = format!("`r`.`projection` = {}", literal(&self.assignment.name));
        if let Some(days) = days {
            condition.push_str(&format!(" AND `r`.`retired_at` >= UTC_TIMESTAMP(6) - INTERVAL {days} DAY"));
        }
        let sql = format!("SELECT DISTINCT `r`.`lane` FROM {retired} AS `r` WHERE {condition}");
        let lanes = self.pool.rows(sql).await?;
        let mut found = Vec::new();
        for lane in lanes.into_iter().filter_map(|row| mysql_async::from_row_opt::<u32>(row).ok()) {
            for index in self.assignment.owned_by(lane) {
                let table = self.table(index)?;
                let name = quote_table(&table.database, &table.table);
                let greatest = format!(
                    "FROM {name} AS `d` WHERE `d`.`shard_id` = `r`.`shard_id` ORDER BY `d`.`id` DESC LIMIT 1"
                );
                let sql = format!(
                    "SELECT `r`.`shard_id`, `r`.`source`, `r`.`source_database`, `r`.`source_table`, `r`.`position`, \
                     DATE_FORMAT(`r`.`retired_at`, '%Y-%m-%d'), (SELECT `d`.`id` {greatest}), (SELECT `d`.`lsn` <= \
                     `r`.`position` {greatest}) FROM {retired} AS `r` WHERE {condition} AND `r`.`lane` = {lane}"
                );
                let rows = self.pool.rows(sql).await?;
                found.extend(rows.into_iter().filter_map(|row| newest_document(row, index)));
            }
        }
        Ok(found)
    }

    /// Looks for the newest document of a retirement behind the rows of the next table, among a bounded number of rows.
    pub async fn newest_hidden(&self, retired: &RetiredDocument) -> Result<Newest, Fault> {
        let table = self.table(retired.derived_table)?;
        let sql = format!(
            "SELECT MAX(CASE WHEN `t`.`lsn` <= {} THEN `t`.`id` END), COUNT(*) FROM (SELECT `id`, `lsn` FROM {} WHERE \
             `shard_id` = {} ORDER BY `id` DESC LIMIT {HIDING_ROWS_MAX}) AS `t`",
            retired.position,
            quote_table(&table.database, &table.table),
            retired.table.shard
        );
        let found = self.pool.rows(sql).await?.into_iter().next();
        let found = found.and_then(|row| mysql_async::from_row_opt::<(Option<Vec<u8>>, u64)>(row).ok());
        Ok(match found {
            Some((Some(id), _)) => Newest::Found(id),
            Some((None, read)) if read < HIDING_ROWS_MAX => Newest::Missing,
            _ => Newest::Hidden,
        })
    }

    /// Examines at most `rows` derived rows of the source table that was retired longest ago, if that is `months`
    /// months ago or more, and removes those of the table that left. Rows of a later table of its name stay. A lane
    /// that raises the version of such a row at the same time keeps it.
    pub async fn remove_outlived(
        &self,
        months: u32,
        rows: usize,
        place: Option<SweepPlace>,
    ) -> Result<Outlived, Fault> {
        let is_due = format!("`retired_at` <= UTC_TIMESTAMP(6) - INTERVAL {months} MONTH");
        self.remove_retired(&is_due, rows, place).await
    }

    /// Does what [`Self::remove_outlived`] does for the retired tables of a source that left for good, however old.
    pub async fn remove_retired_of(
        &self,
        source: &str,
        rows: usize,
        place: Option<SweepPlace>,
    ) -> Result<Outlived, Fault> {
        self.remove_retired(&format!("`source` = {}", literal(source)), rows, place).await
    }

    /// Makes one step of a removal from the oldest retired table that fits the condition.
    async fn remove_retired(
        &self,
        condition: &str,
        rows: usize,
        place: Option<SweepPlace>,
    ) -> Result<Outlived, Fault> {
        let done = Outlived { is_done: true, ..Outlived::default() };
        if !self.has_retired().await? {
            return Ok(done);
        }
        let sql = format!(
            "SELECT `shard_id`, `lane`, `position` FROM {} WHERE `projection` = {} AND {condition} ORDER BY \
             `retired_at`, `shard_id`, `lane`, `position` LIMIT 1",
            self.target.retired_table(),
            literal(&self.assignment.name)
        );
        let oldest = self.pool.rows(sql).await?.into_iter().next();
        let oldest = oldest.and_then(|row| mysql_async::from_row_opt::<(u64, u32, u64)>(row).ok());
        let Some(retirement @ (shard, lane, position)) = oldest else { return Ok(done) };
        let same = place.filter(|place| place.retirement == retirement);
        let mut place = same.unwrap_or(SweepPlace { retirement, tables: 0, after: None });
        let owned = self.assignment.owned_by(lane);
        if place.tables >= owned.len() {
            failpoints::reach("outlived-before-forget").await;
            self.forget_retired(shard, lane, position).await?;
            failpoints::reach("outlived-after-forget").await;
            return Ok(Outlived { tables: 1, ..Outlived::default() });
        }
        let (mut left, mut removed) = (rows, 0);
        // A derived table without rows of the shard costs a query, and no step with its pause.
        while let Some(index) = owned.get(place.tables).copied().filter(|_| left > 0) {
            let examined = self.examined(index, shard, place.after.take(), left).await?;
            match examined.last() {
                Some(last) if examined.len() == left => place.after = Some((shard, last.key.clone())),
                _ => place.tables += 1,
            }
            left -= examined.len();
            let outlived: Vec<_> = examined.into_iter().filter(|row| row.version.0 <= position).collect();
            if !outlived.is_empty() {
                failpoints::reach("outlived-before-removal").await;
                removed += self.remove(&outlived).await?;
                failpoints::reach("outlived-after-removal").await;
            }
        }
        Ok(Outlived { rows: removed, place: Some(place), ..Outlived::default() })
    }

    /// Returns at most `limit` rows of a shard after a key, with their versions.
    async fn examined(
        &self,
        index: u32,
        shard: u64,
        after: Option<(u64, Box<[Cell]>)>,
        limit: usize,
    ) -> Result<Vec<ForeignRow>, Fault> {
        let table = self.table(index)?;
        let part = Part { first: shard, last: Some(shard), after };
        let sql = self.part_sql(table, &["lsn"], None, part, limit);
        let (owner, keys) = (ShardId::from_u64(shard), table.shape.key_columns.len());
        let mut found = Vec::new();
        let take = |row: &Row| {
            let mut is_noted = None;
            cells(row, 0, keys, &mut |shard, key, values| {
                let [CellRef::UInt(lsn)] = values else { return };
                let key = key.iter().map(|cell| CellRef::to_owned(*cell)).collect();
                found.push(ForeignRow { table: index, shard: Some(shard), owner, key, version: (*lsn, 0) });
                is_noted = Some(());
            })?;
            is_noted
        };
        self.read(sql, take).await?.map_err(|()| self.odd(table))?;
        Ok(found)
    }

    async fn forget_retired(&self, shard: u64, lane: u32, position: u64) -> Result<(), Fault> {
        let sql = format!(
            "DELETE FROM {} WHERE `projection` = {} AND `shard_id` = {shard} AND `lane` = {lane} AND \
             `position` = {position}",
            self.target.retired_table(),
            literal(&self.assignment.name)
        );
        let mut connection = self.pool.connection().await?;
        self.pool.within(TIMEOUT, async { connection.query_drop(sql).await }).await
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::{Entity, TableIdentity};

    use super::*;

    fn retirement(shard: u64, at: u64) -> Retirement {
        let table = TableIdentity {
            entity: Entity::Flux,
            shard: ShardId::from_u64(shard).unwrap(),
            database: Cow::Borrowed("flux_00_0"),
            table: Cow::Borrowed("atom'05"),
        };
        Retirement { table, at: Lsn::from_u64(at).unwrap() }
    }

    #[test]
    fn a_retirement_is_stored_once_for_each_position_and_the_last_one_counts() {
        let lane = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 3 };
        let none = RetiredShards::new();
        assert_eq!(insert("`c`.`retired`", &lane, &[], &none), None);
        let both = [retirement(7, 160), retirement(7, 320)];
        let sql = insert("`c`.`retired`", &lane, &both, &none).unwrap();
        assert!(sql.is_ascii() && !sql.contains("atom"), "{sql}");
        assert!(sql.contains(", 7, 3, 160, ") && sql.contains(", 7, 3, 320, "), "{sql}");
        let mut retired = RetiredShards::new();
        add(&mut retired, &both);
        add(&mut retired, &both[..1]);
        assert_eq!(retired, RetiredShards::from([(both[0].table.shard, both[1].at)]));
        assert_eq!(insert("`c`.`retired`", &lane, &both, &retired), None, "a replay");
        let later = [retirement(7, 480)];
        assert!(insert("`c`.`retired`", &lane, &later, &retired).unwrap().contains(", 7, 3, 480, "));
        assert_eq!(shard_of((7, 320)), Some((both[1].table.shard, both[1].at)));
    }

    #[test]
    fn a_retirement_takes_the_place_of_an_earlier_one_that_the_lane_knows() {
        let lane = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 3 };
        let new = [retirement(7, 320), retirement(8, 320)];
        let sql = |known: &RetiredShards| supersede("`c`.`retired`", &lane, &new, known);
        let mut known = RetiredShards::new();
        assert_eq!(sql(&known), None);
        add(&mut known, &[retirement(7, 320), retirement(9, 160)]);
        assert_eq!(sql(&known), None, "a replay changes nothing");
        let known = RetiredShards::from([(new[0].table.shard, retirement(7, 160).at)]);
        let sql = sql(&known).unwrap();
        assert!(sql.ends_with("((`shard_id` = 7 AND `position` < 320))"), "{sql}");
        assert!(sql.contains("`lane` = 3 AND"), "{sql}");
    }
}
