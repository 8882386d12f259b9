//! A doc comment names its subject, as it stands alone in rustdoc, beside a name and in a hover. The product's comments
//! call programs and persons by what they are.

use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::Source;

/// Words that begin half a sentence, whose other half is the name below.
const HALVES: [&str; 9] = ["And", "But", "Nor", "Of", "Or", "That", "What", "Which", "Whose"];
/// Words that begin half a sentence, unless a comma parts it from its main clause.
const CLAUSES: [&str; 7] = ["As", "By", "Then", "When", "Where", "With", "Without"];
/// Words for anybody, with which a comment hides the reader, lane, client or operator that it means.
const PERSONS: [&str; 8] =
    ["anybody", "anyone", "everybody", "everyone", "nobody", "somebody", "someone", "whoever"];
/// Folders whose comments speak of the product; users of tests are persons.
const PRODUCT: [&str; 3] = ["connectors/", "pipeline/", "schemas/"];

/// Doc comments whose first line is not the beginning of a sentence, and comments of the product that name no one.
pub fn faults(source: &Source) -> Vec<Fault> {
    let mut faults = halves(source);
    faults.extend(persons(source));
    faults
}

fn halves(source: &Source) -> Vec<Fault> {
    let fault = |Beginning { line, text }: Beginning| {
        let first = text.lines().next().unwrap_or_default();
        let is_small = first.starts_with(|letter: char| letter.is_ascii_lowercase());
        let word = first.split_whitespace().next().unwrap_or_default();
        let is_name = word.contains(['_', '-', ',', ':']);
        let is_half = HALVES.contains(&word) || CLAUSES.contains(&word) && !sentence(&text).contains(',');
        (is_small && !is_name || is_half).then(|| Fault {
            path: source.path().to_owned(),
            line,
            what: format!("the doc comment begins in the middle of a sentence: `{first}`"),
            remedy: "Say what the thing is: `Length of a key`, not `Of a key`.",
        })
    };
    beginnings(source).into_iter().filter_map(fault).collect()
}

fn persons(source: &Source) -> Vec<Fault> {
    if !PRODUCT.iter().any(|folder| source.path().starts_with(folder)) {
        return Vec::new();
    }
    let fault = |(line, text): (usize, &str)| {
        let comment = text.trim_start().strip_prefix("//")?;
        let mut words = comment.split(|letter: char| !letter.is_ascii_alphanumeric());
        let word = words.find(|word| PERSONS.contains(&&*word.to_ascii_lowercase()))?;
        Some(Fault {
            path: source.path().to_owned(),
            line,
            what: format!("the comment speaks of `{word}`"),
            remedy: "Name the program or the person: a reader, no request, an operator.",
        })
    };
    (1..).zip(source.text.text.lines()).filter_map(fault).collect()
}

/// The first sentence of a comment. A colon ends one too.
fn sentence(text: &str) -> &str {
    let end = |(at, _): &(usize, char)| text[at + 1..].chars().next().is_none_or(char::is_whitespace);
    text.char_indices()
        .filter(|(_, letter)| ".:".contains(*letter))
        .find(end)
        .map_or(text, |(at, _)| &text[..at])
}

/// A doc comment of an item, field or variant.
struct Beginning {
    /// Number of its first line.
    line: usize,
    /// Its lines up to the first one that another attribute or an item parts from them.
    text: String,
}

fn beginnings(source: &Source) -> Vec<Beginning> {
    let mut comments = Comments::default();
    comments.visit_file(&source.syntax);
    comments.found
}

#[derive(Default)]
struct Comments {
    /// Line of the comment that was visited last: only the first of several consecutive lines counts.
    last: Option<usize>,
    found: Vec<Beginning>,
}

impl<'ast> Visit<'ast> for Comments {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::NameValue(doc) = &attribute.meta
            && doc.path.is_ident("doc")
            && matches!(attribute.style, syn::AttrStyle::Outer)
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &doc.value
        {
            let line = text.span().start().line;
            let text = text.value().trim().to_owned();
            match self.found.last_mut().filter(|_| self.last.is_some_and(|last| last + 1 == line)) {
                Some(beginning) => {
                    beginning.text.push('\n');
                    beginning.text.push_str(&text);
                }
                None => self.found.push(Beginning { line, text }),
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
    fn a_person_for_a_program_is_told_in_the_product_only() {
        let text = "// Whoever asks.\n/// Nobody.\nstruct A;\n// No body.\nfn nobody() {}\n";
        let lines = |path| -> Vec<usize> {
            faults(&sample(path, text)).into_iter().map(|fault| fault.line).collect()
        };
        assert_eq!(lines("pipeline/src/a.rs"), [1, 2]);
        assert!(lines("tests/conformance/a.rs").is_empty());
    }

    #[test]
    fn half_a_sentence_is_told_in_the_first_line_only() {
        for half in ["Of epochs", "What it has", "Which user"] {
            let text =
                format!("/// {half}.\nstruct A {{\n  /// Rows\n  /// Of the lane.\n  rows: u64,\n}}\n");
            let found_faults: Vec<_> =
                faults(&sample("a.rs", &text)).into_iter().map(|fault| fault.line).collect();
            assert_eq!(found_faults, [1], "{half}");
        }
    }

    #[test]
    fn a_clause_is_told_unless_a_comma_parts_it_from_a_sentence() {
        let count = |text: &str| faults(&sample("a.rs", &format!("{text}\nstruct A;\n"))).len();
        for half in ["By the statistics", "When it is due.\n/// Later, it is late", "With `a`: ends, at once"]
        {
            assert_eq!(count(&format!("/// {half}.")), 1, "{half}");
        }
        for sentence in
            ["When a.b is due,\n/// it ends", "With rows\n/// of one table, it ends", "Bytes of it"]
        {
            assert_eq!(count(&format!("/// {sentence}.")), 0, "{sentence}");
        }
    }
}
