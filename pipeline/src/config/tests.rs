//! Tests of configuration files: right ones, and the faults of wrong ones.

use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::serial::LengthClass;

use super::*;

mod flux;
mod flux_years;

const GOOD: &str = r#"
name = "demo"
[log]
url = "tls://anabranch:secret@127.0.0.1:4222"
[[entities]]
entity = "user"
tables = "user_{db:02}.user_{table:03}"
columns = { birthday = "born" }
[[sources]]
name = "source-a"
url = "mysql://capture:p%40ss@127.0.0.1:3306"
[[targets]]
name = "target"
url = "mysql://apply:secret@127.0.0.1:3307"
[[projections]]
name = "birthday"
kind = "birthday"
targets = ["target"]
layout = "by_day"
databases = 4
database = "birthday_{db:02}"
table = "birthday_{mmdd}"
"#;

/// Returns the names of the columns of the entity at this place, those of one column with `or` between them.
fn columns(config: &Config, place: usize) -> String {
    let names: Vec<String> = config.entities[place].columns.iter().map(ToString::to_string).collect();
    names.join(" ")
}

fn problems(text: &str) -> String {
    let faults = Config::parse_with(text, crate::projections::captured_targets).expect_err("must be refused");
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_small_file_is_enough_and_defaults_fill_the_rest() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(columns(&config, 0), "user_id born");
    assert_eq!(config.sources[0].url.password().expose(), "p@ss");
    assert_eq!(config.sources[0].start, BinlogStart::Earliest);
    assert_eq!(config.projections[0].lanes.get(), 2);
    let ProjectionKind::Birthday(tables) = &config.projections[0].kind else { panic!("of another kind") };
    assert_eq!(tables.database_name(3), "birthday_03");
}

#[test]
fn the_shortest_configuration_of_the_readme_is_a_whole_one() {
    let readme = include_str!("../../../README.md");
    let (_, text) = readme.split_once("```toml\n").expect("the README has a configuration");
    let (text, _) = text.split_once("```").expect("it has an end");
    let text = text.replace("${", "").replace("_PASSWORD}", "");
    let config = Config::parse_with(&text, crate::projections::captured_targets).expect("it is right");
    assert_eq!((config.sources.len(), config.targets.len(), config.projections.len()), (1, 1, 1));
}

#[test]
fn the_folder_for_temporary_files_is_the_systems_unless_another_one_is_named() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(
        (&config.spill_dir, &config.sources[0].spill_dir),
        (&std::env::temp_dir(), &std::env::temp_dir())
    );
    let text = GOOD.replace("[log]", "[limits]\nspill_dir = \"/var/spill\"\n[log]");
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.sources[0].spill_dir, std::path::Path::new("/var/spill"));
}

