//! Databases of payment documents that two sources of one region and side both have. Two servers may share the
//! databases of a region and side, but a document lies on one of them: the index would have the others twice.

use std::collections::BTreeSet;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Region, Side};
use futures::future::join_all;

use crate::wiring::Wiring;

/// Databases that a fault names, at most.
const NAMES_MAX: usize = 5;

/// The databases with captured tables of payment documents on one source.
#[derive(Debug)]
struct Listed<'s> {
    source: &'s str,
    site: (Region, Side),
    databases: BTreeSet<String>,
}

/// Returns a fault for each pair of sources that have a database in common; `None` if there is no pair to compare. A
/// source that cannot be read is left out here: its own check names the fault.
pub(super) async fn shared_databases(wiring: &Wiring) -> Option<Vec<Fault>> {
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
        let databases = documents.map(|table| table.database.into_owned()).collect();
        Listed { source: &source.name, site, databases }
    });
    let listed = join_all(listed).await;
    (!listed.is_empty()).then(|| faults(&listed))
}

fn faults(listed: &[Listed<'_>]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, one) in listed.iter().enumerate() {
        for other in listed[..index].iter().filter(|other| other.site == one.site) {
            let shared: Vec<&str> =
                one.databases.intersection(&other.databases).map(String::as_str).collect();
            if shared.is_empty() {
                continue;
            }
            let names = shared[..shared.len().min(NAMES_MAX)].join(", ");
            let found = format!(
                "source {} of its region and side has {} of its databases, too: {names}",
                other.source,
                shared.len()
            );
            let fault = Fault::new(Code::ConfigInvalid, format!("source {}", one.source), found);
            faults.push(
                fault
                    .needs("each database of a region and side on one server")
                    .remedy("correct `flux` of one of the sources, or remove the copy of the databases"),
            );
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_two_sources_of_one_region_and_side_is_named() {
        let listed = |source, side, databases: &[u32]| Listed {
            source,
            site: (Region::Singapore, side),
            databases: databases.iter().map(|database| format!("flux_00_{database}")).collect(),
        };
        let main = [listed("a", Side::Main, &[0, 1, 2]), listed("b", Side::Main, &[3, 4])];
        assert!(faults(&main).is_empty());
        let both = [listed("a", Side::Main, &[0, 1]), listed("f", Side::FailOver, &[0, 1])];
        assert!(faults(&both).is_empty());
        let shared = [listed("a", Side::Main, &[0, 1, 2]), listed("b", Side::Main, &[1, 2, 3])];
        let found = faults(&shared);
        assert_eq!(found.len(), 1);
        let text = found[0].to_string();
        let expected = "source b: source a of its region and side has 2 of its databases, too: flux_00_1, flux_00_2; \
                        needed: each database";
        assert!(text.contains(expected), "{text}");
    }
}
