//! DDL of source, derived and control tables, as text with placeholders.
//!
//! Each file holds one statement with one column a line: set-up executes it, and checks read the needed columns from
//! it, so that both mean the same table. `{table}` stands for the quoted name; the source table has placeholders of its
//! own, which its file explains.

/// One table of the birthday layer.
pub const BIRTHDAY: &str = include_str!("sql/birthday.sql");
/// One table of the lunar birthday layer.
pub const LUNAR_BIRTHDAY: &str = include_str!("sql/lunar_birthday.sql");
/// One table of the mapping layer.
pub const MAPPING: &str = include_str!("sql/mapping.sql");
/// One table of the relation index.
pub const FLUX_RELATION: &str = include_str!("sql/flux_relation.sql");
/// Progress of lanes.
pub const PROGRESS: &str = include_str!("sql/progress.sql");
/// Codes to be removed from the cache.
pub const OUTBOX: &str = include_str!("sql/outbox.sql");
/// State of caches.
pub const CACHE: &str = include_str!("sql/cache.sql");
/// Sources whose progress rows were made once.
pub const ENROLLED: &str = include_str!("sql/enrolled.sql");
/// Source tables that left by a retention rule.
pub const RETIRED: &str = include_str!("sql/retired.sql");
/// History of reconciliations.
pub const RECONCILIATIONS: &str = include_str!("sql/reconciliations.sql");
/// Operations of people.
pub const OPERATIONS: &str = include_str!("sql/operations.sql");
/// Reports of coupon days.
pub const COUPON_REPORTS: &str = include_str!("sql/coupon_reports.sql");
/// Coupon programmes.
pub const COUPON_PROGRAMME: &str = include_str!("sql/coupon_programme.sql");
/// Days of coupon programmes.
pub const COUPON_RUN: &str = include_str!("sql/coupon_run.sql");
/// Cohorts of these days.
pub const COUPON_MEMBER: &str = include_str!("sql/coupon_member.sql");
/// One table of the coupon ledger.
pub const COUPON_LEDGER: &str = include_str!("sql/coupon_ledger.sql");
/// One table of refused days.
pub const COUPON_REFUSAL: &str = include_str!("sql/coupon_refusal.sql");
/// Dead letters of the coupon ledger.
pub const COUPON_LETTER: &str = include_str!("sql/coupon_letter.sql");
/// The tokens of the coupon ledger.
pub const COUPON_TOKEN: &str = include_str!("sql/coupon_token.sql");
/// Counters of payment documents of one user partition.
pub const FLUX_SEQUENCE: &str = include_str!("sql/flux_sequence.sql");
/// Request keys of payment documents.
pub const FLUX_REQUEST: &str = include_str!("sql/flux_request.sql");

/// One source table of the main layer, with the placeholders `{database}`, `{table}` and `{birthday_type}`.
pub const USER: &str = include_str!("sql/user.sql");

/// One source table of the inventory's serial codes, with the placeholders `{database}`, `{table}` and `{uuid_type}`.
pub const SERIAL_CODE: &str = include_str!("sql/serial_code.sql");

/// One source table of payment documents, with the placeholders `{database}` and `{table}`.
pub const FLUX: &str = include_str!("sql/flux.sql");

/// Returns the `CREATE TABLE IF NOT EXISTS` of one table of payment documents. The names must not hold a backtick.
pub fn flux_table(database: &str, table: &str) -> String {
    FLUX.replace("{database}", database).replace("{table}", table)
}

/// Returns the `CREATE TABLE IF NOT EXISTS` of one shard of the serial codes. The names must not hold a backtick.
pub fn serial_code_table(database: &str, table: &str, uuid_type: &str) -> String {
    SERIAL_CODE.replace("{database}", database).replace("{table}", table).replace("{uuid_type}", uuid_type)
}

/// Returns the `CREATE TABLE IF NOT EXISTS` of one shard of the main layer. The names must not hold a backtick.
pub fn user_table(database: &str, table: &str, birthday_type: &str) -> String {
    USER.replace("{database}", database).replace("{table}", table).replace("{birthday_type}", birthday_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_a_source_table_is_filled() {
        let sql = user_table("user_07", "user_042", "DATETIME(6)");
        let statement = &sql[sql.find("CREATE").unwrap()..];
        assert!(statement.starts_with("CREATE TABLE IF NOT EXISTS `user_07`.`user_042`"), "{statement}");
        assert!(statement.contains("DATETIME(6) NULL") && !statement.contains('{'), "{statement}");
        let sql = serial_code_table("inventory_3", "serial_code_17", "VARCHAR(64)");
        let statement = &sql[sql.find("CREATE").unwrap()..];
        assert!(
            statement.starts_with("CREATE TABLE IF NOT EXISTS `inventory_3`.`serial_code_17`"),
            "{statement}"
        );
        assert!(statement.contains("VARCHAR(64) NOT NULL") && !statement.contains('{'), "{statement}");
        let sql = flux_table("flux_00_0", "atom_05_01");
        let statement = &sql[sql.find("CREATE").unwrap()..];
        assert!(statement.starts_with("CREATE TABLE IF NOT EXISTS `flux_00_0`.`atom_05_01`"), "{statement}");
        assert!(!statement.contains('{'), "{statement}");
    }
}
