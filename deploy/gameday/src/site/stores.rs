//! Damages the content of stores, and the storage of the log.

use std::time::Duration;

use anabranch_demo::verify::drain;
use anabranch_demo::{JsonClient, RedisServer, Topology, uuid};
use anabranch_schemas::change::Entity;
use anabranch_schemas::envelope::Envelope;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, jetstream};
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{CURRENT_MAX, INDEX, NAME, POLL_INTERVAL, Site, blocking};
use crate::error::{GamedayError, Result};

/// The stream of somebody else that fills NATS, and the size of its messages.
const OTHERS: &str = "others";
const MESSAGE_BYTES: usize = 1_000_000;
/// Settings of an index that the server makes, so that no request may name them.
const OWN_SETTINGS: [&str; 4] = ["uuid", "creation_date", "provided_name", "version"];
/// Number of the device that the foreign mapping rejects; no workload has it.
const DEVICE: u64 = 5_000_000_000;
/// A code that is no number.
const CODE: &str = "A000000000FADE";
/// The user whose derived row is deleted; no workload has it.
const USER: u64 = 5_000_000_001;
pub(super) const USER_TABLE: &str = "user_00.user_000";
/// Its birthday, and the derived table of that day.
const BIRTHDAY: &str = "1990-05-17";
const DERIVED_TABLE: &str = "birthday_0517";
/// Id of the forged message: it has the form of a reader's ids.
const FORGED_ID: &str = "0123456789abcdef-0";
/// Writes the transaction that a promoted replica lacks, and undoes it beside the binlog; no workload has the user.
const WRITE_LOST: &str = "
    INSERT INTO user_00.user_000 (user_id, user_name, birthday) VALUES (5000000005, 'game day', '1993-02-01')";
const UNDO_LOST: &str = "
    SET SESSION sql_log_bin = 0;
    DELETE FROM user_00.user_000 WHERE user_id = 5000000005";
/// Server id of the promoted replica.
const REPLICA_FLAG: &str = "--server-id=900";
/// Limit until the user's row is derived.
const DERIVED_MAX: Duration = Duration::from_secs(30);

impl Site {
    pub(super) async fn fill_log(&self) -> Result<()> {
        let jetstream = self.jetstream().await?;
        jetstream.create_stream(OTHERS).await.map_err(|error| failed("create a stream", &error))?;
        let message = vec![0u8; MESSAGE_BYTES];
        loop {
            let sent = jetstream.publish(OTHERS, message.clone().into()).await;
            if sent.map_err(|error| failed("send a message", &error))?.await.is_err() {
                return Ok(());
            }
        }
    }

    pub(super) async fn empty_log(&self) -> Result<()> {
        let jetstream = self.jetstream().await?;
        let deleted = jetstream.delete_stream(OTHERS).await;
        deleted.map(drop).map_err(|error| failed("delete a stream", &error))
    }

    pub(super) async fn ask_log(&self) -> Result<()> {
        let account = self.jetstream().await?.query_account().await;
        account.map(drop).map_err(|error| failed("ask for the account", &error))
    }

    /// Appends a copy of the newest message with changes, whose head announces one change more than the message has.
    pub(super) async fn forge_message(&self, source: &str) -> Result<()> {
        let jetstream = self.jetstream().await?;
        let stream = jetstream.get_stream(stream_of(source)).await;
        let stream = stream.map_err(|error| failed("find the stream", &error))?;
        let info = stream.get_info().await.map_err(|error| failed("ask for the stream", &error))?;
        let mut sequence = info.state.last_sequence;
        loop {
            let message = stream.get_raw_message(sequence).await;
            let message = message.map_err(|error| failed("read a message", &error))?;
            let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
            let envelope = Envelope::from_headers(header);
            let mut envelope = envelope.map_err(|error| failed("read a message's head", &error))?;
            if envelope.changes == 0 {
                sequence -= 1;
                continue;
            }
            envelope.changes += 1;
            let mut headers = HeaderMap::new();
            for (name, value) in envelope.to_headers() {
                headers.insert(name, value);
            }
            // A message without an id is one of another publisher.
            headers.insert(NATS_MESSAGE_ID, FORGED_ID);
            let subject = format!("{NAME}.{source}.changes");
            let sent = jetstream.publish_with_headers(subject, headers, message.payload).await;
            let stored = sent.map_err(|error| failed("send a message", &error))?.await;
            return stored.map(drop).map_err(|error| failed("store a message", &error));
        }
    }

