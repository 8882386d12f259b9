//! One server of an instance: its settings, folder, ports and secrets.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::process::Guard;
use crate::programs::Programs;
use crate::secrets::Certificates;
use crate::spec::ServerSpec;

/// A server in an instance's state file. Ports and passwords survive restarts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    pub(crate) spec: ServerSpec,
    /// Unique in the instance: the server id of a database, and MariaDB's GTID domain.
    pub(crate) number: u32,
    pub(crate) port: u16,
    /// The kind's second port: NATS' monitoring, or the links between Redis or OpenSearch nodes.
    pub(crate) second_port: u16,
    pub(crate) password: String,
    pub(crate) admin_password: String,
}

/// A server's record with everything that is needed to run it.
#[derive(Debug, Clone)]
pub(crate) struct ManagedServer {
    pub(crate) record: ServerRecord,
    pub(crate) folder: PathBuf,
    pub(crate) certificates: Certificates,
    pub(crate) guard: Guard,
    pub(crate) programs: Programs,
}

impl ManagedServer {
    pub(crate) fn name(&self) -> &str {
        &self.record.spec.name
    }

    /// Returns the file of the program's own output.
    pub(crate) fn output(&self) -> PathBuf {
        self.folder.join("output.log")
    }

    /// Returns the file that exists once the server was ready for the first time: data and accounts are complete.
    pub(crate) fn prepared_marker(&self) -> PathBuf {
        self.folder.join("prepared")
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared_marker().is_file()
    }

    /// Returns the library under which this server's programs do not wait for the disk, if it is to skip fsync and the
    /// machine has the library.
    pub(crate) fn relief(&self) -> Option<PathBuf> {
        if self.record.spec.skips_fsync { self.programs.eatmydata() } else { None }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::at(self.folder.join("clock"))
    }
}
