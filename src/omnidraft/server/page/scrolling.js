// The conversation is followed to its end while it grows, unless the reader has scrolled up.

import { $ } from "./dom.js";

const SLACK = 48; // pixels from the end that count as being there
let following = true;
let place = 0; // where it was scrolled to last

/** Change the conversation, and go to its end unless the reader has left it. */
export function follow(change) {
  look(); // the event of a scroll may be to come
  change();
  if (following) toEnd();
}

/** Change it, and go to its end in any case. */
export function goToEnd(change) {
  change();
  following = true;
  toEnd();
}

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
  place = $("log").scrollTop;
}

/** Note where the reader is: away from the end upwards, or back at it. */
function look() {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < SLACK;
  following = atEnd || (following && log.scrollTop >= place); // an answer that grows moves the end away, too
  place = log.scrollTop;
}

$("log").addEventListener("scroll", look);
