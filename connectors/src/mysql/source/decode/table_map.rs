//! TABLE_MAP events: the table of the rows events that follow, and the shape of its rows.
//!
//! A map is decoded in two steps: names first, and columns only if the table is captured. The event itself has names of
//! columns and signs of numbers (`binlog_row_metadata=FULL`), so no schema history is kept. It also has the primary
//! key, and collations, which distinguish text from bytes (UUID, BINARY). ENUM values and the rest of the metadata are
//! skipped.

use super::column::Format;
use super::gtid::Flavor;
use super::wire::{Malformed, Reader};

/// Columns that any server allows, at most: a larger number could only exhaust memory.
const COLUMNS_MAX: usize = 4096;
const TABLE_ID_BYTES: usize = 6;
const FLAGS_BYTES: usize = 2;

const METADATA_SIGNEDNESS: u8 = 1;
const METADATA_DEFAULT_COLLATION: u8 = 2;
const METADATA_COLLATIONS: u8 = 3;
const METADATA_COLUMN_NAME: u8 = 4;
const METADATA_PRIMARY_KEY: u8 = 8;
const METADATA_PRIMARY_KEY_WITH_PREFIX: u8 = 9;

/// The table of a map, with its columns not decoded yet.
#[derive(Debug, Clone, Copy)]
pub struct TableMap<'a> {
    pub table_id: u64,
    pub database: &'a [u8],
    pub table: &'a [u8],
    columns: &'a [u8],
}

/// A column of a table map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    pub format: Format,
    /// Name of the column; `None` unless `binlog_row_metadata=FULL`.
    pub name: Option<&'a [u8]>,
    /// Whether the number is unsigned; `None` for columns without a sign and for events without any metadata.
    pub unsigned: Option<bool>,
    /// Number of the collation on the server; `None` for columns without one and for events without any metadata.
    pub collation: Option<u64>,
    /// The column belongs to the primary key, by which chunks are read; `false` for a table without one.
    pub is_key: bool,
}

impl<'a> TableMap<'a> {
    /// Reads table id and names.
    pub fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let table_id = reader.little(TABLE_ID_BYTES)?;
        reader.take(FLAGS_BYTES)?;
        let mut name = || -> Result<&'a [u8], Malformed> {
            let length = usize::from(reader.u8()?);
            let name = reader.take(length)?;
            if reader.u8()? != 0 { Err(Malformed("a name without its end")) } else { Ok(name) }
        };
        let (database, table) = (name()?, name()?);
        Ok(Self { table_id, database, table, columns: reader.rest() })
    }

    /// Returns the part of the body before the columns: table id, flags and names.
    pub fn without_columns<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        &body[..body.len() - self.columns.len()]
    }

    /// Reads the columns, as a server of this flavor describes them.
    pub fn columns(&self, flavor: Flavor) -> Result<Vec<Column<'a>>, Malformed> {
        let mut reader = Reader::new(self.columns);
        let count = reader.length()?;
        if count > COLUMNS_MAX {
            return Err(Malformed("more columns than a table can have"));
        }
        let types = reader.take(count)?;
        let metadata_length = reader.length()?;
        let mut metadata = Reader::new(reader.take(metadata_length)?);
        let mut columns = Vec::with_capacity(count);
        for type_code in types {
            let format = Format::read(*type_code, &mut metadata)?;
            columns.push(Column { format, name: None, unsigned: None, collation: None, is_key: false });
        }
        if !metadata.is_empty() {
            return Err(Malformed("column metadata that belongs to no column"));
        }
        reader.take(count.div_ceil(8))?;
        while !reader.is_empty() {
            let kind = reader.u8()?;
            let length = reader.length()?;
            let field = reader.take(length)?;
            match kind {
                METADATA_SIGNEDNESS => read_signs(types, field, &mut columns)?,
                METADATA_DEFAULT_COLLATION => {
                    read_default_collation(field, with_collation(types, flavor, &mut columns))?;
                }
                METADATA_COLLATIONS => read_collations(field, with_collation(types, flavor, &mut columns))?,
                METADATA_COLUMN_NAME => read_names(field, &mut columns)?,
                METADATA_PRIMARY_KEY => read_key(field, false, &mut columns)?,
                METADATA_PRIMARY_KEY_WITH_PREFIX => read_key(field, true, &mut columns)?,
                _ => {}
            }
        }
        Ok(columns)
    }
}

