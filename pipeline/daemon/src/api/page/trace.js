// Follows one key. The key goes into the body of a request and into nothing else: no address, no title. It is forgotten
// when the answer is closed.

import { readTrace } from "/page/answers.js";
import { badge, button, byId, count, duration, make, moment } from "/page/elements.js";
import { LEVELS } from "/page/model.js";
import { send } from "/page/stream.js";

const VERDICTS = { equal: "good", missing: "bad", "left over": "bad", stale: "unsure", unread: "unsure" };

let turn = 0;

/** Sets the names from which the form chooses. */
export function nameProjections(names) {
  const select = byId("trace-projection");
  const known = [...select.options].slice(1).map((option) => option.value);
  if (known.join("\n") === names.join("\n")) return;
  const before = select.value;
  select.replaceChildren(select.options[0], ...names.map((name) => make("option", { value: name }, name)));
  select.value = names.includes(before) ? before : "";
}

export function watchTrace() {
  byId("trace-form").addEventListener("submit", (event) => {
    event.preventDefault();
    follow(byId("trace-key").value, byId("trace-projection").value || null);
  });
}

/** Forgets the key and its answer. */
export function closeTrace() {
  turn += 1;
  byId("trace-key").value = "";
  byId("trace-answer").replaceChildren();
}

async function follow(key, projection) {
  const answer = byId("trace-answer");
  turn += 1;
  const mine = turn;
  answer.replaceChildren(make("p", { role: "status" }, "Sources, log, lanes and stores are asked."));
  let made;
  let level = "unsure";
  try {
    const trace = readTrace(await send("/v1/trace", { key, projection }));
    made = sections(trace);
    level = levelOf(trace);
  } catch (error) {
    made = [make("p", { role: "alert" }, badge(error.code ?? "no answer", "bad"), ` ${error.message}`)];
  }
  if (mine !== turn) return;
  const close = button("Close and forget the key", {}, () => {
    closeTrace();
    byId("trace-key").focus();
  });
  answer.replaceChildren(
    make("article", { class: `report traced ${level}` }, ...made, make("p", { class: "buttons" }, close)));
}

function sections(trace) {
  return [
    make("p", { class: "found", role: "status" }, trace.sentence),
    make("p", { class: "quiet" }, `${trace.entity}, key hash ${trace.hash}`,
      trace.also.length ? `; also a key of: ${trace.also.join(", ")} (choose a projection of it)` : ""),
    ...part("Source rows that claim it now", sourceRows(trace)),
    ...part("Last change in the log", lastChange(trace)),
    ...part("Stores", trace.stores.map(store)),
    ...part("Lanes", trace.lanes.length
      ? [table(["Lane", "State", "Lag", "Position"], trace.lanes.map(laneCells))] : []),
    ...part("Cache", trace.cache ? [cache(trace.cache)] : []),
    ...part("Documents", trace.documents.length ? [table(["Projection", "Document", "Verdict", "Position"],
      trace.documents.map((one) => [one.projection, one.id, verdict(one.verdict), one.position ?? "–"]))] : []),
  ];
}

/** Returns the level of the worst verdict. */
function levelOf(trace) {
  const levels = [...trace.stores, ...trace.documents].map((one) => VERDICTS[one.verdict] ?? "unsure");
  if (trace.unread.length) levels.push("unsure");
  return LEVELS[Math.max(0, ...levels.map((level) => LEVELS.indexOf(level)))];
}

const part = (title, content) => (content.length ? [make("h3", {}, title), ...content] : []);
const verdict = (text) => badge(text, VERDICTS[text] ?? "unsure");

const laneCells = (lane) => [
  lane.lane, lane.code ? `${lane.state} [${lane.code}]` : lane.state, duration(lane.lag), lane.position ?? "–",
];

function sourceRows(trace) {
  const rows = trace.sourceRows.map((row) => [
    row.source, row.table, row.fields.map(([name, value]) => `${name} ${shown(value)}`).join(", ") || "–",
    row.claims.join(", ") || "–", row.excluded.join("; ") || "–",
  ]);
  const extent = trace.unread.length ? "No source that was read" : "No source";
  return [
    rows.length ? table(["Source", "Table", "Fields", "Claims", "Claims nothing of"], rows)
      : make("p", {}, `${extent} has a row of this key.`),
    ...unreadList(trace.unread),
  ];
}

const unreadList = (unread) => (unread.length ? [make("ul", { class: "reasons" },
  ...unread.map((one) => make("li", {}, `${one.source} was not read: ${one.why}`)))] : []);

const shown = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

function lastChange({ lastChange: change, searched }) {
  const part = searched?.isWhole ? "no later one is in the log" : "older or later ones may be in the rest of the log";
  const extent = searched ? ` ${count(searched.messages)} messages were searched; ${part}.` : "";
  const unread = unreadList(searched?.unread ?? []);
  if (!change) return [make("p", {}, `None was found.${extent}`), ...unread];
  const at = change.committedAt === null ? "" : `, committed ${moment(change.committedAt)}`;
  const message = change.sequence === null ? "" : `, message ${count(change.sequence)}`;
  const place = `${change.source}, ${change.table}, at ${change.position}${message}${at}`;
  return [make("p", {}, `${change.kind} of ${place}.${extent}`), ...unread];
}

function store(one) {
  const unread = "not known: its table was not read";
  const claimed = (row) => (row.isClaimed === null ? unread : row.isClaimed ? "yes" : "no");
  const rows = one.rows.map((row) => [row.table, row.sourceTable, row.position ?? "–", claimed(row)]);
  return make("div", { class: "traced-store" },
    make("p", {}, make("b", {}, `${one.projection} on ${one.target} `), verdict(one.verdict),
      one.why ? ` ${one.why}` : ""),
    rows.length ? table(["Derived row in", "From", "Position", "Claimed by a source row"], rows)
      : make("p", { class: "quiet" }, "It has no derived row."));
}

function cache(one) {
  const age = one.age === null ? "" : `, ${duration(one.age)} old`;
  const differs = one.differs === null ? "" : one.differs ? "; it differs from the rows" : "; it equals the rows";
  return make("p", {}, `${one.name}: ${one.state}${age}${differs}.`);
}

function table(titles, rows) {
  const row = (cells) => make("tr", {}, ...cells.map((cell, place) =>
    make(place === 0 ? "th" : "td", { scope: place === 0 ? "row" : null }, cell)));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": titles[0] },
    make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))),
      make("tbody", {}, ...rows.map(row))));
}
