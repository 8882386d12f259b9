//! One connection to NATS: account, TLS, the check of the server's abilities, and the detection of a broken connection.
//!
//! The client library reconnects by itself and silently drops requests that were sent and not yet answered. So code
//! that depends on an unbroken connection remembers its [`Connection::generation`] and ends when it changes. A list of
//! further servers is not configured: the client learns the other members of a cluster from the first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_pipeline::config::LogConfig;
use anabranch_pipeline::error::{Code, Fault};
use async_nats::connection::State;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{self, account::Account};
use async_nats::{Client, ClientError, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerInfo};
use tokio::sync::watch;

use super::error;
use crate::refusals::Account as RefusedAccount;
use crate::tls;

/// Wait for one answer. A request that a reconnect lost is never answered.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause before a reconnect to a server that does not refuse the account.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(4);
/// The library reports a refused reconnect by the text of this error.
const REFUSED: ConnectErrorKind = ConnectErrorKind::AuthorizationViolation;
/// A silent server is noticed after two of these; writers and readers notice earlier by their own deadlines.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The oldest server with every feature in use: earlier ones ignore settings and headers without an error.
const OLDEST_VERSION: (u64, u64) = (2, 10);

/// A connection that its users share. It is closed only when the last of them is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    context: jetstream::Context,
    message_bytes_max: usize,
    /// Notified at each event of the connection.
    events: watch::Receiver<()>,
}

