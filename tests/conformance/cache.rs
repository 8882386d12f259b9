//! Tests that need a real Redis: restarts, memory, foreign keys, fail-over, a Cluster, and the way from the outbox.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{CodeCache, FRESHNESS_KEY_TIME_TO_LIVE};
use anabranch_stack::{Options, Stack};
use anabranch_tests::until_some;

use crate::ports::cache::{LONG, cached, code, set, store};
use crate::redis_ground::{RedisGround, cache_at};

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_as_documented_and_expire() {
    let ground = RedisGround::shared().await;
    assert!(store(&ground.cache, &code("BOX-1"), 1, LONG).await);
    let key = format!("{}:{{{:08x}}}e:BOX-1", ground.prefix, crc32fast::hash(b"BOX-1"));
    assert_eq!(ground.keys().await, BTreeSet::from([key.clone()]), "the token is gone");
    let mut admin = ground.admin().await;
    let mut left = async || redis::cmd("PTTL").arg(&key).query_async::<i64>(&mut admin).await.unwrap();
    assert!((1..=LONG.as_millis() as i64).contains(&left().await));
    ground.cache.shorten(Duration::from_secs(60)).await.unwrap();
    assert!((1..=60_000).contains(&left().await), "shortened");
    let mut admin = ground.admin().await;
    redis::cmd("PERSIST").arg(&key).exec_async(&mut admin).await.unwrap();
    ground.cache.shorten(Duration::from_secs(60)).await.unwrap();
    let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut admin).await.unwrap();
    assert!((1..=60_000).contains(&left), "an entry that would live for ever does not");

    ground.cache.write_freshness_key(&ground.cache.incarnation().await.unwrap()).await.unwrap();
    let key = format!("{}:{{00000000}}m:", ground.prefix);
    let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut admin).await.unwrap();
    assert!(
        (1..=FRESHNESS_KEY_TIME_TO_LIVE.as_millis() as i64).contains(&left),
        "an old copy is one without it: {left}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_no_entry_and_is_replaced() {
    let ground = RedisGround::shared().await;
    let code = code("LIST");
    assert!(store(&ground.cache, &code, 1, LONG).await);
    let key = ground.keys().await.pop_first().unwrap();
    let mut admin = ground.admin().await;
    redis::cmd("DEL").arg(&key).exec_async(&mut admin).await.unwrap();
    redis::cmd("RPUSH").arg(&key).arg("foreign").exec_async(&mut admin).await.unwrap();
    assert_eq!(cached(&ground.cache, &code).await, None);
    assert!(store(&ground.cache, &code, 2, LONG).await);
    assert_eq!(cached(&ground.cache, &code).await, Some(set(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cache_serves_what_it_has_and_takes_removals() {
    let ground = RedisGround::alone().await;
    let (first, other) = (code("FIRST"), code("OTHER"));
    assert!(store(&ground.cache, &first, 1, LONG).await);
    let mut admin = ground.admin().await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec_async(&mut admin).await.unwrap();
    assert!(!store(&ground.cache, &other, 1, LONG).await, "there is no room, and that is no failure");
    assert_eq!(cached(&ground.cache, &first).await, Some(set(1)));
    ground.cache.invalidate(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(cached(&ground.cache, &first).await, None);
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec_async(&mut admin).await.unwrap();
    assert!(store(&ground.cache, &other, 2, LONG).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_life_is_told_by_every_answer() {
    let ground = RedisGround::alone().await;
    let code = code("LIFE");
    assert!(store(&ground.cache, &code, 1, LONG).await);
    let before = ground.cache.get(std::slice::from_ref(&code)).await.unwrap().incarnation;
    assert_eq!(ground.cache.incarnation().await.unwrap(), *before);
    let server = ground.server();
    tokio::task::spawn_blocking(move || {
        server.kill().unwrap();
        server.restart_empty().unwrap();
    })
    .await
    .unwrap();
    let after = loop {
        match ground.cache.get(std::slice::from_ref(&code)).await {
            Ok(cached) => break cached,
            Err(fault) => assert_eq!(fault.code(), Code::CacheUnreachable, "{fault}"),
        }
    };
    assert_ne!(after.incarnation, before, "the first answer of the new life says so");
    assert_eq!(after.entries, [None]);

    // A primary that became a replica takes no writes, and its contents are another server's.
    let mut admin = ground.admin().await;
    redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).exec_async(&mut admin).await.unwrap();
    let fault = ground.cache.incarnation().await.unwrap_err();
    assert_eq!(fault.code(), Code::CacheRejected, "{fault}");
    assert!(fault.to_string().contains("it is a replica"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_a_missing_server_are_named() {
    let ground = RedisGround::shared().await;
    let server = ground.server();
    let wrong = server.url().replace(server.password(), "wrong");
    let fault = cache_at(&ground.stack, &wrong, "x", false).incarnation().await.unwrap_err();
    assert_eq!(fault.code(), Code::CacheAccessDenied, "{fault}");
    assert!(!fault.to_string().contains(server.password()), "{fault}");
    // Ten tasks ask the server less often than ten times.
    let mut is_remembered = false;
    for _ in 0..10 {
        let fault = cache_at(&ground.stack, &wrong, "x", false).incarnation().await.unwrap_err();
        assert_eq!(fault.code(), Code::CacheAccessDenied, "{fault}");
        is_remembered |= fault.to_string().contains("a moment ago");
    }
    assert!(is_remembered);
    let nobody = server.url().replace(&server.port().to_string(), "1");
    let fault = cache_at(&ground.stack, &nobody, "x", false).incarnation().await.unwrap_err();
    assert_eq!(fault.code(), Code::CacheUnreachable, "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_has_the_commands_of_the_product_and_no_others() {
    let ground = RedisGround::shared().await;
    let root = std::fs::read(ground.stack.ca_file()).unwrap();
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(root) };
    let client = redis::Client::build_with_tls(ground.server().url(), certificates).unwrap();
    let mut account = client.get_multiplexed_async_connection().await.unwrap();
    for command in
        ["CONFIG GET *", "FLUSHALL", "KEYS *", "ACL LIST", "SHUTDOWN", "REPLICAOF NO ONE", "PUBLISH a b"]
    {
        let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
        let mut refused = redis::cmd(name);
        for argument in arguments.split_ascii_whitespace() {
            refused.arg(argument);
        }
        let error = refused.exec_async(&mut account).await.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{command}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_serves_as_one_server_does() {
    let stack = tokio::task::spawn_blocking(|| {
        let stack = Stack::start(Options::empty()).unwrap();
        stack.add_redis_cluster(&["redis-1", "redis-2", "redis-3"]).unwrap();
        stack
    });
    let stack = stack.await.unwrap();
    let url = stack.server("redis-2").unwrap().url();
    let cache = cache_at(&stack, &url, "cluster", true);
    let codes: Vec<_> = (0..500).map(|number| code(&format!("C{number}"))).collect();
    for (version, code) in (0..).zip(&codes) {
        assert!(store(&cache, code, version, LONG).await);
    }
    let entries = cache.get(&codes).await.unwrap().entries;
    assert!(entries.iter().all(Option::is_some));
    cache.shorten(Duration::from_secs(60)).await.unwrap();
    cache.invalidate(&codes[..250]).await.unwrap();
    let entries = cache.get(&codes).await.unwrap().entries;
    assert_eq!(entries.iter().filter(|entry| entry.is_some()).count(), 250);
    cache.write_freshness_key(&cache.incarnation().await.unwrap()).await.unwrap();
    assert!(cache.has_freshness_key().await.unwrap());
    cache.clear().await.unwrap();
    assert!(!cache.has_freshness_key().await.unwrap());
    assert!(cache.get(&codes).await.unwrap().entries.iter().all(Option::is_none));
    let lives = cache.incarnation().await.unwrap();
    assert_eq!(lives.split(' ').count(), 3, "{lives}");
    assert_eq!(cache.incarnation().await.unwrap(), lives);
    let node = stack.server("redis-3").unwrap();
    tokio::task::spawn_blocking(move || node.kill().and_then(|()| node.restart())).await.unwrap().unwrap();
    let after = until_some("the Cluster answers", async || cache.incarnation().await.ok()).await;
    let changed = lives.split(' ').zip(after.split(' ')).filter(|(before, after)| before != after).count();
    assert_eq!(changed, 1, "one primary began another life: {lives}, {after}");
}
