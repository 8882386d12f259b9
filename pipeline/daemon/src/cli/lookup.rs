//! `lookup`: finds the devices that have a code as the HTTP API does, but without a running daemon.
//!
//! If the daemon of this configuration answers, its lag is shown, because the daemon knows earlier heads of the source.

use std::sync::Arc;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::serial::CodeKind;
use clap::Args;
use serde_json::json;

use super::{Cli, Outcome, block_on};
use crate::api::client;
use crate::change_view::bytes_json;
use crate::exit::Exit;
use crate::lookup::{AtLeast, Lookup, LookupAnswer, LookupQuestion, Refusal};
use crate::output;
use crate::wiring::{Duplicate, Wiring};

/// Find the devices that have a code: an IMEI, MEID, box or item code
#[derive(Debug, Args)]
pub struct Arguments {
    /// The code, exactly as it is written on the label
    #[arg(required_unless_present = "duplicates")]
    code: Option<String>,
    /// Instead of a code: show every IMEI that names more than one device. Reads all mapping tables
    #[arg(long, conflicts_with_all = ["code", "kind", "at_least", "rows", "limit", "after"])]
    duplicates: bool,
    /// Only as this kind: imei1, imei2, meid, box_no, item_code
    #[arg(long)]
    kind: Option<String>,
    /// Wait, 2 s at most, until this place of a source's binlog has been passed: SOURCE:1:42:8192,
    /// SOURCE:binlog.000042:8192 or SOURCE:GTID-set
    #[arg(long, value_name = "PLACE")]
    at_least: Option<String>,
    /// Read the inventory rows too
    #[arg(long)]
    rows: bool,
    /// Claims shown at once
    #[arg(long)]
    limit: Option<usize>,
    /// Continue after a page, with its `next`
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let config = cli.configuration()?;
    let Some(code) = &arguments.code else { return duplicates(config, arguments.json) };
    let http = config.http.clone();
    let answer = block_on(async {
        let wiring = Wiring::new(config);
        let lookup = Lookup::new(&wiring).ok_or_else(|| vec![unconfigured()])?;
        lookup.refresh().await;
        if let Some(daemon) = client::status(&http).await {
            lookup.lanes_seen(&daemon.status);
        }
        ask(&lookup, code, arguments).await.map_err(|refusal| vec![fault("lookup", refusal)])
    })??;
    let text = if arguments.json { output::json(&answer) } else { text(&answer) };
    _ = output::line(&text);
    Ok(Exit::Success)
}

/// Prints one line for each IMEI as soon as it is found.
fn duplicates(config: Config, is_json: bool) -> Outcome {
    let wiring = Wiring::new(config);
    let show = |Duplicate { value, devices }: Duplicate| {
        _ = output::line(&match is_json {
            true => output::json(&json!({ "code": bytes_json(&value), "devices": devices })),
            false => format!("{}  {devices} devices", value.escape_ascii()),
        });
    };
    block_on(async {
        let projection = wiring.lookup_projection().ok_or_else(|| vec![unconfigured()])?;
        let mapping = wiring.mapping(&projection.name, 1).ok_or_else(|| vec![unconfigured()])?;
        mapping.duplicates(&[CodeKind::Imei1, CodeKind::Imei2], show).await.map_err(|fault| vec![fault])
    })??;
    Ok(Exit::Success)
}

async fn ask(lookup: &Lookup, code: &str, arguments: &Arguments) -> Result<LookupAnswer, Refusal> {
    let place = arguments.at_least.as_deref().map(str::parse::<AtLeast>).transpose()?;
    let (kind, after) = (arguments.kind.as_deref(), arguments.after.as_deref());
    let question =
        LookupQuestion::new(code.as_bytes().to_vec(), kind, arguments.limit, after, arguments.rows)?;
    lookup.ask(&[question], place.as_ref()).await?.only()
}

fn unconfigured() -> Fault {
    Fault::new(Code::LookupUnconfigured, "configuration key projections", "none of kind `serial_mapping`")
        .needs("mapping tables for the lookup")
        .remedy("see deploy/serial-codes.example.toml")
}

/// Returns the fault that ends a command with this refusal.
pub(super) fn fault(subject: &str, refusal: Refusal) -> Fault {
    let code = refusal.code();
    match refusal {
        Refusal::Malformed(detail) => Fault::new(code, subject, detail),
        Refusal::Lagging(missing) => Fault::new(code, subject, missing)
            .needs("lanes that pass the point of --at-least within 2 s")
            .remedy("try again, or without --at-least; `anabranch --config FILE status` shows the lag"),
        Refusal::Busy => Fault::new(code, subject, refusal.to_string()),
        Refusal::Failed(fault) => Arc::into_inner(fault)
            .unwrap_or_else(|| Fault::new(Code::Internal, subject, "a fault that others hold too")),
    }
}

/// Returns one line for each claim, with its rows beneath.
fn text(answer: &LookupAnswer) -> String {
    let unknown = || "?".to_owned();
    let mut lines = vec![["DEVICE", "KIND", "SOURCE", "TABLE", ""].map(str::to_owned)];
    for device in &answer.devices {
        for claim in &device.claims {
            let table = claim.database.as_ref().zip(claim.table.as_ref());
            lines.push([
                String::from_utf8_lossy(&device.uuid).into_owned(),
                claim.kind.to_owned(),
                claim.source.clone().unwrap_or_else(unknown),
                table.map_or_else(unknown, |(database, table)| format!("{database}.{table}")),
                match claim.confirmed {
                    None => String::new(),
                    Some(true) => "the row confirms it".to_owned(),
                    Some(false) => "the row does not confirm it (any more)".to_owned(),
                },
            ]);
            if let Some(row) = &claim.row {
                lines.push([format!("  {row}"), String::new(), String::new(), String::new(), String::new()]);
            }
        }
    }
    let widths: [usize; 4] = std::array::from_fn(|column| {
        let cells = lines.iter().filter(|line| !line[1].is_empty()).map(|line| line[column].chars().count());
        cells.max().unwrap_or_default()
    });
    let mut text = String::new();
    for [device, kind, source, table, note] in &lines {
        let [one, two, three, four] = widths;
        let line = format!("{device:one$}  {kind:two$}  {source:three$}  {table:four$}  {note}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if answer.devices.is_empty() {
        text = "no device has this code\n".to_owned();
    }
    text.push_str(&format!("from {}", answer.from.name()));
    if let Some(lag) = answer.freshness.lanes.lag_ms {
        text.push_str(&format!(", lanes {lag} ms behind"));
    }
    if answer.freshness.lanes.replaying {
        text.push_str(", a lane is replaying: rows may be missing");
    }
    if let Some(why) = &answer.freshness.cache_bypassed {
        text.push_str(&format!("; past the cache: {why}"));
    }
    if let Some(next) = &answer.next {
        text.push_str(&format!("\nthere are more: --after {next}"));
    }
    text
}
