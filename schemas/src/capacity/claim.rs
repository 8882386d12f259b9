//! Claims: figures of documents, and how they compare with computed ones.

use crate::capacity::fields::{Fields, Invalid, Section};
use crate::capacity::sheet::{Figure, Unit};
use crate::capacity::term::Amount;

/// A figure of a document.
#[derive(Debug, Clone)]
pub struct DocumentClaim {
    /// Name of the computed figure.
    pub figure: String,
    pub document: String,
    pub line: u32,
    /// The document's own words.
    pub says: String,
    /// Value in the unit of the figure; bytes and percent as plain numbers.
    pub value: Amount,
    /// The reason why the claim differs, or its oddity although it does not.
    pub why: Option<String>,
}

/// The result of comparing a claim with the computed figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    Equal,
    /// The claim is off by less than its last digit and by less than a tenth.
    Rounded,
    Differs,
}

impl ClaimVerdict {
    pub fn name(self) -> &'static str {
        match self {
            ClaimVerdict::Equal => "equal",
            ClaimVerdict::Rounded => "rounded",
            ClaimVerdict::Differs => "differs",
        }
    }
}

/// Relative difference below which numbers are equal; floats of the same formula differ less.
const EQUAL: f64 = 1e-9;
/// Relative difference above which a document's number is not the rounded one.
const ROUNDED: f64 = 0.1;

impl DocumentClaim {
    /// Reads one entry of `claims`.
    pub fn read(number: usize, fields: &Fields) -> Result<Self, Vec<Invalid>> {
        let mut section = Section::new(&format!("[[claims]] number {number},"), fields);
        let claim = Self {
            figure: section.text("figure"),
            document: section.text("document"),
            line: section.whole("line", "").amount.low as u32,
            says: section.text("says"),
            value: section.any_range("value"),
            why: section.optional_text("why"),
        };
        match section.finish() {
            faults if faults.is_empty() => Ok(claim),
            faults => Err(faults),
        }
    }

    pub fn verdict(&self, figure: &Figure) -> ClaimVerdict {
        let ours = match figure.unit {
            Unit::Share => figure.amount.scaled(0.01),
            Unit::Bytes | Unit::Count(_) => figure.amount,
        };
        let worst = |low: ClaimVerdict, high: ClaimVerdict| match (low, high) {
            (ClaimVerdict::Equal, ClaimVerdict::Equal) => ClaimVerdict::Equal,
            (ClaimVerdict::Differs, _) | (_, ClaimVerdict::Differs) => ClaimVerdict::Differs,
            _ => ClaimVerdict::Rounded,
        };
        worst(compare(self.value.low, ours.low), compare(self.value.high, ours.high))
    }
}

fn compare(said: f64, ours: f64) -> ClaimVerdict {
    let off = (said - ours).abs();
    if off <= EQUAL * ours.abs() {
        ClaimVerdict::Equal
    } else if off < last_place(said) && off < ROUNDED * ours.abs() {
        ClaimVerdict::Rounded
    } else {
        ClaimVerdict::Differs
    }
}

/// Returns the value of the last digit that is not zero: 0.1 for 182.5, 100 for 1,200.
fn last_place(number: f64) -> f64 {
    let text = format!("{number}");
    match text.split_once('.') {
        Some((_, decimals)) => 10f64.powi(-(decimals.len() as i32)),
        None => 10f64.powi(text.bytes().rev().take_while(|digit| *digit == b'0').count() as i32),
    }
}
