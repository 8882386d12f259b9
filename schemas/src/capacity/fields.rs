//! The fields of a plan file. A field that is absent, unknown or out of its range is a fault, with its value and the
//! expected one. All faults are returned together.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use crate::capacity::term::{Amount, Term, bytes};

/// A value of a plan file, of any kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    Flag(bool),
    Integer(i64),
    Decimal(f64),
    Text(String),
    List(Vec<Setting>),
    Table(Fields),
}

/// Fields by name.
pub type Fields = BTreeMap<String, Setting>;

/// A fault of one field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {found}; expected: {expected}")]
pub struct Invalid {
    /// Section and field, such as `[flux] databases`.
    pub field: String,
    pub found: String,
    pub expected: String,
}

/// A limit above any number that a plan needs; results that are computed of such numbers stay finite.
const NUMBER_MAX: f64 = 1e15;

/// The range of a field's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    /// A whole number from 1.
    Whole,
    /// Any number above 0.
    AboveZero,
    ZeroOrMore,
    Percent,
    /// A percentage of growth in a year.
    Growth,
}

impl Range {
    fn holds(self, number: f64) -> bool {
        match self {
            Self::Whole => (1.0..=NUMBER_MAX).contains(&number) && number.fract() == 0.0,
            Self::AboveZero => number > 0.0 && number <= NUMBER_MAX,
            Self::ZeroOrMore => (0.0..=NUMBER_MAX).contains(&number),
            Self::Percent => number > 0.0 && number <= 100.0,
            Self::Growth => (0.0..=1000.0).contains(&number),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Whole => "a whole number from 1 to 10^15",
            Self::AboveZero => "a number above 0, up to 10^15",
            Self::ZeroOrMore => "a number from 0 to 10^15",
            Self::Percent => "a percentage above 0, up to 100",
            Self::Growth => "a percentage from 0 to 1,000",
        }
    }
}

/// The reader of one section of a plan file.
#[derive(Debug)]
pub struct Section<'f> {
    name: String,
    fields: &'f Fields,
    asked: Vec<&'static str>,
    faults: Vec<Invalid>,
}

impl<'f> Section<'f> {
    pub fn new(name: &str, fields: &'f Fields) -> Self {
        Self { name: name.to_owned(), fields, asked: Vec::new(), faults: Vec::new() }
    }

    /// Reads a whole number from 1.
    pub fn whole(&mut self, field: &'static str, name: &str) -> Term {
        Term::named(self.amount(field, Range::Whole, false), name)
    }

    pub fn above_zero(&mut self, field: &'static str, name: &str) -> Term {
        Term::named(self.amount(field, Range::AboveZero, false), name)
    }

    pub fn zero_or_more(&mut self, field: &'static str, name: &str) -> Term {
        Term::named(self.amount(field, Range::ZeroOrMore, false), name)
    }

    /// Reads a whole number, or two as `[low, high]`.
    pub fn range(&mut self, field: &'static str, name: &str) -> Term {
        Term::named(self.amount(field, Range::Whole, true), name)
    }

    /// Reads a share of a whole: a percentage, or two as `[low, high]`.
    pub fn share(&mut self, field: &'static str, name: &str) -> Term {
        let percent = self.amount(field, Range::Percent, true);
        Term::written(percent.scaled(100.0), format!("{percent} % {name}"))
    }

    /// Reads the yearly growth of a year's rows, as a share of 1.
    pub fn growth(&mut self) -> f64 {
        self.amount("growth_percent", Range::Growth, false).low / 100.0
    }

    /// Reads bytes; the formula shows them in the unit that reads best.
    pub fn bytes(&mut self, field: &'static str, name: &str) -> Term {
        let amount = self.amount(field, Range::Whole, false);
        Term::written(amount, format!("{} {name}", bytes(amount)))
    }

    pub fn flag(&mut self, field: &'static str) -> bool {
        self.asked.push(field);
        match self.fields.get(field) {
            Some(Setting::Flag(flag)) => *flag,
            other => {
                self.refuse(field, other, "true or false");
                false
            }
        }
    }

