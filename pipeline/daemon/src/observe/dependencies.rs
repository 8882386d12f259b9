//! Which servers answer, and how fast: noted beside each question that is asked anyway.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Code, Fault};

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

    /// What a question without an answer ends with.
    pub(super) fn unreachable(self) -> Code {
        match self {
            Self::Source => Code::SourceUnreachable,
            Self::Log => Code::LogUnreachable,
            Self::Target | Self::Index => Code::TargetUnreachable,
            Self::Cache => Code::CacheUnreachable,
        }
    }

    /// The server of this name, as faults call it.
    pub(super) fn subject(self, name: &str) -> String {
        match self {
            Self::Log => "log".to_owned(),
            Self::Index => format!("index of {name}"),
            Self::Source | Self::Target | Self::Cache => format!("{} {name}", self.name()),
        }
    }
}

/// The last question to a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DependencyObservation {
    /// `None` before the first answer.
    pub(super) is_up: Option<bool>,
    /// What the last good answer took.
    pub(super) took: Option<Duration>,
    /// End of its certificate, seconds since the Unix epoch.
    pub(super) certificate_ends: Option<i64>,
}

impl Observatory {
    /// A server was asked at `asked`, and has answered just now.
    pub fn answered<T>(&self, kind: Dependency, name: &str, asked: Instant, answer: &Result<T, Fault>) {
        let mut all = self.lock();
        let seen = all.dependencies.entry((kind, name.to_owned())).or_default();
        seen.is_up = Some(answer.is_ok());
        if answer.is_ok() {
            seen.took = Some(asked.elapsed());
        }
    }

    /// A server told when its certificate ends.
    pub fn certificate_seen(&self, kind: Dependency, name: &str, ends: Option<i64>) {
        let mut all = self.lock();
        all.dependencies.entry((kind, name.to_owned())).or_default().certificate_ends = ends;
    }
}
