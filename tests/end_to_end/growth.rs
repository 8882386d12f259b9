//! Growing under load, through the binary: users move to databases that are added, and a birthday projection with more
//! databases is built beside the first one and takes its place. `flux_years.rs` adds databases of payment documents.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_demo::{Pace, Topology, Workload, WorkloadOptions};
use anabranch_schemas::shard::ShardingRule;
use anabranch_tests::{Installation, Plan, seed, until};
use serde_json::json;

use crate::STANDARD;
use crate::reconciliations::{drift, reconcile, store};

/// Users that move. The load has none of these numbers.
const USERS: u64 = 400;
const FIRST_USER: u64 = 1 << 40;
/// The last of the ten databases. It stands from the beginning, since a source without a table is refused.
const LAST_DATABASE: &str = "user_09";

/// The second projection of birthdays, with twice as many databases.
const WIDE: &str = r#"
[[projections]]
name = "birthday_wide"
kind = "birthday"
targets = ["target"]
lanes = 2
layout = "by_day"
databases = 4
database = "birthday_wide_{db:02}"
table = "birthday_{mmdd}"
"#;

fn user_name(user: u64) -> String {
    format!("growing {user}")
}

/// Inserts the users where the first five databases have them.
async fn insert_users(installation: &Installation<'_>, first: &Topology) {
    let mut of_tables = BTreeMap::<String, Vec<String>>::new();
    for user in 0..USERS {
        let (year, month, day) = (1950 + user % 50, 1 + user % 12, 1 + user % 28);
        let (id, name) = (FIRST_USER + user, user_name(user));
        let table = first.source_table(&name).quoted();
        of_tables.entry(table).or_default().push(format!("({id}, '{name}', '{year}-{month:02}-{day:02}')"));
    }
    for (table, rows) in of_tables {
        let rows = rows.join(", ");
        let sql = format!("INSERT INTO {table} (user_id, user_name, birthday) VALUES {rows}");
        installation.execute("source-a", sql).await;
    }
}

/// Moves each user whose database is another one now: inserts the row there, then deletes it here. Returns how many
/// moved.
async fn move_users(installation: &Installation<'_>, first: &Topology, grown: &Topology) -> u64 {
    let (mut from, mut to) = (installation.admin("source-a").await, installation.admin("source-b").await);
    let mut moved = 0;
    for user in 0..USERS {
        let (id, name) = (FIRST_USER + user, user_name(user));
        let (old, new) = (first.source_table(&name), grown.source_table(&name));
        if old == new {
            continue;
        }
        let (old, new) = (old.quoted(), new.quoted());
        let row = format!("SELECT LEFT(CAST(birthday AS CHAR), 10) FROM {old} WHERE user_id = {id}");
        let birthday = from.first::<String>("read a user", row).await.unwrap().expect("nobody else moves it");
        let insert =
            format!("INSERT INTO {new} (user_id, user_name, birthday) VALUES ({id}, '{name}', '{birthday}')");
        to.execute("write a user there", insert).await.unwrap();
        from.execute("delete a user here", format!("DELETE FROM {old} WHERE user_id = {id}")).await.unwrap();
        moved += 1;
    }
    moved
}

