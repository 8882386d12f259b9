//! `check`: the pre-flight of everything, without changing anything.
//!
//! Every fault is reported, not just the first; a server that cannot be reached does not hinder the other checks.

mod sites;

use anabranch_pipeline::config::{Config, EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{RowSource, SourceConnector};
use clap::Args;
use futures::future::join_all;
use serde::Serialize;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::logging::LogFormat;
use crate::output::{self, FaultView};
use crate::reconciliations;
use crate::wiring::{SpillRoom, Wiring};

/// Check the configuration, every source, the log and every target; changes nothing
#[derive(Debug, Args)]
pub struct Arguments {
    /// Check the configuration file alone, without any network
    #[arg(long)]
    offline: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// A checked thing with its faults and warnings.
#[derive(Debug)]
struct Checked {
    /// Name of the thing, such as `source source-a`, `log` or `target main`.
    thing: String,
    faults: Vec<Fault>,
    /// Facts that are no faults and yet matter, each in a sentence that names its thing.
    warnings: Vec<String>,
}

impl Checked {
    fn of(thing: impl Into<String>, faults: Vec<Fault>) -> Self {
        Self { thing: thing.into(), faults, warnings: Vec::new() }
    }
}

/// The number of an entity's tables, and of those that its rule can put a row into.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reach {
    entity: &'static str,
    tables: u64,
    reachable: u64,
}

/// The folder that reads spill into.
#[derive(Debug, Serialize)]
struct SpillView {
    folder: String,
    free_bytes: u64,
    #[serde(skip)]
    free: String,
}

#[derive(Debug, Serialize)]
struct ReportView<'r> {
    exit_code: u8,
    offline: bool,
    checked: Vec<&'r str>,
    faults: Vec<FaultView<'r>>,
    warnings: &'r [String],
    rules: &'r [Reach],
    spill: Option<&'r SpillView>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let report = report(cli, arguments.offline)?;
    if arguments.json {
        _ = output::line(&report.json());
    } else {
        report.print_text(cli.log_format)
    }
    Ok(Exit::worst(report.faults()))
}

/// Checks everything, with servers unless it is `offline`.
pub(super) fn report(cli: &Cli, offline: bool) -> Result<Report, Vec<Fault>> {
    let mut report = Report { offline, ..Report::default() };
    match cli.configuration() {
        Ok(config) => {
            let faults = unreadable_files(&config);
            report.checked.push(Checked::of("configuration", faults));
            report.add_spill(&config);
            report.warnings.extend(config.plain_connections());
            report.add_rules(&config);
            report.warnings.extend(unsigned(&config));
            if !offline {
                let wiring = Wiring::new(config);
                let checked = block_on(check_servers(&wiring))?;
                report.warnings.extend(checked.iter().flat_map(|checked| checked.warnings.clone()));
                report.checked.extend(checked);
            }
        }
        Err(faults) => report.checked.push(Checked::of("configuration", faults)),
    }
    Ok(report)
}

/// Returns a warning if the history of reconciliations is not signed.
fn unsigned(config: &Config) -> Option<String> {
    let warning = "reconcile.signing_key is not set: a changed history of reconciliations may look whole, and the key \
                   of a row is found by trying from its hash in logs and reports; needed: 16 or more bytes \
                   (openssl rand -hex 32)";
    config.reconcile.signing_key.is_none().then(|| warning.to_owned())
}

/// Returns a fault for each file that the configuration names and that cannot be opened.
fn unreadable_files(config: &Config) -> Vec<Fault> {
    let log = ("log.ca_file".to_owned(), &config.log.ca_file);
    let sources =
        config.sources.iter().map(|source| (format!("ca_file of source {}", source.name), &source.ca_file));
    let targets =
        config.targets.iter().map(|target| (format!("ca_file of target {}", target.name), &target.ca_file));
    let caches =
        config.caches.iter().map(|cache| (format!("ca_file of cache {}", cache.name), &cache.ca_file));
    let replicas = config.sources.iter().filter_map(|source| {
        let (_, ca_file) = source.replica.as_ref()?;
        Some((format!("replica_ca_file of source {}", source.name), ca_file))
    });
    let system =
        config.coupon_system.iter().map(|known| ("coupon_system.ca_file".to_owned(), &known.ca_file));
    let sequence =
        config.flux_identifiers().into_iter().map(|flux| ("flux.sequence_ca_file".to_owned(), &flux.ca_file));
    let named = [log].into_iter().chain(system).chain(sources).chain(replicas).chain(targets).chain(caches);
    let named = named.chain(sequence);
    let unreadable = named.filter_map(|(key, file)| {
        let file = file.as_ref()?;
        let error = std::fs::File::open(file).err()?;
        let found = format!("{} cannot be read", file.display());
        let fault = Fault::new(Code::ConfigInvalid, format!("configuration key {key}"), found);
        Some(fault.needs("a readable PEM file with the CA certificate").caused_by(error))
    });
    unreadable.collect()
}

