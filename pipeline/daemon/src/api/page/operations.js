// Knows whether the token is an operator's, and shows the newest operations of the installation.

import { badge, duration, make, say } from "/page/elements.js";
import { readOperations } from "/page/answers.js";
import { liveTable, parts, texts } from "/page/rows.js";
import { ask, hasToken } from "/page/stream.js";
import { noteTime, stamp } from "/page/time.js";

const SHOWN_MAX = 50;
/** Rows that are asked for: an operation that has ended has two. */
const ROWS_MAX = 100;
/** The daemon gives up earlier when the server with the table does not answer. */
const WAIT_MS = 15000;
/** Answers to a token that is no operator's, and of a daemon without operations. */
const REFUSALS = [401, 403, 404];
const LEVELS = { done: "good", begun: "busy", failed: "bad" };
const WORDS = { done: "done", begun: "no end is recorded", failed: "failed" };

let operator = false;

/** Returns whether the daemon has accepted the token as an operator's. */
export const isOperator = () => operator;

const took = (one) => (one.begunAt === null || one.endedAt === null ? null : (one.endedAt - one.begunAt) / 1000);
const states = (one) => [["before", one.before], ["after", one.after]].filter(([, text]) => text);

const table = liveTable("Operations: when, by which operator, command, outcome", [
  texts("When (UTC)", (one) => stamp(one.begunAt ?? one.endedAt)),
  parts("Command", (one) => one.command, (one) => [make("code", {}, one.command)]),
  parts("Outcome", (one) => one.outcome, (one) => [badge(WORDS[one.outcome], LEVELS[one.outcome])]),
  texts("Took", (one) => duration(took(one)), true),
  texts("Operator", (one) => one.who),
  texts("From", (one) => `${one.via}, ${one.host}, ${one.version}`),
  parts("State", (one) => JSON.stringify(states(one)), (one) => states(one).map(([when, text]) =>
    make("p", {}, make("span", { class: "quiet" }, `${when}: `), text)), "wide"),
]);

let turn = 0;
let isAsking = false;

/** Asks for the operations again, as `readAnew` does, unless it is asking. */
export async function readAgain(page) {
  if (!isAsking) await readAnew(page);
}

/**
 * Asks for the operations. `page.changed(isOperator)` is called when the token turns out to be another kind than
 * before. The daemon checks the token first, so each other refusal than that of the token comes to an operator: also
 * while the operations cannot be read, actions are shown. Without a token nothing is asked.
 */
export async function readAnew({ section, said, changed }) {
  turn += 1;
  const mine = turn;
  if (!section.contains(table.element)) section.append(table.element);
  const set = (isNow) => {
    const before = operator;
    operator = isNow;
    if (before !== isNow) changed(isNow);
  };
  if (!hasToken()) {
    set(false);
    return;
  }
  isAsking = true;
  try {
    const read = readOperations(await ask(`/v1/operations?limit=${ROWS_MAX}`, WAIT_MS));
    if (mine !== turn) return;
    show(read, said);
    set(true);
  } catch (error) {
    if (mine !== turn) return;
    say(said, `The operations cannot be read: ${error.message}.`);
    if (error.status) set(!REFUSALS.includes(error.status));
  } finally {
    if (mine === turn) isAsking = false;
  }
}

/** Takes the actions away until the daemon has accepted another token. */
export function forget(changed) {
  turn += 1;
  isAsking = false;
  if (operator) {
    operator = false;
    changed(false);
  }
}

function show(read, said) {
  noteTime(read.now);
  const levelOf = (one) => (one.outcome === "failed" ? "bad" : "");
  table.show(read.operations.slice(0, SHOWN_MAX).map((one) => ({ ...one, level: levelOf(one) })));
  const more = read.hasMore ? " Older ones stand in the table operations of the control database." : "";
  say(said, read.operations.length ? `The newest operations.${more}` : "No operation is recorded yet.");
}
