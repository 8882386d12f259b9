//! Changes of devices in 40 tables and the history's 8: 60 % of the transactions insert, 15 % put devices into another
//! box, 10 % change a column that is no code, 7 % move devices to the history (insert and delete), 8 % delete.
//!
//! Seven devices in ten are phones with two IMEIs, a MEID and a box of 18 digits; the others have a box of 4 to 40
//! characters and an item code. One in seven shares its box with others of its transaction. Devices that are put into
//! another box all share that box. Codes are scattered, as real ones are.

use std::fmt::Write as _;

use anabranch_demo::{INVENTORY_DATABASES, SourceTable, UuidType};
use anabranch_schemas::change::Entity;
use anabranch_schemas::serial::luhn_check_digit;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::data::{Changes, Range};
use crate::site::SERIAL_TABLES;

/// Tables in each inventory database and in the history.
pub const TABLES: u32 = SERIAL_TABLES;
/// Distance of a table's devices: `uuid % 5` names the database and `uuid % 8` the table.
const STEP: u64 = (INVENTORY_DATABASES * TABLES) as u64;
/// First uuid, a multiple of [`STEP`]; as text, uuids from here on have the order of numbers.
const UUID_BASE: u64 = 1_000_000_000_000;
const COLUMNS: &str =
    "uuid, first_agent_code, imei1, imei2, meid, box_no, item_code, warehouse_code, account_id, sku_code";

/// The tables of one database.
#[derive(Debug)]
pub struct Devices {
    database: u32,
    ranges: [Range; TABLES as usize],
    boxes: u64,
    /// True if all transactions only insert.
    is_arrival: bool,
}

impl Devices {
    pub const WHAT: &str = "devices in 48 tables";
    pub const NEW: &str = "new devices in 40 tables";

    /// One writer for each database.
    pub fn writers() -> Vec<Self> {
        Self::each(false)
    }

    /// One writer for each database, which only inserts.
    pub fn arriving() -> Vec<Self> {
        Self::each(true)
    }

    fn each(is_arrival: bool) -> Vec<Self> {
        (0..INVENTORY_DATABASES)
            .map(|database| Self { database, ranges: Default::default(), boxes: 0, is_arrival })
            .collect()
    }

    /// Makes a box that many devices may share.
    fn shared_box(&mut self) -> String {
        self.boxes += 1;
        format!("CARTON-{}-{}", self.database, self.boxes)
    }

    fn device(&self, table: u32, index: u64) -> Device {
        Device { database: self.database, table, index }
    }

    fn insert(&mut self, table: u32, devices: std::ops::Range<u64>, sql: &mut String) {
        let carton = self.shared_box();
        write!(sql, "INSERT INTO {} ({COLUMNS}) VALUES ", self.device(table, 0).table()).expect(STRING);
        for index in devices {
            let device = self.device(table, index);
            write!(sql, "({},{}),", device.key(), device.values(&carton)).expect(STRING);
        }
        sql.pop();
        sql.push(';');
    }

    fn among(&self, table: u32, first: u64, rows: u64) -> String {
        let key = |index| self.device(table, index).key();
        format!("uuid BETWEEN {} AND {}", key(first), key(first + rows - 1))
    }
}

