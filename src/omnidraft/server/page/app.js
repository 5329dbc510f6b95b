// The chat: what is sent, how an answer comes in, and the keys.

import { events, json, onKeyNeeded, request } from "./api.js";
import { show } from "./markdown.js";
import { Panel } from "./panel.js";

const $ = (id) => document.getElementById(id);
const KINDS = { drafted: "d", counted: "c", target: "t" };
const NOTES = { length: "cut off at the token limit", stopped: "stopped", lost: "broken off" };

const EMPTY = $("empty").textContent;
const RETRY_MS = 2000;
const SLACK = 48; // pixels from the end of the conversation that count as being there

let messages = []; // the conversation, as the server gets it
let answering = null; // an AbortController, while an answer comes in
let following = true; // the end of the conversation, until the reader scrolls up
let place = 0; // where it was scrolled to last
const panel = new Panel(() => $("model").value);

// ---------------------------------------------------------------- an answer

/** One answer on the page: its text with the source of every character, and its figures. */
class Answer {
  constructor() {
    this.text = "";
    this.kinds = "";
    this.tokens = 0;
    this.finish = null;
    this.figures = null;
    this.element = turn("answer");
    this.element.setAttribute("aria-busy", "true");
    this.body = this.element.appendChild(document.createElement("div"));
    this.note = this.element.appendChild(document.createElement("p"));
    this.note.className = "figures";
    this.note.textContent = "Reading the prompt …";
  }

  /** Take in a chunk of the stream. */
  add({ choices = [], omnidraft = {} }) {
    const piece = choices[0]?.delta?.content ?? "";
    this.finish = choices[0]?.finish_reason ?? this.finish;
    if (omnidraft.seconds !== undefined) this.figures = omnidraft;
    const tokens = Array.isArray(omnidraft.tokens) ? omnidraft.tokens : [];
    this.tokens += tokens.length;
    this.text += piece;
    for (const { text, source } of tokens) this.kinds += (KINDS[source] ?? " ").repeat(text.length);
    if (!tokens.length) this.kinds = this.kinds.padEnd(this.text.length); // of a server that does not say
    if (piece) this.note.textContent = this.tokens ? `${count(this.tokens)} so far` : "";
    this.drawing ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = null;
    follow(() => show(this.body, this.text, this.kinds));
  }

  /** Show the whole, and what it came to; `how` is a key of NOTES where it did not end by itself. */
  end(how = this.finish) {
    this.draw();
    follow(() => this.note.replaceChildren(...parts(this.figures, this.tokens, NOTES[how])));
    this.element.setAttribute("aria-busy", "false");
    $("status").textContent = `Answer ${NOTES[how] ?? "complete"}, ${count(this.figures?.tokens ?? this.tokens)}`;
  }
}

function count(tokens) {
  return tokens === 1 ? "1 token" : `${tokens} tokens`;
}

/** The figures of an answer as spans. */
function parts(figures, tokens, note) {
  const said = [];
  if (figures) {
    const { seconds, tokens_per_s, acceptance_rate, tokens_per_pass, estimated_speedup } = figures;
    said.push(count(figures.tokens), `${seconds.toFixed(2)} s`, `${tokens_per_s.toFixed(1)} tokens/s`);
    const drafted = acceptance_rate != null; // else an estimate would be noise
    said.push(drafted ? `${Math.round(100 * acceptance_rate)} % of draft tokens accepted` : "no drafts");
    if (tokens_per_pass != null) said.push(`${tokens_per_pass.toFixed(2)} tokens a pass`);
    if (drafted && estimated_speedup != null) said.push(`${estimated_speedup.toFixed(2)}× against no drafting (estimate)`);
  } else if (tokens) {
    said.push(count(tokens));
  }
  if (note) said.push(note);
  return said.map((text) => Object.assign(document.createElement("span"), { textContent: text }));
}

// ---------------------------------------------------------------- the conversation

