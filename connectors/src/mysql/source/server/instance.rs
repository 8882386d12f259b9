//! Identifies the running server at an address: two addresses may lead to one server.

use anabranch_pipeline::error::Fault;

use super::session::Session;
use crate::mysql::source::MysqlSource;

/// Query for the identity; two servers may have the same server id.
const INSTANCE: &str = "SELECT CONCAT_WS(':', @@hostname, @@port, @@server_id, @@datadir)";

impl MysqlSource {
    /// Returns a text that no other server that runs at this moment returns.
    pub async fn instance(&self) -> Result<String, Fault> {
        let mut session = Session::open(&self.address).await?;
        let instance = session.text(INSTANCE).await?;
        session.close().await;
        Ok(instance)
    }
}
