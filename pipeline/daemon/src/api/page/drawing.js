// Draws sources → log → lanes → stores. Lanes of one source and store are one edge; the worst lane decides its colour.
// In a large installation, sources that are in order are one box.

import { LEVELS, plural } from "/page/model.js";
import { draw, duration, rate } from "/page/elements.js";

const WIDTH = 1080;
const BOX = { width: 190, height: 52 };
const GAP = 22;
const TOP = 34;
const COLUMNS = [0, 286, 526, 890];
const CHARACTERS_MAX = 24;
/** Room for the label of an edge. */
const LABEL_WIDTH = 100;
/** Boxes of lanes below each other, at most, unless there are more stores. */
const GROUPS_MAX = 14;
/** Names of lanes in the tooltip of their box. */
const NAMES_MAX = 20;

const cut = (text) => (text.length > CHARACTERS_MAX ? `${text.slice(0, CHARACTERS_MAX - 1)}…` : text);
export const worst = (things) => LEVELS[Math.max(0, ...things.map((thing) => LEVELS.indexOf(thing.level)))];
export const most = (numbers) => numbers.reduce((all, one) => (one === null ? all : Math.max(all ?? 0, one)), null);
export const sum = (numbers) => numbers.reduce((all, one) => (one === null ? all : (all ?? 0) + one), null);

export function grouped(things, key) {
  const groups = new Map();
  for (const thing of things) {
    const name = key(thing);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(thing);
  }
  return groups;
}

/** Returns sources and lanes as they are drawn: where there are too many, sources that are in order become one. */
function folded(model) {
  const numberOf = (key) => new Set(model.lanes.map(key)).size;
  const stores = Math.max(1, numberOf((lane) => lane.store));
  const groups = numberOf((lane) => `${lane.source}\n${lane.store}`);
  if (Math.max(groups, model.sources.length) <= GROUPS_MAX) return model;
  const rank = new Map(model.sources.map((source) => [source.name, LEVELS.indexOf(source.level)]));
  for (const lane of model.lanes) {
    rank.set(lane.source, Math.max(rank.get(lane.source) ?? 0, LEVELS.indexOf(lane.level)));
  }
  const room = Math.max(1, Math.floor(GROUPS_MAX / stores) - 1);
  const wrong = [...rank].filter(([, place]) => place >= LEVELS.indexOf("unsure"));
  const kept = new Set(wrong.sort(([, one], [, other]) => other - one).slice(0, room).map(([name]) => name));
  const rest = model.sources.filter((source) => !kept.has(source.name));
  if (rest.length < 2) return model;
  const one = {
    name: kept.size ? plural(rest.length, "other") : `all ${rest.length} sources`,
    state: states(rest), level: worst(rest),
    lag: most(rest.map((source) => source.lag)), messagesPerSecond: sum(rest.map((source) => source.messagesPerSecond)),
    messages: sum(rest.map((source) => source.messages)),
  };
  return {
    sources: [...model.sources.filter((source) => kept.has(source.name)), one],
    lanes: model.lanes.map((lane) => (kept.has(lane.source) ? lane : { ...lane, source: one.name })),
  };
}

function box(x, y, title, line, level, full) {
  return draw("g", { class: `box ${level}`, transform: `translate(${x} ${y})` },
    draw("title", {}, full ?? title),
    draw("rect", { width: BOX.width, height: BOX.height, rx: 8 }),
    draw("rect", { class: "mark", width: 5, height: BOX.height, rx: 2.5 }),
    draw("text", { x: 16, y: 22, class: "name" }, cut(title)),
    draw("text", { x: 16, y: 40, class: "line" }, cut(line)));
}

