//! The configuration as text: short, each line with the finding that it comes from.

use std::fmt::Write as _;

use anabranch_pipeline::config::ColumnNames;
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::ShardingRule;

use super::{FoundSource, Proposal, Proposed};
use crate::output;

/// Families beside the captured ones that the text names, at most; a server may have thousands of tables.
const OTHERS_MAX: usize = 20;
/// Databases of derived birthday tables.
const BIRTHDAY_DATABASES: u32 = 4;

impl Proposal {
    /// Returns the configuration file. It is complete when at least one proposed family has all its fields.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# Anabranch: written by `anabranch init` from what the servers have. Check each line, then run:\n\
             #   anabranch --config FILE check\n\
             # deploy/anabranch.example.toml explains every key.\n\n\
             name = \"anabranch\"\n\n[log]\n",
        );
        let ca_file = self.addresses.ca_file.as_deref();
        server(&mut text, &self.addresses.log, ca_file);
        text += "\n[http]\nlisten = \"127.0.0.1:9464\"\n";
        if self.proposed.is_empty() {
            text += "\n# No table was found whose rows are users (an integer or text key and a birthday) or devices \
                     (uuid and codes).\n# Name yours here:\n#[[entities]]\n#entity = \"user\"\n\
                     #tables = \"DATABASE_{db:02}.TABLE_{table:03}\"\n\
                     #columns = { user_id = \"KEY\", birthday = \"DATE\" }\n";
        }
        for proposed in &self.proposed {
            self.entity(&mut text, proposed);
        }
        self.others(&mut text);
        for source in &self.sources {
            text += &source.text(ca_file);
        }
        text += "\n[[targets]]\nname = \"target\"\n";
        server(&mut text, &self.addresses.target, ca_file);
        self.projections(&mut text);
        text
    }

    /// Returns whether a family can be captured without filling in more.
    pub fn is_complete(&self) -> bool {
        self.complete().next().is_some()
    }

    fn complete(&self) -> impl Iterator<Item = &Proposed> {
        self.proposed.iter().filter(|proposed| proposed.recognised.missing.is_empty())
    }

    fn entity(&self, text: &mut String, proposed: &Proposed) {
        let (family, recognised) = (&proposed.family, &proposed.recognised);
        let (databases, tables) = family.extent();
        let servers: Vec<&str> =
            family.servers().into_iter().map(|server| self.sources[server].name.as_str()).collect();
        text.push('\n');
        comment(text, &format!("{} tables on {}.", family.tables.len(), servers.join(", ")));
        let is_complete = recognised.missing.is_empty();
        if !is_complete {
            comment(
                text,
                &format!(
                    "Not captured: no column was found for {}. Name the columns of your own, and remove the `#`.",
                    recognised.missing.join(", ")
                ),
            );
        }
        let head = if is_complete { "" } else { "#" };
        let mut line = |content: &str| {
            writeln!(text, "{head}{content}").expect("writing to a String cannot fail");
        };
        line("[[entities]]");
        line(&format!("entity = {}", quoted(recognised.entity.name())));
        line(&format!("tables = {}", quoted(&family.pattern.to_string())));
        let missing = recognised.missing.iter().map(|field| (*field, ColumnNames::from("COLUMN")));
        let columns: Vec<String> = (recognised.columns.iter().cloned().chain(missing))
            .map(|(field, names)| format!("{field} = {}", listed(&names)))
            .collect();
        if recognised.columns.iter().any(|(_, names)| names.are_several()) {
            line("# A list has the names that a column has in the tables that were looked at.");
        }
        line(&format!("columns = {{ {} }}", columns.join(", ")));
        if let Some(placement) = &proposed.placement {
            let found = &placement.found;
            line(&format!(
                "# {} of {} rows that were read are in the table that this rule says.",
                found.in_place, found.rows
            ));
            line(&format!("rule = {}", rule(&found.rule)));
            line(&format!("sharding_column = {}", listed(&placement.column)));
        } else if family.tables.len() > 1 {
            line(
                "# No rule was found by which rows are shared out. Capture goes without one; with it, reconciliations",
            );
            line(&format!(
                "# find misplaced rows: rule = {{ hash = \"crc32\", spread = \"spread\", databases = {databases}, \
                 tables = {tables} }}"
            ));
        }
        if !recognised.optional.is_empty() {
            let columns: Vec<String> = recognised
                .optional
                .iter()
                .map(|(field, column)| format!("{field} = {}", quoted(column)))
                .collect();
            comment(text, &format!("For lunar birthdays add to the columns: {}", columns.join(", ")));
        }
    }

    fn others(&self, text: &mut String) {
        if self.others.is_empty() {
            return;
        }
        text.push('\n');
        comment(text, "Tables that are neither users nor devices are not captured:");
        for family in self.others.iter().take(OTHERS_MAX) {
            comment(text, &format!("  {} ({})", family.pattern, count(family.tables.len())));
        }
        if let Some(more) = self.others.len().checked_sub(OTHERS_MAX).filter(|more| *more > 0) {
            comment(text, &format!("  and {more} more names"));
        }
    }

    /// Appends a projection for each entity that is captured.
    fn projections(&self, text: &mut String) {
        let has = |entity| self.complete().any(|proposed| proposed.recognised.entity == entity);
        if has(Entity::User) {
            write!(
                text,
                "\n[[projections]]\nname = \"birthday\"\nkind = \"birthday\"\ntargets = [\"target\"]\n\
                 # Each of the 366 tables exists once. `by_user` makes all of them in each database.\n\
                 layout = \"by_day\"\ndatabases = {BIRTHDAY_DATABASES}\ndatabase = \"birthday_{{db:02}}\"\n\
                 table = \"birthday_{{mmdd}}\"\n"
            )
            .expect("writing to a String cannot fail");
        }
        if has(Entity::SerialCode) {
            *text += "\n[[projections]]\nname = \"mapping\"\nkind = \"serial_mapping\"\ntargets = [\"target\"]\n\
                     database = \"serial_code_{length}\"\ntable = \"mapping_{table:03}\"\n";
        }
    }
}

