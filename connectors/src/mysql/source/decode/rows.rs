//! Rows events, decoded selectively: captured columns become values that borrow from the event; other cells are skipped
//! unread.
//!
//! A [`Plan`] is made once for a table map; a [`RowsEvent`] is the frame of one event. [`Plan::read_row`] yields one
//! row image, [`Plan::read_update`] both images of an update, compared before any value is made (`runs.rs`). Other
//! files decide which tables are captured and what happens to rows.

use anabranch_schemas::change::Value;
use thiserror::Error;

use super::column::{Format, Step};
use super::runs::Runs;
use super::table_map::Column;
use super::wire::{Malformed, Reader};

const TABLE_ID_BYTES: usize = 6;
const FLAGS_BYTES: usize = 2;

/// The kind of a rows event, by the row images that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Update,
    Delete,
}

/// The reason why rows of a table cannot be read as configured.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanProblem {
    #[error("its row events carry no column names")]
    NoNames,
    #[error("its row events do not say whether column {0} is signed")]
    NoSigns(String),
    #[error("its row events do not say which character set column {0} has")]
    NoCharacterSet(String),
    #[error("it has no column {0}")]
    ColumnMissing(String),
    #[error("it has columns {0} and {1}, two names of one captured column")]
    ColumnTwice(String, String),
    #[error("column {0} has a type that cannot be captured")]
    Undecodable(String),
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    step: Step,
    format: Format,
    unsigned: bool,
    /// Index in the captured row.
    field: Option<u16>,
    is_key: bool,
}

/// The effect of an update on the captured part of its row. Images are equal if their bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Neither a captured value nor the key changes.
    Nothing,
    /// A captured value changes, and the key by which chunks are read stays.
    Rewrites,
    /// The row has another key, or the images do not show its key.
    Moves,
}

/// The images of an update; reused from row to row to save allocations.
#[derive(Debug, Default)]
pub struct Update<'b> {
    pub before: Vec<Value<'b>>,
    pub after: Vec<Value<'b>>,
    /// Cells by column; `None` = NULL or not in the image.
    cells: [Vec<Option<&'b [u8]>>; 2],
    /// Offsets at which the runs of both images end.
    ends: [Vec<usize>; 2],
}

/// The plan by which rows of one table map are decoded.
#[derive(Debug, Clone)]
pub struct Plan {
    cells: Vec<Cell>,
    /// Indexes of the cells that decide the effect of an update: captured ones and those of the key.
    compared: Vec<usize>,
    /// The compared cells as runs.
    runs: Runs,
    fields: usize,
}