impl Connection {
    /// Connects, and checks the server's version, limits and JetStream.
    pub(super) async fn open(config: &LogConfig, name: &str) -> Result<Arc<Self>, Fault> {
        let subject = server_name(config);
        let (notify, events) = watch::channel(());
        let account = RefusedAccount::of(&config.url, config.ca_file.as_deref());
        let (noted, delayed) = (account.clone(), account.clone());
        let mut options = ConnectOptions::new()
            .name(format!("anabranch {name}"))
            .user_and_password(config.url.user().to_owned(), config.url.password().expose().to_owned())
            .require_tls(config.url.scheme() == "tls")
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .event_callback(move |event| {
                report(&event);
                note(&event, &noted);
                notify.send_replace(());
                std::future::ready(())
            })
            .reconnect_delay_callback(move |attempts| {
                let delay = reconnect_delay(attempts);
                // The first attempt has waited already: it is that of a task, or follows a connection.
                if delay.is_zero() { delay } else { delay.max(delayed.pause()) }
            });
        if let Some(file) = &config.ca_file {
            options = options.add_root_certificates(file.clone());
        }
        let address = format!("{}://{}", config.url.scheme(), config.url.address());
        let connecting =
            async { options.connect(address).await.map_err(|error| connect_fault(&subject, error)) };
        let client = account.connect(Code::LogAccessDenied, &subject, connecting).await?;
        let message_bytes_max = config.max_message_bytes.get();
        check_server(&subject, &client.server_info(), message_bytes_max)?;
        let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
        check_jetstream(&subject, &context).await?;
        Ok(Arc::new(Self { client, context, message_bytes_max, events }))
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn context(&self) -> &jetstream::Context {
        &self.context
    }

    /// The largest message as configured, payload and headers together.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Number of the present connection: it rises with each reconnect, before anything can arrive on the new one.
    pub(super) fn generation(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Whether the connection of this generation is still open, as far as the client knows.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.generation() == generation && self.client.connection_state() == State::Connected
    }

    /// Resolves when the client has had no connection for this time without a break. Cancel safe.
    pub(super) async fn lost_for(&self, time: Duration) {
        let mut events = self.events.clone();
        let is_connected = || self.client.connection_state() == State::Connected;
        loop {
            while is_connected() {
                if events.changed().await.is_err() {
                    return;
                }
            }
            let lost = tokio::time::sleep(time);
            tokio::pin!(lost);
            while !is_connected() {
                tokio::select! {
                    () = &mut lost => return,
                    changed = events.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Resolves when the connection of this generation is broken. Cancel safe.
    pub(super) async fn broken(&self, generation: u64) {
        let mut events = self.events.clone();
        while self.is_current(generation) {
            if events.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Returns the name by which an operator knows the server.
pub(super) fn server_name(config: &LogConfig) -> String {
    format!("NATS server {}", config.url.address())
}

fn report(event: &Event) {
    match event {
        Event::Connected | Event::Draining | Event::Closed => tracing::debug!(%event, "NATS connection"),
        _ => tracing::warn!(%event, "NATS connection"),
    }
}

/// Notes whether the server took the account when the client reconnected by itself.
fn note(event: &Event, account: &RefusedAccount) {
    match event {
        Event::Connected => account.note(false),
        Event::ClientError(ClientError::Other(text)) => account.note(*text == REFUSED.to_string()),
        _ => {}
    }
}

/// Returns the pause before an attempt to connect, as the library has it without a callback.
fn reconnect_delay(attempts: usize) -> Duration {
    let exponent = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    let pause = Duration::from_millis(2_u64.saturating_pow(exponent)).min(RECONNECT_DELAY_MAX);
    if exponent == 0 { Duration::ZERO } else { pause }
}

/// Refuses servers that would accept Anabranch's settings and ignore them.
fn check_server(subject: &str, info: &ServerInfo, message_bytes_max: usize) -> Result<(), Fault> {
    if version(&info.version).is_none_or(|version| version < OLDEST_VERSION) {
        let found = format!("version {}", info.version);
        return Err(Fault::new(Code::LogServerTooOld, subject, found)
            .needs(format!("{}.{} or newer", OLDEST_VERSION.0, OLDEST_VERSION.1))
            .remedy("install a newer nats-server, 2.15 is recommended"));
    }
    if info.max_payload < message_bytes_max {
        let found = format!("max_payload is {} bytes", info.max_payload);
        return Err(Fault::new(Code::LogSettingsDiffer, subject, found)
            .needs(format!("at least {message_bytes_max}, which is log.max_message_bytes"))
            .remedy("raise max_payload in the server's configuration (64 MB at most)"));
    }
    Ok(())
}

/// Parses the major and minor number of `2.15.1` or `2.11.0-RC.1`.
fn version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

async fn check_jetstream(subject: &str, context: &jetstream::Context) -> Result<(), Fault> {
    match error::ask::<_, Account>(context, subject, "INFO".to_owned(), &()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(refusal)) => Err(error::refused(subject, refusal)),
        Err(error::Unanswered::NoResponders) => Err(error::without_jetstream(subject)),
        Err(unanswered) => Err(unanswered.into_fault(subject)),
    }
}

fn connect_fault(subject: &str, error: ConnectError) -> Fault {
    let denied = |found: &str| Fault::new(Code::LogAccessDenied, subject, found);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            denied("user or password refused").needs("an account of this server in log.url").caused_by(error)
        }
        ConnectErrorKind::Tls => denied("TLS cannot be set up; is log.ca_file readable?").caused_by(error),
        _ if tls::is_beneath(&error) => denied("the TLS handshake failed")
            .needs("a certificate for this host from the authority in log.ca_file")
            .caused_by(error),
        _ => Fault::new(Code::LogUnreachable, subject, "no connection").caused_by(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: &str, max_payload: usize) -> Result<(), Fault> {
        let info = ServerInfo { version: version.to_owned(), max_payload, ..ServerInfo::default() };
        check_server("NATS server x", &info, 4 << 20)
    }

    #[test]
    fn servers_before_2_10_are_refused_with_the_version_found_and_needed() {
        for old in ["2.9.10", "2.9.25", "1.4.1", "2", "", "unknown"] {
            let fault = server(old, 4 << 20).unwrap_err();
            assert_eq!(fault.code(), Code::LogServerTooOld);
            assert!(fault.to_string().contains(&format!("version {old}; needed: 2.10 or newer")), "{fault}");
        }
        for new in ["2.10.0", "2.10.27", "2.11.0-RC.1", "2.15.1", "3.0.0", "v2.12.1"] {
            server(new, 4 << 20).unwrap();
        }
    }

    #[test]
    fn a_refused_reconnect_is_noted_and_delays_the_next_ones_until_the_server_takes_the_account() {
        let url = anabranch_pipeline::config::ServerUrl::try_from("nats://u:p@reconnects:1".to_owned());
        let account = RefusedAccount::of(&url.unwrap(), None);
        assert_eq!(
            [0, 1, 2, 12, 13, 99].map(reconnect_delay).map(|delay| delay.as_millis()),
            [0, 0, 2, 2048, 4000, 4000]
        );
        note(&Event::ClientError(ClientError::Other("IO error".to_owned())), &account);
        assert_eq!(account.pause(), Duration::ZERO);
        for _ in 0..9 {
            note(&Event::ClientError(ClientError::Other(REFUSED.to_string())), &account);
        }
        assert!(account.pause() > Duration::from_secs(50), "{:?}", account.pause());
        note(&Event::Connected, &account);
        assert_eq!(account.pause(), Duration::ZERO);
    }

    #[test]
    fn a_server_with_a_small_payload_limit_is_refused() {
        let fault = server("2.15.1", (4 << 20) - 1).unwrap_err();
        assert_eq!(fault.code(), Code::LogSettingsDiffer);
    }
}