/// Reads one bit for each numeric column, most significant bit first.
fn read_signs(types: &[u8], bits: &[u8], columns: &mut [Column<'_>]) -> Result<(), Malformed> {
    let signed = types.iter().zip(columns).filter(|(type_code, _)| Format::has_sign(**type_code));
    for (index, (_, column)) in signed.enumerate() {
        let byte = bits.get(index / 8).ok_or(Malformed("too few sign bits"))?;
        column.unsigned = Some(byte & (0x80 >> (index % 8)) != 0);
    }
    Ok(())
}

/// Returns the columns that have a collation: collations are numbered by them.
fn with_collation<'c, 'a>(
    types: &[u8],
    flavor: Flavor,
    columns: &'c mut [Column<'a>],
) -> Vec<&'c mut Column<'a>> {
    let typed = types.iter().zip(columns);
    let counted = typed.filter(|(type_code, column)| column.format.has_collation(**type_code, flavor));
    counted.map(|(_, column)| column).collect()
}

/// Reads the most frequent collation, then each other one after the index of its column among those that have one.
fn read_default_collation(field: &[u8], mut columns: Vec<&mut Column<'_>>) -> Result<(), Malformed> {
    let mut reader = Reader::new(field);
    let default = reader.length()? as u64;
    columns.iter_mut().for_each(|column| column.collation = Some(default));
    while !reader.is_empty() {
        let place = reader.length()?;
        let column =
            columns.get_mut(place).ok_or(Malformed("a collation of a column that does not exist"))?;
        column.collation = Some(reader.length()? as u64);
    }
    Ok(())
}

/// Reads one collation for each column that has one.
fn read_collations(field: &[u8], columns: Vec<&mut Column<'_>>) -> Result<(), Malformed> {
    let mut reader = Reader::new(field);
    for column in columns {
        column.collation = Some(reader.length()? as u64);
    }
    if reader.is_empty() { Ok(()) } else { Err(Malformed("more collations than columns that have one")) }
}

