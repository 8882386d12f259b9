//! Retired words in names of files that are not Rust: identifiers of SQL and of the page's JavaScript, and keys of
//! TOML, YAML and JSON. Comments and texts with spaces are sentences.

use crate::Fault;
use crate::tree::Text;
use crate::words::{fault, faults_of_document, is_name, names, retired};

/// Extensions of the files that are checked.
pub const EXTENSIONS: [&str; 6] = ["js", "json", "sql", "toml", "yaml", "yml"];

pub fn faults(file: &Text) -> Vec<Fault> {
    let extension = file.path.rsplit('.').next().unwrap_or_default();
    let code = match extension {
        "js" => code(&file.text, &["//"]),
        "sql" => code(&file.text, &["-- ", "#"]),
        _ => keys(&file.text, extension),
    };
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        let words = names(line).filter_map(|name| Some((name, retired(name)?)));
        faults.extend(words.map(|(name, word)| fault(&file.path, number, name, word)));
    }
    if !["js", "sql"].contains(&extension) {
        faults.extend(faults_of_document(file));
    }
    faults
}

/// The keys of a file of settings, each on the line that it has there.
fn keys(text: &str, extension: &str) -> String {
    let key_of = |line: &str| -> String {
        let line = line.trim();
        let key = match extension {
            "json" => {
                let parts: Vec<&str> = line.split('"').collect();
                let keys = parts.windows(2).filter(|pair| pair[1].trim_start().starts_with(':'));
                return keys.flat_map(|pair| [pair[0], " "]).collect();
            }
            "toml" => line.split_once('=').map_or(line, |(key, _)| key),
            _ => line.trim_start_matches("- ").split_once(':').map_or("", |(key, _)| key),
        };
        let key = key.trim_matches(['[', ']', '"', ' ']);
        let is_key = key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if is_key { key.to_owned() } else { String::new() }
    };
    text.lines().map(|line| key_of(line) + "\n").collect()
}

/// The code of a file without its comments and without its texts, except those that are names. In a template of
/// JavaScript, the parts within `${…}` are code. Each line stays where it was.
fn code(text: &str, line_comments: &[&str]) -> String {
    let (mut code, mut rest) = (String::new(), text);
    let mut is_template = false;
    // The open braces of each part of a template.
    let mut parts: Vec<usize> = Vec::new();
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let mut kept = " ";
        let length = if is_template {
            let is_part = rest.starts_with("${");
            parts.extend(is_part.then_some(0));
            is_template = !is_part && c != '`';
            let escaped = after.chars().next().filter(|_| c == '\\').map_or(0, char::len_utf8);
            c.len_utf8() + escaped + usize::from(is_part)
        } else if line_comments.iter().any(|comment| rest.starts_with(comment)) {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if ['"', '\''].contains(&c) {
            let end = after.find([c, '\n']).unwrap_or(after.len());
            kept = Some(&after[..end]).filter(|text| is_name(text)).unwrap_or(kept);
            1 + end + usize::from(after[end..].starts_with(c))
        } else {
            kept = if c == '\n' { "" } else { &rest[..c.len_utf8()] };
            match (c, parts.last_mut()) {
                ('`', _) => is_template = true,
                ('}', Some(0)) => is_template = parts.pop().is_some(),
                ('}', Some(open)) => *open -= 1,
                ('{', Some(open)) => *open += 1,
                _ => {}
            }
            c.len_utf8()
        };
        let (gone, left) = rest.split_at(length);
        code.push_str(kept);
        code.extend(gone.chars().filter(|c| *c == '\n'));
        rest = left;
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = Text { path: path.to_owned(), text: text.to_owned() };
        faults(&file).into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn a_retired_word_in_a_name_of_another_language_is_told() {
        let page = "// told\n/* told\n told */ const a = 'is told';\nconst told = \"night-rows\";\n";
        assert_eq!(lines("a.js", page), [4, 4]);
        assert_eq!(lines("a.js", "`told ${lane.told + `told ${night} told`} told`;\n\nlet told;"), [1, 1, 3]);
        assert_eq!(lines("a.sql", "-- The night.\nCREATE TABLE past_night (\n  n ENUM('told'))"), [2]);
        assert_eq!(lines("a.toml", "# told = 1\n[night.rows]\nnight_a = \"told\"\nb = 1"), [2, 3]);
        assert_eq!(lines("a.yml", "- night: told\n  b: anabranch_night_rows > 1\n# told"), [1, 2]);
        assert_eq!(lines("a.json", "{\"a\": \"told\",\n \"night\": {\"marks\": 1}}"), [2, 2]);
    }
}
