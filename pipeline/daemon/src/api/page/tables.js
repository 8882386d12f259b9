// Makes the tables of the status, with a sparkline for each source and lane.

import { buttonSign, laneButtons, storeButtons, taskButtons } from "/page/actions.js";
import { sparkline } from "/page/chart.js";
import { grouped, most, states, sum, worst } from "/page/drawing.js";
import { badge, count, draw, duration, make, rate, say } from "/page/elements.js";
import { LEVELS, plural } from "/page/model.js";
import { liveTable, mounted, parts, texts } from "/page/rows.js";

/** Leases that are listed one by one; more are counted by kind and holder. */
const LEASES_LISTED_MAX = 40;
/** Tasks that are listed; of more, only those that do not simply run. */
const TASKS_LISTED_MAX = 40;
const BAR = { width: 120, height: 8 };

const pauseText = (thing) => (thing.pause
  ? [thing.pause.by ? `by ${thing.pause.by}` : null, thing.pause.reason].filter((part) => part).join(": ") : "");

const state = parts("State", (thing) => `${thing.state} ${thing.level} ${thing.code} ${pauseText(thing)}`, (thing) => [
  badge(thing.state, thing.level), thing.code ? make("code", {}, thing.code) : null,
  pauseText(thing) ? make("span", { class: "quiet" }, ` ${pauseText(thing)}`) : null,
].filter((part) => part));

const buttons = (made) => parts("Actions", buttonSign, made, "acts");

const named = (title) => texts(title, (thing) => thing.name);

/** Says how full a stream is; a full one drops its oldest messages. */
const filled = (source) => (source.streamBytes === null || !source.streamBytesMax
  ? "–" : `${Math.round((source.streamBytes / source.streamBytesMax) * 100)} %`);

const sources = () => liveTable("Sources: state, lag, rate, room, position", [
  named("Source"), state, buttons(taskButtons),
  texts("Lag", (source) => duration(source.lag), true),
  mounted("Binlog written", sparkline),
  texts("Messages", (source) => rate(source.messagesPerSecond, "/s"), true),
  // A dash: the server keeps what the reader needs, or that is not known.
  texts("Binlog kept for", (source) => duration(source.purgeLeft), true),
  texts("Stream filled", (source) => filled(source), true),
  texts("Logged up to", (source) => source.position ?? "–", true),
  texts("Binlog's end", (source) => source.head ?? "–", true),
]);

const shareOf = (lane) => Math.min(1, lane.refreshed / lane.refreshRows);

/** Says how many tables wait to be read again, and which of them could not be read. */
function owed(lane) {
  if (!lane.owed) return "";
  const named = lane.unread.map((one) => (one.table ? `${one.table} [${one.code}]` : `[${one.code}]`));
  return `; ${plural(lane.owed, "table waits", "tables wait")}${named.length ? `: ${named.join(", ")}` : ""}`;
}

/** Mounts the progress of a refresh; the bar stays while its value changes. */
function refresh(cell) {
  const bar = make("progress", { max: 1 });
  const text = make("span");
  cell.append(make("span", { class: "refresh" }, bar, text));
  return (lane) => {
    bar.hidden = lane.refreshed === null || !lane.refreshRows;
    if (bar.hidden) {
      say(text, lane.refreshed === null ? "–" : `${count(lane.refreshed)} rows${owed(lane)}`);
      return;
    }
    bar.value = shareOf(lane);
    if (!bar.hasAttribute("aria-label")) bar.setAttribute("aria-label", `refresh of ${lane.name}`);
    const left = lane.refreshLeft === null ? "" : `, ${duration(lane.refreshLeft)} left`;
    say(text, `${Math.floor(shareOf(lane) * 100)} %${left}${owed(lane)}`);
  };
}

const lanes = (caption) => liveTable(caption, [
  named("Lane"), state, buttons(laneButtons),
  texts("Lag", (lane) => duration(lane.lag), true),
  mounted("Rows applied", sparkline),
  texts("In all", (lane) => count(lane.rows), true),
  texts("Feed", (lane) => lane.feed ?? "–"),
  mounted("Refresh", refresh),
  texts("Applied up to", (lane) => lane.position ?? "–", true),
]);

/** Says how many connections of this daemon to a target are in use, and how many queries wait for one. */
const used = (connections) => (connections
  ? `${connections.inUse} of ${connections.max}${connections.waiting ? `, ${connections.waiting} wait` : ""}` : "–");

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);

const stores = () => liveTable("Stores: state, rate, lag, connections, hits of the cache, documents", [
  named("Name"), texts("Kind", (store) => store.kind), state, buttons(storeButtons),
  texts("Rows applied", (store) => rate(store.rowsPerSecond, "/s"), true),
  texts("Oldest change waits", (store) => duration(store.delay), true),
  texts("Connections in use", (store) => used(store.connections), true),
  texts("Hits since start", (store) => percent(store.hits), true),
  texts("Index", (store) => store.index ?? "–"),
  texts("Documents", (store) => count(store.documents), true),
  texts("Tombstones", (store) => count(store.tombstones), true),
  texts("Parked", (store) => count(store.parked), true),
]);

