//! Tests of the keys of payment documents: tables, sources, kinds, the relation index, and identifiers.

use anabranch_schemas::flux::id::FluxId;
use anabranch_schemas::flux::placement::Kind;
use anabranch_schemas::flux::table::AtomSettlement;

use super::*;

/// Returns a `[flux]` section with one more line.
fn flux(line: &str) -> String {
    let section =
        "[flux]\nregion = \"singapore\"\nsequence_url = \"mysql://sequence:p%40ss@127.0.0.1:3308\"\n";
    format!("{GOOD}{section}{line}\n")
}

#[test]
fn a_sequence_of_payment_documents_needs_a_region_and_a_server() {
    let config = Config::parse(&flux("")).unwrap();
    let config = config.flux_identifiers().unwrap();
    assert_eq!((config.region.digit(), config.system, config.database.as_str()), (1, 31, "flux_sequence"));
    assert_eq!(config.request_keys_kept.as_secs(), 7 * 24 * 3600);
    assert!(Config::parse(GOOD).unwrap().flux.is_none());
    for (line, expected) in [
        ("system = 1000", "flux.system: 1000; needed: at most three digits"),
        ("time_zone = \"Moon/Base\"", "flux.time_zone: `Moon/Base`"),
        ("request_keys_days = 1", "flux.request_keys_days: 1; needed: 2 to 400"),
        ("request_keys_max = 0", "a nonzero"),
        ("sequence_database = \"\"", "flux.sequence_database: ``"),
        ("sequence_tls = \"verify\"", "flux.sequence_tls"),
        ("sequence_url = \"mysql://a@b\"", "duplicate key"),
        (
            "sequence_setup_url = \"mysql://setup:x@127.0.0.1:3309\"",
            "flux.sequence_setup_url: mysql://127.0.0.1:3309 beside 127.0.0.1:3308; needed: another account",
        ),
        ("colour = 1", "unknown field `colour`"),
    ] {
        let found = problems(&flux(line));
        assert!(found.contains(expected), "{line}: {found}");
        assert!(!found.contains("p@ss") && !found.contains("p%40ss"), "a secret in {found}");
    }
    let found = problems(&flux("").replace("\"singapore\"", "\"mars\""));
    assert!(found.contains("singapore"), "{found}");
}

#[test]
fn settlement_tables_of_atoms_have_the_digits_of_a_setting() {
    let of = |line: &str| Config::parse(&flux(line)).unwrap().flux.unwrap().settlement_atoms;
    assert_eq!(of(""), AtomSettlement::NoMonth);
    assert_eq!(of("settlement_atoms = \"99\""), AtomSettlement::NoMonth);
    assert_eq!(of("settlement_atoms = \"00\""), AtomSettlement::AsWritten);
    let found = problems(&flux("settlement_atoms = \"01\""));
    assert!(found.contains("unknown variant `01`"), "{found}");
}