#[test]
fn each_mistake_is_named_with_its_key() {
    for (from, to, expected) in [
        ("name = \"demo\"", "name = \"de mo\"", "configuration key name: `de mo`"),
        ("name = \"demo\"", "name = \"demo\"\ncolour = 1", "unknown field `colour`"),
        (
            "[[entities]]",
            "[http]\nlisten = \"127.0.0.1:0\"\ntokens = [\"0123456789abcdef\", \"$$\"]\n[[entities]]",
            "http.tokens: token 2 is too short",
        ),
        ("[[entities]]", "[http]\ntokens = [\"0123456789abcdef\"]\n[[entities]]", "http.listen: missing"),
        (
            "[[entities]]",
            "[[http.operators]]\nname = \"ann\"\ntoken = \"0123456789abcdef\"\n[[entities]]",
            "http.listen: missing beside http.operators",
        ),
        ("databases = 4", "databases = 0", "a nonzero"),
        ("databases = 4", "databases = -4", "databases"),
        ("databases = 4", "databases = 4\nlanes = 0", "lanes"),
        ("targets = [\"target\"]", "targets = []", "projections.targets: none"),
        ("targets = [\"target\"]", "targets = [\"other\"]", "`other`"),
        ("mysql://capture", "ftp://capture", "expected mysql, nats, tls"),
        ("mysql://capture", "http://capture", "sources.url: scheme `http`; needed: mysql://"),
        (
            "name = \"target\"",
            "name = \"target\"\nsetup_url = \"mysql://setup:x@127.0.0.1:3308\"",
            "targets.setup_url: mysql://127.0.0.1:3308 beside 127.0.0.1:3307; needed: another account",
        ),
        ("mysql://apply", "nats://apply", "targets.url: scheme `nats`"),
        ("mysql://apply", "https://apply", "`target`; needed: a target with a mysql:// URL"),
        ("databases = 4", "databases = 4\nindex = \"i\"", "projections.index: of `birthday`"),
        ("layout = \"by_day\"", "", "projections.layout: missing in `birthday`"),
        ("kind = \"birthday\"", "kind = \"serial_documents\"", "projections.index: missing"),
        (
            "p%40ss@127.0.0.1:3306",
            "${ANABRANCH_NO_SUCH}@x",
            "environment variable ANABRANCH_NO_SUCH is not set",
        ),
        ("birthday_{mmdd}", "birthday", "a name such as birthday_{mmdd}"),
        ("birthday = \"born\"", "brithday = \"born\"", "entities.columns.brithday"),
        ("user_{db:02}.user", "user_{x}.user", "is not a table pattern"),
        (
            "[log]",
            "[limits]\nspill_dir = \"spill\"\n[log]",
            "limits.spill_dir: `spill`; needed: an absolute path",
        ),
        ("[log]", "[limits]\nbatch_bytes = 0\n[log]", "batch_bytes"),
        ("[log]", "[limits]\nbatch_bytes = 10000000\n[log]", "at most 524288"),
        (
            "[log]",
            "[log]\nmax_age_seconds = 19",
            "configuration key log.max_age_seconds: 19; needed: at least 20",
        ),
        ("[log]", "[log]\nmax_message_bytes = 1000", "log.max_message_bytes: 1000; needed: 1048576"),
        ("[log]", "[limits]\nposition_interval_ms = 1\n[log]\nmax_age_seconds = 1", "at least 2"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from} is not in the sample");
        let found = problems(&text);
        assert!(found.contains(expected), "{to}: {found}");
        assert!(!found.contains("p@ss") && !found.contains("p%40ss"), "a secret in {found}");
    }
}

#[test]
fn a_column_may_have_several_names_and_no_name_belongs_to_two_columns() {
    let with = |birthday: &str, more: &str| {
        let text = GOOD.replace("birthday = \"born\"", &format!("birthday = {birthday}"));
        text.replace("tables = \"user", &format!("{more}\ntables = \"user"))
    };
    let config = Config::parse(&with("[\"born\", \"birth_date\"]", "")).unwrap();
    assert_eq!(columns(&config, 0), "user_id born or birth_date");
    let rule = "sharding_column = [\"uid\", \"user_id\"]\nchanged_at_column = [\"changed\", \"changed_at\"]";
    let config = Config::parse(&with("\"born\"", &rule.replace("\"uid\", ", ""))).unwrap();
    let user = config.entities[0].clone();
    assert_eq!(user.sharding_field(), Some(0), "the rule reads a captured column");
    let more = user.with_changed_at_column();
    assert_eq!((more.columns.len(), more.is_field(2)), (3, false));
    assert_eq!(more.columns[2].to_string(), "changed or changed_at");
    for (birthday, more, expected) in [
        ("[]", "", "entities.columns.birthday: an empty list or name"),
        ("[\"born\", \"\"]", "", "entities.columns.birthday: an empty list or name"),
        ("[\"born\", \"BORN\"]", "", "entities.columns.birthday: `BORN` twice; needed: the name of a column"),
        ("[\"born\", \"User_Id\"]", "", "entities.columns: `born or User_Id` beside `user_id`"),
        ("7", "", "expected the name of a column, or a list of names"),
        ("\"born\"", rule, "entities.sharding_column: `uid or user_id` beside field `user_id`"),
        ("[\"born\", \"at\"]", "changed_at_column = \"at\"", "entities.changed_at_column: `at` is a field"),
    ] {
        let found = problems(&with(birthday, more));
        assert!(found.contains(expected), "{birthday} {more}: {found}");
    }
}