impl Plan {
    /// Makes the plan for these columns. `names` are the captured ones in the order of the decoded row; they are
    /// compared as the server does for ASCII, without case.
    pub fn new(columns: &[Column<'_>], names: &[impl AsRef<str>]) -> Result<Self, PlanProblem> {
        if columns.iter().any(|column| column.name.is_none()) {
            return Err(PlanProblem::NoNames);
        }
        let mut cells: Vec<Cell> = columns
            .iter()
            .map(|column| Cell {
                step: column.format.step(),
                format: column.format,
                unsigned: column.unsigned.unwrap_or(false),
                field: None,
                is_key: column.is_key,
            })
            .collect();
        for (field, name) in names.iter().enumerate() {
            let name = name.as_ref();
            let index = columns
                .iter()
                .position(|column| column.name.is_some_and(|n| n.eq_ignore_ascii_case(name.as_bytes())))
                .ok_or_else(|| PlanProblem::ColumnMissing(name.to_owned()))?;
            let column = &columns[index];
            if !column.format.is_decodable() {
                return Err(PlanProblem::Undecodable(name.to_owned()));
            }
            if matches!(column.format, Format::Integer { .. }) && column.unsigned.is_none() {
                return Err(PlanProblem::NoSigns(name.to_owned()));
            }
            cells[index].field = u16::try_from(field).ok();
        }
        // Without a primary key no column identifies a row, so all of its cells are its key.
        if !cells.iter().any(|cell| cell.is_key) {
            cells.iter_mut().for_each(|cell| cell.is_key = true);
        }
        let counts = |cell: &Cell| cell.field.is_some() || cell.is_key;
        let compared = (0..cells.len()).filter(|place| counts(&cells[*place])).collect();
        let runs = Runs::new(cells.iter().map(|cell| (cell.step, counts(cell))));
        Ok(Self { cells, compared, runs, fields: names.len() })
    }

    /// Returns the format of the captured column at `field`.
    pub fn format(&self, field: usize) -> Option<Format> {
        self.place(field).map(|place| self.cells[place].format)
    }

    /// Returns the index in the table of the captured column at `field`.
    pub fn place(&self, field: usize) -> Option<usize> {
        self.cells.iter().position(|cell| cell.field.map(usize::from) == Some(field))
    }

    /// Returns the number of columns of the table.
    pub fn columns(&self) -> usize {
        self.cells.len()
    }

    /// Whether every captured column is in a row image with these columns.
    pub fn is_covered_by(&self, present: &[u8]) -> bool {
        self.cells.iter().enumerate().all(|(index, cell)| cell.field.is_none() || bit(present, index))
    }

    /// Reads one row image; `row` is cleared first and then gets one value for each captured column.
    pub fn read_row<'b>(
        &self,
        reader: &mut Reader<'b>,
        present: &[u8],
        row: &mut Vec<Value<'b>>,
    ) -> Result<(), Malformed> {
        row.clear();
        row.resize(self.fields, Value::Null);
        self.walk(reader, present, |_, cell, content| {
            if let Some(field) = cell.field {
                row[usize::from(field)] = cell.format.decode(content, cell.unsigned)?;
            }
            Ok(())
        })
    }

    /// Reads both images of an update. It decodes values only if the update has an effect.
    pub fn read_update<'b>(
        &self,
        reader: &mut Reader<'b>,
        present: [&[u8]; 2],
        update: &mut Update<'b>,
    ) -> Result<Effect, Malformed> {
        let is_whole = present.iter().all(|present| bits_set(present, self.cells.len()) == self.cells.len());
        if is_whole && let Some(bytes) = self.runs.unchanged(reader.rest(), &mut update.ends) {
            reader.take(bytes)?;
            return Ok(Effect::Nothing);
        }
        for (present, cells) in present.into_iter().zip(&mut update.cells) {
            cells.resize(self.cells.len(), None);
            cells.fill(None);
            self.walk(reader, present, |index, _, content| {
                cells[index] = Some(content);
                Ok(())
            })?;
        }
        let [before, after] = &update.cells;
        let mut effect = Effect::Nothing;
        for &index in &self.compared {
            let is_key = self.cells[index].is_key;
            let is_present = present.iter().all(|present| bit(present, index));
            if is_key && (!is_present || before[index] != after[index]) {
                effect = Effect::Moves;
            } else if before[index] != after[index] && effect == Effect::Nothing {
                effect = Effect::Rewrites;
            }
        }
        if effect != Effect::Nothing {
            self.decode(before, &mut update.before)?;
            self.decode(after, &mut update.after)?;
        }
        Ok(effect)
    }

    fn decode<'b>(&self, cells: &[Option<&'b [u8]>], row: &mut Vec<Value<'b>>) -> Result<(), Malformed> {
        row.clear();
        row.resize(self.fields, Value::Null);
        for (cell, content) in self.cells.iter().zip(cells) {
            if let (Some(field), Some(content)) = (cell.field, content) {
                row[usize::from(field)] = cell.format.decode(content, cell.unsigned)?;
            }
        }
        Ok(())
    }

    /// Steps through one row image and passes every cell that is not NULL, with the index of its column, to `visit`.
    #[inline]
    fn walk<'b>(
        &self,
        reader: &mut Reader<'b>,
        present: &[u8],
        mut visit: impl FnMut(usize, &Cell, &'b [u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let in_image = bits_set(present, self.cells.len());
        let is_whole = in_image == self.cells.len();
        let nulls = reader.take(in_image.div_ceil(8))?;
        let mut position = 0;
        for (index, cell) in self.cells.iter().enumerate() {
            if !is_whole && !bit(present, index) {
                continue;
            }
            let is_null = bit(nulls, position);
            position += 1;
            if is_null {
                continue;
            }
            let length = match cell.step {
                Step::Fixed(bytes) => usize::from(bytes),
                Step::Prefixed(1) => usize::from(reader.u8()?),
                Step::Prefixed(bytes) => reader.little(usize::from(bytes))? as usize,
            };
            let content = reader.take(length)?;
            visit(index, cell, content)?;
        }
        Ok(())
    }
}

