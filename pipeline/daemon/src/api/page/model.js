// This file alone knows the field names of /v1/status and /v1/reconciliations, and the meaning of each state;
// answers.js knows those of the other answers.
// All other files see sources, lanes, stores, tasks and problems as this file makes them.

import { ALERTS } from "/page/alerts.js";
import { duration } from "/page/elements.js";

/** Levels from best to worst. */
export const LEVELS = ["good", "busy", "unsure", "bad"];
export const worse = (one, other) => (LEVELS.indexOf(one) >= LEVELS.indexOf(other) ? one : other);

const STATE_LEVELS = {
  current: "good", believed: "good", running: "good", standby: "good", serving: "good",
  lagging: "busy", paused: "busy", replaying: "busy", new: "busy", "getting-ready": "busy", building: "busy",
  none: "good", waiting: "good", midnight: "good", noon: "good", "catch-up": "good", closed: "good",
  unknown: ALERTS.AnabranchLagUnknown.level, passed: ALERTS.AnabranchCachePassed.level,
  unreachable: ALERTS.AnabranchServerUnreachable.level, retrying: ALERTS.AnabranchTaskRetrying.level,
  stopped: ALERTS.AnabranchTaskStopped.level, incomparable: "bad",
};
/** A busy lane lags by less. */
const LAG_GOOD_SECONDS = 5;
/** Codes of tasks that alerts watch beside their states. */
const ALERTS_OF_CODES = {
  "coupon-system-unreachable": ALERTS.AnabranchCouponSystemAway,
  "coupon-ledger-restored": ALERTS.AnabranchCouponLedgerRestored,
  "log-count-violated": ALERTS.AnabranchChangesUnaccounted,
};

const known = (value) => (value === undefined ? null : value);

export function levelOf(state, lag) {
  const level = STATE_LEVELS[state] ?? "unsure";
  if (isLate(lag)) return worse(level, ALERTS.AnabranchLaneLag.level);
  return state === "lagging" && lag !== null && lag <= LAG_GOOD_SECONDS ? "good" : level;
}

/** Returns whether the alerts on the lag of readers and lanes, which have one limit, watch such a lag. */
const isLate = (lag) => known(lag) !== null && lag > ALERTS.AnabranchLaneLag.limit;

/** The state as the page shows it: a backlog of a few seconds is none that a person has to know. */
const shownState = (view) =>
  (view.state === "lagging" && levelOf(view.state, known(view.lag_seconds)) === "good" ? "current" : view.state);

const trouble = (view) => ({ code: known(view.code), fault: known(view.fault) });

function source(view) {
  const lag = known(view.lag_seconds);
  return {
    key: `source ${view.source}`, name: view.source, state: shownState(view), level: levelOf(view.state, lag), lag,
    bytesPerSecond: known(view.binlog_bytes_per_second), messagesPerSecond: known(view.messages_per_second),
    rate: known(view.binlog_bytes_per_second), task: `reader/${view.source}`, head: known(view.head),
    position: known(view.position), messages: view.sequence, purgeLeft: known(view.binlog_purge_seconds),
    streamBytes: known(view.stream_bytes), streamBytesMax: known(view.stream_bytes_max), ...trouble(view),
  };
}

/** Without a token, the operator and the reason are left out. */
const pause = (view) =>
  (view ? { source: known(view.source), since: view.since_ms, by: view.by || null, reason: known(view.reason) } : null);

function lane(view) {
  const lag = known(view.lag_seconds);
  return {
    key: `lane ${view.projection}/${view.target}/${view.source}/${view.lane}`,
    name: `${view.projection}/${view.target}/${view.source}/${view.lane}`,
    store: `${view.projection} on ${view.target}`, projection: view.projection, target: view.target,
    source: view.source, state: shownState(view), level: levelOf(view.state, lag), lag, feed: known(view.feed),
    position: known(view.position), rows: view.rows, rowsPerSecond: known(view.rows_per_second),
    rate: known(view.rows_per_second), pause: pause(view.pause),
    task: `lane/${view.projection}/${view.target}/${view.source}/${view.lane}`,
    refreshed: known(view.refreshed_rows), refreshRows: known(view.refresh_rows),
    refreshLeft: known(view.refresh_seconds_left), pausedLeft: known(view.paused_seconds_left),
    withdrawn: view.withdrawn_tables ?? 0, owed: view.owed_tables ?? 0, direct: known(view.direct_seconds),
    owedFor: known(view.owed_seconds), withdrawnFor: known(view.withdrawn_seconds),
    unread: (view.owed ?? []).map((one) => ({ table: known(one.table), code: one.code, fault: known(one.fault) })),
    ...trouble(view),
  };
}

