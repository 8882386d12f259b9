// Puts the page together: each event becomes a model, and the model becomes the elements of the page.

import { onCarriedOut, reconcile } from "/page/actions.js";
import { noteChanges, noteEvent } from "/page/changes.js";
import { onOpened } from "/page/chart.js";
import { watchDialog } from "/page/dialogs.js";
import { drawing } from "/page/drawing.js";
import { byId, duration, say } from "/page/elements.js";
import { lastHistory, watchHistory } from "/page/history.js";
import { chartedLanes, showLanes } from "/page/lanes.js";
import { projections, read, storeNames } from "/page/model.js";
import { forget, isOperator, readAgain, readAnew } from "/page/operations.js";
import { note, noteGap } from "/page/rings.js";
import { readOne, watchSeries } from "/page/series.js";
import { follow, hasToken } from "/page/stream.js";
import {
  busiestRows, leaseRows, sourceRows, storeRows, tables as makeTables, taskRows, tasksSaid,
} from "/page/tables.js";
import { daemonTime, stamp } from "/page/time.js";
import { closeTrace, nameProjections, watchTrace } from "/page/trace.js";
import { showVerdict } from "/page/verdict.js";

/** Age from which the shown data is old: two events are missing. */
const OLD_AFTER_MS = 2500;

const tables = makeTables();
let model = null;
let seenAt = null;
let seenClock = null;
let why = "the daemon has not answered yet";

function show(text) {
  const isFirst = model === null;
  model = read(text, daemonTime());
  seenAt = performance.now();
  seenClock = daemonTime();
  say(byId("name"), model.name);
  say(byId("version"), model.version);
  note(model);
  noteChanges(model);
  showVerdict(model, lastHistory());
  showAge();
  if (!document.hidden) showParts();
  if (isFirst) watchSeries(chartKeys);
}

function showParts() {
  byId("drawing").replaceChildren(drawing(model));
  tables.sources.show(sourceRows(model));
  showLanes(model, tables);
  const tasks = taskRows(model);
  tables.tasks.show(tasks);
  say(byId("tasks-said"), tasksSaid(model, tasks));
  const optional = [
    ["stores", storeRows(model)], ["programmes", model.programmes],
    ["leases", leaseRows(model)], ["busiest", busiestRows(model)],
  ];
  for (const [name, things] of optional) {
    byId(`${name}-section`).hidden = things.length === 0;
    tables[name].show(things);
  }
  nameProjections(projections(model));
}

/** Returns the number of things that have points, and the keys of those whose charts are shown. */
const chartKeys = () => ({
  number: model.sources.length + model.lanes.length,
  charts: [...chartedLanes(), ...sourceRows(model).map((source) => source.key)],
});

/** Says within five seconds of the last event that the shown data is old. */
function showAge() {
  const age = seenAt === null ? Infinity : performance.now() - seenAt;
  const isOld = age > OLD_AFTER_MS && seenAt !== null;
  const stale = byId("stale");
  if (isOld) {
    if (stale.hidden) {
      noteEvent("unsure", `connection lost: ${why}`);
      noteGap();
      const of = seenClock === null ? "" : `, of ${stamp(seenClock)} UTC`;
      say(stale, `Old data${of}: the connection is lost. The page connects again by itself.`);
    }
    say(byId("link"), `old data for ${duration(age / 1000)}: ${why}`);
  } else {
    if (!stale.hidden) noteEvent("good", "connected again");
    say(byId("link"), seenAt === null ? `connecting: ${why}` : "live");
  }
  stale.hidden = !isOld;
  document.body.classList.toggle("old", isOld);
  byId("link").className = `link ${isOld || seenAt === null ? "unsure" : "good"}`;
}

function showOperator(isNow) {
  document.body.classList.toggle("operator", isNow);
  for (const id of ["operations-section", "trace-section", "reconcile-now"]) byId(id).hidden = !isNow;
  if (isNow) say(byId("token-said"), "It is an operator's token: the page shows actions.");
  else closeTrace();
  if (model) showParts();
}

const operations = { section: byId("operations"), said: byId("operations-said"), changed: showOperator };

const stream = follow({
  event: show,
  up: () => { why = "no event has come"; },
  down: (reason) => { why = reason; },
  refused: (text) => {
    say(byId("token-said"), `Refused: ${text}`);
    forget(showOperator);
  },
});

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("token");
  say(byId("token-said"), field.value === "" ? "No token is sent." : "The token is sent from now on.");
  stream.use(field.value);
  field.value = "";
  forget(showOperator);
  readAnew(operations).then(() => {
    if (hasToken() && !isOperator()) say(byId("token-said"), "It is no operator's token: full texts, no actions.");
  });
});

byId("reconcile-now").addEventListener("click", () => reconcile(model ? storeNames(model) : []));

for (const [name, table] of Object.entries(tables)) byId(name).append(table.element);
watchDialog();
watchTrace();
onOpened(readOne);
onCarriedOut(() => readAnew(operations));
setInterval(showAge, 500);
watchHistory(() => {
  if (isOperator()) readAgain(operations);
});
