//! The fault of a configuration file that the parser refused; it names no value of the file.

use super::raw;
use crate::error::{Code, Fault};

/// Returns the refusal of TOML or serde with line and key, and without a value. The error's own Display quotes the
/// line, and its message may quote the value: either may be a password.
pub(super) fn unreadable(text: &str, error: &toml::de::Error) -> Fault {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = &text[..text.floor_char_boundary(start)];
    let line = text[before.rfind('\n').map_or(0, |at| at + 1)..].lines().next().unwrap_or_default();
    let number = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
    // In a list over several lines, the text before a `=` may be a part of a token.
    let is_key = |key: &&str| raw::EXAMPLES.iter().any(|example| names_key(example, key));
    let subject = match line.split_once('=').map(|(key, _)| key.trim()).filter(is_key) {
        Some(key) => format!("configuration line {number}, key {key}"),
        None => format!("configuration line {number}"),
    };
    Fault::new(Code::ConfigInvalid, subject, without_value(error.message()))
}

/// Returns whether an example file has the key, perhaps in a comment.
fn names_key(example: &str, key: &str) -> bool {
    let names =
        |line: &str| line.trim_start_matches(['#', ' ']).split_once('=').map(|(name, _)| name.trim() == key);
    example.lines().any(|line| names(line) == Some(true))
}

/// Returns serde's message without the value that it quotes: ``invalid type: integer `1`, expected a string``.
fn without_value(message: &str) -> String {
    let quotes = ["invalid type: ", "invalid value: "].iter().any(|start| message.starts_with(start));
    match (message.find(['`', '"']), message.rfind(", expected ")) {
        (Some(value), Some(expected)) if quotes && value < expected => {
            format!("{}{}", message[..value].trim_end(), &message[expected..])
        }
        _ => message.to_owned(),
    }
}
