//! Checks that the configuration puts derived tables only where they may be.
//!
//! No source may capture the rows that a projection writes: each change would make further ones. No two projections may
//! write one table: each would sweep away the rows of the other.

use std::collections::HashMap;

use super::{Assignments, ProjectedTable};
use crate::config::{Config, TargetConfig, TargetStore};
use crate::error::{Code, Fault};

/// Returns a fault for each target whose derived tables a source on the same server captures.
pub fn captured_targets(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    for source in &config.sources {
        for target in &config.targets {
            if source.url.address() == target.url.address() && captures_derived_tables(config, target) {
                faults.push(
                    Fault::new(
                        Code::TargetIsSource,
                        format!("target {}", target.name),
                        format!("its databases are captured by source {} on the same server", source.name),
                    )
                    .needs("derived tables outside every captured pattern"),
                );
            }
        }
    }
    faults
}

/// Returns a fault for each two projections that have a derived table in common.
pub fn shared_tables(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    for target in config.targets.iter().filter(|target| target.store == TargetStore::Mysql) {
        let assignments = Assignments::of(config, &target.name);
        let mut owners: HashMap<(&str, &str), &str> = HashMap::new();
        for assignment in assignments.iter() {
            let names = assignment.tables().map(|table| (&*table.derived.database, &*table.derived.table));
            let other =
                names.filter_map(|name| owners.insert(name, &assignment.name).map(|owner| (name, owner)));
            let other = other.filter(|(_, owner)| *owner != assignment.name).last();
            if let Some(((database, table), owner)) = other {
                let found = format!("`{owner}` and `{}` both have {database}.{table}", assignment.name);
                faults.push(
                    Fault::new(Code::ConfigInvalid, "configuration key projections.table".to_owned(), found)
                        .needs("tables that no other projection of the target has"),
                );
            }
        }
    }
    faults
}

/// Returns whether a captured pattern covers a derived table of the target.
fn captures_derived_tables(config: &Config, target: &TargetConfig) -> bool {
    let is_captured = |table: &ProjectedTable| {
        let (database, table) = (&table.derived.database, &table.derived.table);
        config.entities.iter().any(|entity| entity.tables.matches(database, table).is_some())
    };
    Assignments::of(config, &target.name).iter().any(|assignment| assignment.tables().any(is_captured))
}
