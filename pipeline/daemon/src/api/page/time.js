// Keeps the daemon's time. Every answer with `now_ms` sets it, because a browser's clock may be a day off.

let offset = null;

export const noteTime = (nowMs) => {
  if (Number.isFinite(nowMs)) offset = nowMs - performance.now();
};

/** Returns the daemon's time at a reading of `performance.now()`; null before the first answer with a time. */
export const daemonTime = (at = performance.now()) => (offset === null ? null : at + offset);

/** Writes a time of the daemon in UTC, with its day when that is another one than the daemon's today. */
export function stamp(ms) {
  if (ms === null) return "–";
  const text = new Date(ms).toISOString();
  const today = new Date(daemonTime() ?? ms).toISOString().slice(0, 10);
  return text.slice(0, 10) === today ? text.slice(11, 19) : `${text.slice(5, 10)} ${text.slice(11, 19)}`;
}
