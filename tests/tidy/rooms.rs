//! Rooms of the pipeline import one another in one direction.
//!
//! A *room* is a module of the crate's root, with the modules within it. [`ORDER`] lists the rooms from the lowest to
//! the highest, and a file imports only from its own room and from lower ones. So a noun that two loops need lies below
//! both. `docs/decisions/testing.md` has the reasons.

use std::collections::BTreeSet;

use crate::Fault;
use crate::circles::arrows;
use crate::modules::Modules;
use crate::tree::Source;

const CRATE: &str = "pipeline/src/";

/// The rooms of the pipeline: each imports only from those before it.
pub const ORDER: &[&str] = &[
    "error",
    "failpoints",
    "lag",
    "metrics",
    "wall_clock",
    "records",
    "ports",
    "config",
    "retry",
    "supervise",
    "throttle",
    "sketch",
    "epochs",
    "projections",
    "identifiers",
    "capture",
    "deliver",
    "lookup",
    "relations",
    "reconcile",
    "composition",
];

/// Reports imports from a higher room, rooms that `order` does not list, and listed ones that are gone.
pub fn faults(sources: &[Source], order: &[&str]) -> Vec<Fault> {
    let fault = |path: &str, what, remedy| Fault { path: path.to_owned(), line: 1, what, remedy };
    let mut faults = Vec::new();
    let rooms: BTreeSet<&str> = sources.iter().filter_map(|source| room(source.path())).collect();
    let listed: BTreeSet<&str> = order.iter().copied().collect();
    for room in rooms.symmetric_difference(&listed) {
        let (what, remedy) = match listed.contains(room) {
            true => ("is listed and has no file", "Take it out of the order in tests/tidy/rooms.rs."),
            false => ("has no rank", "Add it to the order in tests/tidy/rooms.rs."),
        };
        faults.push(fault(&format!("{CRATE}{room}"), format!("this room {what}"), remedy));
    }
    let rank = |room: &str| order.iter().position(|listed| *listed == room);
    for (from, targets) in arrows(&Modules::of(sources)) {
        for to in targets {
            let (from, to) = (sources[from].path(), sources[to].path());
            let (Some(own), Some(other)) = (room(from), room(to)) else { continue };
            if let (Some(low), Some(high)) = (rank(own), rank(other))
                && low < high
            {
                let what = format!("`{own}` imports from {to}, and `{other}` is the higher room");
                faults.push(fault(from, what, "Move what both of them need into a room below them."));
            }
        }
    }
    faults
}

/// The room of a file; `None` for the root of the crate, and for a file of another crate.
fn room(path: &str) -> Option<&str> {
    let below = path.strip_prefix(CRATE)?;
    let room = below.split_once('/').map_or(below.strip_suffix(".rs"), |(room, _)| Some(room))?;
    (room != "lib").then_some(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// Returns the path and the finding of each fault of a crate with these files.
    fn found(files: &[(&str, &str)], order: &[&str]) -> Vec<(String, String)> {
        let root = ("pipeline/src/lib.rs", "mod nouns;\nmod low;\nmod high;\n");
        let files = [&[root][..], files].concat();
        let sources: Vec<Source> = files.iter().map(|(path, text)| sample(path, text)).collect();
        faults(&sources, order).into_iter().map(|fault| (fault.path, fault.what)).collect()
    }

    #[test]
    fn an_import_from_a_higher_room_is_found_also_without_a_circle() {
        let files = [
            ("pipeline/src/nouns.rs", "pub struct Noun;\n"),
            ("pipeline/src/low/mod.rs", "mod deep;\n"),
            ("pipeline/src/low/deep.rs", "use crate::high::Kept;\nfn f(_: Kept) {}\n"),
            ("pipeline/src/high.rs", "use crate::nouns::Noun;\npub struct Kept(Noun);\n"),
        ];
        assert!(found(&files, &["nouns", "high", "low"]).is_empty());
        let faults = found(&files, &["nouns", "low", "high"]);
        assert_eq!(faults.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["pipeline/src/low/deep.rs"]);
        assert!(faults[0].1.contains("pipeline/src/high.rs"), "{faults:?}");
    }

    #[test]
    fn a_room_without_a_rank_is_found_and_so_is_a_rank_without_a_room() {
        let files = [("pipeline/src/nouns.rs", "pub struct Noun;\n"), ("pipeline/src/low.rs", "")];
        let faults = found(&files, &["nouns", "high"]);
        let paths: Vec<&str> = faults.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["pipeline/src/high", "pipeline/src/low"]);
    }

    #[test]
    fn the_root_tests_and_other_crates_have_no_rank() {
        let files = [
            ("pipeline/src/nouns.rs", "#[cfg(test)]\nmod tests {\n    use crate::low::Low;\n}\n"),
            ("pipeline/src/low.rs", "pub struct Low;\n"),
            ("pipeline/daemon/src/lib.rs", "mod any;\n"),
            ("pipeline/daemon/src/any.rs", ""),
        ];
        assert!(found(&files, &["nouns", "low"]).is_empty());
    }
}
