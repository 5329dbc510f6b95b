// The conversations that this browser keeps, in its local storage: an entry for each, and nothing on the server.

import { packed, unpacked } from "./sources.js";

const PREFIX = "omnidraft-conversation-";
const TITLE = 60; // characters
const TRACES = ["kinds", "thoughtKinds"]; // kept as runs

/** A conversation without messages, which is kept once it has one. */
export function fresh() {
  return { id: crypto.getRandomValues(new Uint32Array(3)).join("-"), title: "", created: Date.now(), messages: [] };
}

/** What a conversation is called: the name that it was given, or how it begins. */
export function titleOf({ title, messages }) {
  const text = title || messages[0]?.content.trim() || messages[0]?.files?.[0]?.name || "New chat";
  const line = text.split("\n", 1)[0];
  return line.length > TITLE ? `${line.slice(0, TITLE)}…` : line;
}

/** Id and title of all that are kept, the one that changed last first. */
export function all() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => read(name)).filter((one) => one !== null);
  found.sort((a, b) => b.changed - a.changed);
  return found.map((one) => ({ id: one.id, title: titleOf(one) }));
}

/** One of them, or null where there is none that can be read. */
export function load(id) {
  const found = read(PREFIX + id);
  return found && { ...found, messages: found.messages.map((message) => traced(message, unpacked)) };
}

function read(name) {
  try {
    const found = JSON.parse(localStorage.getItem(name));
    return Array.isArray(found?.messages) ? found : null;
  } catch {
    return null;
  }
}

/** Keep one; false where the browser has no room for it. One without messages is not kept. */
export function save(conversation) {
  const { messages } = conversation;
  if (!messages.length) {
    remove(conversation.id);
    return true;
  }
  const kept = { ...conversation, messages: messages.map((message) => traced(message, packed)) };
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(kept));
    return true;
  } catch {
    return false;
  }
}

export const remove = (id) => localStorage.removeItem(PREFIX + id);

/** Call back where another tab changes what is kept. */
export function onChange(action) {
  addEventListener("storage", ({ key }) => (key === null || key.startsWith(PREFIX)) && action());
}

function traced(message, change) {
  const traces = TRACES.filter((name) => message[name]).map((name) => [name, change(message[name])]);
  return { ...message, ...Object.fromEntries(traces) };
}