#[test]
fn two_projections_with_a_table_in_common_are_refused() {
    let with = |table: &str| {
        let columns = "birthday = \"born\", lunar_birthday = \"lunar\"";
        let (_, projection) = GOOD.split_once("[[projections]]").expect("the sample has one");
        let lunar = projection
            .replace("name = \"birthday\"", "name = \"lunar\"\ncalendar = \"lunar\"")
            .replace("birthday_{mmdd}", table);
        let text = format!("{}\n[[projections]]{lunar}", GOOD.replace("birthday = \"born\"", columns));
        Config::parse_with(&text, crate::projections::shared_tables).map(drop)
    };
    assert!(with("lunar_birthday_{mmdd}").is_ok());
    let faults = with("birthday_{mmdd}").expect_err("both have the tables");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].to_string().contains("`birthday` and `lunar` both have birthday_0"), "{faults:?}");
}

#[test]
fn columns_that_not_each_table_has_are_captured_when_they_are_named() {
    let with = |columns: &str| GOOD.replace("birthday = \"born\"", &format!("birthday = \"born\"{columns}"));
    let lunar = |text: &str| text.replace("kind = \"birthday\"", "kind = \"birthday\"\ncalendar = \"lunar\"");
    let captured = |text: &str| {
        let config = Config::parse(text).unwrap();
        let ProjectionKind::Birthday(tables) = &config.projections[0].kind else { panic!("of another kind") };
        (columns(&config, 0), tables.calendar, tables.captures_type)
    };
    assert_eq!(captured(GOOD), ("user_id born".to_owned(), Calendar::Solar, false));
    let one = with(", lunar_birthday = \"born_lunar\"");
    assert_eq!(captured(&lunar(&one)), ("user_id born born_lunar".to_owned(), Calendar::Lunar, false));
    let both = with(", lunar_birthday = \"born_lunar\", birthday_type = \"kind\"");
    assert_eq!(captured(&lunar(&both)), ("user_id born born_lunar kind".to_owned(), Calendar::Lunar, true));
    let type_alone = problems(&with(", birthday_type = \"kind\""));
    assert!(
        type_alone.contains("entities.columns.birthday_type: without lunar_birthday; needed: lunar_birthday"),
        "{type_alone}"
    );
    let no_column = problems(&lunar(GOOD));
    assert!(
        no_column.contains("projections.calendar: `lunar` in `birthday`; needed: lunar_birthday"),
        "{no_column}"
    );
    let unknown =
        problems(&both.replace("kind = \"birthday\"", "kind = \"birthday\"\ncalendar = \"julian\""));
    assert!(unknown.contains("julian"), "{unknown}");
    let history = "\n[[entities]]\nentity = \"user\"\ntables = \"user_history.user_{table:03}\"\n";
    let uneven = problems(&format!("{both}{history}"));
    assert!(uneven.contains("4 and 2 columns of `user`; needed: the same fields"), "{uneven}");
}

#[test]
fn overlapping_patterns_and_names_used_twice_are_refused() {
    let entity = |tables: &str| format!("{GOOD}\n[[entities]]\nentity = \"user\"\ntables = \"{tables}\"\n");
    assert!(problems(&entity("user_00.user_{table:03}")).contains("can name the same table"));
    assert_eq!(Config::parse(&entity("user_history.user_{table:03}")).unwrap().entities.len(), 2);
    let target = "[[targets]]\nname = \"target\"\nurl = \"mysql://x:x@127.0.0.1:3308\"\n";
    assert!(problems(&format!("{GOOD}\n{target}")).contains("`target` twice"));
}

