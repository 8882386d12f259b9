//! Each pre-flight failure on a real server: found, named, and gone after its own remedy.

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::{ColumnNames, EntityConfig, MarkerTable, ServerUrl, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::SourceConnector;
use std::time::Duration;

use crate::source::{Database, DatabaseKind};

on_each_server!(each_unfit_table_is_named_and_repaired_by_its_remedy);

async fn check(config: &SourceConfig, entity: &EntityConfig) -> Vec<Fault> {
    let source = MysqlSource::new(config, std::slice::from_ref(entity), Duration::from_secs(5));
    let faults = source.check().await;
    for fault in &faults {
        println!("{fault}");
    }
    faults
}

async fn codes(database: &Database) -> Vec<Code> {
    check(&database.config(), &database.entity()).await.iter().map(Fault::code).collect()
}

/// Breaks a part, expects exactly one fault, runs its remedy, expects none.
async fn is_repaired(database: &Database, breaking: &[&str], code: Code, expected: &[&str]) {
    database.run(breaking).await;
    let faults = check(&database.config(), &database.entity()).await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [code], "{breaking:?}");
    for text in expected {
        let text = text.replace('$', &database.prefix);
        assert!(faults[0].to_string().contains(&text), "{text}: {}", faults[0]);
    }
    let remedy = faults[0].remedy_text().unwrap_or_else(|| panic!("no remedy: {}", faults[0]));
    let statements: Vec<_> = remedy.split("; ").collect();
    database.run(&statements).await;
    assert_eq!(codes(database).await, [], "after {remedy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wrong_setting_is_named_and_repaired_by_its_remedy() {
    let database = Database::with_flags(&[]).with_tables().await;
    assert_eq!(codes(&database).await, []);
    for (setting, value, code) in [
        ("binlog_format", "STATEMENT", Code::SourceFormatNotRow),
        ("binlog_format", "MIXED", Code::SourceFormatNotRow),
        ("binlog_row_image", "MINIMAL", Code::SourceImageNotFull),
        ("binlog_row_metadata", "NO_LOG", Code::SourceMetadataNotFull),
        ("binlog_row_metadata", "MINIMAL", Code::SourceMetadataNotFull),
    ] {
        let breaking = format!("SET GLOBAL {setting} = {value}");
        is_repaired(&database, &[&breaking], code, &[setting, value, "needed: "]).await;
    }
}

/// A reader that lost its connection asks only for this.
#[tokio::test(flavor = "multi_thread")]
async fn the_judged_state_stays_while_rows_change_and_differs_with_each_setting() {
    let database = Database::with_flags(&[]).with_tables().await;
    let source = database.source();
    let passed = source.judged_state().await.unwrap();
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)", "FLUSH BINARY LOGS"]).await;
    assert_eq!(source.judged_state().await.unwrap(), passed);
    for (setting, other) in [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "NO_LOG"),
        ("server_id", "4001"),
    ] {
        let usual = database.ask(&format!("SELECT CAST(@@GLOBAL.{setting} AS CHAR)")).await;
        database.run(&[&format!("SET GLOBAL {setting} = {other}")]).await;
        assert_ne!(source.judged_state().await.unwrap(), passed, "{setting}");
        database.run(&[&format!("SET GLOBAL {setting} = {usual}")]).await;
        assert_eq!(source.judged_state().await.unwrap(), passed, "{setting}");
    }
}

