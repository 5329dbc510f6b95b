// Requests to the server: JSON, events of a stream, and the API key where the server asks for one.

const KEY = "omnidraft-key"; // of the session storage, which a tab has to itself
let askForKey = async () => null;
let asking = null; // a promise, while the question is open

/** Set how a key is asked for: a function that is told whether one was refused, and resolves to a key or null. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** The response to a request; throws an Error whose message can be shown, with the status. Without `asks` nobody is asked for a key. */
export async function request(path, options = {}, asks = true) {
  for (;;) {
    const stored = sessionStorage.getItem(KEY);
    const key = /^[!-~]+$/.test(stored ?? "") ? stored : null; // no header holds another
    if (key === null) sessionStorage.removeItem(KEY);
    const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...headers } });
    if (response.ok) return response;
    if (response.status !== 401) throw Object.assign(new Error(await reason(response)), { status: response.status });
    if (sessionStorage.getItem(KEY) !== key) continue; // another request has a key meanwhile
    if (asks) asking ??= askForKey(stored !== null).finally(() => (asking = null));
    const given = asks ? await asking : null;
    if (given === null) throw new Error("The server asks for an API key.");
    sessionStorage.setItem(KEY, given);
  }
}

/** The JSON that a path answers with. */
export async function json(path, asks = true) {
  return (await request(path, {}, asks)).json();
}

/** The response to a body that is sent as JSON. */
export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** The JSON objects of a stream of server-sent events; throws an Error where it ends before its end mark. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection was lost before the end of the answer.");
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message ?? "The server failed.");
      yield event;
    }
  }
}

async function reason(response) {
  const wait = response.headers.get("Retry-After");
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? (typeof body.detail === "string" ? body.detail : response.statusText);
  const text = message || `The server answers ${response.status}`;
  return wait ? `${text} (try again in ${wait} s)` : text;
}
