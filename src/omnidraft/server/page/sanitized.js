// The one place where HTML is read: what the highlighter and the formulas are made of, through DOMPurify.

import "./vendor/purify.js";

const SETTINGS = {
  USE_PROFILES: { mathMl: true },
  ADD_TAGS: ["span"],
  ADD_ATTR: ["class"],
  ALLOW_DATA_ATTR: false,
  FORBID_ATTR: ["style", "id", "name", "href", "xlink:href", "src"],
  RETURN_DOM_FRAGMENT: true,
};

/** The nodes of a piece of HTML or MathML: spans and formulas alone, without links, styles and scripts. */
export const sanitized = (html) => globalThis.DOMPurify.sanitize(html, SETTINGS);
