// Makes the tables, with a sparkline for each source and lane. The rings of points live in this tab.

import { badge, bytes, count, draw, duration, make, rate } from "/page/elements.js";

/** Points of a ring: ten minutes at a point a second. Rings of a few hundred lanes are some megabytes. */
const POINTS_MAX = 600;
const SHOWN = { width: 120, height: 24 };
const rings = new Map();

/** Adds the rates of this second to the rings. */
export function note(model) {
  const push = (key, value) => {
    const ring = rings.get(key) ?? [];
    ring.push(value);
    if (ring.length > POINTS_MAX) ring.shift();
    rings.set(key, ring);
  };
  model.sources.forEach((source) => push(source.key, source.bytesPerSecond));
  model.lanes.forEach((lane) => push(lane.key, lane.rowsPerSecond));
}

/** Adds one gap to each ring for the seconds without a connection. */
export function noteGap() {
  for (const ring of rings.values()) {
    if (ring.at(-1) !== null) ring.push(null);
  }
}

function sparkline(key, text) {
  const ring = rings.get(key) ?? [];
  const points = ring.slice(-SHOWN.width * 2);
  const top = Math.max(1e-9, ...points.filter((point) => point !== null));
  const step = SHOWN.width / Math.max(1, points.length - 1);
  let path = "";
  let isDown = false;
  points.forEach((point, place) => {
    if (point === null) {
      isDown = false;
      return;
    }
    const y = SHOWN.height - 2 - (point / top) * (SHOWN.height - 4);
    path += `${isDown ? "L" : "M"}${(place * step).toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  });
  const size = { viewBox: `0 0 ${SHOWN.width} ${SHOWN.height}`, width: SHOWN.width, height: SHOWN.height };
  return make("span", { class: "spark" }, draw("svg", { ...size, "aria-hidden": "true" }, draw("path", { d: path })),
    make("span", {}, text));
}

/** Makes a table. Each of `columns` has a title, a function from a thing to its cell, and whether it is a number. */
function table(caption, columns, things) {
  const head = columns.map(([title, , isNumber]) =>
    make("th", { scope: "col", class: isNumber ? "number" : null }, title));
  const body = things.map((thing) => make("tr", { class: thing.level }, ...columns.map(([, cell, isNumber], place) =>
    make(place === 0 ? "th" : "td",
      { scope: place === 0 ? "row" : null, class: isNumber ? "number" : null }, cell(thing)))));
  return make("table", {}, make("caption", { class: "hidden" }, caption), make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...body));
}

const state = (thing) => make("span", {}, badge(thing.state, thing.level), thing.code ? make("code", {}, thing.code) : null);

export const sources = (model) => table("Sources: state, lag, rate, position", [
  ["Source", (source) => source.name],
  ["State", state],
  ["Lag", (source) => duration(source.lag), true],
  ["Binlog written", (source) => sparkline(source.key, bytes(source.bytesPerSecond))],
  ["Messages", (source) => rate(source.messagesPerSecond, "/s"), true],
  ["Logged up to", (source) => source.position ?? "–", true],
  ["Binlog's end", (source) => source.head ?? "–", true],
], model.sources);

function refresh(lane) {
  if (lane.refreshed === null) return "–";
  if (!lane.refreshRows) return `${count(lane.refreshed)} rows`;
  const share = Math.min(1, lane.refreshed / lane.refreshRows);
  const left = lane.refreshLeft === null ? "" : `, ${duration(lane.refreshLeft)} left`;
  return make("span", { class: "refresh" },
    make("progress", { max: 1, value: share, "aria-label": `refresh of ${lane.name}` }),
    `${Math.floor(share * 100)} %${left}`);
}

export const lanes = (model) => table("Lanes: state, lag, rate, feed, refresh", [
  ["Lane", (lane) => lane.name],
  ["State", state],
  ["Lag", (lane) => duration(lane.lag), true],
  ["Rows applied", (lane) => sparkline(lane.key, rate(lane.rowsPerSecond, "/s"))],
  ["In all", (lane) => count(lane.rows), true],
  ["Feed", (lane) => lane.feed ?? "–"],
  ["Refresh", refresh],
  ["Applied up to", (lane) => lane.position ?? "–", true],
], [...model.lanes].sort((one, other) => (other.level === "bad") - (one.level === "bad")));

export const stores = (model) => table("Caches and indexes: state, delay, documents", [
  ["Name", (store) => store.name],
  ["Kind", (store) => store.kind],
  ["State", state],
  ["Oldest change waits", (store) => duration(store.delay), true],
  ["Index", (store) => store.index ?? "–"],
  ["Documents", (store) => count(store.documents), true],
  ["Parked", (store) => count(store.parked), true],
], model.stores);

export const programmes = (model) => table("Coupon programmes: the newest day and its members", [
  ["Programme", (programme) => programme.name],
  ["Day", (programme) => programme.day ?? "–"],
  ["State", state],
  ["Frozen", (programme) => count(programme.eligible), true],
  ["Granted", (programme) => count(programme.granted), true],
  ["Refused", (programme) => count(programme.refused), true],
  ["In flight", (programme) => count(programme.inFlight), true],
  ["Missed", (programme) => count(programme.missed), true],
  ["Dead letters", (programme) => count(programme.letters), true],
], model.programmes);

const WHY = { standby: "another process does its work", paused: "somebody paused it; anabranch resume ends that" };

export const tasks = (model) => table("Tasks of this daemon: state, and why", [
  ["Task", (task) => task.name],
  ["State", state],
  ["Not running for", (task) => duration(task.down), true],
  ["Why", (task) => task.fault ?? (task.waitsFor ? `waits for ${task.waitsFor}` : WHY[task.state] ?? "–")],
], model.tasks);