const COUPONS: &str = r#"
[[programmes]]
name = "birthday"
[coupon_system]
url = "http://coupons@127.0.0.1:8090"
token = "secret"
"#;

#[test]
fn a_programme_needs_a_coupon_system_and_a_birthday_projection() {
    let config = Config::parse(&format!("{GOOD}{COUPONS}")).unwrap();
    let system = config.coupon_system.as_ref().unwrap();
    assert_eq!((&*system.ledger_target, &system.projections), ("target", &vec!["birthday".to_owned()]));
    assert_eq!((system.key_memory, system.is_batched), (Duration::from_secs(24 * 3600), true));
    assert_eq!(system.restored_wait, Duration::from_secs(1_800));
    assert!(!format!("{config:?}").contains("secret"));
    for (from, to, expected) in [
        ("[coupon_system]\n", "[unknown]\n", "unknown field"),
        ("http://coupons@", "mysql://coupons@", "coupon_system.url: scheme `mysql`"),
        ("token =", "timeout_seconds = 0\ntoken =", "a nonzero"),
        (
            "token =",
            "timeout_seconds = 301\ntoken =",
            "coupon_system.timeout_seconds: 301; needed: at most 300",
        ),
        (
            "token =",
            "key_memory_hours = 8761\ntoken =",
            "coupon_system.key_memory_hours: 8761; needed: at most 8760",
        ),
        (
            "token =",
            "restored_wait_seconds = 86401\ntoken =",
            "coupon_system.restored_wait_seconds: 86401; needed: at most 86400",
        ),
        (
            "token =",
            "restored_wait_seconds = 10\ntoken =",
            "coupon_system.restored_wait_seconds: 10; needed: more than timeout_seconds, which is 10",
        ),
        ("token =", "calls_in_flight = 65\ntoken =", "coupon_system.calls_in_flight: 65; needed: at most 64"),
        ("token =", "projections = [\"serials\"]\ntoken =", "coupon_system.projections: `serials`"),
        ("token =", "projections = []\ntoken =", "coupon_system.projections: none"),
        ("token =", "ledger_target = \"other\"\ntoken =", "coupon_system.ledger_target: `other`"),
        ("token =", "tls = \"verify\"\ntoken =", "coupon_system.tls"),
    ] {
        let found = problems(&format!("{GOOD}{}", COUPONS.replace(from, to)));
        assert!(found.contains(expected), "{to}: {found}");
    }
    let programme = COUPONS.split("[coupon_system]").next().unwrap();
    let found = problems(&format!("{GOOD}{programme}"));
    assert!(found.contains("coupon_system: missing beside [[programmes]]"), "{found}");
    let without = GOOD.replace("kind = \"birthday\"", "kind = \"serial_mapping\"");
    let found = problems(&format!("{without}{COUPONS}"));
    assert!(!found.contains("coupon_system: missing"), "{found}");
    let (before, _) = GOOD.split_once("[[projections]]").unwrap();
    let found = problems(&format!("{before}{COUPONS}"));
    assert!(found.contains("programmes: there is no birthday projection"), "{found}");
}

const SERIALS: &str = r#"
[[entities]]
entity = "serial_code"
tables = "inventory_{db}.serial_code_{table:02}"
[[targets]]
name = "search"
url = "https://apply:secret@127.0.0.1:9200"
[[projections]]
name = "serials"
kind = "serial_mapping"
targets = ["target"]
database = "serial_code_{length}"
table = "mapping_{table:03}"
[[projections]]
name = "documents"
kind = "serial_documents"
targets = ["search"]
index = "serials"
"#;

