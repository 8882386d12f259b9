//! Kills and pauses servers, while the load and the daemons run on.

use std::time::Duration;

use anabranch_demo::Result;
use anabranch_stack::StackError;

use crate::site::Site;

impl Site {
    pub(super) async fn kill_server(&self, name: &str, down: Duration) -> Result<()> {
        let server = self.server(name)?;
        let killed = server.clone();
        on_thread(move || killed.kill()).await?;
        tokio::time::sleep(down).await;
        on_thread(move || server.restart()).await
    }

    pub(super) async fn pause_server(&self, name: &str, time: Duration) -> Result<()> {
        let server = self.server(name)?;
        let paused = server.clone();
        on_thread(move || paused.pause()).await?;
        tokio::time::sleep(time).await;
        on_thread(move || server.resume()).await
    }
}

/// Runs a call that waits for a server, so that the other course goes on.
pub(super) async fn on_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, StackError> + Send + 'static,
) -> Result<T> {
    Ok(tokio::task::spawn_blocking(call).await??)
}
