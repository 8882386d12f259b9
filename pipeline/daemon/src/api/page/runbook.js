// Turns a section of the runbook, of a code or a heading, from Markdown into elements: headings, paragraphs, lists,
// blocks of commands, `code` and *stress*. Other Markdown stays text.

import { make } from "/page/elements.js";
import { ask } from "/page/stream.js";

const sections = new Map();

/** Returns the name of a heading's section in paths; a code is its own. */
const slugOf = (heading) => heading.toLowerCase().split(/[^a-z0-9]+/).filter((word) => word).join("-");

/** Returns the elements of the section of a code or heading; the daemon is asked once for each. */
export async function section(heading) {
  const slug = slugOf(heading);
  if (!sections.has(slug)) sections.set(slug, await ask(`/v1/runbook/${slug}`));
  return blocks(sections.get(slug));
}

function inline(text) {
  return text.split(/(`[^`]+`|\*[^*]+\*)/).map((part) => {
    if (part.startsWith("`") && part.length > 2) return make("code", {}, part.slice(1, -1));
    if (part.startsWith("*") && part.length > 2) return make("em", {}, part.slice(1, -1));
    return part;
  });
}

const ITEM = /^(?:[-*]|\d+\.) +/;

function blocks(text) {
  const made = [];
  let list = null;
  const end = (kind) => {
    if (list && list.tagName.toLowerCase() !== kind) list = null;
  };
  for (const part of text.split(/\n{2,}/)) {
    const lines = part.split("\n").filter((line) => line !== "");
    if (!lines.length) continue;
    const indent = Math.min(...lines.map((line) => line.search(/\S/)));
    const first = lines[0];
    if (/^#+ /.test(first)) {
      end(null);
      made.push(make("h3", {}, first.replace(/^#+ /, "")));
      lines.shift();
      if (!lines.length) continue;
    }
    if (indent >= 4) {
      const block = make("pre", {}, lines.map((line) => line.slice(indent)).join("\n"));
      (list?.lastElementChild ?? { append: (one) => made.push(one) }).append(block);
      continue;
    }
    if (ITEM.test(lines[0])) {
      const kind = /^\d/.test(lines[0]) ? "ol" : "ul";
      end(kind);
      if (!list) made.push(list = make(kind));
      for (const line of lines) {
        if (ITEM.test(line)) list.append(make("li", {}, ...inline(line.replace(ITEM, ""))));
        else list.lastElementChild.append(" ", ...inline(line.trim()));
      }
      continue;
    }
    if (list && indent >= 2) {
      list.lastElementChild.append(make("p", {}, ...inline(lines.map((line) => line.trim()).join(" "))));
      continue;
    }
    end(null);
    if (first.startsWith("|")) made.push(make("pre", {}, lines.join("\n")));
    else made.push(make("p", {}, ...inline(lines.map((line) => line.trim()).join(" "))));
  }
  return made;
}
