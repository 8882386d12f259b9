//! Files of one crate do not import one another in a circle.
//!
//! A file may use definitions of its parent. So a circle within a room, which is a file with the modules within it, is
//! none if it leads through the file of the room. A circle that leaves the room is one, also where it leads from a file
//! to its parent. Re-exports of a file from below itself do not count. `docs/decisions/testing.md` has the reasons.

use std::collections::{BTreeMap, BTreeSet};

use crate::Fault;
use crate::modules::{Found, ModuleId, Modules};
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

/// The sets of files that import one another, each in the order of paths.
fn circles(sources: &[Source]) -> BTreeSet<Vec<String>> {
    let modules = Modules::of(sources);
    let arrows = arrows(&modules);
    // The module of a file comes before the modules within it.
    let mut own = BTreeMap::<usize, ModuleId>::new();
    for (id, module) in modules.0.iter().enumerate() {
        own.entry(module.file).or_insert(id);
    }
    let mut circles = BTreeSet::new();
    let mut open: Vec<BTreeSet<usize>> = vec![(0..sources.len()).collect()];
    while let Some(files) = open.pop() {
        for mut circle in connected(&arrows, &files) {
            let is_around = |head: &usize| {
                circle.iter().all(|file| file == head || modules.is_within(own[file], own[head]))
            };
            let head = circle.iter().copied().find(is_around);
            match head {
                // Without the file of the room, circles of the other files are left, if there are any.
                Some(head) => {
                    circle.remove(&head);
                    open.push(circle);
                }
                None => {
                    let files = circle.iter().map(|file| sources[*file].path().to_owned());
                    let mut files: Vec<String> = files.collect();
                    files.sort();
                    circles.insert(files);
                }
            }
        }
    }
    circles
}

/// The strongly connected sets among these files.
fn connected(
    arrows: &BTreeMap<usize, BTreeSet<usize>>,
    files: &BTreeSet<usize>,
) -> BTreeSet<BTreeSet<usize>> {
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        files.iter().map(|from| (*from, reachable(arrows, files, *from))).collect();
    let back = |(from, further): (&usize, &BTreeSet<usize>)| -> BTreeSet<usize> {
        further.iter().copied().filter(|to| reached[to].contains(from)).collect()
    };
    reached.iter().map(back).filter(|circle| circle.len() > 1).collect()
}

fn reachable(
    arrows: &BTreeMap<usize, BTreeSet<usize>>,
    files: &BTreeSet<usize>,
    from: usize,
) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        let next = arrows.get(&file).into_iter().flatten();
        open.extend(next.filter(|next| files.contains(*next) && reached.insert(**next)));
    }
    reached
}

/// The files that each file needs.
pub fn arrows(modules: &Modules) -> BTreeMap<usize, BTreeSet<usize>> {
    let mut arrows = BTreeMap::<usize, BTreeSet<usize>>::new();
    for (id, module) in modules.0.iter().enumerate() {
        let imported = module.imported.iter().map(|(path, is_exported)| (path, *is_exported));
        // Most paths are mentioned many times.
        let mentioned: BTreeSet<&Vec<String>> = module.mentions.iter().collect();
        for (path, is_exported) in imported.chain(mentioned.into_iter().map(|path| (path, false))) {
            let Some(Found::Item(target)) = modules.resolve(id, path) else { continue };
            let (from, to) = (module.file, modules.0[target].file);
            let is_own_export = is_exported && modules.is_within(target, id);
            if from != to && !is_own_export {
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
    fn a_circle_through_a_parent_is_found_when_it_leaves_the_room() {
        let files = [
            ("p/src/lib.rs", "mod room;\nmod spec;\n"),
            ("p/src/room/mod.rs", "mod noun;\npub use noun::N;\nuse crate::spec::S;\npub struct Kept(S);\n"),
            ("p/src/room/noun.rs", "use super::Kept;\npub const N: u8 = 0;\nfn f(_: Kept) {}\n"),
            ("p/src/spec.rs", "use crate::room::N;\npub struct S;\n"),
        ];
        assert_eq!(found(&files), [["p/src/room/mod.rs", "p/src/room/noun.rs", "p/src/spec.rs"]]);
    }

    #[test]
    fn a_circle_of_two_children_is_found_beside_those_with_their_parent() {
        let files = [
            ("p/src/lib.rs", "mod room;\n"),
            ("p/src/room.rs", "mod a;\nmod b;\npub struct Kept;\nfn f() { a::A; b::B; }\n"),
            ("p/src/room/a.rs", "use super::Kept;\nuse super::b::B;\npub const A: u8 = B;\n"),
            ("p/src/room/b.rs", "use super::Kept;\nuse super::a::A;\npub const B: u8 = A;\n"),
        ];
        assert_eq!(found(&files), [["p/src/room/a.rs", "p/src/room/b.rs"]]);
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
