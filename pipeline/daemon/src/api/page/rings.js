// Holds the points of all charts: hours from the daemon's ring, and the last minutes of this tab, a point a second.

import { daemonTime } from "/page/time.js";

/** Points of this tab. They fill the time from the ring's end until now, and five minutes where there is no ring. */
const LIVE_POINTS = 300;
/** Shortest time that a chart shows. */
const SPAN_MIN_SECONDS = 60;

const times = new Float64Array(LIVE_POINTS).fill(NaN);
const live = new Map();
const kept = new Map();
let next = 0;
let span = null;

const ring = () => ({
  rate: new Float32Array(LIVE_POINTS).fill(NaN), lag: new Float32Array(LIVE_POINTS).fill(NaN),
});

function put(key, rate, lag) {
  if (!live.has(key)) live.set(key, ring());
  const of = live.get(key);
  of.rate[next] = rate ?? NaN;
  of.lag[next] = lag ?? NaN;
}

/** Adds this second's rates and lags. */
export function note(model) {
  times[next] = performance.now();
  for (const thing of model.sources) put(thing.key, thing.rate, thing.lag);
  for (const thing of model.lanes) put(thing.key, thing.rate, thing.lag);
  next = (next + 1) % LIVE_POINTS;
}

/** Adds a gap for the seconds without a connection. */
export function noteGap() {
  times[next] = performance.now();
  for (const key of live.keys()) put(key, null, null);
  next = (next + 1) % LIVE_POINTS;
}

/** Takes in the daemon's ring, or the part of it that was asked for. */
export function merge(answer) {
  for (const { key, rate, lag } of answer.series) {
    kept.set(key, { rate, lag, stepMs: answer.stepMs, endsAt: answer.endsAt });
  }
  // All charts show the same time, as far back as any thing has a point, so that they can be compared.
  let oldest = 0;
  for (const of of kept.values()) {
    const first = of.rate.findIndex((rate, place) => rate !== null || of.lag[place] !== null);
    if (first >= 0) oldest = Math.max(oldest, ((of.rate.length - first) * of.stepMs) / 1000);
  }
  span = oldest > 0 ? Math.max(oldest, SPAN_MIN_SECONDS) : null;
}

export const isKept = (key) => kept.has(key);

/** Returns the time that each chart shows. */
export function spanSeconds() {
  if (span !== null) return span;
  const now = performance.now();
  const oldest = times.reduce((least, time) => (Number.isNaN(time) ? least : Math.min(least, time)), now);
  return Math.max((now - oldest) / 1000, SPAN_MIN_SECONDS);
}

const number = (value) => (value === null || Number.isNaN(value) ? null : value);

/** Returns the points of a thing, the oldest first: age in seconds, rate and lag (null = not known). */
export function points(key) {
  const now = performance.now();
  const today = daemonTime(now);
  const made = [];
  const of = kept.get(key);
  let youngest = Infinity;
  if (of && today !== null) {
    const ageOf = (place) => (today - of.endsAt + (of.rate.length - 1 - place) * of.stepMs) / 1000;
    of.rate.forEach((rate, place) => made.push({ age: ageOf(place), rate: number(rate), lag: number(of.lag[place]) }));
    youngest = ageOf(of.rate.length - 1);
  }
  const own = live.get(key);
  for (let step = 0; own && step < LIVE_POINTS; step += 1) {
    const place = (next + step) % LIVE_POINTS;
    const age = (now - times[place]) / 1000;
    if (age < youngest) made.push({ age, rate: number(own.rate[place]), lag: number(own.lag[place]) });
  }
  return made;
}
