//! Any code of a device leads to the device and to no other: each trap of the serial codes, on real servers.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_schemas::change::Entity;
use anabranch_tests::{Daemon, Installation, Plan, seed, until, until_each_kind};

use crate::STANDARD;

/// Tables on `source-a`, with uuids that are integers and text.
const A_INTEGER: &str = "inventory_0.serial_code_00";
const A_TEXT: &str = "inventory_1.serial_code_01";
/// Tables on `source-b`, as the history is.
const B_TEXT: &str = "inventory_3.serial_code_01";
const HISTORY: &str = "inventory_history.serial_code_00";

async fn prepare<'g>(plan: &Plan) -> Installation<'g> {
    Installation::set_up(STANDARD.turn().await, plan).await
}

/// Runs statements of an application; text is stored as it is.
async fn on(installation: &Installation<'_>, server: &str, sql: &str) {
    installation.execute(server, format!("SET SESSION sql_mode = 'STRICT_ALL_TABLES'; {sql}")).await;
}

fn insert(table: &str, uuid: &str, codes: &str) -> String {
    format!("INSERT INTO {table} SET uuid = {uuid}, {codes};")
}

/// Expects the code to lead to exactly these devices: `uuid kind`, sorted.
async fn leads_to(installation: &Installation<'_>, code: &str, devices: &[&str]) {
    let rows = installation.mapped(code.as_bytes()).await;
    let found: Vec<&str> = rows.iter().map(|(_, device)| device.as_str()).collect();
    assert_eq!(found, devices, "{code}: {rows:?}");
}

