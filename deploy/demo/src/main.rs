//! `cargo demo`: the whole of Anabranch on this machine.

mod cli;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    cli::main().await
}
