//! `flux sequence`: how far the counters are, and the skip after their server was restored or replaced.

use anabranch_pipeline::identifiers::flux::{RaiseOutcome, SequenceState};
use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::SEQUENCES;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::Wiring;

/// Show the counters that identifiers come from, or skip numbers of all of them
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print server and counters; ends with a fault when one lacks numbers that were given out
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Skip numbers of every counter past all that is known, and accept the server
    ///
    /// For flux-sequence-lagging and flux-server-changed, once no process gives out identifiers from the old server.
    Raise {
        /// Numbers that each counter skips; more than may have been given out since the copy was made
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(SEQUENCES)))]
        numbers: u32,
    },
}

#[derive(Debug, Serialize)]
struct StatusView {
    server: String,
    /// The server that gave out the numbers so far; empty before the first one.
    accepted_server: String,
    today: String,
    /// Request keys that are kept, at most.
    request_keys: u64,
    counters: Vec<CounterView>,
}

#[derive(Debug, Serialize)]
struct CounterView {
    date: String,
    region: u8,
    side: u8,
    partition: u8,
    /// Next number of the counter: every number below it was leased.
    next: u32,
}

pub(super) fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let flux = wiring.flux_identifiers().map_err(|fault| vec![fault])?;
    match arguments.command {
        Command::Status { json } => {
            let state = block_on(flux.state())?.map_err(|fault| vec![fault])?;
            let view = StatusView::of(&state);
            _ = output::line(&if json { output::json(&view) } else { view.text() });
            let faults = state.faults();
            if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
        }
        Command::Raise { numbers } => {
            let command =
                CommandText::of("flux sequence raise").option("--numbers", Some(&numbers.to_string()));
            let text = |raised: &RaiseOutcome| {
                format!(
                    "{} counters of {} to {} skip {numbers} numbers; their server is {}",
                    raised.counters, raised.first, raised.last, raised.server
                )
            };
            let raised = block_on(async {
                let before = flux.state().await.ok().map(|state| match state.accepted.as_str() {
                    "" => "no server has given out numbers".to_owned(),
                    accepted => format!("server {accepted} has given out numbers"),
                });
                let work = flux.raise(numbers);
                recorded(&wiring, &Actor::of_command(), (command.text(), before), work, text).await
            })?
            .map_err(|fault| vec![fault])?;
            _ = output::line(&text(&raised.done));
            Ok(Exit::Success)
        }
    }
}

impl StatusView {
    fn of(state: &SequenceState) -> Self {
        let status = &state.status;
        let counter = |(Counter { date, ring }, next): &(Counter, u32)| CounterView {
            date: date.to_string(),
            region: ring.region(),
            side: ring.side(),
            partition: ring.partition(),
            next: *next,
        };
        let mut counters: Vec<CounterView> = status.counters.iter().map(counter).collect();
        counters.sort_by(|one, two| two.date.cmp(&one.date).then(two.next.cmp(&one.next)));
        Self {
            server: status.server.name.clone(),
            accepted_server: state.accepted.clone(),
            today: status.server.today.to_string(),
            request_keys: status.keys,
            counters,
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("server        {}", self.server),
            format!(
                "gave numbers  {}",
                if self.accepted_server.is_empty() { "none yet" } else { &self.accepted_server }
            ),
            format!("its date      {}", self.today),
            format!("request keys  {}", self.request_keys),
        ];
        let mut rest = self.counters.as_slice();
        while let Some(first) = rest.first() {
            // The fullest counter of a day comes first.
            let of_day = rest.iter().take_while(|counter| counter.date == first.date).count();
            let share = f64::from(first.next) * 100.0 / f64::from(SEQUENCES);
            lines.push(format!(
                "{}    {of_day} counters; fullest: {}, partition {:02}, {} of {SEQUENCES} ({share:.1} %)",
                first.date,
                if first.side == 0 { "main" } else { "fail-over" },
                first.partition,
                first.next
            ));
            rest = &rest[of_day..];
        }
        lines.join("\n")
    }
}
