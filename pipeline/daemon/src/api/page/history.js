// Reads the history of reconciliations again and again, and shows the calendar, the reports of a day, and what is under
// way.

import { calendar, reports, underway } from "/page/calendar.js";
import { byId, day, duration, say } from "/page/elements.js";
import { plural, readHistory } from "/page/model.js";
import { notePace, paceOf } from "/page/pace.js";
import { ask } from "/page/stream.js";
import { noteTime } from "/page/time.js";

const INTERVAL_MS = 10000;
const PAGES_MAX = 5;
/** Time between two reads of the whole history, since the daemon verifies old reports every two minutes. */
const WHOLE_MS = 120000;

let history = null;
let wholeAt = -Infinity;
let chosen = null;

/** Returns the history as it was read last; null before the first read. */
export const lastHistory = () => history;

async function readAll() {
  const page = readHistory(await ask("/v1/reconciliations"));
  noteTime(page.now);
  const oldest = page.past.at(-1)?.number ?? 0;
  const isWhole = history && history.readAt !== null && !history.code && history.unread === 0;
  if (isWhole && performance.now() - wholeAt < WHOLE_MS) {
    page.past.push(...history.past.filter((one) => one.number < oldest));
    return page;
  }
  let next = page.next;
  for (let pages = 1; next !== null && pages < PAGES_MAX; pages += 1) {
    const more = readHistory(await ask(`/v1/reconciliations?before=${next}`));
    page.past.push(...more.past);
    next = more.next;
  }
  wholeAt = performance.now();
  return page;
}

/** Returns the text whose change makes the calendar anew. */
const signOf = (one) => JSON.stringify([one?.past, one?.older, one?.unread]);

/** Reads and shows the history until the page is closed; `also()` is called each time too. */
export async function watchHistory(also) {
  try {
    if (!document.hidden || history === null) {
      const before = signOf(history);
      history = await readAll();
      await notePace(history);
      say(byId("history-said"), said());
      byId("underway").replaceChildren(...underway(history, paceOf));
      if (signOf(history) !== before) putPast();
      also();
    }
  } catch (error) {
    say(byId("history-said"), `The history cannot be read: ${error.message}.`);
  }
  setTimeout(() => watchHistory(also), INTERVAL_MS);
}

function said() {
  const signed = history.isSigned ? "" : " Reports are unsigned: reconcile.signing_key is not set.";
  if (history.code) return `The history cannot be read now [${history.code}]; what is shown may be old.`;
  const [last] = history.past;
  if (!last) return "No reconciliation has ended yet. anabranch reconcile --now runs one.";
  const ago = duration(Math.max(0, history.now - last.endedAt) / 1000);
  return `${plural(history.past.length, "reconciliation")}; the last one ended ${ago} ago: ${last.verdict}, ${last.seal}.${signed}`;
}

function putPast() {
  const [last] = history.past;
  const key = chosen ?? (last ? day(last.endedAt) : null);
  const place = byId("calendar");
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.day : null;
  const isNew = !place.firstChild;
  place.replaceChildren(...(last ? [calendar(history, key, choose)] : []));
  if (isNew) place.scrollLeft = place.scrollWidth;
  byId("reports").replaceChildren(...reports(history, key));
  if (focused) [...place.querySelectorAll("button")].find((one) => one.dataset.day === focused)?.focus();
}

function choose(key) {
  const { scrollLeft } = byId("calendar");
  chosen = key;
  putPast();
  byId("calendar").scrollLeft = scrollLeft;
  byId("calendar").querySelector('[aria-pressed="true"]')?.focus();
}
