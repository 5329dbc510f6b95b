// An answer on the page: its thought, its text with the source of every token, and what it came to.

import { $, button, copy, element } from "./dom.js";
import { NOTES, count, figures } from "./figures.js";
import { show } from "./markdown.js";
import { follow } from "./scrolling.js";
import { kindsOf } from "./sources.js";
import { Thought, parts } from "./thinking.js";

const TICK_MS = 100;
const CUT = ["length", "stopped", "lost"]; // ends that can be gone on from

/** A message of the model without a word yet. */
export const blank = (model) => ({
  role: "assistant", model, content: "", kinds: "", reasoning: "", thoughtKinds: "", rounds: [], finish: null,
});

export class Answer {
  /** `again` and `goOn` are what its buttons do. */
  constructor(message, { again, goOn }) {
    this.message = message;
    this.thought = new Thought();
    this.body = element("div");
    this.note = element("p", { className: "figures" });
    this.note.ariaLive = "off"; // it counts
    const copied = button("Copy", () => copy(() => parts(message).answer[0].trim(), copied, this.body));
    this.continues = button("Continue", goOn);
    this.copied = copied;
    this.tools = element("p", { className: "tools" }, copied, button("Regenerate", again), this.continues);
    this.element = element("article", { className: "answer", ariaLabel: "Answer" });
    this.element.append(this.thought.element, this.body, this.note, this.tools);
    this.#rest();
  }

  /** Wait for what comes; `reading` resolves to the number of the prompt's tokens, or to null. */
  begin(reading) {
    const start = performance.now();
    let tokens = null;
    reading.then((found) => (tokens = found));
    this.failure?.remove();
    this.note.hidden = false;
    this.element.ariaBusy = "true";
    this.tools.hidden = true;
    this.read = null;
    const bar = element("progress", { ariaLabel: "Part of the prompt that is read" });
    const tick = () => {
      const { total, cache, processed, time_ms: spent } = this.read ?? {};
      const seconds = ((performance.now() - start) / 1000).toFixed(1);
      const length = total ?? tokens;
      const known = `Reading a prompt of ${count(length ?? 0)} · ${seconds} s`;
      this.note.textContent = length === null ? "Reading the prompt …" : known;
      if (!total) return;
      const left = Math.ceil(((total - processed) * spent) / Math.max(1, processed - cache) / 1000);
      Object.assign(bar, { max: total, value: processed });
      this.note.append(`, about ${left} s left `, bar);
    };
    tick();
    this.timer = setInterval(tick, TICK_MS);
  }

  /** Take in a chunk of the stream. */
  add({ choices = [], omnidraft = {}, prompt_progress: read = null }) {
    const { message } = this;
    this.read = read ?? this.read;
    const { content = "", reasoning_content = "" } = choices[0]?.delta ?? {};
    message.finish = choices[0]?.finish_reason ?? message.finish;
    if (omnidraft.seconds !== undefined) message.figures = omnidraft;
    if (Array.isArray(omnidraft.tokens)) {
      message.rounds.push((omnidraft.accepted ?? 0) + 1);
      const text = (reasoning_content ?? "") + (content ?? "");
      const kinds = kindsOf(omnidraft.tokens, text.length);
      message.thoughtKinds += kinds.slice(0, reasoning_content?.length ?? 0);
      message.kinds += kinds.slice(reasoning_content?.length ?? 0);
    }
    message.reasoning += reasoning_content ?? "";
    message.content += content ?? "";
    message.thoughtKinds = message.thoughtKinds.padEnd(message.reasoning.length);
    message.kinds = message.kinds.padEnd(message.content.length); // of a server that does not say
    if (!content && !reasoning_content) return;
    clearInterval(this.timer);
    const tokens = message.rounds.reduce((sum, round) => sum + round, 0);
    this.note.textContent = tokens ? `${count(tokens)} so far` : "";
    this.drawing ??= setTimeout(() => this.#draw(), Math.max(16, 4 * (this.cost ?? 0)));
  }

  /** Show the whole, and what it came to. */
  end() {
    const { finish, figures, rounds } = this.message;
    this.#rest();
    const tokens = figures?.tokens ?? rounds.reduce((sum, round) => sum + round, 0);
    $("status").textContent = `Answer ${NOTES[finish] ?? "complete"}, ${count(tokens)}`;
  }

  /** Say that it failed, with a button where there is something to do. */
  fail(text, label, action) {
    this.failure = element("p", { className: "error" }, text);
    this.failure.role = "alert";
    if (label) this.failure.append(button(label, action));
    this.tools.hidden ||= this.copied.hidden; // an answer without a word has nothing else
    this.note.hidden = this.copied.hidden;
    follow(() => this.element.append(this.failure));
  }

  #draw() {
    clearTimeout(this.drawing);
    this.drawing = null;
    const start = performance.now();
    follow(() => this.#show(this.element.ariaBusy === "true"));
    this.cost = performance.now() - start; // a long answer is drawn less often
  }

  #show(busy) {
    const { thought, answer, open } = parts(this.message);
    this.thought.show(thought, busy && open);
    show(this.body, ...answer);
  }

  #rest() {
    clearInterval(this.timer);
    this.element.ariaBusy = "false";
    this.#draw();
    const { message } = this;
    this.copied.hidden = !message.content && !message.reasoning;
    this.continues.hidden = !CUT.includes(message.finish) || !message.content;
    follow(() => {
      this.note.replaceChildren(...figures(message));
      this.tools.hidden = false;
    });
  }
}
