//! A planned switch-over of a target: its address leads to another server, while the old one still answers read-only.

use std::time::Duration;

use anabranch_connectors::mysql::ledger::{MySqlLedger, setup};
use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_coupons::days::begin;
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{Candidate, Member, Unique};
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::Outbox;
use anabranch_schemas::celebration::Calendar;
use jiff::{SignedDuration, Timestamp};

use crate::derived::StoreSite;
use crate::ledger::give;
use crate::ports::ledger::{FIRST, frozen, hundred, programme};
use crate::store_mapping::TABLES;
use crate::wire::Wire;

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_and_the_outbox_go_on_after_one_error_of_the_old_server() {
    let mut site = StoreSite { mapping_tables: TABLES, is_cached: true, ..StoreSite::pair().await };
    for name in ["target-b", "target-a"] {
        site.targets = vec![name];
        site.target(name).setup().await.unwrap();
        setup(&site.target(name), FIRST).await.unwrap();
    }
    let (old, new) = (site.stack.server("target-a").unwrap(), site.stack.server("target-b").unwrap());
    let wire = Wire::to(&old);
    let mut config = site.config();
    config.targets[0].url = wire.url(&old);
    let target = MysqlTarget::new(&config, "target-a").unwrap();
    let ledger = MySqlLedger::open(&target, 2).await.unwrap();
    let outbox = target.outbox("serials").unwrap();
    let users = hundred();
    let run = frozen(&ledger, users.clone()).await;
    outbox.repeat().await.unwrap();
    // Each connection of the ledger is idle at the switch-over.
    let (one, two) = tokio::join!(ledger.tokens(), ledger.tokens());
    assert_eq!((one.unwrap().latest, two.unwrap().latest), (FIRST, FIRST));

    site.sql("SET GLOBAL read_only = ON").await;
    wire.lead_to(&new);
    let member = Member { user: users[0], calendar: Calendar::Solar };
    let candidate = Candidate { run: run.clone(), member, wave: 1 };
    let refused = ledger.with_users(&run, &users[..1], |l| give(l, &candidate)).await.unwrap_err();
    assert_eq!(refused.code(), Code::TargetReadOnly, "{refused}");
    let (programme, own_clock) = (programme(), Timestamp::now() + SignedDuration::from_hours(1));
    for _ in 0..2 {
        ledger.with_programme(&run.programme, |l| begin(l, &programme, own_clock, Unique(7))).await.unwrap();
    }
    let refused = outbox.repeat().await.unwrap_err();
    assert_eq!(refused.code(), Code::TargetReadOnly, "{refused}");
    outbox.repeat().await.unwrap();
    outbox.set_time_to_live(Duration::from_secs(1)).await.unwrap();
}
