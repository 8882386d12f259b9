//! Numbers that remember how they were computed, so that a printed formula cannot differ from its result.

use std::fmt;

/// A number, or a range of numbers from low to high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    pub low: f64,
    pub high: f64,
}

impl Amount {
    pub fn of(number: f64) -> Self {
        Self { low: number, high: number }
    }

    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self { low: of(self.low), high: of(self.high) }
    }

    /// Returns the amount divided by `by`, to be written in a unit of that size.
    pub fn scaled(self, by: f64) -> Self {
        self.map(|number| number / by)
    }
}

/// Decimals of a printed number; more would feign precision.
const DECIMALS: usize = 2;

/// Writes `1,234.5`, or `5–10` for a range.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (grouped(self.low), grouped(self.high));
        match low == high {
            true => f.write_str(&low),
            false => write!(f, "{low}–{high}"),
        }
    }
}

/// Writes a number with commas between thousands and at most two decimals; from 1e18 on, as a power of ten.
fn grouped(number: f64) -> String {
    if number.abs() >= 1e18 {
        return format!("{number:.3e}");
    }
    // As a float, 547.5 ÷ 100 is a little less than 5.475. The nudge rounds it to 5.48, as on paper.
    let nudged = if number.abs() < 1e6 { number.abs() + 1e-9 } else { number.abs() };
    let text = format!("{nudged:.DECIMALS$}");
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let decimals = decimals.trim_end_matches('0');
    let sign = if number < 0.0 { "-" } else { "" };
    let point = if decimals.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{decimals}")
}

/// Writes bytes in the largest decimal unit of which there is at least one.
pub fn bytes(amount: Amount) -> String {
    let units = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let unit = units.into_iter().find(|(size, _)| amount.high >= *size);
    let (size, name) = unit.unwrap_or((1.0, "bytes"));
    format!("{} {name}", amount.scaled(size))
}

/// How strongly the outermost operator of a formula binds, so that parentheses appear only where they are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Sum,
    Product,
    Name,
}

/// An amount with the text of its formula.
#[derive(Debug, Clone)]
pub struct Term {
    pub amount: Amount,
    text: String,
    binding: Binding,
}

impl Term {
    /// Returns an amount with its name. The first word of `name` is a plural, which loses its `s` after 1: `512 tables
    /// in each`, `1 table in each`.
    pub fn named(amount: Amount, name: &str) -> Self {
        let (first, rest) = name.split_at(name.find(' ').unwrap_or(name.len()));
        let first = if amount == Amount::of(1.0) { first.trim_end_matches('s') } else { first };
        Self { amount, text: format!("{amount} {first}{rest}"), binding: Binding::Name }
    }

    pub fn number(number: f64, name: &str) -> Self {
        Self::named(Amount::of(number), name)
    }

    /// Returns a term whose formula is this text, such as the amount in a unit.
    pub fn written(amount: Amount, text: String) -> Self {
        Self { amount, text, binding: Binding::Name }
    }

    pub fn formula(&self) -> &str {
        &self.text
    }

    /// Returns the text as an operand: in parentheses if it binds less strongly than `binding`.
    fn within(&self, binding: Binding) -> String {
        match self.binding < binding {
            true => format!("({})", self.text),
            false => self.text.clone(),
        }
    }

    pub fn times(&self, other: &Self) -> Self {
        let (one, two) = (self.amount, other.amount);
        Self {
            amount: Amount { low: one.low * two.low, high: one.high * two.high },
            text: format!("{} × {}", self.within(Binding::Product), other.within(Binding::Product)),
            binding: Binding::Product,
        }
    }

    /// Returns the quotient. For ranges, its low end is the low end of `self` divided by the high end of `other`.
    pub fn per(&self, other: &Self) -> Self {
        let (one, two) = (self.amount, other.amount);
        Self {
            amount: Amount { low: one.low / two.high, high: one.high / two.low },
            text: format!("{} ÷ {}", self.within(Binding::Product), other.within(Binding::Name)),
            binding: Binding::Product,
        }
    }

    pub fn plus(&self, other: &Self) -> Self {
        let (one, two) = (self.amount, other.amount);
        Self {
            amount: Amount { low: one.low + two.low, high: one.high + two.high },
            text: format!("{} + {}", self.text, other.text),
            binding: Binding::Sum,
        }
    }

    /// Returns the difference, at least zero.
    pub fn minus(&self, other: &Self) -> Self {
        let (one, two) = (self.amount, other.amount);
        let amount = Amount { low: one.low - two.high, high: one.high - two.low };
        Self {
            amount: amount.map(|number| number.max(0.0)),
            text: format!("{} − {}", self.text, other.within(Binding::Product)),
            binding: Binding::Sum,
        }
    }

    pub fn minimum(&self, other: &Self) -> Self {
        let (one, two) = (self.amount, other.amount);
        Self {
            amount: Amount { low: one.low.min(two.low), high: one.high.min(two.high) },
            text: format!("the lesser of ({}) and ({})", self.text, other.text),
            binding: Binding::Name,
        }
    }

    pub fn rounded_up(&self) -> Self {
        Self {
            amount: self.amount.map(f64::ceil),
            text: format!("{}, rounded up", self.text),
            binding: Binding::Sum,
        }
    }

    /// Rounds a quotient down and up to a range: 3.66 tables a database, dealt out whole, are 3 in some databases and 4
    /// in the others.
    pub fn dealt(&self) -> Self {
        let amount = Amount { low: self.amount.low.floor(), high: self.amount.high.ceil() };
        Self { amount, text: format!("{}, in whole numbers", self.text), binding: Binding::Sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_is_what_was_computed() {
        let databases = Term::number(3.0, "databases");
        let rows = Term::named(Amount { low: 5e6, high: 1e7 }, "rows");
        let both = databases.times(&rows);
        assert_eq!(both.formula(), "3 databases × 5,000,000–10,000,000 rows");
        assert_eq!(both.amount, Amount { low: 1.5e7, high: 3e7 });
        let share = databases.plus(&databases).times(&databases).per(&databases.plus(&rows));
        assert_eq!(
            share.formula(),
            "(3 databases + 3 databases) × 3 databases ÷ (3 databases + 5,000,000–10,000,000 rows)"
        );
        assert_eq!(Term::number(1.0, "tables in each").formula(), "1 table in each");
        assert_eq!(databases.minus(&rows).amount, Amount::of(0.0));
        assert_eq!(Term::number(3.66, "tables").dealt().amount, Amount { low: 3.0, high: 4.0 });
    }

    #[test]
    fn numbers_have_commas_and_at_most_two_decimals() {
        for (number, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (182.5, "182.5"),
            (5.475, "5.48"),
            (18_250_000_000.0, "18,250,000,000"),
            (6.083_33, "6.08"),
            (-1234.5, "-1,234.5"),
            (1e30, "1.000e30"),
        ] {
            assert_eq!(Amount::of(number).to_string(), text);
        }
        assert_eq!(Amount { low: 6.4, high: 12.8 }.to_string(), "6.4–12.8");
    }
}