    pub(super) async fn delete_stream(&self, source: &str) -> Result<()> {
        let deleted = self.jetstream().await?.delete_stream(stream_of(source)).await;
        deleted.map(drop).map_err(|error| failed("delete the stream of a source", &error))
    }

    async fn jetstream(&self) -> Result<jetstream::Context> {
        let server = self.server("nats")?;
        let client = async_nats::ConnectOptions::new()
            .user_and_password(server.user().to_owned(), server.password().to_owned())
            .add_root_certificates(self.stack.ca_file())
            .require_tls(true)
            .connect(format!("tls://127.0.0.1:{}", server.port()));
        Ok(jetstream::new(client.await.map_err(|error| failed("connect", &error))?))
    }

    pub(super) async fn flush_cache(&self) -> Result<()> {
        let mut connection = RedisServer::admin(&self.stack, "redis")?.connect().await?;
        Ok(connection.one::<()>("empty the cache", &redis::cmd("FLUSHALL")).await?)
    }

    /// Makes the index refuse writes, as the server itself does when its disks are full; or lets it take them again.
    pub(super) async fn block_index(&self, is_blocked: bool) -> Result<()> {
        let value = if is_blocked { json!(true) } else { Value::Null };
        let body = json!({ "index.blocks.read_only_allow_delete": value });
        self.search()?.ask("set a block", Method::PUT, &format!("{INDEX}/_settings"), body).await?;
        Ok(())
    }

    /// Replaces the index by an empty one of the same name whose `meid` takes numbers only, while no row changes. Then
    /// adds a device with a MEID that is none.
    pub(super) async fn replace_index(&mut self) -> Result<()> {
        // Lanes that write while the index is away would fail for another reason than the mapping.
        self.load.stop().await?;
        self.until_current(CURRENT_MAX).await?;
        let replaced = self.put_foreign_index().await;
        self.load.start();
        replaced?;
        self.add_device().await
    }

    async fn put_foreign_index(&self) -> Result<()> {
        let search = self.search()?;
        let found = search.ask("read the index", Method::GET, INDEX, Value::Null).await?;
        let Some((name, index)) = found.as_object().and_then(|indexes| indexes.iter().next()) else {
            let reason = format!("nothing is behind {INDEX}");
            return Err(GamedayError::AnswerUnfit { server: "OpenSearch", reason });
        };
        let mut settings: Map<String, Value> =
            index["settings"]["index"].as_object().cloned().unwrap_or_default();
        settings.retain(|name, _| !OWN_SETTINGS.contains(&name.as_str()));
        let mut mappings = index["mappings"].clone();
        mappings["properties"]["meid"] = json!({ "type": "long", "copy_to": ["codes"] });
        let body = json!({
            "settings": { "index": settings },
            "mappings": mappings,
            "aliases": index["aliases"],
        });
        search.ask("delete the index", Method::DELETE, name, Value::Null).await?;
        search.ask("make a foreign index", Method::PUT, name, body).await?;
        Ok(())
    }

    async fn add_device(&self) -> Result<()> {
        let is_of_devices = |topology: &&Topology| topology.entity == Entity::SerialCode;
        let mut topologies = self.audits.iter().map(|audit| &audit.topology);
        let topology = topologies.find(is_of_devices).expect("the site derives documents from devices");
        let table = topology.source_table(&uuid(DEVICE));
        let (name, key) = (table.quoted(), table.key(DEVICE));
        let source = &topology.sources[topology.source_of(table)].name;
        let statements = format!(
            "DELETE FROM {name} WHERE uuid = {key}; INSERT INTO {name} (uuid, meid) VALUES ({key}, '{CODE}')"
        );
        Ok(self.admin(source).await?.execute("add a device", statements).await?)
    }