impl FoundSource {
    fn text(&self, ca_file: Option<&str>) -> String {
        let mut text = String::from("\n");
        comment(&mut text, &self.server);
        let settings: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        if !settings.is_empty() {
            comment(&mut text, &settings.join(", "));
        }
        writeln!(text, "[[sources]]\nname = {}", quoted(&self.name))
            .expect("writing to a String cannot fail");
        server(&mut text, &self.variable, ca_file);
        text
    }
}

/// Appends the address of a server, and the CA file by which it is trusted.
fn server(text: &mut String, variable: &str, ca_file: Option<&str>) {
    writeln!(text, "url = \"${{{variable}}}\"").expect("writing to a String cannot fail");
    if let Some(file) = ca_file {
        // A `$` begins a variable in a path.
        writeln!(text, "ca_file = {}", quoted(&file.replace('$', "$$")))
            .expect("writing to a String cannot fail");
    }
}

/// Appends a comment on a line of its own, whatever a server's names hold.
fn comment(text: &mut String, content: &str) {
    let content: String =
        content.chars().map(|character| if character.is_control() { '?' } else { character }).collect();
    writeln!(text, "# {content}").expect("writing to a String cannot fail");
}

fn quoted(value: &str) -> String {
    toml::Value::String(value.to_owned()).to_string()
}

/// Returns one name as a text, several ones as a list.
fn listed(names: &ColumnNames) -> String {
    if !names.are_several() {
        return quoted(names.first());
    }
    let names: Vec<String> = names.iter().map(quoted).collect();
    format!("[{}]", names.join(", "))
}

fn rule(rule: &ShardingRule) -> String {
    // The words of the configuration are those of JSON.
    let (hash, spread) = (output::json(&rule.hash), output::json(&rule.spread));
    format!(
        "{{ hash = {hash}, spread = {spread}, databases = {}, tables = {} }}",
        rule.databases, rule.tables
    )
}

