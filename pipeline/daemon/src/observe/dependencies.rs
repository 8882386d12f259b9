//! Records which servers answer, and how fast, from queries that are made anyway.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::Observatory;

/// Kind and name of the one coupon system.
pub(super) const COUPON_SYSTEM: &str = "coupon-system";
/// Age of the last answer or failure from which it says nothing: far longer than any interval and limit of a poll.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(60);

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependency {
    Source,
    Log,
    Target,
    Cache,
    /// The index of a projection, on a target.
    Index,
    /// The system that gives out coupons.
    CouponSystem,
}

impl Dependency {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Log => "log",
            Self::Target => "target",
            Self::Cache => "cache",
            Self::Index => "index",
            Self::CouponSystem => COUPON_SYSTEM,
        }
    }

    /// Returns the code of a query without an answer.
    pub(super) fn unreachable(self) -> Code {
        match self {
            Self::Source => Code::SourceUnreachable,
            Self::Log => Code::LogUnreachable,
            Self::Target | Self::Index => Code::TargetUnreachable,
            Self::Cache => Code::CacheUnreachable,
            Self::CouponSystem => Code::CouponSystemUnreachable,
        }
    }

    /// Returns the server of this name as faults call it.
    pub(super) fn subject(self, name: &str) -> String {
        match self {
            Self::Log => "log".to_owned(),
            Self::Index => format!("index of {name}"),
            Self::CouponSystem => "coupon system".to_owned(),
            Self::Source | Self::Target | Self::Cache => format!("{} {name}", self.name()),
        }
    }
}

/// The last query of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DependencyObservation {
    /// `None` before the first answer.
    is_up: Option<bool>,
    /// Time of the last answer or failure.
    at: Option<Instant>,
    /// Time that the last good answer took.
    took: Option<Duration>,
    /// Time of the first query without an answer since the last good one.
    down_since: Option<Instant>,
    /// End of its certificate, seconds since the Unix epoch.
    pub(super) certificate_ends: Option<i64>,
}

impl DependencyObservation {
    /// Returns whether the server answers, and how long its last good answer took. Neither is known after a poll that
    /// has ended or stands still.
    pub(super) fn known(&self, now: Instant) -> (Option<bool>, Option<Duration>) {
        let is_known = self.at.is_some_and(|at| now.saturating_duration_since(at) < KNOWN_FOR);
        if is_known { (self.is_up, self.took) } else { (None, None) }
    }
}

/// A server that does not answer this process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UnansweredView {
    /// Kind of the server: `source`, `log`, `target`, `cache`, `index` or `coupon-system`.
    pub dependency: String,
    /// Name of the server in the configuration.
    pub name: String,
    /// Time since the first query without an answer.
    pub seconds: f64,
}

/// The certificate of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Kind of the server: `source`, `log`, `target`, `cache` or `coupon-system`.
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

    /// Returns the servers that have not answered since some query.
    pub(super) fn unanswered(&self, now: Instant) -> Vec<UnansweredView> {
        let all = self.lock();
        let view = |((kind, name), seen): (&(Dependency, String), &DependencyObservation)| {
            let seconds = now.saturating_duration_since(seen.down_since?).as_secs_f64();
            Some(UnansweredView { dependency: kind.name().to_owned(), name: name.clone(), seconds })
        };
        all.dependencies.iter().filter_map(view).collect()
    }

    /// Records the answer, just now, of a server that was asked at `asked`.
    pub fn answered<T>(&self, kind: Dependency, name: &str, asked: Instant, answer: &Result<T, Fault>) {
        let mut all = self.lock();
        let seen = all.dependencies.entry((kind, name.to_owned())).or_default();
        (seen.is_up, seen.at) = (Some(answer.is_ok()), Some(Instant::now()));
        if answer.is_ok() {
            (seen.took, seen.down_since) = (Some(asked.elapsed()), None);
        } else {
            seen.down_since.get_or_insert(asked);
        }
    }

    /// Records when the certificate of a server ends.
    pub fn certificate_seen(&self, kind: Dependency, name: &str, ends: Option<i64>) {
        let mut all = self.lock();
        all.dependencies.entry((kind, name.to_owned())).or_default().certificate_ends = ends;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_server_is_unanswered_since_the_first_query_without_an_answer() {
        let observatory = Observatory { all: Arc::default(), recent: Arc::default() };
        let start = Instant::now();
        let second = |number| start + Duration::from_secs(number);
        let fault = || Fault::new(Code::SourceUnreachable, "source a", "no answer");
        let ask = |at: u64, answer: Result<(), Fault>| {
            observatory.answered(Dependency::Source, "a", second(at), &answer);
        };
        ask(0, Ok(()));
        assert!(observatory.unanswered(second(1)).is_empty());
        ask(1, Err(fault()));
        ask(2, Err(fault()));
        let (dependency, name) = ("source".to_owned(), "a".to_owned());
        assert_eq!(observatory.unanswered(second(5)), [UnansweredView { dependency, name, seconds: 4.0 }]);
        ask(6, Ok(()));
        assert!(observatory.unanswered(second(7)).is_empty());
    }
}