const cache = (hits) => (view) => ({
  key: `cache ${view.cache}`, kind: "cache", name: view.cache, state: view.state, hits, tombstones: null,
  level: levelOf(view.state, null), delay: known(view.delay_seconds), documents: null, parked: null, index: null,
  task: `cache/${view.cache}`, ...trouble(view),
});

function search(view) {
  const isSeen = known(view.documents) !== null;
  const state = known(view.code) ? "unreachable" : view.building ? "building" : isSeen ? "serving" : "unknown";
  const parked = known(view.dead_letters);
  const isParked = parked > ALERTS.AnabranchDocumentsRejected.limit;
  const level = worse(isParked ? ALERTS.AnabranchDocumentsRejected.level : "good", levelOf(state, null));
  return {
    key: `index ${view.projection}`, kind: "index", name: view.projection, state, level, delay: null, hits: null,
    documents: known(view.documents), tombstones: known(view.tombstones), parked, index: known(view.index), task: null,
    ...trouble(view),
  };
}

/** Returns what alerts say of a programme's newest day at `now`, which is null while the daemon's time is not known. */
function alertsOfDay(name, day, now) {
  const found = [];
  const add = (alert, text, level = ALERTS[alert].level) => found.push({ alert, text, level });
  const since = (at) => (now === null || at === undefined || at === null ? null : now / 1000 - at);
  const { limit, unfrozen } = ALERTS.AnabranchCouponDayLate;
  const age = since(day.starts_at);
  if (age > limit) {
    add("AnabranchCouponDayLate", `No coupon day of ${name} has begun since ${day.day}, ${duration(age)} ago`);
  } else if (day.frozen === 0 && age > unfrozen) {
    add("AnabranchCouponDayLate", `The coupon day ${day.day} of ${name} has frozen nothing for ${duration(age)}`);
  }
  if (day.missed > ALERTS.AnabranchCouponsMissed.limit && day.frozen >= 2) {
    const frozenFor = since(day.frozen_at[1]);
    const isFirst = frozenFor !== null && frozenFor < ALERTS.AnabranchCouponsMissed.lasts;
    add("AnabranchCouponsMissed", `The coupon of ${day.day} of ${name} has not reached ${plural(day.missed, "member")}`,
      isFirst ? "unsure" : ALERTS.AnabranchCouponsMissed.level);
  }
  if (day.dead_letters > ALERTS.AnabranchCouponLetters.limit) {
    add("AnabranchCouponLetters", `${plural(day.dead_letters, "coupon")} of ${name} could not be granted`);
  }
  const open = since(day.oldest_open_at);
  if (open > ALERTS.AnabranchCouponDayOpen.limit) {
    add("AnabranchCouponDayOpen", `A coupon day of ${name} has been open for ${duration(open)}`);
  }
  return found;
}

/** `ownLevel` is that of the state; `level` has the alerts of the day too. */
const programme = (now) => (view) => {
  const day = known(view.day);
  const letters = day ? day.dead_letters : null;
  const alerts = day ? alertsOfDay(view.programme, day, now) : [];
  const ownLevel = levelOf(view.state, null);
  const level = alerts.reduce((worst, one) => worse(worst, one.level), ownLevel);
  const refused = day ? Object.values(day.refused).reduce((sum, members) => sum + members, 0) : null;
  return {
    key: `programme ${view.programme}`, name: view.programme, state: view.state, level, ownLevel, alerts, letters, refused,
    day: day?.day ?? null, eligible: day?.eligible ?? null, inFlight: day?.in_flight ?? null,
    granted: day ? day.granted + day.already_granted : null, missed: day?.missed ?? null, ...trouble(view),
  };
};

function levelOfTask(view) {
  const level = levelOf(view.state, null);
  const alert = ALERTS_OF_CODES[view.code];
  return alert && (view.down_seconds ?? 0) >= (alert.over ?? 0) ? worse(level, alert.level) : level;
}

/** Returns a function that makes a thing as bad as the alert on a server that has not answered for long. */
function raisedBy(unanswered) {
  const isDown = (one) => one.seconds > ALERTS.AnabranchServerDown.lasts;
  const down = new Set(unanswered.filter(isDown).map((one) => `${one.dependency} ${one.name}`));
  return (thing, servers) => (servers.some((server) => down.has(server))
    ? { ...thing, level: worse(thing.level, ALERTS.AnabranchServerDown.level) } : thing);
}