fn count(tables: usize) -> String {
    if tables == 1 { "1 table".to_owned() } else { format!("{tables} tables") }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::config::Config;
    use anabranch_schemas::shard::{NameHash, Spread};

    use super::super::families::{ListedTable, families};
    use super::super::placement::FoundRule;
    use super::super::recognised::Recognised;
    use super::super::{Addresses, Placement};
    use super::*;

    fn users() -> Proposed {
        let table = |number: u32| ListedTable {
            server: (number % 2) as usize,
            database: format!("user_{:02}", number % 2),
            table: format!("user_{number:03}"),
        };
        let rule =
            ShardingRule { hash: NameHash::JavaString, spread: Spread::Literal, databases: 2, tables: 8 };
        Proposed {
            family: families((0..8).map(table)).remove(0),
            recognised: Recognised {
                entity: Entity::User,
                columns: vec![
                    ("user_id", "i\"d".into()),
                    ("birthday", ColumnNames::from("born $1").or("birth date")),
                ],
                missing: Vec::new(),
                optional: vec![("lunar_birthday", "lunar".to_owned())],
            },
            placement: Some(Placement {
                found: FoundRule { rule, column: 0, rows: 100, in_place: 98 },
                column: "name".into(),
            }),
        }
    }

    fn devices(missing: Vec<&'static str>) -> Proposed {
        let fields = Entity::SerialCode.field_names().iter();
        let columns =
            fields.filter(|field| !missing.contains(field)).map(|field| (*field, ColumnNames::from(*field)));
        Proposed {
            family: families([ListedTable { server: 0, database: "stock".into(), table: "device".into() }])
                .remove(0),
            recognised: Recognised {
                entity: Entity::SerialCode,
                columns: columns.collect(),
                missing,
                optional: Vec::new(),
            },
            placement: None,
        }
    }

    fn proposal(proposed: Vec<Proposed>) -> Proposal {
        let source = |name: &str| FoundSource {
            name: name.to_owned(),
            variable: "SOURCE".to_owned(),
            server: "MariaDB 10.11\n[[sources]]".to_owned(),
            settings: vec![("log_bin".to_owned(), "ON".to_owned())],
        };
        let other = ListedTable { server: 0, database: "shop".into(), table: "order\n[http]".into() };
        Proposal {
            addresses: Addresses {
                log: "LOG".to_owned(),
                target: "TARGET".to_owned(),
                ca_file: Some("/etc/$x/ca.pem".to_owned()),
            },
            sources: vec![source("a"), source("b")],
            proposed,
            others: families([other]),
        }
    }

    /// Parses the file as a daemon would, with addresses in place of variables.
    fn parsed(text: &str) -> Config {
        let text = text
            .replace("${LOG}", "tls://a:b@log:4222")
            .replace("${TARGET}", "mysql://a:b@target:3306")
            .replace("${SOURCE}", "mysql://a:b@source:3306");
        Config::parse_with(&text, |_| Vec::new()).unwrap_or_else(|faults| panic!("{faults:?}\n{text}"))
    }

    #[test]
    fn what_is_written_can_be_read_whatever_names_hold() {
        let proposal = proposal(vec![users(), devices(Vec::new())]);
        assert!(proposal.is_complete());
        let config = parsed(&proposal.text());
        assert_eq!(config.sources.len(), 2);
        assert_eq!(config.sources[0].ca_file.as_deref(), Some(std::path::Path::new("/etc/$x/ca.pem")));
        let names = config.entities[0].columns.iter().map(ToString::to_string);
        assert_eq!(names.collect::<Vec<_>>(), ["i\"d", "born $1 or birth date"]);
        assert_eq!(config.entities[0].rule, Some(users().placement.unwrap().found.rule));
        assert_eq!(config.projections.len(), 2);
    }

    #[test]
    fn what_lacks_columns_is_written_as_a_comment() {
        let proposal = proposal(vec![users(), devices(vec!["meid", "box_no"])]);
        let text = proposal.text();
        let config = parsed(&text);
        assert_eq!((config.entities.len(), config.projections.len()), (1, 1));
        assert!(text.contains("no column was found for meid, box_no"), "{text}");
        assert!(!super::super::Proposal { proposed: vec![devices(vec!["meid"])], ..proposal }.is_complete());
    }

    #[test]
    fn a_server_without_such_tables_has_a_text_that_says_so() {
        let proposal = proposal(Vec::new());
        assert!(!proposal.is_complete());
        let text = proposal.text();
        assert!(text.contains("# No table was found"), "{text}");
        assert!(text.contains("shop.order?[http] (1 table)"), "{text}");
    }
}
