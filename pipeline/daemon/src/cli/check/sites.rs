//! Tables of payment documents that two sources of one region and side both have. Two servers may share the databases
//! of a region and side, and the tables of a database, but a table lies on one of them: the index would have the
//! documents of the others twice.

use std::collections::BTreeSet;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Region, Side};
use futures::future::join_all;

use crate::wiring::Wiring;

/// Tables that a fault names, at most.
const NAMES_MAX: usize = 5;

/// The captured tables of payment documents on one source.
#[derive(Debug)]
struct Listed<'s> {
    source: &'s str,
    site: (Region, Side),
    /// Database and name of each.
    tables: BTreeSet<(String, String)>,
}

/// Returns a fault for each pair of sources that have a table in common; `None` if there is no pair to compare. A
/// source that cannot be read is left out here: its own check names the fault.
pub(super) async fn shared_tables(wiring: &Wiring) -> Option<Vec<Fault>> {
    let sources = &wiring.config().sources;
    let compared = sources.iter().filter_map(|source| {
        let site = source.flux?;
        (sources.iter().filter(|other| other.flux == Some(site)).count() > 1).then_some((source, site))
    });
    let listed = compared.map(async |(source, site)| {
        let tables = match wiring.source(&source.name) {
            Ok(connector) => connector.tables().await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let documents = tables.into_iter().filter(|table| table.entity == Entity::Flux);
        let tables = documents.map(|table| (table.database.into_owned(), table.table.into_owned())).collect();
        Listed { source: &source.name, site, tables }
    });
    let listed = join_all(listed).await;
    (!listed.is_empty()).then(|| faults(&listed))
}

fn faults(listed: &[Listed<'_>]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, one) in listed.iter().enumerate() {
        for other in listed[..index].iter().filter(|other| other.site == one.site) {
            let shared: Vec<_> = one.tables.intersection(&other.tables).collect();
            if shared.is_empty() {
                continue;
            }
            let databases: BTreeSet<&str> = shared.iter().map(|(database, _)| database.as_str()).collect();
            let names: Vec<String> = shared
                .iter()
                .take(NAMES_MAX)
                .map(|(database, table)| format!("{database}.{table}"))
                .collect();
            let found = format!(
                "source {} of its region and side has {} of its tables in {} databases, too: {}",
                other.source,
                shared.len(),
                databases.len(),
                names.join(", ")
            );
            let fault = Fault::new(Code::ConfigInvalid, format!("source {}", one.source), found);
            faults.push(
                fault
                    .needs("each table of a region and side on one server")
                    .remedy("correct `flux` of one of the sources, or remove the copy of the tables"),
            );
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_two_sources_of_one_region_and_side_is_named() {
        let listed = |source, side, tables: &[(u32, u32)]| Listed {
            source,
            site: (Region::Singapore, side),
            tables: tables
                .iter()
                .map(|(database, table)| (format!("flux_00_{database}"), format!("atom_05_{table:02}")))
                .collect(),
        };
        let main = [listed("a", Side::Main, &[(0, 1), (1, 1)]), listed("b", Side::Main, &[(3, 1)])];
        assert!(faults(&main).is_empty());
        let moved = [listed("a", Side::Main, &[(0, 1)]), listed("b", Side::Main, &[(0, 2)])];
        assert!(faults(&moved).is_empty(), "a table moved to another server");
        let both = [listed("a", Side::Main, &[(0, 1)]), listed("f", Side::FailOver, &[(0, 1)])];
        assert!(faults(&both).is_empty());
        let shared = [
            listed("a", Side::Main, &[(0, 1), (1, 1), (2, 1), (2, 2)]),
            listed("b", Side::Main, &[(1, 1), (2, 1), (2, 2), (2, 3)]),
        ];
        let found = faults(&shared);
        assert_eq!(found.len(), 1);
        let text = found[0].to_string();
        let expected = "source b: source a of its region and side has 3 of its tables in 2 databases, too: \
                        flux_00_1.atom_05_01, flux_00_2.atom_05_01, flux_00_2.atom_05_02; needed: each table";
        assert!(text.contains(expected), "{text}");
    }
}
