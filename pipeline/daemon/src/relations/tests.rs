//! Tests of questions and of answers, without a server.

use anabranch_pipeline::config::Config;
use anabranch_pipeline::records::RelationRow;
use anabranch_pipeline::relations::{DocumentBelow, PageBelow, WayEnd};
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;
use serde_json::json;

use super::*;

const CONFIG: &str = r#"
name = "test"
[log]
url = "tls://u:p@127.0.0.1:1"
[flux]
kinds = { "01" = ["recharge", "recharge-clearing"], "03" = ["refund", "refund-clearing"] }
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
[[sources]]
name = "source-a"
url = "mysql://u:p@127.0.0.1:1"
flux = { region = "singapore", side = "main" }
[[targets]]
name = "target-a"
url = "mysql://u:p@127.0.0.1:1"
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target-a"]
"#;

/// Tables by year beside those of [`CONFIG`].
const BY_YEAR: &str = r#"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{year}_{month:02}"
[flux.years]
cut_over = "2027-01-01"
"#;

const RECHARGE: &str = "2016060611031001005050000000001";
const REFUND: &str = "2016060611031003099050000000002";

fn relations() -> Relations {
    relations_of(CONFIG)
}

fn relations_of(text: &str) -> Relations {
    let config = Config::parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    Relations::new(&Wiring::new(config)).expect("an index is configured")
}

fn id(text: &str) -> FluxId {
    text.parse().unwrap()
}

fn row(id_text: &str, shard: ShardId, parent: Option<&[u8]>) -> RelationRow {
    let (amount, created) = (Some(b"12.5000".as_slice().into()), None);
    RelationRow { id: id(id_text), shard, parent: parent.map(Into::into), amount, created }
}

fn document(rows: Vec<RelationRow>) -> RelatedDocument {
    RelatedDocument { id: rows[0].id, claims: rows }
}

#[tokio::test]
async fn an_installation_without_an_index_has_no_relations() {
    let text = CONFIG.split("[[projections]]").next().unwrap();
    assert!(Relations::new(&Wiring::new(Config::parse(text).unwrap())).is_none());
}

#[tokio::test]
async fn a_question_that_cannot_be_answered_is_refused_with_its_reason() {
    let relations = relations();
    let ask = |limit, after| relations.question(limit, after).map_err(|refusal| refusal.to_string());
    for limit in [0, PAGE_DOCUMENTS_MAX + 1] {
        assert!(ask(Some(limit), None).unwrap_err().contains("1 to 1000"), "{limit}");
    }
    for after in ["", "1", "x.2016060611031001005050000000001", "99.2016060611031001005050000000001"] {
        assert!(ask(None, Some(after)).unwrap_err().contains("`next`"), "{after}");
    }
    let after = format!("2.{REFUND}");
    let expected = BelowQuestion { limit: 7, after: PageCursor::parse_of(&after, 31) };
    assert_eq!(ask(Some(7), Some(&after)), Ok(expected));
    assert!(relations.read_id(RECHARGE).is_ok());
    assert!(relations.read_id(&RECHARGE.replace("11031", "11032")).is_err(), "another system");
}

/// Requests that find no room are refused at once, before they wait for any lane.
#[tokio::test]
async fn more_requests_than_may_wait_are_refused() {
    let relations = relations();
    let _all = relations.0.room.try_acquire_many((CONNECTIONS + QUEUED) as u32).unwrap();
    let place = "source-a:1:1:4".parse().unwrap();
    let refused = relations.document(&id(RECHARGE), Some(&place)).await;
    assert!(matches!(refused, Err(Refusal::Busy)));
}

