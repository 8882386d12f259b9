//! A GTID domain that an operator deletes on MariaDB is no reset of the server.

use std::time::Duration;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{BinlogStart, SourceConnector};
use mysql_async::prelude::Queryable;

use crate::source::{Database, SourceProbe, WAIT_MAX};

const PAUSE: Duration = Duration::from_millis(100);

on_each_mariadb!(a_deleted_domain_is_no_reset);

/// The GTID set of an entry.
fn gtid_set(entry: &BinlogStart) -> &str {
    let BinlogStart::Resume { resume, .. } = entry else { panic!("a resume") };
    &resume.gtid_set
}

async fn a_deleted_domain_is_no_reset(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database.run(&["SET SESSION gtid_domain_id = 77", "INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    database.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)"]).await;
    probe.until_seen(2).await;
    probe.until_end(&database).await;
    let purged = probe.entry_after(probe.batches.len() - 1);
    assert!(gtid_set(&purged).contains("77-") && gtid_set(&purged).contains(','), "{}", gtid_set(&purged));

    // A domain can be deleted once no kept file has a transaction of it.
    database.run(&["FLUSH BINARY LOGS"]).await;
    probe.until_end(&database).await;
    let kept = probe.batches.len() - 1;
    let newest = database.source().head().await.unwrap().file_number();
    let purge = format!("PURGE BINARY LOGS TO 'binlog.{newest:06}'");
    // The server keeps a file while a client reads it.
    let deleted = async {
        loop {
            database.run(&[&purge]).await;
            let delete = "FLUSH BINARY LOGS DELETE_DOMAIN_ID = (77)";
            if database.admin().await.query_drop(delete).await.is_ok() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, deleted).await.expect("no kept file has the domain");
    database.run(&["INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;
    probe.until_seen(3).await;
    probe.until_end(&database).await;
    let last = probe.entry_after(probe.batches.len() - 1);
    assert!(!gtid_set(&last).contains("77-"), "the running reader learned it: {}", gtid_set(&last));

    // Readers that did not run meanwhile: in a kept file, and in one that was purged.
    for entry in [probe.entry_after(kept), purged.clone()] {
        let mut again = database.read(entry).await;
        again.until_seen(1).await;
        assert_eq!(again.texts(), ["t0 + 3 NULL"]);
        again.until_end(&database).await;
        let entered = again.entry_after(again.batches.len() - 1);
        assert!(!gtid_set(&entered).contains("77-"), "{}", gtid_set(&entered));
        database.read(entered).await;
    }
    // A reader that had kept the domain in its resume point behind the deletion.
    let BinlogStart::Resume { mut resume, position, server } = last else { panic!("a resume") };
    let refused = async |resume| {
        let entry = BinlogStart::Resume { resume, position, server: server.clone() };
        SourceProbe::open(&database.source(), entry).await.err().map(|fault| fault.code())
    };
    let known = resume.gtid_set.clone();
    let deleted = gtid_set(&purged).split(',').find(|gtid| gtid.starts_with("77-")).unwrap();
    resume.gtid_set = format!("{known},{deleted}");
    assert_eq!(refused(resume.clone()).await, None);

    // A domain that was read alone is the whole past, and a reset takes the others as well.
    resume.gtid_set = deleted.to_owned();
    assert_eq!(refused(resume.clone()).await, Some(Code::SourceServerChanged));
    resume.gtid_set = format!("{known},{deleted}");
    database.run(&["RESET MASTER"]).await;
    assert_eq!(refused(resume).await, Some(Code::SourceServerChanged));
}
