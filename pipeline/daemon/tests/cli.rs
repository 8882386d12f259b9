//! The command line as a script sees it: exit codes, standard output, standard error. No network.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml allows it in tests; helpers of a test file are not seen as such"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::Code;

const EXAMPLE: &str = include_str!("../../../deploy/anabranch.example.toml");
const SERIAL_CODES: &str = include_str!("../../../deploy/serial-codes.example.toml");
const FLUX: &str = include_str!("../../../deploy/flux.example.toml");

/// Runs `anabranch` without the caller's `ANABRANCH_*` variables.
fn anabranch(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary is built by cargo before this test")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.args(arguments);
    for variable in ["ANABRANCH_CONFIG", "ANABRANCH_LOG", "ANABRANCH_LOG_FORMAT"] {
        command.env_remove(variable);
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes the example with one replacement into a file; returns its path.
fn example_with(folder: &Path, from: &str, to: &str) -> String {
    let text = EXAMPLE.replacen(from, to, 1);
    assert!(from == to || text != EXAMPLE, "{from} is not in the example");
    let file = folder.join("anabranch.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn check_offline(from: &str, to: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = example_with(folder.path(), from, to);
    anabranch(&["--config", &file, "check", "--offline"])
}

#[test]
fn the_example_configuration_passes_the_offline_check() {
    let output = check_offline("", "");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("ok configuration"), "{}", stdout(&output));
    assert!(stdout(&output).contains("the rule reaches 100 of 100 tables"), "{}", stdout(&output));
}

#[test]
fn the_example_of_payment_documents_passes_the_offline_check_and_leaves_nothing_unaudited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flux.toml");
    fs::write(&file, FLUX).unwrap();
    let output = anabranch(&["--config", file.to_str().unwrap(), "check", "--offline"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let config = Config::parse(FLUX).unwrap();
    assert_eq!(config.flux_places.unaudited(), Vec::<String>::new());
    assert!(config.flux_identifiers().is_some());
}

#[test]
fn the_example_of_serial_codes_passes_the_offline_check() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serials.toml");
    fs::write(&file, SERIAL_CODES).unwrap();
    let output = anabranch(&["--config", file.to_str().unwrap(), "check", "--offline"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("the rule reaches 320 of 320 tables"), "{}", stdout(&output));
}

#[test]
fn the_folder_for_temporary_files_is_told_and_named_where_it_takes_none() {
    let folder = tempfile::tempdir().unwrap();
    let key = |path: &Path| format!("[limits]\nspill_dir = {path:?}");
    let output = check_offline("[limits]", &key(folder.path()));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let reported = format!("ok folder for temporary files: {}, ", folder.path().display());
    assert!(stdout(&output).contains(&reported), "{}", stdout(&output));
    // Not even root can make a file in the second one.
    for path in [folder.path().join("none").as_path(), Path::new("/proc/self")] {
        let output = check_offline("[limits]", &key(path));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let expected = format!("[config-invalid] configuration key limits.spill_dir: {} ", path.display());
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let file = example_with(&run, "[limits]", &key(&folder.path().join("none")));
    let output = anabranch(&["--config", &file, "run"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("limits.spill_dir"), "{}", stderr(&output));
}

#[test]
fn the_examples_show_every_default_as_it_is() {
    // Each commented key, taken literally, must parse and change nothing; these have no default.
    const WITHOUT_DEFAULT: [&str; 12] = [
        "ca_file",
        "tls",
        "tokens",
        "schedule",
        "signing_key",
        "sharding_column",
        "changed_at_column",
        "replica_",
        "retention_marker",
        "spill_dir",
        "setup_url",
        "sequence_setup_url",
    ];
    for example in [EXAMPLE, SERIAL_CODES, FLUX] {
        let active: String = example
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(key) if is_key(key) && !WITHOUT_DEFAULT.iter().any(|name| key.starts_with(name)) => {
                    format!("{key}\n")
                }
                _ => format!("{line}\n"),
            })
            .collect();
        assert_ne!(active, example);
        let (written, defaults) = (Config::parse(&active).unwrap(), Config::parse(example).unwrap());
        assert_eq!(format!("{written:?}"), format!("{defaults:?}"));
    }
}

/// Returns whether a line is `key = value` with a key of lower-case letters and underscores.
fn is_key(line: &str) -> bool {
    line.split_once(" = ")
        .is_some_and(|(key, _)| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
}

#[test]
fn a_wrong_configuration_exits_2_and_names_key_value_and_need() {
    for (from, to, expected) in [
        ("name = \"anabranch\"", "name = \"anabranch\"\ncolour = 1", "unknown field `colour`"),
        (
            "name = \"anabranch\"",
            "name = \"an abranch\"",
            "configuration key name: `an abranch`; needed: 1 to 32",
        ),
        ("# batch_bytes = 65536", "batch_bytes = 0", "nonzero"),
        ("# schedule = \"30 2 * * *\"", "schedule = \"half past two\"", "five fields of cron"),
        (
            "# schedule = \"30 2 * * *\"",
            "schedule = \"30 2 * * *\"\ntime_zone = \"Mars\"",
            "reconcile.time_zone: `Mars`",
        ),
        ("# gate_percent = 10.0", "gate_percent = 101.0", "reconcile.gate_percent: 101; needed: 0 to 100"),
        ("# memory_bytes = 201326592", "memory_bytes = 1000", "at least 16777216"),
        ("# mode = \"repair\"", "signing_key = \"short\"", "reconcile.signing_key: it is too short"),
        ("# flush_rows = 20000", "flush_rows = -1", "flush_rows"),
        (
            "mysql://capture:change-me@127.0.0.1:3306",
            "mysql://c:${ANABRANCH_TEST_NONE}@h",
            "ANABRANCH_TEST_NONE is not set",
        ),
        ("databases = 4", "databases = 4\n[[projections]]\nname = \"x\"", "missing field"),
        ("name = \"anabranch\"", "name = ", "line"),
    ] {
        let output = check_offline(from, to);
        assert_eq!(output.status.code(), Some(2), "{to}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{to}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("error: [config-invalid] configuration"), "{}", stderr(&output));
        assert!(!stderr(&output).contains("change-me"), "a secret in {}", stderr(&output));
    }
}

#[test]
fn a_server_in_plain_text_beyond_this_machine_is_warned_of() {
    let here = check_offline("name = \"anabranch\"", "name = \"anabranch\"");
    assert!(!stderr(&here).contains("in plain text"), "{}", stderr(&here));
    let output = check_offline("change-me@127.0.0.1:3306", "change-me@db.example:3306");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected =
        "source source-a: user, password and rows go to db.example:3306 in plain text; needed: a ca_file";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    assert!(!stderr(&output).contains("change-me"), "a secret in {}", stderr(&output));
}

#[test]
fn a_certificate_file_that_cannot_be_read_is_named() {
    let output = check_offline("# ca_file = \"/etc/anabranch/ca.pem\"", "ca_file = \"/nowhere/ca.pem\"");
    assert_eq!(output.status.code(), Some(2));
    let expected =
        "error: [config-invalid] configuration key log.ca_file: /nowhere/ca.pem cannot be read; needed:";
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
}

#[test]
fn every_mistake_is_shown_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = EXAMPLE.replace("name = \"source-b\"", "name = \"source-a\"").replace("{mmdd}", "{day}");
    let file = folder.path().join("anabranch.toml");
    fs::write(&file, text).unwrap();
    let output = anabranch(&["--config", file.to_str().unwrap(), "check", "--offline"]);
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("sources: `source-a` twice") && text.contains("projections.table"), "{text}");
}

#[test]
fn a_missing_file_exits_2_with_its_name() {
    let output = anabranch(&["--config", "/nowhere/anabranch.toml", "check", "--offline"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).starts_with("error: [config-unreadable] configuration file /nowhere/anabranch.toml"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_missing_config_option_is_wrong_usage_and_the_environment_serves_too() {
    let output = anabranch(&["check", "--offline"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("ANABRANCH_CONFIG"), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let file = example_with(folder.path(), "", "");
    let output = command(&["check", "--offline"]).env("ANABRANCH_CONFIG", file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_rule_that_cannot_reach_all_tables_is_a_warning_with_both_numbers() {
    let output = check_offline(
        "spread = \"spread\", databases = 10, tables = 10",
        "spread = \"literal\", databases = 100, tables = 1000",
    );
    assert_eq!(output.status.code(), Some(0));
    let warning = stderr(&output);
    assert!(
        warning.starts_with("warning: entity user: its rule reaches only 1000 of 100000 tables"),
        "{warning}"
    );
    assert!(warning.contains("\nwarning: reconcile.signing_key is not set"), "{warning}");
}

#[test]
fn check_prints_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let file = example_with(folder.path(), "name = \"source-b\"", "name = \"source-a\"");
    let output = anabranch(&["--config", &file, "check", "--offline", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(report["exit_code"], 2);
    assert_eq!(report["faults"][0]["code"], "config-invalid");
    assert_eq!(report["faults"][0]["needed"], "each name once");
    assert_eq!(stderr(&output), "");
}

#[test]
fn errors_are_json_objects_when_asked() {
    let output = anabranch(&["--config", "/nowhere", "--log-format", "json", "check", "--offline"]);
    let fault: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(fault["code"], "config-unreadable");
    for key in ["class", "subject", "found", "needed", "remedy", "causes"] {
        assert!(!fault[key].is_null(), "{key} is not in {fault}");
    }
}

#[test]
fn wrong_usage_exits_2() {
    for arguments in [&["colour"][..], &[], &["check", "--colour"], &["explain", "no-such-code"]] {
        assert_eq!(anabranch(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let unknown = stderr(&anabranch(&["explain", "binlog-purge"]));
    assert!(unknown.contains("[code-unknown]") && unknown.contains("such as binlog-purged"), "{unknown}");
    let output = anabranch(&["--log-level", "anabranch=loudly", "explain", "internal"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn help_and_version_exit_0_and_help_documents_exit_codes() {
    let output = anabranch(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("Exit codes:"), "{}", stdout(&output));
    assert!(stdout(&anabranch(&["--version"])).starts_with("anabranch "));
}

#[test]
fn completions_are_printed_for_each_shell() {
    for (shell, expected) in
        [("bash", "complete -F"), ("zsh", "#compdef anabranch"), ("fish", "complete -c anabranch")]
    {
        let output = anabranch(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(stdout(&output).contains(expected), "{shell}");
    }
}

#[test]
fn the_calendar_names_the_tables_of_a_day_and_of_a_programme() {
    let output = anabranch(&["calendar", "2027-02-28"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let tables = ["birthday_0228", "birthday_0229", "lunar_birthday_0123"];
    assert!(tables.iter().all(|table| stdout(&output).contains(table)), "{}", stdout(&output));
    assert_eq!(anabranch(&["calendar", "2027-02-30"]).status.code(), Some(2));

    let folder = tempfile::tempdir().unwrap();
    let programme = "[[programmes]]\nname = 'cakes'\ncoupon = 'cake'\ntime_zone = 'Asia/Shanghai'\n\
                     leap_day = 'mar1'\ncalendars = ['solar']\n\
                     [coupon_system]\nurl = 'https://coupons.example'\n";
    let file = folder.path().join("anabranch.toml");
    fs::write(&file, format!("{EXAMPLE}\n{programme}")).unwrap();
    let file = file.to_str().unwrap();
    let of = |name| anabranch(&["--config", file, "calendar", "2027-02-28", "--json", "--programme", name]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&of("cakes"))).unwrap();
    assert_eq!(value["tables"].as_array().unwrap().len(), 1, "{value}");
    let unknown = of("pies");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there is no programme `pies`"), "{}", stderr(&unknown));
    fs::write(file, format!("{EXAMPLE}\n{}", programme.replace("Asia/Shanghai", "Asia/Nowhere"))).unwrap();
    let reported = stderr(&anabranch(&["--config", file, "check", "--offline"]));
    assert!(reported.contains("there is no time zone `Asia/Nowhere`"), "{reported}");
}

#[test]
fn a_cool_off_without_the_time_of_changes_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let programme = "[[programmes]]\nname = 'cakes'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'mar1'\n\
                     cool_off_days = 3\n[coupon_system]\nurl = 'https://coupons.example'\n";
    let file = folder.path().join("anabranch.toml");
    let check = |entity: &str| {
        let text = EXAMPLE.replace("entity = \"user\"\n", &format!("entity = \"user\"\n{entity}"));
        fs::write(&file, format!("{text}\n{programme}")).unwrap();
        anabranch(&["--config", file.to_str().unwrap(), "check", "--offline"])
    };
    let refused = check("");
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("programme cakes: `cool_off_days` is 3, and no column of"),
        "{}",
        stderr(&refused)
    );
    let named = check("changed_at_column = \"birthday_changed_at\"\n");
    assert_eq!(named.status.code(), Some(0), "{}", stderr(&named));
    let field = check("changed_at_column = \"birthday\"\n");
    assert!(
        stderr(&field).contains("entities.changed_at_column: `birthday` is a field"),
        "{}",
        stderr(&field)
    );
}

#[test]
fn every_code_is_explained_from_the_runbook() {
    let list = stdout(&anabranch(&["explain"]));
    assert_eq!(list.lines().count(), Code::ALL.len());
    // The HTTP API answers with codes of this list and no others.
    for code in Code::ALL {
        let output = anabranch(&["explain", code.as_str()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(text.starts_with(&format!("### {code}\n")) && text.lines().count() > 1, "{text}");
    }
    let output = anabranch(&["explain", "[binlog-purged]"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("### binlog-purged\n"), "{}", stdout(&output));
    assert_eq!(stdout(&output).matches("### ").count(), 1);
}

#[test]
fn the_shipped_plans_are_printed_as_text_json_and_page() {
    for name in ["birthdays", "serial-codes", "flux"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../deploy/plans/{name}.toml"));
        let file = file.to_str().expect("the path is text");
        for (option, begins) in
            [("--years=3", name), ("--json", "{\"systems\":["), ("--page", "<!doctype html>")]
        {
            let output = anabranch(&["plan", file, option]);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            let begins = if option == "--years=3" {
                begins.replace('-', "_").to_uppercase()
            } else {
                begins.to_owned()
            };
            assert!(stdout(&output).starts_with(&begins), "{name} {option}");
            assert_eq!(stderr(&output), "");
        }
    }
    let output = anabranch(&["plan", "/nowhere/plan.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("[plan-invalid] plan /nowhere/plan.toml"));
    let flux = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/plans/flux.toml");
    let flux = flux.to_str().expect("the path is text");
    for (options, reported) in [
        (&["--measure"][..], "--config"),
        (&["--measure-seconds", "5"], "--measure"),
        (&["--measure", "--measure-seconds", "0"], "1..=600"),
    ] {
        let output = anabranch(&[&["plan", flux], options].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{options:?}");
        assert!(stderr(&output).contains(reported), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn an_identifier_is_explained_and_a_wrong_one_ends_by_its_code() {
    let output = anabranch(&["flux", "explain", "2016060611031103099052400029904"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("database    flux_00_0\ntable       atom_05_99\n"));
    let output = anabranch(&["flux", "explain", "2016023111031103099052400029904"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
    assert!(stderr(&output).contains("digits 1 to 8 (date) are 20160231; needed: a date of the calendar"));
    let recharge = "2016060611031003005050000029904";
    let output = anabranch(&["flux", "explain", recharge, "--kind", "refund", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("\"reason\":\"month\"") && stderr(&output).contains("[flux-misplaced]"));
    let output = anabranch(&["flux", "place", "refund", "--parent", recharge]);
    assert!(stdout(&output).contains("table       composite_05_99"), "{}", stdout(&output));
}

#[test]
fn an_address_on_the_command_line_of_init_is_refused_and_not_repeated() {
    let output = anabranch(&["init", "--source", "mysql://root:s3cret@db:3306"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("the name of a variable that holds the address"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
}

#[test]
fn what_is_wrong_with_an_address_of_init_is_said_with_its_source_and_variable() {
    for (value, expected) in [
        (
            None,
            "[config-invalid] address of source source-a: environment variable ANABRANCH_SOURCE_A_URL is not set",
        ),
        (
            Some("http://a:s3cret@b"),
            "[config-invalid] address of source source-a: scheme `http`; needed: mysql://",
        ),
        (Some("mysql://a:s3cret@127.0.0.1:1"), "[source-unreachable] source source-a"),
    ] {
        let mut command = command(&["init", "--source", "ANABRANCH_SOURCE_A_URL"]);
        command.env_remove("ANABRANCH_SOURCE_A_URL");
        command.envs(value.map(|value| ("ANABRANCH_SOURCE_A_URL", value)));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{value:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "", "{value:?}");
    }
    let two = anabranch(&["init", "--source", "a=X", "--source", "a=Y"]);
    assert!(stderr(&two).contains("--source a: two sources with one name"), "{}", stderr(&two));
}

#[test]
fn a_bundle_is_written_though_the_configuration_is_wrong_and_no_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = example_with(folder.path(), "name = \"anabranch\"", "nmae = \"anabranch\"");
    let file = folder.path().join("bundle.tar.gz");
    let bundle = || anabranch(&["--config", &configuration, "bundle", file.to_str().unwrap()]);
    let output = bundle();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = Command::new("tar").arg("-xzOf").arg(&file).output().unwrap();
    let text = stdout(&read);
    assert!(text.contains("nmae = \"anabranch\"") && text.contains("unknown field"), "{text}");
    assert!(!text.contains("change-me"), "{text}");
    let again = bundle();
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let expected = format!("[file-unwritable] file {}: it cannot be written; needed:", file.display());
    assert!(stderr(&again).contains(&expected), "{}", stderr(&again));
}

#[test]
fn a_key_that_is_no_text_is_refused_without_being_repeated() {
    for key in [&b"a secret \xff\xfe"[..], &[b'7'; 4096]] {
        let key: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(key);
        let said = stderr(&command(&["trace"]).arg(key).output().unwrap());
        assert!(said.starts_with("error: [lookup-malformed] the key") && !said.contains("secret"), "{said}");
    }
}

#[test]
fn a_statement_is_taken_in_for_all_programmes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, page) = (path("anabranch.toml"), path("page.json"));
    let programme = "[[programmes]]\nname = 'cakes'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'mar1'\n\
                     [coupon_system]\nurl = 'https://coupons.example'\n";
    fs::write(&file, format!("{EXAMPLE}\n{programme}")).unwrap();
    let said = anabranch(&["--config", &file, "dispatch", "take-in", &page, "--programme", "cakes"]);
    assert!(stderr(&said).contains("would leave out coupons of other programmes"), "{}", stderr(&said));
}
