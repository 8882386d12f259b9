//! The coupon ledger on a server: lost races, deadlocks and connections, rights, tables. `ports/ledger.rs` tests the
//! promises of every ledger.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_connectors::mysql::ledger::{MySqlLedger, check, setup};
use anabranch_coupons::days::begin_sweep;
use anabranch_coupons::issuing::Chain;
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{Candidate, Member, RowState};
use anabranch_coupons::records::{LedgerTokens, Unique, UsersLedger};
use anabranch_coupons::reserving::settle;
use anabranch_pipeline::error::{Class, Code};
use anabranch_schemas::celebration::Calendar;
use mysql_async::prelude::Queryable;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use crate::derived::StoreSite;
use crate::ports::ledger::{FIRST, Ground, Server, frozen, hundred};

/// Settles a user's row of the day, in any state.
pub fn give(l: &mut UsersLedger, candidate: &Candidate) {
    let user = l.users.get_mut(&candidate.member.user).unwrap();
    let version = Some("0c0ffee1".parse().unwrap());
    settle(user, candidate, &candidate.key().unwrap(), &"cake".into(), version);
}

/// Waits within `decide` for the work of others.
fn meanwhile<T>(work: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(work))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_lost_decides_again_from_what_stands_now() {
    let Server { site, ledger } = Server::start().await;
    let users = hundred();
    let run = frozen(&ledger, users.clone()).await;
    let candidate = |user: u64| Candidate {
        run: run.clone(),
        member: Member { user, calendar: Calendar::Solar },
        wave: 1,
    };

    // Another granter inserts the row first.
    let (one, two) = (candidate(users[0]), candidate(users[1]));
    let decisions = AtomicU32::new(0);
    let found = ledger.with_users(&run, &users[..1], |l| {
        if decisions.fetch_add(1, Ordering::SeqCst) == 0 {
            meanwhile(ledger.with_users(&run, &users[..1], |l| give(l, &one))).unwrap();
        }
        let found = l.users[&users[0]].rows.len();
        give(l, &one);
        found
    });
    assert_eq!((found.await.unwrap(), decisions.load(Ordering::SeqCst)), (1, 2));

    // A deadlock: another transaction holds a row that this one inserts next, and waits for one that this one locked.
    let (decisions, table) = (AtomicU32::new(0), format!("`{}_coupons`.coupon_ledger_03", site.control()));
    let mut other = site.admin().await;
    let copies =
        (0..40).map(|n| format!("SELECT {} + {n} * 16", users[1])).collect::<Vec<_>>().join(" UNION ");
    // The other transaction locks no row that it only reads.
    other.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    let insert = format!(
        "START TRANSACTION; INSERT INTO {table} SELECT k.id, l.programme, l.occurrence, l.day, l.state, l.reason, \
         l.first_called_at, l.attempt, l.changed_at, l.tries, l.coupon, l.by_hand, l.absent_since, l.version \
         FROM {table} AS l, (SELECT 0 AS id FROM DUAL WHERE FALSE UNION {copies}) AS k WHERE l.user_id = {}",
        users[0]
    );
    let lock = format!("SELECT COUNT(*) FROM {table} WHERE user_id = {} FOR UPDATE", users[0]);
    let (sender, waiting) = oneshot::channel();
    let other = Mutex::new(Some((other, sender)));
    let found = ledger.with_users(&run, &users[..2], |l| {
        if decisions.fetch_add(1, Ordering::SeqCst) == 0 {
            let (mut other, sender) = other.lock().unwrap().take().unwrap();
            meanwhile(other.query_drop(&insert)).unwrap();
            // The other transaction is to wait for the row that this one has locked.
            sender.send(other).unwrap();
        }
        let found = l.users[&users[1]].rows.len();
        give(l, &two);
        found
    });
    let release = async {
        let mut other = waiting.await.unwrap();
        other.query_drop(&lock).await.unwrap();
        other.query_drop("ROLLBACK").await.unwrap();
    };
    let (found, ()) = tokio::join!(found, release);
    assert_eq!(
        (found.unwrap(), decisions.load(Ordering::SeqCst)),
        (0, 2),
        "the other transaction came to nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_before_the_commit_leaves_nothing_behind() {
    // The test kills the connections of the account.
    let Server { site, ledger } = Server::alone().await;
    let users = hundred();
    let run = frozen(&ledger, users.clone()).await;
    let candidate =
        Candidate { run: run.clone(), member: Member { user: users[0], calendar: Calendar::Solar }, wave: 1 };
    let kill = async || {
        let mut admin = site.admin().await;
        let sql = "SELECT id FROM information_schema.processlist WHERE user = 'anabranch_apply'";
        for id in admin.query::<u64, _>(sql).await.unwrap() {
            _ = admin.query_drop(format!("KILL CONNECTION {id}")).await;
        }
    };
    let lost = ledger.with_users(&run, &users[..1], |l| {
        meanwhile(kill());
        give(l, &candidate);
    });
    let fault = lost.await.unwrap_err();
    assert_eq!(fault.class(), Class::Transient, "{fault}");
    let rows = ledger.with_users(&run, &users[..1], |l| l.users[&users[0]].rows.clone()).await.unwrap();
    assert!(rows.is_empty());
    // The ledger notices connections that died unused, and replaces them.
    kill().await;
    ledger.with_users(&run, &users[..1], |l| give(l, &candidate)).await.unwrap();
    kill().await;
    let (_, page) = ledger.member_states(&run, None, 10).await.unwrap();
    assert!(page[0].row.as_ref().is_some_and(|row| row.state == RowState::Settled));

    // A server that was restored from a copy has another token than the register.
    let issued = LedgerTokens { latest: Unique(2), before: Some(FIRST) };
    ledger.with_users(&run, &[], |l| l.tokens = issued).await.unwrap();
    assert_eq!(Chain::of(ledger.tokens().await.unwrap(), Unique(2)), Chain::Level);
    let latest = "UPDATE `{}`.coupon_token SET latest = previous, previous = NULL";
    site.sql(latest.replace("{}", &format!("{}_coupons", site.control()))).await;
    assert_eq!(Chain::of(ledger.tokens().await.unwrap(), Unique(2)), Chain::Restored);
}

/// The account of set-up may not alter tables, so set-up names the statements. With that right it adds the columns.
async fn tables_of_an_earlier_version_get_their_columns(site: &StoreSite, ledger: &MySqlLedger) {
    let (target, users) = (site.target("target-a"), hundred());
    let run = frozen(ledger, users.clone()).await;
    let member = Member { user: users[0], calendar: Calendar::Solar };
    let candidate = Candidate { run: run.clone(), member, wave: 1 };
    ledger.with_users(&run, &users[..1], |l| give(l, &candidate)).await.unwrap();
    let version = async || {
        let rows = ledger.with_users(&run, &users[..1], |l| l.users[&users[0]].rows.clone()).await.unwrap();
        rows.values().next().unwrap().version
    };
    assert!(version().await.is_some());
    let database = format!("`{}_coupons`", site.control());
    let drop_them = format!(
        "ALTER TABLE {database}.coupon_ledger_03 DROP COLUMN `version`; \
         ALTER TABLE {database}.coupon_run DROP COLUMN `sweeps`; \
         ALTER TABLE {database}.coupon_token DROP COLUMN `issued_at`"
    );

    site.sql(drop_them.clone()).await;
    // Tasks try again until the column is there: set-up may run while daemons of the new version wait for it.
    let fault = MySqlLedger::open(&target, 1).await.unwrap_err();
    assert_eq!((fault.code(), fault.code().stops()), (Code::TargetTableMissing, false), "{fault}");
    assert_eq!(fault.remedy_text(), Some("anabranch --config FILE setup"));
    let fault = setup(&target, Unique(99)).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetGrantMissing, "{fault}");
    site.sql(fault.remedy_text().unwrap().to_owned()).await;
    assert!(check(&target).await.is_empty());
    assert_eq!(version().await, None, "the row stays, and its version is not known");

    site.sql(drop_them).await;
    site.sql(format!("GRANT ALTER, INSERT ON {database}.* TO 'anabranch_setup'@'127.0.0.1'")).await;
    assert_eq!(setup(&target, Unique(99)).await.unwrap().columns, 3);
    assert!(check(&target).await.is_empty());
    let swept = ledger.with_run(&run, &[], |l| begin_sweep(l, Unique(9))).await.unwrap().unwrap();
    assert_eq!(swept.run.sweeps, [Unique(7), Unique(9)], "the column `sweep` kept the newest number");
    site.sql(format!("REVOKE ALTER, INSERT ON {database}.* FROM 'anabranch_setup'@'127.0.0.1'")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_tables_are_made_once_and_checked_and_nobody_may_delete_from_them() {
    let Server { site, ledger } = Server::start().await;
    let target = site.target("target-a");
    tables_of_an_earlier_version_get_their_columns(&site, &ledger).await;
    let again = setup(&target, Unique(99)).await.unwrap();
    assert_eq!((again.databases, again.tables, again.columns), (0, 0, 0));
    let database = format!("`{}_coupons`", site.control());

    for sql in ["DELETE FROM {}.coupon_ledger_00", "TRUNCATE {}.coupon_token", "DROP TABLE {}.coupon_member"]
    {
        for url in [
            site.stack.server("target-a").unwrap().url(),
            site.stack.server("target-a").unwrap().setup_url().unwrap(),
        ] {
            let url = anabranch_pipeline::config::ServerUrl::try_from(url).unwrap();
            let options =
                anabranch_connectors::mysql::connection::async_options(&url, Some(&site.stack.ca_file()));
            let mut connection = mysql_async::Conn::new(options).await.unwrap();
            let error = connection.query_drop(sql.replace("{}", &database)).await.unwrap_err();
            assert!(error.to_string().contains("denied"), "{sql}: {error}");
        }
    }

    site.sql(format!("ALTER TABLE {database}.coupon_run MODIFY COLUMN `frozen` int NOT NULL")).await;
    let fault = MySqlLedger::open(&target, 1).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableShape, "{fault}");
    site.sql(fault.remedy_text().unwrap().to_owned()).await;
    assert!(check(&target).await.is_empty());

    site.sql(format!("DROP TABLE {database}.coupon_letter")).await;
    let fault = MySqlLedger::open(&target, 1).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableMissing, "{fault}");
    assert_eq!(fault.remedy_text(), Some("anabranch --config FILE setup"));
    assert_eq!(setup(&target, Unique(99)).await.unwrap().tables, 1);
    let ledger = MySqlLedger::open(&target, 1).await.unwrap();
    assert_eq!(ledger.tokens().await.unwrap().latest, FIRST, "the token that is there stays");
}
