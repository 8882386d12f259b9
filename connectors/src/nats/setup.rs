//! Creates and adjusts streams and buckets, and compares them with the settings that correctness needs.
//!
//! Only the configuration that the server echoes counts, because old servers accept and ignore unknown settings. A
//! setting without which the log would be wrong is a fault; it is never changed without the operator. Limits of the
//! configuration file and the protections against deletion are adjusted. Nothing is ever deleted here: a limit of size
//! below what a stream of changes holds is refused, because the server would discard the oldest messages at once.

use std::fmt;
use std::time::Duration;

use anabranch_pipeline::config::LogConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::LEASE_TIME_TO_LIVE;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{self, ErrorCode};

use super::error::{self, SETUP};
use super::{NatsLog, StreamName};

/// The writer's chain needs message ids, not a window. Short is cheap: about 200 bytes of the server's memory an id
/// (measured).
pub(super) const DUPLICATE_WINDOW: Duration = Duration::from_secs(2);
/// Life of an idempotency key. By the usual convention a caller repeats a request within it.
const INTAKE_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The bucket gets one part in so many of `log.max_bytes`, which the server reserves: 64 MiB by default, for about
/// three hundred thousand keys.
const INTAKE_SHARE: u64 = 160;
const INTAKE_MIN_BYTES: u64 = 1024 * 1024;

/// Outcome of [`NatsLog::setup`] for one stream or bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupStep {
    pub subject: String,
    pub outcome: SetupOutcome,
    /// Limit of age as the server echoes it, like `max_bytes`.
    pub max_age: Duration,
    pub max_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupOutcome {
    Created,
    /// Names of the settings that were changed to those of the configuration file.
    Adjusted(Vec<&'static str>),
    Unchanged,
}

/// `stream demo_source-a: created (keeps 604800 s, 1000000000 bytes)`
impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            SetupOutcome::Created => write!(f, "{}: created", self.subject)?,
            SetupOutcome::Adjusted(settings) => {
                write!(f, "{}: adjusted {}", self.subject, settings.join(", "))?;
            }
            SetupOutcome::Unchanged => write!(f, "{}: as needed", self.subject)?,
        }
        if self.max_bytes > 0 {
            write!(f, " (keeps {} s, {} bytes)", self.max_age.as_secs_f64(), self.max_bytes)?;
        }
        Ok(())
    }
}

impl NatsLog {
    /// Creates missing streams and buckets, adjusts limits to the configuration file, checks the rest. Safe to repeat.
    pub async fn setup(&self, sources: &[String]) -> Result<Vec<SetupStep>, Vec<Fault>> {
        self.require_present_names().await.map_err(|fault| vec![fault])?;
        let mut steps = Vec::new();
        let mut faults = Vec::new();
        for needed in self.needed(sources) {
            match set_up(self.connection.context(), &needed).await {
                Ok(step) => steps.push(step),
                Err(found) => faults.extend(found),
            }
        }
        if faults.is_empty() { Ok(steps) } else { Err(faults) }
    }

    /// Runs the checks of [`Self::setup`] without changing anything; each failed check is one fault.
    pub async fn check(&self, sources: &[String]) -> Vec<Fault> {
        let mut faults = Vec::new();
        for needed in self.needed(sources) {
            faults.extend(check_one(self.connection.context(), &needed).await);
        }
        faults
    }

    /// Refuses an installation whose registers have the name of a build from before 0.1.0: new registers beside them
    /// would give out the same uuids and epochs again.
    async fn require_present_names(&self) -> Result<(), Fault> {
        let bucket = format!("{}_uuids", self.prefix);
        let subject = format!("bucket {bucket}");
        match info(self.connection.context(), &format!("KV_{bucket}"), &subject).await? {
            None => Ok(()),
            Some(_) => Err(Fault::new(Code::LogForeign, subject, "a build from before 0.1.0 made it, with other names")
                .needs("an installation of this version, in which names of tables, buckets and metrics are others")
                .remedy("set another `name` and new control and derived databases, then `anabranch --config FILE setup`")),
        }
    }

    fn needed(&self, sources: &[String]) -> Vec<Config> {
        let streams = sources
            .iter()
            .map(|source| stream_config(&self.config, self.stream_name(source), self.subject_name(source)));
        let buckets = [
            lease_bucket(&self.config, &self.lease_bucket()),
            register_bucket(&self.config, &self.register_bucket()),
            intake_bucket(&self.config, &self.intake_bucket()),
        ];
        streams.chain(buckets).collect()
    }
}

