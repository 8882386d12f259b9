//! The upkeep of a search index on a real server: a rebuild beside the index that serves, and the sweep of tombstones.

use anabranch_connectors::search::SetupReport;
use anabranch_pipeline::deliver::fence;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::records::{Flush, Progress};
use anabranch_schemas::change::Action;
use anabranch_schemas::lsn::Lsn;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::derived::lsn;
use crate::search::{SearchSite, apply, flush, lane_id, shard};
use crate::store_search::{delete, forget_after, insert, site_of};

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_built_beside_takes_the_place_of_the_other_with_all_its_documents() {
    let site = SearchSite::new().await.ready().await;
    let (target, old) = (site.target(), site.index());
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let past = || vec![(5, 0, insert(1, &[])), (6, 0, insert(2, &[])), (7, 1, insert(3, &[]))];
    let progress = apply(&mut lane, &progress, past()).await.unwrap();
    // This flush is under way when the rebuild begins: it would go into the old index alone.
    let stale = flush(&lane, &progress, vec![(8, 0, insert(9, &[]))]);

    let new = target.begin_rebuild("documents").await.unwrap();
    assert_eq!(new, format!("{}-v1-2", site.alias()));
    assert_eq!(target.begin_rebuild("documents").await.unwrap(), new, "it goes on when it is repeated");
    assert_eq!(fence(&mut lane).await.unwrap(), lsn(7));
    let fault = lane.commit(&stale).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetFenced, "{fault}");
    let progress = lane.load().await.unwrap();
    let present = vec![(8, 0, insert(4, &[])), (9, 0, delete(1)), (10, 1, Action::Withdraw)];
    let progress = apply(&mut lane, &progress, present).await.unwrap();
    let uuids = async |index: &str| -> Vec<Json> {
        let found = site.administrator.documents(index).await;
        found.values().map(|document| document["uuid"].clone()).collect()
    };
    assert_eq!(uuids(&new).await, ["4"], "the present goes into both");
    assert_eq!(uuids(&site.alias()).await, ["2", "4"], "the old one serves");
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);

    // The past comes later, by a lane of its own, up to and including the withdrawal.
    let mut building = target.building_lane(&lane_id("source-a", 0), &new).unwrap();
    let begun = building.load().await.unwrap();
    let mut changes = past();
    changes.push((10, 1, Action::Withdraw));
    apply(&mut building, &begun, changes).await.unwrap();
    assert_eq!(uuids(&new).await, ["2", "4"]);
    assert_eq!(target.end_rebuild("documents", &new, false).await.unwrap(), old);
    assert_eq!(uuids(&site.alias()).await, ["2", "4"], "the new one serves");
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);
    assert_eq!(target.setup().await.unwrap(), SetupReport::default());

    let progress = apply(&mut lane, &progress, vec![(11, 0, insert(5, &[]))]).await.unwrap();
    assert_eq!(
        (uuids(&site.alias()).await, uuids(&old).await),
        (vec!["2".into(), "4".into(), "5".into()], vec!["2".into(), "4".into()])
    );
    let newest = target.begin_rebuild("documents").await.unwrap();
    assert_eq!(newest, format!("{}-v1-3", site.alias()));
    fence(&mut lane).await.unwrap();
    assert_eq!(target.end_rebuild("documents", &newest, true).await.unwrap(), new);
    let indexes = site.admin(Method::GET, "_cat/indices?format=json", Json::Null).await.to_string();
    assert!(indexes.contains(&newest) && !indexes.contains(&format!("\"{new}\"")), "{indexes}");
    assert_eq!(lane.load().await.unwrap().position, progress.position);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_goes_when_it_is_old_and_nobody_could_bring_an_older_write() {
    let site = SearchSite { lanes: 2, sources: vec!["source-a", "source-b"], ..SearchSite::new().await }
        .ready()
        .await;
    let (target, far_ahead) = (site.target(), u64::MAX >> 1);
    let (mut one, first) = site.lane("source-a", 0).await;
    let (mut two, second) = site.lane("source-a", 1).await;
    let changes = || {
        (0..40)
            .flat_map(|uuid| [(5, 0, insert(uuid, &[])), (6 + uuid % 2, 0, delete(uuid))])
            .collect::<Vec<_>>()
    };
    let first = apply(&mut one, &first, changes()).await.unwrap();
    let tombstones = async || target.overview("documents").await.unwrap().tombstones;
    let sweep = async |before_ms| target.sweep("documents", before_ms, false).await;
    assert_eq!(sweep(far_ahead).await.unwrap(), 0, "the other lane of the source has not passed them");
    apply(&mut two, &second, changes()).await.unwrap();
    let mut later = two.load().await.unwrap();
    later.revision += 1;
    (later.position, later.highest_position) = (lsn(6), lsn(7));
    two.commit(&Flush::new(later)).await.unwrap();
    let fault = sweep(far_ahead).await.unwrap_err();
    assert!(fault.to_string().contains("replaying"), "{fault}");
    let mut back = two.load().await.unwrap();
    (back.revision, back.position) = (back.revision + 1, back.highest_position);
    two.commit(&Flush::new(back)).await.unwrap();

    assert_eq!(sweep(0).await.unwrap(), 0, "none is so old");
    assert_eq!(target.sweep("documents", far_ahead, true).await.unwrap(), 40);
    assert_eq!(tombstones().await, 40, "they were counted only");
    let living = (100..104).map(|uuid| (9, 0, insert(uuid, &[]))).collect();
    apply(&mut one, &first, living).await.unwrap();
    let documents = site.count().await;
    assert_eq!(sweep(far_ahead).await.unwrap(), 40);
    assert_eq!((tombstones().await, site.count().await), (0, documents));
    let building = target.begin_rebuild("documents").await.unwrap();
    let fault = sweep(far_ahead).await.unwrap_err();
    assert!(fault.to_string().contains(&building), "{fault}");

    assert_eq!(target.abandon_rebuild("documents").await.unwrap(), Some(building.clone()));
    assert_eq!(target.abandon_rebuild("documents").await.unwrap(), None);
    let progress = one.load().await.unwrap();
    let changes = (200..204).map(|uuid| (10, 0, insert(uuid, &[]))).collect();
    apply(&mut one, &progress, changes).await.unwrap();
    let more = (200..204).filter(|uuid| site_of(*uuid) == 0).count() as u64;
    assert_eq!(site.count().await, documents + more, "the lane goes on in the index that serves");
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);
    assert_eq!(target.begin_rebuild("documents").await.unwrap(), building, "it can be begun anew");
    let shadow = target.building_lane(&lane_id("source-a", 0), &building).unwrap().load().await.unwrap();
    assert_eq!(shadow, Progress::default());
}