#[tokio::test]
async fn an_answer_shows_each_part_each_claim_and_each_oddity_once() {
    let relations = relations();
    let (places, shard) = (&relations.0.places, ShardId::of("source-a", "flux_00_0", "composite_05_00", 0));
    let rows = vec![row(REFUND, shard, Some(RECHARGE.as_bytes())), row(REFUND, shard, Some(b"7"))];
    let refund = document(rows);
    let way = WayUp { documents: vec![document(vec![row(RECHARGE, shard, None)])], end: WayEnd::Top };
    let mut answer =
        DocumentAnswer::new(&refund.id, Some(&refund), Some(way), places, LaneFreshness::default());
    let table = TableIdentity {
        entity: Entity::Flux,
        shard,
        database: "flux_00_0".into(),
        table: "composite_05_00".into(),
    };
    for claim in &refund.claims {
        answer.odd.add(places, &table, claim);
    }
    answer.claims[0].name("source-a".to_owned(), &table);
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!((&json["kind"], &json["parent"]), (&json!("refund"), &json!(RECHARGE)));
    let tables = [&json["claims"][0]["table"], &json["claims"][1]["table"]];
    assert_eq!(tables, [&json!("composite_05_00"), &json!(null)]);
    assert_eq!((&json["above"][0]["id"], &json["above"][0]["kind"]), (&json!(RECHARGE), &json!("recharge")));
    assert_eq!(json["above_end"], json!({ "reason": "top" }));
    let parts = json!({
        "date": "2016-06-06", "version": "1", "region": "singapore", "system": "031", "level": "composite",
        "business": "03", "side": "main", "month": "99", "partition": "05", "reserved": "00", "sequence": "00000002"
    });
    assert_eq!(json["parts"], parts);
    assert_eq!(json["freshness"], json!({ "lag_ms": null, "replaying": false }));
    let odd: Vec<&str> = answer.odd.0.iter().map(String::as_str).collect();
    let named = |part: &str| odd.iter().filter(|text| text.contains(part)).count();
    assert_eq!((named("different parents"), named("no identifier"), named("month")), (1, 1, 1), "{odd:?}");
}

#[tokio::test]
async fn an_identifier_without_rows_is_answered_by_its_parts_alone() {
    let relations = relations();
    let answer =
        DocumentAnswer::new(&id(RECHARGE), None, None, &relations.0.places, LaneFreshness::default());
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!((&json["claims"], &json["above"], &json["above_end"]), (&json!([]), &json!([]), &json!(null)));
    assert_eq!((&json["kind"], &json["parts"]["month"]), (&json!("recharge"), &json!("05")));
}

#[tokio::test]
async fn an_answer_names_the_strategy_of_the_identifier() {
    let new = "2027010511031001000057000000001";
    let both = format!("{CONFIG}{BY_YEAR}");
    for (config, text, expected) in
        [(CONFIG, new, ("month", None)), (&both, new, ("year", Some(7))), (&both, RECHARGE, ("month", None))]
    {
        let relations = relations_of(config);
        let answer =
            DocumentAnswer::new(&id(text), None, None, &relations.0.places, LaneFreshness::default());
        assert_eq!((answer.strategy, answer.year), expected, "{text}");
        let json = serde_json::to_value(&answer).unwrap();
        assert_eq!((&json["strategy"], &json["year"]), (&json!(expected.0), &json!(expected.1)));
    }
}

#[tokio::test]
async fn a_page_names_its_depths_and_its_end() {
    let relations = relations();
    let shard = ShardId::of("source-a", "flux_00_0", "composite_05_99", 0);
    let below = document(vec![row(REFUND, shard, Some(RECHARGE.as_bytes()))]);
    let page = PageBelow {
        documents: vec![DocumentBelow { depth: 1, document: below }],
        next: Some(PageCursor { depth: 1, id: id(REFUND) }),
        is_cut: false,
    };
    let places = &relations.0.places;
    let answer = RelationsAnswer::new(&id(RECHARGE), page, places, LaneFreshness::default());
    let json = serde_json::to_value(&answer).unwrap();
    let expected = json!({
        "depth": 1, "id": REFUND, "kind": "refund", "parent": RECHARGE, "amount": "12.5000", "created": null
    });
    assert_eq!((&json["documents"][0], &json["next"]), (&expected, &json!(format!("1.{REFUND}"))));
}
