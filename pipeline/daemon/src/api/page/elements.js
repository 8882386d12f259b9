// Makes elements. Text becomes text nodes only, so a table may be called <script>.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Sets a text only when it is another one, so that a screen reader hears changes and not seconds. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Makes a dot and a word, because colour alone must never show a state. */
export const badge = (state, level) =>
  make("span", { class: `badge ${level}` }, make("i", { "aria-hidden": "true" }), state);

/** Makes a button that sends no form. */
export function button(text, attributes, pressed) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", pressed);
  return made;
}

// The functions below write numbers and times in one form for the whole page.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (number) => (number === null ? "–" : WHOLE.format(number));

export function rate(number, unit) {
  if (number === null) return "–";
  return `${(number > 0 && number < 10 ? TENTHS : WHOLE).format(number)} ${unit}`;
}

export function bytes(number) {
  if (number === null) return "–";
  const units = ["B/s", "kB/s", "MB/s", "GB/s"];
  let place = 0;
  while (number >= 1000 && place < units.length - 1) {
    number /= 1000;
    place += 1;
  }
  return `${(number < 10 && place > 0 ? TENTHS : WHOLE).format(number)} ${units[place]}`;
}

export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.95) return seconds < 0.05 ? "0 s" : `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** Writes a server's time in UTC, because reports are compared across machines. */
export const moment = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 16) + " UTC";
export const day = (ms) => new Date(ms).toISOString().slice(0, 10);
