//! Decides where a stream starts: at an end of the binlog, after a set of groups, or where an earlier stream stopped.
//!
//! `resume.rs` handles the last case.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::BinlogStart;

use super::beginning::StreamStart;
use super::transport::Start;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::position::FILE_START;
use crate::mysql::source::server::session::Session;

impl MysqlSource {
    /// Returns the request to the server, and the start of the stream.
    pub(in crate::mysql::source) async fn begin(
        &self,
        session: &mut Session,
        entry: BinlogStart,
        epoch: u16,
    ) -> Result<(Start, StreamStart), Fault> {
        match entry {
            BinlogStart::Earliest => {
                let file = self.oldest(session).await?;
                let position = self.position(epoch, &file, FILE_START)?;
                Ok((Start::Position { file, position: FILE_START }, StreamStart::fresh(position, None)))
            }
            BinlogStart::Latest => {
                let Some(end) = session.end().await? else {
                    let executed = session.text("SELECT @@GLOBAL.gtid_executed").await?.replace('\n', "");
                    return self.start_after_set(session, &executed, epoch).await;
                };
                let gtids = self.gtids(session, &end.gtid_set)?;
                let position = self.position(epoch, &end.file, end.position)?;
                Ok((
                    Start::Position { file: end.file, position: end.position },
                    StreamStart::fresh(position, Some(gtids)),
                ))
            }
            BinlogStart::Gtid(text) => self.start_after_set(session, &text, epoch).await,
            BinlogStart::Resume { resume, position, server } => {
                self.resume(session, resume, position, &server, epoch).await
            }
        }
    }

    /// Starts after a set of groups, at a position that the server finds.
    async fn start_after_set(
        &self,
        session: &mut Session,
        text: &str,
        epoch: u16,
    ) -> Result<(Start, StreamStart), Fault> {
        let file = self.oldest(session).await?;
        let position = self.position(epoch, &file, FILE_START)?;
        let beginning = StreamStart {
            is_by_gtid: true,
            ..StreamStart::fresh(position, Some(self.gtids(session, text)?))
        };
        Ok((Start::Gtids(self.gtids(session, text)?), beginning))
    }
}
