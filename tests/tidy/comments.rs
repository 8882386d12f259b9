//! A doc comment says what it is about where it stands alone: in rustdoc, beside a name, in a hover.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::Source;

/// Words that begin half a sentence, whose other half is the name below.
const HALVES: [&str; 7] = ["And", "But", "Nor", "Of", "Or", "That", "Whose"];

/// Doc comments that still begin so, by the folder at the root. The numbers only shrink.
const KNOWN: [(&str, usize); 5] =
    [("connectors", 21), ("deploy", 25), ("pipeline", 43), ("schemas", 1), ("tests", 22)];

/// Doc comments whose first line is no beginning of a sentence.
pub fn faults(source: &Source) -> Vec<Fault> {
    let fault = |(line, first): (usize, String)| {
        let is_small = first.starts_with(|letter: char| letter.is_ascii_lowercase());
        let is_name = first.split_whitespace().next().is_some_and(|word| word.contains(['_', '-', ',', ':']));
        (is_small && !is_name).then(|| Fault {
            path: source.path().to_owned(),
            line,
            what: format!("the doc comment begins in the middle of a sentence: `{first}`"),
            remedy: "Begin with a whole sentence, or with a name and its apposition.",
        })
    };
    beginnings(source).into_iter().filter_map(fault).collect()
}

/// Folders that have more halves of sentences than are known, or fewer.
pub fn count_faults(sources: &[Source]) -> Vec<Fault> {
    let mut found: BTreeMap<&str, Vec<String>> = KNOWN.map(|(folder, _)| (folder, Vec::new())).into();
    for source in sources {
        let folder = source.path().split('/').next().unwrap_or_default();
        let halves = beginnings(source).into_iter().filter(|(_, first)| is_half(first));
        let halves = halves.map(|(line, first)| format!("{}:{line}: {first}", source.path()));
        found.entry(folder).or_default().extend(halves);
    }
    let fault = |(folder, halves): (&str, Vec<String>)| {
        let known = KNOWN.iter().find(|(known, _)| *known == folder).map_or(0, |(_, count)| *count);
        let what = format!(
            "{} doc comments begin with half a sentence ({}), and {known} are known",
            halves.len(),
            HALVES.join(", ")
        );
        let remedy = match halves.len().cmp(&known) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Less => "Lower the number in tests/tidy/comments.rs.",
            std::cmp::Ordering::Greater => "Say what the thing is: `Length of a key`, not `Of a key`.",
        };
        let what = format!("{what}\n    {}", halves.join("\n    "));
        Some(Fault { path: folder.to_owned(), line: 1, what, remedy })
    };
    found.into_iter().filter_map(fault).collect()
}

fn is_half(first: &str) -> bool {
    first.split_whitespace().next().is_some_and(|word| HALVES.contains(&word))
}

/// Line and text of the first line of each doc comment of an item, field or variant.
fn beginnings(source: &Source) -> Vec<(usize, String)> {
    let mut comments = Comments::default();
    comments.visit_file(&source.syntax);
    comments.found
}

#[derive(Default)]
struct Comments {
    /// The line of the comment that was read last: of several lines that follow one another only the first counts.
    last: Option<usize>,
    found: Vec<(usize, String)>,
}

impl<'ast> Visit<'ast> for Comments {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::NameValue(doc) = &attribute.meta
            && doc.path.is_ident("doc")
            && matches!(attribute.style, syn::AttrStyle::Outer)
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &doc.value
        {
            let line = text.span().start().line;
            if self.last.is_none_or(|last| last + 1 != line) {
                self.found.push((line, text.value().trim().to_owned()));
            }
            self.last = Some(line);
        }
        visit::visit_attribute(self, attribute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_comment_that_begins_in_the_middle_is_told() {
        let text = "/// of the lane.\nstruct A {\n  /// Rows\n  /// of the lane.\n  rows: u64,\n}\n";
        let told: Vec<_> = faults(&sample("pipeline/src/a.rs", text)).into_iter().map(|f| f.line).collect();
        assert_eq!(told, [1]);
    }

    #[test]
    fn halves_of_sentences_beyond_the_known_ones_are_told() {
        let text = "/// Of epochs.\nstruct A {\n  /// Rows\n  /// Of the lane.\n  rows: u64,\n}\n";
        let halves = beginnings(&sample("a.rs", text)).into_iter().filter(|(_, first)| is_half(first));
        assert_eq!(halves.collect::<Vec<_>>(), [(1, "Of epochs.".to_owned())]);
        let many: Vec<_> = (0..200).map(|n| sample(&format!("schemas/{n}.rs"), text)).collect();
        let told = count_faults(&many);
        assert!(told.iter().any(|fault| fault.path == "schemas"), "{told:?}");
    }
}
