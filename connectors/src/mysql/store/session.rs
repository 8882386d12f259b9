//! A short connection for set-up, checks and status; statements and rows are text.
//!
//! Lanes do not use it: they apply through `mysql_async`.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::MysqlTarget;
use crate::mysql::connection::sqlx_options;
use crate::mysql::error::{Side, from_sqlx};
use crate::mysql::remedy::with_remedy;
use crate::mysql::target_session::TARGET_SESSION;
use crate::refusals::Account;

/// Limit of connecting: well above a TLS handshake on a slow link.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a call: its longest work is hundreds of CREATE TABLE on a slow disk.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// A row as text; `None` = NULL.
pub(super) type TextRow = Vec<Option<String>>;

/// An open session on a target. One that is dropped without [`Session::close`] leaves a warning in the server's log.
#[derive(Debug)]
pub(super) struct Session {
    connection: MySqlConnection,
    pub(super) subject: String,
}

impl Session {
    pub(super) async fn open(target: &MysqlTarget) -> Result<Self, Fault> {
        let subject = target.subject();
        let options = sqlx_options(&target.0.url, target.0.ca_file.as_deref());
        // The library's future has 16 KB, which each future around it would hold a copy of.
        let connected = Box::pin(MySqlConnection::connect_with(&options));
        let connecting = within(&subject, CONNECT_TIMEOUT, connected);
        let connection = Account::of(&target.0.url, target.0.ca_file.as_deref())
            .connect(Side::Target.denied(), &subject, connecting)
            .await?;
        let mut session = Self { connection, subject };
        session.run(TARGET_SESSION.to_owned()).await?;
        Ok(session)
    }

    /// Executes statements separated by semicolons; returns the rows of all of them.
    pub(super) async fn rows(&mut self, sql: String) -> Result<Vec<TextRow>, Fault> {
        // The text is Anabranch's own: identifiers are quoted and values are hexadecimal literals.
        let query = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.connection);
        let rows = within(&self.subject, STATEMENT_TIMEOUT, query).await?;
        rows.iter().map(text).collect::<Result<_, _>>().map_err(|error| self.fault(error))
    }

    /// Executes statements separated by semicolons.
    pub(super) async fn run(&mut self, sql: String) -> Result<(), Fault> {
        self.rows(sql).await.map(drop)
    }

    pub(super) async fn close(self) {
        // The answers have come; a failed close changes nothing.
        let _ = tokio::time::timeout(CONNECT_TIMEOUT, self.connection.close()).await;
    }

    fn fault(&self, error: sqlx::Error) -> Fault {
        with_remedy(from_sqlx(Side::Target, &self.subject, error))
    }
}

async fn within<T>(
    subject: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(|error| with_remedy(from_sqlx(Side::Target, subject, error))),
        Err(_) => {
            let found = format!("no answer within {} s", limit.as_secs());
            Err(Fault::new(Code::TargetUnreachable, subject, found))
        }
    }
}

/// Returns a row as text: the protocol is text, whatever a column's type.
fn text(row: &MySqlRow) -> Result<TextRow, sqlx::Error> {
    (0..row.len()).map(|index| row.try_get_unchecked::<Option<String>, _>(index)).collect()
}
