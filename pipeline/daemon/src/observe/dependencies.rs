//! Records which servers answer, and how fast, from queries that are made anyway.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::Observatory;

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependency {
    Source,
    Log,
    Target,
    Cache,
    /// The index of a projection, on a target.
    Index,
}

impl Dependency {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Log => "log",
            Self::Target => "target",
            Self::Cache => "cache",
            Self::Index => "index",
        }
    }

    /// Returns the code of a query without an answer.
    pub(super) fn unreachable(self) -> Code {
        match self {
            Self::Source => Code::SourceUnreachable,
            Self::Log => Code::LogUnreachable,
            Self::Target | Self::Index => Code::TargetUnreachable,
            Self::Cache => Code::CacheUnreachable,
        }
    }

    /// Returns the server of this name as faults call it.
    pub(super) fn subject(self, name: &str) -> String {
        match self {
            Self::Log => "log".to_owned(),
            Self::Index => format!("index of {name}"),
            Self::Source | Self::Target | Self::Cache => format!("{} {name}", self.name()),
        }
    }
}

/// The last query of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DependencyObservation {
    /// `None` before the first answer.
    pub(super) is_up: Option<bool>,
    /// Time that the last good answer took.
    pub(super) took: Option<Duration>,
    /// End of its certificate, seconds since the Unix epoch.
    pub(super) certificate_ends: Option<i64>,
}

/// The certificate of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Kind of the server: `source`, `log`, `target` or `cache`.
    pub dependency: String,
    /// Name of the server in the configuration.
    pub name: String,
    /// Its end, milliseconds since the Unix epoch.
    pub ends_at_ms: i64,
}

impl Observatory {
    /// Returns the certificates whose end is known.
    pub(super) fn certificates(&self) -> Vec<CertificateView> {
        let all = self.lock();
        let view = |((kind, name), seen): (&(Dependency, String), &DependencyObservation)| {
            let ends_at_ms = seen.certificate_ends?.saturating_mul(1000);
            Some(CertificateView { dependency: kind.name().to_owned(), name: name.clone(), ends_at_ms })
        };
        all.dependencies.iter().filter_map(view).collect()
    }

    /// Records the answer, just now, of a server that was asked at `asked`.
    pub fn answered<T>(&self, kind: Dependency, name: &str, asked: Instant, answer: &Result<T, Fault>) {
        let mut all = self.lock();
        let seen = all.dependencies.entry((kind, name.to_owned())).or_default();
        seen.is_up = Some(answer.is_ok());
        if answer.is_ok() {
            seen.took = Some(asked.elapsed());
        }
    }

    /// Records when the certificate of a server ends.
    pub fn certificate_seen(&self, kind: Dependency, name: &str, ends: Option<i64>) {
        let mut all = self.lock();
        all.dependencies.entry((kind, name.to_owned())).or_default().certificate_ends = ends;
    }
}
