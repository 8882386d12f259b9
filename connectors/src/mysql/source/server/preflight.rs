//! Checks every condition of capture before the first byte is read; each failed check is one fault.
//!
//! Privileges are tested by use, not by reading grants: a check requests a binlog file that does not exist, under a
//! server id that no reader uses. Two queries return tables and columns, however many tables there are.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anabranch_pipeline::config::{EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use futures::StreamExt as _;
use mysql_async::{BinlogStreamRequest, Conn};

use super::preflight_columns;
use super::preflight_marker;
use super::preflight_tables;
use super::session::{Address, Session, binlog_off, column_text};
use super::tables::CapturedTables;
use super::versions;
use crate::mysql::connection::async_options;
use crate::mysql::error::{Side, from_async};
use crate::mysql::source::decode::gtid::Flavor;

const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of a binlog file that no server has.
const PROBE_FILE: &[u8] = b"anabranch-preflight.000000";
/// Bit that makes a probe's server id differ from readers' ids, which are below it unless an operator chose otherwise.
const PROBE_ID_BIT: u32 = 1 << 31;
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', \
    'binlog_row_image', 'binlog_row_metadata', 'binlog_row_value_options', 'gtid_mode', 'expire_logs_days', \
    'binlog_expire_logs_seconds', 'binlog_storage_engine', 'log_slave_updates', 'log_replica_updates')";

pub async fn check(config: &SourceConfig, entities: &[EntityConfig]) -> Vec<Fault> {
    let address = Address::of(config);
    let mut session = match Session::open(&address).await {
        Ok(session) => session,
        Err(fault) => return vec![fault],
    };
    let mut faults = Vec::new();
    if let Err(fault) = check_session(config, entities, &mut session, &mut faults).await {
        faults.push(fault);
    }
    session.close().await;
    faults
}

async fn check_session(
    config: &SourceConfig,
    entities: &[EntityConfig],
    session: &mut Session,
    faults: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let variables = variables(session).await?;
    let subject = session.subject().to_owned();
    faults.extend(versions::fault(session.version, &session.version_text, &subject));
    faults.extend(versions::storage_fault(&subject, &variables));
    check_settings(&subject, session.version.flavor, &variables, faults);
    let account = account(session).await?;
    if variables.get("log_bin").is_some_and(|value| value == "ON") {
        faults.extend(monitor_fault(session, &account).await);
        faults.extend(replication_fault(config, &subject, &account).await);
        faults.extend(replica_fault(session, &variables).await);
    }
    let tables = CapturedTables::new(config, entities);
    preflight_tables::check(session, tables, &account, faults).await
}

/// Returns what a pre-flight judges of the server itself, as text: identity, version, settings, and whether it is a
/// replica. Tables and privileges are not in it, except the captured databases of a binlog with filters.
pub async fn judged_state(config: &SourceConfig, entities: &[EntityConfig]) -> Result<String, Fault> {
    let mut session = Session::open(&Address::of(config)).await?;
    let identity = session.identity().await?;
    let settings: BTreeMap<_, _> = variables(&mut session).await?.into_iter().collect();
    // An account that may not ask gets its fault from the whole pre-flight.
    let filters = session.binlog_filters().await.ok();
    let is_filtered = filters.as_ref().is_some_and(|(only, not)| !only.is_empty() || !not.is_empty());
    let here = entities.iter().filter(|entity| config.entities.contains(&entity.entity));
    let here: Vec<EntityConfig> = here.cloned().collect();
    let databases = match is_filtered {
        true => preflight_tables::databases(&mut session, &here).await?,
        false => Vec::new(),
    };
    let is_replica = session.is_replica().await.ok();
    let version = std::mem::take(&mut session.version_text);
    session.close().await;
    Ok(format!("{identity:?} {version} {settings:?} {filters:?} {databases:?} {is_replica:?}"))
}

async fn variables(session: &mut Session) -> Result<HashMap<String, String>, Fault> {
    let rows = session.rows(VARIABLES.to_owned()).await?;
    Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
}

/// Returns the account as GRANT takes it: `'user'@'host'`.
async fn account(session: &mut Session) -> Result<String, Fault> {
    let account = session.text("SELECT CURRENT_USER()").await?;
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    Ok(format!("{}@{}", quote(user), quote(host)))
}

fn check_settings(
    subject: &str,
    flavor: Flavor,
    variables: &HashMap<String, String>,
    faults: &mut Vec<Fault>,
) {
    if variables.get("log_bin").is_none_or(|value| value != "ON") {
        faults.push(binlog_off(subject));
    }
    let settings = [
        (Code::SourceFormatNotRow, "binlog_format", "ROW"),
        (Code::SourceImageNotFull, "binlog_row_image", "FULL"),
        (Code::SourceMetadataNotFull, "binlog_row_metadata", "FULL"),
    ];
    for (code, name, needed) in settings {
        match variables.get(name) {
            Some(value) if value != needed => faults.push(
                Fault::new(code, subject, format!("{name} is {value}"))
                    .needs(needed)
                    .remedy(format!("SET GLOBAL {name} = {needed}")),
            ),
            _ => {}
        }
    }
    if let Some(value) = variables.get("binlog_row_value_options").filter(|value| !value.is_empty()) {
        faults.push(
            Fault::new(
                Code::SourceImageNotFull,
                subject,
                format!("binlog_row_value_options is {value}: JSON columns are logged in parts"),
            )
            .needs("no option")
            .remedy("SET GLOBAL binlog_row_value_options = ''"),
        );
    }
    if flavor == Flavor::MySql
        && let Some(value) = variables.get("gtid_mode").filter(|value| *value != "ON")
    {
        faults.push(
            Fault::new(Code::SourceGtidOff, subject, format!("gtid_mode is {value}")).needs("ON").remedy(
                "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; \
                 SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON",
            ),
        );
    }
}

