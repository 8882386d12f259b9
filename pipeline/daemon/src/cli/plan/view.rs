//! A plan as it is shown: numbers with their texts, formulas, notes and claims.

use anabranch_schemas::capacity::claim::{ClaimVerdict, DocumentClaim};
use anabranch_schemas::capacity::growth::{Year, grow};
use anabranch_schemas::capacity::plan::{JudgedFigure, Plan, System};
use anabranch_schemas::capacity::sheet::{Figure, Store, Unit};
use anabranch_schemas::capacity::term::Amount;
use serde::Serialize;

use super::measure::MeasuredView;

#[derive(Debug, Serialize)]
pub struct PlanView {
    pub systems: Vec<SystemView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<ShardingView>,
    /// The fields that `--measure` filled; `None` = all figures are computed from the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredView>,
}

#[derive(Debug, Serialize)]
pub struct SystemView {
    pub name: &'static str,
    pub figures: Vec<FigureView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreView>,
}

#[derive(Debug, Serialize)]
pub struct FigureView {
    pub name: String,
    pub label: &'static str,
    pub low: f64,
    pub high: f64,
    pub unit: &'static str,
    pub text: String,
    pub formula: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ClaimView>,
}

/// The statement of a document about a figure.
#[derive(Debug, Serialize)]
pub struct ClaimView {
    pub document: String,
    pub line: u32,
    pub says: String,
    pub low: f64,
    pub high: f64,
    /// `equal`, `rounded` or `differs`.
    pub verdict: &'static str,
    pub why: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct ShardingView {
    pub name: &'static str,
    pub figures: Vec<FigureView>,
    pub costs: &'static str,
}

/// A store from year to year.
#[derive(Debug, Serialize)]
pub struct StoreView {
    pub name: &'static str,
    pub years: Vec<YearView>,
}

#[derive(Debug, Serialize)]
pub struct YearView {
    pub year: u32,
    pub rows: f64,
    pub bytes: f64,
    pub filled_percent_low: f64,
    pub filled_percent_high: f64,
    pub databases: f64,
    #[serde(skip)]
    pub texts: [String; 5],
}

impl PlanView {
    pub fn of(plan: &Plan, is_compared: bool, years: Option<u32>) -> Self {
        let shardings = plan.shardings().filter(|_| is_compared);
        let compare = shardings.into_iter().flatten().map(|sharding| ShardingView {
            name: sharding.name,
            figures: sharding.figures.iter().map(FigureView::of).collect(),
            costs: sharding.costs,
        });
        Self {
            systems: plan.systems.iter().map(|system| SystemView::of(system, years)).collect(),
            compare: compare.collect(),
            measured: None,
        }
    }
}

impl SystemView {
    fn of(system: &System, years: Option<u32>) -> Self {
        let figures = system.figures.iter().map(|JudgedFigure { figure, claims }| FigureView {
            claims: claims.iter().map(|(claim, verdict)| ClaimView::of(claim, *verdict)).collect(),
            ..FigureView::of(figure)
        });
        let stores =
            years.map(|years| system.stores.iter().map(|store| StoreView::of(store, years)).collect());
        Self { name: system.name, figures: figures.collect(), stores: stores.unwrap_or_default() }
    }
}

impl FigureView {
    fn of(figure: &Figure) -> Self {
        let amount = match figure.unit {
            Unit::Share => figure.amount.scaled(0.01),
            Unit::Bytes | Unit::Count(_) => figure.amount,
        };
        Self {
            name: figure.name.clone(),
            label: figure.label,
            low: amount.low,
            high: amount.high,
            unit: figure.unit.name(),
            text: figure.text(),
            formula: figure.formula.clone(),
            note: figure.note.clone(),
            claims: Vec::new(),
        }
    }
}

impl ClaimView {
    fn of(claim: &DocumentClaim, verdict: ClaimVerdict) -> Self {
        Self {
            document: claim.document.clone(),
            line: claim.line,
            says: claim.says.clone(),
            low: claim.value.low,
            high: claim.value.high,
            verdict: verdict.name(),
            why: claim.why.clone(),
        }
    }

    /// Returns one sentence: the document, how its figure compares, and why.
    pub fn text(&self) -> String {
        let Self { document, line, says, verdict, why, .. } = self;
        let verdict = match *verdict {
            "equal" => "the same figure",
            "rounded" => "the same figure, rounded",
            _ => "NOT this figure",
        };
        let why = match (why, self.verdict) {
            (Some(why), _) => format!(": {why}"),
            (None, "differs") => ": the plan gives no reason".to_owned(),
            (None, _) => String::new(),
        };
        format!("{document}, line {line}, says \"{says}\": {verdict}{why}")
    }
}

impl StoreView {
    fn of(store: &Store, years: u32) -> Self {
        Self { name: store.name, years: grow(store, years).into_iter().map(YearView::of).collect() }
    }
}

impl YearView {
    pub const HEADS: [&str; 5] = ["YEAR", "ROWS", "BYTES", "TABLES FILLED", "DATABASES BY DISK"];

    fn of(year: Year) -> Self {
        let Year { year, rows, bytes, filled, databases } = year;
        let percent = filled.scaled(0.01);
        let texts = [
            year.to_string(),
            Amount::of(rows.round()).to_string(),
            Unit::Bytes.text(Amount::of(bytes)),
            Unit::Share.text(filled),
            Amount::of(databases).to_string(),
        ];
        Self {
            year,
            rows,
            bytes,
            filled_percent_low: percent.low,
            filled_percent_high: percent.high,
            databases,
            texts,
        }
    }
}
