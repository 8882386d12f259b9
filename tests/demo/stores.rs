//! The verification of Redis keys and of documents names each kind of difference, on stores that the product filled
//! before it was ended.

use anabranch_demo::verify::{Differences, Layer, Verification};
use anabranch_demo::{JsonClient, RedisServer, WorkloadOptions};
use anabranch_pipeline::lookup::{decode, encode};
use anabranch_pipeline::records::DeviceClaim;
use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::shard::ShardId;
use anabranch_stack::ServerSpec;
use anabranch_tests::{Ground, Installation, Plan};
use redis::{Cmd, Value, cmd};
use reqwest::Method;
use serde_json::{Value as Json, json};

pub static GROUND: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
        ServerSpec::redis("redis"),
        ServerSpec::search("search"),
    ]
});

/// Expects exactly these differences of a comparison, with an example when there is any.
async fn expect(audit: &Verification, what: &str, expected: Differences) {
    let found = audit.compare().await.unwrap();
    assert_eq!(found.differences, expected, "{what}: {:?}", found.examples);
    assert_eq!(found.problems().is_empty(), expected.total() == 0, "{what}");
    assert_eq!(found.examples.is_empty(), expected.total() == 0, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_difference_in_the_cache_and_in_documents_is_named() {
    let plan = Plan { has_cache: true, has_documents: true, ..Plan::serials() };
    let installation = Installation::set_up(GROUND.turn().await, &plan).await;
    let mut workload = installation.workload(WorkloadOptions::new(41));
    workload.insert_rows(400).await.unwrap();
    let mut daemon = installation.run();
    for comparison in installation.compare_each().await {
        assert_eq!(comparison.problems(), Vec::<String>::new());
    }
    daemon.kill();
    for audit in &installation.audits {
        match &audit.layer {
            Layer::Cache(layer) => {
                Cache { audit, prefix: &layer.prefix, server: &layer.server }.differs().await
            }
            Layer::Documents(layer) => documents_differ(audit, &layer.server, &layer.index).await,
            _ => {}
        }
    }
    // The comparison of two empty stores is not a success.
    drop(installation);
    let empty = Installation::set_up(GROUND.turn().await, &plan).await;
    for audit in &empty.audits {
        let compared = audit.compare().await.unwrap();
        assert!(compared.differences.total() == 0 && !compared.problems().is_empty(), "{}", audit.name());
    }
}

struct Cache<'a> {
    audit: &'a Verification,
    prefix: &'a str,
    server: &'a RedisServer,
}

impl Cache<'_> {
    async fn ask<T: redis::FromRedisValue>(&self, command: &Cmd) -> T {
        self.server.connect().await.unwrap().one("plant a difference", command).await.unwrap()
    }

    fn key(&self, role: char, code: &[u8]) -> Vec<u8> {
        let mut key = format!("{}:{{{:08x}}}{role}:", self.prefix, crc32fast::hash(code)).into_bytes();
        key.extend_from_slice(code);
        key
    }

    /// Some key with at least two claims.
    async fn shared_set(&self) -> (Vec<u8>, Vec<DeviceClaim>) {
        let keys: Vec<Vec<u8>> = self.ask(cmd("KEYS").arg(format!("{}:*e:*", self.prefix))).await;
        for key in keys {
            let entry: Vec<u8> = self.ask(cmd("GET").arg(&key)).await;
            let claims = decode(&entry).unwrap();
            if claims.len() > 1 {
                return (key, claims);
            }
        }
        panic!("no code names two devices");
    }

    async fn set(&self, key: &[u8], value: &[u8], seconds: u64) {
        self.ask::<()>(cmd("DEL").arg(key)).await;
        self.ask::<()>(cmd("SET").arg(key).arg(value).arg("EX").arg(seconds)).await;
    }

    async fn expect(&self, what: &str, expected: Differences) {
        expect(self.audit, what, expected).await;
    }

    async fn differs(&self) {
        let none = Differences::default();
        let (key, claims) = self.shared_set().await;
        let whole = encode(&claims);
        let put_back = async || self.set(&key, &whole, 1000).await;

        self.ask::<()>(cmd("DEL").arg(&key)).await;
        self.expect("a key that is not there is no difference", none).await;

        let wrong_set = Differences { wrong_set: 1, ..none };
        self.set(&key, &encode(&claims[1..]), 1000).await;
        self.expect("a part of a set", wrong_set).await;
        let stranger =
            DeviceClaim { shard: ShardId::of("s", "d", "t", 0), uuid: (*b"7").into(), kind: CodeKind::Meid };
        let mut more = claims.clone();
        more.push(stranger.clone());
        more.sort();
        self.set(&key, &encode(&more), 1000).await;
        self.expect("a claim too many", wrong_set).await;
        self.set(&key, &encode(&[]), 60).await;
        self.expect("nobody, where somebody is", wrong_set).await;

        let unreadable = Differences { unreadable: 1, ..none };
        self.set(&key, &whole[..whole.len() - 1], 1000).await;
        self.expect("bytes that were cut off", unreadable).await;
        self.ask::<()>(cmd("DEL").arg(&key)).await;
        self.ask::<()>(cmd("RPUSH").arg(&key).arg("foreign")).await;
        self.expect("a key of another type", unreadable).await;

        let wrong_expiry = Differences { wrong_expiry: 1, ..none };
        put_back().await;
        self.expect("all is right again", none).await;
        self.ask::<()>(cmd("PERSIST").arg(&key)).await;
        self.expect("a key for ever", wrong_expiry).await;
        self.set(&key, &whole, 3_700).await;
        self.expect("a key that lives longer than it may", wrong_expiry).await;
        put_back().await;

        let nobody = self.key('e', b"nobody has this");
        self.set(&nobody, &encode(&[]), 60).await;
        self.expect("nobody, remembered for a while", none).await;
        self.set(&nobody, &encode(&[]), 1000).await;
        self.expect("nobody, remembered for long", wrong_expiry).await;
        let orphan = Differences { orphan: 1, ..none };
        self.set(&nobody, &encode(&[stranger]), 60).await;
        self.expect("a set of a code that no device has", orphan).await;
        self.ask::<()>(cmd("DEL").arg(&nobody)).await;

        for strange in [&b"strange"[..], format!("{}:{{00000000}}e:x", self.prefix).as_bytes()] {
            self.set(strange, &whole, 60).await;
            self.expect("a key that nobody asks for", orphan).await;
            self.ask::<()>(cmd("DEL").arg(strange)).await;
        }
        let token = self.key('t', b"anything");
        self.set(&token, b"0123456789abcdef", 30).await;
        self.expect("the token of a fill that was cut off", none).await;
        self.ask::<Value>(cmd("PERSIST").arg(&token)).await;
        self.expect("a token for ever", wrong_expiry).await;
        self.ask::<()>(cmd("DEL").arg(&token)).await;
        self.expect("all is right at the end", none).await;
    }
}

