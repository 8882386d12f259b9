//! Whether what a projection writes would be captured again: then each of its changes would make further ones.

use super::{Assignments, ProjectedTable};
use crate::config::{Config, TargetConfig};
use crate::error::{Code, Fault};

/// A fault for each target whose derived tables a source on the same server captures.
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

/// Whether some derived table of the target lies inside a captured pattern.
fn captures_derived_tables(config: &Config, target: &TargetConfig) -> bool {
    let is_captured = |table: &ProjectedTable| {
        let (database, table) = (&table.derived.database, &table.derived.table);
        config.entities.iter().any(|entity| entity.tables.matches(database, table).is_some())
    };
    Assignments::of(config, &target.name).iter().any(|assignment| assignment.tables().any(is_captured))
}
