// Opens the page's one dialog: for a chart, or for an action with its dry run. The browser keeps the focus inside it
// and gives it back afterwards.

import { button, byId, make } from "/page/elements.js";

let current = null;

function end() {
  const one = current;
  current = null;
  one?.closed();
}

/** Opens the dialog. `closed` is called once, when it closes. Returns its content, which ignores late answers. */
export function openDialog(title, closed = () => {}) {
  const dialog = byId("dialog");
  if (dialog.open) {
    dialog.close();
    end();
  }
  const content = make("div", { class: "content" });
  const one = { closed };
  current = one;
  dialog.replaceChildren(
    make("h2", { id: "dialog-title", tabindex: -1, autofocus: true }, title), content,
    make("p", { class: "buttons" }, button("Close", { class: "close" }, () => dialog.close())));
  dialog.showModal();
  return {
    element: content,
    isOpen: () => current === one,
    put: (...children) => {
      if (current !== one) return;
      const hadFocus = content.contains(document.activeElement);
      content.replaceChildren(...children);
      // The pressed button is gone; the focus must not leave the dialog with it.
      if (hadFocus) byId("dialog-title").focus();
    },
    close: () => {
      if (current === one) dialog.close();
    },
  };
}

/** Begins to watch the dialog's end; its content does not outlive it. */
export function watchDialog() {
  const dialog = byId("dialog");
  dialog.addEventListener("close", () => {
    // The event comes some time after the dialog's end: another content may be there by then.
    if (dialog.open) return;
    dialog.replaceChildren();
    end();
  });
}
