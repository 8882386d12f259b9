//! `flux next`: identifiers from the counters themselves, without a daemon.

use anabranch_pipeline::identifiers::flux::{FluxOrder, VERSION};
use anabranch_pipeline::records::RequestKey;
use anabranch_schemas::flux::id::FluxId;
use anabranch_schemas::flux::placement::Kind;
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;

use super::{kind, kinds_help, malformed};
use crate::cli::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::output;
use crate::wiring::Wiring;

/// Give out identifiers of new documents; each is given out once, and unused numbers are skipped
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[arg(value_parser = kind, help = kinds_help())]
    kind: Kind,
    /// Business code, 00 to 99
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..100))]
    business: u8,
    /// The identifier of the document that it follows; recharges and withdrawals follow none
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// User partition of a recharge or withdrawal, 00 to 99
    #[arg(long, conflicts_with = "parent", value_parser = clap::value_parser!(u8).range(0..100))]
    partition: Option<u8>,
    /// The recharge enters the fail-over database
    #[arg(long, conflicts_with = "parent")]
    fail_over: bool,
    /// Date of the documents, as YYYY-MM-DD: at most a week ago. Default: today in flux.time_zone
    #[arg(long)]
    date: Option<Date>,
    /// Data version: 0 or 1 (normal), 8 (new reconciliation)
    #[arg(long, default_value_t = VERSION)]
    data_version: u8,
    /// Digits 22 to 23, which may be anything; with [flux.years] the year digit replaces one of them
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..100))]
    reserved: u8,
    /// Number of identifiers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// A name of this request: a request with the same name gets the same identifiers
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Given {
    identifiers: Vec<String>,
}

pub(super) fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let flux = Wiring::new(cli.configuration()?).flux_identifiers().map_err(|fault| vec![fault])?;
    let read = |parent: &String| {
        let parsed = FluxId::parse_of(parent.as_bytes(), flux.system());
        parsed.map_err(|defect| vec![malformed("--parent", defect)])
    };
    let order = FluxOrder {
        kind: arguments.kind,
        parent: arguments.parent.as_ref().map(read).transpose()?,
        partition: arguments.partition,
        is_failed_over: arguments.fail_over,
        date: arguments.date,
        version: arguments.data_version,
        business: arguments.business,
        reserved: arguments.reserved,
        count: arguments.count,
    };
    let key = arguments.key.as_ref().map(|key| RequestKey::of(key.as_bytes()));
    let identifiers = block_on(flux.issue(key.as_ref(), &order))?.map_err(|fault| vec![fault])?;
    let given = Given { identifiers: identifiers.iter().map(FluxId::to_string).collect() };
    _ = output::line(&if arguments.json { output::json(&given) } else { given.identifiers.join("\n") });
    Ok(Exit::Success)
}
