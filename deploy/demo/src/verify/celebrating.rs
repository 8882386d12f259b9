//! Reads which users celebrate a day from the sources, and which rows of the day's tables show the coupon.

use std::collections::BTreeSet;

use anabranch_schemas::celebration::Calendar;

use super::birthdays::BirthdayLayer;
use super::sources;
use super::tables::DerivedTables as _;
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

impl BirthdayLayer {
    /// Returns the users with one of these birthdays (`MM-DD`) in the sources who celebrate by the layer's calendar.
    ///
    /// Without lunar birthdays (`has_types`) each user celebrates by the solar calendar.
    pub async fn celebrating(
        &self,
        topology: &Topology,
        birthdays: &[String],
        has_types: bool,
    ) -> Result<BTreeSet<u64>> {
        let listed = listed(birthdays);
        let select = |_: &str, source_table: SourceTable| {
            let type_is_right = match (self.calendar, has_types) {
                (Calendar::Lunar, _) => "birthday_type = 'lunar'".to_owned(),
                (Calendar::Solar, false) => "TRUE".to_owned(),
                (Calendar::Solar, true) => format!(
                    "user_id NOT IN (SELECT user_id FROM {} \
                     WHERE LOWER(TRIM(IFNULL(birthday_type, ''))) = 'lunar')",
                    source_table.quoted()
                ),
            };
            format!(
                "SELECT user_id FROM ({}) AS claims WHERE birthday IN ({listed}) AND {type_is_right}",
                self.claims(source_table)
            )
        };
        let users = sources::rows::<u64>(topology, "read who celebrates", select).await?;
        Ok(users.into_iter().collect())
    }

    /// Returns the users whose rows of these birthdays show the coupon of the year.
    pub async fn marked(&self, birthdays: &[String], year: i32) -> Result<BTreeSet<u64>> {
        let names: Vec<String> =
            birthdays.iter().map(|day| format!("{}_{}", self.name(), day.replace('-', ""))).collect();
        let mut users = BTreeSet::new();
        for (database, table) in self.tables().into_iter().filter(|(_, table)| names.contains(table)) {
            let target = &self.targets[database as usize % self.targets.len()];
            let sql = format!(
                "SELECT user_id FROM {}.{table} WHERE is_sent = 1 AND sent_occurrence = {year} \
                 AND send_time IS NOT NULL",
                self.database_name(database)
            );
            let mut connection = target.connect(&[]).await?;
            users.extend(connection.rows::<u64>("read who is marked", sql).await?);
        }
        Ok(users)
    }
}

fn listed(birthdays: &[String]) -> String {
    birthdays.iter().map(|day| format!("'{day}'")).collect::<Vec<_>>().join(", ")
}
