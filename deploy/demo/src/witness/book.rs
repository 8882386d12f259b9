//! The book: a line of JSON for each gift and for each forgotten key, written before the request is answered.
//!
//! Request handlers send lines to one thread, which writes all that wait and then flushes the disk once. A line that a
//! crash has cut off was never answered, and the next start removes it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// A coupon that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gift {
    pub key: String,
    /// Text, since a number in JSON is not exact above 2^53.
    pub user: String,
    pub programme: String,
    pub occurrence: String,
    pub coupon: String,
    /// Time in milliseconds since the Unix epoch.
    pub given_at_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Given(Gift),
    Forgotten { key: String },
}

/// Content of a remembered key.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    pub(super) coupon: String,
    pub(super) given_at_ms: u64,
}

/// Requests whose lines may wait for the disk; further requests block before they are recorded.
const ENTRIES_MAX: usize = 4_096;

/// Lines for the writer, and the channel to the request that waits for the disk.
#[derive(Debug)]
struct PendingLines {
    lines: Vec<u8>,
    written: oneshot::Sender<()>,
}

/// All gifts, and the keys that are remembered.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) gifts: Vec<Gift>,
    pub(super) keys: HashMap<String, Remembered>,
    lines: Vec<u8>,
    writer: mpsc::SyncSender<PendingLines>,
}

impl Book {
    /// Reads the file, cuts off half a line, and starts the thread that writes.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let text = std::fs::read(path)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let (mut gifts, mut keys) = (Vec::new(), HashMap::new());
        for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line)? {
                Line::Given(gift) => {
                    keys.insert(gift.key.clone(), remembered(&gift));
                    gifts.push(gift);
                }
                Line::Forgotten { key } => _ = keys.remove(&key),
            }
        }
        let (writer, entries) = mpsc::sync_channel(ENTRIES_MAX);
        std::thread::spawn(move || write(&mut file, &entries));
        Ok(Self { gifts, keys, lines: Vec::new(), writer })
    }

    pub(super) fn give(&mut self, gift: Gift) {
        self.keys.insert(gift.key.clone(), remembered(&gift));
        self.note(&Line::Given(gift.clone()));
        self.gifts.push(gift);
    }

    pub(super) fn forget(&mut self, key: String) {
        if self.keys.remove(&key).is_some() {
            self.note(&Line::Forgotten { key });
        }
    }

    /// Resolves when all lines recorded so far, by any request, are on the disk.
    pub(super) fn flush(&mut self) -> impl Future<Output = ()> + use<> {
        let (written, waiting) = oneshot::channel();
        let entry = PendingLines { lines: std::mem::take(&mut self.lines), written };
        let sent = self.writer.send(entry);
        async move {
            let is_written = sent.is_ok() && waiting.await.is_ok();
            assert!(is_written, "the book cannot be written: nothing may be answered any more");
        }
    }

    fn note(&mut self, line: &Line) {
        serde_json::to_writer(&mut self.lines, line).expect("texts are always JSON");
        self.lines.push(b'\n');
    }
}

fn remembered(gift: &Gift) -> Remembered {
    Remembered { coupon: gift.coupon.clone(), given_at_ms: gift.given_at_ms }
}

/// Writes until no sender is left, or the disk fails.
fn write(file: &mut File, entries: &mpsc::Receiver<PendingLines>) {
    while let Ok(first) = entries.recv() {
        let mut waiting = vec![first];
        waiting.extend(entries.try_iter());
        let lines: Vec<u8> = waiting.iter().flat_map(|entry| entry.lines.iter().copied()).collect();
        let written = match lines.is_empty() {
            true => Ok(()),
            false => file.write_all(&lines).and_then(|()| file.sync_data()),
        };
        if let Err(error) = written {
            eprintln!("the witness cannot write its book: {error}");
            return;
        }
        // A waiting request may be gone.
        waiting.into_iter().for_each(|entry| _ = entry.written.send(()));
    }
}

#[expect(clippy::disallowed_methods, reason = "a gift is dated by the calendar, as in a book of people")]
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gift(key: &str) -> Gift {
        let text = |text: &str| text.to_owned();
        Gift {
            key: text(key),
            user: text("7"),
            programme: text("birthday"),
            occurrence: text("solar:2027"),
            coupon: text("ten-off"),
            given_at_ms: 5,
        }
    }

    #[tokio::test]
    async fn a_book_is_read_back_without_half_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("book");
        let mut book = Book::open(&path).unwrap();
        book.give(gift("a"));
        book.give(gift("b"));
        book.forget("a".to_owned());
        book.give(gift("a"));
        book.forget("b".to_owned());
        book.flush().await;
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [whole.as_slice(), b"{\"given\":{\"key\":\"c\""].concat()).unwrap();
        let again = Book::open(&path).unwrap();
        assert_eq!(again.gifts, [gift("a"), gift("b"), gift("a")]);
        assert_eq!(again.keys.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}
