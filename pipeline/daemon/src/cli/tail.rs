//! `tail`: the log as JSON lines, for people and scripts; it changes nothing and moves no progress.
//!
//! Lines of one source come in the order of its log; those of several sources are mixed as they arrive.

use std::str::FromStr;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LogMessage, LogReader as _};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::Lsn;
use clap::Args;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Cli, Outcome, block_on};
use crate::change_view::{Filter, json_of};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::wiring::{Log, TailFrom, Wiring};

/// Messages rendered ahead of a slow reader of standard output.
const AHEAD_MESSAGES: usize = 4;

/// Print the log as JSON lines, one object a change (schemas/src/events/change.schema.json)
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only this source; may be repeated. Default: all
    #[arg(long = "source", value_name = "NAME")]
    sources: Vec<String>,
    /// The first message: earliest, latest, a stream sequence (42), or a position (1:42:8192)
    #[arg(long, default_value = "earliest")]
    from: From,
    /// Only this physical table
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = database_and_table)]
    table: Option<(String, String)>,
    /// Only changes of rows with this user id or uuid, before or after
    #[arg(long, alias = "user-id", value_name = "KEY")]
    key: Option<String>,
    /// End after so many changes
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Wait for more at the end of the log (the default)
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,
    /// End where the log ended when this command began
    #[arg(long, overrides_with = "follow")]
    no_follow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Earliest,
    Latest,
    Sequence(u64),
    Position(Lsn),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            text if text.contains(':') => text
                .parse()
                .map(Self::Position)
                .map_err(|error: anabranch_schemas::lsn::InvalidLsn| error.to_string()),
            text => text.parse().map(Self::Sequence).map_err(|_| {
                "expected earliest, latest, a sequence such as 42 or a position such as 1:42:8192".to_owned()
            }),
        }
    }
}

fn database_and_table(text: &str) -> Result<(String, String), String> {
    match text.split_once('.') {
        Some((database, table)) if !database.is_empty() && !table.is_empty() => {
            Ok((database.to_owned(), table.to_owned()))
        }
        _ => Err("expected DATABASE.TABLE".to_owned()),
    }
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let sources = sources(&wiring, arguments)?;
    block_on(tail(&wiring, sources, arguments))?
}

/// Returns the selected sources, only one with a sequence or position: these mean something within one source.
fn sources(wiring: &Wiring, arguments: &Arguments) -> Result<Vec<String>, Vec<Fault>> {
    let known: Vec<String> = wiring.config().sources.iter().map(|source| source.name.clone()).collect();
    let usage = |subject: &str, found: String| {
        let fault = Fault::new(Code::ConfigInvalid, subject, found);
        vec![fault.needs(format!("--source with one of {}", known.join(", ")))]
    };
    if let Some(unknown) = arguments.sources.iter().find(|name| !known.contains(name)) {
        return Err(usage("tail --source", format!("`{unknown}` is not in the configuration")));
    }
    let sources = if arguments.sources.is_empty() { known.clone() } else { arguments.sources.clone() };
    match arguments.from {
        From::Sequence(_) | From::Position(_) if sources.len() > 1 => {
            Err(usage("tail --from", "a sequence or position belongs to one source".to_owned()))
        }
        _ => Ok(sources),
    }
}

async fn tail(wiring: &Wiring, sources: Vec<String>, arguments: &Arguments) -> Outcome {
    let log = wiring.log().await.map_err(|fault| vec![fault])?;
    let (lines, mut rendered) = mpsc::channel(AHEAD_MESSAGES);
    let mut tasks = JoinSet::new();
    for source in sources {
        let generation = wiring.source_config(&source).map_err(|fault| vec![fault])?.generation;
        let follower = Follower {
            log: log.clone(),
            source,
            generation,
            from: arguments.from,
            follow: !arguments.no_follow,
            filter: Filter {
                table: arguments.table.clone(),
                key: arguments.key.clone(),
                from: match arguments.from {
                    From::Position(lsn) => Some(lsn),
                    _ => None,
                },
            },
            lines: lines.clone(),
        };
        tasks.spawn(follower.run());
    }
    drop(lines);
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some(mut batch) = rendered.recv().await
    {
        batch.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= batch.len() as u64;
        if output::line(&batch.join("\n")) == Reader::Gone {
            break;
        }
    }
    drop(rendered);
    if left == 0 || arguments.limit == Some(0) {
        return Ok(Exit::Success);
    }
    let mut faults = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        faults.extend(ended.unwrap_or(Ok(())).err());
    }
    if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
}

/// Reads one source's stream and renders it.
struct Follower {
    log: Log,
    source: String,
    generation: u32,
    from: From,
    follow: bool,
    filter: Filter,
    lines: mpsc::Sender<Vec<String>>,
}

impl Follower {
    async fn run(self) -> Result<(), Fault> {
        let state = self.log.stream_state(&self.source).await?;
        let last = state.last_sequence;
        let from = match self.from {
            From::Earliest => TailFrom::First,
            From::Latest => TailFrom::Latest,
            From::Sequence(sequence) => TailFrom::Sequence(sequence),
            From::Position(lsn) => TailFrom::Sequence(self.log.sequence_of(&self.source, lsn).await?),
        };
        let nothing_there = state.messages == 0
            || matches!(from, TailFrom::Latest)
            || matches!(from, TailFrom::Sequence(sequence) if sequence > last);
        if !self.follow && nothing_there {
            return Ok(());
        }
        let mut reader = self.log.tail(&self.source, from).await?;
        loop {
            let message = tokio::select! {
                message = reader.next() => message?,
                () = self.lines.closed() => return Ok(()),
            };
            let lines = self.render(&message)?;
            if !lines.is_empty() && self.lines.send(lines).await.is_err() {
                return Ok(());
            }
            if !self.follow && message.entry.sequence >= last {
                return Ok(());
            }
        }
    }

    fn render(&self, message: &LogMessage) -> Result<Vec<String>, Fault> {
        let corrupt = |error| {
            let subject = format!("source {} message {}", self.source, message.entry.sequence);
            Fault::new(Code::LogMessageCorrupt, subject, "its payload cannot be read").caused_by(error)
        };
        let mut changes = codec::decode(&message.payload).map_err(corrupt)?;
        let mut lines = Vec::new();
        let mut index = 0;
        while let Some(change) = changes.next().map_err(corrupt)? {
            if self.filter.passes(&change) {
                let source = (self.source.as_str(), self.generation);
                lines.push(json_of(source, &message.entry, index, &change).to_string());
            }
            index += 1;
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_say_where_to_begin_is_understood() {
        assert_eq!("earliest".parse(), Ok(From::Earliest));
        assert_eq!("latest".parse(), Ok(From::Latest));
        assert_eq!("42".parse(), Ok(From::Sequence(42)));
        assert_eq!("1:42:8192".parse(), Ok(From::Position(Lsn::new(1, 42, 8192).unwrap())));
        for wrong in ["", "now", "-1", "1:2", "1:2:3:4"] {
            assert!(wrong.parse::<From>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_table_needs_its_database() {
        assert_eq!(database_and_table("user_00.user_001"), Ok(("user_00".to_owned(), "user_001".to_owned())));
        for wrong in ["user", ".user", "user."] {
            assert!(database_and_table(wrong).is_err(), "{wrong}");
        }
    }
}
