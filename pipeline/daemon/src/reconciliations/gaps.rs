//! The gaps in the reading of sources that a report lists: beginnings and crossings, which a person asked for.
//!
//! A report repeats the gaps of the report before it while the registers keep them, so no gap is lost where a
//! reconciliation is cut off.

use anabranch_pipeline::capture::gap_records;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::reconcile::{ReconciliationReport, ReportedGap};
use anabranch_schemas::beginning::GapRecord;

use crate::wiring::Wiring;

/// Gaps that a report lists, at most: the report travels in a message of 1 MB.
const LISTED_MAX: usize = 500;

/// Returns the gaps of every source; those that the report before does not have are new.
pub(super) async fn reported(
    wiring: &Wiring,
    before: Option<&ReconciliationReport>,
) -> Result<Vec<ReportedGap>, Fault> {
    let log = wiring.log().await?;
    let mut gaps = Vec::new();
    for source in &wiring.config().sources {
        match gap_records(log, &source.name).await {
            Ok(records) => gaps.extend(records.into_iter().map(|record| (source.name.clone(), record))),
            // The reader of the source stops for it, and everything else can be compared.
            Err(fault) if fault.code() == Code::LogForeign => {
                tracing::warn!(source = source.name, %fault, "the report lists no gap of the source");
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(compared(gaps, before))
}

/// Compares the gaps with those of the report before; the new ones come first, and a long list is cut.
fn compared(gaps: Vec<(String, GapRecord)>, before: Option<&ReconciliationReport>) -> Vec<ReportedGap> {
    let known = before.map_or(&[][..], |before| &before.gaps[..]);
    let with_news = |(source, record): (String, GapRecord)| {
        let is_new = !known.iter().any(|known| known.source == source && known.record == record);
        ReportedGap { source, is_new, record }
    };
    let mut gaps: Vec<ReportedGap> = gaps.into_iter().map(with_news).collect();
    gaps.sort_by_key(|gap| !gap.is_new);
    gaps.truncate(LISTED_MAX);
    gaps
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::reconcile::{Seal, seal};

    use super::*;

    fn report(gaps: Vec<ReportedGap>) -> ReconciliationReport {
        let report =
            r#"{"id":"r","verdict":"clean","begun_at_ms":1,"ended_at_ms":2,"mode":"repair","stores":[]}"#;
        ReconciliationReport { gaps, ..serde_json::from_str(report).unwrap() }
    }

    fn asked_by(who: &str) -> (String, GapRecord) {
        ("source-a".to_owned(), GapRecord { who: who.to_owned(), ..GapRecord::default() })
    }

    #[test]
    fn a_gap_is_new_in_one_report_and_new_ones_come_first() {
        let first = report(compared(vec![asked_by("ann@db-1")], None));
        assert!(first.gaps[0].is_new);
        let second = compared(vec![asked_by("ann@db-1"), asked_by("bob@db-1")], Some(&first));
        let listed: Vec<_> = second.iter().map(|gap| (gap.record.who.as_str(), gap.is_new)).collect();
        assert_eq!(listed, [("bob@db-1", true), ("ann@db-1", false)]);
    }

    #[test]
    fn a_gap_stands_inside_the_seal() {
        let report = report(compared(vec![asked_by("ann@db-1")], None));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ReconciliationReport>(&text).unwrap(), report);
        let mut sealed = seal(None, (&report.id, 2, report.verdict), text, None);
        assert_eq!(Seal::of(&sealed, None, None), Seal::Whole);
        sealed.report = sealed.report.replace("ann@db-1", "bob@db-1");
        assert_eq!(Seal::of(&sealed, None, None), Seal::Broken);
    }
}
