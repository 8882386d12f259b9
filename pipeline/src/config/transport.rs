//! The keys `tls` and `ca_file` of each server, which decide with its URL's scheme how a connection is protected.
//!
//! `verify` trusts the authorities in `ca_file`, `system` those of the machine, `off` is plain text. There is no TLS
//! without verification. Contradicting settings are refused: an operator would trust a protection that does not exist.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::values::{Expanded, ServerUrl};
use super::{Config, Problems};

/// The usual environment variable that names the machine's authorities.
const SYSTEM_ROOTS_VARIABLE: &str = "SSL_CERT_FILE";
/// Files in which systems keep their authorities: Debian and Alpine, Fedora and RHEL, SUSE.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The value of `tls` in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tls {
    /// Certificates are verified against `ca_file`.
    Verify,
    /// Certificates are verified against the authorities that the machine trusts.
    System,
    /// The connection is plain text.
    Off,
}

impl Tls {
    fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::System => "system",
            Self::Off => "off",
        }
    }
}

/// Returns the file of authorities that a connection trusts. `None` leaves it to the scheme: the system's authorities
/// for `tls://`, `https://` and `rediss://`, plain text for the others.
pub(super) fn trusted(
    key: &str,
    url: &ServerUrl,
    (tls, ca_file): (Option<Tls>, Option<Expanded>),
    problems: &mut Problems,
) -> Option<PathBuf> {
    let ca_file = ca_file.map(|file| PathBuf::from(file.0));
    let scheme = scheme(url.scheme());
    let tls = tls.unwrap_or(match (&ca_file, scheme) {
        (Some(_), _) => Tls::Verify,
        (None, Scheme::Tls) => Tls::System,
        (None, Scheme::Plain(_) | Scheme::Either) => Tls::Off,
    });
    let found = match ca_file {
        Some(_) => format!("tls = \"{}\" and a ca_file beside {}://", tls.name(), url.scheme()),
        None => format!("tls = \"{}\" beside {}://", tls.name(), url.scheme()),
    };
    let needed = match (tls, scheme, &ca_file) {
        (Tls::Verify | Tls::System, Scheme::Plain(secure), _) => {
            format!("{secure}:// for TLS, or neither tls nor ca_file for plain text")
        }
        (Tls::Off, Scheme::Tls, _) => {
            "\"verify\" with a ca_file, or \"system\": this scheme is TLS".to_owned()
        }
        (Tls::Off, _, Some(_)) => "no ca_file beside \"off\": a plain connection verifies nothing".to_owned(),
        (Tls::System, _, Some(_)) => {
            "\"verify\" to trust ca_file, or no ca_file to trust the system's".to_owned()
        }
        (Tls::Verify, _, None) => "a ca_file to verify against, or \"system\"".to_owned(),
        (Tls::System, Scheme::Either, None) => {
            let named = std::env::var_os(SYSTEM_ROOTS_VARIABLE).map(PathBuf::from);
            let file = system_roots(named, Path::is_file);
            if file.is_none() {
                let needed =
                    format!("{SYSTEM_ROOTS_VARIABLE} in the environment, or one of {SYSTEM_ROOTS:?}");
                problems.add(
                    key,
                    "\"system\", and this machine has no file of authorities".to_owned(),
                    &needed,
                );
            }
            return file;
        }
        (Tls::Verify | Tls::System | Tls::Off, _, _) => return ca_file,
    };
    problems.add(key, found, &needed);
    None
}

