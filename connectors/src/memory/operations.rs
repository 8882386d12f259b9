//! The records of operations in memory: a list that only grows.

use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::Operations;
use anabranch_pipeline::records::{OperationRecord, StoredOperation};

use super::{Refused, Weather, lock};

/// The records; clones share them.
#[derive(Debug, Clone)]
pub struct MemoryOperations {
    records: Arc<Mutex<Vec<OperationRecord>>>,
    weather: Weather,
}

impl MemoryOperations {
    pub fn new(weather: Weather) -> Self {
        Self { records: Arc::default(), weather }
    }
}

impl Operations for MemoryOperations {
    async fn append(&self, record: &OperationRecord) -> Result<(), Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Target)?;
        lock(&self.records).push(record.clone());
        self.weather.pause().await;
        Ok(())
    }

    async fn newest(&self, before: Option<u64>, limit: usize) -> Result<Vec<StoredOperation>, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Target)?;
        let records = lock(&self.records);
        let numbered = (1..).zip(records.iter()).collect::<Vec<(u64, &OperationRecord)>>();
        let is_meant = |number: u64| before.is_none_or(|before| number < before);
        let meant = numbered.into_iter().rev().filter(|(number, _)| is_meant(*number)).take(limit);
        Ok(meant.map(|(number, record)| StoredOperation { number, record: record.clone() }).collect())
    }
}
