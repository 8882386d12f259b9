// Shows reconciliations: those under way, a year of days by the worst verdict of each, and the reports of a day.
// Days are in UTC and counted from the daemon's clock, because a browser's clock may be a day off.

import { badge, count, day, duration, make, moment } from "/page/elements.js";
import { plural } from "/page/model.js";

const DAY_MS = 86400000;
const WEEKS = 53;
const SIGNS = { good: "", busy: "r", unsure: "?", bad: "!" };
const WORDS = { none: "no reconciliation", unlisted: "not listed: older than the reconciliations that this page has" };
const ORDER = ["good", "busy", "unsure", "bad"];

function byDay(past) {
  const days = new Map();
  for (const one of past) {
    const key = day(one.endedAt);
    days.set(key, [...(days.get(key) ?? []), one]);
  }
  return days;
}

const worst = (of) => of.reduce((all, one) => (ORDER.indexOf(one.level) > ORDER.indexOf(all.level) ? one : all));

/** Makes the year of days. `chosen` is the day whose reports are shown; a click calls `choose` with a day. */
export function calendar(history, chosen, choose) {
  const days = byDay(history.past);
  const today = Date.parse(day(history.now));
  const isCut = history.older > 0 || history.unread > 0;
  const listedFrom = isCut && history.past.length ? day(history.past.at(-1).endedAt) : "";
  const first = today - ((new Date(today).getUTCDay() + 6) % 7) * DAY_MS - (WEEKS - 1) * 7 * DAY_MS;
  const grid = make("div", { class: "days", role: "group", "aria-label": "A year of reconciliations, a square a day" });
  grid.addEventListener("keydown", (event) => move(event, grid));
  for (let at = first; at <= today; at += DAY_MS) {
    const key = day(at);
    const of = days.get(key);
    if (!of) {
      const kind = key < listedFrom ? "unlisted" : "none";
      grid.append(make("span", { class: `day ${kind}`, title: `${key}: ${WORDS[kind]}` }));
      continue;
    }
    const one = worst(of);
    const said = `${key}: ${one.verdict}, ${one.seal}${of.length > 1 ? `; ${of.length} that day` : ""}`;
    const button = make("button", {
      class: `day ${one.level}${one.isBroken ? " broken" : ""}`, type: "button", title: said, "aria-label": said,
      "aria-pressed": key === chosen ? "true" : "false", tabindex: key === chosen ? 0 : -1, "data-day": key,
    }, SIGNS[one.level]);
    button.addEventListener("click", () => choose(key));
    grid.append(button);
  }
  return make("div", { class: "calendar" }, months(first, today), grid, legend(), ...cutText(history, listedFrom));
}

/** Says from which day on the list is whole, if it does not reach back to the first reconciliation. */
function cutText(history, listedFrom) {
  if (!listedFrom) return [];
  const why = history.unread > 0 ? `${plural(history.unread, "older report")} not read yet`
    : `${plural(history.older, "older reconciliation")} not listed; anabranch reconcile show prints any of them`;
  return [make("p", { class: "quiet cut" }, `Listed from ${listedFrom} on: ${why}.`)];
}

const STEPS = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -7, ArrowRight: 7, Home: -Infinity, End: Infinity };

/** Moves the focus by days or weeks to the next day with a reconciliation: a year is one stop of the Tab key. */
function move(event, grid) {
  const step = STEPS[event.key];
  const from = event.target.dataset.day;
  if (step === undefined || from === undefined) return;
  event.preventDefault();
  const days = [...grid.querySelectorAll("button")];
  const wanted = Date.parse(from) + step * DAY_MS;
  const beyond = step < 0
    ? days.findLast((one) => Date.parse(one.dataset.day) <= wanted) ?? days[0]
    : days.find((one) => Date.parse(one.dataset.day) >= wanted) ?? days.at(-1);
  beyond.focus();
}

function months(first, today) {
  const row = make("div", { class: "months", "aria-hidden": "true" });
  for (let week = 0, before = null; first + week * 7 * DAY_MS <= today; week += 1) {
    const nameOf = (place) =>
      new Date(first + place * 7 * DAY_MS).toLocaleString("en", { month: "short", timeZone: "UTC" });
    const name = nameOf(week);
    // The name of a month needs two weeks of room.
    row.append(make("span", {}, name === before || nameOf(week + 1) !== name ? "" : name));
    before = name;
  }
  return row;
}

const legend = () => make("p", { class: "quiet key" }, ...[
  ["good", "proved equal"], ["busy", "repaired"], ["unsure", "incomplete"], ["bad", "failed, or seal broken"],
].map(([level, text]) => make("span", {}, make("span", { class: `day ${level}`, "aria-hidden": "true" }, SIGNS[level]), ` ${text}`)));

