//! The figures of a plan in the order in which they are computed, and the parts that all systems share.

use crate::capacity::fields::Section;
use crate::capacity::term::{Amount, Term, bytes};

/// The kind of thing that an amount counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things with a name.
    Count(&'static str),
    Bytes,
    /// A share, computed of 1 and printed in percent.
    Share,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Count(name) => name,
            Unit::Bytes => "bytes",
            Unit::Share => "percent",
        }
    }

    /// Writes an amount with its unit.
    pub fn text(self, amount: Amount) -> String {
        match self {
            Unit::Count(name) if amount == Amount::of(1.0) => format!("1 {}", name.trim_end_matches('s')),
            Unit::Count(name) => format!("{amount} {name}"),
            Unit::Bytes => bytes(amount),
            Unit::Share => format!("{} %", amount.scaled(0.01)),
        }
    }
}

/// One computed figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// System and name, such as `flux.month_tables`. Claims refer to it.
    pub name: String,
    /// The meaning of the figure in words.
    pub label: &'static str,
    pub unit: Unit,
    pub amount: Amount,
    pub formula: String,
    /// A fact about the figure that its arithmetic does not show.
    pub note: Option<String>,
}

impl Figure {
    pub fn text(&self) -> String {
        self.unit.text(self.amount)
    }
}

/// Something that holds rows and grows.
#[derive(Debug, Clone)]
pub struct Store {
    pub name: &'static str,
    pub rows_now: f64,
    pub rows_per_year: f64,
    pub rows_max: Amount,
    pub row_bytes: f64,
    /// Bytes of one database's disk.
    pub database_bytes: f64,
    /// Years after which rows are removed; `None` = they stay.
    pub kept_years: Option<f64>,
    /// Yearly growth of `rows_per_year`, as a share of 1.
    pub growth: f64,
}

/// Figures and stores of one system.
#[derive(Debug)]
pub struct Sheet {
    system: &'static str,
    pub figures: Vec<Figure>,
    pub stores: Vec<Store>,
}

impl Sheet {
    pub fn new(system: &'static str) -> Self {
        Self { system, figures: Vec::new(), stores: Vec::new() }
    }

    /// Adds a figure, and returns it as a term that later formulas print as its value and unit.
    pub fn add(&mut self, name: &str, label: &'static str, unit: Unit, term: &Term) -> Term {
        self.figures.push(Figure {
            name: format!("{}.{name}", self.system),
            label,
            unit,
            amount: term.amount,
            formula: term.formula().to_owned(),
            note: None,
        });
        let text = match unit {
            Unit::Bytes => format!("{} of {label}", bytes(term.amount)),
            _ => unit.text(term.amount),
        };
        Term::written(term.amount, text)
    }

    /// Attaches a note to the figure that was added last.
    pub fn note(&mut self, text: impl Into<String>) {
        if let Some(figure) = self.figures.last_mut() {
            figure.note = Some(text.into());
        }
    }

    /// Adds the time until the first part is full, by the earliest time at which each may be.
    pub fn first_full(&mut self, unit: Unit, parts: &[(&'static str, Term)]) {
        let earliest = parts.iter().min_by(|(_, one), (_, two)| one.amount.low.total_cmp(&two.amount.low));
        let Some((part, time)) = earliest else { return };
        let all: Vec<_> =
            parts.iter().map(|(part, time)| format!("{part} {}", unit.text(time.amount))).collect();
        let shortest = Term::written(time.amount, format!("the shortest of: {}", all.join("; ")));
        self.add("first_full", "until the first part is full", unit, &shortest);
        self.note(match time.amount.low == 0.0 {
            true => format!("the first part is {part}: it is full from the beginning, or may be"),
            false => format!("the first part is {part}"),
        });
    }

    /// Adds streams, lanes, connections and hours of a derived store with so many rows.
    pub fn flow(&mut self, section: &mut Section<'_>, rows: &Term) {
        let sources = section.whole("sources", "sources");
        let targets = section.whole("targets", "targets");
        let lanes = section.whole("lanes", "lanes for each source and target");
        let load = section.above_zero("load_rows_per_second", "rows a second");
        let reconcile = section.above_zero("reconcile_rows_per_second", "rows a second");
        let one = Term::number(1.0, "reader");
        let second = Term::number(3600.0, "seconds");
        self.add("streams", "streams in the log", Unit::Count("streams"), &sources);
        let lanes = sources.times(&targets).times(&lanes);
        let lanes = self.add("lanes", "lanes of one projection", Unit::Count("lanes"), &lanes);
        self.add(
            "target_connections",
            "connections to all targets that write, one a lane",
            Unit::Count("connections"),
            &lanes,
        );
        let most = sources.times(&one).plus(&lanes);
        self.add(
            "source_connections",
            "connections to all sources that read binlogs, at most",
            Unit::Count("connections"),
            &most,
        );
        self.note("one a reader, and one for each lane while it has a direct feed");
        let hours = rows.per(&load).per(&second);
        self.add("load_hours", "the first load of all rows", Unit::Count("hours"), &hours);
        let hours = rows.per(&reconcile).per(&second);
        self.add("reconcile_hours", "one reconciliation of all rows", Unit::Count("hours"), &hours);
    }
}
