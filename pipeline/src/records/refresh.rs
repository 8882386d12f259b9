//! State of a lane's refresh: a part of its progress, so each step is stored in one transaction with its rows.
//!
//! A lane reads tables in the order of their shard ids, and each table by chunks in the order of its primary key. After
//! the last chunk of a table comes its sweep. Tables that changed without row events (`rereads`) are read out of turn,
//! before the others. A refresh by keys or by a condition is a *repair*. The state is stored at the end of each step,
//! so another process continues with the next step.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::serial::UUID_BYTES_MAX;
use anabranch_schemas::shard::ShardId;

use super::{Cell, Chunk, Comparison, Condition, ScanCursor};

/// Keys of one request, at most. They are stored in the progress row, which has 64 KiB for them and for other things.
pub const KEYS_MAX: usize = 256;

/// Entries of `rereads`, at most, as each takes some 40 bytes of the progress row. When there would be more, all tables
/// of the source are read instead.
const REREADS_MAX: usize = 1_000;

/// Bytes of a scope and of `rereads` as text, at most: the progress row has 64 KiB for them and some other words.
const LISTED_BYTES_MAX: usize = 52 * 1024;
/// Bytes of an entry of `rereads` as text, at most: a shard id, a position, and what separates them.
const REREAD_BYTES: usize = 45;
/// Bytes of a number as text with what separates it, at most.
const NUMBER_BYTES: usize = 21;
/// Bytes of a condition as text, at most: eight comparisons in hexadecimal digits.
const CONDITION_BYTES_MAX: usize = 9 * 1024;

/// The rows that a refresh reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Every captured table of the projection's entity.
    Source,
    /// Only the tables in `rereads`.
    Rereads,
    Table(ShardId),
    /// The rows with these keys, written as in derived rows: user ids or uuids. Of all stored claims of these keys,
    /// exactly those remain that the rows make now; for a table that does not exist, none.
    Keys(BTreeMap<ShardId, Vec<Cell>>),
    /// The rows with the keys that a condition finds, in one table or in all (`None`). The claims of these keys are
    /// replaced as for `Keys`.
    Where(Option<ShardId>, Condition),
}

impl Scope {
    /// Returns the reason for which the scope cannot be requested; `None` if it can.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self::Keys(keys) = self else { return None };
        let all = || keys.values().flatten();
        let is_key = |key: &Cell| match key {
            Cell::UInt(_) => true,
            Cell::Bytes(bytes) => (1..=UUID_BYTES_MAX).contains(&bytes.len()),
            Cell::Null | Cell::Int(_) => false,
        };
        if !all().all(is_key) {
            return Some("a key is not one that a derived row can have".to_owned());
        }
        let count = all().count();
        let is_counted = (1..=KEYS_MAX).contains(&count) && keys.values().all(|keys| !keys.is_empty());
        (!is_counted).then(|| format!("{count} keys"))
    }

    /// Returns the bytes of the scope as text, at most.
    fn bytes_max(&self) -> usize {
        let of_key = |key: &Cell| match key {
            Cell::Bytes(bytes) => 2 + 2 * bytes.len(),
            Cell::UInt(_) | Cell::Int(_) | Cell::Null => NUMBER_BYTES,
        };
        match self {
            Self::Source | Self::Rereads | Self::Table(_) => NUMBER_BYTES,
            Self::Keys(tables) => {
                tables.len() * NUMBER_BYTES + tables.values().flatten().map(of_key).sum::<usize>()
            }
            Self::Where(..) => CONDITION_BYTES_MAX,
        }
    }
}

