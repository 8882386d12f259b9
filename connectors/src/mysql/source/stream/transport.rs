//! One binlog connection: `mysql_async`'s stream, with checks that the library lacks.
//!
//! It checks each event's CRC32; silence longer than two heartbeats is an error; the first error ends the stream (the
//! library would continue after it); a panic of the library on malformed bytes is an error too.
//! `connectors/mysql-common` makes packets into events and keeps none of them. Known limit: the library allocates the
//! size that a compressed transaction of MySQL claims, before any check here.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use futures::{FutureExt as _, StreamExt as _};
use mysql_async::binlog::BinlogChecksumAlg;
use mysql_async::binlog::events::Event;
use mysql_async::prelude::Queryable as _;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, OptsBuilder, Sid};
use tokio::time::Instant;

use crate::mysql::error::{Side, from_async};
use crate::mysql::source::decode::compressed::EVENT_BYTES_MAX;
use crate::mysql::source::decode::gtid::{Flavor, Gtids};

/// Limit for connecting, logging in and the request for the binlog.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// While the log is full the stream reads no event: the server must not end it after its own minute.
const NET_WRITE_TIMEOUT_SECONDS: u32 = 24 * 3600;
/// Tells MariaDB that this client reads GTID events.
const MARIADB_CAPABILITY_GTID: u32 = 4;
const CHECKSUM_BYTES: usize = 4;

/// The point at which the server is asked to begin.
#[derive(Debug)]
pub enum Start {
    Position {
        file: String,
        position: u64,
    },
    /// The server begins after these groups.
    Gtids(Gtids),
}

/// The origin of a stream's events: a server or a recording.
pub trait Events: Send {
    /// Waits for the next event. Cancel safe. After an error no event comes any more.
    fn next(&mut self) -> impl Future<Output = Result<Event, Fault>> + Send;

    /// Returns the next event if it has arrived.
    fn next_now(&mut self) -> Option<Result<Event, Fault>>;
}

/// An open binlog connection.
pub struct Transport {
    stream: BinlogStream,
    subject: String,
    silence_limit: Duration,
    silent_until: Instant,
    /// Events have arrived since `silent_until` was set. `next` reads the clock when it waits, not for each event.
    has_arrived: bool,
    /// The limit was extended once since the last event, because the caller had not called `next` for a long time.
    is_extended: bool,
    has_ended: bool,
}

impl Transport {
    pub async fn open(
        options: OptsBuilder,
        subject: &str,
        flavor: Flavor,
        replica_server_id: u32,
        start: &Start,
        heartbeat: Duration,
    ) -> Result<Self, Fault> {
        let sids = match start {
            Start::Gtids(gtids) => gtids.sids(),
            Start::Position { .. } => Ok(Vec::new()),
        };
        let sids = sids.map_err(|error| {
            Fault::new(Code::BinlogGtidUnknown, subject, "its GTID set cannot be sent").caused_by(error)
        })?;
        let opening = request(options, flavor, replica_server_id, (start, sids), heartbeat);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, opening)
            .await
            .map_err(|_| {
                Fault::new(Code::SourceUnreachable, subject, "no answer to the request for the binlog")
            })?
            .map_err(|error| fault(subject, error))?;
        let silence_limit = 2 * heartbeat;
        Ok(Self {
            stream,
            subject: subject.to_owned(),
            silence_limit,
            silent_until: Instant::now() + silence_limit,
            has_arrived: false,
            is_extended: false,
            has_ended: false,
        })
    }

    #[allow(clippy::type_complexity)]
    fn receive(
        &mut self,
        result: Result<std::thread::Result<Option<mysql_async::Result<Event>>>, ()>,
    ) -> Result<Event, Fault> {
        let event = match result {
            Ok(Ok(Some(Ok(event)))) => verify(&event)
                .map(|()| event)
                .map_err(|found| Fault::new(Code::BinlogEventCorrupt, self.subject.as_str(), found)),
            Ok(Ok(Some(Err(error)))) => Err(fault(&self.subject, error)),
            Ok(Ok(None)) => Err(self.ended()),
            Ok(Err(_panic)) => Err(Fault::new(
                Code::BinlogEventCorrupt,
                self.subject.as_str(),
                "an event is so malformed that the client library gave up",
            )),
            Err(()) => Err(Fault::new(
                Code::SourceStalled,
                self.subject.as_str(),
                format!("neither an event nor a heartbeat for {} s", self.silence_limit.as_secs_f32()),
            )
            .needs("a heartbeat in half of that time")),
        };
        if event.is_ok() {
            self.has_arrived = true;
        } else {
            self.has_ended = true;
        }
        event
    }

    fn ended(&self) -> Fault {
        Fault::new(Code::SourceUnreachable, self.subject.as_str(), "the server ended the binlog stream")
    }
}

