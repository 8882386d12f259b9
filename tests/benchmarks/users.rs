//! Changes of users in 40 or 1,000 tables: 55 % insert, 33 % update the birthday (which moves the user to another
//! derived table), 12 % delete.

use std::fmt::Write as _;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::data::{Changes, Range};
use crate::site::{DATABASES, TABLES, TABLES_OF_MANY};

/// The tables of one database.
#[derive(Debug)]
pub struct Users {
    database: u32,
    /// One range for each table.
    ranges: Vec<Range>,
    /// True if all transactions only insert.
    is_arrival: bool,
}

impl Users {
    pub const WHAT: &str = "users in 40 tables";
    pub const NEW: &str = "new users in 40 tables";
    pub const OF_MANY: &str = "users in 1,000 tables";

    /// One writer for each database.
    pub fn writers() -> Vec<Self> {
        Self::each(TABLES, false)
    }

    /// One writer for each database of [`Site::of_many_tables`](crate::site::Site::of_many_tables).
    pub fn writers_of_many() -> Vec<Self> {
        Self::each(TABLES_OF_MANY, false)
    }

    /// One writer for each database, which only inserts.
    pub fn arriving() -> Vec<Self> {
        Self::each(TABLES, true)
    }

    fn each(tables: u32, is_arrival: bool) -> Vec<Self> {
        let ranges = vec![Range::default(); tables as usize];
        (0..DATABASES).map(|database| Self { database, ranges: ranges.clone(), is_arrival }).collect()
    }
}

impl Changes for Users {
    fn transaction(&mut self, random: &mut StdRng, rows: u64, sql: &mut String) -> u64 {
        let tables = self.ranges.len() as u32;
        let table = random.random_range(0..tables);
        let range = &mut self.ranges[table as usize];
        let kind = random.random_range(0..100);
        let name = format!("user_{:02}.user_{table:03}", self.database);
        // Numbers of two tables differ, and those of one table lie together.
        let base = (u64::from(self.database * tables + table) + 1) * 1_000_000_000;
        if self.is_arrival || kind < 55 || !range.is_filled() {
            let (first, last) = (base + range.high, base + range.high + rows - 1);
            write!(
                sql,
                "INSERT INTO {name} (user_id, user_name, birthday, phone, address, lunar_birthday, birthday_type) \
                 SELECT seq, CONCAT('user-', seq), DATE '1950-01-01' + INTERVAL (seq * 7919 % 20000) DAY, \
                 CONCAT('1380', seq % 10000000), CONCAT('No. ', seq % 500, ' Zhongshan Road, Nanjing'), '08-15', 'solar' \
                 FROM user_{:02}.seq_{first}_to_{last};",
                self.database
            )
            .expect("writing to a String cannot fail");
            range.high += rows;
        } else if kind < 88 {
            let first = base + range.any(random, rows);
            let last = first + rows - 1;
            let days = random.random_range(1..300);
            write!(sql, "UPDATE {name} SET birthday = birthday + INTERVAL {days} DAY WHERE user_id BETWEEN {first} AND {last};")
                .expect("writing to a String cannot fail");
        } else {
            let (first, last) = (base + range.low, base + range.low + rows - 1);
            write!(sql, "DELETE FROM {name} WHERE user_id BETWEEN {first} AND {last};")
                .expect("writing to a String cannot fail");
            range.low += rows;
        }
        rows
    }
}
