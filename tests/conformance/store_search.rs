//! The store of a lane on OpenSearch, in tests that need a real server. `ports/store.rs` tests the promises of every
//! store, `store_search_find.rs` the queries.

use anabranch_connectors::search::SetupReport;
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::records::{Cell, Flush, Progress, Replacement};
use anabranch_schemas::change::Action;
use anabranch_schemas::lsn::Lsn;
use anabranch_stack::ServerSpec;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::derived::lsn;
use crate::search::{SearchSite, apply, device, flush, lane_id, shard, target_of};

pub fn insert(uuid: u64, fields: &[(&str, &[u8])]) -> Action<'static> {
    Action::Insert { after: device(uuid, fields) }
}

pub fn delete(uuid: u64) -> Action<'static> {
    Action::Delete { before: device(uuid, &[]) }
}

fn codes(faults: &[Fault]) -> Vec<Code> {
    faults.iter().map(Fault::code).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_creates_everything_once_and_repeats_harmlessly() {
    let site = SearchSite { lanes: 2, sources: vec!["source-a", "source-b"], ..SearchSite::new().await };
    let target = site.target();
    assert_eq!(codes(&target.check().await), [Code::TargetTableMissing; 3]);
    let (one, two) = (site.target(), site.target());
    let (one, two) = tokio::join!(one.setup(), two.setup());
    let made = |report: &SetupReport| report.progress_documents;
    assert_eq!(made(&one.unwrap()) + made(&two.unwrap()), 4, "two at once make one");
    assert_eq!(target.setup().await.unwrap(), SetupReport::default());
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);
    assert_eq!(target.progress().await.unwrap().len(), 4);

    let removed = json!({ "actions": [{ "remove": { "index": site.index(), "alias": site.alias() } }] });
    site.admin(Method::POST, "_aliases", removed).await;
    assert_eq!(codes(&target.check().await), [Code::TargetTableMissing]);
    assert_eq!(target.setup().await.unwrap().aliases, 1);
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_progress_and_lost_documents_are_never_taken_for_new() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    let target = site.target();
    let progress_index = format!("{}-progress", site.control());

    let document = format!("{progress_index}/_doc/documents:source-a:0");
    let kept = site.admin(Method::GET, &document, Json::Null).await["_source"].clone();
    site.admin(Method::DELETE, &document, Json::Null).await;
    for fault in [target.setup().await.unwrap_err(), lane.load().await.unwrap_err()] {
        assert_eq!(fault.code(), Code::TargetProgressLost, "{fault}");
    }
    let lost = target.lost_lanes("source-a").await.unwrap();
    assert_eq!(lost.iter().map(|lane| lane.lane).collect::<Vec<_>>(), [0]);
    let own = Progress { revision: 1_000, position: lsn(9), ..Progress::default() };
    target.begin_lost_lanes(&[(lost[0].clone(), own.clone())]).await.unwrap();
    assert_eq!(target.lost_lanes("source-a").await.unwrap(), []);
    assert_eq!(lane.load().await.unwrap(), own);
    let mut damaged = kept.clone();
    damaged["position"] = json!(4711);
    site.admin(Method::PUT, &document, damaged.clone()).await;
    let fault = lane.load().await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetProgressCorrupt, "{fault}");
    damaged["checksum"] = Json::Null;
    site.admin(Method::PUT, &document, damaged).await;
    assert_eq!(lane.load().await.unwrap().position, lsn(4711), "an operator's word");
    site.admin(Method::PUT, &document, kept).await;
    assert_eq!(lane.load().await.unwrap().position, lsn(5));

    let fewer = SearchSite { lanes: 2, ..site.clone() }.target();
    assert_eq!(fewer.setup().await.unwrap_err().code(), Code::TargetProgressLost);

    site.admin(Method::DELETE, &progress_index, Json::Null).await;
    let fault = target.setup().await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetProgressLost, "{fault}");
    assert!(fault.to_string().contains("it holds documents"), "{fault}");
    let both = SearchSite { sources: vec!["source-a", "source-b"], ..site.clone() }.target();
    for source in ["source-a", "source-b"] {
        assert_eq!(both.setup().await.unwrap_err().code(), Code::TargetProgressLost, "{source}");
        let lost = both.lost_lanes(source).await.unwrap();
        assert_eq!(lost.len(), site.lanes as usize, "{source}");
        let lanes: Vec<_> = lost.into_iter().map(|lane| (lane, own.clone())).collect();
        both.begin_lost_lanes(&lanes).await.unwrap();
    }
    assert_eq!(both.setup().await.unwrap().progress_documents, 0);
    assert!(both.check().await.is_empty(), "{:?}", both.check().await);

    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    site.admin(Method::DELETE, &site.index(), Json::Null).await;
    let fault = site.target().setup().await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableMissing, "{fault}");
    assert!(fault.remedy_text().unwrap().contains("restore"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_foreign_index_is_named_with_what_differs() {
    let site = SearchSite::new().await.ready().await;
    let mut body = site.admin(Method::GET, &site.index(), Json::Null).await[site.index()].clone();
    for name in ["creation_date", "uuid", "version", "provided_name"] {
        body["settings"]["index"].as_object_mut().unwrap().remove(name);
    }
    type Damage = fn(&mut Json);
    let damages: [(Damage, &str); 4] = [
        (
            |body| body["mappings"]["properties"]["imei1"] = json!({ "type": "text" }),
            "imei1.type` is \"text\"",
        ),
        (
            |body| drop(body["mappings"]["properties"].as_object_mut().unwrap().remove("uuid")),
            "uuid` is missing",
        ),
        (
            |body| body["settings"]["index"]["translog"] = json!({ "durability": "async" }),
            "durability` is \"async\"",
        ),
        (|body| body["mappings"]["dynamic"] = json!("true"), "dynamic` is \"true\""),
    ];
    for (damage, part) in damages {
        let mut damaged = body.clone();
        damage(&mut damaged);
        site.admin(Method::DELETE, &site.index(), Json::Null).await;
        site.admin(Method::PUT, &site.index(), damaged).await;
        let faults = site.target().check().await;
        assert!(faults.iter().all(|fault| fault.code() == Code::TargetTableShape), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.to_string().contains(part)), "{part}: {faults:?}");
    }
    site.admin(Method::DELETE, &site.index(), Json::Null).await;
    site.admin(Method::PUT, &site.alias(), json!({})).await;
    let fault = site.target().setup().await.unwrap_err();
    assert!(fault.to_string().contains("is an index itself"), "{fault}");
    site.admin(Method::DELETE, &site.alias(), Json::Null).await;
    let other = format!("{}-v0", site.alias());
    site.admin(Method::PUT, &other, json!({ "aliases": { site.alias(): {} } })).await;
    let fault = site.target().setup().await.unwrap_err();
    assert!(fault.to_string().contains(&format!("leads to index `{other}`")), "{fault}");
    site.admin(Method::DELETE, &other, Json::Null).await;
    assert_eq!(site.target().setup().await.unwrap().indexes, 1);
    assert!(site.target().check().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_document_is_parked_and_the_rest_goes_on() {
    let site = SearchSite::new().await;
    // A foreign index that takes only numbers in some fields.
    let fields = ["shard_id", "source", "uuid", "box_no", "database", "table"];
    let mut properties: Json =
        fields.map(|name| (name.to_owned(), json!({ "type": "keyword" }))).into_iter().collect();
    for (name, kind) in [("lane", "long"), ("lsn", "long"), ("account_id", "long"), ("withdrawn", "boolean")]
    {
        properties[name] = json!({ "type": kind });
    }
    site.admin(Method::PUT, &site.index(), json!({ "mappings": { "properties": properties } })).await;
    let site = site.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let changes = vec![
        (5, 0, insert(1, &[("account_id", b"1")])),
        (6, 0, insert(2, &[("account_id", b"no number")])),
        (7, 0, insert(3, &[("account_id", b"3")])),
    ];
    let progress = apply(&mut lane, &progress, changes).await.unwrap();
    assert_eq!(lane.load().await.unwrap(), progress);
    assert_eq!(site.documents().await.len(), 2);

    let letters = site.find(&format!("{}-dead-letters", site.control()), json!({ "match_all": {} })).await;
    let [letter] = letters.values().collect::<Vec<_>>()[..] else { panic!("{letters:?}") };
    assert_eq!(letter["document"], json!(format!("{}-2", shard(0).shard.as_u64())));
    assert_eq!((&letter["lsn"], &letter["index"]), (&json!(6), &json!(site.index())));
    assert_eq!(letter["reason"], json!("mapper_parsing_exception"));
    assert!(!letter.to_string().contains("no number"), "no values: {letter}");

    let listed = site.target().dead_letters("documents", 10).await.unwrap();
    assert_eq!(
        listed.iter().map(|letter| letter.document.as_str()).collect::<Vec<_>>(),
        [letter["document"].as_str().unwrap()]
    );
    let seen = site.target().overview("documents").await.unwrap();
    assert_eq!((seen.dead_letters, seen.oldest_letter_ms), (1, Some(listed[0].parked_at)));
    let changes =
        vec![(8, 0, insert(2, &[("account_id", b"none")])), (8, 0, insert(4, &[("account_id", b"none")]))];
    let progress = apply(&mut lane, &progress, changes).await.unwrap();
    let (mut another, _) = site.lane("source-a", 0).await;
    let changes = vec![(9, 0, insert(2, &[("account_id", b"2")]))];
    let progress = apply(&mut another, &progress, changes).await.unwrap();
    assert_eq!(site.documents().await.len(), 3, "a later change of the claim is taken");
    let left = site.target().dead_letters("documents", 10).await.unwrap();
    assert_eq!(
        left.iter().map(|letter| letter.lsn).collect::<Vec<_>>(),
        [8],
        "its letters are superseded: {left:?}"
    );
    assert_eq!(site.target().drop_letters(&left).await.unwrap(), 1);
    assert!(site.target().dead_letters("documents", 10).await.unwrap().is_empty());
    assert_eq!(site.target().overview("documents").await.unwrap().oldest_letter_ms, None);
    assert_eq!(another.load().await.unwrap(), progress);

    // After a rebuild the documents are in another index, so the letters of the replaced one say nothing any more.
    let changes = vec![(10, 0, insert(5, &[("account_id", b"none")]))];
    apply(&mut another, &progress, changes).await.unwrap();
    assert_eq!(site.target().dead_letters("documents", 10).await.unwrap().len(), 1);
    let index = site.target().begin_rebuild("documents").await.unwrap();
    site.target().end_rebuild("documents", &index, true).await.unwrap();
    assert!(site.target().dead_letters("documents", 10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_takes_no_writes_is_named_at_once_and_served_again_without_the_block() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let block = async |is_set: Json| {
        let settings = json!({ "index.blocks.read_only_allow_delete": is_set });
        site.admin(Method::PUT, &format!("{}/_settings", site.index()), settings).await;
    };
    block(json!(true)).await;
    let fault = apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap_err();
    // A cluster that is busy for a moment is asked again for a minute, and its fault names no type.
    assert!(fault.to_string().contains("cluster_block_exception"), "{fault}");
    assert_eq!(fault.code(), Code::TargetUnreachable);
    block(Json::Null).await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    assert_eq!(site.documents().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_of_a_large_shard_takes_the_lanes_own_documents_only() {
    const DEVICES: u64 = 12_000;
    let site = SearchSite { lanes: 2, ..SearchSite::new().await }.ready().await;
    let ((mut one, first), (mut two, second)) =
        (site.lane("source-a", 0).await, site.lane("source-a", 1).await);
    let devices = || (0..DEVICES).map(|uuid| (5 + uuid % 2, 0, insert(uuid, &[]))).collect();
    let first = apply(&mut one, &first, devices()).await.unwrap();
    let of_one = site.count().await;
    apply(&mut two, &second, devices()).await.unwrap();
    assert_eq!(site.count().await, DEVICES);

    apply(&mut one, &first, vec![(8, 0, Action::Withdraw)]).await.unwrap();
    assert_eq!(site.count().await, DEVICES - of_one);
    // Withdrawn documents stay withdrawn for a late process.
    let (mut late, progress) = site.lane("source-a", 0).await;
    let progress = apply(&mut late, &progress, devices()).await.unwrap();
    assert_eq!(site.count().await, DEVICES - of_one);

    // A replay from nothing removes them, and then all come again at their old positions.
    let mut emptied = Flush::new(Progress { position: Lsn::ZERO, ..progress });
    emptied.progress.revision += 1;
    emptied.withdraw(shard(0).shard, Lsn::MAX);
    late.commit(&emptied).await.unwrap();
    apply(&mut late, &emptied.progress, vec![(9, 0, insert(1, &[])), (9, 0, insert(2, &[]))]).await.unwrap();
    let again = site.count().await - (DEVICES - of_one);
    assert_eq!(again, [1, 2].into_iter().filter(|uuid| site_of(*uuid) == 0).count() as u64);
}

/// Lane of a device among two, as the projection decides it.
pub fn site_of(uuid: u64) -> u32 {
    crc32fast::hash(uuid.to_string().as_bytes()) % 2
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_an_unknown_authority_a_missing_right_and_a_dead_server_are_told_apart() {
    let site = SearchSite::shared().await;
    let server = site.stack().server("search").unwrap();
    let text = site.config_text();
    let ca_file = site.stack().ca_file().display().to_string();
    let another_ca = tempfile::NamedTempFile::new().unwrap();
    for (changed, code) in [
        (text.replace(server.password(), "wrong"), Code::TargetAccessDenied),
        (text.replace(&ca_file, &another_ca.path().display().to_string()), Code::TargetAccessDenied),
        (text.replace(&format!("ca_file = \"{ca_file}\"\n"), ""), Code::TargetAccessDenied),
        (text.replace("anabranch-p", "foreign-p"), Code::TargetGrantMissing),
        (text.replace(&format!(":{}", server.port()), ":1"), Code::TargetUnreachable),
    ] {
        let target = target_of(&changed);
        let fault = target.setup().await.unwrap_err();
        assert_eq!(fault.code(), code, "{fault}");
        assert!(
            !fault.to_string().contains("wrong") && !fault.to_string().contains(server.password()),
            "{fault}"
        );
        let faults = target.check().await;
        assert!(faults.iter().any(|fault| fault.code() == code), "{faults:?}");
        // Ten tasks ask a server that refuses them less often than ten times.
        let mut is_remembered = false;
        for _ in 0..10 {
            let again = target.setup().await.unwrap_err();
            assert_eq!(again.code(), code, "{again}");
            is_remembered |= again.to_string().contains("a moment ago");
        }
        assert!(is_remembered || !changed.contains(":wrong@"));
    }
}

/// Tests that need a server of their own, on one server: a start costs seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_killed_and_restarted_server_loses_nothing_and_forgets_no_withdrawal() {
    let node = ServerSpec::search("search").without_fsync();
    let server = node.flag("thread_pool.write.size=1").flag("thread_pool.write.queue_size=1");
    let site = SearchSite { lanes: 4, ..SearchSite::alone(server).await }.ready().await;
    is_slowed_down_and_takes_all(&site).await;
    a_kill_in_a_bulk_is_a_transient_fault_and_the_flush_is_repeated(&site).await;
    a_late_older_write_is_refused(&site).await;
    an_index_that_is_gone_is_not_made_by_writing(&site).await;
}

const DEVICES: u64 = 6_000;

fn fleet() -> Vec<(u64, u32, Action<'static>)> {
    (0..DEVICES).map(|uuid| (5, 0, insert(uuid, &[("box_no", b"BOX")]))).collect()
}

async fn is_slowed_down_and_takes_all(site: &SearchSite) {
    let lanes = (0..site.lanes).map(|number| async move {
        let (mut lane, progress) = site.lane("source-a", number).await;
        // Many small requests, so that one lane waits for another.
        let mut progress = progress;
        for part in fleet().chunks(500) {
            progress = apply(&mut lane, &progress, part.to_vec()).await.unwrap();
        }
    });
    futures::future::join_all(lanes).await;
    assert_eq!(site.count().await, DEVICES);
    let stats = site.admin(Method::GET, "_nodes/stats/thread_pool", Json::Null).await;
    let node = stats["nodes"].as_object().unwrap().values().next().unwrap().clone();
    assert!(node["thread_pool"]["write"]["rejected"].as_u64().unwrap() > 0, "it was never busy: {node}");
}

async fn a_kill_in_a_bulk_is_a_transient_fault_and_the_flush_is_repeated(site: &SearchSite) {
    let (mut lane, mut progress) = site.lane("source-a", 0).await;
    let again = || fleet().into_iter().map(|(_, shard, action)| (6, shard, action)).collect();
    let server = site.stack().server("search").unwrap();
    let (begun, begins) = std::sync::mpsc::sync_channel(1);
    let killer = tokio::task::spawn_blocking({
        let server = server.clone();
        move || {
            begins.recv().unwrap();
            server.kill().unwrap();
        }
    });
    // The lane spends nearly all of its time in bulks, so the kill comes in one.
    let (cut_off, fault) = loop {
        let flush = flush(&lane, &progress, again());
        if let Err(fault) = lane.commit(&flush).await {
            break (flush, fault);
        }
        progress = flush.progress;
        let _after_the_first = begun.try_send(());
    };
    killer.await.unwrap();
    assert_eq!((fault.code(), fault.class()), (Code::TargetUnreachable, Class::Transient), "{fault}");
    tokio::task::spawn_blocking(move || server.restart().unwrap()).await.unwrap();
    let found = lane.load().await.unwrap();
    assert!([&progress, &cut_off.progress].contains(&&found), "{found:?}");
    apply(&mut lane, &found, again()).await.unwrap();
    assert_eq!(site.count().await, DEVICES);
}

/// Servers create a missing index on a write, with guessed fields, unless they are told not to.
async fn an_index_that_is_gone_is_not_made_by_writing(site: &SearchSite) {
    let settings = json!({ "persistent": { "action.auto_create_index": "true" } });
    site.admin(Method::PUT, "_cluster/settings", settings).await;
    site.admin(Method::DELETE, &site.index(), Json::Null).await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let fault = apply(&mut lane, &progress, fleet()).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableMissing, "{fault}");
    let indexes = site.admin(Method::GET, "_cat/indices?format=json", Json::Null).await;
    assert!(!indexes.to_string().contains(&site.alias()), "{indexes}");
}

/// Sets the time for which the server remembers the versions of removed documents.
pub async fn forget_after(site: &SearchSite, time: &str) {
    let settings = json!({ "index": { "gc_deletes": time } });
    site.admin(Method::PUT, &format!("{}/_settings", site.index()), settings).await;
}

async fn a_late_older_write_is_refused(site: &SearchSite) {
    // The server forgets the versions of deleted documents at once, as it does at a clean restart in any case.
    forget_after(site, "1ms").await;
    let deletes = || (0..DEVICES).map(|uuid| (9, 0, delete(uuid))).collect();
    for number in 0..site.lanes {
        let (mut lane, progress) = site.lane("source-a", number).await;
        apply(&mut lane, &progress, deletes()).await.unwrap();
    }
    assert_eq!(site.count().await, 0);
    for is_restarted in [false, true] {
        if is_restarted {
            let server = site.stack().server("search").unwrap();
            tokio::task::spawn_blocking(move || server.restart().unwrap()).await.unwrap();
        }
        let (mut lane, progress) = site.lane("source-a", 0).await;
        apply(&mut lane, &progress, fleet()).await.unwrap();
        assert_eq!(site.count().await, 0, "restarted: {is_restarted}");
    }
    let target = site.target();
    assert!(target.lane(&lane_id("source-a", 9)).is_none());
    forget_after(site, "1s").await;
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);
}

/// A document that was removed a moment ago counts as a higher version, which the server does not report.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_hand_has_just_deleted_comes_back_when_it_is_replaced() {
    let site = SearchSite { lanes: 2, ..SearchSite::new().await }.ready().await;
    for number in [0, 1] {
        let (mut lane, mut progress) = site.lane("source-a", number).await;
        let fields: &[(&str, &[u8])] = &[("imei1", b"490154203237518")];
        progress = apply(&mut lane, &progress, vec![(5, 0, insert(1, fields)), (5, 0, insert(2, fields))])
            .await
            .unwrap();
        let column = lane.projection().source_column();
        let rows = [b"1", b"2"].map(|uuid| (shard(0).shard, Cell::Bytes(uuid.as_slice().into())));
        for id in site.documents().await.into_keys() {
            let document = format!("{}/_doc/{id}?version=99&version_type=external_gte", site.index());
            site.admin(Method::DELETE, &document, Json::Null).await;
        }
        let mut replaced =
            flush(&lane, &progress, vec![(6, 0, insert(1, fields)), (6, 0, insert(2, fields))]);
        replaced.replacement = Some(Replacement { low: lsn(6), column, rows: rows.into() });
        let own = replaced.rows();
        lane.commit(&replaced).await.unwrap();
        assert_eq!(
            site.count().await,
            own as u64,
            "those of lane {number}, and none of another's is touched"
        );
    }
}
