//! Scalar types of the configuration: text with `${ENV}` and `${file:PATH}`, secrets, server URLs.
//!
//! A URL is taken apart as the file has it, before variables are replaced. So the content of a variable or file is a
//! user or password byte for byte, whatever a URL would make of it. Text that the file itself spells out is
//! percent-decoded. No message repeats a part of a value.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use super::secret_files::{self, CREDENTIALS_VARIABLE};

/// Replaces `${NAME}` by the environment variable and `${file:PATH}` by the file's content; a missing or empty one is
/// an error that names it. `$$` stands for `$`.
pub fn expand(text: &str) -> Result<String, String> {
    expand_with(text, |literal| Ok(literal.to_owned()))
}

/// Expands as [`expand`] does, and passes the text outside of variables through `spelt`.
fn expand_with(text: &str, spelt: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&spelt(&rest[..at])?);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            out.push_str(&variable(name)?);
            rest = after;
        } else {
            return Err("a `$` that starts neither `${NAME}` nor `$$`".to_owned());
        }
    }
    out.push_str(&spelt(rest)?);
    Ok(out)
}

fn variable(name: &str) -> Result<String, String> {
    if let Some(path) = name.strip_prefix("file:") {
        let credentials = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from);
        return secret_files::read(path, credentials.as_deref());
    }
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Err(format!("environment variable {name} is empty")),
        Ok(value) => Ok(value),
        Err(_) => Err(format!("environment variable {name} is not set, or is not UTF-8")),
    }
}

/// Text with `${ENV}` replaced.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Expanded(pub String);

impl TryFrom<String> for Expanded {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        expand(&text).map(Self)
    }
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself, for the connection only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A URL `scheme://user:password@host:port`; the password is never printed. A `${ENV}` can stand for any part, or for
/// the whole URL, which is then percent-encoded as in the file.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerUrl {
    scheme: String,
    host: String,
    port: u16,
    user: String,
    password: Secret,
}

impl ServerUrl {
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn password(&self) -> &Secret {
        &self.password
    }

    /// Returns `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl TryFrom<String> for ServerUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // A variable that holds a whole URL is read as the file's own text is, but without further variables.
        let (text, is_whole) = match text.contains("://") {
            true => (text, false),
            false => (expand(&text)?, true),
        };
        let expanded = |text: &str| if is_whole { Ok(text.to_owned()) } else { expand(text) };
        let part = |text: &str| if is_whole { spelt(text) } else { expand_with(text, spelt) };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("not a URL; {EXPECTED}"))?;
        let (user, password, place) = match rest.rsplit_once('@') {
            None => (String::new(), String::new(), rest),
            Some((account, place)) => {
                let (user, password) = user_and_password(account);
                (part(user)?, part(password)?, place)
            }
        };
        let place = expanded(place)?;
        if place.contains(['@', '#']) {
            return Err(format!("an `@` or `#` after the host; {EXPECTED}"));
        }
        // The host's rules differ by scheme and are those of a URL; without the account the text holds no secret.
        let url = Url::parse(&format!("{}://{place}", expanded(scheme)?))
            .map_err(|error| format!("not a URL ({error}); {EXPECTED}"))?;
        let default_port = match url.scheme() {
            "mysql" => 3306,
            "nats" | "tls" => 4222,
            "https" => 443,
            "http" => 80,
            "rediss" | "redis" => 6379,
            _ => {
                return Err(
                    "another scheme; expected mysql, nats, tls, https, http, rediss or redis".to_owned()
                );
            }
        };
        let host =
            url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| format!("no host; {EXPECTED}"))?;
        if !url.path().trim_start_matches('/').is_empty() || url.query().is_some() {
            return Err(format!("a path or query; {EXPECTED}"));
        }
        Ok(Self {
            scheme: url.scheme().to_owned(),
            host: host.to_owned(),
            port: url.port().unwrap_or(default_port),
            user,
            password: Secret(password),
        })
    }
}

const EXPECTED: &str = "expected scheme://user:password@host:port";

/// Splits an account at its first `:` outside of `${…}`, because `${file:PATH}` has one within.
fn user_and_password(account: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(colon) = account[from..].find(':') {
        let colon = from + colon;
        let variable = account[from..colon].rfind("${").map(|variable| from + variable);
        match variable.and_then(|variable| account[variable..].find('}').map(|end| variable + end + 1)) {
            Some(end) if end > colon => from = end,
            _ => return (&account[..colon], &account[colon + 1..]),
        }
    }
    (account, "")
}

/// Percent-decodes a part of a user or password as the file spells it.
fn spelt(text: &str) -> Result<String, String> {
    if text.contains(['/', '?', '#', '[', ']']) {
        return Err("one of / ? # [ ] in a user or password; expected it percent-encoded (%2F %3F %23 %5B %5D), or in \
                    an environment variable of its own, where any character works"
            .to_owned());
    }
    percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| "a user or password that is not UTF-8".to_owned())
}

/// Writes `mysql://user:***@host:port`.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:***@{}:{}", self.scheme, self.user, self.host, self.port)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Replaces `{name}` or `{name:WIDTH}` by a number, zero-padded to the width.
pub fn fill(pattern: &str, name: &str, number: u32) -> String {
    let Some((prefix, inner, suffix)) = placeholder(pattern, name) else { return pattern.to_owned() };
    let width = inner.strip_prefix(':').and_then(|width| width.parse().ok()).unwrap_or(1);
    format!("{prefix}{number:0width$}{suffix}")
}

