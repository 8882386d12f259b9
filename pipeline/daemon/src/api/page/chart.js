// Draws rates and lags over time: small in a table, large in the dialog. Ages count from now, so no clock is needed.

import { openDialog } from "/page/dialogs.js";
import { bytes, draw, duration, make, rate, say } from "/page/elements.js";
import { isKept, points, spanSeconds } from "/page/rings.js";
import { daemonTime, stamp } from "/page/time.js";

const SMALL = { width: 120, height: 24 };
const LARGE = { height: 210, left: 80, right: 14, top: 14, bottom: 30 };
const WIDTH_MIN = 280;
const WIDTH_MAX = 880;
/** A line breaks where points are missing for longer than this and than three pixels. */
const BREAK_SECONDS = 35;
/** Charts of hours change little in a second. */
const HOURS_SECONDS = 1200;
const SLOW_MS = 10000;
const FAST_MS = 1000;
const LARGE_MS = 2000;
/** Seconds between two marks of an axis of time. */
const TIME_STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800];

export const rateText = (thing) =>
  (thing.key.startsWith("source ") ? bytes(thing.rate) : rate(thing.rate, "rows/s"));
const valueText = (thing, value) => rateText({ key: thing.key, rate: value });

/** Returns the highest value of each pixel's time, from left to right; null where nothing is known. */
function columns(of, pick, span, width) {
  const made = new Array(Math.ceil(width) + 1).fill(null);
  for (const point of of) {
    const value = pick(point);
    if (value === null || point.age > span) continue;
    const place = Math.round((1 - Math.max(0, point.age) / span) * width);
    made[place] = Math.max(made[place] ?? 0, value);
  }
  return made;
}

function line(values, top, height, gapPixels) {
  let path = "";
  let before = -Infinity;
  values.forEach((value, x) => {
    if (value === null) return;
    const y = (height - (value / top) * height).toFixed(1);
    path += `${x - before <= gapPixels ? "L" : "M"}${x} ${y}`;
    // A single point without neighbours would be invisible.
    if (x - before > gapPixels) path += "h0.6";
    before = x;
  });
  return path;
}

const highest = (values) => values.reduce((all, one) => Math.max(all, one ?? 0), 0);
const gapOf = (span, width) => Math.max(3, (BREAK_SECONDS / span) * width);

/** Mounts a sparkline with a text into a cell; a click opens the large chart. */
export function sparkline(cell, first) {
  const path = draw("path");
  const text = make("span");
  const size = { viewBox: `0 -2 ${SMALL.width} ${SMALL.height}`, width: SMALL.width, height: SMALL.height };
  let thing = first;
  let drawnAt = -Infinity;
  let wasKept = false;
  const opens = make("button", { type: "button", class: "spark", "aria-haspopup": "dialog" },
    draw("svg", { ...size, "aria-hidden": "true" }, path), text,
    make("span", { class: "hidden" }, `, chart of ${first.name}`));
  opens.addEventListener("click", () => openChart(thing));
  cell.append(opens);
  return (now) => {
    thing = now;
    say(text, rateText(thing));
    const span = spanSeconds();
    const age = performance.now() - drawnAt;
    const isDue = age > (span > HOURS_SECONDS ? SLOW_MS : FAST_MS) - 50 || isKept(thing.key) !== wasKept;
    if (!isDue) return;
    drawnAt = performance.now();
    wasKept = isKept(thing.key);
    const values = columns(points(thing.key), (point) => point.rate, span, SMALL.width);
    const height = SMALL.height - 4;
    path.setAttribute("d", line(values, Math.max(1e-9, highest(values)), height, gapOf(span, SMALL.width)));
  };
}

let wanted = () => {};
/** Sets the function that asks the daemon for the ring of one thing. */
export const onOpened = (asks) => { wanted = asks; };