/// Checks every server, all at once: one that does not answer costs its own time-out only.
async fn check_servers(wiring: &Wiring) -> Vec<Checked> {
    let sources = wiring.config().sources.iter().map(async |source| Checked {
        thing: format!("source {}", source.name),
        faults: wiring.check_source(&source.name).await,
        warnings: wiring.source_warnings(&source.name).await,
    });
    let replicas = wiring.config().sources.iter().filter(|source| source.replica.is_some());
    let replicas = replicas.map(|source| check_replica(wiring.config(), source));
    let log = async { Checked::of("log", wiring.check_log().await) };
    let targets = wiring
        .targets()
        .map(async |target| Checked::of(format!("target {target}"), wiring.check_target(target).await));
    let caches = wiring.config().caches.iter().map(async |cache| {
        Checked::of(format!("cache {}", cache.name), wiring.check_cache(&cache.name).await)
    });
    let coupons = async {
        let has_coupons = wiring.config().coupon_system.is_some();
        if has_coupons { Some(Checked::of("coupons", wiring.check_coupons().await)) } else { None }
    };
    let flux = async {
        wiring.config().flux_identifiers()?;
        Some(Checked::of("counters of flux.sequence_url", wiring.check_flux().await))
    };
    let sites = async {
        let faults = sites::shared_tables(wiring).await?;
        Some(Checked::of("tables of payment documents", faults))
    };
    let (mut checked, replicas, log, targets, caches, coupons, flux, sites) = tokio::join!(
        join_all(sources),
        join_all(replicas),
        log,
        join_all(targets),
        join_all(caches),
        coupons,
        flux,
        sites
    );
    checked.extend(replicas);
    checked.push(log);
    checked.extend(targets);
    checked.extend(caches);
    checked.extend(coupons);
    checked.extend(flux);
    checked.extend(sites);
    checked
}

/// Checks the abilities that a reconciliation needs of a replica: its captured tables, its load and its lag.
async fn check_replica(config: &Config, source: &SourceConfig) -> Checked {
    let thing = format!("replica of source {}", source.name);
    let replica = reconciliations::whole_tables(config, source);
    let mut checked = Checked::of(thing, Vec::new());
    let pressure = match replica.shards().await {
        Ok(_) => replica.pressure().await,
        Err(fault) => Err(fault),
    };
    match pressure {
        Err(fault) => {
            let reported = Fault::new(fault.code(), &*checked.thing, "a reconciliation cannot read it");
            checked.faults.push(reported.caused_by(fault));
        }
        Ok(pressure) => checked.warnings.extend(pressure.lag_unknown.map(|why| {
            format!(
                "{}: its lag cannot be read, so a reconciliation does not wait for it: {why}",
                checked.thing
            )
        })),
    }
    checked
}

/// The results of all checks.
#[derive(Debug, Default)]
pub(super) struct Report {
    offline: bool,
    checked: Vec<Checked>,
    warnings: Vec<String>,
    rules: Vec<Reach>,
    spill: Option<SpillView>,
}

impl Report {
    fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.checked.iter().flat_map(|checked| &checked.faults)
    }

    fn add_spill(&mut self, config: &Config) {
        match SpillRoom::of(&config.spill_dir) {
            Ok(room) => {
                self.warnings.extend(room.warnings(&config.spill_dir));
                let folder = config.spill_dir.display().to_string();
                self.spill = Some(SpillView { folder, free_bytes: room.free_bytes, free: room.free() });
            }
            Err(fault) => self.checked.push(Checked::of("folder for temporary files", vec![fault])),
        }
    }

    fn add_rules(&mut self, config: &Config) {
        for reach in config.entities.iter().filter_map(reach) {
            if reach.reachable < reach.tables {
                self.warnings.push(format!(
                    "entity {}: its rule reaches only {} of {} tables, because the numbers of databases and tables have \
                     a common divisor; needed: spread = \"spread\", or two numbers without a common divisor (or an \
                     application that really works so)",
                    reach.entity, reach.reachable, reach.tables
                ));
            }
            self.rules.push(reach);
        }
    }

    fn print_text(&self, format: LogFormat) {
        for checked in &self.checked {
            match checked.faults.as_slice() {
                [] => _ = output::line(&format!("ok {}", checked.thing)),
                faults => output::faults(format, faults),
            }
        }
        if let Some(SpillView { folder, free, .. }) = &self.spill {
            _ = output::line(&format!("ok folder for temporary files: {folder}, {free} free"));
        }
        for reach in &self.rules {
            let Reach { entity, tables, reachable } = reach;
            _ = output::line(&format!("entity {entity}: the rule reaches {reachable} of {tables} tables"));
        }
        for warning in &self.warnings {
            output::warning(format, warning);
        }
    }

    /// Returns the report as one JSON object.
    pub(super) fn json(&self) -> String {
        let view = ReportView {
            exit_code: Exit::worst(self.faults()).number(),
            offline: self.offline,
            checked: self.checked.iter().map(|checked| checked.thing.as_str()).collect(),
            faults: self.faults().map(FaultView::from).collect(),
            warnings: &self.warnings,
            rules: &self.rules,
            spill: self.spill.as_ref(),
        };
        output::json(&view)
    }
}

fn reach(entity: &EntityConfig) -> Option<Reach> {
    let rule = entity.rule?;
    Some(Reach {
        entity: entity.entity.name(),
        tables: u64::from(rule.databases) * u64::from(rule.tables),
        reachable: rule.reachable_tables(),
    })
}
