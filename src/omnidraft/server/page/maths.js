// Formulas in TeX: where they are in Markdown, and MathML of them, which browsers draw themselves.

import { element } from "./dom.js";
import { sanitized } from "./sanitized.js";
import { most } from "./sources.js";

const DISPLAY = /^(?:\$\$([^]{1,5000}?)\$\$|\\\[([^]{1,5000}?)\\\])/;
const BLOCK = new RegExp(`${DISPLAY.source.replace("^", "^ {0,3}")}[ \\t]*(?:\\n|$)`);
// a dollar sign is no formula's where a blank is inside, or a digit behind: "$5 and $10", "$5-$10"
const INLINE = /^(?:\$(?![\s$])((?:[^$\\\n]|\\.){0,1000}?[^$\\\s])\$(?![\d$])|\\\(([^]{1,1000}?)\\\))/;

let katex = null;
let loading = null;

const first = (text, pattern) => {
  const found = text.search(pattern);
  return found < 0 ? undefined : found;
};

/** Extensions of marked: tokens of the type "maths" with their TeX. */
export const extensions = [
  {
    name: "maths",
    level: "block",
    start: (text) => first(text, /^ {0,3}(?:\$\$|\\\[)/m),
    tokenizer: (text) => token(BLOCK.exec(text), true),
  },
  {
    name: "maths",
    level: "inline",
    start: (text) => first(text, /\$|\\[([]/),
    tokenizer: (text) => token(DISPLAY.exec(text), true) ?? token(INLINE.exec(text), false),
  },
];

function token(match, display) {
  return match ? { type: "maths", raw: match[0], tex: match[1] ?? match[2], display } : undefined;
}

/** The formula; its TeX as code where there is none, or where the library is not there yet: then `later` is called. */
export function formula({ raw, tex, display }, kinds, later) {
  if (!katex) {
    loading ??= import("./vendor/katex.js").then(() => (katex = globalThis.katex));
    loading.then(later, () => {});
    return element("code", {}, raw);
  }
  const box = element("span", { className: `maths ${most(kinds)}` });
  if (display) box.classList.add("display");
  try {
    const made = katex.renderToString(tex, { output: "mathml", displayMode: display, maxExpand: 200 });
    box.append(sanitized(made.replace(/<annotation[^]*?<\/annotation>/g, "").replace(/ style="[^"]*"/g, "")));
  } catch {
    return element("code", {}, raw);
  }
  for (const table of box.querySelectorAll("mtable[columnalign]")) align(table);
  return box;
}

/** Browsers leave the columns of a table centered: have them as the attribute says. */
function align(table) {
  const sides = table.getAttribute("columnalign").split(" ");
  for (const row of table.children) {
    [...row.children].forEach((cell, i) => cell.classList.add(`to-${sides[Math.min(i, sides.length - 1)]}`));
  }
}