/// A refresh that is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refresh {
    pub scope: Scope,
    /// The last table that was finished in its turn; all tables with lower shard ids are finished too.
    pub done: Option<ShardId>,
    /// The table that is being read.
    pub table: Option<TableRefresh>,
    /// Source rows that were read.
    pub rows: u64,
    /// The epoch in which the refresh began, if the lane had no rows then; otherwise `None`. All rows of such a lane
    /// came from its feed or from chunks, so tables need no sweep while the epoch lasts.
    pub empty_in_epoch: Option<u16>,
    /// Tables whose rows changed in a way that row events do not show, each with the position at or after which it is
    /// to be read. An entry is removed when the table was read and swept and its first watermark was not below that
    /// position.
    pub rereads: BTreeMap<ShardId, Lsn>,
    /// After a repair: whether every table is to be read then. In a refresh of every table: whether rows of any table
    /// may have changed unseen. A refresh that a person requests, and a first load, are read without it.
    pub every_waits: bool,
    /// The source hid more tables than `rereads` lists as this refresh of every table began: every table is to be read
    /// once more at its end.
    pub hides_more: bool,
}

/// A table that is being read: at least one chunk of it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRefresh {
    pub shard: ShardId,
    /// Low watermark of the first chunk. The sweep removes claims of the shard with lower versions.
    pub first: Lsn,
    pub chunks: u64,
    /// Primary key after which the next chunk begins; `None` = all chunks are written, and the sweep is due.
    pub after: Option<ScanCursor>,
    /// Whether the table is read out of turn, because it was in `rereads` when it was chosen.
    pub is_reread: bool,
}

