//! Free ports of 127.0.0.1 that stay free while their server is down.
//!
//! The kernel hands out ports of its ephemeral range to outgoing connections, so a server that was killed could find
//! its port taken by a client's connection when it starts again. Ports are therefore chosen at random outside of that
//! range, tried by binding, and held by the listener until the server is about to start.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use rand::RngExt;

use crate::error::{Result, StackError};

const LOWEST_PORT: u16 = 10_240;
const ATTEMPTS: u32 = 1_000;
/// Start of the ephemeral range of Linux when `/proc` cannot be read.
const EPHEMERAL_START_DEFAULT: u16 = 32_768;
/// Fewer ports than this below the ephemeral range: take any port instead.
const RANGE_MINIMUM: u16 = 1_000;

/// A port that nobody else can bind until this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    listener: TcpListener,
    port: u16,
}

impl ReservedPort {
    pub(crate) fn choose() -> Result<Self> {
        let end = ephemeral_start();
        for _ in 0..ATTEMPTS {
            let wanted = if end >= LOWEST_PORT + RANGE_MINIMUM {
                rand::rng().random_range(LOWEST_PORT..end)
            } else {
                0
            };
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted))
                && let Ok(address) = listener.local_addr()
            {
                return Ok(Self { listener, port: address.port() });
            }
        }
        Err(StackError::NoFreePort { attempts: ATTEMPTS })
    }

    pub(crate) fn number(&self) -> u16 {
        self.port
    }

    /// Frees the port for its server, which must bind it at once.
    pub(crate) fn release(self) {
        drop(self.listener);
    }
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_START_DEFAULT)
}