async fn each_unfit_table_is_named_and_repaired_by_its_remedy(database: Database) {
    let database = database.with_tables().await;
    let is_mysql = database.lent_as() == Some(DatabaseKind::MySql);
    for (breaking, code, expected) in [
        (
            "ALTER TABLE $0.t1 ENGINE = MyISAM",
            Code::SourceTableNotTransactional,
            &["table $0.t1", "MyISAM"][..],
        ),
        ("ALTER TABLE $0.t1 DROP COLUMN birthday", Code::SourceColumnMissing, &["table $0.t1", "birthday"]),
        (
            "ALTER TABLE $0.t1 MODIFY birthday INT",
            Code::SourceColumnUnsupported,
            &["table $0.t1", "type int", "DATE, DATETIME"],
        ),
        ("ALTER TABLE $0.t1 MODIFY user_id DOUBLE", Code::SourceColumnUnsupported, &["type double"]),
        (
            "ALTER TABLE $0.t1 MODIFY birthday VARCHAR(20) CHARACTER SET utf16",
            Code::SourceColumnUnsupported,
            &["character set utf16"],
        ),
        (
            "ALTER TABLE $0.t1 MODIFY birthday VARCHAR(20) COMPRESSED",
            Code::SourceColumnUnsupported,
            &["column birthday is COMPRESSED"],
        ),
    ] {
        if !(is_mysql && breaking.ends_with("COMPRESSED")) {
            is_repaired(&database, &[breaking], code, expected).await;
        }
    }
    if !is_mysql {
        is_repaired(
            &database,
            &["ALTER TABLE $0.t1 ADD SYSTEM VERSIONING"],
            Code::SourceTableVersioned,
            &["table $0.t1", "system-versioned"],
        )
        .await;
    }
    // Many tables with one problem are one fault.
    database.run(&["ALTER TABLE $0.t0 DROP COLUMN birthday", "ALTER TABLE $0.t1 DROP COLUMN birthday"]).await;
    let faults = check(&database.config(), &database.entity()).await;
    assert_eq!(faults.len(), 1);
    assert!(faults[0].to_string().contains("0.t0 and 1 more"), "{}", faults[0]);
    database.run(&["DROP DATABASE $0"]).await;
    assert_eq!(codes(&database).await, [Code::SourceTableMissing]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_missing_privilege_is_named_and_repaired_by_its_remedy() {
    let database = Database::with_flags(&[]).with_tables().await;
    let account = database
        .ask("SELECT CONCAT(User, '@\\'', Host, '\\'') FROM mysql.user WHERE User = 'anabranch_capture'")
        .await;
    let revoke = |privilege: &str| format!("REVOKE {privilege} ON *.* FROM {account}");
    let code = Code::SourceGrantMissing;
    is_repaired(
        &database,
        &[&revoke("REPLICATION SLAVE")],
        code,
        &["may not read the binlog", "REPLICATION SLAVE"],
    )
    .await;
    is_repaired(&database, &[&revoke("BINLOG MONITOR")], code, &["may not list binlogs", "BINLOG MONITOR"])
        .await;
    let revoke = format!("REVOKE SELECT ON `user\\_%`.* FROM {account}");
    is_repaired(&database, &[&revoke], Code::SourceTableMissing, &["no table matches", "SELECT"]).await;
    // Another privilege shows the table, but not its rows.
    let insert = format!("GRANT INSERT ON `user\\_%`.* TO {account}");
    let grant = format!("REVOKE SELECT ON `{}%`.* FROM {account}", database.prefix.replace('_', "\\_"));
    is_repaired(&database, &[&insert, &grant], code, &["may not read its captured columns"]).await;
    // Grants of columns hide a second column of the same meaning.
    let hiding = [
        format!("REVOKE INSERT ON `user\\_%`.* FROM {account}"),
        grant,
        "ALTER TABLE $0.t1 ADD COLUMN birth_date DATE".to_owned(),
        format!("GRANT SELECT ON $0.t0 TO {account}"),
        format!("GRANT SELECT (user_id, birthday) ON $0.t1 TO {account}"),
    ];
    database.run(&hiding.each_ref().map(String::as_str)).await;
    let birthday = ColumnNames::from("birthday");
    for (names, is_warned_of) in [(birthday.clone(), false), (birthday.or("birth_date"), true)] {
        let entity = EntityConfig { columns: vec!["user_id".into(), names], ..database.entity() };
        assert!(check(&database.config(), &entity).await.is_empty());
        let source = MysqlSource::new(&database.config(), &[entity], Duration::from_secs(5));
        let warnings = source.warnings().await;
        let names_it = |warning: &String| {
            warning.contains("0.t1") && warning.contains("birthday or birth_date may be hidden")
        };
        assert_eq!(warnings.iter().any(names_it), is_warned_of, "{warnings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_binlog_is_refused() {
    let database = Database::with_flags(&["--skip-log-bin"]).with_tables().await;
    assert_eq!(codes(&database).await, [Code::SourceBinlogOff]);
    assert_eq!(database.source().head().await.unwrap_err().code(), Code::SourceBinlogOff);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binlog_that_leaves_captured_changes_out_is_refused() {
    let filtered = Database::with_flags(&["--binlog-do-db=elsewhere"]).with_tables().await;
    let faults = check(&filtered.config(), &filtered.entity()).await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [Code::SourceBinlogOff]);
    assert!(faults[0].to_string().contains("binlog_do_db does not name it"), "{}", faults[0]);
    // Another captured database needs another whole pre-flight: a filter may leave it out.
    let source = filtered.source();
    let passed = source.judged_state().await.unwrap();
    assert_eq!(source.judged_state().await.unwrap(), passed);
    filtered.run(&["CREATE DATABASE $1", "CREATE TABLE $1.t0 LIKE $0.t0"]).await;
    assert_ne!(source.judged_state().await.unwrap(), passed);

    // The server replicates, and writes nothing of that into its binlog.
    let flags = ["--skip-log-slave-updates", "--binlog-ignore-db=flux_ops"];
    let replica = Database::with_flags(&flags).with_tables().await;
    assert_eq!(codes(&replica).await, []);
    let marker = |database: &str| EntityConfig {
        retention_marker: Some(MarkerTable { database: database.to_owned(), table: "retention".to_owned() }),
        ..replica.entity()
    };
    let faults = check(&replica.config(), &marker("FLUX_OPS")).await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [Code::SourceBinlogOff]);
    assert!(faults[0].to_string().contains("of flux.retention_marker is not in the binlog"), "{}", faults[0]);
    assert_eq!(check(&replica.config(), &marker("elsewhere")).await.len(), 0);
    replica.run(&["SET GLOBAL gtid_slave_pos = CONCAT(@@gtid_binlog_pos, ',7-7-7')"]).await;
    let faults = check(&replica.config(), &replica.entity()).await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [Code::SourceBinlogOff]);
    assert!(faults[0].to_string().contains("log_slave_updates = OFF"), "{}", faults[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_missing_tls_are_told_apart() {
    let database = Database::shared().with_tables().await;
    let entity = database.entity();
    let with_url = |url: String| {
        let url = anabranch_pipeline::config::ServerUrl::try_from(url).unwrap();
        SourceConfig { url, ..database.config() }
    };
    let port = database.server().port();
    let user = database.server().user();
    let wrong = check(&with_url(format!("mysql://{user}:wrong-secret@127.0.0.1:{port}")), &entity).await;
    assert_eq!(wrong[0].code(), Code::SourceAccessDenied);
    assert!(!wrong[0].to_string().contains("wrong-secret"), "{}", wrong[0]);

    // The account requires TLS.
    let plain = check(&SourceConfig { ca_file: None, ..database.config() }, &entity).await;
    assert_eq!(plain[0].code(), Code::SourceAccessDenied);
    assert!(plain[0].to_string().contains("ca_file"), "{}", plain[0]);

    // No server listens there.
    let nobody = check(&with_url("mysql://a:b@127.0.0.1:1".to_owned()), &entity).await;
    assert_eq!(nobody[0].code(), Code::SourceUnreachable);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing.pem");
    let other = check(&SourceConfig { ca_file: Some(file), ..database.config() }, &entity).await;
    assert_eq!(other[0].code(), Code::SourceAccessDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_when_tls_is_configured() {
    let database = Database::shared();
    let plain = Database::with_flags(&["--skip-ssl"]);
    // A CA that did not sign the server's certificate.
    let foreign = SourceConfig { ca_file: Some(plain.ca_file()), ..database.config() };
    assert_eq!(check(&foreign, &database.entity()).await[0].code(), Code::SourceAccessDenied);

    let config = SourceConfig { ca_file: Some(plain.ca_file()), ..plain.config() };
    let faults = check(&config, &plain.entity()).await;
    assert_eq!(faults[0].code(), Code::SourceAccessDenied);
    assert!(faults[0].to_string().contains("TLS"), "{}", faults[0]);
}

/// The account needs more than SELECT to see foreign keys on MariaDB.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_that_changes_captured_rows_is_warned_of_and_no_fault() {
    let database = Database::with_flags(&[]).with_tables().await;
    let entity = database.entity();
    let warnings = async || {
        let source =
            MysqlSource::new(&database.config(), std::slice::from_ref(&entity), Duration::from_secs(5));
        source.warnings().await
    };
    let reported =
        |warnings: &[String]| warnings.iter().any(|warning| warning.contains("foreign key parent_id"));
    let account = format!("'{}'@'127.0.0.1'", database.server().user());
    database.run(&[&format!("GRANT SELECT, REFERENCES ON `$0`.* TO {account}")]).await;
    assert!(!reported(&warnings().await));
    database
        .run(&[
            "CREATE TABLE $0.parent (id BIGINT UNSIGNED PRIMARY KEY)",
            "ALTER TABLE $0.t1 ADD CONSTRAINT parent_id FOREIGN KEY (user_id) REFERENCES $0.parent (id) \
             ON DELETE CASCADE",
        ])
        .await;
    let found = warnings().await;
    assert!(reported(&found), "{found:?}");
    assert!(found.iter().any(|warning| warning.contains("0.t1")), "{found:?}");
    assert_eq!(codes(&database).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_password_is_not_asked_with_by_every_task_and_the_next_one_is_its_own_question() {
    const ATTEMPTS: u64 = 60;
    let database = Database::with_flags(&[]).with_tables().await;
    let right = database.config();
    let password = right.url.password().expose().to_owned();
    let wrong = ServerUrl::try_from(database.server().url().replace(&password, "wrong")).unwrap();
    let source = |url: &ServerUrl| {
        let config = SourceConfig { url: url.clone(), ..database.config() };
        MysqlSource::new(&config, &[database.entity()], Duration::from_secs(2))
    };
    let refused = async || -> u64 {
        let status = "SELECT variable_value FROM information_schema.global_status \
                      WHERE variable_name = 'ACCESS_DENIED_ERRORS'";
        database.ask(status).await.parse().unwrap()
    };
    let before = refused().await;
    for _ in 0..ATTEMPTS {
        let fault = source(&wrong).head().await.unwrap_err();
        assert_eq!(fault.code(), Code::SourceAccessDenied, "{fault}");
    }
    let asked = refused().await - before;
    assert!((1..ATTEMPTS / 4).contains(&asked), "the server was asked {asked} times");
    source(&right.url).head().await.unwrap();
}
