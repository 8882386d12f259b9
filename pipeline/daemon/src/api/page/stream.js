// Reads /v1/events with fetch, because an EventSource sends no Authorization header. It reconnects with back-off.
// The token lives in this module's memory and nowhere else.

import { problemText } from "/page/model.js";

const PAUSE_FIRST_MS = 500;
const PAUSE_MAX_MS = 10000;
/** Silence after which the connection is dead: an event comes each second, or a comment each three. */
const SILENCE_MAX_MS = 4500;
/** Characters of one event, at most: more than any document of the daemon has. */
const BUFFER_CHARACTERS_MAX = 32 * 1024 * 1024;

const ASK_MAX_MS = 10000;
/** Time for the answer to an action; the daemon gives up earlier. */
const SEND_MAX_MS = 30000;

let token = null;

const headers = () => (token === null ? {} : { authorization: `Bearer ${token}` });

/** Gets a path of this listener: JSON or text, or an error with the text of the problem document. */
export async function ask(path, waitMs = ASK_MAX_MS) {
  return answer(await fetch(path, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(waitMs) }));
}

/** Sends a body as JSON; answers as `ask` does. */
export async function send(path, body) {
  const head = { ...headers(), "content-type": "application/json" };
  const request = { method: "POST", headers: head, body: JSON.stringify(body), cache: "no-store" };
  return answer(await fetch(path, { ...request, signal: AbortSignal.timeout(SEND_MAX_MS) }));
}

export const hasToken = () => token !== null;

async function answer(response) {
  if (!response.ok) throw await refusal(response);
  const isJson = response.headers.get("content-type").includes("json");
  return isJson ? response.json() : response.text();
}

async function refusal(response) {
  const problem = await response.json().catch(() => null);
  const text = problem ? problemText(problem) : `status ${response.status}`;
  return Object.assign(new Error(text), { status: response.status, code: problem?.code ?? null });
}

/** Calls `event`, `up`, `down` and `refused` of `handlers`, with a text where there is one; `use(token)` reconnects. */
export function follow(handlers) {
  let pause = PAUSE_FIRST_MS;
  let current = null;
  let timer = null;

  const again = (why) => {
    current = null;
    handlers.down(why);
    clearTimeout(timer);
    timer = setTimeout(begin, pause * (0.75 + Math.random() / 2));
    pause = Math.min(pause * 2, PAUSE_MAX_MS);
  };

  /** Shows a document. A document that the page cannot show is no failure of the connection. */
  const shown = (text) => {
    try {
      handlers.event(text);
    } catch (error) {
      throw Object.assign(new Error(`this page cannot show the daemon's answer (${error.message}); reload it`), { isOurs: true });
    }
  };

  async function begin() {
    const attempt = new AbortController();
    current = attempt;
    try {
      await readEvents(attempt, (text) => {
        shown(text);
        pause = PAUSE_FIRST_MS;
      }, handlers.up);
      if (current === attempt) again("the daemon has ended the stream");
    } catch (error) {
      if (current !== attempt) return;
      if (error.status === 401 || error.status === 403) {
        token = null;
        handlers.refused(error.message);
        pause = PAUSE_FIRST_MS;
      }
      again(error.status || error.isOurs ? error.message : "the daemon does not answer");
    }
  }

  begin();
  return {
    use(given) {
      token = given === "" ? null : given;
      const before = current;
      current = null;
      before?.abort();
      clearTimeout(timer);
      pause = PAUSE_FIRST_MS;
      begin();
    },
  };
}

async function readEvents(attempt, event, up) {
  let watch = null;
  const heard = () => {
    clearTimeout(watch);
    watch = setTimeout(() => attempt.abort(), SILENCE_MAX_MS);
  };
  heard();
  try {
    const response = await fetch("/v1/events", { headers: headers(), cache: "no-store", signal: attempt.signal });
    if (!response.ok) throw await refusal(response);
    up();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      buffer += value;
      if (buffer.length > BUFFER_CHARACTERS_MAX) throw new Error("an event is too long");
      const parts = buffer.split("\n\n");
      buffer = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data: "));
        if (lines.length) event(lines.map((line) => line.slice(6)).join("\n"));
      }
    }
  } finally {
    clearTimeout(watch);
    // An unfinished stream would otherwise keep its place in the daemon and its connection in the browser.
    attempt.abort();
  }
}
