//! Lines of prose have at most 120 characters.

use crate::Fault;
use crate::tree::Text;

/// Most characters of a line: two files, or a file and its change, fit side by side.
const LINE_CHARACTERS_MAX: usize = 120;
const REMEDY: &str = "Wrap the paragraph.";

/// Finds long lines of comments; rustfmt measures the code.
pub fn of_comments(source: &Text) -> Vec<Fault> {
    too_long(source, |line| line.trim_start().starts_with("//"))
}

/// Finds long lines of a document, except in tables and code and where a link makes the line long.
pub fn of_document(document: &Text) -> Vec<Fault> {
    let mut is_code = false;
    too_long(document, |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_link = line.split_whitespace().any(|word| word.contains("://") && word.len() > 60);
        !(is_code || is_fence || line.starts_with('|') || line.starts_with("    ") || is_link)
    })
}

fn too_long(text: &Text, mut is_prose: impl FnMut(&str) -> bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.text.lines()) {
        let length = line.chars().count();
        if is_prose(line) && length > LINE_CHARACTERS_MAX {
            let what = format!("the line has {length} characters, and the limit is {LINE_CHARACTERS_MAX}");
            faults.push(Fault { path: text.path.clone(), line: number, what, remedy: REMEDY });
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(faults: Vec<Fault>) -> Vec<usize> {
        faults.into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn a_long_comment_is_told() {
        let (long, right) = ("é".repeat(118), "é".repeat(117));
        let text = format!("// {long}\n    //! {long}\n// {right}\nlet text = \"{long}\";\n");
        assert_eq!(lines(of_comments(&Text { path: String::new(), text })), [1, 2]);
    }

    #[test]
    fn a_long_line_of_a_document_is_told_unless_it_is_a_table_code_or_a_link() {
        let long = "word ".repeat(25);
        let link = format!("See https://example.org/{}", "x".repeat(120));
        let text = format!("{long}\n| {long}|\n    {long}\n```\n{long}\n```\n{link}\n- {long}\n");
        assert_eq!(lines(of_document(&Text { path: String::new(), text })), [1, 8]);
    }
}
