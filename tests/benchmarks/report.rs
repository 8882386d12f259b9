//! The table on standard output, and the same figures as JSON.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use crate::Scale;

/// One line of the table.
#[derive(Debug)]
pub struct Line {
    pub figure: &'static str,
    pub measured: String,
    /// The limit of comparison; `-` when there is none.
    pub limit: String,
    pub ratio: String,
    /// Microseconds of CPU a row, as text.
    pub cpu: String,
    pub bar: String,
    /// Whether the bar is met; `None` when there is no bar.
    pub passes: Option<bool>,
    /// Further figures for the JSON file.
    pub detail: Json,
}

/// The measurements so far.
#[derive(Debug)]
pub struct Report {
    scale: Json,
    machine: String,
    notes: Vec<String>,
    lines: Vec<Line>,
}

const HEADINGS: [&str; 7] = ["figure", "measured", "limit", "ratio", "CPU µs/row", "bar", ""];

impl Report {
    pub fn new(scale: &Scale) -> Self {
        let scale = json!({
            "rows": scale.rows, "device_changes": scale.device_changes,
            "cached_devices": scale.cached_devices, "documents": scale.documents,
            "lookup_seconds": scale.lookup_seconds, "users": scale.users, "large_transaction_rows": scale.large_transaction_rows, "table_ids": scale.table_ids, "altered_rows": scale.altered_rows, "coupon_users": scale.coupon_users, "grants": scale.grants, "day_users": scale.day_users,
            "flux_changes": scale.flux_changes, "recharges": scale.recharges, "audited": scale.audited, "issued": scale.issued,
            "latency_seconds": scale.latency_seconds, "page_minutes": scale.page_minutes, "rounds": scale.rounds, "seed": scale.seed,
        });
        Self { scale, machine: machine(), notes: Vec::new(), lines: Vec::new() }
    }

    /// Prints a note at once and keeps it for the file.
    pub fn note(&mut self, text: &str) {
        eprintln!("{text}");
        self.notes.push(text.to_owned());
    }

    pub fn add(&mut self, line: Line) {
        eprintln!("{}: {} ({})", line.figure, line.measured, verdict(line.passes));
        self.lines.push(line);
    }

    /// Prints the table, writes the file and prints its path.
    pub fn print(self) {
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        for line in &self.lines {
            let Line { figure, measured, limit, ratio, cpu, bar, passes, .. } = line;
            let verdict = verdict(*passes).to_owned();
            rows.push([
                (*figure).to_owned(),
                measured.clone(),
                limit.clone(),
                ratio.clone(),
                cpu.clone(),
                bar.clone(),
                verdict,
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
        println!("\n{}", self.machine);
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            println!("{}", cells.join("  ").trim_end());
        }
        let figures: Vec<Json> = self
            .lines
            .iter()
            .map(|line| {
                json!({
                    "figure": line.figure, "measured": line.measured, "limit": line.limit, "ratio": line.ratio,
                    "cpu_us_per_row": line.cpu, "bar": line.bar, "passes": line.passes, "detail": line.detail,
                })
            })
            .collect();
        let all = json!({
            "machine": self.machine, "scale": self.scale, "notes": self.notes, "figures": figures,
        });
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("benchmarks.json");
        let text = serde_json::to_string_pretty(&all).expect("figures are JSON");
        std::fs::write(&file, text).expect("cargo made the folder");
        println!("\nJSON: {}", file.display());
    }
}

fn verdict(passes: Option<bool>) -> &'static str {
    match passes {
        Some(true) => "pass",
        Some(false) => "SHORT",
        None => "-",
    }
}

fn machine() -> String {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    format!("{cores} cores ({processor}), {memory} of memory; all servers on this machine")
}