async fn documents_differ(audit: &Verification, server: &JsonClient, index: &str) {
    let none = Differences::default();
    let phone = json!({ "bool": { "filter": [
        { "term": { "withdrawn": false } }, { "exists": { "field": "meid" } },
    ] } });
    let hit = server.hits("pick a document", index, phone).await.unwrap().swap_remove(0);
    let (id, document) = (hit["_id"].as_str().unwrap(), hit["_source"].clone());
    let version = hit["_version"].as_u64().unwrap();
    let ask = async |method: Method, id: &str, body: Json| {
        let path = format!("{index}/_doc/{id}?version={version}&version_type=external_gte");
        server.ask("plant a difference", method, &path, body).await.unwrap();
    };
    let put = async |id: &str, document: &Json| ask(Method::PUT, id, document.clone()).await;
    let delete = async |id: &str| ask(Method::DELETE, id, Json::Null).await;
    let with = |changes: &[(&str, Json)]| {
        let mut changed = document.clone();
        for (field, value) in changes {
            changed[*field] = value.clone();
        }
        changed
    };

    delete(id).await;
    expect(audit, "a document that is not there", Differences { missing: 1, ..none }).await;
    let other = format!("{id}-2");
    put(&other, &document).await;
    expect(audit, "a document under another id", Differences { wrong_table: 1, ..none }).await;
    put(id, &document).await;
    expect(audit, "two documents of one claim", Differences { duplicate: 1, ..none }).await;
    delete(&other).await;

    put(id, &json!({ "source": document["source"], "lsn": version, "withdrawn": true })).await;
    expect(audit, "a withdrawn document of a living row", Differences { withdrawn: 1, ..none }).await;

    let wrong_field = Differences { wrong_field: 1, ..none };
    let mut lacking = document.clone();
    lacking.as_object_mut().unwrap().remove("meid");
    for (what, changed) in [
        ("another code", with(&[("meid", json!("A0000000000000"))])),
        ("no code", lacking),
        ("another warehouse", with(&[("warehouse_code", json!("elsewhere"))])),
        ("another lane", with(&[("lane", json!(9))])),
        ("another table", with(&[("table", json!("serial_code_77"))])),
    ] {
        put(id, &changed).await;
        expect(audit, what, wrong_field).await;
    }
    put(id, &with(&[("lsn", json!(version - 1))])).await;
    expect(audit, "another version than it says", Differences { stale_version: 1, ..none }).await;
    put(id, &document).await;
    expect(audit, "all is right again", none).await;

    let uuid = document["uuid"].as_str().unwrap();
    let left = with(&[("shard_id", json!("77"))]);
    put(&format!("77-{uuid}"), &left).await;
    expect(audit, "left behind by a shard", Differences { duplicate: 1, ..none }).await;
    delete(&format!("77-{uuid}")).await;
    let nobody = with(&[("uuid", json!("nobody"))]);
    let id = format!("{}-nobody", document["shard_id"].as_str().unwrap());
    put(&id, &nobody).await;
    expect(audit, "a document of no row", Differences { orphan: 1, ..none }).await;
    delete(&id).await;
    expect(audit, "all is right at the end", none).await;
}
