//! Writes the daemon's configuration file for a stack as a user would write it.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::Region;
use anabranch_schemas::shard::{NameHash, Spread};
use anabranch_stack::Stack;

use crate::endpoint::Endpoint;
use crate::error::{DemoError, Result};
use crate::topology::{FLUX_KINDS, FLUX_REGION, FLUX_TABLES, SERIAL_TABLES, Topology, USER_TABLES};
use crate::verify::{CacheLayer, DerivedLayout, Layer, Verification, topologies};

/// Contents of the file besides addresses and passwords, which come from the stack.
#[derive(Debug, Clone)]
pub struct DaemonConfiguration {
    /// Prefix of streams and buckets.
    pub name: String,
    /// Names of servers in the stack; targets are those for tables.
    pub sources: Vec<String>,
    pub targets: Vec<String>,
    pub log: String,
    /// The derived layers and their sources.
    pub audits: Vec<Verification>,
    /// Lanes of each projection.
    pub lanes: u32,
    /// 0 = any free port.
    pub http_port: u16,
    /// Tokens that applications send to the API; without any the API is closed.
    pub tokens: Vec<String>,
    /// Lines of the `[limits]` table, such as `position_interval_ms = 500`.
    pub limits: Vec<String>,
    /// Sections after all others.
    pub further: String,
}

impl DaemonConfiguration {
    /// Configures the standard stack: two sources, one target, two lanes.
    pub fn standard(audits: Vec<Verification>) -> Self {
        Self {
            name: "demo".to_owned(),
            sources: vec!["source-a".to_owned(), "source-b".to_owned()],
            targets: vec!["target".to_owned()],
            log: "nats".to_owned(),
            audits,
            lanes: 2,
            http_port: 0,
            tokens: Vec::new(),
            // A quiet source reports its end soon, so that draining is quick.
            limits: vec!["position_interval_ms = 500".to_owned()],
            further: String::new(),
        }
    }

    /// Returns the text of the file. It holds passwords.
    pub fn text(&self, stack: &Stack) -> Result<String> {
        let ca_file = stack.ca_file();
        let ca_file = ca_file.display();
        let mut text = format!(
            "# Made by the demo. Passwords stand here in clear text; the file is readable by its owner only.\n\
             name = \"{}\"\n\n[log]\nurl = \"{}\"\nca_file = \"{ca_file}\"\n\
             # All streams together must fit the 10 GB that the stack's NATS may use.\nmax_bytes = 1073741824\n\n[http]\nlisten = \"127.0.0.1:{}\"\n{}\n\
             [limits]\n{}\n",
            self.name,
            stack.server(&self.log)?.url(),
            self.http_port,
            match self.tokens.is_empty() {
                true => String::new(),
                false => format!("tokens = {:?}\n", self.tokens),
            },
            self.limits.join("\n"),
        );
        for topology in topologies(&self.audits) {
            let is_lunar = |audit: &Verification| matches!(&audit.layer, Layer::Birthday(layer) if layer.calendar == Calendar::Lunar);
            text.push_str(&entities(topology, self.audits.iter().any(is_lunar)));
        }
        let mut targets = self.targets.clone();
        targets.extend(self.audits.iter().filter_map(|audit| match &audit.layer {
            Layer::Documents(layer) => Some(layer.server.name.clone()),
            _ => None,
        }));
        let sources = self.all_sources();
        for (heading, names) in [("sources", &sources), ("targets", &targets)] {
            for name in names {
                let url = stack.server(name)?.url();
                write!(
                    text,
                    "\n[[{heading}]]\nname = \"{name}\"\nurl = \"{url}\"\nca_file = \"{ca_file}\"\n"
                )
                .expect("writing to a String cannot fail");
                if let Some(setup) = stack.server(name)?.setup_url() {
                    writeln!(text, "setup_url = \"{setup}\"").expect("writing to a String cannot fail");
                }
                if heading == "sources" {
                    // The stack keeps its binlogs until it ends.
                    text.push_str("retention_min_seconds = 0\n");
                    text.push_str(&self.flux_of_source(name));
                }
            }
        }
        for audit in &self.audits {
            match &audit.layer {
                Layer::Cache(layer) => {
                    let url = stack.server(&layer.server.name)?.url();
                    text.push_str(&cache(layer, &url, &ca_file));
                }
                _ => text.push_str(&self.projection(audit)),
            }
        }
        if self.flux().is_some() {
            text.push_str(&kinds());
        }
        text.push_str(&self.further);
        Ok(text)
    }

