//! One progress line on stderr during an installation.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Prints until it is dropped; on a terminal the seconds count up in place.
pub(super) struct Progress {
    stop: Option<SyncSender<()>>,
    printer: Option<JoinHandle<()>>,
    what: String,
    started: Instant,
}

impl Progress {
    pub(super) fn start(what: &str) -> Self {
        let started = Instant::now();
        let (stop, stopped) = mpsc::sync_channel(1);
        let text = format!("installing {what} ...");
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            eprintln!("{text}");
        }
        let printer = terminal.then(|| {
            std::thread::spawn(move || {
                loop {
                    eprint!("\r{text} {} s ", started.elapsed().as_secs());
                    let _not_shown = std::io::stderr().flush();
                    if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                        // This clears the line for the next output.
                        eprint!("\r\x1b[K");
                        return;
                    }
                }
            })
        });
        Self { stop: Some(stop), printer, what: what.to_owned(), started }
    }

    pub(super) fn done(mut self) {
        self.end();
        eprintln!("installed {} in {:.1} s", self.what, self.started.elapsed().as_secs_f64());
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(printer) = self.printer.take() {
            let _panicked = printer.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
