//! The counters of payment documents on a server: rights, checks, and tests that need real connections.
//! `ports/sequence.rs` tests the promises of every sequence.

use anabranch_connectors::mysql::sequence::MysqlSequence;
use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::Sequence;
use anabranch_pipeline::records::{
    GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey,
};
use anabranch_schemas::flux::counter::Ring;
use anabranch_schemas::flux::id::{Region, Side};
use mysql_async::prelude::Queryable;

use crate::derived::StoreSite;
use crate::ports::sequence::{Ground, Server};

#[tokio::test(flavor = "multi_thread")]
async fn its_account_may_update_counters_and_nothing_more_and_set_up_repeats_itself() {
    let ground = Server::start().await;
    let sequence = ground.process();
    let check = async || sequence.check().await.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(check().await, Vec::<String>::new());
    let again = sequence.setup().await.unwrap();
    assert_eq!((again.databases, again.tables), (0, 0));
    let database = ground.config.database.clone();
    let accounts = [&ground.config.sequence_url, ground.config.setup_url.as_ref().unwrap()];
    for (place, url) in accounts.into_iter().enumerate() {
        let mut account = connect(&ground, url).await;
        let mut denied = vec![
            "DELETE FROM {}.flux_sequence_07",
            "DROP TABLE {}.flux_sequence_07",
            "TRUNCATE {}.flux_request",
        ];
        denied.push(match place {
            0 => "INSERT INTO {}.flux_sequence_07 SELECT * FROM {}.flux_sequence_07",
            _ => "UPDATE {}.flux_sequence_07 SET next = 0",
        });
        for statement in denied {
            let statement = statement.replace("{}", &format!("`{database}`"));
            match account.query_drop(&statement).await {
                Err(mysql_async::Error::Server(error)) => {
                    assert!([1044, 1142].contains(&error.code), "{error}")
                }
                other => panic!("{statement}: {other:?}"),
            }
        }
    }
    // A missing row is named, and set-up makes it.
    let counter =
        Ring::new(Region::UnitedStates, Side::Main, 7).unwrap().on(sequence.server().await.unwrap().today);
    ground.set(counter, None).await;
    let found = check().await.join("\n");
    assert!(found.contains("3199 of 3200 rows of counters exist") && found.contains("setup"), "{found}");
    sequence.setup().await.unwrap();
    assert_eq!(check().await, Vec::<String>::new());
    ground
        .site
        .sql(format!("ALTER TABLE `{database}`.flux_sequence_00 MODIFY COLUMN next INT NOT NULL"))
        .await;
    let found = check().await.join("\n");
    assert!(found.contains("column `next` is int") && found.contains("flux_sequence_00"), "{found}");
    ground
        .site
        .sql(format!("ALTER TABLE `{database}`.flux_sequence_00 MODIFY COLUMN next INT UNSIGNED NOT NULL"))
        .await;
    ground.site.sql(format!("DROP TABLE `{database}`.flux_sequence_33")).await;
    assert!(check().await.join("\n").contains("flux_sequence_33"));
}

async fn connect(ground: &Server, url: &ServerUrl) -> mysql_async::Conn {
    let ca_file = ground.config.ca_file.as_deref();
    let options = anabranch_connectors::mysql::connection::async_options(url, ca_file);
    mysql_async::Conn::new(options).await.unwrap()
}

/// A lost connection may have leased: its numbers are skipped, and the next lease begins after them.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_and_a_row_that_is_locked_lease_no_number_twice() {
    let ground = Server::on(StoreSite::alone().await).await;
    let sequence: MysqlSequence = ground.process();
    let server = sequence.server().await.unwrap();
    let counter = Ring::new(Region::UnitedStates, Side::Main, 7).unwrap().on(server.today);
    let request = RangeRequest { counter, server: server.name.clone(), known: 0, least: 1, wanted: 10 };
    let mut given = std::collections::BTreeSet::new();
    let mut admin = ground.site.admin().await;
    let table = ground.table(counter);
    for _ in 0..3 {
        admin.query_drop(format!("START TRANSACTION; SELECT * FROM {table} FOR UPDATE")).await.unwrap();
        let waiting = tokio::spawn({
            let (sequence, request) = (sequence.clone(), request.clone());
            async move { sequence.next_range(&request).await }
        });
        let waits = "SELECT id FROM information_schema.processlist WHERE user = 'anabranch_sequence' AND info LIKE 'UPDATE%'";
        let id = anabranch_tests::until_some("the lease waits for the row", async || {
            admin.query_first::<u64, _>(waits).await.unwrap()
        })
        .await;
        admin.query_drop(format!("KILL CONNECTION {id}")).await.unwrap();
        admin.query_drop("COMMIT").await.unwrap();
        let fault = waiting.await.unwrap().unwrap_err();
        assert_eq!((fault.class(), fault.code()), (Class::Transient, Code::TargetUnreachable), "{fault}");
        let range = sequence.next_range(&request).await.unwrap().unwrap();
        assert!((range.first..range.end()).all(|number| given.insert(number)), "{range}");
    }
}

/// A lease is on the server's disk before its first number is given out: a server that does not wait for its disk is
/// refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_power_cut_sets_back_leases_no_number() {
    let ground = Server::on(StoreSite::alone().await).await;
    let sequence = ground.process();
    let server = sequence.server().await.unwrap();
    let counter = Ring::new(Region::UnitedStates, Side::Main, 7).unwrap().on(server.today);
    let request = RangeRequest { counter, server: server.name, known: 0, least: 1, wanted: 10 };
    let range = async || sequence.next_range(&request).await.unwrap();
    assert_eq!(range().await, Ok(NumberRange { first: 0, count: 10 }));
    for (name, value) in [("innodb_flush_log_at_trx_commit", 2), ("sync_binlog", 0)] {
        ground.site.sql(format!("SET GLOBAL {name} = {value}")).await;
        let setting = format!("{name} = {value}");
        assert_eq!(range().await, Err(RangeRefusal::Volatile { setting: setting.clone() }));
        let faults = sequence.check().await;
        let [fault] = faults.as_slice() else { panic!("{faults:?}") };
        assert!(fault.code() == Code::FluxServerVolatile && fault.to_string().contains(&setting), "{fault}");
        ground.site.sql(format!("SET GLOBAL {name} = 1")).await;
    }
    assert_eq!(range().await, Ok(NumberRange { first: 10, count: 10 }), "a refusal uses no number");
    assert!(sequence.check().await.is_empty());
}

/// The numbers of a key are leased before the key is stored, so a sweep that waits in vain refuses no key.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_stored_while_another_transaction_keeps_the_sweep_waiting() {
    let ground = Server::on(StoreSite::alone().await).await;
    let given = GivenOnce { first: "2016060611031103099052400029904".parse().unwrap(), count: 3 };
    let (old, new) = (RequestKey::of(b"old"), RequestKey::of(b"new"));
    assert_eq!(ground.process().remember(&old, &given).await.unwrap(), Remembered::Existing(given));
    ground.age_keys(8).await;
    let mut admin = ground.site.admin().await;
    let table = format!("`{}`.flux_request", ground.config.database);
    // This isolation locks the old key, and no gap that the new one needs.
    admin.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    admin.query_drop(format!("START TRANSACTION; SELECT * FROM {table} FOR UPDATE")).await.unwrap();
    // A process sweeps before its first new key.
    let process = ground.process();
    assert_eq!(process.remember(&new, &given).await.unwrap(), Remembered::Existing(given));
    assert_eq!(process.given(&old).await.unwrap(), Some(given), "the sweep waited in vain");
    admin.query_drop("COMMIT").await.unwrap();
}
