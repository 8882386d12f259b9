//! `cargo demo`: arguments, phases of a run, live screen, summary.

mod arguments;
mod live;
mod plan;
mod screen;
mod session;
mod stall;
mod summary;

use std::process::ExitCode;

use anabranch_demo::{DemoError, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::arguments::Arguments;
use self::screen::say;
use self::session::SessionEnd;

/// Exit code 128 + SIGINT, as shells use it.
const INTERRUPTED: u8 = 130;

pub async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(SessionEnd::Interrupted) if arguments.verify => {
            say("interrupted: nothing was verified");
            ExitCode::from(INTERRUPTED)
        }
        Ok(SessionEnd::Interrupted) => ExitCode::SUCCESS,
        Ok(SessionEnd::Finished(summary)) => {
            say(&summary.text());
            if arguments.verify || arguments.json {
                println!("{}", summary.json());
            }
            if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let mut text = format!("error: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text.push_str(&format!("\n  because: {inner}"));
                cause = inner.source();
            }
            say(&text);
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<SessionEnd> {
    let stop = CancellationToken::new();
    watch_signals(&stop)?;
    session::run(arguments, &stop).await
}

/// Asks for an orderly end at the first SIGINT, SIGTERM or SIGHUP; the second one ends the process at once.
fn watch_signals(stop: &CancellationToken) -> Result<()> {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    for kind in signals {
        let mut signals = signal(kind).map_err(|source| DemoError::SignalNotTaken { source })?;
        let stop = stop.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if stop.is_cancelled() {
                    // Servers and daemon end with this process.
                    std::process::exit(i32::from(INTERRUPTED));
                }
                say("\nstopping ...");
                stop.cancel();
            }
        });
    }
    Ok(())
}
