//! The demo's command line.

use std::time::Duration;

use anabranch_demo::verify::DerivedLayout;
use anabranch_schemas::shard::{NameHash, Spread};
use clap::{Parser, ValueEnum};

use super::stall::Stall;

/// The whole of Anabranch on this machine: real servers, a workload, the daemon, and a live screen
///
/// Without --seconds it runs until Ctrl-C. Nothing is left running, however it ends.
#[derive(Debug, Clone, Parser)]
#[command(name = "demo", bin_name = "cargo demo --", max_term_width = 110)]
pub struct Arguments {
    /// End after this many seconds of workload
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Compare every derived row with the sources at the end; exit 1 on any difference. Prints one JSON line on stdout
    #[arg(long)]
    pub verify: bool,
    /// Row changes a second, in equal parts of users, devices and payment documents; 0 = as fast as possible. Without
    /// it 1,000, or 300 with --drift, whose reconciliation shares the machine
    #[arg(long)]
    rate: Option<u32>,
    /// Users to begin with; 20,000 more come in two transactions of 10,000 rows
    #[arg(long, default_value_t = 20_000)]
    pub users: u64,
    /// Devices with serial codes to begin with, likewise; 0 = birthdays only
    #[arg(long, default_value_t = 10_000)]
    pub devices: u64,
    /// Recharges to begin with, each with about seven documents that belong to it (atoms, captures, refunds, clearings,
    /// chargebacks); 30,000 documents more come in three transactions. A third source has the fail-over databases; 0 =
    /// no payment documents. Only the tables of two months and of `99` are made, so that the demo starts in seconds
    #[arg(long, value_name = "RECHARGES", default_value_t = 0)]
    pub flux: u64,
    /// User partitions in each of the 10 databases of payment documents: 12 tables for each, 6 on either side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub flux_partitions: u32,
    /// Leave OpenSearch out: it is the largest to fetch and the slowest to start
    #[arg(long)]
    pub without_search: bool,
    /// Sources and target are MySQL and not MariaDB
    #[arg(long)]
    pub mysql: bool,
    /// Sources and target are of this MariaDB; without it of 10.6 or newer from PATH, else the distribution's
    #[arg(long, value_enum, conflicts_with = "mysql")]
    pub mariadb: Option<MariaDb>,
    /// Tables in each of the 5 inventory databases, and in their history
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub serial_tables: u32,
    /// Tables in each of the 3 mapping databases
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub mapping_tables: u32,
    /// Seed of the workload, to repeat a run
    #[arg(long)]
    pub seed: Option<u64>,
    /// How a hash becomes a database and a table: `literal` reaches only 10 of the 100 tables
    #[arg(long, value_enum, default_value_t = Rule::Spread)]
    pub rule: Rule,
    /// How a user name becomes a number
    #[arg(long, value_enum, default_value_t = Hash::Crc32)]
    pub hash: Hash,
    /// How the 366 derived tables lie in the derived databases
    #[arg(long, value_enum, default_value_t = Layout::ByDay)]
    pub layout: Layout,
    /// Derive the 360 tables of lunar birthdays too, in the same databases
    #[arg(long)]
    pub lunar: bool,
    /// Derived databases
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub databases: u32,
    /// Lanes for each source
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub lanes: u32,
    /// Stop this server (SIGSTOP) in the middle of the run and show what that does to the lag of each store; such as
    /// `search`, `redis`, `target`
    #[arg(long, value_name = "SERVER")]
    pub stall: Option<String>,
    /// For so long; the run takes a minute more
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub stall_seconds: u64,
    /// Plant so much drift by hand in all derived stores while the workload runs, then reconcile beside it; exit 1
    /// unless exactly that was found and repaired
    #[arg(long, value_name = "KEYS", default_value_t = 0)]
    pub drift: u64,
    /// Run a day of birthday coupons at the end: a coupon system is started, and each user whose day it is gets one
    /// coupon; with --lunar, users who celebrate by the lunar calendar get theirs too
    #[arg(long)]
    pub coupons: bool,
    /// Print the JSON line also without --verify
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Rule {
    Literal,
    Spread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MariaDb {
    /// MariaDB 11.8
    #[value(name = "11")]
    Eleven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Hash {
    Crc32,
    JavaString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Layout {
    ByDay,
    ByUser,
}

impl Arguments {
    /// Returns the row changes a second; 0 = as fast as possible.
    pub fn rate(&self) -> u32 {
        self.rate.unwrap_or(if self.drift > 0 { 300 } else { 1_000 })
    }

    pub fn spread(&self) -> Spread {
        match self.rule {
            Rule::Literal => Spread::Literal,
            Rule::Spread => Spread::Spread,
        }
    }

    pub fn name_hash(&self) -> NameHash {
        match self.hash {
            Hash::Crc32 => NameHash::Crc32,
            Hash::JavaString => NameHash::JavaString,
        }
    }

    pub fn derived_layout(&self) -> DerivedLayout {
        match self.layout {
            Layout::ByDay => DerivedLayout::ByDay,
            Layout::ByUser => DerivedLayout::ByUser,
        }
    }

    /// Returns the layout as the command line and the configuration spell it.
    pub fn layout_name(&self) -> &'static str {
        match self.layout {
            Layout::ByDay => "by_day",
            Layout::ByUser => "by_user",
        }
    }

    pub fn stall(&self) -> Option<Stall> {
        let time = Duration::from_secs(self.stall_seconds);
        self.stall.clone().map(|server| Stall { server, time })
    }

    /// Returns how long the workload with a pace runs; `None` = until Ctrl-C.
    pub fn time(&self) -> Option<Duration> {
        let stalled = self.stall().map(|stall| stall.run_time());
        self.seconds.map(Duration::from_secs).max(stalled)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["demo", "--hash", "java_string", "--layout", "by_user"]);
        assert_eq!((arguments.hash, arguments.layout), (Hash::JavaString, Layout::ByUser));
    }
}
