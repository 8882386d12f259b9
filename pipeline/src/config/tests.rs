use super::*;

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

fn problems(text: &str) -> String {
    let faults = Config::parse(text).expect_err("must be refused");
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_small_file_is_enough_and_defaults_fill_the_rest() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.entities[0].columns, ["user_id", "born"]);
    assert_eq!(config.sources[0].url.password().expose(), "p@ss");
    assert_eq!(config.sources[0].start, Entry::Earliest);
    assert_eq!(config.projections[0].lanes.get(), 2);
    let ProjectionKind::Birthday(tables) = &config.projections[0].kind;
    assert_eq!(tables.database_name(3), "birthday_03");
}

#[test]
fn each_mistake_is_named_with_its_key() {
    for (from, to, expected) in [
        ("name = \"demo\"", "name = \"de mo\"", "configuration key name: `de mo`"),
        ("name = \"demo\"", "name = \"demo\"\ncolour = 1", "unknown field `colour`"),
        ("databases = 4", "databases = 0", "a nonzero"),
        ("databases = 4", "databases = -4", "databases"),
        ("databases = 4", "databases = 4\nlanes = 0", "lanes"),
        ("targets = [\"target\"]", "targets = []", "projections.targets: none"),
        ("targets = [\"target\"]", "targets = [\"other\"]", "`other`"),
        ("mysql://capture", "http://capture", "expected mysql, nats or tls"),
        (
            "p%40ss@127.0.0.1:3306",
            "${ANABRANCH_NO_SUCH}@x",
            "environment variable ANABRANCH_NO_SUCH is not set",
        ),
        ("birthday_{mmdd}", "birthday", "a name with {mmdd}"),
        ("birthday = \"born\"", "brithday = \"born\"", "entities.columns.brithday"),
        ("user_{db:02}.user", "user_{x}.user", "is not a table pattern"),
        ("[log]", "[limits]\nbatch_bytes = 0\n[log]", "batch_bytes"),
        ("[log]", "[limits]\nbatch_bytes = 10000000\n[log]", "at most 524288"),
        (
            "[log]",
            "[log]\nmax_age_seconds = 19",
            "configuration key log.max_age_seconds: 19; needed: at least 20",
        ),
        ("[log]", "[limits]\nmark_interval_ms = 1\n[log]\nmax_age_seconds = 1", "at least 2"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from} is not in the sample");
        let found = problems(&text);
        assert!(found.contains(expected), "{to}: {found}");
        assert!(!found.contains("p@ss") && !found.contains("p%40ss"), "a secret in {found}");
    }
}

#[test]
fn overlapping_patterns_and_names_used_twice_are_refused() {
    let twice = format!("{GOOD}\n[[entities]]\nentity = \"user\"\ntables = \"user_00.user_{{table:03}}\"\n");
    let found = problems(&twice);
    assert!(found.contains("can name the same table") && found.contains("`user` twice"), "{found}");
}

#[test]
fn a_target_inside_a_captured_pattern_is_refused() {
    let text = GOOD
        .replace("127.0.0.1:3307", "127.0.0.1:3306")
        .replace("birthday_{db:02}", "user_{db:02}")
        .replace("table = \"birthday_{mmdd}\"", "table = \"user_{mmdd}\"");
    assert!(problems(&text).contains("[target-is-source] target target"), "{}", problems(&text));
}

#[test]
fn secrets_are_never_printed() {
    let config = Config::parse(GOOD).unwrap();
    let printed = format!("{config:?} {}", config.sources[0].url);
    assert!(!printed.contains("p@ss") && !printed.contains("secret"), "{printed}");
}
