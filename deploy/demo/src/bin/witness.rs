//! `witness`: the coupon system of the demo and of the tests, as a separate process that can be killed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_demo::{Witness, WitnessOptions};
use clap::Parser;

/// A coupon system as docs/coupon-system.md describes it, with faults on demand.
#[derive(Debug, Parser)]
#[command(name = "witness")]
struct Arguments {
    /// Address of its HTTP API
    #[arg(long, default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// File of the coupons that were given
    #[arg(long)]
    book: PathBuf,
    /// Token that clients must send
    #[arg(long, env = "WITNESS_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Hours for which a key is remembered
    #[arg(long, default_value_t = 24)]
    key_memory_hours: u64,
    /// Seconds for which a connection may be idle
    #[arg(long, default_value_t = 60)]
    idle_seconds: u64,
    /// Certificate for TLS, with --key
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// Key of the certificate
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
    /// Seed of the dice that faults are thrown with
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = WitnessOptions {
        listen: arguments.listen,
        file: arguments.book,
        token: arguments.token,
        key_memory: Duration::from_secs(arguments.key_memory_hours.saturating_mul(3600)),
        idle: Duration::from_secs(arguments.idle_seconds),
        tls: arguments.certificate.zip(arguments.key),
        seed: arguments.seed,
    };
    match Witness::start(&options).await {
        Ok(witness) => {
            println!("listens on {}", witness.address());
            witness.wait().await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
