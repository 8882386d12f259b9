//! The history of reconciliations on a real server: reports of the size of a packet.

use anabranch_connectors::mysql::store::MysqlHistory;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::History;
use anabranch_pipeline::records::{Outcome, PastReconciliation};

use crate::derived::StoreSite;

const PACKET_BYTES: usize = 256 * 1024;

/// A reconciliation whose report has this many bytes, among them characters of several bytes, quotes and backslashes.
fn past(number: u64, bytes: usize) -> PastReconciliation {
    let beginning = r#"{"tables":["käse 生日 'a' \\"#;
    let end = r#""]}"#;
    PastReconciliation {
        number,
        id: format!("reconciliation-{number}"),
        ended_at_ms: 1_795_230_000_123,
        verdict: Outcome::Clean,
        report: format!("{beginning}{}{end}", "x".repeat(bytes - beginning.len() - end.len())),
        previous: String::new(),
        signature: "signature".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_may_have_the_size_of_a_packet_and_a_longer_one_is_refused_by_name_until_it_fits() {
    let site = StoreSite::alone().await;
    let target = site.target("target-a");
    target.setup().await.unwrap();
    site.sql(format!("SET GLOBAL max_allowed_packet = {PACKET_BYTES}")).await;
    let history = MysqlHistory::new(&target);

    // A literal of hexadecimal digits would be half as large again as a packet.
    let fitting = past(1, PACKET_BYTES / 4 * 3);
    history.append(&fitting).await.unwrap();
    assert_eq!(history.numbered(1).await.unwrap(), Some(fitting));

    let long = past(2, 2 * PACKET_BYTES);
    let fault = history.append(&long).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetRejected, "{fault}");
    let size = format!("{} bytes", long.report.len() + 4 * 1024);
    for part in [size.as_str(), "`max_allowed_packet` is 262144", "reconciliation-2"] {
        assert!(fault.to_string().contains(part), "{part}: {fault}");
    }
    assert_eq!(history.newest_number().await.unwrap(), Some(1));

    site.sql(format!("SET GLOBAL max_allowed_packet = {}", 16 * PACKET_BYTES)).await;
    // The reads above have made a session before the change.
    let appended = history.append(&long).await;
    if appended.is_err() {
        history.append(&long).await.unwrap();
    }
    assert_eq!(history.numbered(2).await.unwrap(), Some(long));
}