    /// Changes a user, and deletes the derived row of that change as soon as it is there: before any spot check.
    pub(super) async fn plant_drift(&self) -> Result<()> {
        let statements = format!(
            "DELETE FROM {USER_TABLE} WHERE user_id = {USER}; \
             INSERT INTO {USER_TABLE} (user_id, user_name, birthday) VALUES ({USER}, 'game day', '{BIRTHDAY}')"
        );
        self.admin("source-a").await?.execute("change a user", statements).await?;
        self.delete_derived_row().await
    }

    /// Deletes the user's derived row as soon as it is there.
    pub(super) async fn delete_derived_row(&self) -> Result<()> {
        let databases = format!(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = '{DERIVED_TABLE}'"
        );
        let mut target = self.admin("target").await?;
        let databases: Vec<String> = target.rows("find the derived table", databases).await?;
        let deadline = Instant::now() + DERIVED_MAX;
        loop {
            for database in &databases {
                let row = format!("FROM {database}.{DERIVED_TABLE} WHERE user_id = {USER}");
                let count = format!("SELECT COUNT(*) {row}");
                if target.first::<u64>("look for the row", count).await? > Some(0) {
                    return Ok(target.execute("delete the row", format!("DELETE {row}")).await?);
                }
            }
            if Instant::now() >= deadline {
                let what = format!("the user {USER} is in a table {DERIVED_TABLE}");
                return Err(GamedayError::Late { what, seconds: DERIVED_MAX.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Leaves a source as a restored backup does that has a fourth of its users.
    pub(super) async fn lose_users(&mut self, source: &str) -> Result<()> {
        self.load.stop().await?;
        let lost = self.restore_a_fourth(source).await;
        self.load.start();
        lost
    }

    async fn restore_a_fourth(&self, source: &str) -> Result<()> {
        let mut admin = self.admin(source).await?;
        let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                      WHERE table_schema LIKE 'user\\_%'";
        let tables: Vec<String> = admin.rows("list the tables of users", tables).await?;
        let deletes = tables.iter().map(|table| format!("DELETE FROM {table} WHERE user_id % 4 <> 0; "));
        let deletes: String = deletes.collect();
        let statements = format!("SET SESSION sql_log_bin = 0; {deletes}");
        admin.execute("restore a part", statements).await?;
        self.reset_binlog(source).await
    }

    /// Leaves a source as its replica that took over before it had the last transaction, which was read: it has another
    /// server id, the GTIDs from before the transaction, and no row of it.
    pub(super) async fn fail_over_too_early(&mut self, source: &str) -> Result<()> {
        self.load.stop().await?;
        let failed_over = self.lose_transaction(source).await;
        self.load.start();
        failed_over
    }

    async fn lose_transaction(&mut self, source: &str) -> Result<()> {
        self.until_drained().await?;
        let mut admin = self.admin(source).await?;
        let gtids = "SELECT @@GLOBAL.gtid_binlog_state";
        let gtids: Option<String> = admin.first("ask for the GTIDs", gtids).await?;
        let gtids = gtids.unwrap_or_default();
        admin.execute("write a transaction", WRITE_LOST).await?;
        self.until_drained().await?;
        self.main.kill()?;
        let server = self.server(source)?;
        blocking(|| server.restart_with(&[REPLICA_FLAG]))?;
        let mut admin = self.admin(source).await?;
        admin.execute("undo the transaction", UNDO_LOST).await?;
        self.reset_binlog(source).await?;
        let earlier = format!("SET GLOBAL gtid_binlog_state = '{gtids}'");
        admin.execute("set the earlier GTIDs", earlier).await?;
        self.start_daemon(&[])
    }

    /// Waits until every lane has what its source has. No workload runs.
    async fn until_drained(&self) -> Result<()> {
        let drained = drain(&self.audits, CURRENT_MAX).await?;
        if drained.is_complete() {
            return Ok(());
        }
        let what = format!("all changes are derived; {}", drained.lagging.join("; "));
        Err(GamedayError::Late { what, seconds: CURRENT_MAX.as_secs() })
    }

    fn search(&self) -> Result<JsonClient> {
        Ok(JsonClient::search_admin(&self.stack, "search")?)
    }
}

/// Returns the name of a source's stream.
fn stream_of(source: &str) -> String {
    format!("{NAME}_{source}")
}

fn failed(action: &'static str, error: &dyn std::error::Error) -> GamedayError {
    GamedayError::Nats { action, reason: error.to_string() }
}
