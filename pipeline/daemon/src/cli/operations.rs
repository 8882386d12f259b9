//! `operations`: lists what commands and operators have changed, with who asked for it.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::Operations;
use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::OperationView;
use crate::output;
use crate::wiring::Wiring;

/// List what commands and operators of the live page have changed, the newest first
///
/// Each operation has a row for its beginning, with the state before it, and one for its end. Without a row for the end
/// it still goes on, or its process was ended, or the server of the table did not answer.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Rows, at most
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Print one JSON object a row
    #[arg(long)]
    json: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let newest = block_on(async { wiring.operations()?.newest(None, arguments.limit as usize).await });
    let newest = newest?.map_err(|fault: Fault| vec![fault])?;
    for row in newest.into_iter().map(OperationView::from) {
        let text = if arguments.json { output::json(&row) } else { text(&row) };
        if output::line(&text) == output::Reader::Gone {
            break;
        }
    }
    Ok(Exit::Success)
}

/// Returns a row as one line, with a line for each state that it has.
fn text(row: &OperationView) -> String {
    let at = i64::try_from(row.at_ms).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    let at = at.map_or_else(|| row.at_ms.to_string(), |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
    let OperationView { operation, phase, who, via, host, command, before, after, .. } = row;
    let mut lines = vec![format!("{at}  {operation}  {phase:<6}  {who}@{host} ({via})  {}", flat(command))];
    for (name, state) in [("before", before), ("after", after)] {
        lines.extend(state.iter().flat_map(|state| state.lines()).map(|line| format!("  {name:<6}  {line}")));
    }
    lines.join("\n")
}

/// Returns a text without line breaks.
fn flat(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_states_below_it_and_no_line_of_another_row() {
        let row = OperationView {
            number: 7,
            operation: "00000000000000aa".to_owned(),
            phase: "failed",
            at_ms: 1_795_230_000_000,
            who: "ann".to_owned(),
            via: "page",
            host: "db-1".to_owned(),
            version: "0.1.0".to_owned(),
            command: "anabranch pause --reason 'a\nb'".to_owned(),
            before: None,
            after: Some("[log-unreachable] the log: away\nand more".to_owned()),
        };
        let expected = "2026-11-21 03:00:00Z  00000000000000aa  failed  ann@db-1 (page)  anabranch pause --reason 'a b'\n  \
                        after   [log-unreachable] the log: away\n  after   and more";
        assert_eq!(text(&row), expected);
    }
}
