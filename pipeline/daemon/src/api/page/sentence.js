// Makes the sentence at the top of the page: the worst problem of the status, of what the alerts watch, and of the
// reconciliations; without any, what is under way.

import { duration } from "/page/elements.js";
import { described, everything, LEVELS, plural } from "/page/model.js";

/** Alerts of deploy/prometheus/rules.yml by the same limits and headings of the runbook; a test compares them. */
const ALERTS = {
  AnabranchPausedLaneLosesChanges: { limit: 6 * 3600, level: "bad", runbook: "Paused lanes that lose changes" },
  AnabranchBinlogPurgeNear: { limit: 6 * 3600, level: "bad", runbook: "What runs out: the binlog" },
  AnabranchReconciliationMissing: { limit: 26 * 3600, level: "unsure", runbook: "The nightly reconciliation" },
  AnabranchCertificateEnds: { limit: 14 * 86400, level: "unsure", runbook: "Servers and certificates" },
  AnabranchDriftSeen: { limit: 0, level: "unsure", runbook: "Between two nightly reconciliations" },
};
/** Headings for what is no alert yet. */
const REMOVALS = "Rows of dropped tables that are to be removed";
const VERDICTS = "Verdicts";

const see = (heading) => ` Runbook: ${heading}.`;

const alert = (name, text) => ({ text, level: ALERTS[name].level, advice: see(ALERTS[name].runbook) });

/** Returns the things below the limit of an alert, that with the least value first. */
const below = (name, things, value) => things
  .filter((thing) => value(thing) !== null && value(thing) < ALERTS[name].limit)
  .sort((one, other) => value(one) - value(other));

const others = (things, one) => (things.length > 1 ? `, and ${plural(things.length - 1, `more ${one}`)}` : "");

/** Returns what the alerts watch beside states and codes. `now` is the daemon's time, or null. */
function alerts(model, history, now) {
  const found = [];
  const losing = below("AnabranchPausedLaneLosesChanges", model.lanes, (lane) => lane.pausedLeft);
  if (losing.length) {
    found.push(alert("AnabranchPausedLaneLosesChanges", `Paused lane ${losing[0].name} needs changes that log and ` +
      `binlog lose in ${duration(losing[0].pausedLeft)}${others(losing, "lane")}`));
  }
  const purged = below("AnabranchBinlogPurgeNear", model.sources, (source) => source.purgeLeft);
  if (purged.length) {
    found.push(alert("AnabranchBinlogPurgeNear", `Source ${purged[0].name} may purge binlog that its reader needs in ` +
      `${duration(purged[0].purgeLeft)}${others(purged, "source")}`));
  }
  const whole = history?.past.find((one) => one.isWhole);
  const age = whole ? (history.now - whole.endedAt) / 1000 : 0;
  if (age > ALERTS.AnabranchReconciliationMissing.limit) {
    found.push(alert("AnabranchReconciliationMissing", `The last whole reconciliation ended ${duration(age)} ago`));
  }
  const left = (certificate) => (now === null ? null : (certificate.endsAt - now) / 1000);
  const ending = below("AnabranchCertificateEnds", model.certificates, left);
  if (ending.length) {
    const [first] = ending;
    const when = left(first) > 0 ? `ends in ${duration(left(first))}` : "has ended";
    found.push(alert("AnabranchCertificateEnds",
      `The certificate of ${first.name} ${when}${others(ending, "certificate")}`));
  }
  for (const drift of model.drifts.filter((one) => one.rows > ALERTS.AnabranchDriftSeen.limit)) {
    found.push(alert("AnabranchDriftSeen", `Spot checks found ${plural(drift.rows, "wrong row")} of ${drift.store} ` +
      `after changes in ${drift.source}, the last within the hour`));
  }
  return found;
}

const isWrong = (one) => one.verdict === "failed" || one.verdict === "incomplete";

/** Returns whether a reconciliation compared every store of another one. */
const covers = (one, other) => other.stores.every((store) => one.stores.some((own) => own.name === store.name));

/**
 * Returns what reconciliations say against "all is current": every broken seal, the newest whole one, and newer partial
 * ones that no later one of the same stores has answered.
 */
function doubts(past) {
  const broken = past.filter((one) => one.isBroken);
  const wholeAt = past.findIndex((one) => one.isWhole);
  const newest = wholeAt < 0 ? past : past.slice(0, wholeAt + 1);
  const isOpen = (one, at) => isWrong(one) && !newest.slice(0, at).some((later) => !isWrong(later) && covers(later, one));
  const open = newest.filter((one, at) => (one.isWhole ? isWrong(one) : isOpen(one, at)));
  return [
    ...broken.map((one) => ({ text: `Reconciliation ${one.id} has a broken seal: ${one.seal}`, level: "bad" })),
    ...open.map((one) => ({
      text: `${one.isWhole ? "Reconciliation" : "Partial reconciliation"} ${one.id} ` +
        (one.verdict === "failed" ? "left wrong rows" : "did not read or decide everything"),
      level: one.verdict === "failed" ? "bad" : "unsure", advice: see(VERDICTS),
    })),
  ];
}

/** Returns all that is wrong, the worst first. */
function findings(model, history, now) {
  const problems = model.problems.map((problem) => ({ text: described(problem), level: problem.level, problem }));
  const all = [...problems, ...alerts(model, history, now), ...(history ? doubts(history.past) : [])];
  return all.sort((one, other) => LEVELS.indexOf(other.level) - LEVELS.indexOf(one.level));
}

/** Returns the sentence at the top of the page, with all else that is wrong in `others`. */
export function sentence(model, history, now) {
  const [worst, ...rest] = findings(model, history, now);
  return worst ? { ...worst, others: rest } : { ...calm(model, history), others: [] };
}

/** Returns what is under way while nothing is wrong. */
function calm(model, history) {
  const loading = model.lanes.filter((lane) => lane.refreshed !== null);
  const busy = everything(model).filter((thing) => thing.level === "busy");
  if (loading.length) {
    return { text: `${plural(loading.length, "lane")} of ${model.lanes.length} read source tables again`, level: "busy" };
  }
  const removing = model.lanes.filter((lane) => lane.withdrawn > 0);
  if (removing.length) {
    const text = `${plural(removing.length, "lane")} of ${model.lanes.length} remove rows of dropped or truncated tables`;
    return { text, level: "busy", advice: see(REMOVALS) };
  }
  const paused = model.lanes.filter((lane) => lane.state === "paused");
  if (paused.length) {
    return { text: `Nothing is wrong; ${plural(paused.length, "lane")} paused by an operator`, level: "busy" };
  }
  if (busy.length) return { text: `Nothing is wrong; ${plural(busy.length, "task or lane", "tasks or lanes")} catch up`, level: "busy" };
  const sources = plural(model.sources.length, "source");
  const isCut = !history || history.code || history.unread > 0 || history.older > 0;
  const isProved = isCut || history.past.some((one) => one.isWhole);
  const unproved = `No whole reconciliation has ended yet.${see(ALERTS.AnabranchReconciliationMissing.runbook)}`;
  return {
    text: `All is current: ${sources}, ${plural(model.lanes.length, "lane")}`, level: "good",
    advice: isProved ? "" : unproved,
  };
}
