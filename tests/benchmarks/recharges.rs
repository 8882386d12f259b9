//! Changes of payment documents in 600 tables: 70 % of the transactions insert, 25 % change amounts, 5 % delete.
//!
//! A transaction of 100 rows has ten recharges of one user partition and one day. Each has nine documents below it, in
//! four tables by the placement rules. A transaction of one row has a recharge alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anabranch_schemas::change::{Row, Value};
use anabranch_schemas::flux::id::{FluxId, Parts, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::{Kind, StorageAddress};
use jiff::Span;
use jiff::civil::{Date, date};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::data::{Changes, LARGE, Range};
use crate::site::FLUX_PARTITIONS;

/// Source databases: each has [`FLUX_PARTITIONS`] user partitions.
const DATABASES: u32 = 10;
/// User partitions of all databases.
pub const PARTITIONS: u32 = DATABASES * FLUX_PARTITIONS;
/// Region and side of all documents, as the demo's configuration declares its last source: a site has one.
const REGION: Region = Region::Singapore;
const SIDE: Side = Side::FailOver;
/// Recharges are of December and January, whose tables exist.
const FIRST_DAY: Date = date(2025, 12, 1);
const DAYS: u32 = 62;
/// Recharges of a large transaction. They share their day.
const RECHARGES: u32 = 10;
/// Distance of the first sequences of two recharges.
const SEQUENCES: u32 = 50;
/// Number of the first recharge without documents below it.
const FIRST_LONE: u32 = 1_000_000;
/// Recharges of a partition that are kept before one is changed or deleted.
const KEPT_MIN: u64 = 3;

/// A payment document, and the one that it follows.
#[derive(Debug, Clone, Copy)]
pub struct Document {
    pub id: FluxId,
    pub parent: Option<FluxId>,
}

/// A recharge with everything that belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct Recharge {
    pub partition: u8,
    /// Number of the recharge in its user partition.
    pub number: u32,
    /// Atoms of the recharge, and of its refund.
    atoms: (u32, u32),
}

impl Recharge {
    /// A recharge with nine documents below it.
    pub fn of_ten(partition: u8, number: u32) -> Self {
        Self { partition, number, atoms: (4, 1) }
    }

    /// A recharge with 20 documents below it: 17 follow the recharge, and 3 its refund.
    pub fn with_twenty(partition: u8, number: u32) -> Self {
        Self { partition, number, atoms: (14, 2) }
    }

    /// Returns all documents; the recharge is the first one.
    pub fn documents(self) -> Vec<Document> {
        let mut documents = vec![self.alone()];
        let recharge = documents[0].id;
        let mut below = |kind, parent| {
            let index = documents.len() as u32;
            let id = self.below(kind, &parent, index);
            documents.push(Document { id, parent: Some(parent) });
            id
        };
        below(Kind::Capture, recharge);
        below(Kind::RechargeClearing, recharge);
        for _ in 0..self.atoms.0 {
            below(Kind::Atom, recharge);
        }
        let refund = below(Kind::Refund, recharge);
        for _ in 0..self.atoms.1 {
            below(Kind::Atom, refund);
        }
        below(Kind::RefundClearing, refund);
        documents
    }

    /// Returns the recharge without the documents below it.
    fn alone(self) -> Document {
        let address = StorageAddress::of_recharge(self.day(), self.partition, SIDE);
        Document { id: self.id(Kind::Recharge, 1, address, 0), parent: None }
    }

    fn below(self, kind: Kind, parent: &FluxId, index: u32) -> FluxId {
        // The business codes of the demo's configuration. An atom has that of its composite.
        let business = match kind {
            Kind::Capture => 2,
            Kind::Refund => 3,
            Kind::RechargeClearing => 5,
            Kind::RefundClearing => 6,
            _ => parent.parts().business,
        };
        let address = kind.address_below(parent).expect("the parent fits");
        self.id(kind, business, address, index)
    }

    fn id(self, kind: Kind, business: u8, address: StorageAddress, index: u32) -> FluxId {
        let StorageAddress { side, partition, month } = address;
        let parts = Parts {
            date: self.day(),
            version: 1,
            region: REGION,
            system: SYSTEM,
            level: kind.level(),
            business,
            side,
            month,
            partition,
            reserved: 0,
            sequence: self.number * SEQUENCES + index,
        };
        FluxId::of(parts, SYSTEM).expect("each part follows its rule")
    }

    fn day(self) -> Date {
        let days = Span::new().days(i64::from(self.number / RECHARGES % DAYS));
        FIRST_DAY.checked_add(days).expect("the calendar goes on after 2026")
    }
}

impl Document {
    /// Returns the database and the table that the digits name.
    pub fn table(&self) -> (String, String) {
        let parts = self.id.parts();
        let (level, partition, month) = (parts.level.name(), parts.partition, parts.month.digits());
        (format!("flux_00_{}", partition / 10), format!("{level}_{partition:02}_{month:02}"))
    }

