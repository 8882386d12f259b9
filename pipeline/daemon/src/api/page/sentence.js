// Makes the sentence at the top of the page: the worst problem of the status, of what the alerts watch, and of the
// reconciliations; without any, what is under way.

import { ALERTS } from "/page/alerts.js";
import { duration } from "/page/elements.js";
import { described, everything, LEVELS, plural, stepsOfLetters, worse } from "/page/model.js";

const see = (heading) => ` Runbook: ${heading}.`;

/** Makes a finding whose level and heading are those of its alert. */
const alert = (name, text) =>
  ({ text, level: ALERTS[name].level, advice: see(ALERTS[name].runbook), heading: ALERTS[name].runbook });

/** Returns the things below the limit of an alert, that with the least value first. */
const below = (name, things, value) => things
  .filter((thing) => value(thing) !== null && value(thing) < ALERTS[name].limit)
  .sort((one, other) => value(one) - value(other));

const others = (things, one) => (things.length > 1 ? `, and ${plural(things.length - 1, `more ${one}`)}` : "");

/** Returns what has lasted for longer than an alert waits, that which has lasted longest first. */
const lasting = (name, things, value) => things
  .filter((thing) => value(thing) !== null && value(thing) > ALERTS[name].lasts)
  .sort((one, other) => value(other) - value(one));

/** Returns what the alerts watch of lanes, beside their states and codes. */
function alertsOfLanes(lanes, now) {
  const found = [];
  const add = (name, value, text) => {
    const late = lasting(name, lanes, value);
    if (!late.length) return;
    const [first] = late;
    found.push(alert(name, `Lane ${first.name} ${text(first)} for ${duration(value(first))}${others(late, "lane")}`));
  };
  add("AnabranchLaneReadsBinlog", (lane) => lane.direct, () => "has read the binlog in place of the log");
  add("AnabranchLanePaused", (lane) => (lane.pause && now !== null ? (now - lane.pause.since) / 1000 : null),
    () => "has been paused");
  add("AnabranchTableOwed", (lane) => lane.owedFor,
    (lane) => `has waited to read ${plural(lane.owed, "table")} again, whose rows may be stale,`);
  add("AnabranchRemovalOwed", (lane) => lane.withdrawnFor,
    (lane) => `has been to remove rows of ${plural(lane.withdrawn, "dropped or truncated table")}`);
  return found;
}

/** Returns what the alerts watch of reconciliations, beside their verdicts and whether there is one. */
function alertsOfReconciliations(history) {
  const found = [];
  const whole = history.past.find((one) => one.isWhole);
  const age = whole ? (history.now - whole.endedAt) / 1000 : 0;
  if (age > ALERTS.AnabranchReconciliationMissing.limit) {
    found.push(alert("AnabranchReconciliationMissing", `The last whole reconciliation ended ${duration(age)} ago`));
  }
  for (const store of whole?.stores.filter((one) => one.again > ALERTS.AnabranchDriftAgain.limit) ?? []) {
    found.push(alert("AnabranchDriftAgain",
      `${plural(store.again, "row")} of ${store.name} were repaired and are wrong again`));
  }
  for (const one of history.underway.filter((run) => run.windows > ALERTS.AnabranchReconciliationWindowShort.limit)) {
    found.push(alert("AnabranchReconciliationWindowShort", `Reconciliation ${one.id} has needed ${one.windows} windows`));
  }
  return found;
}

/** Returns what the alerts watch of coupons and payment documents. */
const alertsOfNumbers = (model) => [
  ...model.programmes.flatMap((programme) => programme.alerts.map((one) => {
    const found = { ...alert(one.alert, one.text), level: one.level };
    return one.alert === "AnabranchCouponLetters" ? { ...found, advice: stepsOfLetters() } : found;
  })),
  ...model.refusals.map((code) => ({
    ...alert("AnabranchPaymentNumbersRefused", `Numbers of payment documents were refused within ten minutes: ${code}`),
    advice: see(code), heading: code,
  })),
];

/** Returns what the alerts watch beside states and codes. `now` is the daemon's time, or null. */
function alerts(model, history, now) {
  const found = [...alertsOfNumbers(model), ...alertsOfLanes(model.lanes, now)];
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
  if (history) found.push(...alertsOfReconciliations(history));
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
    ...broken.map((one) => ({
      text: `Reconciliation ${one.id} has a broken seal: ${one.seal}`, level: "bad", advice: see("history-broken"),
      heading: "history-broken",
    })),
    ...open.map((one) => alert("AnabranchReconciliationUnproved",
      `${one.isWhole ? "Reconciliation" : "Partial reconciliation"} ${one.id} ` +
        (one.verdict === "failed" ? "left wrong rows" : "did not read or decide everything"))),
  ];
}

/** Returns the doubt of a history that was read to its end and has no whole reconciliation; null of any other. */
function unproved(history) {
  const isRead = history && history.readAt !== null && !history.code && history.unread === 0 && history.older === 0;
  if (!isRead || history.past.some((one) => one.isWhole)) return null;
  const doubt = alert("AnabranchReconciliationMissing", "No whole reconciliation has ended yet");
  const advice = " `anabranch --config FILE reconcile --now` runs one. Until it has ended, nothing proves that the " +
    `stores equal their sources.${doubt.advice}`;
  return { ...doubt, advice };
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
  const doubt = unproved(history);
  if (worst) return { ...worst, others: doubt ? [...rest, doubt] : rest };
  const still = calm(model);
  if (!doubt) return { ...still, others: [] };
  return {
    ...doubt, text: `${still.text}. ${doubt.text}`, level: worse(doubt.level, still.level),
    advice: `${doubt.advice}${still.advice ?? ""}`, others: [],
  };
}

/** Returns what is under way while nothing is wrong. */
function calm(model) {
  const loading = model.lanes.filter((lane) => lane.refreshed !== null);
  const busy = everything(model).filter((thing) => thing.level === "busy");
  if (loading.length) {
    return { text: `${plural(loading.length, "lane")} of ${model.lanes.length} read source tables again`, level: "busy" };
  }
  const removing = model.lanes.filter((lane) => lane.withdrawn > 0);
  if (removing.length) {
    const text = `${plural(removing.length, "lane")} of ${model.lanes.length} remove rows of dropped or truncated tables`;
    return { ...alert("AnabranchRemovalOwed", text), level: "busy" };
  }
  const paused = model.lanes.filter((lane) => lane.state === "paused");
  if (paused.length) {
    return { text: `Nothing is wrong; ${plural(paused.length, "lane")} paused by an operator`, level: "busy" };
  }
  if (busy.length) return { text: `Nothing is wrong; ${plural(busy.length, "task or lane", "tasks or lanes")} catch up`, level: "busy" };
  const sources = plural(model.sources.length, "source");
  return { text: `All is current: ${sources}, ${plural(model.lanes.length, "lane")}`, level: "good" };
}
