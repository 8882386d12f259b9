// The list of changes of state: those that the daemon has kept, and those that this tab saw since.

import { badge, byId, make } from "/page/elements.js";
import { everything, isCalm, levelOf } from "/page/model.js";
import { daemonTime, stamp } from "/page/time.js";

const KEPT_MAX = 200;
/** The daemon and this tab may see the same change as far apart as this. */
const SAME_MS = 15000;

/** The source, lane or cache itself shows the states of these tasks. */
const TASKS_OF_THINGS = /^task (reader|lane|cache)\//;

const states = new Map();
let own = [];
let heard = [];

const written = (state, code) => (code ? `${state} [${code}]` : state);

/** Takes in the states of this second, and shows their changes. */
export function noteChanges(model) {
  let isNew = false;
  for (const thing of everything(model)) {
    if (TASKS_OF_THINGS.test(thing.key)) continue;
    const before = states.get(thing.key);
    const now = written(thing.state, thing.code);
    if (before?.text === now) continue;
    states.set(thing.key, { text: now, state: thing.state });
    if (before === undefined ? thing.level !== "bad" : isCalm(before.state, thing.state)) continue;
    const text = before === undefined ? `${thing.key}: ${now}` : `${thing.key}: ${before.text} → ${now}`;
    add({ level: thing.level, text, key: thing.key, to: thing.state });
    isNew = true;
  }
  if (isNew) show();
}

/** Adds an event of this tab, such as a lost connection. */
export function noteEvent(level, text) {
  add({ level, text, key: null, to: null });
  show();
}

function add(event) {
  own.unshift({ ...event, seenAt: performance.now() });
  own = own.slice(0, KEPT_MAX);
}

/** Takes in the changes that the daemon has kept. */
export function mergeChanges(events) {
  const shown = events.filter((event) => !isCalm(event.from, event.to));
  heard = shown.slice(-KEPT_MAX).map((event) => ({
    at: event.at, level: levelOf(event.to, null), key: event.key, to: event.to,
    text: `${event.key}: ${event.from} → ${written(event.to, event.code)}`,
  }));
  show();
}

function merged() {
  const timed = own.map((event) => ({ ...event, at: daemonTime(event.seenAt) }));
  const isHeard = (event) => event.key !== null && event.at !== null && heard.some((one) =>
    one.key === event.key && one.to === event.to && Math.abs(one.at - event.at) < SAME_MS);
  const all = [...timed.filter((event) => !isHeard(event)), ...heard];
  return all.sort((one, other) => (other.at ?? Infinity) - (one.at ?? Infinity)).slice(0, KEPT_MAX);
}

/** Shows the list anew; it changes some times an hour. */
export function show() {
  byId("events").replaceChildren(...merged().map((event) => make("li", {},
    make("time", { datetime: event.at === null ? null : new Date(event.at).toISOString() }, stamp(event.at)),
    badge(event.text, event.level))));
}
