// This file alone knows the field names of /v1/series, /v1/operations and /v1/trace, as model.js knows the status.

const known = (value) => (value === undefined ? null : value);
const list = (value) => (Array.isArray(value) ? value : []);

/** The page's key of a thing (`lane birthday/target/a/0`) from the daemon's name (`lane/birthday/target/a/0`). */
export const keyOf = (thing) => (/^(source|lane|cache)\//.test(thing) ? thing.replace("/", " ") : `task ${thing}`);
export const thingOf = (key) => key.replace(" ", "/");

export const readSeries = (document) => ({
  now: document.now_ms, stepMs: document.step_seconds * 1000, endsAt: document.ends_at_ms,
  series: list(document.series).map((one) => ({ key: keyOf(one.thing), rate: one.rate, lag: one.lag })),
  events: list(document.events).map((one) => ({
    at: one.at_ms, key: keyOf(one.thing), from: one.from, to: one.to, code: known(one.code),
  })),
});

/** Makes one entry of each operation's phases: its begin, its end, or both. The newest comes first. */
export function readOperations(document) {
  const entries = new Map();
  for (const row of list(document.operations)) {
    const entry = entries.get(row.operation) ?? {
      key: row.operation, begunAt: null, endedAt: null, outcome: "begun", before: null, after: null,
    };
    entries.set(row.operation, entry);
    if (row.phase === "begun") entry.begunAt = row.at_ms;
    else Object.assign(entry, { endedAt: row.at_ms, outcome: row.phase });
    Object.assign(entry, {
      who: row.who, via: row.via, host: row.host, version: row.version, command: row.command,
      before: entry.before ?? known(row.before), after: entry.after ?? known(row.after),
    });
  }
  return { now: document.now_ms, operations: [...entries.values()], hasMore: known(document.next) !== null };
}

/** Makes the answer to an action, or to its dry run. */
export const readDone = (document) => ({
  command: document.command, lines: list(document.lines), operation: known(document.operation),
  isRecorded: document.is_recorded === true,
});

/** The bodies of actions, without `dry_run`. */
export const bodies = {
  restart: (task) => ({ action: "restart", task }),
  refresh: (projection, source) => ({ action: "refresh", projection, source, table: null }),
  reconcile: (stores, mode) => ({ action: "reconcile", stores, mode }),
  retry: (projection) => ({ action: "retry-dead-letters", projection }),
  pause: (projection, source, reason) => ({ action: "pause", projection, source, reason }),
  resume: (projection, source) => ({ action: "resume", projection, source }),
};

const change = (view) => ({
  source: view.source, table: view.table, kind: view.kind, position: view.position, sequence: known(view.sequence),
  // 0 means an unknown time.
  committedAt: view.committed_at_us ? view.committed_at_us / 1000 : null,
});

const searched = (view) => ({ messages: view.messages, isWhole: view.is_whole === true, unread: list(view.unread) });

const tracedStore = (view) => ({
  projection: view.projection, target: view.target, verdict: view.verdict, why: known(view.why),
  rows: list(view.rows).map((row) => ({
    table: row.table, sourceTable: row.source_table, position: known(row.position), isClaimed: known(row.is_claimed),
  })),
});

const tracedCache = (view) => ({
  name: view.cache, state: view.state, age: known(view.age_seconds), differs: known(view.differs),
});

export const readTrace = (document) => ({
  hash: document.key_hash, entity: document.entity, also: list(document.also), sentence: document.sentence,
  sourceRows: list(document.source_rows).map((row) => ({
    source: row.source, table: row.table, claims: list(row.claims), excluded: list(row.excluded),
    fields: Object.entries(row.fields ?? {}),
  })),
  unread: list(document.unread),
  lastChange: document.last_change ? change(document.last_change) : null,
  searched: document.searched ? searched(document.searched) : null,
  stores: list(document.stores).map(tracedStore),
  lanes: list(document.lanes).map((view) => ({
    lane: view.lane, position: known(view.position), lag: known(view.lag_seconds), state: view.state,
    code: known(view.code),
  })),
  cache: document.cache ? tracedCache(document.cache) : null,
  documents: list(document.documents),
});