/** Returns a row for each projection on a target, with the figures of its lanes, and one for each cache and index. */
export function storeRows(model) {
  const ofLanes = (lanes) => ({
    rowsPerSecond: sum(lanes.map((lane) => lane.rowsPerSecond)), delay: most(lanes.map((lane) => lane.lag)),
    connections: model.connections.find((one) => lanes.length && one.server === `target ${lanes[0].target}`) ?? null,
  });
  const none = { rowsPerSecond: null, connections: null };
  const indexes = new Set(model.stores.filter((store) => store.kind === "index").map((store) => store.name));
  const ofTables = model.lanes.filter((lane) => !indexes.has(lane.projection));
  const tables = [...grouped(ofTables, (lane) => lane.store)].map(([name, lanes]) => ({
    key: `tables ${name}`, kind: "tables", name, state: states(lanes), level: worst(lanes), code: null, task: null,
    hits: null, index: null, documents: null, tombstones: null, parked: null, ...ofLanes(lanes),
  }));
  const lanesOf = (store) => model.lanes.filter((lane) => lane.projection === store.name);
  const others = model.stores.map((store) =>
    ({ ...store, ...(store.kind === "index" ? ofLanes(lanesOf(store)) : none) }));
  return [...tables, ...others];
}

const programmes = () => liveTable("Coupon programmes: the newest day and its members", [
  named("Programme"), texts("Day", (programme) => programme.day ?? "–"), state,
  texts("Frozen", (programme) => count(programme.eligible), true),
  texts("Granted", (programme) => count(programme.granted), true),
  texts("Refused", (programme) => count(programme.refused), true),
  texts("In flight", (programme) => count(programme.inFlight), true),
  texts("Missed", (programme) => count(programme.missed), true),
  texts("Dead letters", (programme) => count(programme.letters), true),
]);

const WHY = { standby: "another process does its work" };

/** Says who paused a task. Without a token the page does not know the operator. */
const paused = (task) => (task.state === "paused"
  ? `paused ${pauseText(task) || "by an operator"}; anabranch resume ends that` : null);

const whyNot = (task) =>
  task.fault ?? (task.waitsFor ? `waits for ${task.waitsFor}` : paused(task) ?? WHY[task.state] ?? "–");

const tasks = () => liveTable("Tasks of this daemon: state, and why", [
  named("Task"), state, buttons(taskButtons),
  texts("Not running for", (task) => duration(task.down), true),
  { ...texts("Why", whyNot), kind: "wide" },
]);

const rank = (thing) => LEVELS.indexOf(thing.level);
const worstFirst = (things) => [...things].sort((one, other) => rank(other) - rank(one));

export const sourceRows = (model) => worstFirst(model.sources);

/** Returns the tasks that are listed. A large daemon has thousands, and those that run need no row. */
export function taskRows(model) {
  const tasks = worstFirst(model.tasks);
  if (tasks.length <= TASKS_LISTED_MAX) return tasks;
  return tasks.filter((task) => task.state !== "running" && task.state !== "standby").slice(0, TASKS_LISTED_MAX);
}

/** Says how many tasks `taskRows` leaves out. */
export function tasksSaid(model, listed) {
  const others = model.tasks.length - listed.length;
  if (others === 0) return "";
  return listed.length < TASKS_LISTED_MAX ? `${plural(others, "task")} more: each runs or stands by.`
    : `${plural(others, "task")} more: some of them do not run either.`;
}

function holderText(lease) {
  if (lease.holder === null) return lease.isHere ? "this process" : "another process; a token shows which";
  return `${lease.holder}${lease.isHere ? " (this process)" : ""}`;
}

const leases = () => liveTable("Leases: the work and the process that holds it", [
  texts("Work", (lease) => lease.name), texts("Held by", holderText),
]);

/** Returns the held leases; counts them by kind and holder where a list would be too long. */
export function leaseRows(model) {
  if (model.leases.length <= LEASES_LISTED_MAX) return model.leases;
  const groups = new Map();
  for (const lease of model.leases) {
    const [kind] = lease.name.split("/", 1);
    const key = `${kind} ${lease.holder} ${lease.isHere}`;
    const group = groups.get(key) ?? { ...lease, key, number: 0 };
    group.number += 1;
    if (group.number > 1) group.name = `${kind}/… (${count(group.number)} leases)`;
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** Mounts a bar as long as the table's share of the busiest table. */
function bar(cell) {
  const filled = draw("rect", { height: BAR.height, rx: 2 });
  const size = { viewBox: `0 0 ${BAR.width} ${BAR.height}`, width: BAR.width, height: BAR.height };
  cell.append(draw("svg", { class: "bar", ...size, "aria-hidden": "true" }, filled));
  return (table) => filled.setAttribute("width", (table.share * BAR.width).toFixed(1));
}

const busiest = () => liveTable("The busiest tables of sources that this process reads", [
  named("Table"), texts("Source", (table) => table.source),
  texts("Changes a minute", (table) => count(table.changesPerMinute), true), mounted("Share of the busiest", bar),
]);

export function busiestRows(model) {
  const most = Math.max(1, ...model.busiest.map((table) => table.changesPerMinute));
  return model.busiest.map((table) => ({ ...table, share: table.changesPerMinute / most }));
}

const RANKS = { stopped: 4, incomparable: 3, retrying: 3, unreachable: 2 };

/** Returns the worst lanes: stopped, then retrying, then by lag. */
export const worstLanes = (model, number) => [...model.lanes]
  .sort((one, other) => (RANKS[other.state] ?? 0) - (RANKS[one.state] ?? 0) || (other.lag ?? -1) - (one.lag ?? -1))
  .slice(0, number);

/** Makes all tables of the status. */
export const tables = () => ({
  sources: sources(), lanes: lanes("Lanes: state, lag, rate, feed, refresh"), chosen: lanes("The chosen lane"),
  stores: stores(), programmes: programmes(), tasks: tasks(), leases: leases(), busiest: busiest(),
});
