//! The mapping layer: SQL for the rows that a device claims, and for their database and table.
//!
//! Rules:
//! - NULL and the empty text are no code; a uuid is 1 to 64 bytes of text.
//! - A value is the exact bytes of a code, a MEID in capitals; of a code of 255 bytes or more, the first 223 bytes and
//!   the SHA-256 of all.
//! - The value's length selects its database. Its number modulo the tables selects its table; text that is not all
//!   decimal digits has its CRC-32 as number.
//! - Each row has the version of the change or read that made it: an update that keeps a code writes none of its rows.

use super::tables::{Column, DerivedTables};
use crate::endpoint::Endpoint;
use crate::topology::SourceTable;

/// Databases `serial_code_15`, `serial_code_14`, `serial_code_other` with tables `mapping_000`, `mapping_001`, …
#[derive(Debug, Clone)]
pub struct MappingLayer {
    /// Tables in each database; 512 are the standard.
    pub tables: u32,
    /// Targets: database i is on target i modulo their number.
    pub targets: Vec<Endpoint>,
}

const DATABASES: [&str; 3] = ["serial_code_15", "serial_code_14", "serial_code_other"];
/// Digits of a value that one step divides: with the remainder of the digits before them they fit DECIMAL(65), which is
/// exact. `%` on text computes with doubles.
const STEP_DIGITS: u32 = 60;
/// Steps for the 255 digits of the longest value.
const STEPS: u32 = 5;

impl DerivedTables for MappingLayer {
    fn targets(&self) -> &[Endpoint] {
        &self.targets
    }

    fn databases(&self) -> u32 {
        DATABASES.len() as u32
    }

    fn database_name(&self, database: u32) -> String {
        DATABASES[database as usize].to_owned()
    }

    fn tables(&self) -> Vec<(u32, String)> {
        let of = |database| (0..self.tables).map(move |table| (database, format!("mapping_{table:03}")));
        (0..self.databases()).flat_map(of).collect()
    }

    fn names_like(&self) -> (&'static str, &'static str) {
        ("serial\\_code\\_%", "mapping\\_%")
    }

    /// Returns all tables: a few thousand devices fill every one.
    fn filled_min(&self) -> u64 {
        u64::from(self.tables)
    }

    fn key(&self) -> &'static [Column] {
        const {
            &[
                Column::bytes("uuid", "VARBINARY(64)"),
                Column::number("kind"),
                Column::bytes("value", "VARBINARY(255)"),
            ]
        }
    }

    fn checked(&self) -> Column {
        Column::number("lsn")
    }

    fn flaw(&self) -> (&'static str, &'static str) {
        ("no_version", "a.lsn = 0")
    }

    fn row_name(&self, prefix: &str) -> String {
        format!(
            "CONCAT('uuid ', CONVERT({prefix}uuid USING utf8mb4), ' ', \
             IFNULL(ELT({prefix}kind, 'imei1', 'imei2', 'meid', 'box_no', 'item_code'), {prefix}kind))"
        )
    }

    fn claims(&self, source_table: SourceTable) -> String {
        let meid = ('a'..='z').fold("CAST(meid AS BINARY)".to_owned(), |text, letter| {
            format!("REPLACE({text}, '{letter}', '{}')", letter.to_ascii_uppercase())
        });
        format!(
            "SELECT uuid, kind, value, 0 AS lsn,
               CASE LENGTH(value) WHEN 15 THEN 0 WHEN 14 THEN 1 ELSE 2 END AS database_number,
               CONCAT('mapping_', LPAD(
                 CASE WHEN HEX(value) REGEXP '^(3[0-9])+$' THEN {} ELSE CRC32(value) % {} END, 3, '0')) AS table_name
             FROM (
               SELECT uuid, kind,
                 IF(LENGTH(code) >= 255, CONCAT(LEFT(code, 223), UNHEX(SHA2(code, 256))), code) AS value
               FROM (
                 SELECT CAST(uuid AS BINARY) AS uuid, kind,
                   CASE kind WHEN 1 THEN CAST(imei1 AS BINARY) WHEN 2 THEN CAST(imei2 AS BINARY) WHEN 3 THEN {meid}
                     WHEN 4 THEN CAST(box_no AS BINARY) ELSE CAST(item_code AS BINARY) END AS code
                 FROM {} JOIN (SELECT 1 AS kind UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
                   UNION ALL SELECT 5) AS kinds
               ) AS codes
               WHERE LENGTH(code) > 0 AND LENGTH(uuid) BETWEEN 1 AND 64
             ) AS claims",
            remainder(self.tables),
            self.tables,
            source_table.quoted()
        )
    }
}

/// Returns the SQL for the decimal number `value`, of up to 255 digits, modulo `tables`.
fn remainder(tables: u32) -> String {
    let padded = format!("LPAD(value, {}, '0')", STEP_DIGITS * STEPS);
    (0..STEPS).fold("''".to_owned(), |before, step| {
        let digits = format!("SUBSTR({padded}, {}, {STEP_DIGITS})", step * STEP_DIGITS + 1);
        format!("(CAST(CONCAT({before}, {digits}) AS DECIMAL(65)) % {tables})")
    })
}
