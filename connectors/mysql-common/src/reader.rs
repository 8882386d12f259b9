//! Makes packets of a binlog into events. It keeps the newest description of the format and nothing else.

use std::io::{self, BufRead};
use std::sync::Arc;

use original::binlog::consts::{BinlogVersion, EventType};
use original::binlog::events::{FormatDescriptionEvent, TableMapEvent};

use crate::event::Event;

/// Reads events one after the other.
#[derive(Debug)]
pub struct EventStreamReader {
    description: Arc<FormatDescriptionEvent<'static>>,
}

impl EventStreamReader {
    pub fn new(version: BinlogVersion) -> Self {
        Self { description: Arc::new(FormatDescriptionEvent::new(version)) }
    }

    /// Always `None`: no table map is kept. Anabranch's reader keeps the maps that rows can refer to.
    pub fn get_tme(&self, _table_id: u64) -> Option<&TableMapEvent<'static>> {
        None
    }

    /// The next event of a packet, `None` at its end. All of the event must be in the buffer of `input`.
    pub fn read<T: BufRead>(&mut self, input: T) -> io::Result<Option<Event>> {
        self.next(input, true)
    }

    /// Reads as [`Self::read`] from a compressed transaction, whose events have no checksums.
    pub fn read_decompressed<T: BufRead>(&mut self, input: T) -> io::Result<Option<Event>> {
        let event = self.next(input, false)?;
        let is_payload =
            |event: &Event| event.header().event_type_raw() == EventType::TRANSACTION_PAYLOAD_EVENT as u8;
        if event.as_ref().is_some_and(is_payload) {
            return Err(io::Error::other("a compressed transaction within a compressed transaction"));
        }
        Ok(event)
    }

    fn next<T: BufRead>(&mut self, mut input: T, is_checksummed: bool) -> io::Result<Option<Event>> {
        let there = input.fill_buf()?;
        if there.is_empty() {
            return Ok(None);
        }
        let (event, length) = Event::read(&self.description, there, is_checksummed)?;
        input.consume(length);
        if event.header().event_type_raw() == EventType::FORMAT_DESCRIPTION_EVENT as u8 {
            let own = event.read_event::<FormatDescriptionEvent<'_>>()?;
            let mut footer = event.footer();
            footer.set_checksum_enabled(true);
            self.description = Arc::new(own.into_owned().with_footer(footer));
        }
        Ok(Some(event))
    }
}
