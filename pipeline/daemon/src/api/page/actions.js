// Actions of operators. Each first asks the daemon for its dry run, and shows it; a second button carries it out. The
// daemon runs the same code as the command that is shown.

import { bodies, readDone } from "/page/answers.js";
import { openDialog } from "/page/dialogs.js";
import { badge, button, make } from "/page/elements.js";
import { isOperator } from "/page/operations.js";
import { send } from "/page/stream.js";

const REASON_CHARACTERS_MAX = 500;

let carriedOut = () => {};
/** Sets the function that is called after each action. */
export const onCarriedOut = (called) => { carriedOut = called; };

const asked = async (body, isDry) => readDone(await send("/v1/operations", { ...body, dry_run: isDry }));

/** Opens the dialog of an action that needs nothing else. */
function begin(title, label, body) {
  const dialog = openDialog(title);
  rehearse(dialog, label, body);
}

async function rehearse(dialog, label, body) {
  dialog.put(make("p", { role: "status" }, "The daemon is asked what this would do."));
  try {
    const dry = await asked(body, true);
    dialog.put(make("p", {}, "The same as the command:"), make("pre", {}, dry.command),
      make("p", { role: "status" }, "It would do this; nothing is done yet:"), listed(dry.lines),
      make("p", { class: "buttons" },
        button(label, { class: "main", "data-step": "carry-out" }, () => carryOut(dialog, label, body))));
  } catch (error) {
    dialog.put(...failed("It cannot be done now.", error), again(dialog, label, body));
  }
}

async function carryOut(dialog, label, body) {
  dialog.put(make("p", { role: "status" }, "It is being carried out."));
  try {
    const done = await asked(body, false);
    const record = done.isRecorded
      ? `It is recorded as operation ${done.operation}.`
      : "It is not recorded: the table of operations could not be written.";
    dialog.put(make("p", { role: "status" }, badge("carried out", "good")), listed(done.lines),
      make("p", { class: "quiet" }, record));
  } catch (error) {
    // An action that has begun goes on when its answer comes too late.
    const isAnswered = error.status && error.code !== "timed-out";
    const known = isAnswered ? "It was not carried out, or not wholly."
      : "It is not known whether it was carried out: the operations below show it.";
    dialog.put(...failed(known, error), again(dialog, label, body));
  }
  carriedOut();
}

const listed = (lines) => make("ul", { class: "lines" }, ...lines.map((line) => make("li", {}, line)));

const failed = (known, error) => [
  make("p", { role: "alert" }, badge(error.code ?? "no answer", "bad"), ` ${known}`),
  make("p", {}, error.status ? error.message : `The daemon did not answer: ${error.message}.`),
];

const again = (dialog, label, body) => make("p", { class: "buttons" },
  button("Ask again what it would do", {}, () => rehearse(dialog, label, body)));

/** Makes a form whose button asks for the dry run of the body that `read` returns. */
function form(dialog, label, read, ...fields) {
  const made = make("form", { autocomplete: "off" }, ...fields,
    make("p", { class: "buttons" },
      make("button", { class: "main", "data-step": "dry-run" }, "Show what it would do")));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    rehearse(dialog, label, read());
  });
  dialog.put(made);
}

const restart = (thing) => begin(`Restart ${thing.task}`, "Restart it", bodies.restart(thing.task));
const refresh = (lane) => begin(`Refresh ${lane.projection} from ${lane.source}`, "Read the tables again",
  bodies.refresh(lane.projection, lane.source));

function pause(lane) {
  const dialog = openDialog(`Pause ${lane.projection} from ${lane.source}`);
  const reason = make("input", { id: "reason", autocomplete: "off", maxlength: REASON_CHARACTERS_MAX });
  form(dialog, "Pause the lanes", () => bodies.pause(lane.projection, lane.source, reason.value.trim() || null),
    make("p", {}, `All lanes of ${lane.projection} from ${lane.source} stop until somebody resumes them.`),
    make("p", { class: "field" },
      make("label", { for: "reason" }, "Reason, which the status shows (may stay empty)"), reason));
}

function resume(lane) {
  const source = lane.pause ? lane.pause.source : lane.source;
  const of = source === null ? `${lane.projection} from all sources` : `${lane.projection} from ${source}`;
  begin(`Resume ${of}`, "Resume the lanes", bodies.resume(lane.projection, source));
}

/** Opens the dialog of a reconciliation: stores and mode first. */
export function reconcile(stores) {
  const dialog = openDialog("Reconcile now");
  const boxes = stores.map((name) => ({ name, box: make("input", { type: "checkbox" }) }));
  const mode = make("select", { id: "mode" }, make("option", { value: "" }, "as configured"),
    make("option", { value: "report" }, "report differences, change nothing"),
    make("option", { value: "repair" }, "have lanes repair differences"));
  const chosen = () => boxes.filter(({ box }) => box.checked).map(({ name }) => name);
  form(dialog, "Begin the reconciliation", () => bodies.reconcile(chosen(), mode.value || null),
    make("fieldset", {}, make("legend", {}, "Stores (none chosen = all)"),
      ...boxes.map(({ name, box }) => make("label", {}, box, ` ${name}`))),
    make("p", { class: "field" }, make("label", { for: "mode" }, "Mode"), mode));
}

const small = (text, action, thing, pressed) =>
  button(text, { "data-action": action, "data-thing": thing, "aria-haspopup": "dialog" }, pressed);

const named = (text, name) => [text, make("span", { class: "hidden" }, ` ${name}`)];

function withName(made, name) {
  made.replaceChildren(...named(made.textContent, name));
  return made;
}

/** Makes the buttons of a source, cache or task; none without an operator's token. */
export const taskButtons = (thing) => (isOperator() && thing.task
  ? [withName(small("Restart", "restart", thing.task, () => restart(thing)), thing.task)] : []);

/** Makes the buttons of a lane. */
export function laneButtons(lane) {
  if (!isOperator()) return [];
  const pausing = lane.state === "paused"
    ? small("Resume", "resume", lane.name, () => resume(lane))
    : small("Pause", "pause", lane.name, () => pause(lane));
  return [
    ...taskButtons(lane), withName(pausing, `${lane.projection} from ${lane.source}`),
    withName(small("Refresh", "refresh", lane.name, () => refresh(lane)), `${lane.projection} from ${lane.source}`),
  ];
}

/** Makes the buttons of a cache or an index. */
export function storeButtons(store) {
  if (!isOperator() || store.kind !== "index" || !store.parked) return taskButtons(store);
  const retry = () => begin(`Retry the parked documents of ${store.name}`, "Retry them", bodies.retry(store.name));
  return [withName(small("Retry parked documents", "retry-dead-letters", store.name, retry), `of ${store.name}`)];
}

/** Returns the text whose change makes the buttons anew. */
export const buttonSign = (thing) =>
  `${isOperator()} ${thing.state === "paused"} ${thing.pause?.source ?? ""} ${Boolean(thing.parked)}`;
