//! Makes a [`Fault`] of an error that JetStream answers, or of a missing answer. One table holds the server's error
//! numbers.

use std::error::Error as StdError;

use anabranch_pipeline::error::{Code, Fault};
use async_nats::jetstream;
use async_nats::jetstream::context::{RequestError, RequestErrorKind};
use async_nats::jetstream::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The command that creates missing streams and buckets.
pub(super) const SETUP: &str = "anabranch --config FILE setup";

/// The reason why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// No server listens on the subject: JetStream is off, or (in a cluster) there is no leader at the moment.
    NoResponders,
    /// The request failed in another way, such as by a timeout.
    Failed(RequestError),
}

impl Unanswered {
    pub(super) fn into_fault(self, subject: &str) -> Fault {
        match self {
            Self::NoResponders => Fault::new(Code::LogUnreachable, subject, "nobody answers for it"),
            Self::Failed(error) => Fault::new(Code::LogUnreachable, subject, "no answer").caused_by(error),
        }
    }
}

/// Asks the JetStream API. The outer result says whether the server answered, and the inner one is its answer.
pub(super) async fn ask<Q: Serialize, A: DeserializeOwned>(
    context: &jetstream::Context,
    subject: &str,
    api: String,
    question: &Q,
) -> Result<Result<A, jetstream::Error>, Unanswered> {
    match context.request(api, question).await {
        Ok(Response::Ok(answer)) => Ok(Ok(answer)),
        Ok(Response::Err { error }) => Ok(Err(error)),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(Unanswered::NoResponders),
        Err(error) => {
            tracing::debug!(subject, %error, "JetStream request");
            Err(Unanswered::Failed(error))
        }
    }
}

/// Asks as [`ask`] does; both a refusal and a missing answer become a fault.
pub(super) async fn demand<Q: Serialize, A: DeserializeOwned>(
    context: &jetstream::Context,
    subject: &str,
    api: String,
    question: &Q,
) -> Result<A, Fault> {
    match ask(context, subject, api, question).await {
        Ok(answer) => answer.map_err(|refusal| refused(subject, refusal)),
        Err(unanswered) => Err(unanswered.into_fault(subject)),
    }
}

pub(super) fn without_jetstream(subject: &str) -> Fault {
    Fault::new(Code::LogWithoutJetStream, subject, "JetStream is not enabled")
        .needs("JetStream for the account in log.url")
        .remedy("add jetstream { store_dir: \"/var/lib/nats\", sync_interval: always } to the server's configuration")
}

pub(super) fn stream_missing(subject: &str) -> Fault {
    Fault::new(Code::LogStreamMissing, subject, "does not exist").remedy(SETUP)
}

/// Returns JetStream's own refusal among the causes of an error of the client library; `None` if there is none.
pub(super) fn refusal_beneath(error: &(dyn StdError + 'static)) -> Option<jetstream::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refusal) = error.downcast_ref::<jetstream::Error>() {
            return Some(refusal.clone());
        }
        next = error.source();
    }
    None
}

/// Returns the fault for JetStream's own refusal.
pub(super) fn refused(subject: &str, refusal: jetstream::Error) -> Fault {
    let number = refusal.error_code().0;
    let code = code(number);
    match code {
        Code::LogWithoutJetStream => without_jetstream(subject),
        Code::LogStreamMissing => stream_missing(subject),
        Code::LogFenced => Fault::new(code, subject, "another writer appended").caused_by(refusal),
        Code::LogFull => Fault::new(code, subject, "no room for more")
            .needs("free storage, or smaller log.max_bytes")
            .caused_by(refusal),
        _ => Fault::new(code, subject, format!("the server answered error {number}")).caused_by(refusal),
    }
}

/// Returns the code for a number of JetStream's error list.
fn code(number: u64) -> Code {
    match number {
        10035 | 10039 | 10076 => Code::LogWithoutJetStream,
        10059 => Code::LogStreamMissing,
        10070 | 10071 | 10164 => Code::LogFenced,
        10002 | 10023 | 10028 | 10047 | 10077 | 10120 | 10122 => Code::LogFull,
        // The name or a subject is taken, the server or account does not allow the settings, the message is too large,
        // the subject belongs to another stream, or the stream is sealed.
        10005 | 10026 | 10027 | 10052 | 10053 | 10054 | 10058 | 10060 | 10065 | 10074 | 10097 | 10109
        | 10113 => Code::LogSettingsDiffer,
        // The server has no leader, is overloaded or restarts, or a later version sends a new number: it may pass.
        _ => Code::LogUnreachable,
    }
}
