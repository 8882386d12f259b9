//! A TCP connection between a process and its server that can be slowed down, swallow everything, or lead to another
//! server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_pipeline::config::ServerUrl;
use anabranch_stack::Server;

/// Longest delay that a wire catches up with.
const CAUGHT_UP_MAX: Duration = Duration::from_millis(500);

/// Forwards connections to a port of this machine.
pub struct Wire {
    port: u16,
    server_port: Arc<AtomicU16>,
    connections: Arc<AtomicUsize>,
    swallows: Arc<AtomicBool>,
    pause_us: Arc<AtomicU64>,
}

impl Wire {
    pub fn to(server: &Server) -> Self {
        let server_port = Arc::new(AtomicU16::new(server.port()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallows, pause_us) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let connections = Arc::<AtomicUsize>::default();
        let wire = Self {
            port,
            server_port: Arc::clone(&server_port),
            connections: Arc::clone(&connections),
            swallows: Arc::clone(&swallows),
            pause_us: Arc::clone(&pause_us),
        };
        // The threads end with their connections, and the last one with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = TcpStream::connect(("127.0.0.1", server_port.load(Ordering::Relaxed)));
                let (Ok(client), Ok(server)) = (client, server) else {
                    continue;
                };
                connections.fetch_add(1, Ordering::Relaxed);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (swallows, pause_us) = (Arc::clone(&swallows), Arc::clone(&pause_us));
                    thread::spawn(move || forward(from, to, &swallows, &pause_us));
                }
            }
        });
        wire
    }

    /// The server's address at this end.
    pub fn url(&self, server: &Server) -> ServerUrl {
        let url = server.url().replace(&format!(":{}", server.port()), &format!(":{}", self.port));
        ServerUrl::try_from(url).unwrap()
    }

    /// Leads all further connections to another server; those that are open stay.
    pub fn lead_to(&self, server: &Server) {
        self.server_port.store(server.port(), Ordering::Relaxed);
    }

    /// The number of connections that were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Swallows all further bytes on both sides, without a sign to either.
    pub fn swallow(&self) {
        self.swallows.store(true, Ordering::Relaxed);
    }

    /// Sets a pause for each kilobyte. Pauses last longer on a busy machine; the wire catches up with that delay, so it
    /// is as fast as intended, and no more silent than the machine makes it.
    pub fn slow_down(&self, pause: Duration) {
        self.pause_us.store(pause.as_micros() as u64, Ordering::Relaxed);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool, pause_us: &AtomicU64) {
    let mut buffer = [0; 1024];
    let mut due = Instant::now();
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if swallows.load(Ordering::Relaxed) {
            continue;
        }
        let pause = Duration::from_micros(pause_us.load(Ordering::Relaxed));
        // An idle wire has nothing to catch up with.
        due = due.max(Instant::now() - CAUGHT_UP_MAX) + pause;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
