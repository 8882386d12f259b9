//! From the outbox of mapping tables into Redis, catching up: the product's drain, in turn with a program written by
//! hand that does the same reads and writes.
//!
//! That program has its codes in memory, sorted and each once. Over four connections to each server it takes some
//! hundred codes at a time: one pipeline (remove entry and token, set another token), one statement that reads their
//! mapping rows, and one pipeline that stores each entry whose token is unchanged. It reads no outbox.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anabranch_connectors::mysql::store::{MysqlMapping, MysqlTarget};
use anabranch_connectors::redis::{RedisCache, RedisSettings};
use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::config::Config;
use anabranch_pipeline::lookup::{Drain, drain, encode};
use anabranch_pipeline::ports::Outbox;
use anabranch_pipeline::projections::serial_mapping::SerialMapping;
use anabranch_pipeline::records::DeviceClaim;
use anabranch_schemas::serial::{CodeKind, StoredCode};
use anabranch_schemas::shard::ShardId;
use redis::aio::MultiplexedConnection;
use tokio_util::sync::CancellationToken;

use crate::contest::{Contest, Hand};
use crate::devices::Devices;
use crate::meter::{Measured, Meter};
use crate::report::Report;
use crate::site::{MAPPING, REDIS, Site, TARGET};
use crate::{Scale, apply, capture, data};

const BAR: f64 = 0.70;
/// Connections of the daemon for filling a cache, and of the program written by hand.
const CONNECTIONS: usize = 4;
/// Codes of a step that the program tries; the faster size is the limit.
const STEP_CODES: [usize; 2] = [200, 1_000];
const TIME_TO_LIVE_MS: u64 = 365 * 24 * 3600 * 1000;
const FINISH: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) return 1 end return 0";

/// Measures both; [`fill_tables`] must have filled the site.
pub async fn measure(site: &Site<'_>, scale: &Scale, report: &mut Report) {
    let config = site.config();
    let bench = CacheBench::open(site, &config);
    let codes = bench.touched().await;
    report.note(&format!("cache: {} codes were touched", codes.len()));
    let mut redis = admin(site).await;
    let mut hands = STEP_CODES.map(|codes| Hand::new(format!("{codes} codes a step")));
    let mut products = Vec::new();
    // The first run finds cold servers and is thrown away.
    for round in 0..=scale.rounds {
        let mut sizes = BTreeSet::new();
        for (step, hand) in STEP_CODES.iter().zip(&mut hands) {
            empty(&mut redis).await;
            hand.runs.push(bench.by_hand(site, &codes, *step).await);
            sizes.insert(size(&mut redis).await);
        }
        empty(&mut redis).await;
        site.target("UPDATE anabranch.outbox SET drained_at = NULL").await;
        products.push(bench.product(site).await);
        sizes.insert(size(&mut redis).await);
        // The product has one key more: its freshness key.
        let is_same = sizes.first().zip(sizes.last()).is_some_and(|(least, most)| most - least <= 1);
        assert!(is_same, "the same entries are stored: {sizes:?}");
        if round == 0 {
            products.clear();
            hands.iter_mut().for_each(|hand| hand.runs.clear());
        }
    }
    let contest = Contest {
        figure: "cache, TLS",
        unit: "codes",
        count: codes.len() as u64,
        servers: "target and Redis",
        bar: BAR,
        products,
        hands: hands.into(),
    };
    report.add(contest.line());
}

/// Writes devices into mapping tables, with each code in the outbox.
pub async fn fill_tables(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let amount = (scale.cached_devices, scale.seed);
    let data = data::write(site, Devices::WHAT, amount, Devices::writers()).await;
    report.note(&data.to_string());
    let log = site.new_log("cache").await;
    capture::append(site, &log, &data).await;
    let config = Arc::new(site.config());
    site.installation.command(&["setup"]).await.expect_success();
    apply::product(site, &config, &log, data.end_lsn).await;
}

pub async fn admin(site: &Site<'_>) -> MultiplexedConnection {
    let url = site.installation.server(REDIS).admin_url();
    connect(&url, &site.installation.stack().ca_file()).await
}

pub async fn connect(url: &str, ca_file: &Path) -> MultiplexedConnection {
    let certificates = std::fs::read(ca_file).expect("the stack made it");
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(certificates) };
    let client = redis::Client::build_with_tls(url, certificates).expect("the stack's address");
    client.get_multiplexed_async_connection().await.expect("it answers")
}

pub async fn empty(redis: &mut MultiplexedConnection) {
    redis::cmd("FLUSHALL").query_async::<()>(redis).await.expect("an administrator may");
}

async fn size(redis: &mut MultiplexedConnection) -> u64 {
    redis::cmd("DBSIZE").query_async(redis).await.expect("an administrator may")
}

/// The prefix of every key.
pub fn prefix(config: &Config) -> String {
    format!("{}:{MAPPING}", config.name)
}

/// The keys of a code's entry and token.
pub fn keys(prefix: &str, code: &[u8]) -> [Vec<u8>; 2] {
    let tag = crc32fast::hash(code);
    ["e", "t"].map(|role| {
        let mut key = format!("{prefix}:{{{tag:08x}}}{role}:").into_bytes();
        key.extend_from_slice(code);
        key
    })
}

/// The mapping tables with their cache.
struct CacheBench {
    cache: RedisCache,
    prefix: String,
    mapping: MysqlMapping,
    outbox: anabranch_connectors::mysql::store::MysqlOutbox,
    tables: SerialMapping,
    time_to_live: anabranch_pipeline::records::TimeToLive,
}

