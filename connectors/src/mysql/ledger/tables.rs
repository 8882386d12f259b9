//! The tables of the ledger: names, set-up, and the check of existing tables.
//!
//! They are in a database of their own, beside the target's control database. Accounts get rights on the whole
//! database, and the daemon's account can delete nothing in it.

use anabranch_coupons::records::{PARTS, Unique};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::sql;

use super::cells::number_literal;
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::store::{MysqlTarget, NeededTable, SetupReport};

/// Quoted names of the database and its tables.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    database: String,
    pub(super) programmes: String,
    pub(super) runs: String,
    pub(super) members: String,
    pub(super) letters: String,
    pub(super) tokens: String,
    /// Ledger tables by part.
    pub(super) ledger: Vec<String>,
    pub(super) refusals: Vec<String>,
}

impl Tables {
    pub(super) fn of(target: &MysqlTarget) -> Self {
        let database = format!("{}_coupons", target.control_database());
        let quoted = |table: &str| quote_table(&database, table);
        let by_part = |table: &str| (0..PARTS).map(|part| quoted(&format!("{table}_{part:02}"))).collect();
        Self {
            programmes: quoted("coupon_programme"),
            runs: quoted("coupon_run"),
            members: quoted("coupon_member"),
            letters: quoted("coupon_letter"),
            tokens: quoted("coupon_token"),
            ledger: by_part("coupon_ledger"),
            refusals: by_part("coupon_refusal"),
            database,
        }
    }

    /// Returns each table with the statement that creates it.
    fn needed(&self) -> Vec<NeededTable> {
        let mut needed = Vec::new();
        let mut add = |table: String, statement: &'static str| {
            needed.push(NeededTable { database: self.database.clone(), table, statement });
        };
        for (table, statement) in [
            ("coupon_programme", sql::COUPON_PROGRAMME),
            ("coupon_run", sql::COUPON_RUN),
            ("coupon_member", sql::COUPON_MEMBER),
            ("coupon_letter", sql::COUPON_LETTER),
            ("coupon_token", sql::COUPON_TOKEN),
        ] {
            add(table.to_owned(), statement);
        }
        for part in 0..PARTS {
            add(format!("coupon_ledger_{part:02}"), sql::COUPON_LEDGER);
            add(format!("coupon_refusal_{part:02}"), sql::COUPON_REFUSAL);
        }
        needed
    }
}

/// Creates missing tables of the ledger on a target, and its first token. Safe to repeat.
///
/// The register does not know a token that is created beside rows of an older ledger: nothing is granted then.
pub async fn setup(target: &MysqlTarget, first: Unique) -> Result<SetupReport, Fault> {
    let tables = Tables::of(target);
    let database = quote_identifier(&tables.database);
    let token = format!(
        "INSERT INTO {} (`number`, `latest`, `previous`) VALUES (1, {}, NULL) \
         ON DUPLICATE KEY UPDATE `number` = `number`",
        tables.tokens,
        number_literal(first.0)
    );
    target.make(&database, &tables.needed(), &token).await
}

/// Checks the ledger's tables on a target; each failed check is one fault. Changes nothing.
pub async fn check(target: &MysqlTarget) -> Vec<Fault> {
    let tables = Tables::of(target);
    target.check_tables(&tables.needed()).await.unwrap_or_else(|fault| vec![fault])
}
