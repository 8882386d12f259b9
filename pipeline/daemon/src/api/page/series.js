// Asks the daemon for the points of the last hours, and for the changes of state that it has kept.

import { readSeries, thingOf } from "/page/answers.js";
import { mergeChanges, show as showChanges } from "/page/changes.js";
import { merge } from "/page/rings.js";
import { ask } from "/page/stream.js";
import { noteTime } from "/page/time.js";

const INTERVAL_MS = 60000;
/** With more sources and lanes than this, only those are asked for that the page shows a chart of. */
const WHOLE_MAX = 100;
/** Things that are asked for in one turn, at most. */
const ASKED_MAX = 40;

let isServed = true;
/** Things that the daemon's ring does not hold. */
const missing = new Set();

async function read(path) {
  const answer = readSeries(await ask(path));
  noteTime(answer.now);
  merge(answer);
  mergeChanges(answer.events);
}

/** Asks for one thing; a failure leaves the points that are known. */
export async function readOne(key) {
  if (!isServed || missing.has(key)) return;
  try {
    await read(`/v1/series?thing=${encodeURIComponent(thingOf(key))}`);
  } catch (error) {
    if (error.status === 404) missing.add(key);
  }
}

/** Asks again and again. `keys()` returns the number of all things and the keys of those whose charts are shown. */
export async function watchSeries(keys) {
  const { number, charts } = keys();
  if (!document.hidden) {
    try {
      if (number <= WHOLE_MAX) await read("/v1/series");
      else for (const key of charts.slice(0, ASKED_MAX)) await readOne(key);
    } catch (error) {
      // A daemon of an older version has no such path: the charts show this tab's minutes.
      if (error.status === 404) isServed = false;
    }
    showChanges();
  }
  if (isServed) setTimeout(() => watchSeries(keys), INTERVAL_MS);
}