impl CacheBench {
    fn open(site: &Site<'_>, config: &Config) -> Self {
        let cache = config.caches.first().expect("it is configured");
        let prefix = prefix(config);
        let settings = RedisSettings {
            name: cache.name.clone(),
            url: cache.url.clone(),
            ca_file: Some(site.installation.stack().ca_file()),
            is_cluster: false,
            prefix: prefix.clone(),
        };
        let target = MysqlTarget::new(config, TARGET).expect("it is configured");
        Self {
            cache: RedisCache::new(settings),
            prefix,
            mapping: MysqlMapping::new(config, MAPPING, CONNECTIONS).expect("it is configured"),
            outbox: target.outbox(MAPPING).expect("it is configured"),
            tables: SerialMapping::configured(&config.projections[0]).expect("it has mapping tables"),
            time_to_live: cache.time_to_live,
        }
    }

    /// Every code of the outbox, each once.
    async fn touched(&self) -> Vec<StoredCode> {
        let rows = self.outbox.pending(usize::MAX >> 1).await.expect("the target answers");
        let mut codes: Vec<StoredCode> = rows.into_iter().flat_map(|row| row.codes).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    async fn product(&self, site: &Site<'_>) -> Measured {
        let cancel = CancellationToken::new();
        let work = Drain {
            cache: &self.cache,
            outbox: &self.outbox,
            mapping: &self.mapping,
            time_to_live: self.time_to_live,
        };
        let meter = Meter::start(&pids(site));
        drain(
            work,
            |is_filled| {
                if is_filled {
                    cancel.cancel()
                }
            },
            &cancel,
        )
        .await
        .expect("the servers answer");
        meter.stop()
    }

    async fn by_hand(&self, site: &Site<'_>, codes: &[StoredCode], step: usize) -> Measured {
        let endpoint = Endpoint::admin(site.installation.stack(), TARGET).expect("a server of the stack");
        let finish = redis::cmd("SCRIPT").arg("LOAD").arg(FINISH).query_async(&mut admin(site).await).await;
        let finish: String = finish.expect("an administrator may");
        let mut workers = Vec::new();
        for _ in 0..CONNECTIONS {
            let session = ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"];
            workers.push((endpoint.connect(&session).await.expect("it answers"), admin(site).await));
        }
        let steps = std::sync::Mutex::new(codes.chunks(step));
        let meter = Meter::start(&pids(site));
        let runs = workers.iter_mut().map(async |(target, redis)| {
            loop {
                let next = steps.lock().expect("no task panics").next();
                let Some(codes) = next else { break };
                self.fill_by_hand(target, redis, &finish, codes).await;
            }
        });
        futures::future::join_all(runs).await;
        meter.stop()
    }

    async fn fill_by_hand(
        &self,
        target: &mut Connection,
        redis: &mut MultiplexedConnection,
        finish: &str,
        codes: &[StoredCode],
    ) {
        let keys: Vec<[Vec<u8>; 2]> = codes.iter().map(|code| keys(&self.prefix, code.as_bytes())).collect();
        let token = rand::random::<u128>().to_be_bytes();
        let mut pipeline = redis::pipe();
        for [entry, other] in &keys {
            pipeline.cmd("UNLINK").arg(entry).arg(other).ignore();
            pipeline.cmd("SET").arg(other).arg(&token).arg("NX").arg("PX").arg(30_000).ignore();
        }
        pipeline.query_async::<()>(redis).await.expect("it answers");
        let mut sql = String::new();
        for (number, code) in codes.iter().enumerate() {
            let derived = &self.tables.tables()[self.table_of(code)].derived;
            let (database, table) = (&derived.database, &derived.table);
            sql.push_str(if number == 0 { "" } else { " UNION ALL " });
            write!(sql, "SELECT {number},shard_id,uuid,kind FROM {database}.{table} WHERE value=x'")
                .expect(STRING);
            code.as_bytes().iter().for_each(|byte| write!(sql, "{byte:02x}").expect(STRING));
            sql.push('\'');
        }
        let rows: Vec<(usize, u64, Vec<u8>, u8)> =
            target.rows("read mapping rows", sql).await.expect("it answers");
        let mut sets = vec![Vec::new(); codes.len()];
        for (number, shard, uuid, kind) in rows {
            let (shard, kind) = (ShardId::from_u64(shard), CodeKind::from_number(kind));
            let (shard, kind) = shard.zip(kind).expect("lanes wrote it");
            sets[number].push(DeviceClaim { shard, uuid: uuid.into(), kind });
        }
        let mut pipeline = redis::pipe();
        for ([entry, other], mut set) in keys.iter().zip(sets) {
            set.sort_unstable();
            pipeline.cmd("EVALSHA").arg(finish).arg(2).arg(other).arg(entry);
            pipeline.arg(&token).arg(encode(&set)).arg(TIME_TO_LIVE_MS).ignore();
        }
        pipeline.query_async::<()>(redis).await.expect("it answers");
    }

    fn table_of(&self, code: &StoredCode) -> usize {
        self.tables.table_of(code) as usize
    }
}

fn pids(site: &Site<'_>) -> [u32; 2] {
    [TARGET, REDIS].map(|server| site.pid(server))
}

const STRING: &str = "writing to a String cannot fail";