/// Splits a pattern at `{name}` or `{name:WIDTH}` into the text before it, the text between name and brace, and the
/// text after it; `None` unless that is its only placeholder, and the width is 1 to 10.
pub fn placeholder<'p>(pattern: &'p str, name: &str) -> Option<(&'p str, &'p str, &'p str)> {
    let (prefix, rest) = pattern.split_once('{')?;
    let (inner, suffix) = rest.split_once('}')?;
    let inner = inner.strip_prefix(name)?;
    let is_width = |width: &str| width.parse().is_ok_and(|width: u8| (1..=10).contains(&width));
    let is_sound = inner.is_empty() || inner.strip_prefix(':').is_some_and(is_width);
    let is_only = !prefix.contains('}') && !suffix.contains(['{', '}']);
    (is_sound && is_only).then_some((prefix, inner, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environment variables belong to the process; only these tests read the given one.
    fn with_variable(name: &str, value: &str, url: &str) -> Result<ServerUrl, String> {
        set(name, value);
        ServerUrl::try_from(url.to_owned())
    }

    #[expect(unsafe_code, reason = "no other thread of the unit tests changes or lists variables")]
    fn set(name: &str, value: &str) {
        // SAFETY: Rust's own readers and writers of the environment take turns; no C code runs in these tests.
        unsafe { std::env::set_var(name, value) }
    }

    #[test]
    fn a_variable_is_a_password_byte_for_byte() {
        for odd in ["12#34", "a%41b", "a/b", "a?b", "a@b", "[x]", "a:b", "%", "$x", "${HOME}", "a b\\ü\""] {
            let url = "mysql://us%40er:${ANABRANCH_TEST_BYTES}@db.example:3307";
            let url = with_variable("ANABRANCH_TEST_BYTES", odd, url).unwrap();
            assert_eq!((url.user(), url.password().expose()), ("us@er", odd));
            assert_eq!((url.host(), url.port()), ("db.example", 3307), "{odd}");
            let url = "mysql://${ANABRANCH_TEST_BYTES}:p%41@db.example";
            let url = with_variable("ANABRANCH_TEST_BYTES", odd, url).unwrap();
            assert_eq!((url.user(), url.password().expose(), url.port()), (odd, "pA", 3306));
        }
        let whole = with_variable("ANABRANCH_TEST_WHOLE", "redis://u:p%40@h:1", "${ANABRANCH_TEST_WHOLE}");
        let whole = whole.unwrap();
        assert_eq!((whole.user(), whole.password().expose(), whole.address().as_str()), ("u", "p@", "h:1"));
        let place = with_variable("ANABRANCH_TEST_PLACE", "h:1", "redis://u:p@${ANABRANCH_TEST_PLACE}");
        assert_eq!(place.unwrap().address(), "h:1");
    }

    #[test]
    fn a_file_is_a_user_or_password_byte_for_byte_or_a_whole_address() {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            format!("${{file:{}}}", path.display())
        };
        let (user, password) = (written("user", "a:b\n"), written("password", "p@:/${HOME}%41\n"));
        let url = |text: String| ServerUrl::try_from(text).unwrap();
        let both = url(format!("mysql://{user}:{password}@db"));
        assert_eq!((both.user(), both.password().expose(), both.host()), ("a:b", "p@:/${HOME}%41", "db"));
        let (alone, half) =
            (url(format!("mysql://{user}@db")), url(format!("mysql://x{user}y:z{password}@db")));
        assert_eq!((alone.user(), alone.password().expose()), ("a:b", ""));
        assert_eq!((half.user(), half.password().expose()), ("xa:by", "zp@:/${HOME}%41"));
        let whole = url(written("whole", "redis://u:p%40@h:1\n"));
        assert_eq!((whole.user(), whole.password().expose(), whole.address().as_str()), ("u", "p@", "h:1"));
        let refused = ServerUrl::try_from("mysql://u:${file:/none/there}@db".to_owned()).unwrap_err();
        assert!(refused.starts_with("file /none/there cannot be read"), "{refused}");
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused_without_a_word_of_the_secret() {
        for (text, expected) in [
            ("mysql://user:12#34secret@db", "in a user or password"),
            ("mysql://user:12/34secret@db", "in a user or password"),
            ("mysql://user@db#secret", "an `@` or `#` after the host"),
            ("mysql://user@db?secret", "a path or query"),
            ("mysql://user@db/secret", "a path or query"),
            ("secret", "not a URL"),
            ("secret://user@db", "another scheme"),
            ("mysql://user:secret@", "no host"),
            ("mysql://user:secret@db:x", "invalid port"),
            ("mysql://u:${ANABRANCH_TEST_NONE}@db", "variable ANABRANCH_TEST_NONE is not set"),
        ] {
            let refused = ServerUrl::try_from(text.to_owned()).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
        let refused = with_variable("ANABRANCH_TEST_EMPTY", "", "mysql://u:${ANABRANCH_TEST_EMPTY}@db");
        assert_eq!(refused.unwrap_err(), "environment variable ANABRANCH_TEST_EMPTY is empty");
        let whole =
            with_variable("ANABRANCH_TEST_HASH", "mysql://u:12#34secret@db", "${ANABRANCH_TEST_HASH}");
        let refused = whole.unwrap_err();
        assert!(refused.contains("percent-encoded") && !refused.contains("34"), "{refused}");
    }
}
