//! `cargo bench`: how fast the product is, as ratios to limits that are measured in the same run.
//!
//! It starts its own servers, prints one table and writes the figures as JSON. Absolute figures belong to the machine;
//! ratios and CPU per row can be compared. `README.md` beside this file says how each figure is measured.

mod apply;
mod by_hand;
mod capture;
mod data;
mod latency;
mod memory;
mod meter;
mod report;
mod scan;
mod site;

use anabranch_stack::{Options, ServerSpec};
use anabranch_tests::Ground;
use clap::{Parser, ValueEnum};

use crate::report::Report;

/// Measures Anabranch against limits of the same machine, and prints one table.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --", max_term_width = 100)]
struct Arguments {
    /// Figures to measure; without any, all
    #[arg(value_enum)]
    figures: Vec<Figure>,
    /// A tenth of the rows and a shorter latency run: for development, not for comparison
    #[arg(long)]
    quick: bool,
    /// Rounds of each comparison; the first scan of all is measured beside them and thrown away
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Random numbers of the data and of the workload begin with it
    #[arg(long, default_value_t = 4)]
    seed: u64,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Binlog to decoded changes, without and with TLS, against a header-only scan
    Decode,
    /// Binlog to acknowledged messages in JetStream, against the same scan
    Append,
    /// Log to 366 tables, catching up, against a program written by hand for it
    Apply,
    /// Commit to visible in the derived table at 1,000 changes a second
    Latency,
    /// Most memory of the daemon: catching up, and with one very large transaction
    Memory,
}

/// The figures that were asked for; none means all.
struct Wanted(Vec<Figure>);

impl Wanted {
    fn has(&self, figure: Figure) -> bool {
        self.0.is_empty() || self.0.contains(&figure)
    }
}

/// As many as the program written by hand has connections.
const APPLY_LANES: u32 = 4;
/// The default of the configuration.
const LATENCY_LANES: u32 = 2;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Scale {
    rows: u64,
    large_transaction_rows: u64,
    latency_seconds: u64,
    rounds: u32,
    seed: u64,
}

impl Scale {
    fn of(arguments: &Arguments) -> Self {
        let divisor = if arguments.quick { 10 } else { 1 };
        Self {
            rows: 2_000_000 / divisor,
            large_transaction_rows: 1_000_000 / divisor,
            latency_seconds: if arguments.quick { 5 } else { 20 },
            rounds: arguments.rounds,
            seed: arguments.seed,
        }
    }
}

static GROUND: Ground = Ground::of(|| {
    Options::empty()
        .with(ServerSpec::mariadb_source("source"))
        .with(ServerSpec::mariadb_target("target"))
        .with(ServerSpec::nats("nats"))
        .servers
});

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let wanted = Wanted(arguments.figures.clone());
    let scale = Scale::of(&arguments);
    let mut report = Report::new(&scale);
    if wanted.has(Figure::Decode)
        || wanted.has(Figure::Append)
        || wanted.has(Figure::Apply)
        || wanted.has(Figure::Memory)
    {
        let mut site = site::Site::open(GROUND.turn().await, APPLY_LANES).await;
        let data = data::write(&site, &scale).await;
        report.note(&data.to_string());
        if wanted.has(Figure::Decode) || wanted.has(Figure::Append) {
            capture::measure(&mut site, &data, &scale, &wanted, &mut report).await;
        }
        if wanted.has(Figure::Apply) {
            apply::measure(&mut site, &data, &scale, &mut report).await;
        }
        if wanted.has(Figure::Memory) {
            memory::measure(&mut site, &data, &scale, &mut report).await;
        }
    }
    if wanted.has(Figure::Latency) {
        latency::measure(site::Site::open(GROUND.turn().await, LATENCY_LANES).await, &scale, &mut report)
            .await;
    }
    report.print();
}
