//! `health`: asks the daemon of this machine whether it lives, is ready, or lags; for containers, which have no `curl`,
//! and for checks by a timer.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_pipeline::config::HttpConfig;
use anabranch_pipeline::error::{Code, Fault};
use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::api::client;
use crate::exit::Exit;
use crate::observe::StatusView;
use crate::output;
use crate::roles::Role;

/// Time for the daemon's answer: a busy daemon answers late, and a container's own limit is longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Ask the daemon on http.listen whether it lives (or is ready, or lags): exit code 0, else 1
#[derive(Debug, Args)]
pub struct Arguments {
    /// Ask whether it is ready, with all of its roles or in this one
    #[arg(long, value_name = "ROLE", value_enum)]
    #[expect(clippy::option_option, reason = "clap's form of an option whose value may be left out")]
    ready: Option<Option<Role>>,
    /// Ask whether each source and lane is at most so far behind; a lag that is not known counts as more
    #[arg(long, value_name = "SECONDS", conflicts_with = "ready")]
    max_lag: Option<u32>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let config = cli.configuration()?;
    let listen =
        config.http.listen.filter(|listen| listen.port() != 0).ok_or_else(|| vec![nobody_listens()])?;
    let (exit, text) = match arguments.max_lag {
        Some(seconds) => match block_on(client::status(&config.http))? {
            Some(answer) => lag(&answer.status, seconds),
            None => (Exit::Definite, unanswered(listen)),
        },
        None => alive_or_ready((&config.http, listen), arguments.ready)?,
    };
    // A closed pipe is no fault: the caller has the exit code.
    _ = output::line(&text);
    Ok(exit)
}

fn alive_or_ready(
    (http, listen): (&HttpConfig, SocketAddr),
    ready: Option<Option<Role>>,
) -> Result<(Exit, String), Vec<Fault>> {
    let path = match ready {
        None => "/livez".to_owned(),
        Some(None) => "/readyz".to_owned(),
        Some(Some(role)) => format!("/readyz/{}", role.name()),
    };
    Ok(match block_on(client::get(http, &path, ANSWER_TIME_MAX))? {
        None => (Exit::Definite, unanswered(listen)),
        Some((200, answer)) => (Exit::Success, answer),
        Some((_, answer)) => (Exit::Definite, answer),
    })
}

fn unanswered(listen: SocketAddr) -> String {
    format!("no daemon answers at {listen}")
}

/// Returns whether each source and lane is at most so far behind, and a line about each that is not.
fn lag(status: &StatusView, seconds: u32) -> (Exit, String) {
    let sources = status.sources.iter().map(|view| (format!("source {}", view.source), view.lag_seconds));
    let lanes = status.lanes.iter().map(|view| (format!("lane {}", view.id()), view.lag_seconds));
    let lagging = sources.chain(lanes).filter_map(|(thing, lag)| match lag {
        Some(lag) if lag <= f64::from(seconds) => None,
        Some(lag) => Some(format!("{thing} is {lag:.1} s behind")),
        None => Some(format!("the lag of {thing} is not known")),
    });
    let lagging: Vec<String> = lagging.collect();
    match lagging.is_empty() {
        true => (Exit::Success, format!("no source and no lane is more than {seconds} s behind")),
        false => (Exit::Definite, lagging.join("\n")),
    }
}

fn nobody_listens() -> Fault {
    Fault::new(Code::ConfigInvalid, "configuration key http.listen", "no address with a port")
        .needs("the address at which the daemon listens")
}