impl Events for Transport {
    async fn next(&mut self) -> Result<Event, Fault> {
        if self.has_ended {
            return Err(self.ended());
        }
        let now = Instant::now();
        if std::mem::take(&mut self.has_arrived) {
            self.silent_until = now + self.silence_limit;
            self.is_extended = false;
        }
        if self.silent_until <= now && !self.is_extended {
            self.silent_until = now + self.silence_limit;
            self.is_extended = true;
        }
        let next = AssertUnwindSafe(self.stream.next()).catch_unwind();
        let result = tokio::time::timeout_at(self.silent_until, next).await;
        self.receive(result.map_err(|_| ()))
    }

    fn next_now(&mut self) -> Option<Result<Event, Fault>> {
        if self.has_ended {
            return Some(Err(self.ended()));
        }
        let next = AssertUnwindSafe(self.stream.next()).catch_unwind().now_or_never()?;
        Some(self.receive(Ok(next)))
    }
}

async fn request(
    options: OptsBuilder,
    flavor: Flavor,
    replica_server_id: u32,
    (start, sids): (&Start, Vec<Sid<'static>>),
    heartbeat: Duration,
) -> mysql_async::Result<BinlogStream> {
    let options = options.max_allowed_packet(Some(EVENT_BYTES_MAX)).tcp_nodelay(true);
    let mut connection = Conn::new(options).await?;
    let heartbeat = heartbeat.as_nanos();
    connection
        .query_drop(format!(
            "SET @master_heartbeat_period = {heartbeat}, @source_heartbeat_period = {heartbeat}, \
             SESSION net_write_timeout = {NET_WRITE_TIMEOUT_SECONDS}"
        ))
        .await?;
    if flavor == Flavor::MariaDb {
        connection
            .query_drop(format!(
                "SET @mariadb_slave_capability = {MARIADB_CAPABILITY_GTID}, @slave_gtid_strict_mode = 1, \
                 @slave_gtid_ignore_duplicates = 0"
            ))
            .await?;
    }
    let request = BinlogStreamRequest::new(replica_server_id);
    match start {
        Start::Position { file, position } => {
            // COM_BINLOG_DUMP has 4 bytes for the position; MySQL's GTID command has 8 and honours a file name.
            let request = request.with_filename(file.as_bytes()).with_pos(*position);
            let is_far = flavor == Flavor::MySql && *position > u64::from(u32::MAX);
            connection.get_binlog_stream(if is_far { request.with_gtid() } else { request }).await
        }
        Start::Gtids(gtids) if flavor == Flavor::MariaDb => {
            // The text was parsed: it holds digits, commas and hyphens only.
            connection.query_drop(format!("SET @slave_connect_state = '{gtids}'")).await?;
            connection.get_binlog_stream(request).await
        }
        Start::Gtids(_) => connection.get_binlog_stream(request.with_gtid().with_gtid_set(sids)).await,
    }
}

/// Whether an event is part of a compressed transaction: such events carry no checksum.
pub fn is_inner(event: &Event) -> bool {
    !event.footer().get_checksum_enabled()
}

fn verify(event: &Event) -> Result<(), &'static str> {
    if is_inner(event) {
        return Ok(());
    }
    match event.footer().get_checksum_alg() {
        Ok(Some(BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_CRC32)) => match event.checksum() {
            Some(found) if u32::from_le_bytes(found) == event.computed_checksum() => Ok(()),
            _ => Err("the checksum of an event is wrong"),
        },
        Ok(_) => Ok(()),
        Err(_) => Err("an unknown checksum algorithm"),
    }
}