/// The frame of a rows event.
#[derive(Debug, Clone, Copy)]
pub struct RowsEvent<'a> {
    /// Number of columns of the table.
    pub columns: usize,
    /// Bit maps of the columns in the row images; an update has both.
    pub before: Option<&'a [u8]>,
    pub after: Option<&'a [u8]>,
    /// The row images; compressed in MariaDB's compressed events.
    pub images: &'a [u8],
}

/// Whether this is the last rows event of a statement.
pub fn ends_statement(body: &[u8]) -> bool {
    const STATEMENT_END: u8 = 1;
    body.get(TABLE_ID_BYTES).is_some_and(|flags| flags & STATEMENT_END != 0)
}

/// Reads only the table id of a rows event.
pub fn table_id(body: &[u8]) -> Result<u64, Malformed> {
    Reader::new(body).little(TABLE_ID_BYTES)
}

impl<'a> RowsEvent<'a> {
    /// Reads the frame. `has_extra_data` is for version 2 of the rows events (MySQL from 5.6).
    pub fn read(body: &'a [u8], kind: Kind, has_extra_data: bool) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        reader.take(TABLE_ID_BYTES + FLAGS_BYTES)?;
        if has_extra_data {
            // The length counts itself.
            let length = reader.little(2)? as usize;
            reader.take(length.checked_sub(2).ok_or(Malformed("extra data shorter than its length"))?)?;
        }
        let columns = reader.length()?;
        let bitmap_bytes = columns.div_ceil(8);
        let before = match kind {
            Kind::Insert => None,
            Kind::Update | Kind::Delete => Some(reader.take(bitmap_bytes)?),
        };
        let after = match kind {
            Kind::Insert | Kind::Update => Some(reader.take(bitmap_bytes)?),
            Kind::Delete => None,
        };
        Ok(Self { columns, before, after, images: reader.rest() })
    }
}

