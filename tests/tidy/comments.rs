//! A doc comment names its subject, as it stands alone in rustdoc, beside a name and in a hover.

use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::Source;

/// Words that begin half a sentence, whose other half is the name below.
const HALVES: [&str; 7] = ["And", "But", "Nor", "Of", "Or", "That", "Whose"];

/// Doc comments whose first line is not the beginning of a sentence.
pub fn faults(source: &Source) -> Vec<Fault> {
    let fault = |(line, first): (usize, String)| {
        let is_small = first.starts_with(|letter: char| letter.is_ascii_lowercase());
        let word = first.split_whitespace().next().unwrap_or_default();
        let is_name = word.contains(['_', '-', ',', ':']);
        (is_small && !is_name || HALVES.contains(&word)).then(|| Fault {
            path: source.path().to_owned(),
            line,
            what: format!("the doc comment begins in the middle of a sentence: `{first}`"),
            remedy: "Say what the thing is: `Length of a key`, not `Of a key`.",
        })
    };
    beginnings(source).into_iter().filter_map(fault).collect()
}

/// Line and text of the first line of each doc comment of an item, field or variant.
fn beginnings(source: &Source) -> Vec<(usize, String)> {
    let mut comments = Comments::default();
    comments.visit_file(&source.syntax);
    comments.found
}

#[derive(Default)]
struct Comments {
    /// Line of the comment that was visited last: only the first of several consecutive lines counts.
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
        let found_faults: Vec<_> =
            faults(&sample("pipeline/src/a.rs", text)).into_iter().map(|f| f.line).collect();
        assert_eq!(found_faults, [1]);
    }

    #[test]
    fn half_a_sentence_is_told_in_the_first_line_only() {
        let text = "/// Of epochs.\nstruct A {\n  /// Rows\n  /// Of the lane.\n  rows: u64,\n}\n";
        let found_faults: Vec<_> =
            faults(&sample("a.rs", text)).into_iter().map(|fault| fault.line).collect();
        assert_eq!(found_faults, [1]);
    }
}
