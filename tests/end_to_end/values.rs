//! Every kind of birthday in every type of column, and names of every encoding beside it.

use anabranch_tests::{Installation, Plan};

use crate::STANDARD;

/// Runs statements in a session that stores values as they are.
async fn execute(installation: &Installation<'_>, server: &str, sql: &str) {
    let sql = format!("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'; {sql}");
    installation.execute(server, sql).await;
}

/// Dates, each with its day or the reason why it is in no table.
const DATES: [(&str, &str); 9] = [
    ("'2000-02-29'", "02-29"),
    ("'1999-12-31'", "12-31"),
    ("'0001-01-01'", "01-01"),
    ("NULL", "null"),
    ("'0000-00-00'", "zero"),
    ("'1990-00-10'", "zero"),
    ("'2023-02-30'", "not_a_date"),
    ("'2023-02-29'", "not_a_date"),
    ("'0000-05-05'", "year_zero"),
];

const TEXTS: [(&str, &str); 6] = [
    ("'2000-02-29 23:59:59'", "02-29"),
    ("' 2000-02-29T00:00:00Z '", "02-29"),
    ("''", "null"),
    ("'29.02.2000'", "malformed"),
    ("'🎂'", "malformed"),
    ("'2000-2-29'", "malformed"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_birthday_of_each_column_type_is_derived_or_counted_by_its_reason() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let mut expected = Vec::new();
    let mut user = 0;
    // The columns are DATE, DATETIME, text, DATE and DATETIME(6), on each server.
    for database in 0..10 {
        let server = if database < 5 { "source-a" } else { "source-b" };
        let texts: &[_] = if database % 5 == 2 { &TEXTS } else { &[] };
        let mut sql = String::new();
        for (value, outcome) in DATES.iter().chain(texts) {
            user += 1;
            expected.push((user, *outcome));
            sql += &format!(
                "INSERT INTO user_{database:02}.user_000 (user_id, user_name, birthday) VALUES ({user}, 'ü', {value});"
            );
        }
        execute(&installation, server, &sql).await;
    }
    installation.expect_equal().await;
    for (user, outcome) in &expected {
        let days: Vec<String> = installation.derived(*user).await.into_iter().map(|(_, day)| day).collect();
        let wanted: Vec<&str> = Some(*outcome).filter(|outcome| outcome.contains('-')).into_iter().collect();
        assert_eq!(days, wanted, "user {user}: {outcome}");
    }
    for reason in ["null", "zero", "not_a_date", "year_zero", "malformed"] {
        for (source, users) in
            [("source-a", &expected[..expected.len() / 2]), ("source-b", &expected[expected.len() / 2..])]
        {
            let wanted = users.iter().filter(|(_, outcome)| *outcome == reason).count();
            let labels = [format!("reason=\"{reason}\""), format!("source=\"{source}\"")];
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let counted = daemon.metric("anabranch_row_defects_total", &labels).await;
            assert_eq!(counted, wanted as f64, "{reason} of {source}");
        }
    }

    // Each defect becomes a date and then a defect again.
    execute(&installation, "source-a", "UPDATE user_00.user_000 SET birthday = '2001-06-15'").await;
    execute(&installation, "source-a", "UPDATE user_02.user_000 SET birthday = '2001-06-15'").await;
    let comparison = installation.expect_equal().await;
    assert!(comparison.claims > 20, "{comparison:?}");
    execute(&installation, "source-a", "UPDATE user_00.user_000 SET birthday = '2001-06-31'").await;
    execute(&installation, "source-a", "UPDATE user_02.user_000 SET birthday = NULL").await;
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_texts_of_any_encoding_pass() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    for (server, table, column) in [
        ("source-a", "user_00.user_000", "user_name VARCHAR(64) CHARACTER SET latin1"),
        ("source-a", "user_01.user_000", "user_name VARCHAR(64) CHARACTER SET gbk"),
        ("source-b", "user_05.user_000", "user_name VARBINARY(64)"),
        ("source-b", "user_07.user_000", "birthday VARCHAR(64) CHARACTER SET latin1"),
    ] {
        installation.execute(server, format!("ALTER TABLE {table} MODIFY {column}")).await;
    }
    let _daemon = installation.run();
    for (server, table, user, name) in [
        ("source-a", "user_00.user_000", 1, "'Zoë Ÿ'"),
        ("source-a", "user_01.user_000", 2, "'张三丰'"),
        ("source-b", "user_05.user_000", 3, "x'00ff80c3280a27'"),
        ("source-b", "user_06.user_000", 4, "'😀 O''Neill'"),
        ("source-b", "user_07.user_000", 5, "''"),
    ] {
        let sql = format!(
            "INSERT INTO {table} (user_id, user_name, birthday, address) VALUES ({user}, {name}, '1980-07-07', '北京')"
        );
        installation.execute(server, sql).await;
        assert_eq!(installation.derived(user).await.len(), 1, "{table}");
        installation
            .execute(server, format!("UPDATE {table} SET user_name = 'b', birthday = '1980-08-08'"))
            .await;
        let day = &installation.derived(user).await[0].1;
        assert_eq!(day, "08-08", "{table}");
    }
    // A text column with bytes that are not UTF-8.
    installation.execute("source-b", "UPDATE user_07.user_000 SET birthday = 'né en été'").await;
    assert_eq!(installation.derived(5).await, []);
    let tail = installation
        .command(&["tail", "--no-follow", "--source", "source-b", "--user-id", "5", "--limit", "3"])
        .await
        .expect_success();
    let last = tail.json_lines().pop().unwrap();
    assert_eq!(last["after"]["birthday"]["base64"], "bukgZW4g6XTp", "{last}");
}
