//! A file has at most 500 lines and a head; a function has at most 70 lines of code. Some documents have a size.

use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::{Source, Text};

/// Most lines of a file; a longer one has two subjects.
const FILE_LINES_MAX: usize = 500;
/// Most lines of a function; a longer one does not fit on a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// Most bytes of each document that a reader reads to its end.
const DOCUMENT_BYTES_MAX: [(&str, usize); 3] =
    [("ARCHITECTURE.md", 20_480), ("README.md", 6_144), ("tests/benchmarks/README.md", 8_192)];

pub fn faults(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut report = |line, what, remedy| {
        faults.push(Fault { path: source.path().to_owned(), line, what, remedy });
    };
    let lines = source.text.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!("the file has {lines} lines, and the limit is {FILE_LINES_MAX}");
        report(lines, what, "Move one of its subjects into a file of its own.");
    }
    if !source.text.text.starts_with("//!") {
        let what = "the file has no head".to_owned();
        report(1, what, "Begin it with `//!` lines that say what it does and what it leaves to others.");
    }
    let all: Vec<&str> = source.text.text.lines().collect();
    let is_code = |line: &&&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let mut functions = Functions::default();
    functions.visit_file(&source.syntax);
    for (name, first, last) in functions.0 {
        // Comments take nothing from a function's room.
        let lines = all[first - 1..last].iter().filter(is_code).count();
        if lines > FUNCTION_LINES_MAX {
            let what = format!("fn {name} has {lines} lines of code, and the limit is {FUNCTION_LINES_MAX}");
            report(first, what, "Give one of its steps a name and a function.");
        }
    }
    faults
}

pub fn faults_of_document(document: &Text) -> Option<Fault> {
    let (_, limit) = DOCUMENT_BYTES_MAX.iter().find(|(path, _)| *path == document.path)?;
    let size = document.text.len();
    (size > *limit).then(|| Fault {
        path: document.path.clone(),
        line: document.text.lines().count(),
        what: format!("the document has {size} bytes, and the limit is {limit}"),
        remedy: "Shorten it, or move a part to the document of its topic.",
    })
}

/// Name, first and last line of each function with a body.
#[derive(Default)]
struct Functions(Vec<(String, usize, usize)>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (first, last) = (signature.fn_token.span.start().line, body.brace_token.span.close().end().line);
        self.0.push((signature.ident.to_string(), first, last));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_long_file_a_long_function_and_a_missing_head_are_told() {
        let body = "    call();\n".repeat(70);
        let rest = "const X: u8 = 0;\n".repeat(500);
        let text = format!("struct S;\nimpl S {{\n  fn long(&self) {{\n{body}  }}\n}}\n{rest}");
        let found_faults: Vec<_> =
            faults(&sample("a.rs", &text)).into_iter().map(|f| (f.line, f.what)).collect();
        let expected = [
            (575, "the file has 575 lines, and the limit is 500"),
            (1, "the file has no head"),
            (3, "fn long has 72 lines of code, and the limit is 70"),
        ];
        assert_eq!(found_faults, expected.map(|(line, what)| (line, what.to_owned())));
    }

    #[test]
    fn a_long_document_is_told_if_it_has_a_stated_size() {
        let document = |path: &str, size| Text { path: path.to_owned(), text: "x".repeat(size) };
        let fault = faults_of_document(&document("README.md", 6_145)).expect("a byte too many");
        assert_eq!(fault.what, "the document has 6145 bytes, and the limit is 6144");
        assert_eq!(faults_of_document(&document("README.md", 6_144)), None);
        assert_eq!(faults_of_document(&document("docs/README.md", 6_145)), None);
    }

    #[test]
    fn what_is_just_short_enough_is_left_alone() {
        let body = "    call();\n".repeat(68);
        let text = format!("//! Head.\nfn long() {{\n{body}}}\n{}", "const X: u8 = 0;\n".repeat(429));
        assert_eq!(faults(&sample("a.rs", &text)), []);
    }
}
