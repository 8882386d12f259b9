//! Set-up and pre-flight of a target on MariaDB: each failure is named, and its remedy repairs it.

use anabranch_connectors::mysql::store::SetupReport;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::records::Progress;

use crate::derived::{StoreSite, insert, user};

/// The faults of the first target's pre-flight.
async fn faults(site: &StoreSite) -> Vec<Fault> {
    site.target("target-a").check().await
}

async fn ready() -> StoreSite {
    let site = StoreSite::new().await;
    site.target("target-a").setup().await.unwrap();
    assert!(faults(&site).await.is_empty(), "{:?}", faults(&site).await);
    site
}

fn assert_one(faults: &[Fault], code: Code, part: &str) -> String {
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].code(), code, "{}", faults[0]);
    assert!(faults[0].to_string().contains(part), "{} holds no `{part}`", faults[0]);
    faults[0].remedy_text().expect("a remedy").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_creates_everything_once_and_repeats_harmlessly() {
    let site = StoreSite::new().await;
    let before = faults(&site).await;
    assert!(before.iter().all(|fault| fault.code() == Code::TargetTableMissing), "{before:?}");
    assert!(before.iter().all(|fault| fault.remedy_text() == Some("anabranch --config FILE setup")));
    let target = site.target("target-a");
    let report = target.setup().await.unwrap();
    assert_eq!(report, SetupReport { databases: 5, tables: 370, progress_rows: 4, columns: 0 });
    assert_eq!(target.setup().await.unwrap(), SetupReport::default());
    assert!(faults(&site).await.is_empty(), "{:?}", faults(&site).await);
    assert_eq!(target.progress().await.unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_set_ups_at_once_make_one() {
    let site = StoreSite { layout: "by_user", databases: 2, ..StoreSite::new().await };
    let (one, two) = (site.target("target-a"), site.target("target-a"));
    let (one, two) = tokio::join!(one.setup(), two.setup());
    one.unwrap();
    two.unwrap();
    assert!(faults(&site).await.is_empty());
    assert_eq!(site.target("target-a").progress().await.unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_source_gets_its_progress_beside_tables_that_others_have_filled() {
    let site = StoreSite { sources: vec!["source-a"], ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let (mut lane, progress) = site.lane("source-a", 0).await;
    lane.commit(&site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))])).await.unwrap();
    let site = StoreSite { sources: vec!["source-a", "source-b"], ..site };
    let remedy =
        assert_one(&faults(&site).await, Code::TargetProgressLost, "no progress row was made for it yet");
    assert_eq!(remedy, "anabranch --config FILE setup");
    let report = site.target("target-a").setup().await.unwrap();
    assert_eq!(report, SetupReport { databases: 0, tables: 0, progress_rows: 2, columns: 0 });
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn filled_tables_without_any_progress_are_never_taken_for_new() {
    let site = ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    lane.commit(&site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))])).await.unwrap();
    site.sql(format!("DROP DATABASE `{}`", site.control())).await;
    let fault = site.target("target-a").setup().await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetProgressLost, "{fault}");
    assert!(fault.to_string().contains("birthday_0101"), "{fault}");
    site.sql(format!("TRUNCATE {}", site.table(0, "0101"))).await;
    site.target("target-a").setup().await.unwrap();
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_database_that_is_gone_is_a_loss_of_each_source_until_its_lanes_have_other_progress() {
    let site = StoreSite { sources: vec!["source-a"], ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let (mut lane, progress) = site.lane("source-a", 0).await;
    lane.commit(&site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))])).await.unwrap();
    let site = StoreSite { sources: vec!["source-a", "source-b"], ..site };
    let target = site.target("target-a");
    assert_eq!(target.lost_lanes("source-b").await.unwrap(), [], "it is new, and set-up makes its progress");
    site.sql(format!("DROP DATABASE `{}`", site.control())).await;
    for source in ["source-a", "source-b"] {
        assert_eq!(target.setup().await.unwrap_err().code(), Code::TargetProgressLost, "{source}");
        let lost = target.lost_lanes(source).await.unwrap();
        assert_eq!(lost.len(), 2, "{source}");
        let own = Progress { revision: 1_000, ..Progress::default() };
        let lanes: Vec<_> = lost.into_iter().map(|lane| (lane, own.clone())).collect();
        target.begin_lost_lanes(&lanes).await.unwrap();
    }
    assert_eq!(target.setup().await.unwrap().progress_rows, 0);
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_vanished_is_made_again_only_while_nothing_was_applied() {
    let site = ready().await;
    site.sql(format!("DROP TABLE {}", site.table(0, "0101"))).await;
    let remedy = assert_one(&faults(&site).await, Code::TargetTableMissing, "birthday_0101");
    assert_eq!(remedy, "anabranch --config FILE setup");
    assert_eq!(site.target("target-a").setup().await.unwrap().tables, 1);
    assert!(faults(&site).await.is_empty());

    let (mut lane, progress) = site.lane("source-a", 0).await;
    lane.commit(&site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))])).await.unwrap();
    site.sql(format!("DROP TABLE {}", site.table(0, "0101"))).await;
    let remedy = assert_one(&faults(&site).await, Code::TargetTableMissing, "birthday_0101");
    assert!(remedy.contains("restore"), "{remedy}");
    assert!(remedy.contains("setup --refill birthday"), "{remedy}");
    assert_eq!(site.target("target-a").setup().await.unwrap_err().code(), Code::TargetTableMissing);
    let target = site.target("target-a");
    assert_eq!(target.gone_tables("other").await.unwrap(), Vec::<String>::new());
    assert_eq!(target.refill("other").await.unwrap_err().code(), Code::TargetTableMissing);
    assert_eq!(target.gone_tables("birthday").await.unwrap(), [site.table(0, "0101")]);
    assert_eq!(target.refill("birthday").await.unwrap().tables, 1);
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wrong_shape_is_named_and_its_alter_statement_repairs_it() {
    let site = ready().await;
    let table = site.table(1, "0102");
    for (damage, part) in [
        (
            "MODIFY COLUMN `user_id` int NOT NULL",
            "column `user_id` is int NOT NULL; needed: bigint unsigned NOT NULL",
        ),
        ("MODIFY COLUMN `lsn` bigint unsigned NULL", "column `lsn` is bigint unsigned NULL"),
        ("MODIFY COLUMN `birthday` char(4) NOT NULL", "char(4)"),
        ("DROP COLUMN `is_sent`", "column `is_sent` is missing"),
        ("ADD COLUMN `note` int NOT NULL", "a further column `note`"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (`user_id`, `shard_id`)", "primary key is (user_id, shard_id)"),
        ("DROP PRIMARY KEY", "it has no primary key"),
        ("ADD UNIQUE KEY `once` (`user_id`)", "a second unique key `once`"),
        ("ENGINE = MyISAM", "its engine is MyISAM"),
    ] {
        site.sql(format!("ALTER TABLE {table} {damage}")).await;
        let remedy = assert_one(&faults(&site).await, Code::TargetTableShape, part);
        site.sql(remedy).await;
        assert!(faults(&site).await.is_empty(), "after the remedy of `{damage}`: {:?}", faults(&site).await);
    }
    site.sql(format!(
        "ALTER TABLE {table} ADD COLUMN `less` int NULL, ADD COLUMN `more` int NOT NULL DEFAULT 1"
    ))
    .await;
    assert!(faults(&site).await.is_empty(), "columns that fill themselves do no harm");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_control_table_is_named_and_repaired() {
    let site = ready().await;
    site.sql(format!(
        "ALTER TABLE `{}`.progress MODIFY COLUMN `revision` bigint unsigned NULL",
        site.control()
    ))
    .await;
    let remedy = assert_one(&faults(&site).await, Code::TargetTableShape, "column `revision`");
    site.sql(remedy).await;
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_made_for_other_lanes_or_another_layout_does_not_pass() {
    let site = StoreSite { lanes: 3, ..ready().await };
    let remedy = assert_one(
        &faults(&site).await,
        Code::TargetProgressLost,
        "it was made for 2 lanes; needed: 3 lanes",
    );
    assert!(remedy.starts_with("set `lanes = 2` for projection birthday"), "{remedy}");
    let fault = site.target("target-a").setup().await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetProgressLost, "{fault}");

    let site = StoreSite { lanes: 2, databases: 3, ..site };
    let remedy = assert_one(&faults(&site).await, Code::TargetProgressLost, "4 databases");
    assert!(remedy.starts_with("set the projection's layout back"), "{remedy}");
    assert_eq!(site.target("target-a").setup().await.unwrap_err().code(), Code::TargetProgressLost);
    let mut lane = site.target("target-a").lane(&site.lane_id("source-a", 0)).unwrap();
    assert_eq!(lane.load().await.unwrap_err().code(), Code::TargetProgressLost);

    let site = StoreSite { databases: 4, ..site };
    assert!(faults(&site).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_is_named_with_its_grant() {
    let site = StoreSite::alone().await;
    site.target("target-a").setup().await.unwrap();
    assert!(faults(&site).await.is_empty(), "{:?}", faults(&site).await);
    for privilege in ["DELETE", "INSERT", "UPDATE"] {
        site.sql(format!("REVOKE {privilege} ON `birthday\\_%`.* FROM 'anabranch_apply'@'127.0.0.1'")).await;
        let faults_found = faults(&site).await;
        assert_eq!(faults_found.len() as u32, site.databases, "one a database: {faults_found:?}");
        for fault in faults_found {
            assert_eq!(fault.code(), Code::TargetGrantMissing, "{fault}");
            site.sql(fault.remedy_text().unwrap().replace("<host of Anabranch>", "127.0.0.1")).await;
        }
        assert!(faults(&site).await.is_empty(), "{privilege}");
        // The grant on the pattern alone, for the next round.
        for database in 0..site.databases {
            let database = format!("`birthday_{}_{database:02}`", site.prefix);
            site.sql(format!("REVOKE ALL PRIVILEGES ON {database}.* FROM 'anabranch_apply'@'127.0.0.1'"))
                .await;
        }
        site.sql(format!("GRANT {privilege} ON `birthday\\_%`.* TO 'anabranch_apply'@'127.0.0.1'")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_a_wrong_password_and_a_dead_server_are_told_apart() {
    let site = StoreSite::alone().await;
    site.target("target-a").setup().await.unwrap();
    site.sql("SET GLOBAL read_only = ON").await;
    let found = faults(&site).await;
    assert!(!found.is_empty());
    for fault in &found {
        assert_eq!(fault.code(), Code::TargetReadOnly, "{fault}");
        assert!(fault.to_string().contains("read-only"), "{fault}");
    }
    site.sql("SET GLOBAL read_only = OFF").await;
    assert!(faults(&site).await.is_empty());

    site.sql("ALTER USER 'anabranch_apply'@'127.0.0.1' IDENTIFIED BY 'other'").await;
    let found = faults(&site).await;
    assert_eq!((found.len(), found[0].code()), (1, Code::TargetAccessDenied), "{found:?}");

    anabranch_connectors::refusals::forget();
    let server = site.stack.server("target-a").unwrap();
    let config = site.target("target-a");
    tokio::task::spawn_blocking(move || server.kill().unwrap()).await.unwrap();
    let found = config.check().await;
    assert_eq!((found.len(), found[0].code()), (1, Code::TargetUnreachable), "{found:?}");
}
