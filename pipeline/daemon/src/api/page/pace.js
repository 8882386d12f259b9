// Measures how fast a reconciliation under way goes, from what the history said of it before.

import { ask } from "/page/stream.js";

/** Time over which the pace is measured; the figures grow with each finished part of a table. */
const MEASURED_MS = 120000;
/**
 * Series of the daemon's metrics that is 1 while a reconciliation of its process waits for busy servers. No other
 * daemon knows it: a run writes its checkpoint after each unit of tables, and waiting reads keep a unit from its end.
 */
const HELD = /^anabranch_reconcile_held 1$/m;

const seen = new Map();
const held = new Set();

const rowsOf = (store) => (store ? store.sourceRows + store.derivedRows : 0);
const allRows = (one) => one.done.reduce((sum, store) => sum + rowsOf(store), rowsOf(one.current));

/** Takes in a history. It asks the metrics only when a reconciliation has read nothing since the last time. */
export async function notePace(history) {
  const ids = new Set(history.underway.map((one) => one.id));
  for (const id of [...seen.keys()]) if (!ids.has(id)) seen.delete(id);
  held.clear();
  for (const one of history.underway) {
    const points = seen.get(one.id) ?? [];
    const point = { at: history.now, rows: allRows(one), share: one.share, store: one.current?.name ?? null };
    const isStill = points.length > 0 && points.at(-1).rows === point.rows;
    points.push(point);
    while (points.length > 2 && point.at - points[0].at > MEASURED_MS) points.shift();
    seen.set(one.id, points);
    if (isStill && HELD.test(await ask("/metrics").catch(() => ""))) held.add(one.id);
  }
}

/** Returns rows a second, and the seconds that the store under way needs if it goes on so; null = not known. */
export function paceOf(one) {
  const points = seen.get(one.id) ?? [];
  const [first, last] = [points[0], points.at(-1)];
  const seconds = points.length > 1 ? (last.at - first.at) / 1000 : 0;
  if (seconds <= 0) return { isHeld: held.has(one.id), rowsPerSecond: null, secondsLeft: null, seconds };
  const sameStore = points.find((point) => point.store === last.store);
  const share = last.share - sameStore.share;
  const shareSeconds = (last.at - sameStore.at) / 1000;
  const secondsLeft = share > 0 ? ((1 - last.share) / share) * shareSeconds : null;
  return { isHeld: held.has(one.id), rowsPerSecond: (last.rows - first.rows) / seconds, secondsLeft, seconds };
}
