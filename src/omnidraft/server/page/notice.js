// A line that says what happened, with something to do about it, for a while.

import { $, button } from "./dom.js";

const SHOWN_MS = 10_000;
let timer = null;

/** Say something; `label` and `action` make a button. */
export function notice(text, label, action) {
  const box = $("notice");
  clearTimeout(timer);
  box.replaceChildren(text);
  if (label) {
    const act = () => {
      box.hidden = true;
      action();
    };
    box.append(button(label, act));
  }
  box.hidden = false;
  timer = setTimeout(() => (box.hidden = true), SHOWN_MS);
}
