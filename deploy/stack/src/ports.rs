//! Free ports of 127.0.0.1 that stay free while their server is down.
//!
//! The kernel gives ports of its ephemeral range to outgoing connections, so a client's connection could take the port
//! of a killed server before it starts again. Ports are therefore chosen at random outside of that range, tried by
//! binding, and held by a listener until the server is about to start.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::error::{Result, StackError};
use crate::fetch::PAGE_PORT_VARIABLE;

const LOWEST_PORT: u16 = 10_240;
const ATTEMPTS: u32 = 1_000;
/// Start of the ephemeral range of Linux when `/proc` cannot be read.
const EPHEMERAL_START_DEFAULT: u16 = 32_768;
/// Least ports below the ephemeral range; with fewer of them, any port is taken.
const RANGE_MINIMUM: u16 = 1_000;

/// A forked child needs microseconds until it executes its program; a busy machine some milliseconds.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A port that no other process can bind until this is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    listener: TcpListener,
    port: u16,
}

impl ReservedPort {
    /// Takes a free port, outside of the kernel's ephemeral range where there is room.
    pub fn choose() -> Result<Self> {
        let end = ephemeral_start();
        for _ in 0..ATTEMPTS {
            let wanted = if end >= LOWEST_PORT + RANGE_MINIMUM {
                rand::rng().random_range(LOWEST_PORT..end)
            } else {
                0
            };
            if let Some(taken) = Self::bind(wanted) {
                return Ok(taken);
            }
        }
        Err(StackError::NoFreePort { attempts: ATTEMPTS })
    }

    /// Takes the port of the address that `cargo demo` has shown, or any free one without it.
    pub fn announced() -> Result<Self> {
        let port = std::env::var(PAGE_PORT_VARIABLE).ok().and_then(|port| port.parse().ok());
        // Another process may have taken it for a connection meanwhile.
        port.and_then(Self::bind).map_or_else(Self::choose, Ok)
    }

    fn bind(port: u16) -> Option<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        let port = listener.local_addr().ok()?.port();
        Some(Self { listener, port })
    }

    pub fn number(&self) -> u16 {
        self.port
    }

    /// Frees the port for its server, which must bind it at once.
    ///
    /// A child that another thread has forked and that has not executed its program yet holds a copy of the listener
    /// for some microseconds: this waits until the kernel knows no listener any more.
    pub fn release(self) {
        drop(self.listener);
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while is_listened_to(self.port) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether the kernel lists a listener of the port. An attempt to bind it would make a listener that a fork can copy in
/// turn.
fn is_listened_to(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.lines().skip(1).any(|line| {
        // Number, local address, remote address, state; addresses as hexadecimal address:port.
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|address| address.rsplit(':').next());
        let found = local.and_then(|text| u16::from_str_radix(text, 16).ok());
        found == Some(port) && fields.nth(1) == Some(LISTEN)
    })
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_START_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_seen_while_the_port_is_reserved() {
        let reserved = ReservedPort::choose().unwrap();
        let port = reserved.number();
        assert!(is_listened_to(port));
        reserved.release();
        assert!(!is_listened_to(port));
    }
}
