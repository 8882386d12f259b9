//! Redis, or a server that speaks its protocol, as the cache of mapping rows: one server or a Cluster.
//!
//! Keys are `<name>:{<tag>}e:<code>` (entry) and `…t:<code>` (token of a fill). The tag is the code's CRC-32 in
//! hexadecimal: it keeps both keys of a code in one slot of a Cluster, whatever bytes the code has. Entries have the
//! form of [`anabranch_pipeline::lookup::encode`]. `<name>:{<number>}m:` are freshness keys: they expire, so an
//! existing one proves that its server does not hold an old copy. `client.rs` connects and sends, this file builds the
//! commands.

mod client;

use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{
    CacheEntries, CacheEntry, CacheFill, Cached, CodeCache, FRESHNESS_KEY_TIME_TO_LIVE,
};
use anabranch_pipeline::records::{ScanCursor, Token};
use anabranch_schemas::serial::StoredCode;
use metrics::counter;
use redis::{Cmd, Value, cmd};

use self::client::Client;

/// Life of a fill's token: an interrupted filler blocks others no longer, and a slower one may not store.
const TOKEN_TIME_TO_LIVE: Duration = Duration::from_secs(30);
/// Freshness keys in a Cluster: enough that each of a hundred primaries has some.
const CLUSTER_FRESHNESS_KEYS: u32 = 1024;
/// Keys in a step of a scan: some milliseconds of the server's time.
const SCAN_KEYS: usize = 1000;
/// Redis' time to live of a key that never expires; a missing key has a smaller number.
const FOR_EVER: i64 = -1;
/// The scan's cursor before the first step and after the last.
const FIRST: &str = "0";
/// Script that stores the entry and removes the token, if the token is still the given one.
const FINISH: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) return 1 end return 0";

/// The server of a cache, and the prefix of its keys.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// The cache's name, as faults name it.
    pub name: String,
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    pub is_cluster: bool,
    /// Prefix of every key.
    pub prefix: String,
}

/// One cache. Cheap to clone; it connects at the first use, and again after a failure.
#[derive(Debug, Clone)]
pub struct RedisCache {
    client: Client,
    prefix: String,
    freshness_keys: u32,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Entry,
    Token,
}

impl RedisCache {
    pub fn new(settings: RedisSettings) -> Self {
        let (prefix, freshness_keys) =
            (settings.prefix.clone(), if settings.is_cluster { CLUSTER_FRESHNESS_KEYS } else { 1 });
        Self { client: Client::new(settings), prefix, freshness_keys }
    }

    /// Checks that the server can be used; changes nothing.
    pub async fn check(&self) -> Vec<Fault> {
        self.incarnation().await.err().into_iter().collect()
    }

    fn key(&self, code: &StoredCode, role: Role) -> Vec<u8> {
        let role = match role {
            Role::Entry => 'e',
            Role::Token => 't',
        };
        let tag = crc32fast::hash(code.as_bytes());
        let mut key = format!("{}:{{{tag:08x}}}{role}:", self.prefix).into_bytes();
        key.extend_from_slice(code.as_bytes());
        key
    }

    fn freshness_keys(&self) -> impl Iterator<Item = String> {
        (0..self.freshness_keys).map(|number| format!("{}:{{{number:08x}}}m:", self.prefix))
    }

    /// Returns the pattern of every key of this cache.
    fn pattern(&self) -> String {
        format!("{}:{{????????}}?:*", self.prefix)
    }

