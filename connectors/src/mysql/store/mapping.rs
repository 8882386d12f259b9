//! Reads mapping tables by value, on whatever targets their databases are.

use std::collections::HashMap;
use std::fmt::Write as _;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::MappingStore;
use anabranch_pipeline::projections::serial_mapping::SerialMapping;
use anabranch_pipeline::records::{Claims, DeviceClaim};
use anabranch_schemas::serial::{CodeKind, StoredCode};
use anabranch_schemas::shard::ShardId;
use futures::future::try_join_all;

use super::MysqlTarget;
use crate::mysql::connection::{push_bytes, quote_table};
use crate::mysql::pool::Pool;

/// Codes in a statement: its text stays small, and its answer comes soon.
const STATEMENT_CODES: usize = 200;

/// Rows that one step of a whole read takes: well below a second.
const STEP_ROWS: usize = 100_000;

/// The mapping tables of one projection.
#[derive(Debug, Clone)]
pub struct MysqlMapping {
    mapping: SerialMapping,
    /// Connections by the index of the target in the projection's list.
    pools: Vec<Pool>,
}

impl MysqlMapping {
    /// Returns `None` when there is no such projection, or it is of another kind. `connections` limits the concurrent
    /// queries of one target.
    pub fn new(config: &Config, projection: &str, connections: usize) -> Option<Self> {
        let configured = config.projections.iter().find(|known| known.name == projection)?;
        let mapping = SerialMapping::configured(configured)?;
        let pool = |target: &String| {
            Some(MysqlTarget::new(config, target)?.pool(connections).shown(target, "mapping_tables"))
        };
        Some(Self { mapping, pools: configured.targets.iter().map(pool).collect::<Option<_>>()? })
    }

    fn target_of(&self, code: &StoredCode) -> usize {
        self.mapping.tables()[self.mapping.table_of(code) as usize].target as usize
    }

    /// Selects one row more than the limit, to show that more exist. The primary key has the rows in this order.
    fn push_select(
        &self,
        sql: &mut String,
        number: usize,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) {
        let derived = &self.mapping.tables()[self.mapping.table_of(code) as usize].derived;
        let table = quote_table(&derived.database, &derived.table);
        let expectation = "writing to a String cannot fail";
        write!(sql, "(SELECT {number}, `shard_id`, `uuid`, `kind` FROM {table} WHERE `value` = ")
            .expect(expectation);
        push_bytes(sql, code.as_bytes());
        if let Some(DeviceClaim { shard, uuid, kind }) = after {
            // The condition is spelt out: the server makes no range of (a, b, c) > (x, y, z).
            let mut text = String::new();
            push_bytes(&mut text, uuid);
            let kind = kind.number();
            write!(
                sql,
                " AND `shard_id` >= {shard} AND (`shard_id` > {shard} OR `uuid` > {text} OR `uuid` = {text} AND `kind` > {kind})"
            )
            .expect(expectation);
        }
        write!(sql, " ORDER BY `shard_id`, `uuid`, `kind` LIMIT {})", limit + 1).expect(expectation);
    }

    /// Adds rows of (number, shard, uuid, kind) to the sets of their numbers.
    fn add_rows(
        &self,
        claims: &mut [Claims],
        rows: Vec<mysql_async::Row>,
        limit: usize,
    ) -> Result<(), Fault> {
        for row in rows {
            let odd = || {
                Fault::new(
                    Code::TargetTableShape,
                    "a mapping table",
                    "a row has values that lanes never write",
                )
                .needs("rows that lanes wrote")
            };
            let (number, shard, uuid, kind): (usize, u64, Vec<u8>, u8) =
                mysql_async::from_row_opt(row).map_err(|_| odd())?;
            let (shard, kind) = ShardId::from_u64(shard).zip(CodeKind::from_number(kind)).ok_or_else(odd)?;
            let of_code = &mut claims[number];
            if of_code.claims.len() == limit {
                of_code.is_cut = true;
            } else {
                of_code.claims.push(DeviceClaim { shard, uuid: uuid.into(), kind });
            }
        }
        Ok(())
    }
}

/// A value that names several devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    pub value: Vec<u8>,
    pub devices: u64,
}

impl MysqlMapping {
    /// Visits values that name more than one device as one of these kinds, in the order of tables and values. Reads
    /// every mapping row once, some at a time.
    pub async fn duplicates(
        &self,
        kinds: &[CodeKind],
        mut visit: impl FnMut(Duplicate),
    ) -> Result<(), Fault> {
        let kinds: Vec<String> = kinds.iter().map(|kind| kind.number().to_string()).collect();
        let kinds = kinds.join(",");
        for table in self.mapping.tables() {
            let (name, pool) = (
                quote_table(&table.derived.database, &table.derived.table),
                &self.pools[table.target as usize],
            );
            let mut after = Vec::new();
            loop {
                let mut from = String::from("`value` > ");
                push_bytes(&mut from, &after);
                let last = format!(
                    "SELECT `value` FROM {name} WHERE {from} ORDER BY `value` LIMIT 1 OFFSET {STEP_ROWS}"
                );
                let last: Option<Vec<u8>> = pool
                    .rows(last)
                    .await?
                    .into_iter()
                    .next()
                    .and_then(|row| mysql_async::from_row_opt(row).ok());
                if let Some(last) = &last {
                    from.push_str(" AND `value` <= ");
                    push_bytes(&mut from, last);
                }
                let sql = format!(
                    "SELECT `value`, COUNT(DISTINCT `uuid`) AS `devices` FROM {name} WHERE {from} AND `kind` IN ({kinds}) \
                     GROUP BY `value` HAVING `devices` > 1 ORDER BY `value`"
                );
                for row in pool.rows(sql).await? {
                    let (value, devices) = mysql_async::from_row_opt(row).map_err(|_| {
                        Fault::new(
                            Code::TargetTableShape,
                            format!("table {name}"),
                            "a row has values that lanes never write",
                        )
                        .needs("rows that lanes wrote")
                    })?;
                    visit(Duplicate { value, devices });
                }
                match last {
                    Some(last) => after = last,
                    None => break,
                }
            }
        }
        Ok(())
    }
}

impl MappingStore for MysqlMapping {
    async fn claims(&self, codes: &[StoredCode], limit: usize) -> Result<Vec<Claims>, Fault> {
        let mut by_target: HashMap<usize, Vec<usize>> = HashMap::new();
        for (number, code) in codes.iter().enumerate() {
            by_target.entry(self.target_of(code)).or_default().push(number);
        }
        let statements = by_target.iter().flat_map(|(target, numbers)| {
            numbers.chunks(STATEMENT_CODES).map(|some| {
                let mut sql = String::new();
                for number in some {
                    sql.push_str(if sql.is_empty() { "" } else { " UNION ALL " });
                    self.push_select(&mut sql, *number, &codes[*number], None, limit);
                }
                self.pools[*target].rows(sql)
            })
        });
        let mut claims = vec![Claims::default(); codes.len()];
        for rows in try_join_all(statements).await? {
            self.add_rows(&mut claims, rows, limit)?;
        }
        Ok(claims)
    }

    async fn page(
        &self,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) -> Result<Claims, Fault> {
        let target = self.target_of(code);
        let mut sql = String::new();
        self.push_select(&mut sql, 0, code, after, limit);
        let mut claims = vec![Claims::default()];
        self.add_rows(&mut claims, self.pools[target].rows(sql).await?, limit)?;
        Ok(claims.swap_remove(0))
    }
}
