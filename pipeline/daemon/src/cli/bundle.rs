//! `bundle`: one archive, without secrets, for a person who helps from afar.
//!
//! Each part is gathered on its own, because such an archive is needed when a server is down or the configuration is
//! wrong.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value as Json, json};

use super::new_file::{create, unwritable};
use super::{Cli, Outcome, block_on, check, reconcile, status};
use crate::api::client;
use crate::exit::Exit;
use crate::output::{self, FaultView};
use crate::wiring::Wiring;
use crate::{redacted, telemetry, wall_clock};

/// Time for the daemon's answer; a busy daemon answers late.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// File of the changes of state that the daemon saw in its last hours.
const CHANGES: &str = "changes-of-state.json";
/// Folder of the files within the archive.
const FOLDER: &str = "anabranch-bundle";
/// Rights of the archive: only its owner may read it, since it names hosts, accounts, tables.
const MODE: u32 = 0o600;

/// Write an archive (.tar.gz) for a request for help: versions, configuration, check, status, faults, reconciliations
///
/// It holds no password, token or key, and no value of a row. It names hosts, accounts and tables. Parts that could not
/// be gathered say why.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The file to write; an existing one is not overwritten
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A file of the archive.
struct ArchiveFile {
    name: &'static str,
    text: String,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    // The file is created before the minutes that servers cost that are down.
    let file = create(&arguments.file, MODE).map_err(|fault| vec![fault])?;
    let mut parts = vec![
        ArchiveFile { name: "about.json", text: about() },
        ArchiveFile { name: "configuration.toml", text: configuration(cli) },
        ArchiveFile {
            name: "check.json",
            text: check::report(cli, false)
                .map_or_else(|faults| unavailable(&faults), |report| report.json()),
        },
    ];
    // Without a configuration, `check.json` says why, and no server can be asked.
    if let Ok(config) = cli.configuration() {
        let wiring = Wiring::new(config);
        parts.extend(block_on(asked(&wiring))?);
    }
    write(file, &parts).map_err(|error| vec![unwritable(&arguments.file, error)])?;
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    _ = output::line(&format!("written: {} ({})", arguments.file.display(), names.join(", ")));
    Ok(Exit::Success)
}

/// Gathers the answers of servers and of the daemon of this machine.
async fn asked(wiring: &Wiring) -> Vec<ArchiveFile> {
    let reconciliations =
        async { reconcile::status_as_json(wiring).await.unwrap_or_else(|fault| unavailable(&[fault])) };
    let report = async {
        match reconcile::newest_as_json(wiring).await {
            Ok(report) => report,
            Err(fault) => unavailable(&[fault]),
        }
    };
    let (status, reconciliations, report, metrics, ready, series) = tokio::join!(
        status::now_as_json(wiring),
        reconciliations,
        report,
        daemon(wiring, "/metrics"),
        daemon(wiring, "/readyz"),
        daemon(wiring, "/v1/series"),
    );
    vec![
        ArchiveFile { name: "status.json", text: status },
        ArchiveFile { name: "reconciliations.json", text: reconciliations },
        ArchiveFile { name: "newest-reconciliation.json", text: report },
        ArchiveFile { name: "metrics.txt", text: metrics },
        ArchiveFile { name: "readiness.json", text: ready },
        ArchiveFile { name: CHANGES, text: changes(&series) },
    ]
}

/// Returns the answer of the daemon on `http.listen`, or why there is none.
async fn daemon(wiring: &Wiring, path: &str) -> String {
    let Some(listen) = wiring.config().http.listen else {
        return "not gathered: the configuration has no http.listen\n".to_owned();
    };
    match client::get(&wiring.config().http, path, ANSWER_TIME_MAX).await {
        Some((_, answer)) => answer,
        None => format!("not gathered: no daemon answered at {listen}{path}\n"),
    }
}

/// Returns the recent changes of state, with the codes of their faults, of an answer of `/v1/series`; an answer of
/// another kind says why there are none.
fn changes(series: &str) -> String {
    let Ok(mut answer) = serde_json::from_str::<Json>(series) else { return series.to_owned() };
    // The samples of the charts may have megabytes.
    if let Some(answer) = answer.as_object_mut() {
        answer.retain(|name, _| name != "series");
    }
    output::json(&answer)
}

fn about() -> String {
    let system = std::fs::read_to_string("/proc/version").unwrap_or_default();
    output::json(&json!({
        "anabranch": env!("CARGO_PKG_VERSION"),
        "commit": telemetry::COMMIT,
        "made_at_ms": wall_clock::now_ms(),
        "system": system.trim(),
        "processors": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
    }))
}

fn configuration(cli: &Cli) -> String {
    let Some(file) = &cli.config else { return "# not gathered: no --config FILE\n".to_owned() };
    let redacted = std::fs::read_to_string(file)
        .map_err(|error| error.to_string())
        .and_then(|text| redacted::configuration(&text));
    redacted.unwrap_or_else(|why| format!("# not gathered: {why}\n"))
}

fn unavailable(faults: &[Fault]) -> String {
    let faults: Vec<FaultView<'_>> = faults.iter().map(FaultView::from).collect();
    output::json(&json!({ "not_gathered": faults }))
}

fn write(file: File, parts: &[ArchiveFile]) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(wall_clock::now_ms() / 1000);
        archive.append_data(&mut header, format!("{FOLDER}/{}", part.name), part.text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_state_are_kept_without_the_samples_and_another_answer_stays_as_it_is() {
        let change = json!({ "thing": "lane/a", "from": "current", "to": "retrying", "code": "timed-out" });
        let series = json!({ "now_ms": 7, "events": [change], "series": [{ "rate": [1, 2] }] }).to_string();
        let kept: Json = serde_json::from_str(&changes(&series)).expect("it is JSON");
        assert_eq!(kept, json!({ "now_ms": 7, "events": [change] }));
        assert_eq!(changes("not gathered: no daemon\n"), "not gathered: no daemon\n");
    }
}
