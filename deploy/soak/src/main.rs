//! `cargo soak`: breaks an installation at random for some minutes, and proves its stores equal at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_demo::exit_code;
use anabranch_soak::{Order, run};
use clap::Parser;

/// Kill, pause and fail over real servers and three daemons at random, change tables beside a load, then compare
///
/// The seed decides every step, so a run can be repeated. The exit code is 0 if every store equals its sources at the
/// end, and 1 with the list of what does not.
#[derive(Debug, Parser)]
#[command(name = "soak", bin_name = "cargo soak --", max_term_width = 110)]
struct Arguments {
    /// Minutes of random steps, and longer until each kind has come once; start and comparison come on top
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Seed of the steps and of the load, to repeat a run
    #[arg(long)]
    seed: Option<u64>,
    /// Row changes a second, in equal parts of users and devices
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    rate: u32,
    /// Derive documents of devices in OpenSearch too: it is the largest to fetch and the slowest to start
    #[arg(long)]
    with_search: bool,
    /// Take this built daemon, such as target/debug/anabranch, and build none
    #[arg(long, value_name = "PATH")]
    daemon: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let order = Order {
        time: Duration::from_secs(60 * arguments.minutes),
        seed: arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        rate: arguments.rate,
        has_search: arguments.with_search,
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
        let arguments = Arguments::parse_from(["soak", "--minutes", "2", "--seed", "7"]);
        assert_eq!((arguments.minutes, arguments.seed, arguments.with_search), (2, Some(7), false));
    }

    #[test]
    fn the_alias_leaves_the_dashes_to_its_users() {
        let aliases = include_str!("../../../.cargo/config.toml");
        let is_written = aliases.contains("\nsoak = \"run --quiet --bin soak\"\n");
        assert!(is_written, "`cargo soak -- --minutes 10` has them once");
    }
}
