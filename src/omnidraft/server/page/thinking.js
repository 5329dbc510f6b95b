// What a model thinks before it answers: apart in the stream, or in <think> at the beginning of the text.

import { element } from "./dom.js";
import { show } from "./markdown.js";

const [OPEN, CLOSE] = ["<think>", "</think>"];

/** Thought and answer of a message, each a text with its kinds; `open` is true while the thought goes on. */
export function parts({ content, kinds, reasoning = "", thoughtKinds = "" }) {
  const between = (start, end) => [content.slice(start, end), kinds.slice(start, end)];
  if (reasoning) return { thought: [reasoning, thoughtKinds], answer: [content, kinds], open: !content };
  const start = content.search(/\S/);
  if (start < 0 || !(content.startsWith(OPEN, start) || OPEN.startsWith(content.slice(start)))) {
    return { thought: ["", ""], answer: [content, kinds], open: false };
  }
  const end = content.indexOf(CLOSE, start);
  const stop = end < 0 ? content.length : end;
  const rest = end < 0 ? content.length : end + CLOSE.length;
  return { thought: between(Math.min(stop, start + OPEN.length), stop), answer: between(rest), open: end < 0 };
}

/** A thought, folded. */
export class Thought {
  constructor() {
    this.title = element("summary");
    this.title.ariaLive = "off"; // it counts
    this.body = element("div");
    this.element = element("details", { className: "thought", hidden: true }, this.title, this.body);
    this.element.addEventListener("toggle", () => this.#draw());
  }

  /** Show it; `busy` while it goes on. */
  show([text, kinds], busy) {
    this.shown = [text, kinds];
    this.element.hidden = !text.trim() && !busy;
    const words = text.split(/\s+/).filter(Boolean).length;
    this.title.textContent = busy ? `Thinking … ${words} words` : `Thought in ${words} words`;
    this.#draw();
  }

  #draw() {
    if (this.element.open) show(this.body, ...this.shown);
  }
}
