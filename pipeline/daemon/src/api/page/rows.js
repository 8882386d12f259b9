// Makes tables whose rows stay: each second only texts change, so that focus, selection and clicks survive.

import { make, say } from "/page/elements.js";

/** A column of texts. */
export const texts = (title, text, isNumber = false) => ({
  title, kind: isNumber ? "number" : null, mount: (cell) => (thing) => say(cell, text(thing)),
});

/** A column of elements. They are made anew only when `sign` gives another text. */
export const parts = (title, sign, children, kind = null) => ({
  title, kind,
  mount: (cell) => {
    let before = null;
    return (thing) => {
      const now = sign(thing);
      if (now !== before) cell.replaceChildren(...children(thing));
      before = now;
    };
  },
});

/** A column whose cells update themselves: `mount` gets a cell and a thing, and returns the function that updates. */
export const mounted = (title, mount, kind = null) => ({ title, kind, mount });

/** Makes a table. `show(things)` makes, updates, orders and removes rows; each thing has a `key` and a `level`. */
export function liveTable(caption, columns) {
  const rows = new Map();
  const body = make("tbody");
  const head = columns.map(({ title, kind }) => make("th", { scope: "col", class: kind }, title));
  const element = make("table", {}, make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...head)), body);
  const row = (thing) => {
    const cells = columns.map(({ kind }, place) => make(place === 0 ? "th" : "td",
      { scope: place === 0 ? "row" : null, class: kind }));
    const updates = columns.map(({ mount }, place) => mount(cells[place], thing));
    return { element: make("tr", {}, ...cells), update: (one) => updates.forEach((update) => update(one)) };
  };
  const show = (things) => {
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const gone = new Set(rows.keys());
    things.forEach((thing, place) => {
      gone.delete(thing.key);
      if (!rows.has(thing.key)) rows.set(thing.key, row(thing));
      const one = rows.get(thing.key);
      const level = thing.level ?? "";
      if (one.element.className !== level) one.element.className = level;
      one.update(thing);
      if (body.children[place] !== one.element) body.insertBefore(one.element, body.children[place] ?? null);
    });
    for (const key of gone) {
      rows.get(key).element.remove();
      rows.delete(key);
    }
    if (focused?.isConnected && document.activeElement !== focused) focused.focus();
  };
  return { element, show };
}
