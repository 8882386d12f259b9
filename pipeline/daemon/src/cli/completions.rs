//! `completions`: a completion script for a shell, from the same definitions as the commands themselves.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::exit::Exit;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct Arguments {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "anabranch", &mut script);
    // A closed pipe is no fault: the reader has all that it wanted.
    let _ = output::line(String::from_utf8_lossy(&script).trim_end());
    Exit::Success
}