/// Configures the stream of one source. Only age and size remove a message, so neither a purge nor a deletion can tear
/// a hole: to start over, delete the stream and set up again.
fn stream_config(log: &LogConfig, name: String, subject: String) -> Config {
    Config {
        name,
        subjects: vec![subject],
        description: Some("Anabranch: the changes of one source".to_owned()),
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        num_replicas: log.replicas.get(),
        max_age: log.max_age,
        max_bytes: i64::try_from(log.max_bytes.get()).unwrap_or(i64::MAX),
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        // This limit counts payload and headers together.
        max_message_size: log.max_message_bytes.get() as i32,
        duplicate_window: DUPLICATE_WINDOW,
        allow_direct: true,
        deny_delete: true,
        deny_purge: true,
        ..Config::default()
    }
}

/// Configures the bucket of leases: a lease is free when its key has expired.
fn lease_bucket(log: &LogConfig, bucket: &str) -> Config {
    let description = Some("Anabranch: leases".to_owned());
    Config { max_age: LEASE_TIME_TO_LIVE, description, ..bucket_config(log, bucket) }
}

/// Configures the bucket of registers. They never expire: values below a register were used for ever.
fn register_bucket(log: &LogConfig, bucket: &str) -> Config {
    let description = Some("Anabranch: how far uuids and epochs were used; never delete a key".to_owned());
    Config { description, ..bucket_config(log, bucket) }
}

/// Configures the bucket of callers' keys: it is limited in time and size, separate from leases and registers.
fn intake_bucket(log: &LogConfig, bucket: &str) -> Config {
    let description = Some("Anabranch: uuids given out by idempotency key".to_owned());
    let max_bytes = (log.max_bytes.get() / INTAKE_SHARE).max(INTAKE_MIN_BYTES);
    let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    Config { max_age: INTAKE_MAX_AGE, max_bytes, description, ..bucket_config(log, bucket) }
}

/// Configures a key-value bucket, which is a stream of this form.
fn bucket_config(log: &LogConfig, bucket: &str) -> Config {
    Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: log.replicas.get(),
        max_bytes: -1,
        max_messages: -1,
        max_messages_per_subject: 1,
        max_consumers: -1,
        max_message_size: -1,
        duplicate_window: DUPLICATE_WINDOW,
        allow_direct: true,
        allow_rollup: true,
        deny_delete: true,
        deny_purge: false,
        ..Config::default()
    }
}

/// Returns the name by which an operator knows the stream or bucket.
fn subject(config: &Config) -> String {
    match config.name.strip_prefix("KV_") {
        Some(bucket) if config.allow_rollup => format!("bucket {bucket}"),
        _ => format!("stream {}", config.name),
    }
}

/// Compares one stream or bucket with the needed configuration; each difference is one fault.
pub(super) async fn check_one(context: &jetstream::Context, needed: &Config) -> Vec<Fault> {
    let subject = subject(needed);
    match info(context, &needed.name, &subject).await {
        Ok(Some(info)) => {
            let differences = differences(&info.config, needed);
            differences.iter().map(|difference| difference.fault(&subject)).collect()
        }
        Ok(None) => vec![error::stream_missing(&subject)],
        Err(fault) => vec![fault],
    }
}

pub(super) async fn set_up(context: &jetstream::Context, needed: &Config) -> Result<SetupStep, Vec<Fault>> {
    let subject = subject(needed);
    let one = |fault| vec![fault];
    let found = info(context, &needed.name, &subject).await.map_err(one)?;
    let (echoed, outcome) = match found {
        None => {
            let api = format!("STREAM.CREATE.{}", needed.name);
            failpoints::reach("setup-before-stream").await;
            let info: Info = error::demand(context, &subject, api, needed).await.map_err(one)?;
            failpoints::reach("setup-after-stream").await;
            (info.config, SetupOutcome::Created)
        }
        Some(info) => {
            let differences = differences(&info.config, needed);
            let fixed: Vec<Fault> =
                differences.iter().filter(|d| d.fixed).map(|d| d.fault(&subject)).collect();
            if !fixed.is_empty() {
                return Err(fixed);
            }
            would_discard(&info, needed, &subject).map_or(Ok(()), |fault| Err(vec![fault]))?;
            if differences.is_empty() {
                (info.config, SetupOutcome::Unchanged)
            } else {
                let api = format!("STREAM.UPDATE.{}", needed.name);
                let adjusted = adjust(info.config, needed);
                let info: Info = error::demand(context, &subject, api, &adjusted).await.map_err(one)?;
                (info.config, SetupOutcome::Adjusted(differences.iter().map(|d| d.setting).collect()))
            }
        }
    };
    let ignored: Vec<Fault> = differences(&echoed, needed).iter().map(|d| d.fault(&subject)).collect();
    if !ignored.is_empty() {
        return Err(ignored);
    }
    Ok(SetupStep { subject, outcome, max_age: echoed.max_age, max_bytes: echoed.max_bytes })
}