impl Refresh {
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            done: None,
            table: None,
            rows: 0,
            empty_in_epoch: None,
            rereads: BTreeMap::new(),
            every_waits: false,
            hides_more: false,
        }
    }

    /// Returns a refresh of every table. Its `rereads` are empty, since it reads those tables too.
    pub fn of_every_table() -> Self {
        Self::new(Scope::Source)
    }

    /// Returns the refresh of a lane that must read every table, as rows of any may have changed unseen; `refresh` is
    /// its present one. A repair goes first, from its beginning. `done` and `table` are cleared, as every table is read
    /// anew. Entries of `rereads` stay, as some may be of tables that are not listed: the end of this refresh says
    /// nothing of them.
    pub fn with_every_table(refresh: Option<Self>) -> Self {
        let Some(refresh) = refresh else { return Self { every_waits: true, ..Self::of_every_table() } };
        let scope = if refresh.reads_rereads() { Scope::Source } else { refresh.scope };
        Self { every_waits: true, rereads: refresh.rereads, ..Self::new(scope) }
    }

    /// Whether every table is to be read, now or after a repair.
    pub(crate) fn reads_every_table(&self) -> bool {
        self.scope == Scope::Source || self.every_waits
    }

    /// Returns the refresh of a lane that must also read a table at or after a position; `refresh` is its present one.
    /// A reading of the table goes on. Its end leaves the entry if it began below the position, so the table is read
    /// once more: statements that change rows unseen many times a second would otherwise let no reading end.
    pub fn with_reread(refresh: Option<Self>, shard: ShardId, at: Lsn) -> Self {
        let mut refresh = refresh.unwrap_or_else(|| Self::new(Scope::Rereads));
        let waits = refresh.rereads.entry(shard).or_default();
        *waits = at.max(*waits);
        if refresh.rereads.len() > REREADS_MAX || !refresh.is_listable() {
            return Self::with_every_table(Some(Self { rereads: BTreeMap::new(), ..refresh }));
        }
        // The source may have lost rows without a row event, so even a lane that had no rows must sweep.
        refresh.empty_in_epoch = None;
        refresh
    }

    /// Whether the progress row has room for the scope and for all of `rereads`.
    pub(super) fn is_listable(&self) -> bool {
        self.scope.bytes_max() + self.rereads.len() * REREAD_BYTES <= LISTED_BYTES_MAX
    }

    /// Returns the refresh without this entry of `rereads`, unless the entry's position is above `at`. At `at` the
    /// table lost all rows, or was read.
    pub(crate) fn without_reread(mut self, shard: ShardId, at: Lsn) -> Self {
        if self.rereads.get(&shard).is_some_and(|waits| *waits <= at) {
            self.rereads.remove(&shard);
        }
        self
    }

    /// Returns the refresh that follows this one, of every table or of `rereads`; `None` if no table waits.
    pub(crate) fn after_scope(&self) -> Option<Self> {
        if self.every_waits && self.scope != Scope::Source {
            return Some(Self::with_every_table(Some(Self { scope: Scope::Source, ..self.clone() })));
        }
        let rereads = self.rereads.clone();
        (!rereads.is_empty()).then(|| Self { rereads, ..Self::new(Scope::Rereads) })
    }

    /// Whether this refresh also reads the tables in `rereads`. A repair does not: they wait until it is finished.
    pub(crate) fn reads_rereads(&self) -> bool {
        match self.scope {
            Scope::Source | Scope::Rereads | Scope::Table(_) => true,
            Scope::Keys(_) | Scope::Where(..) => false,
        }
    }

    /// Whether the scope includes this table and its turn is not over. An entry in `rereads` alone does not count.
    pub(crate) fn wants(&self, shard: ShardId) -> bool {
        let is_meant = match &self.scope {
            Scope::Source => true,
            Scope::Rereads => false,
            Scope::Table(only) => *only == shard,
            Scope::Keys(keys) => keys.contains_key(&shard),
            Scope::Where(only, _) => only.is_none_or(|only| only == shard),
        };
        is_meant && self.done.is_none_or(|done| done < shard)
    }

    /// Returns the keys that are still to be read, by table; `None` for another scope. One chunk has all of them.
    pub(crate) fn keys(&self) -> Option<impl Iterator<Item = (ShardId, &[Cell])>> {
        let Scope::Keys(keys) = &self.scope else { return None };
        let left = keys.iter().filter(|(shard, _)| self.wants(**shard));
        Some(left.map(|(shard, keys)| (*shard, &**keys)))
    }

    fn after_keys(&self, chunk: &Chunk) -> Self {
        let last = self.keys().and_then(|keys| keys.map(|(shard, _)| shard).last());
        let done = last.or(self.done);
        Self { rows: self.rows + chunk.rows, done, ..self.clone() }
    }

    /// Returns the refresh after one more chunk of a table; keys have one chunk. For a first chunk, `is_reread` says
    /// whether the table was chosen because it was in `rereads`: its entry may be gone by now.
    pub(crate) fn after_chunk(&self, shard: ShardId, chunk: &Chunk, is_reread: bool) -> Self {
        let read = Self { rows: self.rows + chunk.rows, ..self.clone() };
        let has_ended = match self.scope {
            Scope::Source | Scope::Rereads | Scope::Table(_) => {
                chunk.next.is_none() && self.empty_in_epoch == Some(chunk.low.epoch())
            }
            Scope::Keys(_) => return self.after_keys(chunk),
            Scope::Where(..) => chunk.next.is_none(),
        };
        if has_ended {
            return read.after_table(shard);
        }
        let (first, chunks, is_reread) = match &self.table {
            Some(table) => (table.first, table.chunks, table.is_reread),
            None => (chunk.low, 0, is_reread),
        };
        let after = chunk.next.clone();
        let table = TableRefresh { shard, first, chunks: chunks + 1, after, is_reread };
        Self { table: Some(table), ..read }
    }

    /// Returns the refresh after a table that is finished or given up. If it was read out of turn, `done` stays as it
    /// was.
    pub(crate) fn after_table(&self, shard: ShardId) -> Self {
        let is_reread = self.table.as_ref().is_some_and(|table| table.is_reread);
        let done = if is_reread { self.done } else { Some(shard) };
        Self { done, table: None, ..self.clone() }
    }

    /// Returns the refresh after the sweep of a table whose first chunk had this low watermark.
    pub(crate) fn after_sweep(&self, shard: ShardId, first: Lsn) -> Self {
        self.after_table(shard).without_reread(shard, first)
    }
}

