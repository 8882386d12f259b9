//! `trace`: follows one key from its source rows through the log and the lanes to every store and cache.
//!
//! It asks the servers themselves. If the daemon of this configuration answers, states and lag of its tasks are used.
//! It changes nothing.

use std::ffi::OsString;

use clap::Args;
use serde_json::Value as Json;

use super::{Cli, Outcome, block_on, status};
use crate::exit::Exit;
use crate::output;
use crate::trace::{self, SourceRowView, StoreView, TraceAnswer, TraceLimits, TraceQuestion};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Follow one key: source rows, last change, lanes, stores, cache, and why they differ if they do
#[derive(Args)]
pub struct Arguments {
    /// User id, uuid or code of a device, or identifier of a payment document, as the source row has it
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Only the derived rows of this projection
    #[arg(long, value_name = "NAME")]
    projection: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows the options without the key, which may be personal.
impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arguments").field("projection", &self.projection).field("json", &self.json).finish()
    }
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let bytes = arguments.key.as_encoded_bytes().to_vec();
    let question = TraceQuestion::new(bytes, arguments.projection.clone()).map_err(|fault| vec![fault])?;
    let wiring = Wiring::new(cli.configuration()?);
    let answer = block_on(async {
        let (status, _) = status::observe(&wiring).await;
        trace::follow(&wiring, &status, &question, TraceLimits::COMMAND).await.map_err(|fault| vec![fault])
    })??;
    let text = if arguments.json { output::json(&answer) } else { text(&answer, wall_clock::now_us()) };
    _ = output::line(&text);
    Ok(Exit::Success)
}

/// Returns the sentence, and then one section for each part.
fn text(answer: &TraceAnswer, now_us: u64) -> String {
    let mut lines = vec![answer.sentence.clone()];
    for other in &answer.also {
        lines.push(format!("It is a key of {other} too: --projection NAME traces those rows."));
    }
    let title = format!("SOURCE ROWS ({}, key hash {})", answer.entity, answer.key_hash);
    section(&mut lines, &title, answer.source_rows.iter().flat_map(source_row));
    let unread = answer.unread.iter().map(|unread| format!("{}: {}", unread.source, unread.why));
    section(&mut lines, "UNREAD", unread);
    section(&mut lines, "LAST CHANGE", last_change(answer, now_us));
    section(&mut lines, "STORES", answer.stores.iter().flat_map(store));
    let documents = answer.documents.iter().map(|document| {
        let position = document.position.as_deref().unwrap_or("-");
        format!("{} {}: {}, at {position}", document.projection, document.id, document.verdict)
    });
    section(&mut lines, "DOCUMENTS", documents);
    let lanes = answer.lanes.iter().map(|lane| {
        let lag = lane.lag_seconds.map_or_else(|| "-".to_owned(), |lag| format!("{lag:.1} s"));
        let code = lane.code.as_ref().map_or_else(String::new, |code| format!(" [{code}]"));
        let position = lane.position.as_deref().unwrap_or("-");
        format!("{}: {}{code}, lag {lag}, at {position}", lane.lane, lane.state)
    });
    section(&mut lines, "LANES", lanes);
    let cache = answer.cache.iter().map(|cache| {
        let age = cache.age_seconds.map_or_else(String::new, |age| format!(", at most {age:.0} s old"));
        let differs = match cache.differs {
            Some(true) => ", differs from the mapping tables",
            Some(false) => ", equals the mapping tables",
            None => "",
        };
        format!("{}: {}{age}{differs}", cache.cache, cache.state)
    });
    section(&mut lines, "CACHE", cache);
    lines.join("\n")
}

/// Adds a section, unless it is empty.
fn section(lines: &mut Vec<String>, title: &str, of_section: impl Iterator<Item = String>) {
    let mut of_section = of_section.peekable();
    if of_section.peek().is_some() {
        lines.extend([String::new(), title.to_owned()]);
        lines.extend(of_section.map(|line| format!("  {line}")));
    }
}

fn source_row(row: &SourceRowView) -> Vec<String> {
    let fields = row.fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Json::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    let mut lines = vec![format!("{}: {}: {}", row.source, row.table, fields.collect::<Vec<_>>().join(", "))];
    lines.extend(row.claims.iter().map(|claim| format!("  claims {claim}")));
    lines.extend(row.excluded.iter().map(|excluded| format!("  claims nothing of {excluded}")));
    lines
}

fn last_change(answer: &TraceAnswer, now_us: u64) -> impl Iterator<Item = String> {
    let change = answer.last_change.as_ref().map(|change| {
        let age = match change.committed_at_us {
            0 => String::new(),
            at => format!(", {} s ago", now_us.saturating_sub(at) / 1_000_000),
        };
        let (kind, table, source) = (change.kind, &change.table, &change.source);
        format!("{kind} in {table} of {source} at {}, message {}{age}", change.position, change.sequence)
    });
    let messages = answer.searched.messages;
    let searched = match (answer.searched.is_whole, &change) {
        (true, Some(_)) => format!("searched {messages} messages: there is no later change"),
        (true, None) => format!("searched all {messages} messages of the log: there is no change"),
        (false, Some(_)) => format!("searched the newest {messages} messages: there may be a later change"),
        (false, None) => format!("searched the newest {messages} messages only: there is no change in them"),
    };
    let unread = answer.searched.unread.iter();
    let unread: Vec<String> =
        unread.map(|unread| format!("stream of {} unread: {}", unread.source, unread.why)).collect();
    change.into_iter().chain([searched]).chain(unread)
}

fn store(store: &StoreView) -> Vec<String> {
    let why = store.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let mut lines = vec![format!("{}/{}: {}{why}", store.projection, store.target, store.verdict)];
    lines.extend(store.rows.iter().map(|row| {
        let claimed = match row.is_claimed {
            Some(true) => "claimed",
            Some(false) => "not claimed",
            None => "of a table that could not be read",
        };
        let position = row.position.as_deref().unwrap_or("-");
        format!("  {} for {}, at {position}, {claimed}", row.table, row.source_table)
    }));
    lines
}
