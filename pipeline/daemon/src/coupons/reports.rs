//! Signed reports of coupon days: one at noon and one when the day is closed, in a chain of their own.
//!
//! The chain has the form and the key of the chain of reconciliations (`reconcile.signing_key`). The two are separate,
//! because the next reconciliation begins with facts of the newest report in its chain.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anabranch_coupons::ports::DayReports;
use anabranch_coupons::records::{DayRun, RunKey, WAVES};
use anabranch_coupons::report::Report;
use anabranch_pipeline::config::Secret;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::{Seal, seal};
use anabranch_pipeline::records::{Outcome, PastReconciliation};
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::wall_clock;
use crate::wiring::Wiring;

/// Number of frozen waves from which the report of noon is written.
const NOON: u8 = 2;

/// Content of a signed report of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReport {
    pub programme: String,
    pub day: String,
    /// `noon` or `closed`.
    pub stage: String,
    pub coupon: String,
    /// Waves that were frozen, and whether each of them was frozen after the barrier.
    pub frozen: u8,
    pub is_after_barrier: bool,
    /// The cohort: its size, and a sum of hashes that compares it with another one.
    pub eligible: u64,
    pub sum: String,
    /// Rows of the day's tables that were left out, since they say another birthday.
    pub misplaced: u64,
    /// The reconciliation that midnight relied on, and when it ended; `None` = the day began without one.
    pub reconciliation: Option<(String, u64)>,
    pub granted: u64,
    /// Coupons of `granted` by the version of the programme in the ledger's rows.
    #[serde(default)]
    pub versions: BTreeMap<String, u64>,
    pub already_granted: u64,
    pub refused: BTreeMap<String, u64>,
    pub failed: u64,
    pub in_flight: u64,
    pub missed: u64,
    /// Members of `missed` whose source row could not be read by the latest hour.
    #[serde(default)]
    pub unreadable: u64,
    /// Members of `missed` who wait for a reconciliation that compares their source tables.
    #[serde(default)]
    pub held: u64,
}

impl SignedReport {
    /// Returns the report of a day; `None` before noon was frozen.
    pub fn of(programme: &str, day: Date, run: &DayRun, report: &Report) -> Option<Self> {
        let stage = match run.frozen {
            _ if run.is_closed => "closed",
            NOON..=WAVES => "noon",
            _ => return None,
        };
        let reconciliation = run.reconciliation.as_ref().map(|relied_on| {
            let ended_at_ms = u64::try_from(relied_on.ended_at.as_millisecond()).unwrap_or_default();
            (relied_on.id.to_string(), ended_at_ms)
        });
        Some(Self {
            programme: programme.to_owned(),
            day: day.to_string(),
            stage: stage.to_owned(),
            coupon: run.rules.coupon.to_string(),
            frozen: run.frozen,
            is_after_barrier: run.is_after_barrier,
            eligible: report.eligible,
            sum: format!("{:032x}", run.sum),
            misplaced: run.misplaced,
            reconciliation,
            granted: report.granted,
            versions: report.version_texts(),
            already_granted: report.already_granted,
            refused: report.refused_texts(),
            failed: report.failed,
            in_flight: report.in_flight,
            missed: report.missed,
            unreadable: report.unreadable,
            held: report.held,
        })
    }

    /// Returns the id of the report's row in the chain.
    pub fn id(&self) -> String {
        id(&self.programme, &self.day, &self.stage)
    }

    fn is_balanced(&self) -> bool {
        let refused: u64 = self.refused.values().sum();
        let parts =
            self.granted + self.already_granted + refused + self.failed + self.in_flight + self.missed;
        parts == self.eligible
    }

    /// Returns clean when each member has a coupon or a refusal, failed when the parts do not add up to the cohort.
    pub fn verdict(&self) -> Outcome {
        match self.failed + self.in_flight + self.missed {
            _ if !self.is_balanced() => Outcome::Failed,
            0 => Outcome::Clean,
            _ => Outcome::Incomplete,
        }
    }
}

fn id(programme: &str, day: &str, stage: &str) -> String {
    format!("{programme}/{day}/{stage}")
}

/// Adds a report to the chain, unless it is there; returns whether it did.
async fn append(history: &impl History, report: &SignedReport, key: Option<&Secret>) -> Result<bool, Fault> {
    let id = report.id();
    // The newest is read first: a report that another process adds after this read takes the number of this one.
    let before = history.newest(1).await?.into_iter().next();
    if history.named(&id).await?.is_some() {
        return Ok(false);
    }
    let text = serde_json::to_string(report).expect("a report holds text and numbers only");
    let ended = (id.as_str(), wall_clock::now_ms(), report.verdict());
    history.append(&seal(before.as_ref(), ended, text, key)).await?;
    Ok(true)
}