    /// Returns the captured row.
    pub fn row(&self) -> Row<'static> {
        let bytes = |text: String| Value::Bytes(text.into_bytes().into());
        let parts = self.id.parts();
        let (year, month, day) = (parts.date.year(), parts.date.month(), parts.date.day());
        let [hour, minute, second] = self.time();
        let created = Value::DateTime {
            year: year.unsigned_abs(),
            month: month.unsigned_abs(),
            day: day.unsigned_abs(),
            hour,
            minute,
            second,
            microsecond: 250_000,
        };
        let parent = self.parent.map_or(Value::Null, |parent| bytes(parent.to_string()));
        vec![bytes(self.id.to_string()), parent, bytes(self.amount()), created]
    }

    /// Returns the columns id, parent_id, amount and created as SQL.
    fn values(&self) -> String {
        let parent = self.parent.map_or("NULL".to_owned(), |parent| format!("'{parent}'"));
        let [hour, minute, second] = self.time();
        let (id, amount, date) = (self.id, self.amount(), self.id.parts().date);
        format!("('{id}',{parent},{amount},'{date} {hour:02}:{minute:02}:{second:02}.250')")
    }

    fn amount(&self) -> String {
        let cents = u64::from(self.id.parts().sequence) * 7_919 % 10_000_000;
        format!("{}.{:02}00", cents / 100, cents % 100)
    }

    /// Returns hour, minute and second of the document's day.
    fn time(&self) -> [u8; 3] {
        let second = self.id.parts().sequence % 86_400;
        [second / 3_600, second / 60 % 60, second % 60].map(|part| part as u8)
    }
}

/// Appends an INSERT for each table of these documents.
pub fn insert(documents: &[Document], sql: &mut String) {
    for (table, documents) in by_table(documents) {
        write!(sql, "INSERT INTO {table} (id, parent_id, amount, created) VALUES ").expect(STRING);
        let values: Vec<String> = documents.iter().map(|document| document.values()).collect();
        write!(sql, "{};", values.join(",")).expect(STRING);
    }
}

fn by_table(documents: &[Document]) -> BTreeMap<String, Vec<&Document>> {
    let mut tables: BTreeMap<String, Vec<&Document>> = BTreeMap::new();
    for document in documents {
        let (database, table) = document.table();
        tables.entry(format!("{database}.{table}")).or_default().push(document);
    }
    tables
}

/// The tables of one database.
#[derive(Debug)]
pub struct Recharges {
    database: u32,
    /// Large transactions of each user partition, counted from 0.
    large: [Range; FLUX_PARTITIONS as usize],
    /// Recharges of each user partition without documents below them, counted from 0.
    lone: [Range; FLUX_PARTITIONS as usize],
    /// True if all transactions only insert.
    is_arrival: bool,
}

impl Recharges {
    pub const WHAT: &str = "payment documents in 600 tables";
    pub const NEW: &str = "new payment documents in 600 tables";

    /// One writer for each database.
    pub fn writers() -> Vec<Self> {
        Self::each(false)
    }

    /// One writer for each database, which only inserts.
    pub fn arriving() -> Vec<Self> {
        Self::each(true)
    }

    fn each(is_arrival: bool) -> Vec<Self> {
        let of =
            |database| Self { database, large: Default::default(), lone: Default::default(), is_arrival };
        (0..DATABASES).map(of).collect()
    }
}

impl Changes for Recharges {
    fn transaction(&mut self, random: &mut StdRng, rows: u64, sql: &mut String) -> u64 {
        let second = random.random_range(0..FLUX_PARTITIONS);
        let partition = (self.database * FLUX_PARTITIONS + second) as u8;
        let is_large = rows == LARGE;
        let ranges = if is_large { &mut self.large } else { &mut self.lone };
        let range = &mut ranges[second as usize];
        let kind = random.random_range(0..100);
        let is_new = self.is_arrival || kind < 70 || range.high - range.low < KEPT_MIN;
        let number = match kind {
            _ if is_new => {
                range.high += 1;
                range.high - 1
            }
            ..95 => range.any(random, 1),
            _ => {
                range.low += 1;
                range.low - 1
            }
        };
        let documents: Vec<Document> = if is_large {
            let first = number as u32 * RECHARGES;
            let each = |number| Recharge::of_ten(partition, number).documents();
            (first..first + RECHARGES).flat_map(each).collect()
        } else {
            vec![Recharge::of_ten(partition, FIRST_LONE + number as u32).alone()]
        };
        sql.push_str("BEGIN;");
        if is_new {
            insert(&documents, sql);
        } else {
            let more = random.random_range(1..100);
            for (table, documents) in by_table(&documents) {
                let ids: Vec<String> =
                    documents.iter().map(|document| format!("'{}'", document.id)).collect();
                let ids = ids.join(",");
                match kind {
                    ..95 => write!(sql, "UPDATE {table} SET amount = amount + {more} WHERE id IN ({ids});"),
                    _ => write!(sql, "DELETE FROM {table} WHERE id IN ({ids});"),
                }
                .expect(STRING);
            }
        }
        sql.push_str("COMMIT;");
        documents.len() as u64
    }
}

const STRING: &str = "writing to a String cannot fail";