impl Changes for Devices {
    fn transaction(&mut self, random: &mut StdRng, rows: u64, sql: &mut String) -> u64 {
        let table = random.random_range(0..TABLES);
        let range = self.ranges[table as usize];
        let kind = random.random_range(0..100);
        if self.is_arrival || kind < 60 || !range.is_filled() {
            self.insert(table, range.high..range.high + rows, sql);
            self.ranges[table as usize].high += rows;
            return rows;
        }
        let name = self.device(table, 0).table();
        if kind < 75 {
            let (among, carton) = (self.among(table, range.any(random, rows), rows), self.shared_box());
            write!(sql, "UPDATE {name} SET box_no = '{carton}' WHERE {among};").expect(STRING);
            return rows;
        }
        if kind < 85 {
            let among = self.among(table, range.any(random, rows), rows);
            let turn = random.random_range(0..u32::MAX);
            write!(sql, "UPDATE {name} SET warehouse_code = 'M{turn}' WHERE {among};").expect(STRING);
            return rows;
        }
        let among = self.among(table, range.low, rows);
        self.ranges[table as usize].low += rows;
        if kind < 92 {
            let history = format!("inventory_history.serial_code_{table:02}");
            write!(
                sql,
                "BEGIN;INSERT INTO {history} ({COLUMNS}) SELECT {COLUMNS} FROM {name} WHERE {among};\
                 DELETE FROM {name} WHERE {among};COMMIT;"
            )
            .expect(STRING);
            return 2 * rows;
        }
        write!(sql, "DELETE FROM {name} WHERE {among};").expect(STRING);
        rows
    }
}

/// One device.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    pub database: u32,
    pub table: u32,
    /// The device's index in its table.
    pub index: u64,
}

impl Device {
    /// The table with its database.
    pub fn table(self) -> String {
        format!("inventory_{}.serial_code_{:02}", self.database, self.table)
    }

    /// The uuid, which differs for each device.
    fn number(self) -> u64 {
        let is_place = |number: &u64| {
            number % u64::from(INVENTORY_DATABASES) == u64::from(self.database)
                && number % u64::from(TABLES) == u64::from(self.table)
        };
        let offset = (0..STEP).find(is_place).expect("5 and 8 have no common divisor");
        UUID_BASE + offset + STEP * self.index
    }

    /// The uuid as a SQL literal of the column's type.
    pub fn key(self) -> String {
        let place = SourceTable { entity: Entity::SerialCode, database: self.database, table: self.table };
        match UuidType::of(place) {
            UuidType::Integer => self.number().to_string(),
            UuidType::Text => format!("'{}'", self.number()),
        }
    }

    fn is_phone(self) -> bool {
        self.index % 10 < 7
    }

    /// The columns after the uuid.
    fn values(self, carton: &str) -> String {
        let (number, index) = (self.number(), self.index);
        let stock = format!("'W{}',{},'SKU-{}'", number % 50, number % 1_000_000, number % 500);
        let agent = number % 20;
        let carton = |own: String| if index % 7 == 0 { carton.to_owned() } else { own };
        let scattered = scattered(number);
        if self.is_phone() {
            let (one, two) = (imei(scattered * 2), imei(scattered * 2 + 1));
            let box_no = carton(format!("{:018}", scattered * 31));
            format!("'A{agent}','{one}','{two}','A0{scattered:012X}','{box_no}',NULL,{stock}")
        } else {
            let length = 4 + (index % 37) as usize;
            let box_no = carton(format!("{scattered:X}{:Z>length$}", ""));
            format!("'A{agent}',NULL,NULL,NULL,'{box_no}','item-{scattered}',{stock}")
        }
    }

    /// A code that no other device has: a phone's first IMEI, another device's item code.
    pub fn own_code(self) -> String {
        let scattered = scattered(self.number());
        if self.is_phone() { imei(scattered * 2) } else { format!("item-{scattered}") }
    }

    /// A statement that inserts the device.
    pub fn insert(self) -> String {
        let (table, key, values) = (self.table(), self.key(), self.values("CARTON-0"));
        format!("INSERT INTO {table} ({COLUMNS}) VALUES ({key},{values})")
    }
}

/// Maps each number to another one of up to 12 digits, far from those of its neighbours.
fn scattered(number: u64) -> u64 {
    // Coprime with 10: no two numbers below 10^12 have the same product modulo it.
    const FACTOR: u128 = 387_420_489;
    (u128::from(number % UUID_BASE) * FACTOR % u128::from(UUID_BASE / 4)) as u64
}

fn imei(number: u64) -> String {
    let digits = format!("35{number:012}");
    let check = luhn_check_digit(digits.as_bytes());
    format!("{digits}{}", char::from(check))
}

const STRING: &str = "writing to a String cannot fail";