/** Opens the large chart of a source or lane, and redraws it until it is closed. */
export function openChart(thing) {
  let timer = null;
  const dialog = openDialog(thing.name, () => clearInterval(timer));
  const update = () => dialog.put(...large(thing, dialog.element.clientWidth));
  update();
  timer = setInterval(update, LARGE_MS);
  wanted(thing.key);
}

function large(thing, room) {
  const of = points(thing.key);
  const width = Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, room || WIDTH_MAX));
  const what = thing.key.startsWith("source ") ? "Binlog written" : "Rows applied";
  return [
    figure(what, of, (point) => point.rate, (value) => valueText(thing, value), niceStep, width),
    figure("Lag", of, (point) => point.lag, duration, timeStep, width),
    make("p", { class: "quiet" }, `Each pixel shows the highest value of its time. Now is ${stamp(daemonTime())} UTC.`),
  ];
}

/** Makes one large chart with its summary in words; `stepOf` returns the distance of two marks, at least as given. */
function figure(title, of, pick, text, stepOf, width) {
  const span = spanSeconds();
  const inner = width - LARGE.left - LARGE.right;
  const values = columns(of, pick, span, inner);
  const shown = of.filter((point) => pick(point) !== null && point.age <= span);
  if (!shown.length) return make("figure", {}, make("figcaption", {}, `${title}: nothing is known yet`));
  const max = shown.reduce((all, one) => (pick(one) >= pick(all) ? one : all));
  const last = of.at(-1);
  const now = last && pick(last) !== null ? text(pick(last)) : "not known";
  const said = `${title}: now ${now}, at most ${text(pick(max))} (${ago(max.age)})`;
  const height = LARGE.height - LARGE.top - LARGE.bottom;
  const step = stepOf(pick(max) / 3);
  const top = Math.max(step, Math.ceil(pick(max) / step) * step);
  const size = { viewBox: `0 0 ${width} ${LARGE.height}`, width, height: LARGE.height };
  const peak = { cx: (1 - Math.max(0, max.age) / span) * inner, cy: height - (pick(max) / top) * height };
  const svg = draw("svg", { ...size, role: "img", "aria-label": said },
    ...rules(step, top, text, inner, height), ...ages(span, inner, height),
    draw("g", { transform: `translate(${LARGE.left} ${LARGE.top})` },
      draw("path", { class: "values", d: line(values, top, height, gapOf(span, inner)) }),
      draw("circle", { class: "max", r: 3, ...peak })));
  return make("figure", {}, make("figcaption", {}, said), svg);
}

function rules(step, top, text, inner, height) {
  const made = [];
  for (let value = 0; value <= top + step / 2; value += step) {
    const y = LARGE.top + height - (value / top) * height;
    made.push(draw("path", { class: "rule", d: `M${LARGE.left} ${y}h${inner}` }));
    made.push(draw("text", { x: LARGE.left - 8, y: y + 4, "text-anchor": "end" }, text(value)));
  }
  return made;
}

function ages(span, inner, height) {
  const room = Math.max(2, Math.floor(inner / 80));
  const step = timeStep(span / room);
  const made = [];
  for (let age = 0; age <= span; age += step) {
    const x = LARGE.left + (1 - age / span) * inner;
    const anchor = age === 0 ? "end" : x < LARGE.left + 20 ? "start" : "middle";
    made.push(draw("path", { class: "rule", d: `M${x} ${LARGE.top + height}v5` }));
    made.push(draw("text", { x, y: LARGE.top + height + 20, "text-anchor": anchor }, age === 0 ? "now" : ageText(age)));
  }
  return made;
}

function ageText(age) {
  if (age < 60) return `−${age} s`;
  return age < 3600 ? `−${age / 60} min` : `−${Number((age / 3600).toFixed(1))} h`;
}

const timeStep = (least) => TIME_STEPS.find((step) => step >= least) ?? TIME_STEPS.at(-1);
const ago = (age) => (age < 3 ? "now" : `${duration(age)} ago`);

/** Returns 1, 2 or 5 times a power of ten that is at least this. */
function niceStep(least) {
  if (!(least > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}