async function send(text) {
  const own = turn("own");
  own.append(text);
  const conversation = messages;
  conversation.push({ role: "user", content: text });
  const answer = new Answer();
  const abort = (answering = new AbortController());
  busy(true);
  try {
    await stream(answer, conversation, abort.signal);
    answer.end();
  } catch (error) {
    if (conversation === messages) failed(answer, error, abort.signal.aborted, own, text);
  }
  if (answer.text) conversation.push({ role: "assistant", content: answer.text });
  else conversation.pop(); // two messages of a user in a row: many templates refuse them
  if (answering !== abort) return;
  answering = null;
  busy(false);
  panel.follow();
}

async function stream(answer, conversation, signal) {
  const body = { model: $("model").value, messages: conversation, stream: true, omnidraft: { trace: true } };
  const headers = { "Content-Type": "application/json" };
  const response = await request("v1/chat/completions", {
    method: "POST", headers, body: JSON.stringify(body), signal,
  });
  for await (const chunk of events(response)) answer.add(chunk);
}

function failed(answer, error, stopped, own, text) {
  answer.end(stopped ? "stopped" : "lost");
  if (stopped) return;
  const note = document.createElement("p");
  note.className = "error";
  note.setAttribute("role", "alert");
  note.append(error instanceof TypeError ? "The server cannot be reached." : error.message);
  follow(() => answer.element.append(note));
  if (answer.text) return;
  answer.note.remove();
  const again = note.appendChild(Object.assign(document.createElement("button"), { textContent: "Try again" }));
  again.type = "button";
  again.addEventListener("click", () => {
    if (answering) return;
    own.remove();
    answer.element.remove();
    send(text);
  });
}

function reset() {
  answering?.abort();
  answering = null;
  messages = [];
  $("log").replaceChildren($("empty"));
  $("empty").hidden = false;
  busy(false);
  $("message").focus();
}

function turn(kind) {
  $("empty").hidden = true;
  const element = document.createElement("article");
  element.className = kind;
  element.setAttribute("aria-label", kind === "own" ? "You" : "Answer");
  $("log").append(element);
  following = true;
  $("log").scrollTop = $("log").scrollHeight;
  return element;
}

/** Note where the reader scrolls: away from the end upwards, and back to it. */
function scrolled() {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < SLACK;
  following = atEnd || (following && log.scrollTop >= place); // an answer that grows moves the end away, too
  place = log.scrollTop;
}

/** Change the conversation, and go to its end unless the reader has left it. */
function follow(change) {
  change();
  if (following) $("log").scrollTop = $("log").scrollHeight;
}

function busy(state) {
  const focused = document.activeElement;
  $("send").hidden = state;
  $("stop").hidden = !state;
  if (focused === $("send") || focused === $("stop")) $("message").focus(); // a hidden button would lose it
}

// ---------------------------------------------------------------- keys and buttons

function submit() {
  const text = $("message").value.trim();
  if (!text || answering || !$("model").value) return;
  $("message").value = "";
  send(text);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("ask").open) answering?.abort();
});
$("log").addEventListener("scroll", scrolled);
$("stop").addEventListener("click", () => answering?.abort());
$("new").addEventListener("click", reset);
$("sources").addEventListener("change", () => document.body.classList.toggle("plain", !$("sources").checked));
$("view").addEventListener("click", () => {
  const shown = document.body.classList.toggle("figures-only");
  $("view").setAttribute("aria-pressed", shown);
});
$("model").addEventListener("change", () => {
  panel.follow();
  panel.report();
});

onKeyNeeded((refused) => {
  const dialog = $("ask");
  if (refused) $("ask-text").textContent = "The server refuses that key. Give another.";
  $("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  const closed = () => (dialog.returnValue === "use" ? $("key").value : null);
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(closed()), { once: true }));
});

async function start() {
  try {
    const { data } = await json("v1/models");
    $("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
    $("model").disabled = false;
    $("status").textContent = "";
    $("empty").textContent = EMPTY;
    panel.follow();
    $("message").focus();
  } catch (error) {
    $("status").textContent = $("empty").textContent = `The server cannot be used yet: ${error.message}`;
    if (error.status === 503) setTimeout(start, RETRY_MS); // it loads its models
  }
}

start();
