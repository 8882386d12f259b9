//! The text of a command in the record of its operation: options without keys of rows and values of conditions.

use std::fmt::Write;

/// A command, word by word.
#[derive(Debug, Clone)]
pub struct CommandText(String);

impl CommandText {
    /// Begins a command, such as `dead-letters retry`.
    pub fn of(words: &str) -> Self {
        Self(format!("anabranch {words}"))
    }

    /// Adds an argument.
    #[must_use]
    pub fn word(mut self, word: &str) -> Self {
        self.0.push(' ');
        self.0.push_str(&quoted(word));
        self
    }

    /// Adds an option with its value, if it has one.
    #[must_use]
    pub fn option(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.flag(name, true).word(value),
            None => self,
        }
    }

    /// Adds an option for each value.
    #[must_use]
    pub fn options(self, name: &str, values: &[String]) -> Self {
        values.iter().fold(self, |text, value| text.option(name, Some(value)))
    }

    /// Adds an option without a value, if it is set.
    #[must_use]
    pub fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.0.push(' ');
            self.0.push_str(name);
        }
        self
    }

    /// Adds the number of values instead of the values, such as `--key (2 keys)`; nothing without any.
    #[must_use]
    pub fn counted(mut self, name: &str, values: usize, kind: &str) -> Self {
        let plural = if values == 1 { "" } else { "s" };
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        if values > 0 {
            write!(self.0, "{name} ({values} {kind}{plural})").expect("writing to a String cannot fail");
        }
        self
    }

    pub fn text(self) -> String {
        self.0
    }
}

/// Returns a word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=@+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_copied_into_a_shell_and_has_no_keys() {
        let names = ["a".to_owned(), "b c".to_owned()];
        let text = CommandText::of("refresh")
            .option("--projection", Some("birthday"))
            .options("--source", &names)
            .option("--table", None)
            .counted("--key", 2, "key")
            .counted("--where", 0, "condition")
            .counted("", 1, "id")
            .flag("--dry-run", false)
            .flag("--all", true)
            .word("it's");
        let expected = "anabranch refresh --projection birthday --source a --source 'b c' --key (2 keys) (1 id) --all 'it'\\''s'";
        assert_eq!(text.text(), expected);
        assert_eq!(quoted(""), "''");
    }
}
