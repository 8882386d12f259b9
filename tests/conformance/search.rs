//! A place for documents on a real OpenSearch server, one set of indexes for each test.
//!
//! `ANABRANCH_TEST_SEARCH_URL` names another server instead, such as an Elasticsearch; tests that need a server of
//! their own, TLS or passwords still take the stack's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use anabranch_connectors::search::{SearchLane, SearchTarget};
use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::projections::Defects;
use anabranch_pipeline::records::{Flush, LaneId, Progress};
use anabranch_schemas::change::{Action, Change, Entity, Row, TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::Search;
use reqwest::Method;
use serde_json::Value as Json;

use crate::derived::lsn;

/// The server that the environment names, and its administrator.
fn named_server() -> Option<(String, Search)> {
    let url = std::env::var("ANABRANCH_TEST_SEARCH_URL").ok()?;
    let url = url.trim_end_matches('/').to_owned();
    Some((url.clone(), Search::without_tls(url)))
}

/// One server for all tests of the process, as a start costs seconds.
fn shared_stack() -> Arc<Stack> {
    static SHARED: OnceLock<Arc<Stack>> = OnceLock::new();
    let options = || Options::empty().with(ServerSpec::search("search").without_fsync());
    let start = || Stack::start(options()).expect("OpenSearch starts");
    Arc::clone(SHARED.get_or_init(|| Arc::new(start())))
}

/// A place for documents: indexes of its own on a shared or own server.
#[derive(Clone)]
pub struct SearchSite {
    /// The stack of the server; `None` on a server that the environment names.
    pub stack: Option<Arc<Stack>>,
    /// The configuration's setting of the target, with the authority that it needs.
    pub address: String,
    pub prefix: String,
    pub lanes: u32,
    pub sources: Vec<&'static str>,
    pub administrator: Search,
}

impl SearchSite {
    pub async fn new() -> Self {
        match named_server() {
            // Tests of an earlier run may have left their indexes there.
            Some((url, administrator)) => Self {
                prefix: format!("{}-{}", std::process::id(), next_prefix()),
                lanes: 1,
                sources: vec!["source-a"],
                administrator,
                address: format!("url = \"{url}\"\n"),
                stack: None,
            },
            None => Self::shared().await,
        }
    }

    /// A place on the shared server with TLS and accounts, whatever the environment names.
    pub async fn shared() -> Self {
        Self::on(tokio::task::spawn_blocking(shared_stack).await.unwrap())
    }

    /// A place on a server that no other test uses.
    pub async fn alone(server: ServerSpec) -> Self {
        let start = || Stack::start(Options::empty().with(server)).expect("OpenSearch starts");
        Self::on(Arc::new(tokio::task::spawn_blocking(start).await.unwrap()))
    }

    fn on(stack: Arc<Stack>) -> Self {
        let server = stack.server("search").unwrap();
        let (url, setup_url) = (server.url(), server.setup_url().unwrap());
        Self {
            prefix: next_prefix(),
            lanes: 1,
            sources: vec!["source-a"],
            administrator: Search::of(&stack),
            address: format!(
                "url = \"{url}\"\nsetup_url = \"{setup_url}\"\nca_file = \"{}\"\n",
                stack.ca_file().display()
            ),
            stack: Some(stack),
        }
    }

    /// The stack of a place that is `alone` or `shared`.
    pub fn stack(&self) -> &Stack {
        self.stack.as_deref().expect("it was asked for on the stack")
    }

    pub fn alias(&self) -> String {
        format!("serials-{}", self.prefix)
    }

    pub fn index(&self) -> String {
        format!("{}-v1", self.alias())
    }

    pub fn control(&self) -> String {
        format!("anabranch-{}", self.prefix)
    }

    pub fn config_text(&self) -> String {
        let mut text = "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n[[entities]]\n\
             entity = \"serial_code\"\ntables = \"inventory_{db}.serial_code_{table:02}\"\n"
            .to_owned();
        for source in &self.sources {
            text += &format!("[[sources]]\nname = \"{source}\"\nurl = \"mysql://u:p@127.0.0.1:2\"\n");
        }
        text + &format!(
            "[[targets]]\nname = \"search\"\n{}control_database = \"{}\"\n\
             [[projections]]\nname = \"documents\"\nkind = \"serial_documents\"\ntargets = [\"search\"]\n\
             lanes = {}\nindex = \"{}\"\n",
            self.address,
            self.control(),
            self.lanes,
            self.alias()
        )
    }

    pub fn target(&self) -> SearchTarget {
        target_of(&self.config_text())
    }

    pub async fn ready(self) -> Self {
        self.target().setup().await.unwrap();
        self
    }

    /// The lane of one process, and its progress.
    pub async fn lane(&self, source: &str, lane: u32) -> (SearchLane, Progress) {
        let mut store = self.target().lane(&lane_id(source, lane)).unwrap();
        let progress = store.load().await.unwrap();
        (store, progress)
    }

    /// Sends an administrator's request; returns the answer, which must not be an error.
    pub async fn admin(&self, method: Method, path: &str, body: Json) -> Json {
        self.administrator.ask(method, path, body).await
    }

    pub async fn find(&self, index: &str, query: Json) -> BTreeMap<String, Json> {
        self.administrator.find(index, query).await
    }

    /// The documents that are not withdrawn.
    pub async fn documents(&self) -> BTreeMap<String, Json> {
        self.administrator.documents(&self.alias()).await
    }

    /// The number of documents that are not withdrawn.
    pub async fn count(&self) -> u64 {
        self.administrator.count(&self.index()).await
    }
}

fn next_prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("p{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub fn target_of(config: &str) -> SearchTarget {
    let config = Config::parse(config).unwrap_or_else(|faults| panic!("{faults:?}"));
    SearchTarget::new(&config, "search").unwrap()
}

pub fn lane_id(source: &str, lane: u32) -> LaneId {
    LaneId { projection: "documents".into(), target: "search".into(), source: source.into(), lane }
}

pub fn shard(number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::SerialCode,
        shard: ShardId::of("source-a", "inventory_0", &number.to_string(), 0),
        database: "inventory_0".into(),
        table: format!("serial_code_{number:02}").into(),
    }
}

/// A device with only these captured fields.
pub fn device(uuid: u64, fields: &[(&str, &[u8])]) -> Row<'static> {
    let names = Entity::SerialCode.field_names();
    let mut row = vec![Value::Null; names.len()];
    row[0] = Value::UInt(uuid);
    for (name, value) in fields {
        let place = names.iter().position(|field| field == name).unwrap();
        row[place] = Value::Bytes(value.to_vec().into());
    }
    row
}

/// The lane's flush of changes (position, shard, action).
pub fn flush(lane: &SearchLane, progress: &Progress, changes: Vec<(u64, u32, Action<'static>)>) -> Flush {
    let mut flush = Flush::new(progress.clone());
    flush.progress.revision += 1;
    for (position, number, action) in changes {
        let (table, lsn) = (shard(number), lsn(position));
        let change = Change { lsn, table: &table, action };
        lane.projection().project(&change, lane.scope(), &mut flush, &mut Defects::default());
        flush.progress.position = lsn;
    }
    flush
}

/// Commits changes; returns the progress after them.
pub async fn apply(
    lane: &mut SearchLane,
    progress: &Progress,
    changes: Vec<(u64, u32, Action<'static>)>,
) -> Result<Progress, Fault> {
    let flush = flush(lane, progress, changes);
    lane.commit(&flush).await?;
    Ok(flush.progress)
}
