// The alerts of deploy/prometheus/rules.yml that the page shows: limits, times and severities of the rules, and their
// headings in the runbook. The page itself has no other limits. docs/limits.md says why it shows no others; a test
// compares all three.
//
// `limit` and `unfrozen` are limits of the expression, `lasts` its `for`, `over` the range that it looks back. An
// alert that wakes a person (`severity: page`) is "bad", one that waits until morning is "unsure".

export const ALERTS = {
  AnabranchTaskStopped: { level: "bad", runbook: "First look" },
  AnabranchTaskRetrying: { level: "unsure", runbook: "First look" },
  AnabranchServerUnreachable: { level: "unsure", runbook: "Servers and certificates" },
  AnabranchServerDown: { lasts: 15 * 60, level: "bad", runbook: "Servers and certificates" },
  AnabranchCertificateEnds: { limit: 14 * 86400, level: "unsure", runbook: "Servers and certificates" },
  AnabranchCaptureLag: { limit: 300, level: "bad", runbook: "First look" },
  AnabranchLaneLag: { limit: 300, level: "bad", runbook: "First look" },
  AnabranchLagUnknown: { level: "unsure", runbook: "First look" },
  AnabranchBinlogPurgeNear: { limit: 6 * 3600, level: "bad", runbook: "What runs out: the binlog" },
  AnabranchLaneReadsBinlog: { lasts: 30 * 60, level: "unsure", runbook: "Counts of changes" },
  AnabranchPausedLaneLosesChanges: { limit: 6 * 3600, level: "bad", runbook: "Paused lanes that lose changes" },
  AnabranchLanePaused: { lasts: 4 * 3600, level: "unsure", runbook: "Paused lanes" },
  AnabranchTableOwed: { lasts: 1 * 3600, level: "unsure", runbook: "Tables that wait to be read again" },
  AnabranchRemovalOwed: { lasts: 1 * 3600, level: "unsure", runbook: "Rows of dropped tables that are to be removed" },
  AnabranchChangesUnaccounted: { level: "bad", runbook: "log-count-violated" },
  AnabranchReconciliationMissing: { limit: 26 * 3600, level: "unsure", runbook: "The nightly reconciliation" },
  AnabranchReconciliationUnproved: { level: "unsure", runbook: "Verdicts" },
  AnabranchReconciliationWindowShort: { limit: 2, level: "unsure", runbook: "The nightly reconciliation" },
  AnabranchDriftAgain: { limit: 0, level: "unsure", runbook: "Alerts" },
  AnabranchDriftSeen: { limit: 0, level: "unsure", runbook: "Between two nightly reconciliations" },
  AnabranchCouponDayLate: { limit: 25 * 3600, unfrozen: 3 * 3600, level: "bad", runbook: "A coupon day that is late" },
  AnabranchCouponsMissed: { limit: 0, lasts: 1 * 3600, level: "bad", runbook: "Members who lack their coupon" },
  AnabranchCouponLetters: { limit: 0, level: "unsure", runbook: "Coupons that could not be granted" },
  AnabranchCouponDayOpen: { limit: 3 * 86400, level: "unsure", runbook: "A coupon day that is not closed" },
  AnabranchCouponSystemAway: { over: 15 * 60, level: "bad", runbook: "coupon-system-unreachable" },
  AnabranchCouponLedgerRestored: { level: "bad", runbook: "coupon-ledger-restored" },
  AnabranchPaymentNumbersRefused: { over: 10 * 60, level: "bad", runbook: "flux-sequence-lagging" },
  AnabranchDocumentsRejected: { limit: 0, level: "unsure", runbook: "Documents that an index rejects" },
  AnabranchCachePassed: { level: "unsure", runbook: "First look" },
};
