//! `cargo gameday`: runs faults on this machine's servers and writes `deploy/GAMEDAY.md`.

use std::path::PathBuf;
use std::process::ExitCode;

use anabranch_demo::exit_code;
use anabranch_gameday::{Order, list, run};
use clap::Parser;

/// Break a real installation, watch its alerts and its page, and end each fault by the steps of the runbook
///
/// All drills take about ten hours, because the rules run as they are shipped: a lane must be paused for four hours.
/// With --quick they take about two. deploy/GAMEDAY.md is written when every drill has run and ended as it should, or
/// with --write: then the rows of the drills that ended as they should are replaced, and the others stay.
#[derive(Debug, Parser)]
#[command(name = "gameday", bin_name = "cargo gameday", max_term_width = 110)]
struct Arguments {
    /// Run only this drill; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the names of all drills and end
    #[arg(long)]
    list: bool,
    /// Divide every `for` and range of the rules by 20, for work on the drills themselves
    #[arg(long)]
    quick: bool,
    /// Replace the rows of these drills in deploy/GAMEDAY.md
    #[arg(long)]
    write: bool,
    /// Go on with the next drill after one that failed
    #[arg(long)]
    keep_going: bool,
    /// Take this built daemon, such as target/debug/anabranch, and build none
    #[arg(long, value_name = "PATH")]
    daemon: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        list().iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let order = Order {
        only: arguments.only,
        is_quick: arguments.quick,
        writes: arguments.write,
        keeps_going: arguments.keep_going,
        daemon: arguments.daemon,
    };
    exit_code(run(&order).await)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        assert_eq!(Arguments::parse_from(["gameday", "--only", "a", "--only", "b"]).only, ["a", "b"]);
    }
}
