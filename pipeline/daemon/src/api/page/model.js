// This file alone knows the field names of /v1/status and /v1/reconciliations, and the meaning of each state;
// answers.js knows those of the other answers.
// All other files see sources, lanes, stores, tasks and problems as this file makes them.

/** Levels from best to worst. */
export const LEVELS = ["good", "busy", "unsure", "bad"];
const worse = (one, other) => (LEVELS.indexOf(one) >= LEVELS.indexOf(other) ? one : other);

const STATE_LEVELS = {
  current: "good", believed: "good", running: "good", standby: "good", serving: "good",
  lagging: "busy", paused: "busy", replaying: "busy", new: "busy", "getting-ready": "busy", building: "busy",
  none: "good", waiting: "good", midnight: "good", noon: "good", "catch-up": "good", closed: "good",
  unknown: "unsure", passed: "unsure",
  unreachable: "bad", retrying: "bad", stopped: "bad", incomparable: "bad",
};
/** A busy lane lags by less than the first; when it lags by more than the second, a person waits for it. */
const LAG_GOOD_SECONDS = 5;
const LAG_BAD_SECONDS = 60;

const known = (value) => (value === undefined ? null : value);

export function levelOf(state, lag) {
  const level = STATE_LEVELS[state] ?? "unsure";
  if (state !== "lagging") return level;
  if (lag !== null && lag <= LAG_GOOD_SECONDS) return "good";
  return lag !== null && lag > LAG_BAD_SECONDS ? "unsure" : "busy";
}

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
  (view ? { source: known(view.source), by: view.by || null, reason: known(view.reason) } : null);

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
    withdrawn: view.withdrawn_tables ?? 0, owed: view.owed_tables ?? 0,
    unread: (view.owed ?? []).map((one) => ({ table: known(one.table), code: one.code, fault: known(one.fault) })),
    ...trouble(view),
  };
}

const cache = (view) => ({
  key: `cache ${view.cache}`, kind: "cache", name: view.cache, state: view.state,
  level: levelOf(view.state, null), delay: known(view.delay_seconds), documents: null, parked: null, index: null,
  task: `cache/${view.cache}`, ...trouble(view),
});

function search(view) {
  const isSeen = known(view.documents) !== null;
  const state = known(view.code) ? "unreachable" : view.building ? "building" : isSeen ? "serving" : "unknown";
  const parked = known(view.dead_letters);
  const level = parked ? worse("unsure", levelOf(state, null)) : levelOf(state, null);
  return {
    key: `index ${view.projection}`, kind: "index", name: view.projection, state, level, delay: null,
    documents: known(view.documents), parked, index: known(view.index), task: null, ...trouble(view),
  };
}

function programme(view) {
  const day = known(view.day);
  const letters = day ? day.dead_letters : null;
  const level = letters ? worse("unsure", levelOf(view.state, null)) : levelOf(view.state, null);
  const refused = day ? Object.values(day.refused).reduce((sum, members) => sum + members, 0) : null;
  return {
    key: `programme ${view.programme}`, name: view.programme, state: view.state, level, letters, refused,
    day: day?.day ?? null, eligible: day?.eligible ?? null, inFlight: day?.in_flight ?? null,
    granted: day ? day.granted + day.already_granted : null, missed: day?.missed ?? null, ...trouble(view),
  };
}

const task = (view) => ({
  key: `task ${view.task}`, name: view.task, state: view.state, level: levelOf(view.state, null),
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

/** Makes the model of one event of the stream. */
export function read(text) {
  const document = JSON.parse(text);
  const model = {
    name: document.name, version: document.version,
    sources: document.sources.map(source), lanes: document.lanes.map(lane),
    stores: [...document.caches.map(cache), ...document.searches.map(search)],
    programmes: (document.programmes ?? []).map(programme), tasks: document.tasks.map(task),
    leases: (document.leases ?? []).map(lease), busiest: (document.busiest ?? []).map(busyTable),
    certificates: (document.certificates ?? []).map(certificate), drifts: (document.drifts ?? []).map(drift),
  };
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
    if (thing.level !== "bad" && thing.level !== "unsure" && !thing.code) continue;
    const cause = thing.code ?? `${thing.state} ${thing.key.split(" ")[0]}`;
    if (!groups.has(cause)) groups.set(cause, { code: thing.code, level: "good", things: [] });
    const group = groups.get(cause);
    // Observations without an answer, as right after a start, are no problem yet.
    group.level = worse(group.level, thing.code ? worse("unsure", thing.level) : thing.level);
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
  unknown: "is not known yet", lagging: "lags far", serving: "holds rejected documents",
  waiting: "has dead letters", midnight: "has dead letters", noon: "has dead letters", "catch-up": "has dead letters",
  closed: "has dead letters",
};

export function described(problem) {
  // A stopped thing says more than an unreachable one, and a source says more than its lanes.
  const worst = problem.things.find((thing) => thing.state === "stopped") ?? problem.things[0];
  const [kind] = worst.key.split(" ");
  const others = problem.things.length - 1;
  const more = others ? `, and ${plural(others, "more thing")} with it` : "";
  const said = SAID[worst.state] ?? `is ${worst.state}`;
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
  lagging: "It goes on by itself. `anabranch --config FILE status` shows how far it is and what it waits for. " +
    "Runbook: First look.",
};

/** Returns what to do about a problem without a code; an empty text where waiting is all. */
export function steps(problem) {
  const has = (test) => problem.things.some(test);
  if (has((thing) => thing.parked)) return STEPS.rejected;
  if (has((thing) => thing.letters)) return STEPS.letters;
  if (has((thing) => thing.state === "lagging")) return STEPS.lagging;
  return "";
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
