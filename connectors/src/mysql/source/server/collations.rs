//! A server's own list of collations: a table map gives a collation by a number that only this list explains.

use anabranch_pipeline::error::Fault;

use super::session::{Session, Version, column_text};
use crate::mysql::source::decode::character_sets::Collations;
use crate::mysql::source::decode::gtid::Flavor;

/// First MariaDB version in which some collations have no number in `COLLATIONS`; earlier ones list all there.
const MARIADB_WITH_CONTEXTUAL: (u32, u32, u32) = (10, 10, 0);

impl Session {
    /// Asks the server for its list.
    pub async fn collations(&mut self) -> Result<Collations, Fault> {
        let rows = self.rows(query(self.version)).await?;
        Ok(rows
            .iter()
            .filter_map(|row| Some((column_text(row, 0)?.parse().ok()?, column_text(row, 1)?)))
            .collect())
    }
}

fn query(version: Version) -> String {
    let table = match version.flavor {
        Flavor::MariaDb if version.number >= MARIADB_WITH_CONTEXTUAL => {
            "COLLATION_CHARACTER_SET_APPLICABILITY"
        }
        Flavor::MariaDb | Flavor::MySql => "COLLATIONS",
    };
    format!("SELECT ID, LOWER(CHARACTER_SET_NAME) FROM information_schema.{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_for_the_list_that_has_a_number_for_every_collation() {
        for (version, table) in [
            ("10.6.20-MariaDB", "information_schema.COLLATIONS"),
            ("10.9.8-MariaDB", "information_schema.COLLATIONS"),
            ("10.11.19-MariaDB-log", "COLLATION_CHARACTER_SET_APPLICABILITY"),
            ("11.8.9-MariaDB", "COLLATION_CHARACTER_SET_APPLICABILITY"),
            ("8.4.3", "information_schema.COLLATIONS"),
        ] {
            assert!(query(Version::parse(version)).ends_with(table), "{version}");
        }
    }
}
