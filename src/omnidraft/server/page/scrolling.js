// The conversation is followed to its end while it grows, unless the reader has scrolled up.

import { $ } from "./dom.js";

const SLACK = 48; // pixels from the end that count as being there
let following = true;
let place = 0; // where it was scrolled to last

/** Change the conversation, and go to its end unless the reader has left it. */
export function follow(change) {
  change();
  if (following) $("log").scrollTop = $("log").scrollHeight;
}

/** Change it, and go to its end in any case. */
export function goToEnd(change) {
  following = true;
  follow(change);
}

$("log").addEventListener("scroll", () => {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < SLACK;
  following = atEnd || (following && log.scrollTop >= place); // an answer that grows moves the end away, too
  place = log.scrollTop;
});
