//! A real Redis for tests, with a key prefix of its own for each of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use anabranch_connectors::redis::{RedisCache, RedisSettings};
use anabranch_pipeline::config::ServerUrl;
use anabranch_schemas::serial::StoredCode;
use anabranch_stack::{Options, Server, ServerSpec, Stack};
use redis::aio::MultiplexedConnection;

/// A server with a key prefix of its own.
pub struct RedisGround {
    pub stack: Arc<Stack>,
    pub cache: RedisCache,
    pub prefix: String,
}

fn start() -> Arc<Stack> {
    Arc::new(Stack::start(Options::empty().with(ServerSpec::redis("redis").without_fsync())).unwrap())
}

impl RedisGround {
    /// A cache on a server that other tests use too.
    pub async fn shared() -> Self {
        // The server ends with the process.
        static SHARED: OnceLock<Arc<Stack>> = OnceLock::new();
        let stack = tokio::task::spawn_blocking(|| Arc::clone(SHARED.get_or_init(start)));
        Self::on(stack.await.unwrap())
    }

    pub async fn alone() -> Self {
        Self::on(tokio::task::spawn_blocking(start).await.unwrap())
    }

    fn on(stack: Arc<Stack>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = stack.server("redis").unwrap().url();
        Self { cache: cache_at(&stack, &url, &prefix, false), stack, prefix }
    }

    pub fn server(&self) -> Arc<Server> {
        self.stack.server("redis").unwrap()
    }

    /// The key of a code's entry (`e`) or token (`t`).
    pub fn key(&self, code: &StoredCode, role: char) -> Vec<u8> {
        let tag = crc32fast::hash(code.as_bytes());
        let mut key = format!("{}:{{{tag:08x}}}{role}:", self.prefix).into_bytes();
        key.extend_from_slice(code.as_bytes());
        key
    }

    /// Opens an administrator's connection.
    pub async fn admin(&self) -> MultiplexedConnection {
        let root = std::fs::read(self.stack.ca_file()).unwrap();
        let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(root) };
        let client = redis::Client::build_with_tls(self.server().admin_url(), certificates).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    pub async fn keys(&self) -> BTreeSet<String> {
        let pattern = format!("{}:*", self.prefix);
        redis::cmd("KEYS").arg(pattern).query_async(&mut self.admin().await).await.unwrap()
    }
}

pub fn cache_at(stack: &Stack, url: &str, prefix: &str, is_cluster: bool) -> RedisCache {
    RedisCache::new(RedisSettings {
        name: "redis".to_owned(),
        url: ServerUrl::try_from(url.to_owned()).unwrap(),
        ca_file: Some(stack.ca_file()),
        is_cluster,
        prefix: prefix.to_owned(),
    })
}
