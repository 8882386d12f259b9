//! The limit of reading a binlog: a client that reads only event headers.
//!
//! It is a blocking socket with a buffer of 256 KiB and the few packets of the protocol that a dump needs, written
//! here: no client library, no TLS, no checksums. It skips bodies in the buffer. Its time is the server's time of
//! sending.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::data::Data;
use crate::meter::{Measured, Meter};
use crate::site::SCAN_USER;

const BUFFER_BYTES: usize = 256 * 1024;
const REPLICA_ID: u32 = 0xBE9C_0001;
/// Long password, protocol 4.1, secure connection, plugin authentication.
const CAPABILITIES: u32 = 0x0000_0001 | 0x0000_0200 | 0x0000_8000 | 0x0008_0000;
const PACKET_BYTES_MAX: usize = 0xFF_FFFF;
/// Bytes of a status byte and an event's header.
const HEAD_BYTES: usize = 1 + 19;
const LOG_POS: usize = 1 + 13;

/// Reads the data's binlog from the beginning to its end; returns the cost and the number of events.
pub fn run(port: u16, server: u32, data: &Data) -> (Measured, u64) {
    let mut client = Client::connect(port);
    client.query("SET @master_binlog_checksum = 'CRC32', @mariadb_slave_capability = 4");
    client.dump(&data.file);
    let meter = Meter::start(&[server]);
    let mut events = 0;
    loop {
        let log_pos = client.event();
        events += 1;
        if u64::from(log_pos) >= data.end {
            return (meter.stop(), events);
        }
    }
}

struct Client {
    stream: BufReader<TcpStream>,
    sequence: u8,
}

impl Client {
    fn connect(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.set_nodelay(true).expect("a socket takes it");
        let mut client = Self { stream: BufReader::with_capacity(BUFFER_BYTES, socket), sequence: 0 };
        client.packet();
        let mut login = Vec::new();
        login.extend(CAPABILITIES.to_le_bytes());
        login.extend((PACKET_BYTES_MAX as u32).to_le_bytes());
        login.push(45);
        login.extend([0; 23]);
        login.extend(SCAN_USER.as_bytes());
        // The end of the name, and no password.
        login.extend([0, 0]);
        login.extend(b"mysql_native_password\0");
        client.send(&login);
        let answer = client.packet();
        assert_eq!(answer.first(), Some(&0), "the server refused the scan's account");
        client
    }

    fn query(&mut self, sql: &str) {
        self.command(3, sql.as_bytes());
        assert_eq!(self.packet().first(), Some(&0), "the server refused a setting");
    }

    fn dump(&mut self, file: &str) {
        let mut request = Vec::new();
        request.extend(4u32.to_le_bytes());
        request.extend(0u16.to_le_bytes());
        request.extend(REPLICA_ID.to_le_bytes());
        request.extend(file.as_bytes());
        self.command(0x12, &request);
    }

    fn command(&mut self, code: u8, body: &[u8]) {
        self.sequence = 0;
        self.send(&[&[code], body].concat());
    }

    fn send(&mut self, payload: &[u8]) {
        let mut packet = (payload.len() as u32).to_le_bytes();
        packet[3] = self.sequence;
        let socket = self.stream.get_mut();
        socket.write_all(&[&packet, payload].concat()).expect("the server reads");
    }

    /// Reads the length of the next packet and takes its number over.
    fn length(&mut self) -> usize {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).expect("the server sends");
        self.sequence = head[3].wrapping_add(1);
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        assert!(length < PACKET_BYTES_MAX, "the data has no such rows");
        length
    }

    fn packet(&mut self) -> Vec<u8> {
        let mut payload = vec![0; self.length()];
        self.stream.read_exact(&mut payload).expect("the server sends");
        payload
    }

    /// Reads one event's header and skips the rest; returns the event's end in the file.
    fn event(&mut self) -> u32 {
        let length = self.length();
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).expect("the server sends");
        assert_eq!(head[0], 0, "the server ended the dump");
        let mut left = length - HEAD_BYTES;
        while left > 0 {
            let there = self.stream.fill_buf().expect("the server sends").len().min(left);
            assert!(there > 0, "the server ended the connection");
            self.stream.consume(there);
            left -= there;
        }
        u32::from_le_bytes(head[LOG_POS..LOG_POS + 4].try_into().expect("four bytes"))
    }
}