    /// Returns the code of a key of this cache; `None` for any other key.
    fn code_of(&self, key: &[u8]) -> Option<StoredCode> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.get(":{12345678}".len()..)?;
        let (role, code) = match rest {
            [b'e', b':', code @ ..] => (Role::Entry, code),
            [b't', b':', code @ ..] => (Role::Token, code),
            _ => return None,
        };
        StoredCode::from_stored(code).filter(|code| self.key(code, role) == key)
    }

    /// Runs a step of a scan over one server; returns the next cursor ("0" = the scan is complete) and the keys.
    async fn step(&self, node: &Client, cursor: &str) -> Result<(String, Vec<Vec<u8>>), Fault> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(self.pattern()).arg("COUNT").arg(SCAN_KEYS);
        let answer = node.one(scan).await?;
        // The library's error quotes the answer.
        redis::from_redis_value(answer).map_err(|_| self.client.odd("its answer to SCAN cannot be read"))
    }

    /// Visits every key on every primary, in steps.
    async fn each_step<F>(&self, mut visit: impl FnMut(Client, Vec<Vec<u8>>) -> F) -> Result<(), Fault>
    where
        F: Future<Output = Result<(), Fault>>,
    {
        for node in self.client.primaries().await? {
            let mut cursor = FIRST.to_owned();
            loop {
                let (next, keys) = self.step(&node, &cursor).await?;
                if !keys.is_empty() {
                    visit(node.clone(), keys).await?;
                }
                if next == FIRST {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }
}

impl CodeCache for RedisCache {
    async fn get(&self, codes: &[StoredCode]) -> Result<Cached, Fault> {
        let commands = codes.iter().map(|code| {
            let mut get = cmd("GET");
            get.arg(self.key(code, Role::Entry));
            get
        });
        let (incarnation, answers) = self.client.all(commands.collect()).await?;
        let entry = |answer| match answer {
            Ok(Value::BulkString(bytes)) => Some(bytes),
            Ok(_) => None,
            // A key of another type does not matter: the next fill replaces it.
            Err(fault) => {
                count(&fault);
                None
            }
        };
        Ok(Cached { incarnation, entries: answers.into_iter().map(entry).collect() })
    }

    async fn begin(&self, codes: &[StoredCode]) -> Result<Vec<Option<Token>>, Fault> {
        let tokens: Vec<Token> = codes.iter().map(|_| Token(rand::random())).collect();
        let commands = codes.iter().zip(&tokens).map(|(code, token)| {
            let mut set = cmd("SET");
            set.arg(self.key(code, Role::Token)).arg(token.0.to_be_bytes().as_slice());
            set.arg("NX").arg("PX").arg(milliseconds(TOKEN_TIME_TO_LIVE));
            set
        });
        let (_, answers) = self.client.all(commands.collect()).await?;
        let taken = |(token, answer)| match answer {
            Ok(Value::Okay) => Some(token),
            Ok(_) => None,
            Err(fault) => {
                count(&fault);
                None
            }
        };
        Ok(tokens.into_iter().zip(answers).map(taken).collect())
    }

    async fn finish(&self, fills: &[CacheFill]) -> Result<usize, Fault> {
        let commands = fills.iter().map(|fill| {
            let mut eval = cmd("EVAL");
            eval.arg(FINISH).arg(2);
            eval.arg(self.key(&fill.code, Role::Token)).arg(self.key(&fill.code, Role::Entry));
            eval.arg(fill.token.0.to_be_bytes().as_slice()).arg(fill.entry.as_slice());
            eval.arg(milliseconds(fill.time_to_live));
            eval
        });
        let (_, answers) = self.client.all(commands.collect()).await?;
        let mut stored = 0;
        for answer in answers {
            match answer {
                Ok(Value::Int(1)) => stored += 1,
                Ok(_) => {}
                Err(fault) => count(&fault),
            }
        }
        Ok(stored)
    }

    async fn invalidate(&self, codes: &[StoredCode]) -> Result<(), Fault> {
        let commands = codes.iter().map(|code| {
            let mut unlink = cmd("UNLINK");
            unlink.arg(self.key(code, Role::Entry)).arg(self.key(code, Role::Token));
            unlink
        });
        let (_, answers) = self.client.all(commands.collect()).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    async fn incarnation(&self) -> Result<String, Fault> {
        self.client.incarnation().await
    }

    async fn clear(&self) -> Result<(), Fault> {
        self.each_step(|node, keys| async move {
            let unlink = |key| {
                let mut unlink = cmd("UNLINK");
                unlink.arg(key);
                unlink
            };
            node.all(keys.into_iter().map(unlink).collect()).await.map(drop)
        })
        .await
    }

    async fn shorten(&self, time_to_live: Duration) -> Result<(), Fault> {
        self.each_step(|node, keys| async move {
            let left = |key: &Vec<u8>| {
                let mut left = cmd("PTTL");
                left.arg(key.as_slice());
                left
            };
            let (_, left) = node.all(keys.iter().map(left).collect()).await?;
            let shorter = |(key, left): (Vec<u8>, Result<Value, Fault>)| {
                let is_longer =
                    matches!(left, Ok(Value::Int(left)) if left == FOR_EVER || left > milliseconds(time_to_live));
                is_longer.then(|| {
                    let mut expire = cmd("PEXPIRE");
                    expire.arg(key).arg(milliseconds(time_to_live));
                    expire
                })
            };
            let commands: Vec<Cmd> = keys.into_iter().zip(left).filter_map(shorter).collect();
            node.all(commands).await.map(drop)
        })
        .await
    }

    /// The scan's position is the number of the server and its cursor; another set of servers is another life.
    async fn scan(&self, after: Option<&ScanCursor>) -> Result<(Vec<StoredCode>, Option<ScanCursor>), Fault> {
        let place = after.and_then(|place| std::str::from_utf8(&place.0).ok()?.split_once(' '));
        let (number, cursor) = place.unwrap_or((FIRST, FIRST));
        let nodes = self.client.primaries().await?;
        let number = number.parse::<usize>().unwrap_or(usize::MAX);
        let Some(node) = nodes.get(number) else {
            return Err(self.client.odd("the nodes of the Cluster changed during the scan"));
        };
        let (next, keys) = self.step(node, cursor).await?;
        let place = match next.as_str() {
            FIRST => (number + 1 < nodes.len()).then(|| format!("{} {FIRST}", number + 1)),
            next => Some(format!("{number} {next}")),
        };
        // No lookup finds other keys.
        let mut codes: Vec<StoredCode> = keys.iter().filter_map(|key| self.code_of(key)).collect();
        codes.sort_unstable();
        codes.dedup();
        Ok((codes, place.map(|place| ScanCursor(place.into_bytes().into()))))
    }

    async fn entries(&self, codes: &[StoredCode]) -> Result<CacheEntries, Fault> {
        let commands = codes.iter().flat_map(|code| {
            let ask = |word, role| {
                let mut command = cmd(word);
                command.arg(self.key(code, role));
                command
            };
            [ask("GET", Role::Entry), ask("PTTL", Role::Entry), ask("PTTL", Role::Token)]
        });
        let (incarnation, answers) = self.client.all(commands.collect()).await?;
        let mut answers = answers.into_iter();
        let mut entries = Vec::with_capacity(codes.len());
        while let (Some(entry), Some(left), Some(token)) = (answers.next(), answers.next(), answers.next()) {
            let bytes = match entry {
                Ok(Value::BulkString(bytes)) => bytes,
                // A key of another type has no bytes.
                _ => Vec::new(),
            };
            let entry = match left? {
                Value::Int(FOR_EVER) => Some((bytes, None)),
                Value::Int(left) => {
                    u64::try_from(left).ok().map(|left| (bytes, Some(Duration::from_millis(left))))
                }
                _ => None,
            };
            entries.push(CacheEntry { entry, is_blocked: token? == Value::Int(FOR_EVER) });
        }
        Ok(CacheEntries { incarnation, entries })
    }

    async fn write_freshness_key(&self, incarnation: &str) -> Result<(), Fault> {
        let commands = self.freshness_keys().map(|key| {
            let mut set = cmd("SET");
            set.arg(key).arg(1).arg("PX").arg(milliseconds(FRESHNESS_KEY_TIME_TO_LIVE));
            set
        });
        let answers = self.client.all_in(incarnation, commands.collect()).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    async fn has_freshness_key(&self) -> Result<bool, Fault> {
        let commands = self.freshness_keys().map(|key| {
            let mut exists = cmd("EXISTS");
            exists.arg(key);
            exists
        });
        let (_, answers) = self.client.all(commands.collect()).await?;
        let mut are_all = true;
        for answer in answers {
            are_all &= answer? == Value::Int(1);
        }
        Ok(are_all)
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn count(fault: &Fault) {
    counter!(names::CACHE_FAULTS, "code" => fault.code().as_str()).increment(1);
}

/// Returns the code for an answer that is an error.
fn code_of(error: &redis::RedisError) -> Code {
    use redis::{ErrorKind, ServerErrorKind};
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => Code::CacheAccessDenied,
        (ErrorKind::Server(ServerErrorKind::NoPerm), _) => Code::CacheAccessDenied,
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => Code::CacheRejected,
        _ => Code::CacheUnreachable,
    }
}