#[test]
fn identifiers_need_both_the_region_and_the_server_and_the_section_needs_neither() {
    let with = |lines: &str| format!("{GOOD}[flux]\n{lines}\n");
    let config = Config::parse(&with("system = 32")).unwrap();
    assert!(config.flux_identifiers().is_none());
    assert_eq!((config.flux.unwrap().system, config.flux_places.system()), (32, 32));
    assert_eq!(Config::parse(GOOD).unwrap().flux_places.system(), 31);
    let both = "needed: both flux.region and flux.sequence_url";
    for (lines, expected) in [
        ("region = \"us\"", "flux.sequence_url: missing beside flux.region; "),
        ("sequence_url = \"mysql://a@b\"", "flux.region: missing beside flux.sequence_url; "),
        ("time_zone = \"UTC\"", "flux.time_zone: no identifiers are made here; "),
        ("request_keys_max = 5", "flux.request_keys_max: no identifiers are made here; "),
        ("sequence_tls = \"off\"", "flux.sequence_tls: no identifiers are made here; "),
    ] {
        let found = problems(&with(lines));
        assert!(found.contains(&format!("{expected}{both}")), "{lines}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

const DOCUMENTS: &str = r#"
[[entities]]
entity = "flux"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
level = "atom"
columns = { id = "atom_id" }
[[entities]]
entity = "flux"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
level = "composite"
columns = { id = "composite_id" }
[[sources]]
name = "flux-a"
url = "mysql://capture:p@127.0.0.1:3310"
entities = ["flux"]
flux = { region = "singapore", side = "fail_over" }
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
[flux]
kinds = { "03" = "refund", "01" = ["recharge", "recharge-clearing"] }
"#;

#[test]
fn payment_documents_have_levels_sites_kinds_and_a_relation_index() {
    let config = Config::parse(&format!("{GOOD}{DOCUMENTS}")).unwrap();
    let levels: Vec<_> = config.entities.iter().map(|entity| entity.level).collect();
    assert_eq!(levels, [None, Some(Level::Atom), Some(Level::Composite)]);
    assert_eq!(columns(&config, 1), "atom_id parent_id");
    assert_eq!(config.sources[0].flux, None);
    assert_eq!(config.sources[1].flux, Some((Region::Singapore, Side::FailOver)));
    let kinds = [(1, Kind::Recharge), (1, Kind::RechargeClearing), (3, Kind::Refund)];
    assert_eq!(config.flux.as_ref().unwrap().kinds, kinds);
    let kind = &config.projections[1].kind;
    assert_eq!(
        (kind.name(), kind.entity(), kind.store()),
        ("flux_relations", Entity::Flux, TargetStore::Mysql)
    );
    let ProjectionKind::FluxRelations(tables) = kind else { panic!("of another kind") };
    assert_eq!((tables.database.as_str(), &*tables.table_name(7)), ("flux_relations", "flux_relation_07"));
    assert!(Arc::ptr_eq(&tables.places, &config.flux_places));
    let recharge: FluxId = "2016060611031001099052400029904".parse().unwrap();
    assert_eq!(tables.places.kind(&recharge), Some(Kind::Recharge));
    // Only source-a, which captures every entity, says neither region nor side.
    let unaudited = config.flux_places.unaudited();
    assert!(unaudited.len() == 1 && unaudited[0].starts_with("source source-a:"), "{unaudited:?}");
    let named = DOCUMENTS.replace(
        "targets = [\"target\"]",
        "targets = [\"target\"]\ndatabase = \"index\"\ntable = \"documents_{partition}\"",
    );
    let config = Config::parse(&format!("{GOOD}{named}")).unwrap();
    let ProjectionKind::FluxRelations(tables) = &config.projections[1].kind else {
        panic!("of another kind")
    };
    assert_eq!((tables.database.as_str(), &*tables.table_name(7)), ("index", "documents_7"));
}

#[test]
fn a_server_belongs_to_one_source_of_a_region_and_side() {
    let with = |address: &str, side: &str| {
        let site = format!("flux = {{ region = \"singapore\", side = \"{side}\" }}");
        let source =
            format!("name = \"flux-b\"\nurl = \"mysql://capture:p@{address}\"\nentities = [\"flux\"]");
        format!("{GOOD}{DOCUMENTS}[[sources]]\n{source}\n{site}\n")
    };
    let found = problems(&with("127.0.0.1:3310", "fail_over"));
    let expected =
        "sources.url: 127.0.0.1:3310 for `flux-a` and `flux-b` of one region and side; needed: a server of";
    assert!(found.contains(expected), "{found}");
    for (address, side) in [("127.0.0.1:3311", "fail_over"), ("127.0.0.1:3310", "main")] {
        Config::parse(&with(address, side)).unwrap();
    }
}

#[test]
fn only_tables_of_payment_documents_leave_their_rows_behind() {
    let config = Config::parse(&format!("{GOOD}{DOCUMENTS}")).unwrap();
    assert!(!config.retains(Entity::Flux));
    let retention = config.flux_retention();
    assert_eq!((retention.months.get(), retention.index_months_after.get()), (16, 24));
    let retained = DOCUMENTS
        .replace("level = \"atom\"", "level = \"atom\"\nremoval = \"retain\"")
        .replace("[flux]\n", "[flux]\nretention_months = 12\nindex_months_after = 36\n");
    let config = Config::parse(&format!("{GOOD}{retained}")).unwrap();
    assert!(config.retains(Entity::Flux) && !config.retains(Entity::User));
    let of = |table: &str| config.entity_of(Entity::Flux, "flux_00_0", table).map(|entity| entity.removal);
    assert_eq!(of("atom_05_01"), Some(Removal::Retain));
    assert_eq!(of("composite_05_01"), Some(Removal::Withdraw));
    assert_eq!(of("other"), None);
    let retention = config.flux_retention();
    assert_eq!((retention.months.get(), retention.index_months_after.get()), (12, 36));
    for (text, expected) in [
        (retained.replace("= 12", "= 121"), "flux.retention_months: 121; needed: 1 to 120 months"),
        (retained.replace("= 36", "= 0"), "a nonzero"),
        (retained.replace("\"retain\"", "\"keep\""), "unknown variant `keep`"),
    ] {
        let found = problems(&format!("{GOOD}{text}"));
        assert!(found.contains(expected), "{found}");
    }
    let users = GOOD.replacen("entity = \"user\"\n", "entity = \"user\"\nremoval = \"retain\"\n", 1);
    let found = problems(&users);
    assert!(found.contains("entities.removal: `retain` of entity `user`; needed: `withdraw`"), "{found}");
}

#[test]
fn a_marker_of_retention_jobs_is_a_table_that_is_not_captured_beside_retained_ones() {
    let with = |marker: &str, removal: &str| {
        let text =
            DOCUMENTS.replace("level = \"atom\"", &format!("level = \"atom\"\nremoval = \"{removal}\""));
        let section = format!("[flux]\nretention_marker = \"{marker}\"\n");
        format!("{GOOD}{}", text.replace("[flux]\n", &section))
    };
    let config = Config::parse(&with("flux_ops.retention", "retain")).unwrap();
    let of =
        |table: &str| config.entity_of(Entity::Flux, "flux_00_0", table).unwrap().retention_marker.clone();
    let marker = of("atom_05_01").unwrap();
    assert_eq!((marker.database.as_str(), marker.table.as_str()), ("flux_ops", "retention"));
    assert!(marker.is("FLUX_OPS", "Retention") && !marker.is("flux_ops", "retention_"));
    assert_eq!(of("composite_05_01"), None, "its rows go with the source rows");
    assert_eq!(config.flux.as_ref().unwrap().retention_marker, Some(marker));
    for text in ["retention", ".retention", "flux_ops.", "a.b.c", "flux_{db}.retention", "`a`.b"] {
        let found = problems(&with(text, "retain"));
        let expected = format!("flux.retention_marker: `{text}`; needed: one table as `database.table`");
        assert!(found.contains(&expected), "{found}");
    }
    let found = problems(&with("flux_00_3.atom_05_99", "retain"));
    assert!(found.contains("`flux_00_3.atom_05_99`; needed: a table that is not captured"), "{found}");
    let found = problems(&with("flux_ops.retention", "withdraw"));
    assert!(found.contains("needed: an entry of entity `flux` with removal"), "{found}");
}

#[test]
fn each_mistake_about_payment_documents_is_named_with_its_key() {
    for (from, to, expected) in [
        (
            "\"03\" = \"refund\"",
            "\"03\" = \"refnd\"",
            "flux.kinds.03: `refnd`; needed: one of recharge, capture,",
        ),
        (
            "\"03\" = \"refund\"",
            "\"3\" = \"refund\"",
            "flux.kinds.3: the code `3`; needed: a business code of two",
        ),
        ("\"03\" = \"refund\"", "\"+3\" = \"refund\"", "flux.kinds.+3: the code `+3`; needed"),
        ("\"03\" = \"refund\"", "\"03\" = []", "flux.kinds.03: an empty list; needed: at least one kind"),
        ("\"03\" = \"refund\"", "\"03\" = 3", "expected the name of a kind, or a list of names"),
        (
            "\"recharge-clearing\"]",
            "\"capture\"]",
            "flux.kinds.01: `recharge` and `capture`, which both are a composite; needed: at most one kind",
        ),
        ("level = \"atom\"", "level = \"molecule\"", "molecule"),
        (
            "level = \"atom\"",
            "sharding_column = \"atom_id\"",
            "entities.sharding_column: of entity `flux`; needed: none: the identifier itself",
        ),
        (
            "level = \"atom\"",
            "rule = { hash = \"crc32\", spread = \"spread\", databases = 10, tables = 10 }",
            "entities.rule: of entity `flux`; needed: none",
        ),
        ("side = \"fail_over\"", "side = \"standby\"", "standby"),
        ("region = \"singapore\", ", "", "region"),
        (
            "entities = [\"flux\"]",
            "entities = [\"user\"]",
            "sources.flux: of `flux-a`, which captures no entity `flux`; needed: `flux` among its entities",
        ),
        (
            "targets = [\"target\"]",
            "targets = [\"target\"]\ndatabase = \"flux_{db}\"",
            "projections.database: `flux_{db}`; needed: a name without placeholders",
        ),
        (
            "targets = [\"target\"]",
            "targets = [\"target\"]\ntable = \"relation\"",
            "projections.table: `relation`; needed: a name such as flux_relation_{partition:02}",
        ),
        (
            "targets = [\"target\"]",
            "targets = [\"target\"]\nlayout = \"by_day\"",
            "projections.layout: of `relations`; needed: a key of projection kind `flux_relations`",
        ),
    ] {
        let text = DOCUMENTS.replace(from, to);
        assert_ne!(text, DOCUMENTS, "{from} is not in the sample");
        let found = problems(&format!("{GOOD}{text}"));
        assert!(found.contains(expected), "{to}: {found}");
    }
    let with_level = GOOD.replace("entity = \"user\"", "entity = \"user\"\nlevel = \"atom\"");
    let found = problems(&with_level);
    assert!(found.contains("entities.level: of entity `user`; needed: a key of entity `flux`"), "{found}");
    let (_, relations) = DOCUMENTS.split_once("[[projections]]").unwrap();
    let found = problems(&format!("{GOOD}[[projections]]{relations}"));
    assert!(found.contains("`relations` needs entity `flux`"), "{found}");
}

#[test]
fn tables_fields_codes_and_names_that_do_not_fit_documents_are_refused() {
    for (from, to, expected) in [
        (
            "{ id = \"atom_id\" }",
            "{ id = \"atom_id\", created = \"c\" }",
            "entities.columns.created: without amount",
        ),
        (
            "{ id = \"atom_id\" }",
            "{ id = \"atom_id\", user = \"c\" }",
            "entities.columns.user: an unknown field",
        ),
        (
            "{ id = \"atom_id\" }",
            "{ id = \"atom_id\", amount = \"c\" }",
            "3 and 2 columns of `flux`; needed: the same",
        ),
        (".composite_{partition:02}_", ".atom_{partition:02}_", "can name the same table"),
        (
            "atom_{partition:02}_{month:02}",
            "atom_{partition:02}_{day}",
            "a placeholder other than {db}, {table}, ",
        ),
        (
            "atom_{partition:02}_{month:02}",
            "atom_{partition:02}{month:02}",
            "two placeholders without text between",
        ),
        ("\"03\" = \"refund\"", "\"100\" = \"refund\"", "flux.kinds.100: the code `100`; needed"),
        (
            "\"03\" = \"refund\"",
            "\"03\" = [\"refund\", \"refund\"]",
            "`refund` and `refund`, which both are a composite",
        ),
        ("side = \"fail_over\"", "side = \"fail_over\", shard = 1", "unknown field `shard`"),
        (
            "targets = [\"target\"]",
            "targets = [\"target\"]\ndatabase = \"\"",
            "projections.database: ``; needed: a name",
        ),
        (
            "targets = [\"target\"]",
            "targets = [\"target\"]\ntable = \"r_{db}\"",
            "projections.table: `r_{db}`; needed",
        ),
    ] {
        let text = DOCUMENTS.replace(from, to);
        assert_ne!(text, DOCUMENTS, "{from} is not in the sample");
        let found = problems(&format!("{GOOD}{text}"));
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn tables_of_the_relation_index_have_one_placeholder_with_a_width() {
    for table in ["r_{partition:x}", "r_{partition:0}", "r_{partition}_{partition}", "r}_{partition}"] {
        let with_table = format!("targets = [\"target\"]\ntable = \"{table}\"");
        let found = problems(&format!("{GOOD}{}", DOCUMENTS.replace("targets = [\"target\"]", &with_table)));
        assert!(found.contains(&format!("projections.table: `{table}`; needed: a name such as")), "{found}");
    }
}