    /// Returns the topology of payment documents.
    fn flux(&self) -> Option<&Topology> {
        topologies(&self.audits).into_iter().find(|topology| topology.entity == Entity::Flux)
    }

    /// Returns `sources`, and the source of fail-over databases unless it is one of them.
    fn all_sources(&self) -> Vec<String> {
        let mut sources = self.sources.clone();
        let further = self.flux().into_iter().flat_map(|topology| names(&topology.sources));
        sources.extend(further.filter(|name| !self.sources.contains(name)));
        sources
    }

    /// Returns the lines that declare the region and side of a source with payment documents.
    fn flux_of_source(&self, name: &str) -> String {
        let Some(flux) = self.flux() else { return String::new() };
        let Some(index) = flux.sources.iter().position(|source| source.name == name) else {
            return String::new();
        };
        let is_fail_over = index + 1 == flux.sources.len();
        let region = match FLUX_REGION {
            Region::UnitedStates => "us",
            Region::Singapore => "singapore",
        };
        let side = if is_fail_over { "fail_over" } else { "main" };
        let mut text = format!("flux = {{ region = \"{region}\", side = \"{side}\" }}\n");
        if !self.sources.iter().any(|source| source == name) {
            text.push_str("entities = [\"flux\"]\n");
        }
        text
    }

    fn projection(&self, audit: &Verification) -> String {
        let (targets, tables) = match &audit.layer {
            Layer::Birthday(layer) => {
                let layout = match layer.layout {
                    DerivedLayout::ByDay => "by_day",
                    DerivedLayout::ByUser => "by_user",
                };
                let (databases, name) = (layer.databases, layer.name());
                let calendar = match layer.calendar {
                    Calendar::Solar => "",
                    Calendar::Lunar => "calendar = \"lunar\"\n",
                };
                let tables = format!(
                    "kind = \"birthday\"\n{calendar}layout = \"{layout}\"\ndatabases = {databases}\n\
                     database = \"birthday_{{db:02}}\"\ntable = \"{name}_{{mmdd}}\"\n"
                );
                (names(&layer.targets), tables)
            }
            Layer::Mapping(layer) => {
                let tables = format!(
                    "kind = \"serial_mapping\"\ntables = {}\n\
                     database = \"serial_code_{{length}}\"\ntable = \"mapping_{{table:03}}\"\n",
                    layer.tables
                );
                (names(&layer.targets), tables)
            }
            Layer::Documents(layer) => {
                let index = format!("kind = \"serial_documents\"\nindex = \"{}\"\n", layer.index);
                (vec![layer.server.name.clone()], index)
            }
            Layer::Relations(layer) => {
                let tables = "kind = \"flux_relations\"\ndatabase = \"flux_relations\"\n\
                     table = \"flux_relation_{partition:02}\"\n";
                (names(&layer.targets), tables.to_owned())
            }
            Layer::Cache(_) => return String::new(),
        };
        let (name, lanes) = (audit.name(), self.lanes);
        format!("\n[[projections]]\nname = \"{name}\"\ntargets = {targets:?}\nlanes = {lanes}\n{tables}")
    }

    /// Writes the file into the stack's folder, readable by its owner only.
    pub fn write(&self, stack: &Stack) -> Result<PathBuf> {
        let path = stack.folder().join(format!("{}.toml", self.name));
        let text = self.text(stack)?;
        write_private(&path, &text)?;
        Ok(path)
    }
}

fn names(endpoints: &[Endpoint]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.name.clone()).collect()
}

/// Returns the section of the cache of the mapping tables.
fn cache(layer: &CacheLayer, url: &str, ca_file: &impl fmt::Display) -> String {
    let (name, (full, empty)) = (&layer.server.name, layer.time_to_live);
    format!(
        "\n[[caches]]\nname = \"{name}\"\nurl = \"{url}\"\nca_file = \"{ca_file}\"\nprojection = \"mapping\"\n\
         time_to_live_seconds = {}\nempty_time_to_live_seconds = {}\n",
        full.as_secs(),
        empty.as_secs()
    )
}