/// Returns the file name and position of a Rotate event.
///
/// Before the first format description the library does not know that a checksum follows, so the four bytes of
/// MariaDB's are after the name. They are cut off if they are the checksum of the bytes before them.
pub fn rotation(event: &Event) -> Option<(String, u64)> {
    let (position, name) = event.data().split_first_chunk::<8>()?;
    let mut name = name;
    if let Some((shorter, checksum)) = name.split_last_chunk::<CHECKSUM_BYTES>() {
        let tail = event.bytes().split_last_chunk::<CHECKSUM_BYTES>();
        if tail.is_some_and(|(covered, _)| crc32fast::hash(covered) == u32::from_le_bytes(*checksum)) {
            name = shorter;
        }
    }
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
    Some((name.to_owned(), u64::from_le_bytes(*position)))
}

/// Makes a fault of an error of the stream; error 1236 has many meanings, which its text distinguishes.
fn fault(subject: &str, error: mysql_async::Error) -> Fault {
    const REFUSED: u16 = 1236;
    // MariaDB's error for a replica whose server id another one took over; MySQL answers 1236.
    const SAME_SERVER_ID: u16 = 4052;
    let (code, found) = match &error {
        mysql_async::Error::Server(server) if server.code == REFUSED => refusal(&server.message),
        mysql_async::Error::Server(server) if server.code == SAME_SERVER_ID => TAKEN_SERVER_ID,
        _ => return from_async(Side::Source, subject, error),
    };
    let fault = Fault::new(code, subject, found).caused_by(error);
    match code {
        Code::BinlogPurged => fault
            .needs("the binlog from the last read position on")
            .remedy("keep binlogs longer (binlog_expire_logs_seconds)"),
        Code::BinlogGtidUnknown => fault.needs("a GTID set that this server wrote"),
        Code::SourceUnreachable => fault.needs("a `replica_server_id` that no other replica has"),
        _ => fault,
    }
}

/// Code and finding for a stream whose server id another replica took over.
const TAKEN_SERVER_ID: (Code, &str) = (Code::SourceUnreachable, "another replica has this server id");

fn refusal(message: &str) -> (Code, &'static str) {
    let text = message.to_ascii_lowercase();
    let has = |needle: &str| text.contains(needle);
    if has("same server_uuid") || has("same server_id") || has("same server id") {
        TAKEN_SERVER_ID
    } else if has("purged") || has("could not find first log") || has("too old") {
        (Code::BinlogPurged, "the server has purged the binlog that is needed next")
    } else if has("gtid") {
        (Code::BinlogGtidUnknown, "the server cannot start from this GTID set")
    } else if has("position > file size") || has("impossible position") {
        (Code::BinlogPurged, "the binlog file is shorter than the position to read from")
    } else {
        (Code::BinlogEventCorrupt, "the server cannot read its binlog")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_error_1236_decides() {
        for (text, code) in [
            ("Could not find first log file name in binary log index file", Code::BinlogPurged),
            (
                "Error: connecting slave requested to start from GTID 1-1-99, which is not in the master's binlog",
                Code::BinlogGtidUnknown,
            ),
            (
                "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too \
                 old and required binlog files have been purged.",
                Code::BinlogPurged,
            ),
            ("Cannot replicate because the source purged required binary logs.", Code::BinlogPurged),
            ("Client requested master to start replication from position > file size", Code::BinlogPurged),
            ("log event entry exceeded max_allowed_packet", Code::BinlogEventCorrupt),
            (
                "A replica with the same server_uuid/server_id as this replica has connected to the source",
                Code::SourceUnreachable,
            ),
        ] {
            assert_eq!(refusal(text).0, code, "{text}");
        }
    }
}
