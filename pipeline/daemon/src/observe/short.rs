//! The status for a client that sent no token: codes and states, without the texts of faults and pauses, which name
//! hosts and accounts, and without the processes that hold leases.

use super::{Reason, StatusView};

impl Reason {
    /// Removes the text of a fault. Its code stays.
    pub fn leave_out_fault(&mut self) {
        if let Some(code) = &self.code {
            self.reason = format!("`anabranch explain {code}` says what it means; a token shows its text");
        }
    }
}

impl StatusView {
    /// Removes what names hosts beside faults: the holders of leases. The busiest tables go too.
    pub fn leave_out_holders(&mut self) {
        self.leases.iter_mut().for_each(|view| view.holder = None);
        self.busiest.clear();
    }

    /// Removes texts of faults and pauses, names of tables that wait, and all that [`Self::leave_out_holders`] removes.
    /// Codes stay, so that the runbook says the rest.
    pub fn leave_out_faults(&mut self) {
        self.leave_out_holders();
        let Self {
            sources,
            lanes,
            caches,
            searches,
            programmes,
            tasks,
            leases: _,
            busiest: _,
            certificates: _,
            drifts: _,
            unanswered: _,
            refusals: _,
        } = self;
        for pause in lanes.iter_mut().filter_map(|view| view.pause.as_mut()) {
            pause.by.clear();
            pause.reason = None;
        }
        for owed in lanes.iter_mut().flat_map(|view| &mut view.owed) {
            owed.table = None;
            owed.fault.clear();
        }
        let texts = sources.iter_mut().map(|view| &mut view.fault);
        let texts = texts.chain(lanes.iter_mut().map(|view| &mut view.fault));
        let texts = texts.chain(caches.iter_mut().map(|view| &mut view.fault));
        let texts = texts.chain(searches.iter_mut().map(|view| &mut view.fault));
        let texts = texts.chain(programmes.iter_mut().map(|view| &mut view.fault));
        let texts = texts.chain(tasks.iter_mut().map(|view| &mut view.fault));
        texts.for_each(|fault| *fault = None);
    }
}