/// A word that may follow the number of rows.
struct Word {
    name: &'static str,
    is_needed: fn(&Refresh) -> bool,
    /// Writes the value, without blanks.
    write: fn(&Refresh, &mut fmt::Formatter<'_>) -> fmt::Result,
    read: fn(&mut Refresh, &str) -> Result<(), InvalidRefresh>,
}

/// The words in their order.
static WORDS: [Word; 4] = [
    Word {
        name: "every",
        is_needed: |refresh| refresh.every_waits,
        write: |_, _| Ok(()),
        read: |refresh, text| {
            refresh.every_waits = true;
            if text.is_empty() { Ok(()) } else { Err(InvalidRefresh) }
        },
    },
    Word {
        name: "hidden",
        is_needed: |refresh| refresh.hides_more,
        write: |_, _| Ok(()),
        read: |refresh, text| {
            refresh.hides_more = true;
            if text.is_empty() { Ok(()) } else { Err(InvalidRefresh) }
        },
    },
    Word {
        name: "empty_in_epoch:",
        is_needed: |refresh| refresh.empty_in_epoch.is_some(),
        write: |refresh, f| write!(f, "{}", refresh.empty_in_epoch.unwrap_or_default()),
        read: |refresh, text| {
            refresh.empty_in_epoch = Some(text.parse().map_err(|_| InvalidRefresh)?);
            Ok(())
        },
    },
    Word {
        name: "rereads:",
        is_needed: |refresh| !refresh.rereads.is_empty(),
        write: |refresh, f| {
            for (index, (shard, at)) in refresh.rereads.iter().enumerate() {
                write!(f, "{}{shard}@{at}", if index == 0 { "" } else { "," })?;
            }
            Ok(())
        },
        read: |refresh, text| {
            let reread = |text: &str| -> Result<(ShardId, Lsn), InvalidRefresh> {
                let (of, at) = text.split_once('@').ok_or(InvalidRefresh)?;
                Ok((shard(of)?, at.parse().map_err(|_| InvalidRefresh)?))
            };
            refresh.rereads = text.split(',').map(reread).collect::<Result<_, InvalidRefresh>>()?;
            Ok(())
        },
    },
];

/// Precedes the table being read if it waited to be read again.
const IS_REREAD: &str = "again:";

/// Formats as `- 4711 20000`: scope, last finished table, rows. Further parts follow where they apply, in this order;
/// `-` = none:
/// - `every`: every table is to be read after the scope; with the scope of all tables, rows of any may have changed
///   unseen.
/// - `hidden`: more tables were hidden than `rereads` lists, so every table is to be read once more at the end.
/// - `empty_in_epoch:1`: the lane had no rows when the refresh began, in this epoch.
/// - `rereads:4713@1:7:160,4714@1:7:480`: tables that wait to be read again.
/// - `4712 1:7:320 3 00ff`: the table being read, its first watermark, chunks and key; `again:4713 …` if it waited.
///
/// The scope is all tables (`-`), `rereads` alone, a table, keys of tables, or a condition on all tables or one. Keys
/// are numbers, or `x` and bytes in hexadecimal digits (`4711=7,9;4712=x3766`). Comparisons are texts in such digits,
/// with `&` between them: `4711?6964203d20273727` is `id = '7'` in table 4711.
impl fmt::Display for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = |shard: Option<ShardId>| shard.map_or("-".to_owned(), |shard| shard.to_string());
        write!(f, "{} {} {}", self.scope, shard(self.done), self.rows)?;
        for word in WORDS.iter().filter(|word| (word.is_needed)(self)) {
            write!(f, " {}", word.name)?;
            (word.write)(self, f)?;
        }
        let Some(table) = &self.table else { return Ok(()) };
        let again = if table.is_reread { IS_REREAD } else { "" };
        write!(f, " {again}{} {} {} ", table.shard, table.first, table.chunks)?;
        match &table.after {
            None => f.write_str("-"),
            Some(ScanCursor(key)) => write_bytes(f, key),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = match self {
            Self::Source => return f.write_str("-"),
            Self::Rereads => return f.write_str("rereads"),
            Self::Table(only) => return write!(f, "{only}"),
            Self::Keys(tables) => tables,
            Self::Where(only, condition) => {
                match only {
                    None => f.write_str("-")?,
                    Some(only) => write!(f, "{only}")?,
                }
                for (place, comparison) in condition.comparisons().iter().enumerate() {
                    f.write_str(if place == 0 { "?" } else { "&" })?;
                    write_bytes(f, comparison.to_string().as_bytes())?;
                }
                return Ok(());
            }
        };
        for (place, (shard, keys)) in tables.iter().enumerate() {
            write!(f, "{}{shard}", if place == 0 { "" } else { ";" })?;
            for (place, key) in keys.iter().enumerate() {
                f.write_str(if place == 0 { "=" } else { "," })?;
                match key {
                    Cell::UInt(number) => write!(f, "{number}")?,
                    Cell::Bytes(bytes) => {
                        f.write_str("x")?;
                        write_bytes(f, bytes)?;
                    }
                    Cell::Null | Cell::Int(_) => unreachable!("refused when it was asked for"),
                }
            }
        }
        Ok(())
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Fault of a text that is not the state of a refresh.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not the state of a refresh")]
pub struct InvalidRefresh;

impl FromStr for Refresh {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [scope, done, rows, tail @ ..] = parts.as_slice() else { return Err(InvalidRefresh) };
        let mut refresh = Self::new(scope.parse()?);
        refresh.done = if *done == "-" { None } else { Some(shard(done)?) };
        refresh.rows = number(rows)?;
        let mut tail = tail;
        for word in &WORDS {
            let Some(value) = tail.first().and_then(|part| part.strip_prefix(word.name)) else { continue };
            (word.read)(&mut refresh, value)?;
            tail = &tail[1..];
        }
        refresh.table = match tail {
            [] => None,
            [of, first, chunks, after] => {
                let after = if *after == "-" { None } else { Some(ScanCursor(bytes(after)?)) };
                let first = first.parse().map_err(|_| InvalidRefresh)?;
                let again = of.strip_prefix(IS_REREAD);
                let (of, is_reread) = (shard(again.unwrap_or(of))?, again.is_some());
                Some(TableRefresh { shard: of, first, chunks: number(chunks)?, after, is_reread })
            }
            _ => return Err(InvalidRefresh),
        };
        Ok(refresh)
    }
}

impl FromStr for Scope {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        if text == "rereads" {
            return Ok(Self::Rereads);
        }
        if let Some((only, condition)) = text.split_once('?') {
            let only = if only == "-" { None } else { Some(shard(only)?) };
            let comparison = |digits: &str| -> Result<Comparison, InvalidRefresh> {
                let text = String::from_utf8(bytes(digits)?.into()).map_err(|_| InvalidRefresh)?;
                text.parse().map_err(|_| InvalidRefresh)
            };
            let comparisons = condition.split('&').map(comparison).collect::<Result<_, _>>()?;
            return Ok(Self::Where(only, Condition::new(comparisons).ok_or(InvalidRefresh)?));
        }
        if !text.contains('=') {
            return if text == "-" { Ok(Self::Source) } else { shard(text).map(Self::Table) };
        }
        let key = |text: &str| match text.strip_prefix('x') {
            Some(digits) => bytes(digits).map(Cell::Bytes),
            None => number(text).map(Cell::UInt),
        };
        let table = |text: &str| {
            let (of, keys) = text.split_once('=').ok_or(InvalidRefresh)?;
            Ok((shard(of)?, keys.split(',').map(key).collect::<Result<_, _>>()?))
        };
        text.split(';').map(table).collect::<Result<_, _>>().map(Self::Keys)
    }
}

fn number(text: &str) -> Result<u64, InvalidRefresh> {
    text.parse().map_err(|_| InvalidRefresh)
}

fn shard(text: &str) -> Result<ShardId, InvalidRefresh> {
    ShardId::from_u64(number(text)?).ok_or(InvalidRefresh)
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

/// Returns the command that brings back rows that the binlog does not tell.
pub(crate) fn refresh_command(projection: &str, source: &str) -> String {
    format!(
        "`anabranch --config FILE refresh --projection {projection} --source {source}`, then `anabranch --config FILE \
         restart --all`: the lane continues from the present, and reads all tables"
    )
}

#[cfg(test)]
mod tests;
