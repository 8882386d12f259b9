//! Asks a source which binlog files it has, how long it keeps them, and until when its certificate is valid.

use std::time::Duration;

use anabranch_pipeline::error::Fault;

use super::session::{Session, column_text};
use crate::mysql::source::MysqlSource;

/// The server's answers about its binlog and its certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BinlogKept {
    /// Names and sizes of the files, oldest first.
    pub files: Vec<(String, u64)>,
    /// Age of a file's last change after which it is purged; `None` = files are not purged by age.
    pub purged_after: Option<Duration>,
    /// End of the server's certificate, as OpenSSL writes it; `None` on a connection without TLS.
    pub certificate_ends: Option<String>,
}

const EXPIRY: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name \
                      IN ('binlog_expire_logs_seconds', 'binlog_expire_logs_auto_purge')";
pub(in crate::mysql) const CERTIFICATE: &str = "SHOW SESSION STATUS LIKE 'Ssl_server_not_after'";

impl MysqlSource {
    /// Asks the server, on the connection that is kept for `head`.
    pub async fn binlog_kept(&self) -> Result<BinlogKept, Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let files = session.binlogs().await?;
        let expiry = named(&mut session, EXPIRY).await?;
        let certificate = named(&mut session, CERTIFICATE).await?;
        *kept = Some(session);
        let certificate_ends = certificate.into_iter().map(|(_, end)| end).find(|end| !end.is_empty());
        Ok(BinlogKept { files, purged_after: purged_after(&expiry), certificate_ends })
    }
}

async fn named(session: &mut Session, sql: &str) -> Result<Vec<(String, String)>, Fault> {
    let rows = session.rows(sql.to_owned()).await?;
    let text = |row, index| column_text(row, index).unwrap_or_default();
    Ok(rows.iter().map(|row| (text(row, 0).to_lowercase(), text(row, 1))).collect())
}

/// Returns the time after which files are purged; `None` for zero seconds and for a purge that is off.
fn purged_after(variables: &[(String, String)]) -> Option<Duration> {
    let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    if value("binlog_expire_logs_auto_purge").is_some_and(|value| value == "OFF") {
        return None;
    }
    let seconds = value("binlog_expire_logs_seconds")?.parse().ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_seconds_and_a_purge_that_is_off_mean_that_nothing_is_purged_by_age() {
        let of = |values: &[(&str, &str)]| {
            let owned: Vec<_> =
                values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            purged_after(&owned)
        };
        let (seconds, purge) = ("binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge");
        assert_eq!(of(&[(seconds, "3600")]), Some(Duration::from_secs(3600)));
        assert_eq!(of(&[(seconds, "3600"), (purge, "ON")]), Some(Duration::from_secs(3600)));
        assert_eq!(of(&[(seconds, "3600"), (purge, "OFF")]), None);
        assert_eq!(of(&[(seconds, "0")]), None);
        assert_eq!(of(&[]), None);
    }
}