/// The chain as a dispatcher adds to it.
pub struct ReportChain {
    wiring: Wiring,
    /// Ids of reports that this process has found or stored in the chain.
    stored: Mutex<HashSet<String>>,
}

impl ReportChain {
    pub fn new(wiring: &Wiring) -> Self {
        Self { wiring: wiring.clone(), stored: Mutex::default() }
    }

    fn stored(&self) -> MutexGuard<'_, HashSet<String>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DayReports for ReportChain {
    /// Appends the report of a day once noon was frozen, and once the day is about to be closed.
    async fn keep(&self, key: &RunKey, run: &DayRun, report: &Report) -> Result<(), Fault> {
        let Some(report) = SignedReport::of(&key.programme, key.day, run, report) else { return Ok(()) };
        let id = report.id();
        if self.stored().contains(&id) {
            return Ok(());
        }
        let history = self.wiring.coupon_reports()?;
        let signing_key = self.wiring.config().reconcile.signing_key.as_ref();
        failpoints::reach("coupons-before-report").await;
        if append(&history, &report, signing_key).await? {
            tracing::info!(
                programme = report.programme,
                day = report.day,
                stage = report.stage,
                granted = report.granted,
                missed = report.missed,
                "the report of the coupon day is written"
            );
        }
        failpoints::reach("coupons-after-report").await;
        self.stored().insert(id);
        Ok(())
    }
}

/// A report as the chain holds it.
#[derive(Debug, Serialize)]
pub struct Signed {
    pub report: SignedReport,
    pub verdict: Outcome,
    pub ended_at_ms: u64,
    /// A key is configured; without one a seal shows accidents only.
    pub is_signed: bool,
}

/// Returns the reports of a day, noon first, each compared with its signature and with the report before it.
pub async fn signed(wiring: &Wiring, programme: &str, day: Date) -> Result<Vec<Signed>, Fault> {
    let (history, key) = (wiring.coupon_reports()?, wiring.config().reconcile.signing_key.as_ref());
    let mut found = Vec::new();
    for stage in ["noon", "closed"] {
        let Some(past) = history.named(&id(programme, &day.to_string(), stage)).await? else { continue };
        let before = match past.number.checked_sub(1) {
            Some(number) => history.numbered(number).await?,
            None => None,
        };
        match Seal::of(&past, before.as_ref(), key) {
            Seal::Whole => {}
            Seal::Broken => {
                return Err(broken(&past, "its signature does not fit its report and reconcile.signing_key"));
            }
            Seal::Unlinked => {
                return Err(broken(&past, "its signature covers another report than the one before it"));
            }
        }
        let odd = |_| broken(&past, "it is not a report of a coupon day");
        found.push(Signed {
            report: serde_json::from_str(&past.report).map_err(odd)?,
            verdict: past.verdict,
            ended_at_ms: past.ended_at_ms,
            is_signed: key.is_some(),
        });
    }
    Ok(found)
}

fn broken(past: &PastReconciliation, found: &str) -> Fault {
    Fault::new(Code::HistoryBroken, format!("report {}", past.id), found)
        .needs("the reports as dispatchers wrote them, and the reconcile.signing_key that signed them")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(granted: u64, missed: u64, eligible: u64) -> SignedReport {
        SignedReport {
            programme: "birthday".to_owned(),
            day: "2027-02-28".to_owned(),
            stage: "noon".to_owned(),
            coupon: "cake".to_owned(),
            frozen: 2,
            is_after_barrier: true,
            eligible,
            sum: String::new(),
            misplaced: 0,
            reconciliation: None,
            granted,
            versions: BTreeMap::new(),
            already_granted: 0,
            refused: BTreeMap::new(),
            failed: 0,
            in_flight: 0,
            missed,
            unreadable: 0,
            held: 0,
        }
    }

    #[test]
    fn a_report_whose_parts_are_not_the_whole_has_failed() {
        assert_eq!(report(5, 0, 5).verdict(), Outcome::Clean);
        assert_eq!(report(4, 1, 5).verdict(), Outcome::Incomplete);
        assert_eq!(report(4, 0, 5).verdict(), Outcome::Failed);
    }
}