async fn lies_in(installation: &Installation<'_>, code: &str, table: &str) {
    let rows = installation.mapped(code.as_bytes()).await;
    assert!(!rows.is_empty() && rows.iter().all(|(place, _)| place == table), "{code}: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_of_devices_arrives_beside_users_on_two_targets() {
    let plan = Plan { targets: 2, serial_tables: 8, ..Plan::both() };
    let installation = prepare(&plan).await;
    let mut daemon = installation.run();
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("serials")));
    let mut devices = workloads.pop().unwrap();
    let mut users = workloads.pop().unwrap();
    users.insert_rows(4_000).await.unwrap();
    let mut report = devices.insert_rows(2_000).await.unwrap();
    let running =
        [&mut users, &mut devices].map(|workload| workload.run_for(Pace::of(500), Duration::from_secs(4)));
    for part in futures::future::join_all(running).await {
        report.merge(&part.unwrap());
    }
    until_each_kind(&mut devices, Pace::of(500), &mut report).await;
    let kinds = report.absent_kinds(Entity::SerialCode);
    let absent: Vec<&str> = kinds.into_iter().filter(|kind| !kind.contains("10000")).collect();
    assert_eq!(absent, Vec::<&str>::new(), "{report:?}");
    installation.expect_equal_and_full().await;
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_code_leads_to_its_devices_from_the_one_table_of_its_value_among_512() {
    let installation = prepare(&Plan { mapping_tables: 512, ..Plan::serials() }).await;
    let _daemon = installation.run();
    let phone = "imei1 = '490154203237518', imei2 = '356938035643809', meid = 'a0000012ab34cd', \
                 box_no = '000000000000000100', item_code = 'ITEM-0000000001'";
    on(&installation, "source-a", &insert(A_INTEGER, "640", phone)).await;

    // The value decides the table, and not the uuid: 640 % 512 would be 128.
    lies_in(&installation, "490154203237518", "serial_code_15.mapping_142").await;
    lies_in(&installation, "000000000000000100", "serial_code_other.mapping_100").await;
    // The length of the code decides the table, the kind is in the row.
    leads_to(&installation, "490154203237518", &["640 1"]).await;
    leads_to(&installation, "356938035643809", &["640 2"]).await;
    leads_to(&installation, "A0000012AB34CD", &["640 3"]).await;
    leads_to(&installation, "000000000000000100", &["640 4"]).await;
    let item = installation.mapped(b"ITEM-0000000001").await;
    assert!(item.len() == 1 && item[0].0.starts_with("serial_code_15.") && item[0].1 == "640 5", "{item:?}");
    // A prefix, another case or a blank finds nothing.
    for other in ["a0000012ab34cd", "100", "49015420323751", "item-0000000001", "ITEM-0000000001 "] {
        leads_to(&installation, other, &[]).await;
    }

    // A box of 200 devices; one value as code of several kinds, of one device and of two.
    let boxed: String =
        (1..=200).map(|device| insert(A_TEXT, &format!("'{}1'", device), "box_no = 'BOX-7'")).collect();
    on(&installation, "source-a", &format!("BEGIN; {boxed} COMMIT")).await;
    assert_eq!(installation.mapped(b"BOX-7").await.len(), 200);
    on(
        &installation,
        "source-b",
        &insert(B_TEXT, "'3'", "imei1 = '100000000000000', item_code = '100000000000000'"),
    )
    .await;
    on(&installation, "source-b", &insert(B_TEXT, "'13'", "imei2 = '100000000000000'")).await;
    leads_to(&installation, "100000000000000", &["13 2", "3 1", "3 5"]).await;

    // A uuid of 64 digits, and one that differs from another only in its zeros.
    let long = "9".repeat(63) + "1";
    on(&installation, "source-a", &insert(A_TEXT, &format!("'{long}'"), "box_no = 'LONG'")).await;
    on(&installation, "source-a", &insert(A_TEXT, "'0011'", "box_no = 'ZEROS'")).await;
    leads_to(&installation, "LONG", &[&format!("{long} 4")]).await;
    leads_to(&installation, "ZEROS", &["0011 4"]).await;
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_swapped_and_cleared_codes_leave_nothing_behind() {
    let installation = prepare(&Plan::serials()).await;
    let daemon = installation.run();
    let [one, other] = ["111111111111111", "222222222222222"];
    let both = [("10", one), ("20", other)]
        .map(|(device, code)| insert(A_INTEGER, device, &format!("imei1 = '{code}', box_no = 'B'")));
    on(&installation, "source-a", &both.concat()).await;
    leads_to(&installation, "B", &["10 4", "20 4"]).await;

    let swap = format!(
        "BEGIN; UPDATE {A_INTEGER} SET imei1 = '{other}' WHERE uuid = 10;
         UPDATE {A_INTEGER} SET imei1 = '{one}' WHERE uuid = 20; COMMIT"
    );
    on(&installation, "source-a", &swap).await;
    leads_to(&installation, one, &["20 1"]).await;
    leads_to(&installation, other, &["10 1"]).await;

    // The code moves to another kind of the same device.
    on(
        &installation,
        "source-a",
        &format!("UPDATE {A_INTEGER} SET imei2 = imei1, imei1 = NULL WHERE uuid = 10"),
    )
    .await;
    leads_to(&installation, other, &["10 2"]).await;
    // Codes are cleared in both ways, and go there and back in one transaction; another uuid is another device.
    on(
        &installation,
        "source-a",
        &format!("UPDATE {A_INTEGER} SET imei2 = '', box_no = NULL WHERE uuid = 10"),
    )
    .await;
    leads_to(&installation, other, &[]).await;
    leads_to(&installation, "B", &["20 4"]).await;
    let there_and_back = format!(
        "BEGIN; UPDATE {A_INTEGER} SET box_no = 'C' WHERE uuid = 20;
         UPDATE {A_INTEGER} SET box_no = 'D' WHERE uuid = 20;
         UPDATE {A_INTEGER} SET box_no = 'B' WHERE uuid = 20; COMMIT"
    );
    on(&installation, "source-a", &there_and_back).await;
    leads_to(&installation, "C", &[]).await;
    leads_to(&installation, "B", &["20 4"]).await;
    on(&installation, "source-a", &format!("UPDATE {A_INTEGER} SET uuid = 30 WHERE uuid = 20")).await;
    leads_to(&installation, "B", &["30 4"]).await;
    leads_to(&installation, one, &["30 1"]).await;
    on(&installation, "source-a", &format!("DELETE FROM {A_INTEGER} WHERE uuid = 30")).await;
    leads_to(&installation, one, &[]).await;
    assert_eq!(daemon.metric("anabranch_row_defects_total", &["reason=\"uuid_null\""]).await, 0.0);
    on(&installation, "source-a", &insert(A_INTEGER, "40", "box_no = 'E'")).await;
    installation.expect_equal().await;
}

async fn replay(installation: &Installation<'_>, mut daemon: Daemon, source: &str) -> Daemon {
    daemon.kill();
    installation.free_leases().await;
    let arguments = ["replay", "--projection", "mapping", "--source", source, "--from", "earliest"];
    installation.command(&arguments).await.expect_success();
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_the_history_is_no_deletion_also_when_either_log_is_replayed() {
    let installation = prepare(&Plan::serials()).await;
    let daemon = installation.run();
    let to_history =
        |device: &str| insert(HISTORY, &format!("'{device}'"), &format!("box_no = 'BOX-{device}'"));
    let delete = |table: &str, device: &str| format!("DELETE FROM {table} WHERE uuid = '{device}';");
    let online = |table: &str, device: &str| {
        insert(table, &format!("'{device}'"), &format!("box_no = 'BOX-{device}'"))
    };
    // 10 and 20 move from one server to the other, in either order; 13 and 23 within one, in either order.
    on(&installation, "source-a", &(online(A_INTEGER, "10") + &online(A_INTEGER, "20"))).await;
    on(&installation, "source-b", &(online(B_TEXT, "13") + &online(B_TEXT, "23"))).await;
    installation.drained().await;
    on(&installation, "source-b", &to_history("10")).await;
    installation.drained().await;
    on(&installation, "source-a", &delete(A_INTEGER, "10")).await;
    on(&installation, "source-a", &delete(A_INTEGER, "20")).await;
    installation.drained().await;
    on(&installation, "source-b", &to_history("20")).await;
    on(&installation, "source-b", &format!("BEGIN; {} {} COMMIT", to_history("13"), delete(B_TEXT, "13")))
        .await;
    on(&installation, "source-b", &format!("BEGIN; {} {} COMMIT", delete(B_TEXT, "23"), to_history("23")))
        .await;
    let all_are_found = async || {
        for device in ["10", "13", "20", "23"] {
            leads_to(&installation, &format!("BOX-{device}"), &[&format!("{device} 4")]).await;
        }
        installation.expect_equal().await;
    };
    all_are_found().await;
    let daemon = replay(&installation, daemon, "source-a").await;
    all_are_found().await;
    let _daemon = replay(&installation, daemon, "source-b").await;
    all_are_found().await;

    // A code changes in the history; an emptied table of the history loses only its own claims.
    on(&installation, "source-b", &format!("UPDATE {HISTORY} SET box_no = 'NEW' WHERE uuid = '10'")).await;
    on(&installation, "source-a", &online(A_INTEGER, "20")).await;
    leads_to(&installation, "BOX-10", &[]).await;
    leads_to(&installation, "NEW", &["10 4"]).await;
    on(&installation, "source-b", &format!("TRUNCATE TABLE {HISTORY}")).await;
    leads_to(&installation, "NEW", &[]).await;
    leads_to(&installation, "BOX-20", &["20 4"]).await;
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_codes_are_counted_by_their_reason_and_found_all_the_same() {
    let installation = prepare(&Plan::serials()).await;
    // Columns that accept any bytes of any length, and a uuid that may be NULL.
    let wider = format!(
        "ALTER TABLE {A_TEXT} CONVERT TO CHARACTER SET latin1, MODIFY imei1 VARCHAR(100),
           MODIFY box_no VARCHAR(3000), DROP PRIMARY KEY, MODIFY uuid VARCHAR(100) NULL;
         ALTER TABLE {A_INTEGER} MODIFY imei1 BIGINT UNSIGNED"
    );
    on(&installation, "source-a", &wider).await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let imeis = [
        ("'490154203237517'", "imei1_check_digit"),
        ("'49015420323751'", "imei1_length"),
        ("'49015420323751X'", "imei1_digits"),
        ("x'00'", "imei1_length"),
        ("x'fffe'", "imei1_length"),
    ];
    let mut sql = String::new();
    for (number, (imei, _)) in imeis.iter().enumerate() {
        sql += &insert(A_TEXT, &format!("'{number}1'"), &format!("imei1 = {imei}"));
    }
    sql += &insert(A_TEXT, "'101'", "meid = 'A0000012AB34CX'");
    sql += &insert(A_TEXT, "'111'", "meid = 'A'");
    sql += &insert(A_TEXT, "'121'", "imei2 = '490154203237517'");
    // Values that are no code, and then a right one.
    sql += &insert(A_TEXT, "'131'", "imei1 = '', meid = ''");
    sql += &insert(A_TEXT, "'141'", "imei1 = '490154203237518'");
    // Boxes and items may be any bytes: NUL, no UTF-8, longer than a value may be, metacharacters.
    let boxes =
        ["x'610062'", "x'ff00fe'", "REPEAT('x', 3000)", "'*?\\\"{}\\'%_'", "'end  '", "REPEAT('7', 300)"];
    for (number, code) in boxes.iter().enumerate() {
        sql += &insert(A_TEXT, &format!("'2{number}1'"), &format!("box_no = {code}"));
    }
    sql += &insert(A_TEXT, "'301'", "item_code = 'né'");
    // Rows without a uuid that could name a device.
    sql += &insert(A_TEXT, "NULL", "imei1 = '1'");
    sql += &insert(A_TEXT, "''", "imei1 = '1'");
    sql += &insert(A_TEXT, "REPEAT('1', 65)", "imei1 = '1'");
    on(&installation, "source-a", &sql).await;
    on(&installation, "source-a", &insert(A_INTEGER, "10", "imei1 = 490154203237518")).await;

    installation.expect_equal().await;
    for (number, (imei, _)) in imeis.iter().enumerate() {
        let rows: Vec<_> = installation
            .derived_where("serial\\_code\\_%", "CONVERT(uuid USING utf8mb4)", &format!("value = {imei}"))
            .await;
        let device = format!("{number}1");
        assert!(rows.iter().any(|(_, found)| *found == device), "{imei}: {rows:?}");
    }
    leads_to(&installation, "a\0b", &["201 4"]).await;
    leads_to(&installation, "*?\"{}'%_", &["231 4"]).await;
    leads_to(&installation, "end", &[]).await;
    leads_to(&installation, "end  ", &["241 4"]).await;
    leads_to(&installation, "490154203237518", &["10 1", "141 1"]).await;
    assert_eq!(installation.mapped(b"n\xe9").await.len(), 1, "the bytes of the column's character set");
    leads_to(&installation, "1", &[]).await;

    let counts =
        [("imei1_check_digit", 1.0), ("imei1_length", 3.0), ("imei1_digits", 1.0), ("meid_digits", 1.0)];
    let more =
        [("meid_length", 1.0), ("imei2_check_digit", 1.0), ("uuid_null", 1.0), ("uuid_malformed", 2.0)];
    for (reason, wanted) in counts.into_iter().chain(more) {
        let counted = daemon.metric("anabranch_row_defects_total", &[&format!("reason=\"{reason}\"")]).await;
        assert_eq!(counted, wanted, "{reason}");
    }
    assert!(!daemon.log().contains("49015420323751"), "a row value is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_code_column_stops_its_source_only_and_status_and_tail_tell_of_devices() {
    let mut installation = prepare(&Plan::both()).await;
    installation.stop_at_unseen_changes();
    let daemon = installation.run();
    on(&installation, "source-a", &insert(A_INTEGER, "10", "imei1 = '490154203237518', status = 1")).await;
    on(&installation, "source-b", &insert(B_TEXT, "'3'", "box_no = 'B'")).await;
    leads_to(&installation, "490154203237518", &["10 1"]).await;
    let status = installation.command(&["status"]).await.stdout;
    for wanted in ["mapping/target/source-a/0", "birthday/target/source-b/1"] {
        assert!(status.contains(wanted), "{wanted} is not in:\n{status}");
    }
    let tail = installation.command(&["tail", "--no-follow", "--user-id", "10"]).await.expect_success();
    let lines = tail.json_lines();
    assert!(lines.len() == 1 && lines[0]["after"]["imei1"] == "490154203237518", "{lines:?}");
    assert!(lines[0]["after"].get("status").is_none(), "a column that is not captured: {lines:?}");

    on(&installation, "source-a", &format!("ALTER TABLE {A_INTEGER} DROP COLUMN meid")).await;
    on(&installation, "source-a", &insert(A_INTEGER, "20", "box_no = 'C'")).await;
    let stopped =
        daemon.until_view("sources", ("source", "source-a"), |view| view["state"] == "stopped").await;
    let fault = stopped["fault"].as_str().unwrap();
    assert!(stopped["code"] == "source-schema-changed" && fault.contains(A_INTEGER), "{stopped}");
    assert!(fault.contains("meid"), "{stopped}");
    on(&installation, "source-b", &insert(B_TEXT, "'13'", "box_no = 'D'")).await;
    until("the other source goes on", async || {
        installation.admin("target").await.first::<u64>("look", devices_sql()).await.unwrap() == Some(2)
    })
    .await;
}

/// SQL that counts the devices in the tables for boxes.
fn devices_sql() -> String {
    let select = |table: u32| format!("SELECT uuid FROM serial_code_other.mapping_{table:03}");
    let all: Vec<String> = (0..Plan::serials().mapping_tables).map(select).collect();
    format!("SELECT COUNT(DISTINCT uuid) FROM ({}) AS devices", all.join(" UNION ALL "))
}
