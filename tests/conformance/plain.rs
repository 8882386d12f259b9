//! Every scheme without TLS, on a server that offers it: for loopback and for networks that encrypt beneath it.

use std::time::Duration;

use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_connectors::nats::NatsLog;
use anabranch_connectors::redis::{RedisCache, RedisSettings};
use anabranch_connectors::search::SearchTarget;
use anabranch_pipeline::config::{Config, ServerUrl};
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::CodeCache;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::TestDatabase;

use crate::nats::{append, blocking, limits, numbers, sources};
use crate::ports::cache::{LONG, cached, code, store};

fn start(specs: impl IntoIterator<Item = ServerSpec>) -> Stack {
    let options = specs.into_iter().fold(Options::empty(), Options::with);
    blocking(|| Stack::start(options).unwrap())
}

fn cache(url: String, is_cluster: bool) -> RedisCache {
    let url = ServerUrl::try_from(url).unwrap();
    RedisCache::new(RedisSettings {
        name: "redis".to_owned(),
        url,
        ca_file: None,
        is_cluster,
        prefix: "plain".to_owned(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_tls_serves() {
    let stack = start([ServerSpec::redis("redis").plain()]);
    let url = stack.server("redis").unwrap().url();
    assert!(url.starts_with("redis://"), "{url}");
    let cache = cache(url, false);
    assert_eq!(cache.check().await.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    assert!(store(&cache, &code("PLAIN"), 1, LONG).await);
    assert!(cached(&cache, &code("PLAIN")).await.is_some());
    cache.invalidate(&[code("PLAIN")]).await.unwrap();
    assert!(cached(&cache, &code("PLAIN")).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_without_tls_serves() {
    let stack = start([]);
    blocking(|| stack.add_plain_redis_cluster(&["redis-1", "redis-2", "redis-3"]).unwrap());
    let cache = cache(stack.server("redis-2").unwrap().url(), true);
    let codes: Vec<_> = (0..50).map(|number| code(&format!("C{number}"))).collect();
    for (version, code) in (0..).zip(&codes) {
        assert!(store(&cache, code, version, LONG).await);
    }
    cache.shorten(Duration::from_secs(60)).await.unwrap();
    assert!(cache.get(&codes).await.unwrap().entries.iter().all(Option::is_some));
    assert_eq!(cache.incarnation().await.unwrap().split(' ').count(), 3, "a life of each primary");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_with_which_no_redis_can_be_reached_are_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let no_certificate = folder.path().join("ca.pem");
    std::fs::write(&no_certificate, "-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n")
        .unwrap();
    let cache = RedisCache::new(RedisSettings {
        name: "redis".to_owned(),
        url: ServerUrl::try_from("rediss://user:secret@127.0.0.1:1".to_owned()).unwrap(),
        ca_file: Some(no_certificate),
        is_cluster: false,
        prefix: "plain".to_owned(),
    });
    let fault = cache.incarnation().await.unwrap_err();
    assert_eq!((fault.code(), fault.class()), (Code::ConfigInvalid, Class::Definite), "{fault}");
    assert!(fault.to_string().contains("caches.ca_file"), "{fault}");
}

fn config(log: &str, mysql: &str, search: &str) -> Config {
    let text = format!(
        r#"
        name = "demo"
        [log]
        url = "{log}"
        max_bytes = 1000000000
        [[entities]]
        entity = "user"
        tables = "user_{{db:02}}.user_{{table:03}}"
        [[entities]]
        entity = "serial_code"
        tables = "inventory_{{db}}.serial_code_{{table:02}}"
        [[sources]]
        name = "source-a"
        url = "mysql://capture:x@127.0.0.1:1"
        [[targets]]
        name = "target"
        url = "{mysql}"
        [[targets]]
        name = "search"
        url = "{search}"
        [[projections]]
        name = "birthday"
        kind = "birthday"
        targets = ["target"]
        layout = "by_day"
        databases = 1
        database = "birthday_{{db:02}}"
        table = "birthday_{{mmdd}}"
        [[projections]]
        name = "documents"
        kind = "serial_documents"
        targets = ["search"]
        index = "serials"
        "#
    );
    Config::parse(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_is_reached_as_tls_says_and_not_otherwise() {
    let stack = start([TestDatabase::chosen().server(ServerSpec::mariadb_target("target")).without_fsync()]);
    let server = stack.server("target").unwrap();
    let ca_file = stack.ca_file().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    // A file with many authorities, as `system` reads them.
    let many = folder.path().join("many.pem");
    let system =
        std::fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").expect("package ca-certificates");
    std::fs::write(&many, system + &std::fs::read_to_string(stack.ca_file()).unwrap()).unwrap();
    let many = many.display().to_string();
    let verified = format!("tls = \"verify\"\nca_file = \"{ca_file}\"");
    let verified_by_many = format!("tls = \"verify\"\nca_file = \"{many}\"");
    // The product's own accounts must use TLS, the administrator's account need not.
    let setup_url = server.setup_url().unwrap();
    for (url, tls, is_served) in [
        (setup_url.clone(), verified.as_str(), true),
        (setup_url.clone(), verified_by_many.as_str(), true),
        (setup_url.clone(), "tls = \"system\"", false),
        (setup_url, "tls = \"off\"", false),
        (server.admin_url(), "tls = \"off\"", true),
    ] {
        let target = format!("{url}\"\n{tls} # \"");
        let config = config("nats://u:p@127.0.0.1:1", &target, "http://127.0.0.1:1");
        let target = MysqlTarget::new(&config, "target").unwrap();
        let fault = target.setup().await.err();
        let code = fault.as_ref().map(|fault| fault.code());
        let expected = (!is_served).then_some(Code::TargetAccessDenied);
        assert_eq!(code, expected, "{tls}: {fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_mariadb_and_open_search_without_tls_serve() {
    let specs = [
        ServerSpec::nats("nats").plain(),
        TestDatabase::chosen().server(ServerSpec::mariadb_target("target")).without_fsync(),
        ServerSpec::search("search").plain().without_fsync(),
    ];
    let stack = start(specs);
    let url = |name: &str| stack.server(name).unwrap().url();
    // The product's own account must use TLS.
    let target = stack.server("target").unwrap().admin_url();
    let search = stack.server("search").unwrap().setup_url().unwrap();
    let config = config(&url("nats"), &target, &search);
    assert_eq!((config.log.url.scheme(), config.target("search").unwrap().url.scheme()), ("nats", "http"));

    let log = NatsLog::connect(&config.log, "demo", &limits()).await.unwrap();
    log.setup(&sources()).await.unwrap();
    append(&log, 1..=3).await;
    assert_eq!(numbers(&log).await, [1, 2, 3]);

    let target = MysqlTarget::new(&config, "target").unwrap();
    target.setup().await.unwrap();
    assert!(target.check().await.is_empty(), "{:?}", target.check().await);

    let search = SearchTarget::new(&config, "search").unwrap();
    search.setup().await.unwrap();
    assert!(search.check().await.is_empty(), "{:?}", search.check().await);
}
