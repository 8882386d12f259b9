//! Payment documents beside the users of an installation: their tables on each source, and set-up with their sections.

use anabranch_schemas::sql::flux_table;
use anabranch_tests::Installation;

/// Makes these tables in the database of the user partitions 00 to 09, on each source.
pub async fn create_tables(installation: &Installation<'_>, tables: &[&str]) {
    let tables: Vec<String> = tables.iter().map(|table| flux_table("flux_00_0", table)).collect();
    let sql = format!("CREATE DATABASE IF NOT EXISTS flux_00_0; {}", tables.join(";"));
    for source in &installation.configuration.sources {
        installation.execute(source, &sql).await;
    }
}

/// Writes the configuration file and sets all up.
pub async fn set_up(installation: &mut Installation<'_>, text: &str) {
    installation.write_configuration_text(text);
    installation.command(&["setup"]).await.expect_success();
}
