// Shows the sentence at the top: the worst thing with its code, its remedy and the runbook's text.

import { badge, byId, make, say } from "/page/elements.js";
import { headingOf, remedy, steps } from "/page/model.js";
import { section } from "/page/runbook.js";
import { sentence } from "/page/sentence.js";
import { daemonTime } from "/page/time.js";

let shownHeading = null;

export function showVerdict(model, history) {
  const top = sentence(model, history, daemonTime());
  byId("verdict").className = `verdict ${top.level}`;
  say(byId("sentence"), top.text);
  const title = `${top.level === "good" ? "" : "● "}${top.text} – Anabranch`;
  if (document.title !== title) document.title = title;
  const code = top.problem?.code ?? null;
  const text = top.problem ? remedy(top.problem) ?? advice(top.problem) : top.advice ?? "";
  if (byId("action").textContent !== `${code ?? ""}${text}`) {
    byId("action").replaceChildren(...(code ? [make("code", {}, code)] : []), text);
  }
  showOthers(top.others);
  showRunbook(top.problem ? headingOf(top.problem) : top.heading ?? null);
}

function showOthers(others) {
  const items = others.map((one) => make("li", {}, badge(one.problem?.code ?? "no code", one.level),
    ` ${one.text}${one.advice ? `.${one.advice}` : ""}`));
  byId("others").replaceChildren(...(items.length ? [make("ul", {}, ...items)] : []));
}

/** Returns general advice. Without a token the fault's own text is missing; the runbook has the remedy. */
function advice(problem) {
  if (!problem.code) return steps(problem);
  const isStopped = problem.things.some((thing) => thing.state === "stopped");
  return isStopped
    ? " It stays stopped until an operator restarts it: the runbook's text below says how."
    : " Anabranch tries again by itself. If the fault lasts, the runbook's text below says what to do.";
}

/** Shows the section of a code or heading; none for null. An answer that another heading has overtaken is dropped. */
async function showRunbook(heading) {
  if (heading === shownHeading) return;
  shownHeading = heading;
  byId("runbook").hidden = heading === null;
  if (heading === null) return;
  say(byId("runbook-title"), `The runbook's section on ${heading}`);
  try {
    const elements = await section(heading);
    if (heading === shownHeading) byId("runbook-text").replaceChildren(...elements);
  } catch (error) {
    if (heading !== shownHeading) return;
    byId("runbook-text").replaceChildren(make("p", {}, `It could not be read: ${error.message}`));
    shownHeading = null;
  }
}
