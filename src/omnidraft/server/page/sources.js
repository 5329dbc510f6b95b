// Where the characters of a text come from: its kinds, a string of the same length with a letter for each source.

import { element } from "./dom.js";

const CLASSES = { d: "drafted", c: "counted", t: "target" };
const LETTERS = Object.fromEntries(Object.entries(CLASSES).map(([letter, name]) => [name, letter]));
const NEAR = 1000; // characters that are looked through for a line: markup before it, and indents, are shorter

/** The kinds of so many characters, from the tokens of a chunk; blanks where the server does not say. */
export function kindsOf(tokens, length) {
  const said = tokens.map(({ text, source }) => (LETTERS[source] ?? " ").repeat(text.length)).join("");
  return said.padEnd(length).slice(0, length);
}

/** Kinds as runs, "d12t3", to be kept; and back. */
export const packed = (kinds) => kinds.replace(/(.)\1*/gs, (run, letter) => letter + run.length);
export const unpacked = (runs) => runs.replace(/(\D)(\d+)/g, (_, letter, count) => letter.repeat(count));

/** Goes through a text once, and tells the kinds of its pieces, which come in its order. */
export class Trace {
  constructor(text, kinds) {
    Object.assign(this, { text, kinds, at: 0 });
  }

  /** The kinds of the next piece, whose lines may be without their indents; blanks where it is written otherwise. */
  take(piece) {
    const lines = piece.split("\n").map((line) => {
      const found = this.#find(line);
      if (found < 0) return " ".repeat(line.length);
      this.at = found + line.length;
      return this.kinds.slice(found, this.at);
    });
    return lines.join(" ");
  }

  /** Do something with what is within a piece, and go on behind it. */
  within(piece, action) {
    const start = this.at;
    this.take(piece);
    const end = this.at;
    this.at = start;
    action();
    this.at = end;
  }

  #find(line) {
    const found = this.text.slice(this.at, this.at + line.length + NEAR).indexOf(line);
    return found < 0 ? -1 : this.at + found;
  }
}

/** Text as spans, one for each run of characters of one source; the white space around a run is nobody's. */
export function spans(text, kinds) {
  const nodes = [];
  for (let start = 0, end; start < text.length; start = end) {
    for (end = start + 1; end < text.length && kinds[end] === kinds[start]; ) end++;
    const name = CLASSES[kinds[start]];
    const piece = text.slice(start, end);
    const run = piece.trim();
    const at = piece.length - piece.trimStart().length;
    const marked = name && run ? element("span", { className: name }, run) : run;
    nodes.push(piece.slice(0, at), marked, piece.slice(at + run.length));
  }
  return nodes;
}

/** Mark the text within an element, which has markup already. */
export function mark(parent, kinds) {
  const walker = document.createTreeWalker(parent, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  let at = 0;
  for (const node of texts) {
    const { data } = node;
    node.replaceWith(...spans(data, kinds.slice(at, (at += data.length))));
  }
  parent.normalize();
}

/** The class of the source that most characters have; none where that is not known. */
export function most(kinds) {
  const counts = Object.keys(CLASSES).map((letter) => [kinds.split(letter).length - 1, letter]);
  const [count, letter] = counts.reduce((best, one) => (one[0] > best[0] ? one : best));
  return count ? CLASSES[letter] : "";
}
