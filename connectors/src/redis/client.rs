//! A connection to one Redis server or to a Cluster, and the server's life, which a restart or a promotion changes.
//!
//! A connection that fails is dropped. The next call makes another one and queries the server's life again, so no
//! answer of a new life counts as one of the old. In a Cluster the library reconnects by itself: a new life shows at
//! the next query for it, which readers make once a second.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use futures::future::{join_all, try_join_all};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsCertificates, Value, cmd,
};

use super::{RedisSettings, code_of};
use crate::refusals::Account;

/// The scheme of an address with TLS.
const ENCRYPTED: &str = "rediss";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait for a batch's answers; a slower server is no use as a cache.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(super) struct Client {
    settings: Arc<RedisSettings>,
    account: Account,
    /// Host and port of a node of a Cluster, which replace those of the URL.
    node: Option<(String, u16)>,
    connected: Arc<Mutex<Option<Connected>>>,
    /// The primaries of a Cluster, each with a connection of its own.
    nodes: Arc<Mutex<BTreeMap<(String, u16), Client>>>,
}

#[derive(Clone)]
struct Connected {
    connection: Connection,
    /// The life of the server that this connection leads to.
    incarnation: Arc<str>,
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(Box<ClusterConnection>),
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(settings: RedisSettings) -> Self {
        Self {
            account: Account::of(&settings.url, settings.ca_file.as_deref()),
            settings: Arc::new(settings),
            node: None,
            connected: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// Sends all commands at once; returns the server's life and each answer.
    pub(super) async fn all(
        &self,
        commands: Vec<Cmd>,
    ) -> Result<(Arc<str>, Vec<Result<Value, Fault>>), Fault> {
        self.over(self.connected().await?, commands).await
    }

    /// Sends all commands if the server is in this life; otherwise none.
    pub(super) async fn all_in(
        &self,
        incarnation: &str,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let connected = self.connected().await?;
        if *connected.incarnation != *incarnation {
            return Err(self.odd("it restarted or failed over"));
        }
        Ok(self.over(connected, commands).await?.1)
    }

    async fn over(
        &self,
        connected: Connected,
        commands: Vec<Cmd>,
    ) -> Result<(Arc<str>, Vec<Result<Value, Fault>>), Fault> {
        let incarnation = Arc::clone(&connected.incarnation);
        if commands.is_empty() {
            return Ok((incarnation, Vec::new()));
        }
        match self.send(connected.connection, commands).await {
            Ok(answers) => Ok((incarnation, answers)),
            Err(fault) => {
                self.disconnect(&incarnation);
                Err(fault)
            }
        }
    }

    /// Sends one command.
    pub(super) async fn one(&self, command: Cmd) -> Result<Value, Fault> {
        let (_, answers) = self.all(vec![command]).await?;
        answers.into_iter().next().unwrap_or_else(|| Err(self.odd("no answer")))
    }

    /// Queries the server's present life.
    pub(super) async fn incarnation(&self) -> Result<String, Fault> {
        let connected = self.connected().await?;
        let found = self.life_of(&connected.connection).await;
        match &found {
            Ok(found) if **found == *connected.incarnation => {}
            // Another life, or no answer: the known life of the connection is not valid any more.
            _ => self.disconnect(&connected.incarnation),
        }
        found
    }

    /// Returns a client for each primary.
    pub(super) async fn primaries(&self) -> Result<Vec<Client>, Fault> {
        match self.connected().await?.connection {
            Connection::Single(_) => Ok(vec![self.clone()]),
            Connection::Cluster(connection) => self.nodes(*connection).await,
        }
    }

    async fn nodes(&self, mut connection: ClusterConnection) -> Result<Vec<Client>, Fault> {
        let slots = cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
        let mut nodes: Vec<(String, u16)> = primaries_of(&slots.map_err(|error| self.fault(error))?);
        nodes.sort();
        nodes.dedup();
        if nodes.is_empty() {
            return Err(self.odd("no node of the Cluster serves slots"));
        }
        let single = RedisSettings { is_cluster: false, ..(*self.settings).clone() };
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|address, _| nodes.contains(address));
        let client = |address: (String, u16)| {
            let account = self.account.on_node(&address.0, address.1);
            let new = || Client { node: Some(address.clone()), account, ..Client::new(single.clone()) };
            known.entry(address.clone()).or_insert_with(new).clone()
        };
        Ok(nodes.into_iter().map(client).collect())
    }

    pub(super) fn odd(&self, found: &str) -> Fault {
        Fault::new(Code::CacheRejected, self.subject(), found.to_owned())
    }

    fn subject(&self) -> String {
        format!("cache {}", self.settings.name)
    }

    fn fault(&self, error: RedisError) -> Fault {
        let code = code_of(&error);
        // The server's message may quote a command's arguments.
        let found = match (code, error.code()) {
            (Code::CacheUnreachable, _) => "the connection failed".to_owned(),
            (_, Some(word)) => format!("the server answered {word}"),
            (_, None) => "the server refused".to_owned(),
        };
        let fault = Fault::new(code, self.subject(), found);
        match code {
            Code::CacheAccessDenied => fault
                .needs("a user with the commands of deploy/grants/redis-cache.acl")
                .remedy("correct the user and password in caches.url"),
            Code::CacheUnreachable => fault.caused_by(error),
            _ => fault,
        }
    }

    /// Returns the fault for settings that the library refuses before it sends anything.
    fn unusable(error: RedisError) -> Fault {
        Fault::new(
            Code::ConfigInvalid,
            "caches.url and caches.ca_file",
            "no connection can be made with these settings",
        )
        .needs("redis:// for a port without TLS, rediss:// and a PEM file of the CA for one with TLS")
        .remedy("correct caches.url and caches.ca_file")
        .caused_by(error)
    }

    async fn connected(&self) -> Result<Connected, Fault> {
        if let Some(connected) = self.lock().clone() {
            return Ok(connected);
        }
        // Redis takes a connection without a password, and refuses its first command.
        let connecting = async {
            let connection = self.connect().await?;
            let incarnation = self.life_of(&connection).await?.into();
            Ok::<_, Fault>(Connected { connection, incarnation })
        };
        let connected = self.account.connect(Code::CacheAccessDenied, &self.subject(), connecting).await?;
        *self.lock() = Some(connected.clone());
        Ok(connected)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Connected>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the connection, unless another one has already replaced it.
    fn disconnect(&self, incarnation: &Arc<str>) {
        let mut connected = self.lock();
        if connected.as_ref().is_some_and(|known| Arc::ptr_eq(&known.incarnation, incarnation)) {
            *connected = None;
        }
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let settings = &self.settings;
        let is_encrypted = settings.url.scheme() == ENCRYPTED;
        let tls = match &settings.ca_file {
            None => None,
            Some(file) => Some(fs::read(file).map_err(|error| {
                Fault::new(
                    Code::ConfigInvalid,
                    "caches.ca_file",
                    format!("{} cannot be read", file.display()),
                )
                .needs("a readable PEM file with the CA certificate")
                .caused_by(error)
            })?),
        };
        let certificates = || TlsCertificates { client_tls: None, root_cert: tls.clone() };
        let information = self.information().map_err(Self::unusable)?;
        if settings.is_cluster {
            let mut builder = ClusterClient::builder(vec![information])
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(RESPONSE_TIMEOUT);
            // Passing certificates makes the library use TLS with every node.
            if is_encrypted {
                builder = builder.certs(certificates());
            }
            let client = builder.build().map_err(Self::unusable)?;
            let connection = client.get_async_connection().await.map_err(|error| self.fault(error))?;
            return Ok(Connection::Cluster(Box::new(connection)));
        }
        // The library refuses certificates for an address without TLS.
        let client = match is_encrypted {
            true => redis::Client::build_with_tls(information, certificates()),
            false => redis::Client::open(information),
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = client
            .map_err(Self::unusable)?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| self.fault(error))?;
        Ok(Connection::Single(connection))
    }

    fn information(&self) -> Result<ConnectionInfo, RedisError> {
        let url = &self.settings.url;
        let (host, port) = self.node.clone().unwrap_or_else(|| (url.host().to_owned(), url.port()));
        let address = match url.scheme() {
            ENCRYPTED => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let mut account = RedisConnectionInfo::default();
        if !url.user().is_empty() {
            account = account.set_username(url.user());
        }
        if !url.password().expose().is_empty() {
            account = account.set_password(url.password().expose());
        }
        Ok(address.into_connection_info()?.set_redis_settings(account))
    }

    async fn send(
        &self,
        connection: Connection,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        match connection {
            Connection::Single(mut connection) => {
                let mut pipeline = redis::pipe();
                pipeline.ignore_errors();
                for command in commands {
                    pipeline.add_command(command);
                }
                let answers: Vec<Value> =
                    pipeline.query_async(&mut connection).await.map_err(|error| self.fault(error))?;
                Ok(answers.into_iter().map(|answer| self.checked(answer)).collect())
            }
            // Each command is sent by itself: they belong to many nodes, and a pipeline goes to one.
            Connection::Cluster(connection) => {
                let send = |command: Cmd| {
                    let mut connection = connection.clone();
                    async move { command.query_async::<Value>(&mut *connection).await }
                };
                let answers = join_all(commands.into_iter().map(send)).await;
                let answer =
                    |answer: Result<Value, RedisError>| match answer.map_err(|error| self.fault(error)) {
                        Err(fault) if fault.code() == Code::CacheUnreachable => Err(fault),
                        answer => Ok(answer),
                    };
                answers.into_iter().map(answer).collect()
            }
        }
    }

    fn checked(&self, answer: Value) -> Result<Value, Fault> {
        match answer {
            Value::ServerError(error) => Err(self.fault(error.into())),
            answer => Ok(answer),
        }
    }

    /// Queries the life of the server, or of all primaries of a Cluster.
    async fn life_of(&self, connection: &Connection) -> Result<String, Fault> {
        let cluster = match connection {
            Connection::Single(connection) => return self.life(connection.clone()).await,
            Connection::Cluster(cluster) => cluster,
        };
        let nodes = self.nodes((**cluster).clone()).await?;
        Ok(try_join_all(nodes.iter().map(Client::node_life)).await?.join(" "))
    }

    /// Queries the life of a primary of a Cluster over its own connection.
    async fn node_life(&self) -> Result<String, Fault> {
        // A kept connection may be dead, so only the failure of a new one counts.
        let kept = self.lock().take().map(|connected| connected.connection);
        if let Some(Connection::Single(connection)) = kept
            && let Ok(life) = self.life(connection.clone()).await
        {
            return Ok(self.store_connection(connection, life));
        }
        let connecting = async {
            let Connection::Single(connection) = self.connect().await? else {
                return Err(self.odd("a Cluster in a Cluster"));
            };
            let life = self.life(connection.clone()).await?;
            Ok((connection, life))
        };
        let (connection, life) =
            self.account.connect(Code::CacheAccessDenied, &self.subject(), connecting).await?;
        Ok(self.store_connection(connection, life))
    }

    fn store_connection(&self, connection: MultiplexedConnection, life: String) -> String {
        let connection = Connection::Single(connection);
        *self.lock() = Some(Connected { connection, incarnation: life.as_str().into() });
        life
    }

    /// Queries the ids of process and replication: a restart changes the former, a replica's promotion the latter.
    async fn life(&self, mut connection: MultiplexedConnection) -> Result<String, Fault> {
        let text: String =
            cmd("INFO").query_async(&mut connection).await.map_err(|error| self.fault(error))?;
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        if field("role") == Some("slave") {
            return Err(self.odd("it is a replica").needs("the primary: a replica takes no writes"));
        }
        match (field("run_id"), field("master_replid")) {
            (Some(run), Some(history)) => Ok(format!("{run}/{history}")),
            _ => Err(self.odd("INFO without run_id and master_replid").needs("Redis 6 or later")),
        }
    }
}

/// Returns host and port of each range's primary from the answer of CLUSTER SLOTS.
fn primaries_of(answer: &Value) -> Vec<(String, u16)> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    let primary = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let Value::Array(node) = range.get(2)? else { return None };
        let host: String = redis::from_redis_value(node.first()?.clone()).ok()?;
        let port: u16 = redis::from_redis_value(node.get(1)?.clone()).ok()?;
        Some((host, port))
    };
    ranges.iter().filter_map(primary).collect()
}