/// Requires the lease bucket, and creates it if missing: it holds nothing that could be lost. A bucket whose keys do
/// not expire in time is refused: it would keep leases of processes that are gone.
pub(super) async fn require_leases(
    context: &jetstream::Context,
    log: &LogConfig,
    bucket: &str,
) -> Result<(), Fault> {
    require_or_make(context, &lease_bucket(log, bucket)).await
}

/// Requires the bucket of idempotency keys, and creates it if missing: an older installation does not have it.
pub(super) async fn require_intake(
    context: &jetstream::Context,
    log: &LogConfig,
    bucket: &str,
) -> Result<(), Fault> {
    require_or_make(context, &intake_bucket(log, bucket)).await
}

/// Requires a stream that holds nothing that could be lost, and creates it if missing.
pub(super) async fn require_or_make(context: &jetstream::Context, needed: &Config) -> Result<(), Fault> {
    if is_sound(context, needed).await? {
        return Ok(());
    }
    let subject = subject(needed);
    tracing::warn!(subject, "a stream or bucket does not exist and is made anew");
    let api = format!("STREAM.CREATE.{}", needed.name);
    error::demand::<_, Info>(context, &subject, api, needed).await.map(drop)
}

/// Requires the bucket of registers, which only `setup` creates: an operator must know of a lost one. A bucket whose
/// keys expire is refused.
pub(super) async fn require_registers(
    context: &jetstream::Context,
    log: &LogConfig,
    bucket: &str,
) -> Result<(), Fault> {
    let needed = register_bucket(log, bucket);
    let is_there = is_sound(context, &needed).await?;
    if is_there { Ok(()) } else { Err(error::stream_missing(&subject(&needed))) }
}

/// Whether the bucket exists; a fault if it does without the settings that matter.
async fn is_sound(context: &jetstream::Context, needed: &Config) -> Result<bool, Fault> {
    let subject = subject(needed);
    let Some(info) = info(context, &needed.name, &subject).await? else { return Ok(false) };
    let differences = differences(&info.config, needed);
    let matters = |difference: &&Difference| difference.fixed || difference.setting == "max_age";
    differences.iter().find(matters).map_or(Ok(true), |difference| Err(difference.fault(&subject)))
}

/// Refuses a stream without the settings that the log's correctness needs, such as one that another program created.
pub(super) fn require_fixed(log: &LogConfig, stream: &StreamName, found: &Config) -> Result<(), Fault> {
    let needed = stream_config(log, stream.name.clone(), stream.subject.clone());
    let differences = differences(found, &needed);
    let fixed = differences.iter().find(|difference| difference.fixed);
    fixed.map_or(Ok(()), |difference| Err(difference.fault(&stream.title())))
}

/// Returns a fault if the needed size of a stream of changes is below what it holds.
fn would_discard(found: &Info, needed: &Config, subject: &str) -> Option<Fault> {
    let limit = u64::try_from(needed.max_bytes).ok().filter(|limit| *limit > 0)?;
    let bytes = found.state.bytes;
    if needed.discard != DiscardPolicy::Old || bytes <= limit {
        return None;
    }
    let found = format!("it holds {bytes} bytes, and the server would discard the oldest of them at once");
    let remedy = format!(
        "raise log.max_bytes, or let them go: `nats stream edit {} --max-bytes={limit}`, then {SETUP}",
        needed.name
    );
    let needs = format!("log.max_bytes of at least {bytes} instead of {limit}");
    Some(Fault::new(Code::LogSettingsDiffer, subject, found).needs(needs).remedy(remedy))
}

/// Returns the found configuration with Anabranch's limits: placement, compression and the like stay the operator's.
fn adjust(found: Config, needed: &Config) -> Config {
    Config {
        num_replicas: needed.num_replicas,
        max_age: needed.max_age,
        max_bytes: needed.max_bytes,
        max_messages: needed.max_messages,
        max_message_size: needed.max_message_size,
        duplicate_window: needed.duplicate_window,
        allow_direct: needed.allow_direct,
        deny_delete: needed.deny_delete,
        deny_purge: needed.deny_purge,
        ..found
    }
}

/// Returns the stream's information; `None` when there is no such stream.
pub(super) async fn info(
    context: &jetstream::Context,
    stream: &str,
    subject: &str,
) -> Result<Option<Info>, Fault> {
    match error::ask(context, subject, format!("STREAM.INFO.{stream}"), &()).await {
        Ok(Ok(info)) => Ok(Some(info)),
        Ok(Err(refusal)) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
        Ok(Err(refusal)) => Err(error::refused(subject, refusal)),
        Err(unanswered) => Err(unanswered.into_fault(subject)),
    }
}

