// The heat map in place of a long table: a cell a lane, a row a store, lanes of one source side by side. It is a list
// with one selected lane: arrow keys move the selection. Each second only attributes change.

import { duration, make, say } from "/page/elements.js";
import { plural } from "/page/model.js";

/** Letters of states, because colour alone must never show a state. */
const SIGNS = {
  lagging: "l", paused: "p", replaying: "y", new: "n", unknown: "?",
  unreachable: "u", retrying: "r", stopped: "s", incomparable: "i",
};
const WORDS = {
  ...Object.fromEntries(Object.entries(SIGNS).map(([state, sign]) => [sign, state])),
  f: "reads tables again", "": "in order",
};

function signOf(lane) {
  if (lane.refreshed !== null && (lane.level === "good" || lane.level === "busy")) return "f";
  if (lane.level === "good") return "";
  return SIGNS[lane.state] ?? "?";
}

const nameOf = (lane) => {
  const again = lane.refreshed === null ? "" : ", reads tables again";
  return `${lane.name}: ${lane.state}${lane.code ? ` (${lane.code})` : ""}${again}, ${duration(lane.lag)} behind`;
};

/** Makes the heat map; `chosen(key)` is called with the key of the selected lane. */
export function heatMap(chosen) {
  const element = make("div", { class: "heat", role: "listbox", "aria-label": "Lanes, a cell each" });
  const legend = make("ul", { class: "key quiet" });
  const cells = new Map();
  let given = [];
  let order = [];
  let selected = null;

  function select(key, isFocused) {
    if (selected !== key) {
      cells.get(selected)?.element.setAttribute("aria-selected", "false");
      cells.get(selected)?.element.setAttribute("tabindex", "-1");
    }
    selected = key;
    const { element: cell } = cells.get(key);
    cell.setAttribute("aria-selected", "true");
    cell.setAttribute("tabindex", "0");
    if (isFocused) cell.focus();
    chosen(key);
  }

  element.addEventListener("click", (event) => {
    const cell = event.target.closest("[role=option]");
    if (cell) select(cell.dataset.key, true);
  });
  element.addEventListener("keydown", (event) => {
    const from = order.indexOf(selected);
    const to = moved(event, from, order, cells);
    if (to === null) return;
    event.preventDefault();
    select(order[to], true);
  });

  return {
    element: make("div", {}, element, legend),
    show(lanes) {
      if (lanes.length !== given.length || lanes.some((lane, place) => lane.key !== given[place])) {
        given = lanes.map((lane) => lane.key);
        order = rebuild(element, lanes, cells);
        const before = cells.has(selected) ? selected : order[0];
        selected = null;
        select(before, false);
      }
      const counts = new Map();
      for (const lane of lanes) {
        const sign = update(cells.get(lane.key), lane);
        const key = `${sign}\n${lane.level}`;
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
      showLegend(legend, counts);
    },
  };
}

/** Returns the place to which a key moves the selection; null for a key that moves nothing. */
function moved(event, from, order, cells) {
  const last = order.length - 1;
  switch (event.key) {
    case "ArrowRight": return Math.min(last, from + 1);
    case "ArrowLeft": return Math.max(0, from - 1);
    case "Home": return 0;
    case "End": return last;
    case "ArrowDown": return beside(order, cells, from, 1);
    case "ArrowUp": return beside(order, cells, from, -1);
    default: return null;
  }
}

/** Returns the place of the nearest cell in the next line above or below. */
function beside(order, cells, from, step) {
  const at = (place) => cells.get(order[place]).element.getBoundingClientRect();
  const here = at(from);
  let top = null;
  let best = from;
  let least = Infinity;
  for (let place = from + step; place >= 0 && place < order.length; place += step) {
    const there = at(place);
    if (Math.abs(there.top - here.top) < 2) continue;
    top ??= there.top;
    if (Math.abs(there.top - top) >= 2) break;
    const distance = Math.abs(there.left - here.left);
    if (distance < least) [best, least] = [place, distance];
  }
  return best;
}

/** Makes the rows of stores with their cells anew; returns the keys in the order of the cells. */
function rebuild(element, lanes, cells) {
  const stores = new Map();
  for (const lane of lanes) {
    if (!stores.has(lane.store)) stores.set(lane.store, new Map());
    const sources = stores.get(lane.store);
    if (!sources.has(lane.source)) sources.set(lane.source, []);
    sources.get(lane.source).push(lane.key);
  }
  cells.clear();
  const rows = [...stores].map(([store, sources]) =>
    make("div", { class: "store", role: "group", "aria-label": store },
      make("p", { "aria-hidden": "true" }, store),
      make("div", { class: "sources" }, ...[...sources].map(([source, keys]) => make("span", { class: "source" },
        make("span", { class: "name", "aria-hidden": "true", title: source }, source),
        make("span", { class: "cells" }, ...keys.map((key) => cellOf(key, cells))))))));
  element.replaceChildren(...rows);
  return [...cells.keys()];
}

function cellOf(key, cells) {
  const element = make("span", { role: "option", tabindex: -1, "aria-selected": "false", "data-key": key });
  cells.set(key, { element, level: null, sign: null, name: null });
  return element;
}

/** Sets what has changed of a cell; returns its sign. */
function update(cell, lane) {
  const sign = signOf(lane);
  const name = nameOf(lane);
  if (cell.level !== lane.level) cell.element.className = `cell ${lane.level}`;
  if (cell.sign !== sign) cell.element.textContent = sign;
  if (cell.name !== name) {
    cell.element.setAttribute("aria-label", name);
    cell.element.title = name;
  }
  Object.assign(cell, { level: lane.level, sign, name });
  return sign;
}

/** Shows how many cells of each kind there are. */
function showLegend(legend, counts) {
  const entries = [...counts].sort(([one], [other]) => (one < other ? -1 : 1));
  while (legend.children.length > entries.length) legend.lastElementChild.remove();
  entries.forEach(([key, number], place) => {
    const [sign, level] = key.split("\n");
    if (!legend.children[place]) legend.append(make("li", {}, make("span", { "aria-hidden": "true" }), make("span")));
    const [cell, text] = legend.children[place].children;
    if (cell.className !== `cell ${level}`) cell.className = `cell ${level}`;
    say(cell, sign);
    const far = sign === "b" && level === "unsure" ? " by more than a minute" : "";
    say(text, `${WORDS[sign]}${far}: ${plural(number, "lane")}`);
  });
}
