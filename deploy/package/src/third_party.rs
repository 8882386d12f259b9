//! The file `THIRD-PARTY` of the package: each crate in the program with its licence, and each text once.

use std::collections::HashMap;
use std::fmt::Write;

use crate::Result;
use crate::crates::LinkedCrate;
use crate::licences::{Notice, notices};

/// Longest line of a list of crates.
const COLUMNS: usize = 100;
/// Beginning of the permission that each copy of the MIT licence has below its names.
const MIT: &str = "Permission is hereby granted, free of charge, to any person obtaining a copy";
/// An MIT licence is shorter; a file with more in it is that of several licences.
const MIT_CHARACTERS_MAX: usize = 1_500;

const HEAD: &str = "\
SOFTWARE OF OTHERS IN ANABRANCH

The program `anabranch` is linked with the crates below. Each of them has a licence of its own.
An expression such as `MIT OR Apache-2.0` leaves the choice to you. A number in brackets is that
of a text, all of which stand behind the list. `THIRD-PARTY-rust.html.gz` beside this file has
the notices of the Rust standard library, which is linked as well.

The live page, the manual pages and the completions hold no files of others.
";

/// A licence text, and the files that have it.
#[derive(Debug)]
struct Text {
    text: String,
    /// Crate and path of each file, such as `ring LICENSE-BoringSSL`.
    files: Vec<String>,
}

/// The texts in the order in which crates need them.
#[derive(Debug, Default)]
struct Texts {
    texts: Vec<Text>,
    /// Index of each text by its words: copies differ in their line ends and indents.
    by_words: HashMap<String, usize>,
}

/// Returns the content of the file. `own_licence` is the text of Apache-2.0.
pub fn file(crates: &[LinkedCrate], own_licence: &str) -> Result<String> {
    let mut texts = Texts::default();
    let mut found = Vec::new();
    for linked in crates {
        let notices = notices(&linked.folder, linked.license_file.as_deref())?;
        found.push(notices.into_iter().map(|notice| texts.add(&linked.name, notice)).collect::<Vec<_>>());
    }
    let mut content = format!("{HEAD}\nCRATES\n\n");
    for (linked, mut numbers) in crates.iter().zip(found) {
        let license = linked.license.as_deref().unwrap_or("see its text");
        let mut further = "";
        if numbers.is_empty() {
            numbers = texts.common(linked, own_licence);
            further = match numbers.is_empty() {
                true => "none: the crate has no licence file, and no common text is known",
                false => " (common text: the crate has no licence file)",
            };
        }
        numbers.sort_unstable();
        numbers.dedup();
        let numbers: Vec<String> = numbers.iter().map(|index| format!("[{}]", index + 1)).collect();
        let line =
            format!("{} {}\n    {license}; text {}{further}", linked.name, linked.version, numbers.join(" "));
        writeln!(content, "{line}").expect("writing to a String cannot fail");
    }
    content.push_str("\nTEXTS\n");
    for (number, text) in (1..).zip(&texts.texts) {
        let files = wrapped(&text.files);
        let rule = "-".repeat(COLUMNS);
        write!(content, "\n{rule}\n[{number}]\n{files}{rule}\n\n{}\n", text.text)
            .expect("writing to a String cannot fail");
    }
    Ok(content)
}

impl Texts {
    /// Adds a crate's file and returns the index of its text.
    fn add(&mut self, name: &str, notice: Notice) -> usize {
        let words = notice.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let index = *self.by_words.entry(words).or_insert(self.texts.len());
        if index == self.texts.len() {
            self.texts.push(Text { text: notice.text, files: Vec::new() });
        }
        self.texts[index].files.push(format!("{name} {}", notice.path));
        index
    }

    /// Returns the common texts of the licences of a crate without a file.
    fn common(&mut self, linked: &LinkedCrate, own_licence: &str) -> Vec<usize> {
        let expression = linked.license.clone().unwrap_or_default();
        let mut indexes = Vec::new();
        for license in expression.split([' ', '/', '(', ')']) {
            let text = match license {
                "Apache-2.0" => Some(own_licence.trim_matches('\n').to_owned()),
                "MIT" => self.permission(&linked.name),
                _ => None,
            };
            let notice = text.map(|text| Notice { path: format!("(licence {license})"), text });
            indexes.extend(notice.map(|notice| self.add(&linked.name, notice)));
        }
        indexes
    }

    /// Returns the MIT licence of another crate with the authors of this one in place of the names.
    fn permission(&self, name: &str) -> Option<String> {
        let is_short = |text: &&Text| text.text.len() < MIT_CHARACTERS_MAX;
        let body = self.texts.iter().filter(is_short).find_map(|text| {
            let words = text.text.find(MIT)?;
            Some(text.text[words..].to_owned())
        })?;
        Some(format!("Copyright (c) the authors of {name}\n\n{body}"))
    }
}

/// Returns names in lines of a limited length.
fn wrapped(names: &[String]) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for name in names {
        if !line.is_empty() && line.len() + name.len() + 3 > COLUMNS {
            lines.push_str(&line);
            lines.push_str(",\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push_str(", ");
        }
        line.push_str(name);
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const APACHE: &str = "Apache License\nVersion 2.0, January 2004\n";

    fn linked(root: &Path, name: &str, license: &str, text: Option<&str>) -> LinkedCrate {
        let folder = root.join(name);
        fs::create_dir_all(&folder).unwrap();
        if let Some(text) = text {
            fs::write(folder.join("LICENSE"), text).unwrap();
        }
        LinkedCrate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: Some(license.to_owned()),
            license_file: None,
            folder,
        }
    }

    #[test]
    fn a_text_stands_once_and_a_crate_without_a_file_gets_the_common_text() {
        let root = tempfile::tempdir().unwrap();
        let mit = format!("Copyright (c) Ann\n\n{MIT}\nof this software\n");
        let indented = format!("Copyright (c) Ann\n\n  {MIT}\n  of this software\n");
        let crates = [
            linked(root.path(), "first", "MIT", Some(&mit)),
            linked(root.path(), "second", "MIT", Some(&indented)),
            linked(root.path(), "third", "MIT OR Apache-2.0", None),
            linked(root.path(), "fourth", "Zlib", None),
        ];
        let content = file(&crates, APACHE).unwrap();
        assert!(content.contains("\nfirst 1.0.0\n    MIT; text [1]\n"), "{content}");
        assert!(content.contains("\nsecond 1.0.0\n    MIT; text [1]\n"), "{content}");
        assert!(content.contains("    MIT OR Apache-2.0; text [2] [3] (common text"), "{content}");
        assert!(
            content.contains("fourth 1.0.0\n    Zlib; text none: the crate has no licence file"),
            "{content}"
        );
        assert_eq!(content.matches("Copyright (c) Ann").count(), 1, "{content}");
        assert!(content.contains("[1]\nfirst LICENSE, second LICENSE\n"), "{content}");
        assert!(content.contains("Copyright (c) the authors of third\n\nPermission"), "{content}");
        assert!(content.contains("Version 2.0, January 2004"), "{content}");
    }

    #[test]
    fn long_lists_are_wrapped() {
        let names: Vec<String> = (0..60).map(|number| format!("crate-{number} LICENSE")).collect();
        let lines = wrapped(&names);
        assert!(lines.lines().count() > 5 && lines.lines().all(|line| line.len() <= COLUMNS), "{lines}");
        assert_eq!(lines.replace(",\n", ", ").trim_end(), names.join(", "));
    }
}
