//! The output of a run: each step with its time, and what the summary counts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::plan::Step;

/// The journal of a run, which both courses write.
#[derive(Debug)]
pub struct Journal {
    begun: Instant,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Number of steps of each kind.
    steps: BTreeMap<&'static str, u32>,
    problems: Vec<String>,
}

impl Journal {
    pub fn begin() -> Self {
        Self { begun: Instant::now(), entries: Mutex::default() }
    }

    /// Prints and counts a step that begins.
    pub fn step(&self, course: &str, step: &Step) {
        *self.lock().steps.entry(step.kind()).or_default() += 1;
        self.print(&format!("{course}: {step}"));
    }

    /// Prints what came of a step.
    pub fn note(&self, text: &str) {
        self.print(&format!("    {text}"));
    }

    /// Prints and keeps a reason why the run fails.
    pub fn problem(&self, text: String) {
        self.print(&format!("PROBLEM: {text}"));
        self.lock().problems.push(text);
    }

    pub fn has_failed(&self) -> bool {
        !self.lock().problems.is_empty()
    }

    pub fn problems(&self) -> Vec<String> {
        self.lock().problems.clone()
    }

    /// Returns the line at the end of a run.
    pub fn summary(&self, seed: u64, changes: u64, rows: u64) -> String {
        let entries = self.lock();
        let kinds: Vec<String> =
            entries.steps.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        format!(
            "soak, seed {seed}: {} steps in {:.0} s ({}); {changes} changes made, {rows} rows compared, {} problems",
            entries.steps.values().sum::<u32>(),
            self.begun.elapsed().as_secs_f64(),
            kinds.join(", "),
            entries.problems.len()
        )
    }

    fn print(&self, text: &str) {
        println!("[{:7.1} s] {text}", self.begun.elapsed().as_secs_f64());
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_steps_by_kind_and_problems() {
        let journal = Journal::begin();
        journal.step("ground", &Step::RestartAll);
        journal.step("ground", &Step::RestartAll);
        journal.step("ground", &Step::Reconcile);
        assert!(!journal.has_failed());
        journal.problem("a row is missing".to_owned());
        let summary = journal.summary(7, 1_000, 20);
        assert!(summary.starts_with("soak, seed 7: 3 steps in "), "{summary}");
        let end = "(2 all-restarted, 1 reconciled); 1000 changes made, 20 rows compared, 1 problems";
        assert!(summary.ends_with(end), "{summary}");
    }
}
