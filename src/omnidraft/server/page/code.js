// A block of code: its language, a button that copies it, and its colors.

import { button, copy, element } from "./dom.js";
import { sanitized } from "./sanitized.js";
import { mark } from "./sources.js";
import hljs from "./vendor/highlight.js";

const LONGEST = 50_000; // characters that are given colors: more would hold up the page

/** The block, with the source of every character. */
export function codeBlock(text, language, kinds) {
  const code = element("code");
  const pre = element("pre", { tabIndex: 0 }, code); // a wide block can be scrolled by keys
  if (text.length <= LONGEST && hljs.getLanguage(language)) {
    code.append(sanitized(hljs.highlight(text, { language, ignoreIllegals: true }).value));
  }
  if (code.textContent !== text) code.textContent = text; // nothing of an answer may be lost
  mark(code, kinds.replaceAll("t", " ")); // the target's own look as the rest: half as many nodes
  const control = button("Copy", () => copy(() => code.textContent, control, code));
  return element("div", { className: "code" }, element("div", {}, language || "code", control), pre);
}
