//! Which running server an address leads to: two addresses may lead to one server.

use anabranch_pipeline::error::Fault;

use super::session::Session;
use crate::mysql::source::MysqlSource;

/// A server id alone may be given to two servers.
const INSTANCE: &str = "SELECT CONCAT_WS(':', @@hostname, @@port, @@server_id, @@datadir)";

impl MysqlSource {
    /// What no other server that runs at this moment answers.
    pub async fn instance(&self) -> Result<String, Fault> {
        let mut session = Session::open(&self.address).await?;
        let instance = session.text(INSTANCE).await?;
        session.close().await;
        Ok(instance)
    }
}
