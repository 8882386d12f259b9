//! Files of one crate do not import one another in a circle.
//!
//! A file may use definitions of its parent: that import does not count, so parent and child are no circle. Re-exports
//! of a file from below itself do not count either.

use std::collections::{BTreeMap, BTreeSet};

use crate::Fault;
use crate::modules::{Found, Modules};
use crate::tree::Source;

/// Circles that are left, each with all of its files in order. The list only shrinks.
pub const KNOWN: &[&[&str]] = &[];

/// Reports circles that are not `known`, and known ones that are gone or have changed.
pub fn faults(sources: &[Source], known: &[&[&str]]) -> Vec<Fault> {
    let found = circles(sources);
    let known: BTreeSet<Vec<String>> =
        known.iter().map(|files| files.iter().map(|file| (*file).to_owned()).collect()).collect();
    let fault = |path: &str, what, remedy| Fault { path: path.to_owned(), line: 1, what, remedy };
    let new = found.difference(&known).map(|files| {
        let what =
            format!("{} files import one another in a circle:\n    {}", files.len(), files.join("\n    "));
        fault(&files[0], what, "Move what several of them need into a file that knows none of them.")
    });
    let gone = known.difference(&found).map(|files| {
        let what = format!("this circle of {} files is not there any more", files.len());
        fault(&files[0], what, "Take it out of the list in tests/tidy/circles.rs.")
    });
    new.chain(gone).collect()
}

/// The strongly connected sets of files, each in the order of paths.
fn circles(sources: &[Source]) -> BTreeSet<Vec<String>> {
    let arrows = arrows(sources);
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        arrows.keys().map(|from| (*from, reachable(&arrows, *from))).collect();
    let mut circles = BTreeSet::new();
    for (from, behind) in &reached {
        let is_back = |to: &&usize| reached.get(to).is_some_and(|further| further.contains(from));
        let circle: BTreeSet<usize> = behind.iter().filter(is_back).copied().collect();
        if circle.len() > 1 {
            let mut files: Vec<String> = circle.iter().map(|file| sources[*file].path().to_owned()).collect();
            files.sort();
            circles.insert(files);
        }
    }
    circles
}

fn reachable(arrows: &BTreeMap<usize, BTreeSet<usize>>, from: usize) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        let next = arrows.get(&file).into_iter().flatten();
        open.extend(next.filter(|next| reached.insert(**next)));
    }
    reached
}

/// The files that each file needs.
fn arrows(sources: &[Source]) -> BTreeMap<usize, BTreeSet<usize>> {
    let modules = Modules::of(sources);
    let mut arrows = BTreeMap::<usize, BTreeSet<usize>>::new();
    for (id, module) in modules.0.iter().enumerate() {
        let imported = module.imported.iter().map(|(path, is_exported)| (path, *is_exported));
        // Most paths are mentioned many times.
        let mentioned: BTreeSet<&Vec<String>> = module.mentions.iter().collect();
        for (path, is_exported) in imported.chain(mentioned.into_iter().map(|path| (path, false))) {
            let Some(Found::Item(target)) = modules.resolve(id, path) else { continue };
            let (from, to) = (module.file, modules.0[target].file);
            let is_parent = modules.is_within(id, target);
            let is_own_export = is_exported && modules.is_within(target, id);
            if from != to && !is_parent && !is_own_export {
                arrows.entry(from).or_default().insert(to);
            }
        }
    }
    arrows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| sample(path, text)).collect();
        circles(&sources).into_iter().collect()
    }

    #[test]
    fn a_circle_is_found_through_an_export_and_a_path_in_a_macro() {
        let files = [
            ("p/src/lib.rs", "mod room;\nmod other;\n"),
            ("p/src/room/mod.rs", "mod noun;\npub use noun::Noun;\n"),
            ("p/src/room/noun.rs", "pub struct Noun;\nfn f() { vec![crate::other::g()] }\n"),
            ("p/src/other.rs", "use crate::room::*;\npub fn g() { Noun; }\n"),
        ];
        assert_eq!(found(&files), [["p/src/other.rs", "p/src/room/noun.rs"]]);
    }

    #[test]
    fn parent_and_child_are_none_and_neither_is_a_module_for_tests() {
        let files = [
            ("p/src/lib.rs", "mod room;\nmod other;\n"),
            ("p/src/room.rs", "mod below;\npub const A: u8 = below::B;\n"),
            ("p/src/room/below.rs", "use super::A;\npub const B: u8 = 0;\n"),
            ("p/src/other.rs", "use crate::room::A;\n#[cfg(test)]\nmod tests;\n"),
            ("p/src/other/tests.rs", "use super::*;\n"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_circle_is_told_when_it_is_new_and_when_it_is_gone() {
        let files = ["a", "b"].map(|name| format!("p/src/{name}.rs"));
        let text = |other| format!("use crate::{other}::X;\npub struct X;\n");
        let sources = [
            sample("p/src/lib.rs", "mod a;\nmod b;\n"),
            sample(&files[0], &text("b")),
            sample(&files[1], &text("a")),
        ];
        let known: &[&str] = &[&files[0], &files[1]];
        let gone: &[&str] = &["p/src/c.rs", "p/src/d.rs"];
        let found_faults =
            |known: &[&[&str]]| faults(&sources, known).into_iter().map(|fault| fault.path).collect();
        let none: Vec<String> = found_faults(&[known]);
        assert_eq!(none, Vec::<String>::new());
        assert_eq!(found_faults(&[gone]), ["p/src/a.rs", "p/src/c.rs"]);
    }
}
