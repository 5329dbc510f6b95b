// Markdown to DOM nodes, from the tokens of marked: whatever a model writes ends up in text nodes, HTML among it.

import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { extensions, formula } from "./maths.js";
import { follow } from "./scrolling.js";
import { Trace, spans } from "./sources.js";
import { Marked } from "./vendor/marked.js";

const LINK = /^(?:https?|mailto):/i;
const TAGS = { strong: "strong", em: "em", del: "del", blockquote: "blockquote" };
const LONGEST = 200_000; // characters that are read as Markdown

const marked = new Marked({
  extensions,
  tokenizer: {
    html: () => undefined, // a block of HTML is a paragraph, a tag is text
    def: () => undefined, // it would not be shown
    tag: (text) => {
      const line = /^<br ?\/?>/i.exec(text); // in a cell of a table there is no other way
      return line ? { type: "br", raw: line[0] } : undefined;
    },
    del: (text) => (text.startsWith("~~") ? false : undefined), // "~5" is about five
  },
});

/** Show a text in an element; the nodes of blocks that are the same as the last time stay. */
export function show(parent, text, kinds) {
  const before = parent.shown ?? [];
  const waiting = (parent.waiting = Symbol("waiting")); // a later text takes its place
  const later = () => parent.waiting === waiting && follow(() => show(parent, text, kinds));
  parent.shown = blocks(text, kinds).map((block, i) => {
    if (before[i]?.key === block.key && !before[i].waits) return before[i];
    const writer = new Writer(block, later);
    return { key: block.key, node: writer.whole(block.token), waits: writer.waits };
  });
  parent.shown.forEach(({ node }, i) => {
    if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null);
  });
  while (parent.childNodes.length > parent.shown.length) parent.lastChild.remove();
}

/** The blocks of a text, each with the kinds of its characters; the whole as one where it cannot be read. */
function blocks(text, kinds) {
  if (text.includes("\r\n")) { // marked drops the first of them
    kinds = kinds.replace(/./gs, (kind, i) => (text.startsWith("\r\n", i) ? "" : kind));
    text = text.replaceAll("\r\n", "\n");
  }
  let tokens;
  try {
    if (text.length > LONGEST) throw new RangeError("too long");
    tokens = marked.lexer(text);
  } catch { // lists in lists in lists, say
    return [{ token: { type: "text", text, raw: text }, text, kinds, key: text + kinds }];
  }
  const found = [];
  let at = 0;
  for (const token of tokens) {
    const block = { token, text: token.raw, kinds: kinds.slice(at, at + token.raw.length) };
    at += token.raw.length;
    if (token.type !== "space") found.push({ ...block, key: block.text + block.kinds });
  }
  return found;
}

/** Makes the nodes of one block. */
class Writer {
  constructor({ text, kinds }, later) {
    this.trace = new Trace(text, kinds);
    this.later = later;
    this.waits = false; // for a library
  }

  whole(token) {
    try {
      const made = this.#block(token);
      made.normalize();
      return made;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // the stack: too deep
      return element("p", {}, ...spans(this.trace.text, this.trace.kinds));
    }
  }

  #block(token) {
    const within = (tag, tokens = token.tokens) => this.#within(element(tag), token.raw, tokens);
    switch (token.type) {
      case "heading":
        return within(`h${Math.min(6, token.depth + 2)}`); // the page has the first two
      case "blockquote":
        return within("blockquote");
      case "hr":
        return element("hr");
      case "code":
        return codeBlock(token.text, token.lang?.split(/\s/)[0] ?? "", this.trace.take(token.text));
      case "list":
        return this.#list(token);
      case "table":
        return this.#table(token);
      case "maths":
        return element("p", {}, this.#formula(token));
      default:
        return token.tokens ? within("p") : element("p", {}, ...this.#text(token));
    }
  }

  #within(parent, raw, tokens) {
    this.trace.within(raw, () => {
      for (const token of tokens) {
        if (token.type === "space") this.trace.take(token.raw);
        else parent.append(...(BLOCKS.has(token.type) || token.block ? [this.#block(token)] : this.#inline(token)));
      }
    });
    return parent;
  }

  #list({ ordered, start, items, raw }) {
    const list = element(ordered ? "ol" : "ul");
    if (ordered) list.start = start;
    this.trace.within(raw, () => {
      for (const item of items) {
        const tokens = item.tokens.map((one) => ({ ...one, block: one.type !== "checkbox" }));
        list.append(this.#within(element("li", { className: item.task ? "task" : "" }), item.raw, tokens));
      }
    });
    return list;
  }

  #table({ header, rows, raw }) {
    const table = element("table");
    this.trace.within(raw, () => {
      this.#row(table.createTHead().insertRow(), header);
      const body = table.createTBody();
      for (const row of rows) this.#row(body.insertRow(), row);
    });
    return element("div", { className: "table", tabIndex: 0 }, table); // a wide one can be scrolled by keys
  }

  #row(row, cells) {
    for (const { tokens, text, align, header } of cells) {
      const cell = this.#within(element(header ? "th" : "td"), text, tokens);
      if (header) cell.scope = "col";
      if (align) cell.align = align;
      row.append(cell);
    }
  }

  #inline(token) {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return [this.#within(element(TAGS[token.type]), token.raw, token.tokens)];
      case "codespan":
        return [this.#leaf("code", token)];
      case "link":
        return this.#link(token, token.tokens);
      case "image": // nothing is loaded from another host
        return this.#link(token, [{ type: "text", raw: token.text, text: token.text }]);
      case "br":
        this.trace.take(token.raw.trim());
        return [element("br")];
      case "checkbox":
        return [checkbox(token.checked)];
      case "maths":
        return [this.#formula(token)];
      default:
        if (!token.tokens) return this.#text(token);
        return [...this.#within(element("span"), token.raw, token.tokens).childNodes];
    }
  }

  #leaf(tag, { raw, text }) {
    const made = element(tag);
    this.trace.within(raw, () => made.append(...spans(text, this.trace.take(text))));
    return made;
  }

  #text({ raw, text }) {
    return [...this.#leaf("span", { raw, text }).childNodes];
  }

  #link({ raw, href, text }, tokens) {
    if (!LINK.test(href)) return this.#text({ raw, text: raw });
    const link = element("a", { href, rel: "noopener noreferrer", target: "_blank" });
    this.#within(link, raw, tokens);
    if (!text) link.append(href);
    return [link];
  }

  #formula(token) {
    const made = formula(token, this.trace.take(token.raw), () => this.later());
    this.waits ||= made.localName === "code";
    return made;
  }
}

const checkbox = (checked) =>
  element("span", { role: "img", ariaLabel: checked ? "done" : "to do" }, checked ? "☑ " : "☐ ");

const BLOCKS = new Set(["heading", "blockquote", "hr", "code", "list", "table", "paragraph"]);
