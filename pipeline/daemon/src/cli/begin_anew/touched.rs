//! `begin-anew --touched`: has only the tables read again of which the server lacks transactions.
//!
//! It writes one register and asks for restarts, as the whole command does. The reader goes on at the last transaction
//! that both servers have.

use anabranch_pipeline::capture::Touched;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::retry::again;
use serde::Serialize;

use super::view::{RequestView, Verbs, print, state_before};
use super::{Arguments, KnownLanes, command, confirm, wake};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::wiring::Wiring;

const VERBS: Verbs = Verbs {
    repeated: "goes on by this request, and nothing is written now",
    rehearsed: "would go on",
    written: "goes on",
};

/// The crossing that was, or would be, made.
#[derive(Debug, Serialize)]
struct TouchedView<'a> {
    #[serde(flatten)]
    request: RequestView<'a>,
    /// Position up to which the server has everything; its own changes are read from there on.
    common: String,
    /// GTIDs of the last transactions that both servers have.
    common_gtids: &'a str,
    /// Tables that are read again.
    tables: Vec<String>,
    /// Tables that the server does not have: their derived rows are removed.
    gone_tables: Vec<String>,
}

pub(super) async fn begin(
    wiring: &Wiring,
    arguments: &Arguments,
    known: &KnownLanes,
    id: &str,
) -> Result<Exit, Fault> {
    let source = arguments.source.as_str();
    let touched = ask(wiring, source, id, known, true).await?;
    if arguments.dry_run {
        show(&touched, id, arguments);
        return Ok(Exit::Success);
    }
    if !touched.is_repeated {
        if !arguments.json {
            show(&touched, id, arguments);
        }
        confirm(arguments)?;
    }
    let command = CommandText::of("begin-anew").option("--source", Some(source)).flag("--touched", true);
    let command = command.option("--id", arguments.id.as_deref()).text();
    let before = state_before(Some(touched.crossing.end), touched.why.as_deref());
    let work = again(async || ask(wiring, source, id, known, false).await);
    let after = |touched: &Touched| {
        let crossing = &touched.crossing;
        let (tables, common, server) = (crossing.tables().len(), crossing.common, &crossing.server);
        format!("{tables} tables are read again, the others from {common} on at server {server}, id {id}")
    };
    let touched = recorded(wiring, &Actor::of_command(), (command, before), work, after).await?.done;
    let crossing = &touched.crossing;
    tracing::warn!(
        source, id, common = %crossing.common, why = touched.why,
        "the source goes on at a server that lacks transactions"
    );
    if arguments.json || touched.is_repeated {
        show(&touched, id, arguments);
    }
    wake(wiring, source, |end| end.position > crossing.end).await?;
    Ok(Exit::Success)
}

async fn ask(
    wiring: &Wiring,
    source: &str,
    request: &str,
    known: &KnownLanes,
    is_rehearsal: bool,
) -> Result<Touched, Fault> {
    let command = command(wiring, source, request).await?;
    command.run_touched(&known.progress, known.are_all(), is_rehearsal).await
}

fn show(touched: &Touched, id: &str, arguments: &Arguments) {
    let crossing = &touched.crossing;
    let gtids = crossing.resume.read_gtids();
    let done = TouchedView {
        request: RequestView {
            source: &arguments.source,
            id,
            server: crossing.server.to_string(),
            why: touched.why.as_deref(),
            read_up_to: Some(crossing.end.to_string()),
            dry_run: arguments.dry_run,
            repeated: touched.is_repeated,
        },
        common: crossing.common.to_string(),
        common_gtids: if gtids.is_empty() { "none" } else { gtids },
        tables: crossing.tables(),
        gone_tables: crossing.gone_tables(),
    };
    print(arguments, &done, || text(&done));
}

fn text(done: &TouchedView<'_>) -> String {
    let mut lines = vec![format!(
        "  goes on at  {} (GTIDs {}), up to where the server has everything",
        done.common, done.common_gtids
    )];
    lines.extend(done.tables.iter().map(|table| format!("  table {table} is read again")));
    lines.extend(
        done.gone_tables.iter().map(|table| {
            format!("  table {table} does not exist at that server: its derived rows are removed")
        }),
    );
    if done.tables.is_empty() && done.gone_tables.is_empty() {
        lines.push("  no table is read again: the server lacks no captured change".to_owned());
    }
    done.request.text(&VERBS, &format!("at server {}", done.request.server), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_that_are_read_again_are_named() {
        let done = TouchedView {
            request: RequestView {
                source: "source-a",
                id: "one",
                server: "mariadb:7".to_owned(),
                why: Some("[source-diverged] …"),
                read_up_to: Some("1:7:480".to_owned()),
                dry_run: true,
                repeated: false,
            },
            common: "1:7:320".to_owned(),
            common_gtids: "1-7-20",
            tables: vec!["user_00.user_001".to_owned()],
            gone_tables: vec!["user_00.user_002".to_owned()],
        };
        let shown = text(&done);
        for part in [
            "source source-a would go on at server mariadb:7",
            "read up to  1:7:480",
            "goes on at  1:7:320 (GTIDs 1-7-20)",
            "table user_00.user_001 is read again",
            "table user_00.user_002 does not exist at that server",
        ] {
            assert!(shown.contains(part), "no {part}: {shown}");
        }
        let nothing = text(&TouchedView { tables: Vec::new(), gone_tables: Vec::new(), ..done });
        assert!(nothing.contains("no table is read again"), "{nothing}");
    }
}
