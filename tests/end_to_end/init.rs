//! From unprepared servers to derived rows that a reconciliation proves: the first five minutes.

use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_tests::{Ground, Installation, Plan, Turn};
use serde_json::Value as Json;

use crate::STANDARD;

static MYSQL: Ground = Ground::mysql();

const DATABASES: u32 = 4;
const TABLES: u32 = 3;
const MEMBERS: u32 = 600;
/// Arguments of `init`, with variables that hold the addresses.
const INIT: [&str; 9] = [
    "init",
    "--source",
    "source-a=ANABRANCH_SOURCE_A_URL",
    "--source",
    "ANABRANCH_SOURCE_B_URL",
    "--target",
    "ANABRANCH_TARGET_URL",
    "--log",
    "ANABRANCH_NATS_URL",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_written_from_what_servers_have_and_proved_by_a_reconciliation() {
    written_and_proved(STANDARD.turn().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_written_from_what_mysql_has_and_proved_by_a_reconciliation() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    written_and_proved(turn).await;
}

async fn written_and_proved(turn: Turn<'_>) {
    let mut installation = Installation::prepare(turn, &Plan::small()).await;
    let rule = ShardingRule {
        hash: NameHash::JavaString,
        spread: Spread::Spread,
        databases: DATABASES,
        tables: TABLES,
    };
    for source in ["source-a", "source-b"] {
        for database in 0..Plan::small().rule.databases {
            installation.execute(source, format!("DROP DATABASE IF EXISTS user_{database:02}")).await;
        }
    }
    members(&installation, rule).await;

    let ca_file = installation.stack().ca_file().display().to_string();
    let written = installation.command(&[&INIT[..], &["--ca-file", &ca_file]].concat()).await;
    let text = written.expect_success().stdout.clone();
    assert!(text.contains("# 12 tables on source-a, source-b."), "{text}");
    assert!(text.contains("tables = \"crm_{db}.member_{table:02}\""), "{text}");
    assert!(text.contains("columns = { user_id = \"id\", birthday = \"born\" }"), "{text}");
    let found = "rule = { hash = \"java_string\", spread = \"spread\", databases = 4, tables = 3 }\n\
                 sharding_column = \"login\"";
    assert!(text.contains(found), "{text}");
    assert!(text.contains("#   shop.visit (2 tables)"), "{text}");
    assert!(text.contains("binlog_format = ROW"), "{text}");
    assert!(!text.contains("login-"), "no value of a row is shown: {text}");

    // A daemon of a test shares its servers, so it has a name, a port and small streams of its own.
    let text = text
        .replace("name = \"anabranch\"", &format!("name = \"{}\"", installation.configuration.name))
        .replace("[log]\n", "[log]\nmax_bytes = 500000000\n")
        .replace("9464", &installation.configuration.http_port.to_string());
    installation.write_configuration_text(&text);
    // `setup` has an account of its own, which is not in the daemon's environment.
    let setup_url = installation.server("target").setup_url().unwrap();
    installation.environment_mut().push(("ANABRANCH_TARGET_URL".to_owned(), setup_url));
    installation.command(&["setup"]).await.expect_success();
    installation.environment_mut().pop();
    installation.command(&["check"]).await.expect_success();
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    installation.execute("source-a", "UPDATE crm_0.member_00 SET born = DATE '1999-12-31'").await;
    let clean = installation.command(&["reconcile", "--now", "--json"]).await;
    let report: Json = serde_json::from_str(&clean.expect_success().stdout).unwrap();
    assert_eq!(report["verdict"], "clean", "{report}");
    assert_eq!(report["misplaced"].as_array().map_or(0, Vec::len), 0, "{report}");
}

/// Makes members whose tables an application of its own has named and filled.
async fn members(installation: &Installation<'_>, rule: ShardingRule) {
    let source_of = |database: u32| if database.is_multiple_of(2) { "source-a" } else { "source-b" };
    for source in ["source-a", "source-b"] {
        let grant = "CREATE DATABASE shop; CREATE TABLE shop.visit (id INT PRIMARY KEY, at DATE);
                     GRANT SELECT ON `crm\\_%`.* TO 'anabranch_capture'@'127.0.0.1';
                     GRANT SELECT ON shop.* TO 'anabranch_capture'@'127.0.0.1';";
        installation.execute(source, grant).await;
    }
    for database in 0..DATABASES {
        let mut sql = format!("CREATE DATABASE crm_{database};");
        for table in 0..TABLES {
            sql += &format!(
                "CREATE TABLE crm_{database}.member_{table:02} (id BIGINT PRIMARY KEY, city VARCHAR(20), \
                 login VARCHAR(40) NOT NULL, born DATE);"
            );
        }
        installation.execute(source_of(database), sql).await;
    }
    let mut inserts = vec![String::new(); DATABASES as usize];
    for number in 0..MEMBERS {
        let login = format!("login-{number}");
        let (database, table) = rule.locate(&login).unwrap();
        inserts[database as usize] += &format!(
            "INSERT INTO crm_{database}.member_{table:02} VALUES ({number}, 'Chengdu', '{login}', \
             DATE '1970-01-01' + INTERVAL {number} DAY);"
        );
    }
    for (database, sql) in (0..).zip(inserts) {
        installation.execute(source_of(database), sql).await;
    }
}
