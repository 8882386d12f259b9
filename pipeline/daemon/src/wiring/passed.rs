//! The pre-flight of a source: whole at first, and then only what its server may have changed since.
//!
//! A whole pre-flight lists all tables and columns and asks for a binlog that does not exist. A reader that lost its
//! connection needs none of that again. It asks for the server's identity, version and settings, and the whole
//! pre-flight runs if one of them differs. Where a stream begins, the reader itself proves epoch and groups.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anabranch_pipeline::config::UnseenChanges;
use anabranch_pipeline::error::{Class, Fault};

use super::{Wiring, worst};

/// The state of a server for which a pre-flight of this process passed.
#[derive(Debug, Default)]
pub(super) struct PassedState(Mutex<Option<String>>);

impl PassedState {
    /// Requires a pre-flight that passed for the present `state` of the server: an earlier one, or `whole`.
    async fn require(
        &self,
        state: impl Future<Output = Result<String, Fault>>,
        whole: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let state = state.await?;
        if self.lock().as_ref() == Some(&state) {
            return Ok(());
        }
        whole.await?;
        *self.lock() = Some(state);
        Ok(())
    }

    /// Forgets the pre-flight after a fault that may be about what it asks; a lost connection is none.
    fn forget_after(&self, fault: &Fault) {
        if fault.class() != Class::Transient || fault.code().stops() {
            *self.lock() = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        // No code under this lock leaves the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wiring {
    /// Does the source's pre-flight with one result, unless an earlier one holds.
    pub async fn require_source(&self, name: &str) -> Result<(), Fault> {
        let source = self.wired_source(name)?;
        source
            .passed
            .require(source.connector.judged_state(), Box::pin(self.require_whole_source(name)))
            .await
    }

    /// Does the whole pre-flight of a source. A table that does not fit is left out and read again once it does, unless
    /// the configuration wants the source to stop.
    async fn require_whole_source(&self, name: &str) -> Result<(), Fault> {
        let stops = self.config().entities.iter().any(|entity| entity.unseen_changes == UnseenChanges::Stop);
        let faults = self.check_source(name).await;
        let (unfit, faults): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| !stops && fault.code().is_of_one_table());
        for fault in unfit {
            tracing::warn!(source = name, %fault, "a table cannot be captured, and is left out until it can");
        }
        worst(faults)
    }

    /// Notes the fault that ended an attempt of the reader.
    pub(super) fn note_reader_fault(&self, name: &str, fault: &Fault) {
        if let Ok(source) = self.wired_source(name) {
            source.passed.forget_after(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use anabranch_pipeline::error::Code;

    use super::*;

    #[tokio::test]
    async fn a_lost_connection_asks_for_no_second_whole_preflight_and_another_server_or_fault_does() {
        let (passed, whole) = (PassedState::default(), AtomicU32::new(0));
        let wholes_after = async |state: &str, outcome: Result<(), Fault>| {
            let preflight = async {
                whole.fetch_add(1, Ordering::Relaxed);
                outcome
            };
            let state = state.to_owned();
            let required = passed.require(async { Ok(state) }, preflight).await;
            (whole.load(Ordering::Relaxed), required.is_ok())
        };
        let fault = |code| Fault::new(code, "source a", "a test");
        assert_eq!(wholes_after("a", Err(fault(Code::SourceGrantMissing))).await, (1, false));
        assert_eq!(wholes_after("a", Ok(())).await, (2, true), "the one before did not pass");
        passed.forget_after(&fault(Code::SourceUnreachable));
        passed.forget_after(&fault(Code::LogUnreachable));
        assert_eq!(wholes_after("a", Ok(())).await, (2, true));
        assert_eq!(wholes_after("b", Ok(())).await, (3, true), "another server, or another setting");
        passed.forget_after(&fault(Code::SourceServerChanged));
        assert_eq!(wholes_after("b", Ok(())).await, (4, true));
    }
}