/// Source resharding: five databases on one server become ten on two.
#[tokio::test(flavor = "multi_thread")]
async fn users_move_to_five_more_databases_under_load_and_no_row_differs() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let grown = installation.audits[0].topology.clone();
    let rule = ShardingRule { databases: 5, ..grown.rule };
    let first = Topology::users(vec![grown.sources[0].clone()], rule);
    for table in grown.tables_of(1) {
        let database = table.database_name();
        if database != LAST_DATABASE {
            installation.execute("source-b", format!("DROP DATABASE `{database}`")).await;
        }
    }
    let text = installation.configuration_text();
    let of_five = text.replace("databases = 10, tables = 1 }", "databases = 5, tables = 1 }");
    assert_ne!(of_five, text, "there is no rule");
    installation.write_configuration_text(&of_five);
    installation.command(&["setup"]).await.expect_success();
    let mut daemon = installation.run();
    daemon.until_ready().await;
    let mut workload = Workload::new(first.clone(), WorkloadOptions::new(seed("more source databases")));
    workload.insert_rows(1_500).await.unwrap();
    insert_users(&installation, &first).await;
    installation.drained().await;

    grown.create_schema().await.unwrap();
    let load = workload.run_for(Pace::of(300), Duration::from_secs(5));
    let (load, moved) = tokio::join!(load, move_users(&installation, &first, &grown));
    assert!(load.unwrap().changes > 0);
    assert!((100..300).contains(&moved), "about half of {USERS} users move, and {moved} did");

    // The application has its new rule, and each daemon gets it.
    assert!(daemon.terminate().is_some_and(|status| status.success()), "{}", daemon.log());
    installation.write_configuration_text(&text);
    let daemon = installation.run();
    daemon.until_ready().await;
    installation.expect_equal().await;
    let (ended, report) = reconcile(&installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let birthdays = store(&report, "birthday");
    assert_eq!((drift(birthdays), &birthdays["foreign_rows"]), (0, &json!(0)), "{birthdays}");
    // Rows of the load are still where the old rule has them; each user that moved is where the new one says.
    let misplaced = birthdays["placement"]["misplaced"].as_object().unwrap();
    assert!(misplaced.keys().all(|table| table.as_str() < "user_05"), "{birthdays}");
    assert_eq!(birthdays["placement"]["doubles"], json!([]), "{birthdays}");
}

/// Rows of a birthday projection on the target: table without its database, user and birthday.
async fn birthday_rows(installation: &Installation<'_>, databases: &str) -> Vec<(String, String)> {
    let rows = installation.derived_where(databases, "CONCAT(user_id, ' ', birthday)", "TRUE").await;
    let table_name = |table: String| table.rsplit('.').next().unwrap_or_default().to_owned();
    let mut rows: Vec<_> = rows.into_iter().map(|(table, row)| (table_name(table), row)).collect();
    rows.sort_unstable();
    rows
}

async fn until_both_are_equal(installation: &Installation<'_>) {
    until("both projections have the same rows", async || {
        let first = birthday_rows(installation, "birthday\\_0%").await;
        !first.is_empty() && first == birthday_rows(installation, "birthday\\_wide\\_%").await
    })
    .await;
}

async fn expect_clean(installation: &Installation<'_>, stores: &[&str]) {
    let (ended, report) = reconcile(installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    assert_eq!(report["stores"].as_array().unwrap().len(), stores.len(), "{report}");
    for name in stores {
        assert_eq!(drift(store(&report, name)), 0, "{report}");
    }
}

/// Target resharding, as `docs/limits.md` has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_projection_with_more_databases_is_built_beside_the_first_one_and_takes_its_place() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("more target databases")));
    workload.insert_rows(1_500).await.unwrap();
    installation.expect_equal().await;

    let first = installation.configuration_text();
    installation.write_configuration_text(&format!("{first}{WIDE}"));
    installation.command(&["setup"]).await.expect_success();
    assert!(daemon.terminate().is_some_and(|status| status.success()), "{}", daemon.log());
    let mut daemon = installation.run();
    // The second projection loads beside the load.
    workload.run_for(Pace::of(300), Duration::from_secs(3)).await.unwrap();
    daemon.until_ready().await;
    until_both_are_equal(&installation).await;
    expect_clean(&installation, &["birthday", "birthday_wide"]).await;

    // Applications read the second one now, and the first one goes.
    let (others, removed) = first.split_once("\n[[projections]]\n").unwrap();
    assert!(removed.contains("name = \"birthday\"") && !removed.contains("[["), "{removed}");
    installation.write_configuration_text(&format!("{others}{WIDE}"));
    assert!(daemon.terminate().is_some_and(|status| status.success()), "{}", daemon.log());
    let daemon = installation.run();
    daemon.until_ready().await;
    let tasks = daemon.status().await.unwrap()["tasks"].to_string();
    assert!(tasks.contains("lane/birthday_wide/") && !tasks.contains("lane/birthday/"), "{tasks}");
    let forget = "DROP DATABASE birthday_00; DROP DATABASE birthday_01; \
                  DELETE FROM anabranch.progress WHERE projection = 'birthday'; \
                  DELETE FROM anabranch.enrolled WHERE projection = 'birthday'";
    installation.execute("target", forget).await;
    workload.run_for(Pace::of(300), Duration::from_secs(2)).await.unwrap();
    expect_clean(&installation, &["birthday_wide"]).await;
    installation.command(&["check"]).await.expect_success();
    daemon.until_ready().await;
}