const task = (view) => ({
  key: `task ${view.task}`, name: view.task, state: view.state, level: levelOfTask(view),
  task: view.task, waitsFor: known(view.waits_for), down: known(view.down_seconds), isLasting: view.lasting,
  ...trouble(view),
});

const lease = (view) => ({
  key: view.lease, name: view.lease, holder: known(view.holder), isHere: view.is_here === true,
});

const busyTable = (view) => ({
  key: `${view.source} ${view.table}`, source: view.source, name: view.table, changesPerMinute: view.changes_per_minute,
});

const certificate = (view) => ({ name: `${view.dependency} ${view.name}`, endsAt: view.ends_at_ms });

const drift = (view) => ({ store: view.store, source: view.source, rows: view.rows });

/** Returns the share of codes that lookups of this process found in the cache; null before the first lookup. */
function hitShare({ lookups } = {}) {
  const codes = lookups ? lookups.hits + lookups.misses + lookups.bypassed : 0;
  return codes ? lookups.hits / codes : null;
}

const connections = (view) => ({
  server: `${view.dependency} ${view.name}`, inUse: view.in_use, max: view.max, waiting: view.waiting,
});

/** Makes the model of one event of the stream. `now` is the daemon's time, or null. */
export function read(text, now) {
  const document = JSON.parse(text);
  const raised = raisedBy(document.unanswered ?? []);
  const model = {
    name: document.name, version: document.version, refusals: document.refusals ?? [],
    sources: document.sources.map(source).map((one) => raised(one, [`source ${one.name}`, "log log"])),
    lanes: document.lanes.map(lane).map((one) => raised(one, [`target ${one.target}`])),
    stores: [...document.caches.map(cache(hitShare(document.load))), ...document.searches.map(search)],
    connections: (document.load?.connections ?? []).map(connections),
    programmes: (document.programmes ?? []).map(programme(now)), tasks: document.tasks.map(task),
    leases: (document.leases ?? []).map(lease), busiest: (document.busiest ?? []).map(busyTable),
    certificates: (document.certificates ?? []).map(certificate), drifts: (document.drifts ?? []).map(drift),
  };
  const pauses = new Map(model.lanes.map((one) => [one.task, one.pause]));
  for (const one of model.tasks) one.pause = pauses.get(one.task) ?? null;
  model.problems = problems(model);
  return model;
}

export const everything = (model) => [
  ...model.sources, ...model.lanes, ...model.stores, ...model.programmes, ...model.tasks,
];

/** Returns the problems, the worst first. One cause often shows in many things, so a code makes one problem. */
function problems(model) {
  const groups = new Map();
  for (const thing of everything(model)) {
    const level = thing.ownLevel ?? thing.level;
    if (level !== "bad" && level !== "unsure" && !thing.code) continue;
    const cause = thing.code ?? `${isLate(thing.lag) ? "late" : thing.state} ${thing.key.split(" ")[0]}`;
    if (!groups.has(cause)) groups.set(cause, { code: thing.code, level: "good", things: [] });
    const group = groups.get(cause);
    // Observations without an answer, as right after a start, are no problem yet.
    group.level = worse(group.level, thing.code ? worse("unsure", level) : level);
    group.things.push(thing);
  }
  const rank = (group) => {
    const isStopped = group.things.some((thing) => thing.state === "stopped");
    return (isStopped ? 100 : 0) + LEVELS.indexOf(group.level) * 10 + (group.code ? 1 : 0);
  };
  return [...groups.values()].sort((one, other) => rank(other) - rank(one) || other.things.length - one.things.length);
}

const SAID = {
  stopped: "has stopped and waits for an operator", retrying: "fails and is tried again",
  unreachable: "cannot be reached",
  incomparable: "does not fit its log any more", passed: "is not known to be current, so lookups bypass it",
  unknown: "is not known yet", serving: "holds rejected documents",
};

export function described(problem) {
  // A stopped thing says more than an unreachable one, and a source says more than its lanes.
  const worst = problem.things.find((thing) => thing.state === "stopped") ?? problem.things[0];
  const [kind] = worst.key.split(" ");
  const others = problem.things.length - 1;
  const more = others ? `, and ${plural(others, "more thing")} with it` : "";
  const isLagging = !worst.code && isLate(worst.lag);
  const said = isLagging ? `is ${duration(worst.lag)} behind` : SAID[worst.state] ?? `is ${worst.state}`;
  return `${kind[0].toUpperCase()}${kind.slice(1)} ${worst.name} ${said}${more}`;
}

