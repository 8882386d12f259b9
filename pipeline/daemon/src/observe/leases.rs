//! The held leases, as they are shown: which process does which task.

use std::collections::BTreeMap;

use anabranch_pipeline::error::Fault;
use serde::{Deserialize, Serialize};

use super::Observatory;
use crate::wiring::LeaseHolder;

/// One held lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Name of the task, or another thing that one process does at a time.
    pub lease: String,
    /// Host and process id; `None` for a client without a token.
    pub holder: Option<String>,
    /// The process that answers holds it.
    pub is_here: bool,
}

impl Observatory {
    /// Records the holders of all leases; after a failed query they are not known any more.
    pub fn leases_seen(&self, holders: &Result<BTreeMap<String, LeaseHolder>, Fault>) {
        let view = |(lease, holder): (&String, &LeaseHolder)| LeaseView {
            lease: lease.clone(),
            holder: Some(format!("{} {}", holder.host, holder.process_id)),
            is_here: holder.is_own,
        };
        self.lock().leases = holders.iter().flatten().map(view).collect();
    }
}