    /// Reads one of the choices; any other value is a fault, and the first choice takes its place.
    pub fn choice<const N: usize>(
        &mut self,
        field: &'static str,
        choices: [&'static str; N],
    ) -> &'static str {
        self.asked.push(field);
        let found = self.fields.get(field);
        let chosen = match found {
            Some(Setting::Text(text)) => choices.into_iter().find(|choice| choice == text),
            _ => None,
        };
        chosen.unwrap_or_else(|| {
            self.refuse(field, found, &choices.map(|choice| format!("\"{choice}\"")).join(" or "));
            choices[0]
        })
    }

    /// Reads any text.
    pub fn text(&mut self, field: &'static str) -> String {
        self.asked.push(field);
        match self.fields.get(field) {
            Some(Setting::Text(text)) if !text.is_empty() => text.clone(),
            other => {
                self.refuse(field, other, "a text");
                String::new()
            }
        }
    }

    /// Reads a text that may be absent.
    pub fn optional_text(&mut self, field: &'static str) -> Option<String> {
        self.asked.push(field);
        self.fields.contains_key(field).then(|| self.text(field))
    }

    /// Reads any number from 0, or two as `[low, high]`.
    pub fn any_range(&mut self, field: &'static str) -> Amount {
        self.amount(field, Range::ZeroOrMore, true)
    }

    /// Returns all faults; each field that was never read is one.
    pub fn finish(mut self) -> Vec<Invalid> {
        let unknown: Vec<_> =
            self.fields.iter().filter(|(name, _)| !self.asked.contains(&name.as_str())).collect();
        let known = self.asked.join(", ");
        for (name, setting) in unknown {
            self.faults.push(Invalid {
                field: format!("{} {name}", self.name),
                found: format!("no such field (its value is {})", shown(setting)),
                expected: format!("one of {known}"),
            });
        }
        self.faults
    }

    /// Reads a number or two. A faulty value becomes 1, so that reading goes on and finds all faults.
    fn amount(&mut self, field: &'static str, range: Range, may_be_two: bool) -> Amount {
        self.asked.push(field);
        let found = self.fields.get(field);
        let read = match found {
            Some(Setting::List(two)) if may_be_two => match two.as_slice() {
                [low, high] => number(low).zip(number(high)).map(|(low, high)| Amount { low, high }),
                _ => None,
            },
            Some(one) => number(one).map(Amount::of),
            None => None,
        };
        let fits = |amount: &Amount| {
            range.holds(amount.low) && range.holds(amount.high) && amount.low <= amount.high
        };
        read.filter(fits).unwrap_or_else(|| {
            let two = if may_be_two { ", or two as [low, high]" } else { "" };
            self.refuse(field, found, &format!("{}{two}", range.expected()));
            Amount::of(1.0)
        })
    }

    /// Adds a fault of a field, unless the field has one already.
    fn refuse(&mut self, field: &str, found: Option<&Setting>, expected: &str) {
        let field = format!("{} {field}", self.name);
        if self.faults.iter().any(|fault| fault.field == field) {
            return;
        }
        self.faults.push(Invalid {
            field,
            found: found.map_or_else(
                || "the field is absent".to_owned(),
                |found| format!("its value is {}", shown(found)),
            ),
            expected: expected.to_owned(),
        });
    }
}

fn number(setting: &Setting) -> Option<f64> {
    match setting {
        Setting::Integer(number) => Some(*number as f64),
        Setting::Decimal(number) => Some(*number),
        _ => None,
    }
}

/// Characters of a text that faults show, at most.
const SHOWN_CHARACTERS_MAX: usize = 40;

fn shown(setting: &Setting) -> String {
    match setting {
        Setting::Flag(flag) => flag.to_string(),
        Setting::Integer(number) => number.to_string(),
        Setting::Decimal(number) => number.to_string(),
        Setting::Text(text) => format!("{:?}", text.chars().take(SHOWN_CHARACTERS_MAX).collect::<String>()),
        Setting::List(list) => match list.len() {
            0..=2 => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(", ")),
            more => format!("a list of {more}"),
        },
        Setting::Table(_) => "a table".to_owned(),
    }
}
