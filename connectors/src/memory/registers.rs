//! Registers in memory, on storage that never fails; a writer must know a key's last revision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Register, Registers};

use super::{Refused, Weather, lock};

/// The bucket; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryRegisters {
    registers: Arc<Mutex<BTreeMap<String, Register>>>,
    weather: Weather,
}

impl MemoryRegisters {
    pub fn new(weather: Weather) -> Self {
        Self { registers: Arc::default(), weather }
    }

    /// Removes all registers, as the loss of the server's disk does.
    pub fn wipe(&self) {
        lock(&self.registers).clear();
    }

    /// Returns every register by its key.
    pub fn all(&self) -> BTreeMap<String, Register> {
        lock(&self.registers).clone()
    }

    fn stored(&self, key: &str) -> Register {
        lock(&self.registers).get(key).cloned().unwrap_or_default()
    }

    /// Breaks the connection in one of ten calls of a storm.
    fn connection(&self) -> Result<(), Fault> {
        self.weather.answer(Refused::Log)?;
        match self.weather.strikes_in(100) {
            true => Err(Fault::new(Code::LogUnreachable, "registers", "the connection broke")),
            false => Ok(()),
        }
    }
}

impl Registers for MemoryRegisters {
    async fn read(&self, key: &str) -> Result<Register, Fault> {
        self.weather.pause().await;
        self.connection()?;
        let register = self.stored(key);
        self.weather.pause().await;
        Ok(register)
    }

    async fn compare_and_set(&self, key: &str, known: &Register, value: String) -> Result<Register, Fault> {
        self.weather.pause().await;
        self.connection()?;
        let raised = {
            let mut registers = lock(&self.registers);
            let stored = registers.entry(key.to_owned()).or_default();
            if stored.revision != known.revision {
                return Err(Fault::new(
                    Code::LeaseLost,
                    format!("register {key}"),
                    "another process raised it",
                ));
            }
            *stored = Register { value, revision: stored.revision + 1 };
            stored.clone()
        };
        self.weather.pause().await;
        // The value is stored, and only the answer is lost.
        self.connection()?;
        Ok(raised)
    }
}