/// The basis of a replay from nothing, and of the twin of documents.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_removed_only_as_it_was_found_and_its_version_is_forgotten_when_it_is_waited_for() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let progress = apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    let path = format!("{}/_doc/{}-1", site.index(), shard(0).shard.as_u64());
    let found = site.admin(Method::GET, &path, Json::Null).await;
    let (sequence, term) = (&found["_seq_no"], &found["_primary_term"]);
    // The document comes again in its own version, as by a replay.
    let progress = apply(&mut lane, &progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    let late = format!("{path}?if_seq_no={sequence}&if_primary_term={term}");
    let refused = site.administrator.refusal(Method::DELETE, &late).await;
    assert!(refused.contains("409 Conflict"), "{refused}");
    assert_eq!(site.count().await, 1, "it is not what was found");

    // The highest version that can be set by hand.
    let odd = format!("{}/_doc/odd?version={}&version_type=external", site.index(), i64::MAX);
    let shard_id = shard(0).shard.as_u64().to_string();
    let body = json!({ "shard_id": shard_id, "lane": 0, "lsn": 5, "withdrawn": false });
    site.admin(Method::PUT, &odd, body).await;
    let empty = |progress: &Progress| {
        let mut emptied = Flush::new(Progress { position: Lsn::ZERO, ..progress.clone() });
        emptied.progress.revision += 1;
        emptied.withdraw(shard(0).shard, Lsn::MAX);
        emptied
    };
    let emptied = empty(&progress);
    lane.commit(&emptied).await.unwrap();
    assert_eq!(site.count().await, 0);
    let progress = apply(&mut lane, &emptied.progress, vec![(5, 0, insert(1, &[]))]).await.unwrap();
    assert_eq!(site.count().await, 1, "its old version is no older one");

    forget_after(&site, "60s").await;
    let emptied = empty(&progress);
    lane.commit(&emptied).await.unwrap();
    let fault = apply(&mut lane, &emptied.progress, vec![(5, 0, insert(1, &[]))]).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableShape, "{fault}");
    assert!(fault.remedy_text().unwrap().contains(r#"{"index":{"gc_deletes":"1s"}}"#), "{fault}");
}