/** What to do about a problem that has no code: the steps of the runbook's section of this name, and its commands. */
const STEPS = {
  rejected: "The other documents go on; these are stale. `anabranch --config FILE dead-letters list` shows them with " +
    "the server's reason, and `anabranch --config FILE dead-letters retry` applies them again once the cause is removed. " +
    "Runbook: Documents that an index rejects.",
  letters: "The other users go on. `anabranch --config FILE dispatch letters list` shows them, and " +
    "`anabranch --config FILE dispatch letters requeue KEY` sends one again once the cause is removed. " +
    "Runbook: Coupons that could not be granted.",
  late: "It cannot wait: what the stores say is as old. `anabranch --config FILE status` shows how far it is and what " +
    "it waits for. Runbook: First look.",
};

/** Returns what to do about dead letters. */
export const stepsOfLetters = () => ` ${STEPS.letters}`;

/** Returns what to do about a problem without a code; an empty text where waiting is all. */
export function steps(problem) {
  const has = (test) => problem.things.some(test);
  if (has((thing) => thing.parked)) return STEPS.rejected;
  if (has((thing) => isLate(thing.lag))) return STEPS.late;
  return "";
}

/** Returns the heading of the runbook on a problem: its code, or the heading of its alert. */
export function headingOf(problem) {
  if (problem.code) return problem.code;
  const isParked = problem.things.some((thing) => thing.parked);
  return isParked ? ALERTS.AnabranchDocumentsRejected.runbook : ALERTS.AnabranchLaneLag.runbook;
}

/** Returns the daemon's own remedy, which it sends only to a client with a token; null without one. */
export function remedy(problem) {
  const fault = problem.things.map((thing) => thing.fault).find((text) => text);
  return fault ?? null;
}

/** Returns whether a change between two states is daily life, which no list of changes shows. */
export const isCalm = (one, other) => [one, other].every((state) => state === "current" || state === "lagging");

/** Returns the names that a reconciliation knows: projections and caches. */
export const storeNames = (model) => [
  ...projections(model), ...model.stores.filter((one) => one.kind === "cache").map((one) => `cache/${one.name}`),
];

export const projections = (model) => [...new Set(model.lanes.map((lane) => lane.projection))];

export const plural = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

// The functions below read the history of reconciliations.

export const VERDICT_LEVELS = { clean: "good", repaired: "busy", incomplete: "unsure", failed: "bad" };

const store = (view) => ({
  name: view.store, verdict: view.verdict, level: VERDICT_LEVELS[view.verdict] ?? "unsure", tables: view.tables,
  sourceRows: view.rows_source, derivedRows: view.rows_derived, expectedRows: view.rows_expected,
  lookedAt: view.candidates, drifted: view.drifted, repaired: view.repaired, confirmed: view.confirmed,
  left: view.left, again: view.again, foreign: view.foreign_rows, isGateClosed: view.is_gate_closed,
  reasonsCount: view.reasons_count, reasons: view.reasons, seconds: view.seconds,
});

const past = (isSigned) => (view) => {
  const isBroken = view.seal !== "whole";
  const level = VERDICT_LEVELS[view.verdict] ?? "unsure";
  return {
    number: view.number, id: view.id, begunAt: known(view.begun_at_ms), endedAt: view.ended_at_ms,
    verdict: view.verdict, level: isBroken ? "bad" : level, isBroken,
    seal: isBroken ? `seal ${view.seal}` : isSigned ? "seal whole" : "unsigned", mode: known(view.mode),
    isWhole: known(view.is_whole), stores: view.stores.map(store),
  };
};

/** Makes the model of one page of the history. */
export const readHistory = (document) => ({
  now: document.now_ms, readAt: known(document.read_at_ms), code: known(document.code), isSigned: document.is_signed,
  next: known(document.next), older: document.older ?? 0, unread: known(document.unread),
  past: document.reconciliations.map(past(document.is_signed)),
  underway: document.underway.map((view) => ({
    id: view.id, command: view.command, begunAt: view.begun_at_ms, windows: view.windows, share: view.share,
    done: view.done.map(store), current: view.current ? store(view.current) : null,
  })),
});

/** Returns the text of a problem document. */
export const problemText = (document) => `${document.detail}; ${document.remedy}`;
