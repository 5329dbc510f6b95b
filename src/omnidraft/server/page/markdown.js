// Markdown to DOM nodes. Whatever a model writes ends up in text nodes: nothing is ever read as HTML.
//
// A text comes with its kinds, a string of the same length: for each character the source of its token.

const CLASSES = { d: "drafted", c: "counted", t: "target" };
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const ITEM = /^ {0,3}([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const DEEPEST = 6; // lists inside lists: a line of dashes must not exhaust the stack
const INLINE = new RegExp( // every repetition is bounded, as an answer may be made to take long
  [
    /(?<ticks>`{1,10})(?<code>[^`]|[^`].{0,2000}?[^`])\k<ticks>(?!`)/,
    /(?<double>\*\*|(?<!\w)__)(?=\S)(?<bold>.{0,2000}?\S)\k<double>/,
    /(?<single>\*|(?<!\w)_)(?=[^\s*_])(?<italic>.{0,2000}?[^\s*_])\k<single>(?![\w*])/,
    /\[(?<label>[^\]]{1,500})\]\((?<url>https?:\/\/[^\s()]{1,2000})\)/,
    /(?<bare>https?:\/\/[^\s<>()"'`*\]]{1,2000}[^\s<>()"'`*\].,:;!?])/,
  ].map((part) => part.source).join("|"),
  "ds",
);

class Marked {
  constructor(text, kinds) {
    this.text = text;
    this.kinds = kinds;
  }

  slice(start, end) {
    return new Marked(this.text.slice(start, end), this.kinds.slice(start, end));
  }

  lines() {
    let start = 0;
    return this.text.split("\n").map((line) => {
      const found = this.slice(start, start + line.length);
      start += line.length + 1;
      return found;
    });
  }
}

/** Show a text in an element; the nodes of blocks that are the same as the last time stay. */
export function show(element, text, kinds) {
  const before = element.shown ?? [];
  element.shown = blocks(new Marked(text, kinds).lines()).map((block, i) => {
    const key = JSON.stringify(block);
    return before[i]?.key === key ? before[i] : { key, node: node(block) };
  });
  element.shown.forEach(({ node }, i) => {
    if (element.childNodes[i] !== node) element.insertBefore(node, element.childNodes[i] ?? null);
  });
  while (element.childNodes.length > element.shown.length) element.lastChild.remove();
}

// ---------------------------------------------------------------- blocks

function blocks(lines, depth = 0) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    const text = lines[i].text;
    const start = i++;
    let match;
    if (!text.trim()) continue;
    if ((match = FENCE.exec(text))) {
      const end = new RegExp(`^ {0,3}${match[1][0]}{${match[1].length},}\\s*$`);
      while (i < lines.length && !end.test(lines[i].text)) i++;
      found.push({ tag: "pre", language: match[2], lines: lines.slice(start + 1, i++) });
    } else if ((match = HEADING.exec(text))) {
      found.push({ tag: "h3", lines: [lines[start].slice(match[0].length)] });
    } else if (depth < DEEPEST && (match = ITEM.exec(text))) {
      const list = { tag: /\d/.test(match[1]) ? "ol" : "ul", first: parseInt(match[1]) || 1, items: [] };
      for (i = start; (match = itemAt(lines, i, list.tag)); i = match.end) {
        list.items.push(blocks(match.lines, depth + 1));
      }
      found.push(list);
    } else {
      while (i < lines.length && lines[i].text.trim() && !begins(lines[i].text)) i++;
      found.push({ tag: "p", lines: lines.slice(start, i) });
    }
  }
  return found;
}

const begins = (text) => FENCE.test(text) || HEADING.test(text) || ITEM.test(text);

/** The item of a list that begins at a line, blank lines before it left out: its lines, and where it ends. */
function itemAt(lines, start, tag) {
  while (start < lines.length && !lines[start].text.trim()) start++;
  const match = ITEM.exec(lines[start]?.text ?? "");
  if (!match || /\d/.test(match[1]) !== (tag === "ol")) return null;
  const own = [lines[start].slice(match[0].length)];
  let end = start + 1;
  for (; end < lines.length; end++) {
    const text = lines[end].text;
    const indent = text.search(/\S/);
    const goesOn = indent < 0 ? /^ {2,}\S/.test(lines[end + 1]?.text ?? "") : indent >= 2;
    if (!goesOn) break;
    own.push(lines[end].slice(Math.min(Math.max(indent, 0), match[0].length)));
  }
  return { lines: own, end };
}

function node(block) {
  if (block.tag === "pre") return code(block);
  const element = document.createElement(block.tag);
  if (block.tag === "ol") element.start = block.first;
  for (const item of block.items ?? []) {
    const li = element.appendChild(document.createElement("li"));
    for (const inner of item) li.append(node(inner));
  }
  if (block.lines) inline(element, joined(block.lines));
  element.normalize(); // once: it looks at all that is there
  return element;
}

function joined(lines) {
  return new Marked(lines.map((line) => line.text).join("\n"), lines.map((line) => line.kinds).join(" "));
}

function code(block) {
  const box = document.createElement("div");
  box.className = "code";
  const head = box.appendChild(document.createElement("div"));
  head.append(block.language || "code");
  const button = head.appendChild(document.createElement("button"));
  button.type = "button";
  button.textContent = "Copy";
  const body = box.appendChild(document.createElement("pre")).appendChild(document.createElement("code"));
  body.parentElement.tabIndex = 0; // a wide block can be scrolled by keys
  leaves(body, joined(block.lines));
  body.normalize();
  button.addEventListener("click", () => copy(body, button));
  return box;
}

async function copy(body, button) {
  try {
    await navigator.clipboard.writeText(body.textContent);
    button.textContent = "Copied";
  } catch { // no clipboard outside of https and loopback
    getSelection().selectAllChildren(body);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

// ---------------------------------------------------------------- inline

function inline(parent, marked) {
  for (let match; (match = INLINE.exec(marked.text)); marked = marked.slice(match.index + match[0].length)) {
    leaves(parent, marked.slice(0, match.index));
    const { groups, indices } = match;
    const part = (name) => marked.slice(...indices.groups[name]);
    if (groups.code) leaves(child(parent, "code"), part("code"));
    else if (groups.bold) inline(child(parent, "strong"), part("bold"));
    else if (groups.italic) inline(child(parent, "em"), part("italic"));
    else if (groups.url) leaves(link(parent, groups.url), part("label"));
    else leaves(link(parent, groups.bare), part("bare"));
  }
  leaves(parent, marked);
}

function child(parent, tag) {
  return parent.appendChild(document.createElement(tag));
}

function link(parent, url) {
  const a = child(parent, "a");
  a.href = url; // https or http, as the pattern has it
  a.rel = "noopener noreferrer";
  a.target = "_blank";
  return a;
}

/** Text as spans, one for each run of characters of one source; the white space around a run is nobody's. */
function leaves(parent, { text, kinds }) {
  for (let start = 0, end; start < text.length; start = end) {
    for (end = start + 1; end < text.length && kinds[end] === kinds[start]; ) end++;
    const name = CLASSES[kinds[start]];
    const piece = text.slice(start, end);
    const run = piece.trim();
    const at = piece.length - piece.trimStart().length;
    parent.append(piece.slice(0, at));
    if (name && run) Object.assign(child(parent, "span"), { className: name, textContent: run });
    else parent.append(run);
    parent.append(piece.slice(at + run.length));
  }
}
