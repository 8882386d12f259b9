//! Redis as the stack serves it, with the product's own client: TLS, accounts, kill, wipe, replica, cluster.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::time::Duration;

use anabranch_stack::{Options, ServerSpec, Stack};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::{AsyncCommands, Client, FromRedisValue, RedisError, TlsCertificates};

fn certificates(stack: &Stack) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: Some(std::fs::read(stack.ca_file()).unwrap()) }
}

async fn connect(stack: &Stack, url: &str) -> Result<MultiplexedConnection, RedisError> {
    let client = Client::build_with_tls(url, certificates(stack))?;
    client.get_multiplexed_async_connection().await
}

async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &str,
) -> Result<T, RedisError> {
    let mut words = command.split(' ');
    let mut asked = redis::cmd(words.next().unwrap());
    asked.arg(words.collect::<Vec<_>>()).query_async(connection).await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_serves_its_accounts_over_verified_tls_and_is_killed_wiped_and_replaced() {
    let stack = Stack::start(Options::empty().with(ServerSpec::redis("redis"))).unwrap();
    let server = stack.server("redis").unwrap();
    assert_eq!(stack.env()["ANABRANCH_REDIS_URL"], server.url());

    let mut client = connect(&stack, &server.url()).await.unwrap();
    client.set::<_, _, ()>("demo:key", "value").await.unwrap();
    ask::<String>(&mut client, "INFO server").await.unwrap();
    for refused in ["CONFIG SET maxmemory 1", "CONFIG GET requirepass", "FLUSHALL", "SHUTDOWN", "ACL LIST"] {
        let error = ask::<redis::Value>(&mut client, refused).await.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{refused}: {error}");
    }
    let wrong = server.url().replace(server.password(), "wrong");
    connect(&stack, &wrong).await.expect_err("a wrong password must be refused");
    let plain = Client::open(server.url().replace("rediss:", "redis:")).unwrap();
    plain.get_multiplexed_async_connection().await.expect_err("a plain connection must be refused");
    let unverified = Client::open(server.url()).unwrap();
    unverified.get_multiplexed_async_connection().await.expect_err("an unknown authority must be refused");

    server.kill().unwrap();
    server.restart_with(&["--maxmemory 3mb", "--maxmemory-policy allkeys-lru"]).unwrap();
    let mut client = connect(&stack, &server.url()).await.unwrap();
    assert_eq!(client.get::<_, String>("demo:key").await.unwrap(), "value");
    let mut administrator = connect(&stack, &server.admin_url()).await.unwrap();
    let limit: Vec<String> = ask(&mut administrator, "CONFIG GET maxmemory").await.unwrap();
    assert_eq!(limit, ["maxmemory", "3145728"]);
    server.pause().unwrap();
    let paused = tokio::time::timeout(Duration::from_millis(300), connect(&stack, &server.url())).await;
    assert!(!matches!(paused, Ok(Ok(_))), "a paused server answers nothing");
    server.resume().unwrap();

    let replica = stack.add(ServerSpec::redis_replica("redis-2", &server)).unwrap();
    let mut client = connect(&stack, &server.admin_url()).await.unwrap();
    // The replica counts from its first whole copy on.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        client.set::<_, _, ()>("demo:later", "too").await.unwrap();
        if ask::<i64>(&mut client, "WAIT 1 200").await.unwrap() == 1 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{}", replica.log_tail());
    }
    server.kill().unwrap();
    let mut promoted = connect(&stack, &replica.admin_url()).await.unwrap();
    ask::<()>(&mut promoted, "REPLICAOF NO ONE").await.unwrap();
    let same_account = server.url().replace(&server.port().to_string(), &replica.port().to_string());
    let mut client = connect(&stack, &same_account).await.unwrap();
    assert_eq!(client.get::<_, String>("demo:later").await.unwrap(), "too");
    client.set::<_, _, ()>("demo:new", "write").await.unwrap();

    server.restart_empty().unwrap();
    let mut administrator = connect(&stack, &server.admin_url()).await.unwrap();
    assert_eq!(ask::<u64>(&mut administrator, "DBSIZE").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_serves_every_slot() {
    let stack = Stack::start(Options::empty()).unwrap();
    let names = ["redis-1", "redis-2", "redis-3"];
    stack.add_redis_cluster(&names).unwrap();

    let servers = names.map(|name| stack.server(name).unwrap());
    let urls = servers.each_ref().map(|server| server.url());
    let client = ClusterClient::builder(urls).certs(certificates(&stack)).build().unwrap();
    let mut cluster = client.get_async_connection().await.unwrap();
    for number in 0..100 {
        cluster.set::<_, _, ()>(format!("demo:key {number}"), number).await.unwrap();
    }
    let mut kept = 0;
    for server in &servers {
        let mut node = connect(&stack, &server.admin_url()).await.unwrap();
        let keys: u64 = ask(&mut node, "DBSIZE").await.unwrap();
        assert!(keys > 0, "each node has its share");
        kept += keys;
    }
    assert_eq!(kept, 100);
}
