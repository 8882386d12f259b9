// Puts the page together: each event becomes a model, and the model becomes the elements of the page.

import { calendar, reports, underway } from "/page/calendar.js";
import { drawing } from "/page/drawing.js";
import { badge, byId, clock, duration, make, say } from "/page/elements.js";
import { everything, plural, read, readHistory, remedy, sentence, told } from "/page/model.js";
import { section } from "/page/runbook.js";
import { ask, follow } from "/page/stream.js";
import * as tables from "/page/tables.js";

const EVENTS_MAX = 200;
/** Age from which the shown data is old: two events are missing. */
const OLD_AFTER_MS = 2500;
const HISTORY_INTERVAL_MS = 10000;
const HISTORY_PAGES_MAX = 5;
/** Time between two reads of the whole history, since the daemon verifies old reports every two minutes. */
const HISTORY_WHOLE_MS = 120000;

const states = new Map();
let seenAt = null;
let seenClock = null;
let why = "the daemon has not answered yet";
let history = null;
let wholeAt = -Infinity;
let chosen = null;
let shownCode = null;

/** Replaces the content of an element; focus and scroll position stay with the element. */
const put = (id, ...children) => byId(id).replaceChildren(...children);

function show(text) {
  const model = read(text);
  seenAt = performance.now();
  seenClock = new Date();
  say(byId("name"), model.name);
  say(byId("version"), model.version);
  tables.note(model);
  noteChanges(model);
  showVerdict(model);
  showAge();
  if (document.hidden) return;
  put("drawing", drawing(model));
  put("sources", tables.sources(model));
  put("lanes", tables.lanes(model));
  put("tasks", tables.tasks(model));
  byId("stores-section").hidden = model.stores.length === 0;
  put("stores", tables.stores(model));
  byId("programmes-section").hidden = model.programmes.length === 0;
  put("programmes", tables.programmes(model));
}

function showVerdict(model) {
  const top = sentence(model, history);
  byId("verdict").className = `verdict ${top.level}`;
  say(byId("sentence"), top.text);
  document.title = `${top.level === "good" ? "" : "● "}${top.text} – Anabranch`;
  const code = top.problem?.code ?? null;
  const text = top.problem ? remedy(top.problem) ?? advice(top.problem) : "";
  if (byId("action").textContent !== `${code ?? ""}${text}`) {
    put("action", ...(code ? [make("code", {}, code)] : []), text);
  }
  const others = model.problems.slice(1).map((problem) =>
    make("li", {}, badge(problem.code ?? "no code", problem.level), ` ${told(problem)}`));
  put("others", ...(others.length ? [make("ul", {}, ...others)] : []));
  showRunbook(code);
}

/** Returns general advice. Without a token the fault's own text is missing; the runbook has the remedy. */
function advice(problem) {
  if (!problem.code) return "";
  const isStopped = problem.things.some((thing) => thing.state === "stopped");
  return isStopped
    ? " It stays stopped until an operator restarts it: the runbook's text below says how."
    : " Anabranch tries again by itself. If the fault lasts, the runbook's text below says what to do.";
}

async function showRunbook(code) {
  if (code === shownCode) return;
  shownCode = code;
  byId("runbook").hidden = code === null;
  if (code === null) return;
  say(byId("runbook-title"), `The runbook's section on ${code}`);
  try {
    put("runbook-text", ...await section(code));
  } catch (error) {
    put("runbook-text", make("p", {}, `It could not be read: ${error.message}`));
    shownCode = null;
  }
}

function noteChanges(model) {
  for (const thing of everything(model)) {
    const before = states.get(thing.key);
    const now = thing.code ? `${thing.state} [${thing.code}]` : thing.state;
    states.set(thing.key, now);
    if (before === undefined ? thing.level !== "bad" : before === now) continue;
    const calm = ["current", "behind"];
    if (calm.includes(before) && calm.includes(now)) continue;
    addEvent(thing.level, before === undefined ? `${thing.key}: ${now}` : `${thing.key}: ${before} → ${now}`);
  }
}

