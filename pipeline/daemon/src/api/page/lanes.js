// Shows the lanes: all as a table, or, when there are many, as a heat map with the chosen lane and the worst ones.

import { byId } from "/page/elements.js";
import { heatMap } from "/page/heat.js";
import { worstLanes } from "/page/tables.js";

/** Lanes that a table shows, at most. */
const TABLE_MAX = 40;
const WORST_SHOWN = 20;
/** Time for which the same lanes stay in the table of the worst, so that rows can be read and clicked. */
const STEADY_MS = 5000;

let chosen = null;
let worst = [];
let worstAt = -Infinity;
let newest = null;
let shownTables = null;
const map = heatMap((key) => {
  chosen = key;
  showChosen();
});

const byBad = (one, other) => (other.level === "bad") - (one.level === "bad");

export function showLanes(model, tables) {
  const isLarge = model.lanes.length > TABLE_MAX;
  byId("heat-part").hidden = !isLarge;
  byId("worst-title").hidden = !isLarge;
  if (!byId("heat").firstChild) byId("heat").append(map.element);
  newest = new Map(model.lanes.map((lane) => [lane.key, lane]));
  shownTables = tables;
  if (!isLarge) {
    tables.lanes.show([...model.lanes].sort(byBad));
    return;
  }
  map.show(model.lanes);
  showChosen();
  if (performance.now() - worstAt > STEADY_MS) {
    worst = worstLanes(model, WORST_SHOWN).map((lane) => lane.key);
    worstAt = performance.now();
  }
  tables.lanes.show(worst.map((key) => newest.get(key)).filter((lane) => lane));
}

function showChosen() {
  const lane = newest?.get(chosen);
  shownTables?.chosen.show(lane ? [lane] : []);
}

/** Returns the keys of the lanes whose charts are shown. */
export const chartedLanes = () => (worst.length ? [...(chosen ? [chosen] : []), ...worst] : []);
