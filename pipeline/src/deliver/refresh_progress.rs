//! How far the refresh of a lane is: a part of its progress, so each step is stored in one transaction with its rows.
//!
//! Tables are taken in the order of their shard ids, each by chunks in the order of its primary key; behind the last
//! chunk comes the sweep. What is stored is always the end of a step, so whoever runs the lane next begins the next one.

use std::fmt;
use std::str::FromStr;

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::{Flush, LaneId, Progress};
use crate::error::{Code, Fault};
use crate::ports::{ChunkKey, LaneStore};

/// A busy lane commits while this is asked for; each attempt reads its progress again.
const ATTEMPTS: u32 = 50;

/// Which tables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every captured table of the projection's entity.
    Source,
    Table(ShardId),
}

/// A refresh that is not through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refresh {
    pub scope: Scope,
    /// Tables up to this one are through.
    pub done: Option<ShardId>,
    /// The table that is being read.
    pub table: Option<TableRefresh>,
    /// Source rows read.
    pub rows: u64,
}

/// A table of which at least one chunk is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRefresh {
    pub shard: ShardId,
    /// Mark of the first chunk: claims of the shard that are older are withdrawn in the end.
    pub first: Lsn,
    pub chunks: u64,
    /// Behind which the next chunk begins; `None` = all are written, and the sweep is due.
    pub after: Option<ChunkKey>,
}

impl Refresh {
    pub fn new(scope: Scope) -> Self {
        Self { scope, done: None, table: None, rows: 0 }
    }

    /// Whether a table is meant that is not through.
    pub(super) fn wants(&self, shard: ShardId) -> bool {
        let is_meant = match self.scope {
            Scope::Source => true,
            Scope::Table(only) => only == shard,
        };
        is_meant && self.done.is_none_or(|done| done < shard)
    }

    /// Behind one more chunk of a table.
    pub(super) fn behind_chunk(&self, shard: ShardId, mark: Lsn, rows: u64, next: Option<ChunkKey>) -> Self {
        let (first, chunks) = self.table.as_ref().map_or((mark, 0), |table| (table.first, table.chunks));
        let table = TableRefresh { shard, first, chunks: chunks + 1, after: next };
        Self { table: Some(table), rows: self.rows + rows, ..self.clone() }
    }

    /// Behind a table.
    pub(super) fn behind_table(&self, shard: ShardId) -> Self {
        Self { done: Some(shard), table: None, ..self.clone() }
    }
}

/// Asks a lane for a refresh; whoever runs it is fenced by that and begins. Returns its progress before.
///
/// A lane has one refresh at a time. That of all tables takes the place of any other, and the same one begins again.
pub async fn request_refresh(
    id: &LaneId,
    store: &mut impl LaneStore,
    scope: Scope,
) -> Result<Progress, Fault> {
    let mut attempt = 1;
    loop {
        let before = store.load().await?;
        let is_replaced = |other: &Refresh| scope == Scope::Source || scope == other.scope;
        if before.refresh.as_ref().is_some_and(|other| !is_replaced(other)) {
            return Err(Fault::new(
                Code::RefreshRefused,
                format!("lane {id}"),
                "another refresh is under way",
            )
            .needs("its end, or a refresh of all tables, which takes its place"));
        }
        let revision = before.revision + 1;
        let refresh = Some(Refresh::new(scope));
        let after = Progress { revision, refresh, was_refreshed: true, ..before.clone() };
        match store.commit(&Flush::new(after)).await {
            Err(fault) if fault.code() == Code::TargetFenced && attempt < ATTEMPTS => attempt += 1,
            ended => return ended.map(|()| before),
        }
    }
}

/// `- 4711 20000` (scope, tables through, rows), then `4712 1:7:320 3 00ff` (table, first mark, chunks, place) when a
/// table is being read; `-` = none.
impl fmt::Display for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = |shard: Option<ShardId>| shard.map_or("-".to_owned(), |shard| shard.to_string());
        let only = match self.scope {
            Scope::Source => None,
            Scope::Table(only) => Some(only),
        };
        write!(f, "{} {} {}", shard(only), shard(self.done), self.rows)?;
        let Some(table) = &self.table else { return Ok(()) };
        write!(f, " {} {} {} ", table.shard, table.first, table.chunks)?;
        match &table.after {
            None => f.write_str("-"),
            Some(ChunkKey(key)) => key.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// The text is not that of a refresh.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not the state of a refresh")]
pub struct InvalidRefresh;

impl FromStr for Refresh {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        let parts: Vec<&str> = text.split(' ').collect();
        let number = |part: &str| part.parse::<u64>().map_err(|_| InvalidRefresh);
        let shard = |part: &str| ShardId::from_u64(number(part)?).ok_or(InvalidRefresh);
        let optional = |part: &str| if part == "-" { Ok(None) } else { shard(part).map(Some) };
        let (head, table) = match parts.as_slice() {
            [scope, done, rows] => ([scope, done, rows], None),
            [scope, done, rows, of, first, chunks, after] => {
                let after = if *after == "-" { None } else { Some(ChunkKey(bytes(after)?)) };
                let first = first.parse().map_err(|_| InvalidRefresh)?;
                let table = TableRefresh { shard: shard(of)?, first, chunks: number(chunks)?, after };
                ([scope, done, rows], Some(table))
            }
            _ => return Err(InvalidRefresh),
        };
        let scope = optional(head[0])?.map_or(Scope::Source, Scope::Table);
        Ok(Self { scope, done: optional(head[1])?, table, rows: number(head[2])? })
    }
}

fn bytes(text: &str) -> Result<Box<[u8]>, InvalidRefresh> {
    let digits = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => {
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            Some((digit(high)? << 4 | digit(low)?) as u8)
        }
        _ => None,
    });
    digits.collect::<Option<_>>().ok_or(InvalidRefresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back() {
        let shard = |number| ShardId::from_u64(number).unwrap();
        let whole = Refresh::new(Scope::Source);
        let begun = whole.behind_table(shard(7)).behind_chunk(
            shard(9),
            Lsn::new(1, 7, 320).unwrap(),
            20,
            Some(ChunkKey([0, 255, 16].into())),
        );
        let read = begun.behind_chunk(shard(9), Lsn::new(1, 7, 640).unwrap(), 3, None);
        assert_eq!(begun.to_string(), "- 7 20 9 1:7:320 1 00ff10");
        assert_eq!(read.to_string(), "- 7 23 9 1:7:320 2 -");
        for known in [whole, begun, read, Refresh::new(Scope::Table(shard(3)))] {
            assert_eq!(known.to_string().parse(), Ok(known));
        }
        for text in
            ["", "-", "- - x", "- - 1 2", "- - 1 2 1:1:16 1 0", "- - 1 2 1:1:16 1 zz", "- - 1 2 x 1 -"]
        {
            assert_eq!(text.parse::<Refresh>(), Err(InvalidRefresh), "{text}");
        }
    }

    #[test]
    fn tables_that_are_through_are_not_wanted_again() {
        let shard = |number| ShardId::from_u64(number).unwrap();
        let refresh = Refresh::new(Scope::Source).behind_table(shard(7));
        assert_eq!([6, 7, 8].map(|number| refresh.wants(shard(number))), [false, false, true]);
        let one = Refresh::new(Scope::Table(shard(7)));
        assert_eq!([6, 7, 8].map(|number| one.wants(shard(number))), [false, true, false]);
        assert!(!one.behind_table(shard(7)).wants(shard(7)));
    }
}