function addEvent(level, text) {
  const now = new Date();
  const list = byId("events");
  list.prepend(make("li", {}, make("time", { datetime: now.toISOString() }, clock(now)), badge(text, level)));
  while (list.children.length > EVENTS_MAX) list.lastElementChild.remove();
}

/** Says within five seconds of the last event that the shown data is old. */
function showAge() {
  const age = seenAt === null ? Infinity : performance.now() - seenAt;
  const isOld = age > OLD_AFTER_MS;
  const stale = byId("stale");
  if (isOld && seenAt !== null) {
    if (stale.hidden) {
      addEvent("unsure", `connection lost: ${why}`);
      tables.noteGap();
      say(stale, `Old data, of ${clock(seenClock)}: the connection is lost. The page connects again by itself.`);
    }
    say(byId("link"), `old data for ${duration(age / 1000)}: ${why}`);
  } else {
    if (!stale.hidden) addEvent("good", "connected again");
    say(byId("link"), isOld ? `connecting: ${why}` : "live");
  }
  stale.hidden = !(isOld && seenAt !== null);
  document.body.classList.toggle("old", isOld && seenAt !== null);
  byId("link").className = `link ${isOld ? "unsure" : "good"}`;
}

async function readAll() {
  const page = readHistory(await ask("/v1/reconciliations"));
  const oldest = page.past.at(-1)?.number ?? 0;
  if (history && performance.now() - wholeAt < HISTORY_WHOLE_MS) {
    page.past.push(...history.past.filter((one) => one.number < oldest));
    return page;
  }
  let next = page.next;
  for (let pages = 1; next !== null && pages < HISTORY_PAGES_MAX; pages += 1) {
    const more = readHistory(await ask(`/v1/reconciliations?before=${next}`));
    page.past.push(...more.past);
    next = more.next;
  }
  wholeAt = performance.now();
  return page;
}

async function showHistory() {
  try {
    if (!document.hidden || history === null) {
      const before = JSON.stringify([history?.past, history?.underway]);
      history = await readAll();
      say(byId("history-said"), historySaid());
      if (JSON.stringify([history.past, history.underway]) !== before) putHistory();
    }
  } catch (error) {
    say(byId("history-said"), `The history cannot be read: ${error.message}.`);
  }
  setTimeout(showHistory, HISTORY_INTERVAL_MS);
}

function historySaid() {
  const signed = history.isSigned ? "" : " Reports are unsigned: reconcile.signing_key is not set.";
  if (history.code) return `The history cannot be read now [${history.code}]; what is shown may be old.`;
  const [last] = history.past;
  if (!last) return "No reconciliation has ended yet. anabranch reconcile --now runs one.";
  const ago = duration(Math.max(0, history.now - last.endedAt) / 1000);
  return `${plural(history.past.length, "reconciliation")}; the last one ended ${ago} ago: ${last.verdict}, ${last.seal}.${signed}`;
}

function putHistory() {
  const [last] = history.past;
  const key = chosen ?? (last ? new Date(last.endedAt).toISOString().slice(0, 10) : null);
  put("underway", ...underway(history));
  put("calendar", ...(last ? [calendar(history, key, choose)] : []));
  byId("calendar").scrollLeft = byId("calendar").scrollWidth;
  put("reports", ...reports(history, key));
}

function choose(key) {
  chosen = key;
  putHistory();
  byId("calendar").querySelector('[aria-pressed="true"]')?.focus();
}

const stream = follow({
  event: show,
  up: () => { why = "no event has come"; },
  down: (reason) => { why = reason; },
  refused: (text) => say(byId("token-said"), `Refused: ${text}`),
});

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("token");
  say(byId("token-said"), field.value === "" ? "No token is sent." : "The token is sent from now on.");
  stream.use(field.value);
  field.value = "";
});

setInterval(showAge, 500);
showHistory();