/// Reads indexes of columns; with `has_prefixes` the length of an indexed prefix follows each.
fn read_key(field: &[u8], has_prefixes: bool, columns: &mut [Column<'_>]) -> Result<(), Malformed> {
    let mut reader = Reader::new(field);
    while !reader.is_empty() {
        let place = reader.length()?;
        if has_prefixes {
            reader.length()?;
        }
        let column = columns.get_mut(place).ok_or(Malformed("a key with a column that does not exist"))?;
        column.is_key = true;
    }
    Ok(())
}

fn read_names<'a>(field: &'a [u8], columns: &mut [Column<'a>]) -> Result<(), Malformed> {
    let mut reader = Reader::new(field);
    for column in columns {
        let length = reader.length()?;
        column.name = Some(reader.take(length)?);
    }
    if reader.is_empty() { Ok(()) } else { Err(Malformed("more column names than columns")) }
}

#[cfg(test)]
pub(in crate::mysql::source) mod tests {
    use super::*;

    /// `d`.`t`: id INT UNSIGNED, birthday DATE, with names and signs.
    pub fn sample() -> Vec<u8> {
        let mut body = vec![7, 0, 0, 0, 0, 0, 1, 0, 1, b'd', 0, 1, b't', 0];
        body.extend([2, 3, 10, 0, 0b10]);
        body.extend([METADATA_SIGNEDNESS, 1, 0x80]);
        body.extend([METADATA_COLUMN_NAME, 12, 2, b'i', b'd', 8]);
        body.extend(b"birthday");
        body
    }

    #[test]
    fn names_and_signs_come_with_the_event() {
        let body = sample();
        let map = TableMap::read(&body).unwrap();
        assert_eq!((map.table_id, map.database, map.table), (7, &b"d"[..], &b"t"[..]));
        let columns = map.columns(Flavor::MariaDb).unwrap();
        assert_eq!(columns[0].name, Some(&b"id"[..]));
        assert_eq!(columns[0].unsigned, Some(true));
        assert_eq!(columns[1].format, Format::Date);
        assert_eq!(columns[1].unsigned, None);
    }

    #[test]
    fn the_primary_key_comes_with_the_event_with_prefixes_or_without() {
        let keys = |field: &[u8]| {
            let mut body = sample();
            body.extend(field);
            let columns = TableMap::read(&body).unwrap().columns(Flavor::MariaDb)?;
            Ok::<_, Malformed>(columns.iter().map(|column| column.is_key).collect::<Vec<_>>())
        };
        assert_eq!(keys(&[]).unwrap(), [false, false]);
        assert_eq!(keys(&[METADATA_PRIMARY_KEY, 1, 1]).unwrap(), [false, true]);
        assert_eq!(keys(&[METADATA_PRIMARY_KEY, 2, 1, 0]).unwrap(), [true, true]);
        assert_eq!(keys(&[METADATA_PRIMARY_KEY_WITH_PREFIX, 2, 0, 1]).unwrap(), [true, false]);
        assert!(keys(&[METADATA_PRIMARY_KEY, 1, 2]).is_err());
    }

    /// `d`.`t`: CHAR, ENUM, GEOMETRY, TEXT and VECTOR of MySQL, with this metadata after the columns.
    fn collations(flavor: Flavor, field: &[u8]) -> Result<Vec<Option<u64>>, Malformed> {
        let mut body = vec![7, 0, 0, 0, 0, 0, 1, 0, 1, b'd', 0, 1, b't', 0];
        body.extend([5, 254, 254, 255, 252, 242, 7, 254, 36, 247, 1, 4, 2, 4, 0]);
        body.extend(field);
        let columns = TableMap::read(&body).unwrap().columns(flavor)?;
        Ok(columns.iter().map(|column| column.collation).collect())
    }

    /// Geometry is among the counted columns on MariaDB only.
    #[test]
    fn collations_come_with_the_event_as_a_list_or_as_a_default_with_exceptions() {
        const LIST: u8 = METADATA_COLLATIONS;
        const DEFAULT: u8 = METADATA_DEFAULT_COLLATION;
        let (on_mariadb, on_mysql) =
            (|field| collations(Flavor::MariaDb, field), |field| collations(Flavor::MySql, field));
        assert_eq!(on_mariadb(&[]).unwrap(), [None; 5]);
        let all = [Some(2304), None, Some(63), Some(8), Some(63)];
        assert_eq!(on_mariadb(&[LIST, 6, 0xfc, 0, 9, 63, 8, 63]).unwrap(), all);
        let all = [Some(255), None, None, Some(8), Some(63)];
        assert_eq!(on_mysql(&[LIST, 5, 0xfc, 255, 0, 8, 63]).unwrap(), all);
        let all = [Some(45), None, Some(63), Some(45), Some(63)];
        assert_eq!(on_mariadb(&[DEFAULT, 5, 45, 1, 63, 3, 63]).unwrap(), all);
        assert_eq!(on_mysql(&[DEFAULT, 3, 45, 2, 63]).unwrap(), [Some(45), None, None, Some(45), Some(63)]);
    }

    #[test]
    fn collations_of_too_few_or_other_columns_are_refused() {
        for field in [
            &[METADATA_COLLATIONS, 3, 45, 63, 8][..],
            &[METADATA_COLLATIONS, 5, 45, 63, 8, 63, 45],
            &[METADATA_COLLATIONS, 4, 45, 63, 8, 0xfc],
            &[METADATA_DEFAULT_COLLATION, 0],
            &[METADATA_DEFAULT_COLLATION, 2, 45, 1],
            &[METADATA_DEFAULT_COLLATION, 3, 45, 4, 63],
        ] {
            assert!(collations(Flavor::MariaDb, field).is_err(), "{field:?}");
        }
    }

    #[test]
    fn every_cut_of_a_map_is_refused_or_lacks_metadata() {
        let body = sample();
        for length in 0..body.len() {
            if let Ok(columns) = TableMap::read(&body[..length]).and_then(|map| map.columns(Flavor::MariaDb))
            {
                assert!(columns.iter().all(|column| column.name.is_none()), "cut at {length}");
            }
        }
    }
}
