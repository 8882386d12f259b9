//! Programs of tests that not every machine can have: a test without them says why it is skipped.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::layout::Layout;
use crate::programs::{BROWSER, BrowserPrograms, GH_OST, PERCONA, Program, Programs};

/// Returns a browser without a screen, installed at the first call; `None` on a machine that cannot have one, with the
/// reason on stderr.
pub fn browser(layout: &Layout) -> Result<Option<BrowserPrograms>> {
    if_there(BROWSER, || Programs::of(layout).browser())
}

/// Returns the program that checks metrics and rules of alerts, as [`browser`] does.
pub fn promtool(layout: &Layout) -> Result<Option<Program>> {
    if_there("promtool", || Programs::of(layout).promtool())
}

/// Returns `pt-online-schema-change`, as [`browser`] does.
pub fn pt_online_schema_change(layout: &Layout) -> Result<Option<Program>> {
    if_there(PERCONA, || Programs::of(layout).percona())
}

/// Returns `gh-ost`, if it is on PATH.
pub fn gh_ost(layout: &Layout) -> Result<Option<Program>> {
    if_there(GH_OST, || Programs::of(layout).gh_ost())
}

/// Searches missing programs once in a process, because that is slow.
fn if_there<T>(what: &'static str, find: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    // Missing programs and the reasons. The lock is not held during an installation.
    static MISSING: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());
    let known = || MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    let earlier_reason = known().get(what).cloned();
    let reason = match earlier_reason {
        Some(reason) => reason,
        None => match find() {
            Err(missing) if missing.is_missing_program() => {
                let reason = missing.to_string();
                known().insert(what, reason.clone());
                reason
            }
            found => return found.map(Some),
        },
    };
    eprintln!("skipped: {reason}");
    Ok(None)
}
