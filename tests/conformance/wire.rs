//! A TCP connection between a reading and its server that can be slowed down or swallow everything.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Forwards connections to a port of this machine.
pub struct Wire {
    pub port: u16,
    swallows: Arc<AtomicBool>,
    pause_us: Arc<AtomicU64>,
}

impl Wire {
    pub fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallows, pause_us) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let wire = Self { port, swallows: Arc::clone(&swallows), pause_us: Arc::clone(&pause_us) };
        // The threads end with their connections, and the last with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", server_port)))
                else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (swallows, pause_us) = (Arc::clone(&swallows), Arc::clone(&pause_us));
                    thread::spawn(move || forward(from, to, &swallows, &pause_us));
                }
            }
        });
        wire
    }

    /// From now on nothing arrives on either side, and nobody is told.
    pub fn swallow(&self) {
        self.swallows.store(true, Ordering::Relaxed);
    }

    /// A pause for each kilobyte.
    pub fn slow_down(&self, pause: Duration) {
        self.pause_us.store(pause.as_micros() as u64, Ordering::Relaxed);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool, pause_us: &AtomicU64) {
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if swallows.load(Ordering::Relaxed) {
            continue;
        }
        match pause_us.load(Ordering::Relaxed) {
            0 => {}
            pause => thread::sleep(Duration::from_micros(pause)),
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
