//! Accounts that a server of any kind refuses: one connection attempt stands for all tasks of the process.
//!
//! A process has a task for each source and lane, and each retries again and again. Servers lock an account, or block a
//! host, after some refused logins. So after a refusal the account is not used for a second, then two, four and so on
//! up to a minute. Meanwhile all tasks get the same answer from memory. A search cluster gets the password with each
//! request, so each request is an attempt.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};

const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

static REFUSED: LazyLock<Mutex<HashMap<Account, Refusal>>> = LazyLock::new(Mutex::default);

/// An account and its password, on one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Account {
    /// Scheme, host and port.
    server: String,
    user: String,
    /// Hash of the password: an account with another password is tried separately.
    password_hash: u64,
    /// The same holds for another authority, since a certificate that is not trusted is a refusal too.
    ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    /// Time of the last attempt.
    asked: Instant,
    /// Time without attempts after it.
    pause: Duration,
}

impl Account {
    pub fn of(url: &ServerUrl, ca_file: Option<&Path>) -> Self {
        let mut hasher = DefaultHasher::new();
        url.password().expose().hash(&mut hasher);
        Self {
            server: format!("{}://{}", url.scheme(), url.address()),
            user: url.user().to_owned(),
            password_hash: hasher.finish(),
            ca_file: ca_file.map(Path::to_owned),
        }
    }

    /// Returns the same account on a node of the server's cluster. A node may be the server itself, and a connection to
    /// the server may wait for one to a node, so the two never share an entry.
    pub fn on_node(&self, host: &str, port: u16) -> Self {
        Self { server: format!("node {host}:{port} of {}", self.server), ..self.clone() }
    }

    /// Connects and returns the outcome; fails at once if the server has just refused the account. `denied` is the code
    /// of a refusal.
    pub async fn connect<T>(
        &self,
        denied: Code,
        subject: &str,
        connecting: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let began = Instant::now();
        if let Some(left) = self.begin(began) {
            let found = format!(
                "the server refused user {} a moment ago, or its certificate could not be verified",
                self.user
            );
            let at_once = match denied {
                // `restart` asks over NATS.
                Code::LogAccessDenied => "`systemctl reload anabranch` (SIGHUP)",
                _ => "`anabranch --config FILE restart --all`",
            };
            return Err(Fault::new(denied, subject, found)
                .needs("the right user and password; with `ca_file`, a server certificate that it signed")
                .remedy(format!(
                    "the next attempt is in {} s; {at_once} tries at once",
                    left.as_secs() + 1
                )));
        }
        let outcome = connecting.await;
        self.end(outcome.as_ref().is_err_and(|fault| fault.code() == denied), began, Instant::now());
        outcome
    }

    /// Notes the outcome of a connection that a client library made by itself.
    pub fn note(&self, is_refused: bool) {
        let now = Instant::now();
        self.end(is_refused, now, now);
    }

    /// Returns how long a client library waits with its next connection; zero if the account is not refused.
    pub fn pause(&self) -> Duration {
        self.begin(Instant::now()).unwrap_or_default()
    }

    /// Returns how long no attempt may be made; `None` lets the caller try, and other tasks wait for its outcome.
    fn begin(&self, now: Instant) -> Option<Duration> {
        let mut refused = lock();
        let refusal = refused.get_mut(self)?;
        let left = (refusal.asked + refusal.pause).saturating_duration_since(now);
        if left.is_zero() {
            refusal.asked = now;
            return None;
        }
        Some(left)
    }

    /// Notes the outcome of an attempt that `began` then. One that was already on its way when another was refused does
    /// not make the pause longer: a short refusal costs seconds, however many tasks met it together.
    fn end(&self, is_refused: bool, began: Instant, now: Instant) {
        let mut refused = lock();
        if !is_refused {
            refused.remove(self);
            return;
        }
        let first = Refusal { asked: now, pause: PAUSE_FIRST };
        refused
            .entry(self.clone())
            .and_modify(|refusal| {
                if began >= refusal.asked {
                    *refusal = Refusal { asked: now, pause: PAUSE_MAX.min(refusal.pause * 2) };
                }
            })
            .or_insert(first);
    }
}

/// Allows every account again at once: an operator has removed the cause.
pub fn forget() {
    lock().clear();
}

fn lock() -> MutexGuard<'static, HashMap<Account, Refusal>> {
    // No code under this lock leaves the map half changed.
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_is_refused_for_long_is_tried_once_a_minute_and_a_short_refusal_costs_seconds() {
        let url =
            |password: &str| ServerUrl::try_from(format!("mysql://user:{password}@refusals:1")).unwrap();
        let (account, other) = (Account::of(&url("wrong"), None), Account::of(&url("right"), None));
        let begun = Instant::now();
        let mut asked = Vec::new();
        for second in 0..400 {
            let now = begun + Duration::from_secs(second);
            if account.begin(now).is_none() {
                asked.push(second);
                account.end(true, now, now);
            }
            assert_eq!(other.begin(now), None, "another password was not refused");
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
        let later = begun + Duration::from_secs(423);
        assert_eq!(account.begin(later), None);
        assert!(account.begin(later).is_some(), "one attempt asks for all");
        account.end(false, later, later);
        assert_eq!(account.begin(later), None, "the account is right again");
    }

    #[test]
    fn attempts_that_are_refused_together_count_as_one() {
        let url = ServerUrl::try_from("mysql://user:wrong@together:1".to_owned()).unwrap();
        let (account, began) = (Account::of(&url, None), Instant::now());
        // All are on their way before the first answer comes.
        (0..10).for_each(|_| assert_eq!(account.begin(began), None));
        (1..=10).for_each(|ms| account.end(true, began, began + Duration::from_millis(ms)));
        assert!(account.begin(began + Duration::from_millis(900)).is_some());
        assert_eq!(account.begin(began + Duration::from_millis(1100)), None);
    }
}
