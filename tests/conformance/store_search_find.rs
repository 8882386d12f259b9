//! Results of queries to an OpenSearch index, on a real server.

use anabranch_connectors::search::DocumentQuery;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::search::{SearchSite, apply, shard};
use crate::store_search::{delete, insert};

#[tokio::test(flavor = "multi_thread")]
async fn any_part_of_any_code_finds_the_document_with_all_its_fields() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let fields: &[(&str, &[u8])] = &[
        ("imei1", b"356938035643809"),
        ("imei2", b"035693803564380"),
        ("meid", b"A0000012345678"),
        ("box_no", b"BOX *?\"\\{}/+-:\0 7"),
        ("item_code", b"  lead and trail "),
        ("first_agent_code", b"agent-1"),
        ("warehouse_code", b"W"),
        ("account_id", b"77"),
        ("sku_code", b"\xff\xfe"),
    ];
    let long = vec![b'9'; 40_000];
    let others = [insert(8, &[("box_no", b"BOX 8")]), insert(9, &[("box_no", &long)])];
    let mut changes = vec![(5, 3, insert(7, fields))];
    changes.extend(others.map(|action| (6, 3, action)));
    apply(&mut lane, &progress, changes).await.unwrap();

    let id = format!("{}-7", shard(3).shard.as_u64());
    let expected = json!({
        "shard_id": shard(3).shard.as_u64().to_string(), "source": "source-a", "lane": 0, "lsn": 5, "withdrawn": false,
        "uuid": "7", "imei1": "356938035643809", "imei2": "035693803564380", "meid": "A0000012345678",
        "box_no": "BOX *?\"\\{}/+-:\0 7", "item_code": "  lead and trail ", "first_agent_code": "agent-1",
        "warehouse_code": "W", "account_id": "77", "sku_code": "\u{fffd}\u{fffd}",
        "database": "inventory_0", "table": "serial_code_03",
    });
    assert_eq!(site.documents().await[&id], expected);
    for part in ["356938035643809", "69380", "809", "a00000123", "*?\"\\{}/", "d AND t", "\0 7"] {
        let found = site.find(&site.alias(), json!({ "match_phrase": { "codes": part } })).await;
        assert!(found.keys().eq([&id]), "{part:?} finds {:?}", found.keys());
    }
    for part in ["agent-1", "356938035643800", "80903569"] {
        let found = site.find(&site.alias(), json!({ "match_phrase": { "codes": part } })).await;
        assert!(found.is_empty(), "{part:?} finds {:?}", found.keys());
    }
    let exact = json!({ "term": { "item_code": "  lead and trail " } });
    assert!(site.find(&site.alias(), exact).await.keys().eq([&id]));
    assert_eq!(site.documents().await.len(), 3, "a code beyond every limit is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_part_of_any_code_finds_the_device_and_nothing_is_taken_for_a_query() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    type Fields = &'static [(&'static str, &'static [u8])];
    let devices: Vec<(u64, Fields)> = vec![
        (1, &[("imei1", b"490154203237518"), ("warehouse_code", b"W1"), ("sku_code", b"S1")]),
        (2, &[("box_no", b"BOX*1?\"{}\\ AND *:*"), ("warehouse_code", b"W1")]),
        (3, &[("meid", b"A0000012AB34CD"), ("item_code", b"abcdef"), ("account_id", b"7")]),
        (4, &[("item_code", b"ghiabc"), ("first_agent_code", b"AG")]),
    ];
    let changes = devices.into_iter().map(|(uuid, fields)| (5, 0, insert(uuid, fields))).collect();
    apply(&mut lane, &progress, changes).await.unwrap();
    let target = site.target();
    let alias = site.alias();
    site.admin(Method::POST, &format!("{alias}/_refresh"), Json::Null).await;
    let find = async |question: DocumentQuery| {
        let page = target.find(&alias, &question, None, 10).await.unwrap();
        page.found.into_iter().map(|found| found.uuid).collect::<Vec<_>>()
    };
    let part = |part: &str| DocumentQuery { part: Some(part.to_owned()), ..DocumentQuery::default() };
    for (text, expected) in [
        ("490154203237518", vec!["1"]),
        ("4203", vec!["1"]),
        ("0000012ab", vec!["3"]),
        ("abc", vec!["3", "4"]),
        // The end of one code and the beginning of another form no code.
        ("4cdabc", vec![]),
        ("518490", vec![]),
        ("*1?\"{}\\ and", vec!["2"]),
        ("***", vec![]),
        ("*:*", vec!["2"]),
        ("imei1:490", vec![]),
        ("(box OR", vec![]),
    ] {
        assert_eq!(find(part(text)).await, expected, "{text}");
    }
    assert_eq!(
        find(DocumentQuery { warehouse: Some("W1".into()), ..DocumentQuery::default() }).await,
        ["1", "2"]
    );
    assert_eq!(
        find(DocumentQuery { warehouse: Some("W1".into()), sku: Some("S1".into()), ..part("490") }).await,
        ["1"]
    );
    assert_eq!(find(DocumentQuery { account: Some("7".into()), ..DocumentQuery::default() }).await, ["3"]);
    assert_eq!(find(DocumentQuery { agent: Some("AG".into()), ..DocumentQuery::default() }).await, ["4"]);
    assert!(find(DocumentQuery { agent: Some("A*".into()), ..DocumentQuery::default() }).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_neither_repeat_nor_skip_what_stays_while_others_come_and_go() {
    let site = SearchSite::new().await.ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let boxed = |uuid: u64| insert(uuid, &[("box_no", b"PALLET-1")]);
    let changes = (100..150).map(|uuid| (5, 0, boxed(uuid))).collect();
    let mut progress = apply(&mut lane, &progress, changes).await.unwrap();
    let (target, alias) = (site.target(), site.alias());
    let question = DocumentQuery { part: Some("pallet".into()), ..DocumentQuery::default() };
    let (mut seen, mut after) = (Vec::<String>::new(), None);
    for turn in 0.. {
        site.admin(Method::POST, &format!("{alias}/_refresh"), Json::Null).await;
        let page = target.find(&alias, &question, after.as_ref(), 7).await.unwrap();
        seen.extend(page.found.into_iter().map(|found| found.uuid));
        // Documents go, one before and one after the cursor, and two others come.
        let changes = vec![
            (6 + turn, 0, delete(100 + turn)),
            (6 + turn, 0, boxed(200 + turn)),
            (6 + turn, 0, boxed(10 + turn)),
        ];
        progress = apply(&mut lane, &progress, changes).await.unwrap();
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "once each, in order: {seen:?}");
    assert!((115..150).all(|stays: u64| seen.contains(&stays.to_string())), "{seen:?}");
}
