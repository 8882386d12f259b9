//! The plan of a run: its servers, and the derived stores with their sources.

use std::time::Duration;

use anabranch_demo::verify::{
    BirthdayLayer, CacheLayer, DocumentLayer, Layer, MappingLayer, RelationLayer, Verification,
};
use anabranch_demo::{Endpoint, JsonClient, RedisServer, Result, Topology};
use anabranch_schemas::celebration::Calendar;
use anabranch_stack::{Options, ServerSpec, Stack};

use super::arguments::{Arguments, MariaDb};

/// Name of streams, buckets and keys in the configuration.
pub(super) const NAME: &str = "demo";
/// The source with the fail-over databases of payment documents.
const FAIL_OVER: &str = "source-f";
/// Life of a cached set: a year, or five minutes for a set without claims.
const TIME_TO_LIVE: (Duration, Duration) = (Duration::from_secs(365 * 24 * 3600), Duration::from_secs(300));

/// Returns the servers that the run needs.
pub(super) fn servers(arguments: &Arguments) -> Options {
    let mut options = match (arguments.mysql, arguments.mariadb) {
        (true, _) => Options::mysql(),
        (false, Some(MariaDb::Eleven)) => Options::mariadb_11(),
        (false, None) => Options::standard(),
    };
    if arguments.devices > 0 {
        options = options.with(ServerSpec::redis("redis"));
        if !arguments.without_search {
            options = options.with(ServerSpec::search("search"));
        }
    }
    if arguments.flux > 0 {
        options = options.with(match (arguments.mysql, arguments.mariadb) {
            (true, _) => ServerSpec::mysql_source(FAIL_OVER),
            (false, Some(MariaDb::Eleven)) => ServerSpec::mariadb_11_source(FAIL_OVER),
            (false, None) => ServerSpec::mariadb_source(FAIL_OVER),
        });
    }
    options
}

/// Returns the audits: users first, whose lag is measured, then devices, then payment documents.
pub(super) fn audits(arguments: &Arguments, stack: &Stack) -> Result<Vec<Verification>> {
    let sources = vec![Endpoint::admin(stack, "source-a")?, Endpoint::admin(stack, "source-b")?];
    let targets = vec![Endpoint::admin(stack, "target")?];
    let (layout, databases) = (arguments.derived_layout(), arguments.databases);
    let calendars = if arguments.lunar { &Calendar::ALL[..] } else { &[Calendar::Solar] };
    let birthdays = |calendar: &Calendar| Verification {
        topology: Topology::standard(sources.clone(), arguments.spread(), arguments.name_hash()),
        layer: Layer::Birthday(BirthdayLayer {
            calendar: *calendar,
            layout,
            databases,
            targets: targets.clone(),
        }),
    };
    let mut audits: Vec<Verification> = calendars.iter().map(birthdays).collect();
    if arguments.devices > 0 {
        audits.extend(serial_audits(arguments, stack, sources.clone(), targets.clone())?);
    }
    if arguments.flux > 0 {
        let sources = [sources, vec![Endpoint::admin(stack, FAIL_OVER)?]].concat();
        let partitions = arguments.flux_partitions;
        let layer = Layer::Relations(RelationLayer { partitions, targets });
        audits.push(Verification { topology: Topology::flux(sources, partitions), layer });
    }
    Ok(audits)
}

/// Returns the audits of devices: mapping tables, their cache, documents.
fn serial_audits(
    arguments: &Arguments,
    stack: &Stack,
    sources: Vec<Endpoint>,
    targets: Vec<Endpoint>,
) -> Result<Vec<Verification>> {
    let topology = Topology::serials(sources, arguments.serial_tables);
    let mapping = MappingLayer { tables: arguments.mapping_tables, targets };
    let mut layers = vec![
        Layer::Mapping(mapping.clone()),
        Layer::Cache(CacheLayer {
            mapping,
            server: RedisServer::admin(stack, "redis")?,
            prefix: format!("{NAME}:mapping"),
            time_to_live: TIME_TO_LIVE,
        }),
    ];
    if !arguments.without_search {
        let server = JsonClient::search_admin(stack, "search")?;
        layers.push(Layer::Documents(DocumentLayer { server, index: "serials".to_owned() }));
    }
    Ok(layers.into_iter().map(|layer| Verification { topology: topology.clone(), layer }).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_database_that_was_asked_for_is_started() {
        let started = |line: &[&str]| {
            let arguments = Arguments::try_parse_from(["demo"].iter().chain(line)).unwrap();
            servers(&arguments).servers.into_iter().take(3).collect::<Vec<_>>()
        };
        assert_eq!(started(&["--mariadb", "11"]), Options::mariadb_11().servers[..3]);
        assert_eq!(started(&["--mysql"]), Options::mysql().servers[..3]);
        assert_eq!(started(&[]), Options::standard().servers[..3]);
        assert!(started(&["--mariadb", "11"]) != started(&[]), "they are not the same servers");
        let with_flux = Arguments::parse_from(["demo", "--mysql", "--flux", "5"]);
        assert_eq!(servers(&with_flux).servers.last(), Some(&ServerSpec::mysql_source(FAIL_OVER)));
        Arguments::try_parse_from(["demo", "--mysql", "--mariadb", "11"]).expect_err("one of both");
        Arguments::try_parse_from(["demo", "--mariadb", "9"]).expect_err("a version that is not had");
    }
}