/// A setting that differs from the needed one.
struct Difference {
    setting: &'static str,
    /// `setup` never changes this setting.
    fixed: bool,
    found: String,
    needed: String,
}

impl Difference {
    fn fault(&self, subject: &str) -> Fault {
        let remedy = if self.fixed {
            format!("delete the stream if nothing else uses it (`nats stream rm`), then {SETUP}")
        } else {
            SETUP.to_owned()
        };
        Fault::new(Code::LogSettingsDiffer, subject, format!("{} is {}", self.setting, self.found))
            .needs(self.needed.clone())
            .remedy(remedy)
    }
}

fn differences(found: &Config, needed: &Config) -> Vec<Difference> {
    let pairs = settings(found).into_iter().zip(settings(needed));
    pairs
        .filter(|(found, needed)| found.2 != needed.2)
        .map(|((setting, fixed, found), (_, _, needed))| Difference { setting, fixed, found, needed })
        .collect()
}

/// Lists name, fixedness and value of every setting that matters, in one form for found and needed configurations.
fn settings(config: &Config) -> [(&'static str, bool, String); 23] {
    const FIXED: bool = true;
    const ADJUSTED: bool = false;
    let limit = |number: i64| if number <= 0 { "unlimited".to_owned() } else { number.to_string() };
    let number = |present: bool| if present { "set" } else { "not set" }.to_owned();
    let sources = config.sources.as_ref().is_some_and(|sources| !sources.is_empty());
    let persistence = config.persist_mode.unwrap_or(PersistenceMode::Default);
    [
        ("subjects", FIXED, config.subjects.join(", ")),
        ("storage", FIXED, format!("{:?}", config.storage)),
        ("retention", FIXED, format!("{:?}", config.retention)),
        ("discard", FIXED, format!("{:?}", config.discard)),
        ("max_msgs_per_subject", FIXED, limit(config.max_messages_per_subject)),
        ("max_consumers", FIXED, limit(config.max_consumers.into())),
        ("no_ack", FIXED, config.no_ack.to_string()),
        ("sealed", FIXED, config.sealed.to_string()),
        ("mirror", FIXED, number(config.mirror.is_some())),
        ("sources", FIXED, number(sources)),
        ("subject_transform", FIXED, number(config.subject_transform.is_some())),
        ("allow_rollup_hdrs", FIXED, config.allow_rollup.to_string()),
        ("allow_msg_ttl", FIXED, config.allow_message_ttl.to_string()),
        ("persist_mode", FIXED, format!("{persistence:?}")),
        ("num_replicas", ADJUSTED, config.num_replicas.max(1).to_string()),
        ("max_age", ADJUSTED, format!("{} s", config.max_age.as_secs_f64())),
        ("max_bytes", ADJUSTED, limit(config.max_bytes)),
        ("max_msgs", ADJUSTED, limit(config.max_messages)),
        ("max_msg_size", ADJUSTED, limit(config.max_message_size.into())),
        ("duplicate_window", ADJUSTED, format!("{} s", config.duplicate_window.as_secs_f64())),
        ("allow_direct", ADJUSTED, config.allow_direct.to_string()),
        ("deny_delete", ADJUSTED, config.deny_delete.to_string()),
        ("deny_purge", ADJUSTED, config.deny_purge.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_correctness_needs_are_fixed_and_limits_are_adjusted() {
        let needed = Config { subjects: vec!["demo.a.changes".to_owned()], ..Config::default() };
        let found = Config {
            subjects: vec!["other.*".to_owned()],
            storage: StorageType::Memory,
            persist_mode: Some(PersistenceMode::Async),
            max_age: Duration::from_secs(7),
            ..Config::default()
        };
        let found: Vec<_> = differences(&found, &needed)
            .iter()
            .map(|difference| (difference.setting, difference.fixed))
            .collect();
        assert_eq!(
            found,
            [("subjects", true), ("storage", true), ("persist_mode", true), ("max_age", false)]
        );
    }

    #[test]
    fn a_fault_names_setting_found_and_needed() {
        let needed = Config::default();
        let found = Config { storage: StorageType::Memory, ..Config::default() };
        let fault = differences(&found, &needed)[0].fault("stream demo_a");
        assert!(
            fault
                .to_string()
                .starts_with("[log-settings-differ] stream demo_a: storage is Memory; needed: File;"),
            "{fault}"
        );
    }
}