/// Returns the machine's file of authorities: the one that the environment names, otherwise the first that exists.
fn system_roots(named: Option<PathBuf>, is_file: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    named.or_else(|| SYSTEM_ROOTS.iter().map(PathBuf::from).find(|file| is_file(file)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Tls,
    /// Plain text, with the scheme that means the same server over TLS.
    Plain(&'static str),
    /// The scheme says nothing of TLS, as with MySQL.
    Either,
}

fn scheme(scheme: &str) -> Scheme {
    match scheme {
        "nats" => Scheme::Plain("tls"),
        "http" => Scheme::Plain("https"),
        "redis" => Scheme::Plain("rediss"),
        "mysql" => Scheme::Either,
        _ => Scheme::Tls,
    }
}

impl Config {
    /// Returns a sentence for each server to which user, password and rows travel beyond this machine in plain text.
    pub fn plain_connections(&self) -> Vec<String> {
        let log = [("the log".to_owned(), &self.log.url, &self.log.ca_file)];
        let sources = self
            .sources
            .iter()
            .map(|source| (format!("source {}", source.name), &source.url, &source.ca_file));
        let replicas = self.sources.iter().filter_map(|source| {
            let (url, ca_file) = source.replica.as_ref()?;
            Some((format!("the replica of source {}", source.name), url, ca_file))
        });
        let targets = self
            .targets
            .iter()
            .map(|target| (format!("target {}", target.name), &target.url, &target.ca_file));
        let caches =
            self.caches.iter().map(|cache| (format!("cache {}", cache.name), &cache.url, &cache.ca_file));
        let system = self
            .coupon_system
            .iter()
            .map(|system| ("the coupon system".to_owned(), &system.url, &system.ca_file));
        let sequence = self
            .flux_identifiers()
            .into_iter()
            .map(|flux| ("flux.sequence_url".to_owned(), &flux.sequence_url, &flux.ca_file));
        let all = log.into_iter().chain(sources).chain(replicas).chain(targets).chain(caches).chain(system);
        let all = all.chain(sequence);
        all.filter_map(|(thing, url, ca_file)| plain_warning(&thing, url, ca_file.as_deref())).collect()
    }
}

fn plain_warning(thing: &str, url: &ServerUrl, ca_file: Option<&Path>) -> Option<String> {
    let remedy = match scheme(url.scheme()) {
        Scheme::Plain(secure) => format!("{secure}:// in its url"),
        Scheme::Either if ca_file.is_none() => "a ca_file, or tls = \"system\"".to_owned(),
        Scheme::Either | Scheme::Tls => return None,
    };
    let is_beyond = !is_loopback(url.host());
    is_beyond.then(|| {
        let address = url.address();
        format!("{thing}: user, password and rows go to {address} in plain text; needed: {remedy}")
    })
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(url: &str, tls: Option<Tls>, ca_file: Option<&str>) -> Result<Option<PathBuf>, String> {
        let url = ServerUrl::try_from(url.to_owned()).unwrap();
        let mut problems = Problems::default();
        let ca_file = ca_file.map(|file| Expanded(file.to_owned()));
        let trusted = trusted("sources.tls", &url, (tls, ca_file), &mut problems);
        problems.0.first().map_or(Ok(trusted), |fault| Err(fault.to_string()))
    }

    #[test]
    fn a_ca_means_verify_and_nothing_means_what_the_scheme_says() {
        let ca = Some(PathBuf::from("/ca.pem"));
        for (url, tls, ca_file, expected) in [
            ("mysql://u:p@db:3306", None, None, None),
            ("mysql://u:p@db:3306", None, Some("/ca.pem"), ca.clone()),
            ("mysql://u:p@db:3306", Some(Tls::Verify), Some("/ca.pem"), ca.clone()),
            ("mysql://u:p@db:3306", Some(Tls::Off), None, None),
            ("tls://u:p@log:4222", None, None, None),
            ("tls://u:p@log:4222", Some(Tls::System), None, None),
            ("tls://u:p@log:4222", Some(Tls::Verify), Some("/ca.pem"), ca.clone()),
            ("nats://u:p@log:4222", Some(Tls::Off), None, None),
            ("rediss://u:p@cache:6379", None, Some("/ca.pem"), ca.clone()),
            ("redis://u:p@cache:6379", None, None, None),
            ("https://u:p@search:9200", None, Some("/ca.pem"), ca),
            ("http://u:p@search:9200", None, None, None),
        ] {
            assert_eq!(resolved(url, tls, ca_file).unwrap(), expected, "{url} {tls:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (url, tls, ca_file, needed) in [
            ("nats://u:p@log:4222", None, Some("/ca.pem"), "tls:// for TLS"),
            ("http://u:p@search:9200", None, Some("/ca.pem"), "https:// for TLS"),
            ("redis://u:p@cache:6379", None, Some("/ca.pem"), "rediss:// for TLS"),
            ("redis://u:p@cache:6379", Some(Tls::System), None, "rediss:// for TLS"),
            ("nats://u:p@log:4222", Some(Tls::Off), Some("/ca.pem"), "no ca_file beside \"off\""),
            ("mysql://u:p@db:3306", Some(Tls::Off), Some("/ca.pem"), "no ca_file beside \"off\""),
            ("mysql://u:p@db:3306", Some(Tls::System), Some("/ca.pem"), "no ca_file to trust the system's"),
            ("mysql://u:p@db:3306", Some(Tls::Verify), None, "a ca_file to verify against"),
            ("https://u:p@search:9200", Some(Tls::Verify), None, "a ca_file to verify against"),
            ("rediss://u:p@cache:6379", Some(Tls::Off), None, "this scheme is TLS"),
        ] {
            let refused = resolved(url, tls, ca_file).unwrap_err();
            assert!(refused.contains("sources.tls") && refused.contains(needed), "{url} {tls:?}: {refused}");
        }
    }

    #[test]
    fn the_environment_names_the_systems_authorities_before_the_usual_places() {
        let usual = |file: &Path| file == Path::new(SYSTEM_ROOTS[1]);
        assert_eq!(system_roots(None, usual), Some(SYSTEM_ROOTS[1].into()));
        assert_eq!(system_roots(Some("/mine.pem".into()), usual), Some("/mine.pem".into()));
        assert_eq!(system_roots(None, |_| false), None);
    }

    #[test]
    fn plain_text_beyond_this_machine_is_told() {
        for (url, ca_file, is_reported) in [
            ("mysql://u:p@db.example:3306", None, true),
            ("mysql://u:p@10.0.0.1:3306", None, true),
            ("mysql://u:p@db.example:3306", Some("/ca.pem"), false),
            ("mysql://u:p@127.0.0.1:3306", None, false),
            ("mysql://u:p@[::1]:3306", None, false),
            ("nats://u:p@localhost:4222", None, false),
            ("nats://u:p@log.example:4222", None, true),
            ("tls://u:p@log.example:4222", None, false),
            ("http://u:p@search.example:9200", None, true),
            ("redis://u:p@cache.example:6379", None, true),
            ("rediss://u:p@cache.example:6379", None, false),
        ] {
            let url = ServerUrl::try_from(url.to_owned()).unwrap();
            let reported = plain_warning("source a", &url, ca_file.map(Path::new));
            assert_eq!(reported.is_some(), is_reported, "{} {reported:?}", url.address());
        }
    }
}
