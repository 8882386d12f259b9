//! Scalar types of the configuration: text with `${ENV}`, secrets, server URLs.

use std::fmt;

use serde::Deserialize;
use url::Url;

/// Replaces `${NAME}` by the environment variable; a missing one is an error that names it. `$$` stands for `$`.
pub fn expand(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            out.push_str(
                &std::env::var(name).map_err(|_| format!("environment variable {name} is not set"))?,
            );
            rest = after;
        } else {
            return Err("a `$` that starts neither `${NAME}` nor `$$`".to_owned());
        }
    }
    out.push_str(rest);
    Ok(out)
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

    /// The value itself, for the connection only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `scheme://user:password@host:port`; the password is never printed. `${ENV}` is replaced in the whole text.
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

    /// `host:port`
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl TryFrom<String> for ServerUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let url = Url::parse(&expand(&text)?)
            .map_err(|error| format!("not a URL ({error}); expected scheme://user:password@host:port"))?;
        let default_port = match url.scheme() {
            "mysql" => 3306,
            "nats" | "tls" => 4222,
            "https" => 443,
            "http" => 80,
            "rediss" | "redis" => 6379,
            other => {
                return Err(format!(
                    "scheme `{other}`; expected mysql, nats, tls, https, http, rediss or redis"
                ));
            }
        };
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or("no host; expected scheme://user:password@host:port")?;
        if !url.path().trim_start_matches('/').is_empty() || url.query().is_some() {
            return Err("a path or query; expected scheme://user:password@host:port".to_owned());
        }
        Ok(Self {
            scheme: url.scheme().to_owned(),
            host: host.to_owned(),
            port: url.port().unwrap_or(default_port),
            user: decode(url.username())?,
            password: Secret(decode(url.password().unwrap_or_default())?),
        })
    }
}

/// Percent-decodes a user or password.
fn decode(text: &str) -> Result<String, String> {
    percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| "a user or password that is not UTF-8".to_owned())
}

/// `mysql://user:***@host:port`
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

/// Splits at `{name…}`: what stands before, between name and brace, and behind.
pub fn placeholder<'p>(pattern: &'p str, name: &str) -> Option<(&'p str, &'p str, &'p str)> {
    let (prefix, rest) = pattern.split_once('{')?;
    let (inner, suffix) = rest.split_once('}')?;
    let inner = inner.strip_prefix(name)?;
    (inner.is_empty() || inner.starts_with(':')).then_some((prefix, inner, suffix))
}