#[test]
fn serial_codes_have_mapping_tables_and_documents() {
    let config = Config::parse(&format!("{GOOD}{SERIALS}tombstones_kept_hours = 2\n")).unwrap();
    let ProjectionKind::SerialDocuments(documents) = &config.projections[2].kind else { panic!("documents") };
    assert_eq!(documents.tombstones_kept, Some(Duration::from_secs(7200)));
    let ProjectionKind::SerialMapping(tables) = &config.projections[1].kind else { panic!("a mapping") };
    assert_eq!(tables.tables.get(), 512);
    assert_eq!(tables.database_name(LengthClass::Other), "serial_code_other");
    assert_eq!(tables.table_name(7), "mapping_007");
    assert_eq!(config.target("search").unwrap().store, TargetStore::Search);
    for (from, to, expected) in [
        ("serial_code_{length}", "serial_code", "a name such as serial_code_{length}"),
        ("mapping_{table:03}", "mapping", "a name such as mapping_{table:03}"),
        ("index = \"serials\"", "index = \"Serials*\"", "projections.index: `Serials*`"),
        (
            "kind = \"serial_mapping\"",
            "kind = \"serial_mapping\"\ntombstones_kept_hours = 2",
            "projections.tombstones_kept_hours: of `serials`",
        ),
        ("targets = [\"search\"]", "targets = [\"target\"]", "a target with an https:// or http:// URL"),
        ("entity = \"serial_code\"", "entity = \"user\"", "`serials` needs entity `serial_code`"),
    ] {
        let found = problems(&format!("{GOOD}{}", SERIALS.replace(from, to)));
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn a_target_inside_a_captured_pattern_is_refused() {
    let text = GOOD
        .replace("127.0.0.1:3307", "127.0.0.1:3306")
        .replace("birthday_{db:02}", "user_{db:02}")
        .replace("table = \"birthday_{mmdd}\"", "table = \"user_{mmdd}\"");
    assert!(problems(&text).contains("[target-is-source] target target"), "{}", problems(&text));
}

/// The sample with an application's token and these operators.
fn with_operators(operators: &[(&str, &str)]) -> String {
    let mut http = "[http]\nlisten = \"127.0.0.1:0\"\ntokens = [\"token-of-an-application\"]\n".to_owned();
    for (name, token) in operators {
        http += &format!("[[http.operators]]\nname = \"{name}\"\ntoken = \"{token}\"\n");
    }
    GOOD.replace("[[entities]]", &format!("{http}[[entities]]"))
}

#[test]
fn each_application_has_a_name_a_token_and_scopes_and_a_token_without_a_name_has_all() {
    let with = |lines: &str| {
        let section = format!("[[http.applications]]\n{lines}\n[[entities]]");
        with_operators(&[("ann", "token-of-ann-1234")]).replace("[[entities]]", &section)
    };
    let shop = "name = \"shop\"\ntoken = \"token-of-shop-123\"\nscopes = [\"lookup\", \"status\"]";
    let found = Config::parse(&with(shop)).unwrap().http.applications;
    let names: Vec<_> = found.iter().map(|known| (known.name.as_str(), known.scopes.as_slice())).collect();
    assert_eq!(names, [("token-1", &Scope::ALL[..]), ("shop", &[Scope::Lookup, Scope::Status][..])]);
    for scope in Scope::ALL {
        let lines = format!("name = \"a\"\ntoken = \"token-of-shop-123\"\nscopes = [\"{scope}\"]");
        assert_eq!(Config::parse(&with(&lines)).unwrap().http.applications[1].scopes, [scope]);
    }
    for (from, to, expected) in [
        ("\"shop\"", "\"Shop\"", "http.applications.name: `Shop`"),
        ("\"shop\"", "\"token-1\"", "http.applications.name: `token-1` twice"),
        ("of-shop-123", "x", "the token of `shop` is too short"),
        ("token-of-shop-123", "token-of-an-application", "the token of `shop` is another one's too"),
        ("token-of-shop-123", "token-of-ann-1234", "the token of `ann` is another one's too"),
        ("[\"lookup\", \"status\"]", "[]", "http.applications.scopes: `shop` has none"),
        ("\"lookup\"", "\"all\"", "unknown variant `all`"),
        ("scopes = [\"lookup\", \"status\"]", "", "missing field `scopes`"),
    ] {
        let found = problems(&with(&shop.replace(from, to)));
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn each_operator_has_a_name_and_a_token_that_nobody_else_has() {
    let config =
        Config::parse(&with_operators(&[("ann", "token-of-ann-1234"), ("b.c_d-9", "token-of-b-123456")]));
    let operators = config.unwrap().http.operators;
    assert_eq!(operators.iter().map(|known| &*known.name).collect::<Vec<_>>(), ["ann", "b.c_d-9"]);
    assert_eq!(operators[0].token.expose(), "token-of-ann-1234");
    assert!(Config::parse(GOOD).unwrap().http.operators.is_empty());
    let long = "a".repeat(65);
    for (operators, expected) in [
        (&[("", "token-of-ann-1234")][..], "http.operators.name: ``"),
        (&[("Ann", "token-of-ann-1234")], "http.operators.name: `Ann`"),
        (&[("ann b", "token-of-ann-1234")], "http.operators.name: `ann b`"),
        (&[(long.as_str(), "token-of-ann-1234")], "needed: 1 to 64 small letters"),
        (&[("ann", "short")], "http.operators.token: the token of `ann` is too short"),
        (&[("ann", "token of ann 1234")], "http.operators.token: the token of `ann` is too short"),
        (&[("ann", "token-of-an-application")], "the token of `ann` is another one's too"),
        (
            &[("ann", "token-of-ann-1234"), ("bob", "token-of-ann-1234")],
            "the token of `bob` is another one's",
        ),
        (&[("ann", "token-of-ann-1234"), ("ann", "token-of-bob-1234")], "http.operators.name: `ann` twice"),
    ] {
        let found = problems(&with_operators(operators));
        assert!(found.contains(expected), "{operators:?}: {found}");
        assert!(!found.contains("token-of"), "a token in {found}");
    }
    let unknown = with_operators(&[("ann", "token-of-ann-1234\"\nrole = \"all")]);
    assert!(problems(&unknown).contains("unknown field `role`"), "{}", problems(&unknown));
}

#[test]
fn secrets_are_never_printed() {
    let config = Config::parse(GOOD).unwrap();
    let printed = format!("{config:?} {}", config.sources[0].url);
    assert!(!printed.contains("p@ss") && !printed.contains("secret"), "{printed}");
}

#[test]
fn a_mistake_in_the_file_shows_no_part_of_a_secret() {
    let list =
        |lines: &str| format!("[http]\nlisten = \"127.0.0.1:0\"\ntokens = [\n{lines}\n]\n[[entities]]");
    for (from, to, expected) in [
        ("[[entities]]", list("  \"first-token\",\n  c2VjcmV0LXRva2Vu==,"), "configuration line"),
        ("[[entities]]", list("  \"c2VjcmV0LXRva2Vu==\" \"x\","), "configuration line"),
        ("[[entities]]", list("  817263549817263549,"), "invalid type: integer, expected"),
        (
            "name = \"target\"",
            "name = 817263549817263549".to_owned(),
            "key name: invalid type: integer, expected",
        ),
        (
            "databases = 4",
            "databases = \"c2VjcmV0\"".to_owned(),
            "key databases: invalid type: string, expected",
        ),
    ] {
        let text = GOOD.replace(from, &to);
        assert_ne!(text, GOOD, "{from} is not in the sample");
        let found = problems(&text);
        assert!(found.contains(expected), "{to}: {found}");
        assert!(!found.contains("c2Vj") && !found.contains("8172"), "a secret in {found}");
    }
}