export function reports(history, chosen) {
  const of = byDay(history.past).get(chosen) ?? [];
  return of.map(report);
}

const PROVED = {
  clean: "Proved equal: every row was read, and every row was right.",
  repaired: "Proved equal after repairs: every row was read; wrong rows are right now.",
  incomplete: "Not proved: something was not read or not decided.",
  failed: "Wrong rows are left.",
};

function report(one) {
  const took = one.begunAt === null ? "" : `, ${duration((one.endedAt - one.begunAt) / 1000)}`;
  const kind = [one.mode, one.isWhole === false ? "of some stores" : null].filter((part) => part).join(", ");
  const proved = one.isBroken
    ? "This report, or one before it, was changed: it proves nothing. Run `anabranch reconcile verify`."
    : PROVED[one.verdict] ?? "";
  return make("article", { class: `report ${one.level}` },
    make("h3", {}, one.id, " ", badge(one.verdict, one.level), " ", badge(one.seal, one.isBroken ? "bad" : one.seal === "unsigned" ? "none" : "good")),
    make("p", {}, proved, make("span", { class: "quiet" }, ` Ended ${moment(one.endedAt)}${took}${kind ? ` (${kind})` : ""}.`)),
    one.stores.length ? storeTable(one.stores) : make("p", { class: "quiet" }, "Another version wrote its report in another form: anabranch reconcile show prints it."),
    ...one.stores.filter((store) => store.reasonsCount || store.isGateClosed).map(reasons));
}

function storeTable(stores) {
  const titles = ["Store", "Verdict", "Tables", "Source rows", "Expected", "Derived rows", "Looked at", "Wrong", "Repaired", "Confirmed", "Left", "Wrong again", "Foreign", "Took"];
  const row = (store) => make("tr", {}, make("th", { scope: "row" }, store.name),
    make("td", {}, badge(store.verdict, store.level)), ...[
      store.tables, store.sourceRows, store.expectedRows, store.derivedRows, store.lookedAt, store.drifted, store.repaired,
      store.confirmed, store.left, store.again, store.foreign,
    ].map((number) => make("td", { class: "number" }, count(number))), make("td", { class: "number" }, duration(store.seconds)));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Stores of this report" },
    make("table", {}, make("caption", { class: "hidden" }, "What each store's comparison read and found"),
      make("thead", {}, make("tr", {}, ...titles.map((title, place) => make("th", { scope: "col", class: place > 1 ? "number" : null }, title)))),
      make("tbody", {}, ...stores.map(row))));
}

function reasons(store) {
  const gate = store.isGateClosed ? [make("li", {}, `${store.name}: the gate is closed; more rows differ than may be repaired without a person's word`)] : [];
  const hidden = store.reasonsCount - store.reasons.length;
  const more = hidden > 0 ? [make("li", {}, `${store.name}: ${plural(hidden, "reason")} not shown here; a token shows the first, anabranch reconcile show all`)] : [];
  return make("ul", { class: "reasons" }, ...gate, ...store.reasons.map((why) => make("li", {}, `${store.name}: ${why}`)), ...more);
}

/** Makes the reconciliations that are not over; `paceOf(one)` gives their pace. */
export const underway = (history, paceOf) => history.underway.map((one) => {
  const now = one.current ? `${one.current.name}, ${count(one.current.sourceRows)} source rows read` : "between two stores";
  const wrong = one.current?.drifted ? `, ${count(one.current.drifted)} wrong so far` : "";
  return make("article", { class: "report busy" },
    make("h3", {}, `${one.id} `, badge("under way", "busy")),
    make("p", {}, make("progress", { max: 1, value: one.share, "aria-label": "share of the store that is compared now" }),
      ` ${Math.floor(one.share * 100)} % of ${now}${wrong}`),
    make("p", {}, paceText(paceOf(one))),
    make("p", { class: "quiet" }, `${one.command}; begun ${moment(one.begunAt)}; ${plural(one.done.length, "store")} through`,
      one.windows > 1 ? `; worked on in ${one.windows} windows` : ""),
    ...(one.done.length ? [storeTable(one.done)] : []));
});

function paceText(pace) {
  if (pace.isHeld) return "A reconciliation of this daemon waits: a source, a replica or a lane is too busy (backpressure).";
  if (pace.rowsPerSecond === null) return "Its rate is not known yet.";
  if (pace.rowsPerSecond === 0) {
    return `No row was added to its figures for ${duration(pace.seconds)}: ` +
      "a part is being read, or it waits for busy servers. The log of the process that runs it says when it pauses.";
  }
  const left = pace.secondsLeft === null ? "" : `, about ${duration(pace.secondsLeft)} left of this store`;
  return `${count(pace.rowsPerSecond)} rows a second on both sides${left}.`;
}
