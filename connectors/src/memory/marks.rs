//! Marks in memory: raised by the revision known, on durable storage that never fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Mark, Marks};

use super::{Refused, Weather, lock};

/// The bucket; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryMarks {
    marks: Arc<Mutex<BTreeMap<String, Mark>>>,
    weather: Weather,
}

impl MemoryMarks {
    pub fn new(weather: Weather) -> Self {
        Self { marks: Arc::default(), weather }
    }

    /// All are gone, with the server's disk.
    pub fn wipe(&self) {
        lock(&self.marks).clear();
    }

    fn stored(&self, key: &str) -> Mark {
        lock(&self.marks).get(key).cloned().unwrap_or_default()
    }

    /// In one in ten calls of a storm the connection breaks here.
    fn connection(&self) -> Result<(), Fault> {
        self.weather.answer(Refused::Log)?;
        match self.weather.strikes_in(100) {
            true => Err(Fault::new(Code::LogUnreachable, "marks", "the connection broke")),
            false => Ok(()),
        }
    }
}

impl Marks for MemoryMarks {
    async fn read(&self, key: &str) -> Result<Mark, Fault> {
        self.weather.pause().await;
        self.connection()?;
        let mark = self.stored(key);
        self.weather.pause().await;
        Ok(mark)
    }

    async fn raise(&self, key: &str, known: &Mark, value: String) -> Result<Mark, Fault> {
        self.weather.pause().await;
        self.connection()?;
        let raised = {
            let mut marks = lock(&self.marks);
            let stored = marks.entry(key.to_owned()).or_default();
            if stored.revision != known.revision {
                return Err(Fault::new(Code::LeaseLost, format!("mark {key}"), "another process raised it"));
            }
            *stored = Mark { value, revision: stored.revision + 1 };
            stored.clone()
        };
        self.weather.pause().await;
        // Stored, and only the answer was lost.
        self.connection()?;
        Ok(raised)
    }
}
