//! Tables by year that must be empty before their year digit comes round: the lines of `flux retention plan`, and the
//! check `flux retention round`. An absent table is as good as an empty one.

use anabranch_pipeline::error::Fault;
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;

use super::document_tables::{DocumentTable, Round, document_tables, refused, today};
use crate::cli::Outcome;
use crate::exit::Exit;
use crate::output;
use crate::wiring::Wiring;

/// Check that the tables by year whose digit comes round soon are empty, so that no table gets documents of two years
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Months ahead: a table that is used again within them must be empty
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=100))]
    months: u8,
    /// The day that months are counted from, as YYYY-MM-DD. Default: today, UTC
    #[arg(long, value_name = "DATE")]
    today: Option<Date>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A table by year with rows, and when its number is used again.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct RoundView {
    source: String,
    table: String,
    /// The last month of its oldest documents; absent when the least key does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<String>,
    /// The month in which an identifier names the table again.
    comes_round: String,
    /// Months until then; zero or less = it has come round, and the rows are still there.
    months: i32,
}

/// The tables by year of all sources that were looked at.
#[derive(Debug, Serialize)]
struct Checked {
    today: String,
    months: u8,
    tables_by_year: usize,
}

pub(super) async fn run(wiring: &Wiring, arguments: &Arguments) -> Outcome {
    let today = today(arguments.today);
    let tables = document_tables(wiring, today).await.map_err(|fault| vec![fault])?;
    let checked = Checked {
        today: today.to_string(),
        months: arguments.months,
        tables_by_year: tables.iter().filter(|table| table.is_by_year).count(),
    };
    if checked.tables_by_year == 0 {
        let found = "no source has a captured table with a year digit";
        let needed = "an [[entities]] entry of `flux` with {year}, beside [flux.years]";
        return Err(vec![refused("flux retention round", found).needs(needed)]);
    }
    let faults: Vec<Fault> = coming(&tables, arguments.months.into()).iter().map(RoundView::fault).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    _ = output::line(&if arguments.json { output::json(&checked) } else { checked.text() });
    Ok(Exit::Success)
}

/// Returns the tables with rows whose year digit comes round within so many months, or has come round, and those whose
/// rows may be of any year.
pub(super) fn coming(tables: &[DocumentTable], months: i32) -> Vec<RoundView> {
    let view = |table: &DocumentTable| {
        let Round { holds, comes, months } =
            table.round.filter(|round| round.holds.is_none() || round.months <= months)?;
        Some(RoundView {
            source: table.source.clone(),
            table: table.name(),
            holds: holds.map(|month| month.to_string()),
            comes_round: comes.to_string(),
            months,
        })
    };
    tables.iter().filter_map(view).collect()
}

impl RoundView {
    pub(super) fn line(&self) -> String {
        format!("round       {} of {}: {}", self.table, self.source, self.text())
    }

    fn text(&self) -> String {
        let Self { holds, comes_round, months, .. } = self;
        let holds = match holds {
            Some(month) => format!("it has documents of {month}'s table"),
            None => "it has rows, and its least key is no identifier of its months".to_owned(),
        };
        match months {
            ..=0 => format!("{holds}, and its number came round in {comes_round}"),
            1.. => format!("{holds}, and its number comes round in {comes_round}, {months} months from now"),
        }
    }

    fn fault(&self) -> Fault {
        refused(format!("table {} of source {}", self.table, self.source), self.text())
            .needs("an empty table, or none, before identifiers name it again")
            .remedy("anabranch --config FILE flux retention plan")
    }
}

impl Checked {
    fn text(&self) -> String {
        let Self { today, months, tables_by_year } = self;
        format!(
            "{today}: of {tables_by_year} tables by year, those whose number comes round within {months} months are empty"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anabranch_pipeline::config::{Removal, UnseenChanges};
    use anabranch_schemas::change::{Entity, TableIdentity};
    use anabranch_schemas::flux::retention::YearMonth;
    use anabranch_schemas::shard::ShardId;
    use jiff::civil::date;

    use super::*;
    use crate::retention::age::TableState;
    use crate::wiring::{CapturedTable, TableExtent};

    fn table(round: Round) -> DocumentTable {
        let (database, table) = ("flux_00_0", "atom_05_7_00");
        let shard = ShardId::of("main-a", database, table, 0);
        let identity =
            TableIdentity { entity: Entity::Flux, shard, database: database.into(), table: table.into() };
        let (unseen_changes, removal) = (UnseenChanges::Reread, Removal::Retain);
        let table = Arc::new(CapturedTable { identity, columns: Arc::new([]), unseen_changes, removal });
        DocumentTable {
            source: "main-a".to_owned(),
            extent: TableExtent { table, rows: 1, bytes: 1, greatest_key: None, least_key: None },
            partition: Some(5),
            level: None,
            state: TableState::Odd,
            is_by_year: true,
            round: Some(round),
        }
    }

    #[test]
    fn a_table_whose_rows_may_be_of_any_year_is_named_however_far_its_number_is() {
        let comes = YearMonth::of(date(2047, 1, 1));
        let round = |holds| table(Round { holds, comes, months: 120 });
        assert_eq!(coming(&[round(None)], 1).len(), 1, "the month itself: the next one is ten years away");
        assert_eq!(coming(&[round(Some(YearMonth::of(date(2037, 1, 1))))], 1), []);
    }

    fn view(holds: Option<&str>, months: i32) -> RoundView {
        RoundView {
            source: "main-a".to_owned(),
            table: "flux_00_0.atom_05_7_00".to_owned(),
            holds: holds.map(str::to_owned),
            comes_round: "2037-01".to_owned(),
            months,
        }
    }

    #[test]
    fn a_table_with_rows_is_named_with_what_it_holds_and_when_it_is_used_again() {
        assert_eq!(
            view(Some("2027-01"), 3).line(),
            "round       flux_00_0.atom_05_7_00 of main-a: it has documents of 2027-01's table, and its number comes \
             round in 2037-01, 3 months from now"
        );
        let late = view(Some("2027-01"), -2).fault().to_string();
        assert!(
            late.starts_with("[flux-retention-refused] table flux_00_0.atom_05_7_00 of source main-a: "),
            "{late}"
        );
        assert!(late.contains("its number came round in 2037-01; needed: an empty table"), "{late}");
        assert!(view(None, 0).text().starts_with("it has rows, and its least key is no identifier"));
    }
}