fn bit(bits: &[u8], index: usize) -> bool {
    bits.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

fn bits_set(bits: &[u8], count: usize) -> usize {
    let whole: u32 = bits.iter().take(count / 8).map(|byte| byte.count_ones()).sum();
    let rest = count % 8;
    let last = bits.get(count / 8).map_or(0, |byte| (byte & ((1 << rest) - 1)).count_ones());
    (whole + last) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::source::decode::gtid::Flavor;
    use crate::mysql::source::decode::table_map::{TableMap, tests::sample};

    fn plan(names: &[&str]) -> Result<Plan, PlanProblem> {
        Plan::new(&TableMap::read(&sample()).unwrap().columns(Flavor::MariaDb).unwrap(), names)
    }

    #[test]
    fn only_captured_columns_are_read_in_the_wanted_order() {
        let plan = plan(&["BIRTHDAY", "id"]).unwrap();
        let images = [0b00, 5, 0, 0, 0, 0x5d, 0xd0, 0x0f, 0b10, 6, 0, 0, 0];
        let mut reader = Reader::new(&images);
        let mut row = Vec::new();
        plan.read_row(&mut reader, &[0b11], &mut row).unwrap();
        assert_eq!(row, [Value::Date { year: 2024, month: 2, day: 29 }, Value::UInt(5)]);
        plan.read_row(&mut reader, &[0b11], &mut row).unwrap();
        assert_eq!(row, [Value::Null, Value::UInt(6)]);
        assert!(reader.is_empty());
    }

    #[test]
    fn a_partial_image_is_seen() {
        let plan = plan(&["id"]).unwrap();
        assert!(plan.is_covered_by(&[0b01]));
        assert!(!plan.is_covered_by(&[0b10]));
        let mut row = Vec::new();
        plan.read_row(&mut Reader::new(&[0, 5, 0, 0, 0]), &[0b01], &mut row).unwrap();
        assert_eq!(row, [Value::UInt(5)]);
    }

    /// Returns the effect of an update of a table with this key, and whether values were made.
    fn effect(key: &[u8], names: &[&str], present: [&[u8]; 2], images: &[u8]) -> (Effect, bool) {
        let mut body = sample();
        body.extend(key);
        let plan =
            Plan::new(&TableMap::read(&body).unwrap().columns(Flavor::MariaDb).unwrap(), names).unwrap();
        let (mut reader, mut update) = (Reader::new(images), Update::default());
        let effect = plan.read_update(&mut reader, present, &mut update).unwrap();
        assert!(reader.is_empty());
        (effect, !update.after.is_empty())
    }

    #[test]
    fn an_update_that_changes_neither_captured_values_nor_the_key_has_no_effect_and_is_not_decoded() {
        let full: [&[u8]; 2] = [&[0b11], &[0b11]];
        let image = |id: u8, day: u8| [0b00, id, 0, 0, 0, day, 0xd0, 0x0f];
        let update = |key: &[u8], names: &[&str], before: [u8; 8], after: [u8; 8]| {
            effect(key, names, full, [before, after].as_flattened())
        };
        let by_id = [8, 1, 0];
        assert_eq!(update(&by_id, &["id"], image(5, 1), image(5, 2)), (Effect::Nothing, false));
        assert_eq!(update(&by_id, &["birthday"], image(5, 1), image(5, 2)), (Effect::Rewrites, true));
        assert_eq!(update(&by_id, &["birthday"], image(5, 1), image(6, 1)), (Effect::Moves, true));
        assert_eq!(update(&by_id, &["birthday"], image(5, 1), image(6, 2)), (Effect::Moves, true));
        assert_eq!(update(&[], &["id"], image(5, 1), image(5, 1)), (Effect::Nothing, false));
        assert_eq!(update(&[], &["id"], image(5, 1), image(5, 2)), (Effect::Moves, true), "all is its key");
    }

    #[test]
    fn null_is_another_value_and_a_key_that_the_images_do_not_hold_is_taken_for_another() {
        let (by_id, full) = ([8, 1, 0], [0b11u8]);
        let images = [&[0b10, 5, 0, 0, 0][..], &[0b00, 5, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(effect(&by_id, &["birthday"], [&full, &full], &images).0, Effect::Rewrites);
        let images = [0, 1, 0xd0, 0x0f, 0, 1, 0xd0, 0x0f];
        assert_eq!(effect(&by_id, &["birthday"], [&[0b10], &[0b10]], &images).0, Effect::Moves);
    }

    #[test]
    fn problems_name_the_column() {
        assert_eq!(plan(&["name"]).unwrap_err(), PlanProblem::ColumnMissing("name".into()));
        let body = sample();
        let mut columns = TableMap::read(&body).unwrap().columns(Flavor::MariaDb).unwrap();
        columns[0].unsigned = None;
        assert_eq!(Plan::new(&columns, &["id"]).unwrap_err(), PlanProblem::NoSigns("id".into()));
        columns[0].name = None;
        assert_eq!(Plan::new(&columns, &["birthday"]).unwrap_err(), PlanProblem::NoNames);
    }
}