/// Returns conditions that are no fault but that an operator should know, each in a sentence; returns none while the
/// server does not answer, which is a fault.
pub async fn warnings(config: &SourceConfig, entities: &[EntityConfig]) -> Vec<String> {
    let Ok(mut session) = Session::open(&Address::of(config)).await else { return Vec::new() };
    let mut warnings = Vec::new();
    warnings.extend(versions::warning(session.version, &session.version_text, session.subject()));
    if let Ok(variables) = variables(&mut session).await {
        warnings.extend(retention_warning(config, session.subject(), &variables));
    }
    let captured: Vec<EntityConfig> = CapturedTables::new(config, entities).entities().cloned().collect();
    for warning in [
        preflight_tables::cascade_warning(&mut session, &captured).await,
        preflight_columns::generated_warning(&mut session, &captured).await,
        preflight_columns::hidden_warning(&mut session, &captured).await,
        preflight_marker::marker_warning(&mut session, &captured).await,
    ] {
        warnings.extend(warning.ok().flatten());
    }
    session.close().await;
    warnings
}

/// Short retention is a risk and no fault: the log may never fall behind.
fn retention_warning(
    config: &SourceConfig,
    subject: &str,
    variables: &HashMap<String, String>,
) -> Option<String> {
    const SECONDS_PER_DAY: f64 = 24.0 * 3600.0;
    let number = |name| variables.get(name).and_then(|value| value.parse::<f64>().ok());
    // Zero is no limit: the server keeps binlogs until an operator purges them.
    let kept = number("binlog_expire_logs_seconds")
        .filter(|seconds| *seconds > 0.0)
        .or_else(|| number("expire_logs_days").map(|days| days * SECONDS_PER_DAY))
        .filter(|seconds| *seconds > 0.0)?;
    let wanted = config.retention_min.as_secs();
    (kept < config.retention_min.as_secs_f64()).then(|| {
        format!(
            "{subject}: binlogs are kept for {kept} s; needed: {wanted} s (retention_min_seconds): a stop of more than \
             {kept} s needs a refresh"
        )
    })
}

/// Checks that the account may list binlogs, which start, lag and purge checks need.
async fn monitor_fault(session: &mut Session, account: &str) -> Option<Fault> {
    let failed = match session.end_position().await {
        Err(fault) => Some(fault),
        Ok(_) => session.binlogs().await.err(),
    };
    let fault = failed?;
    if fault.code() != Code::SourceGrantMissing {
        return Some(fault);
    }
    let privilege = match session.version.flavor {
        Flavor::MariaDb => "BINLOG MONITOR",
        Flavor::MySql => "REPLICATION CLIENT",
    };
    Some(
        Fault::new(Code::SourceGrantMissing, session.subject(), format!("{account} may not list binlogs"))
            .needs(privilege)
            .remedy(format!("GRANT {privilege} ON *.* TO {account}")),
    )
}

/// Checks that a replica logs the changes that it applies.
async fn replica_fault(session: &mut Session, variables: &HashMap<String, String>) -> Option<Fault> {
    let is_off = |name: &&str| variables.get(*name).is_some_and(|value| value == "OFF");
    let name = ["log_replica_updates", "log_slave_updates"].into_iter().find(is_off)?;
    // Another check reports an account that may not ask.
    if !session.is_replica().await.ok()? {
        return None;
    }
    let found =
        format!("it is a replica with {name} = OFF: changes that it replicates are not in its binlog");
    let remedy =
        format!("set {name} = ON in its configuration, restart it, and refresh it; or capture its primary");
    Some(Fault::new(Code::SourceBinlogOff, session.subject(), found).needs("ON").remedy(remedy))
}

/// Requests a binlog file that does not exist: a server answers "no such file" only to an account that may read
/// binlogs.
async fn replication_fault(config: &SourceConfig, subject: &str, account: &str) -> Option<Fault> {
    let unreachable =
        || Fault::new(Code::SourceUnreachable, subject, "no answer to the request for the binlog");
    let probe = async {
        let options = async_options(&config.url, config.ca_file.as_deref());
        let connection =
            Conn::new(options).await.map_err(|error| from_async(Side::Source, subject, error))?;
        let request = BinlogStreamRequest::new(config.replica_server_id.get() ^ PROBE_ID_BIT)
            .with_filename(PROBE_FILE)
            .with_non_blocking();
        match connection.get_binlog_stream(request).await {
            Err(error) => Ok(Some(error)),
            Ok(mut stream) => loop {
                match stream.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Ok(Some(error)),
                    None => break Ok(None),
                }
            },
        }
    };
    match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        Err(_) => Some(unreachable()),
        Ok(Err(fault)) => Some(fault),
        Ok(Ok(Some(mysql_async::Error::Server(error)))) if is_denied(error.code) => Some(
            Fault::new(Code::SourceGrantMissing, subject, format!("{account} may not read the binlog"))
                .needs("REPLICATION SLAVE")
                .remedy(format!("GRANT REPLICATION SLAVE ON *.* TO {account}")),
        ),
        Ok(Ok(_)) => None,
    }
}

fn is_denied(number: u16) -> bool {
    matches!(number, 1044 | 1045 | 1142 | 1227)
}
