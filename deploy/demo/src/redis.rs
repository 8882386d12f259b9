//! A Redis server for an auditor: with its administrator's account, over verified TLS.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, TlsCertificates, Value, cmd};
use anabranch_stack::Stack;

use crate::endpoint::SILENCE_MAX;
use crate::error::{DemoError, Result};

/// Address and account of one server.
#[derive(Clone)]
pub struct RedisServer {
    /// Name of the server in the stack, and of the cache in the daemon's configuration.
    pub name: String,
    admin_url: String,
    ca_file: PathBuf,
}

/// An open connection.
pub struct RedisConnection {
    server: String,
    connection: MultiplexedConnection,
}

impl RedisServer {
    /// Returns a server of the stack, with the account that may do everything.
    pub fn admin(stack: &Stack, name: &str) -> Result<Self> {
        let server = stack.server(name)?;
        Ok(Self { name: name.to_owned(), admin_url: server.admin_url(), ca_file: stack.ca_file() })
    }

    pub async fn connect(&self) -> Result<RedisConnection> {
        let path = &self.ca_file;
        let root = fs::read(path).map_err(|source| DemoError::File {
            action: "read",
            path: path.clone(),
            source,
        })?;
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(root) };
        let failed = |source| DemoError::Redis { server: self.name.clone(), action: "connect", source };
        let client = Client::build_with_tls(self.admin_url.as_str(), certificates).map_err(failed)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(SILENCE_MAX))
            .set_response_timeout(Some(SILENCE_MAX));
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        Ok(RedisConnection { server: self.name.clone(), connection })
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.server)
    }
}

impl RedisConnection {
    /// Sends one command; returns its answer.
    pub async fn one<T: FromRedisValue>(&mut self, action: &'static str, command: &Cmd) -> Result<T> {
        let answer = command.query_async(&mut self.connection).await;
        answer.map_err(|source| self.failed(action, source))
    }

    /// Sends many commands; returns their answers, a refusal as [`Value::ServerError`].
    pub async fn all(
        &mut self,
        action: &'static str,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<Vec<Value>> {
        let mut pipeline = ::redis::pipe();
        pipeline.ignore_errors();
        commands.into_iter().for_each(|command| _ = pipeline.add_command(command));
        let answers = pipeline.query_async(&mut self.connection).await;
        answers.map_err(|source| self.failed(action, source))
    }

    /// Returns the id of the server's process, which a restart changes.
    pub async fn run_id(&mut self) -> Result<String> {
        let text: String = self.one("ask for its life", cmd("INFO").arg("server")).await?;
        let run_id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(run_id.unwrap_or_default().trim().to_owned())
    }

    fn failed(&self, action: &'static str, source: RedisError) -> DemoError {
        DemoError::Redis { server: self.server.clone(), action, source }
    }
}
