// The page put together: the conversation, the list, the figures, and the keys.

import { json, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { fresh, load, titleOf } from "./conversations.js";
import { Curve } from "./curve.js";
import { $ } from "./dom.js";
import { Waiting } from "./files.js";
import { List } from "./list.js";
import { notice } from "./notice.js";
import { Panel } from "./panel.js";
import { open as openSettings, set, settings } from "./settings.js";

const EMPTY = $("empty").textContent;
const RETRY_MS = 2000;
const OPENED = "omnidraft-opened"; // of the session storage: a tab that is loaded again shows what it did
const WIDE = matchMedia("(min-width: 1100px)"); // room for the list beside the conversation
const MIDDLE = matchMedia("(min-width: 700px)"); // and for the figures

const opened = sessionStorage.getItem(OPENED);
const panel = new Panel(() => $("model").value);
const curve = new Curve();
const files = new Waiting($("files"), (reason) => notice(reason));
const chat = new Chat({ model: () => $("model").value, changed, passed, busy });
const list = new List({ current: () => chat.conversation.id, open, removed, renamed });

// ---------------------------------------------------------------- conversations

function changed() {
  queueMicrotask(() => { // once all parts are there
    const { id, messages } = chat.conversation;
    sessionStorage.setItem(OPENED, id);
    document.title = messages.length ? `${titleOf(chat.conversation)} · OmniDraft` : "OmniDraft";
    list.draw();
    passed();
  });
}

function passed() {
  curve.draw(chat.conversation.messages);
}

function open(id) {
  const found = load(id);
  if (found && id !== chat.conversation.id) chat.open(found);
  const model = found?.messages.findLast((message) => message.model)?.model;
  if ([...$("model").options].some(({ value }) => value === model)) $("model").value = model;
  showList(WIDE.matches && settings.list);
  $("message").focus();
}

function begin() {
  chat.open(fresh());
  showList(WIDE.matches && settings.list);
  $("message").focus();
}

function removed(id) {
  if (id !== chat.conversation.id) return;
  chat.conversation.removed = true;
  chat.open(fresh());
}

function renamed(id, title) {
  if (id === chat.conversation.id) chat.conversation.title = title;
}

// ---------------------------------------------------------------- what is seen

function busy(state) {
  const focused = document.activeElement;
  document.body.classList.toggle("busy", state);
  $("send").hidden = state;
  $("stop").hidden = !state;
  if (focused === $("send") || focused === $("stop")) $("message").focus(); // a hidden button would lose it
  if (!state) panel.follow();
}

function showList(shown) {
  document.body.classList.toggle("with-list", shown);
  $("lists").setAttribute("aria-expanded", shown);
}

function showFigures(shown) {
  document.body.classList.toggle("with-figures", shown);
  $("view").setAttribute("aria-pressed", shown);
}

function arrange() {
  showList(WIDE.matches && settings.list);
  showFigures(MIDDLE.matches && settings.figures);
}

// ---------------------------------------------------------------- keys and buttons

function submit() {
  const text = $("message").value.trim();
  if (!(text || files.files.length) || chat.running || !$("model").value) return;
  $("message").value = "";
  chat.send(text, files.take());
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open], :popover-open")) return;
  if (!WIDE.matches && document.body.classList.contains("with-list")) {
    showList(false);
    $("lists").focus();
  } else {
    chat.stop();
  }
});
$("stop").addEventListener("click", () => chat.stop());
$("new").addEventListener("click", begin);
$("set").addEventListener("click", openSettings);
$("shade").addEventListener("click", () => showList(false));
$("lists").addEventListener("click", () => {
  const shown = !document.body.classList.contains("with-list");
  if (WIDE.matches) set({ list: shown });
  showList(shown);
  if (shown && !WIDE.matches) $("list").querySelector("button")?.focus(); // it lies above the rest
});
$("view").addEventListener("click", () => {
  const shown = !document.body.classList.contains("with-figures");
  if (MIDDLE.matches) set({ figures: shown });
  showFigures(shown);
});
for (const query of [WIDE, MIDDLE]) query.addEventListener("change", arrange);
$("model").addEventListener("change", () => {
  panel.follow();
  panel.report();
});

$("attach").addEventListener("click", () => $("chosen").click());
$("chosen").addEventListener("change", async () => {
  await files.add([...$("chosen").files]);
  $("chosen").value = "";
  $("message").focus();
});
document.addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) document.body.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  document.body.classList.remove("dropping");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  files.add([...event.dataTransfer.files]);
});

onKeyNeeded((refused) => {
  const dialog = $("ask");
  if (refused) $("ask-text").textContent = "The server refuses that key. Give another.";
  $("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  const closed = () => (dialog.returnValue === "use" ? $("key").value : null);
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(closed()), { once: true }));
});

async function start() {
  try {
    const { data } = await json("v1/models");
    $("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
    open(opened);
    $("model").disabled = false;
    $("status").textContent = "";
    $("empty").textContent = EMPTY;
    panel.follow();
    $("message").focus();
  } catch (error) {
    $("status").textContent = $("empty").textContent = `The server cannot be used yet: ${error.message}`;
    if (error.status === 503) setTimeout(start, RETRY_MS); // it loads its models
  }
}

arrange();
start();