/** Draws an edge with its rate above it, its lag below it, and its state as colour and tooltip. */
function edge(from, to, { level, state, rate: above, lag: below }, isDashed) {
  const middle = (from.x + to.x) / 2;
  const path = `M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
  const at = { x: from.labelX ?? middle, y: from.labelY ?? (from.y + to.y) / 2 };
  return draw("g", { class: `edge ${level}` },
    draw("title", {}, `${state}: ${above}, ${below}`),
    draw("path", { d: path, class: isDashed ? "dashed" : null }),
    draw("text", { x: at.x, y: at.y - 6, "text-anchor": "middle" }, above),
    draw("text", { x: at.x, y: at.y + 14, "text-anchor": "middle", class: "lag" }, below));
}

const centred = (number, height) => (place) => TOP + (height - TOP) * ((place + 0.5) / number) - BOX.height / 2;
const lagging = (lag) => (lag === null ? "lag not known" : lag < 0.05 ? "no lag" : `${duration(lag)} behind`);

/** Returns what the edges of these lanes show: all their rows, and the lag and level of the worst of them. */
const flowOf = (lanes) => ({
  level: worst(lanes), state: states(lanes),
  rate: rate(sum(lanes.map((lane) => lane.rowsPerSecond)), "rows/s"), lag: lagging(most(lanes.map((lane) => lane.lag))),
});

function head(x, text) {
  return draw("text", { x, y: 14, class: "head" }, text);
}

/** Makes the whole drawing, some dozens of elements, anew each second. */
export function drawing(whole) {
  const model = folded(whole);
  const groups = [...grouped(model.lanes, (lane) => `${lane.source}\n${lane.store}`).values()];
  const stores = [...grouped(model.lanes, (lane) => lane.store)];
  const rows = Math.max(model.sources.length, groups.length, stores.length, 1);
  const height = TOP + rows * (BOX.height + GAP);
  const [sourceX, logX, laneX, storeX] = COLUMNS;
  const sourceY = centred(model.sources.length, height);
  const laneY = centred(groups.length, height);
  const storeY = centred(stores.length, height);
  const half = BOX.height / 2;
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": spoken(model, whole) },
    head(sourceX, "Sources"), head(logX, "Log"), head(laneX, "Lanes"), head(storeX, "Stores"));
  const places = new Map(model.sources.map((source, place) => [source.name, place]));
  const logWidth = 130;
  model.sources.forEach((source, place) => {
    const y = sourceY(place) + half;
    svg.append(edge({ x: sourceX + BOX.width, y }, { x: logX, y }, {
      level: source.level, state: source.state, rate: rate(source.messagesPerSecond, "msg/s"), lag: lagging(source.lag),
    }));
    svg.append(box(sourceX, y - half, source.name, source.state, source.level));
    svg.append(logBox(logX, y - half, logWidth, source));
  });
  groups.forEach((lanes, place) => {
    const y = laneY(place) + half;
    const flow = flowOf(lanes);
    // Edges of one stream begin at the same point, so their labels stand at their ends.
    const from = {
      x: logX + logWidth, y: sourceY(places.get(lanes[0].source) ?? 0) + half,
      labelX: laneX - LABEL_WIDTH / 2, labelY: y,
    };
    svg.append(edge(from, { x: laneX, y }, flow, lanes.some((lane) => lane.feed === "binlog")));
    const storePlace = stores.findIndex(([name]) => name === lanes[0].store);
    const to = { x: storeX, y: storeY(storePlace) + half };
    const label = { labelX: laneX + BOX.width + 48, labelY: y };
    svg.append(edge({ x: laneX + BOX.width, y, ...label }, to, flow));
    const names = lanes.slice(0, NAMES_MAX).map((lane) => lane.name).join("\n");
    svg.append(box(laneX, y - half, `${lanes[0].projection} ← ${lanes[0].source}`,
      `${plural(lanes.length, "lane")}: ${flow.state}`, flow.level, names));
  });
  stores.forEach(([name, lanes], place) => {
    const y = storeY(place);
    svg.append(box(storeX, y, lanes[0].projection, `on ${lanes[0].target}`, worst(lanes), name));
  });
  return svg;
}

function logBox(x, y, width, source) {
  return draw("g", { class: "box log", transform: `translate(${x} ${y + 6})` },
    draw("title", {}, `stream of ${source.name}: ${source.messages} messages were appended`),
    draw("rect", { width, height: BOX.height - 12, rx: 20 }),
    draw("text", { x: width / 2, y: 25, "text-anchor": "middle", class: "line" },
      `message ${source.messages.toLocaleString("en")}`));
}

export function states(lanes) {
  const counts = [...grouped(lanes, (lane) => lane.state)];
  return counts.length === 1 ? counts[0][0] : counts.map(([state, of]) => `${of.length} ${state}`).join(", ");
}

/** Returns the drawing in words for screen readers; the tables below the drawing have every figure. */
function spoken(model, whole) {
  const sources = model.sources.map((source) => `${source.name} ${source.state}`).join(", ");
  return `Flow from ${plural(whole.sources.length, "source")} (${sources}) over the log and ` +
    `${plural(whole.lanes.length, "lane")} into the stores. The tables below have every figure.`;
}
