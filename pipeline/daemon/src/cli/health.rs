//! `health`: asks the daemon of this machine whether it lives or is ready; for containers, which have no `curl`.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::api::client;
use crate::exit::Exit;
use crate::output;
use crate::roles::Role;

/// Time for the daemon's answer: a busy daemon answers late, and a container's own limit is longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Ask the daemon on http.listen whether it lives (or is ready): exit code 0, else 1
#[derive(Debug, Args)]
pub struct Arguments {
    /// Ask whether it is ready, with all of its roles or in this one
    #[arg(long, value_name = "ROLE", value_enum)]
    #[expect(clippy::option_option, reason = "clap's form of an option whose value may be left out")]
    ready: Option<Option<Role>>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let config = cli.configuration()?;
    let listen =
        config.http.listen.filter(|listen| listen.port() != 0).ok_or_else(|| vec![nobody_listens()])?;
    let path = match arguments.ready {
        None => "/livez".to_owned(),
        Some(None) => "/readyz".to_owned(),
        Some(Some(role)) => format!("/readyz/{}", role.name()),
    };
    let (exit, text) = match block_on(client::get(listen, &path, ANSWER_TIME_MAX))? {
        None => (Exit::Definite, format!("nobody answers at {listen}")),
        Some((200, answer)) => (Exit::Success, answer),
        Some((_, answer)) => (Exit::Definite, answer),
    };
    // A closed pipe is no fault: the caller has the exit code.
    _ = output::line(&text);
    Ok(exit)
}

fn nobody_listens() -> Fault {
    Fault::new(Code::ConfigInvalid, "configuration key http.listen", "no address with a port")
        .needs("the address at which the daemon listens")
}