/// Returns the section of an entity's tables; the rule places keys in those of the first pattern.
fn entities(topology: &Topology, is_lunar: bool) -> String {
    if topology.entity == Entity::Flux {
        return documents();
    }
    let rule = &topology.rule;
    let (hash, spread) = (hash_name(rule.hash), spread_name(rule.spread));
    let (databases, tables) = (rule.databases, rule.tables);
    let patterns: &[&str] = match topology.entity {
        Entity::User => &[USER_TABLES],
        Entity::SerialCode => &SERIAL_TABLES,
        Entity::Flux => &[],
    };
    let mut text = String::new();
    for (number, pattern) in patterns.iter().enumerate() {
        let entity = topology.entity.name();
        write!(text, "\n[[entities]]\nentity = \"{entity}\"\ntables = \"{pattern}\"\n")
            .expect("writing to a String cannot fail");
        if number == 0 {
            writeln!(
                text,
                "rule = {{ hash = \"{hash}\", spread = \"{spread}\", databases = {databases}, tables = {tables} }}"
            )
            .expect("writing to a String cannot fail");
        }
        if topology.entity == Entity::User {
            text.push_str("sharding_column = \"user_name\"\n");
            if is_lunar {
                text.push_str(
                    "columns = { lunar_birthday = \"lunar_birthday\", birthday_type = \"birthday_type\" }\n",
                );
            }
        }
    }
    text
}

/// Returns the sections of payment documents, whose place follows from their digits and from no rule.
fn documents() -> String {
    // Only fields that are named are captured beside the identifiers.
    const COLUMNS: &str = "columns = { amount = \"amount\", created = \"created\" }";
    let section = |(pattern, level): (&str, &str)| {
        format!("\n[[entities]]\nentity = \"flux\"\nlevel = \"{level}\"\ntables = \"{pattern}\"\n{COLUMNS}\n")
    };
    FLUX_TABLES.map(section).concat()
}

/// Returns the section of the kinds of payment documents by business code.
fn kinds() -> String {
    let kinds = FLUX_KINDS.map(|(business, kinds)| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        format!("\"{business:02}\" = {names:?}")
    });
    format!("\n[flux]\nkinds = {{ {} }}\n", kinds.join(", "))
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| DemoError::File { action: "write", path: path.to_path_buf(), source })
}

/// Returns the hash as the configuration and the command line spell it.
pub fn hash_name(hash: NameHash) -> &'static str {
    match hash {
        NameHash::Crc32 => "crc32",
        NameHash::JavaString => "java_string",
        NameHash::Decimal => "decimal",
    }
}

/// Returns the spread as the configuration and the command line spell it.
pub fn spread_name(spread: Spread) -> &'static str {
    match spread {
        Spread::Literal => "literal",
        Spread::Spread => "spread",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::RelationLayer;

    #[test]
    fn the_last_source_of_payment_documents_is_the_fail_over_side_and_has_nothing_else() {
        let endpoint = |name: &str| Endpoint {
            name: name.to_owned(),
            port: 0,
            user: String::new(),
            password: String::new(),
            ca_file: "ca.pem".into(),
        };
        let sources = ["source-a", "source-b", "source-f"].map(endpoint).to_vec();
        let layer = Layer::Relations(RelationLayer { partitions: 3, targets: Vec::new() });
        let audit = Verification { topology: Topology::flux(sources, 3), layer };
        let configuration = DaemonConfiguration::standard(vec![audit]);
        assert_eq!(configuration.all_sources(), ["source-a", "source-b", "source-f"]);
        let main = "flux = { region = \"singapore\", side = \"main\" }\n";
        assert_eq!(configuration.flux_of_source("source-b"), main);
        let fail_over = main.replace("main", "fail_over") + "entities = [\"flux\"]\n";
        assert_eq!(configuration.flux_of_source("source-f"), fail_over);
        assert!(kinds().contains("\"03\" = [\"refund\", \"atom\"]"), "{}", kinds());
        assert_eq!(documents().matches("entity = \"flux\"").count(), 2);
        let plain = DaemonConfiguration::standard(Vec::new());
        assert_eq!(
            (plain.all_sources(), plain.flux_of_source("source-a")),
            (plain.sources.clone(), String::new())
        );
    }
}
