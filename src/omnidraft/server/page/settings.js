// What a person has set, kept in this browser, and the dialog where it is set.

import { $ } from "./dom.js";

const KEY = "omnidraft-settings";
const DEFAULTS = {
  system: "", temperature: null, max_tokens: null, // null is not sent
  theme: "system", sources: true, figures: true, list: true, // of what is seen
};

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

export const settings = { ...DEFAULTS, ...stored() };

/** Set some of them, and keep them. */
export function set(changes) {
  Object.assign(settings, changes);
  localStorage.setItem(KEY, JSON.stringify(settings));
  apply();
}

/** What of them goes into a request. */
export function parameters() {
  const { temperature, max_tokens } = settings;
  return { ...(temperature !== null && { temperature }), ...(max_tokens !== null && { max_tokens }) };
}

/** The messages before the conversation. */
export const preamble = () => (settings.system.trim() ? [{ role: "system", content: settings.system }] : []);

function apply() {
  document.documentElement.dataset.theme = settings.theme;
  document.body.classList.toggle("plain", !settings.sources);
}

/** A field's number; null where it is empty, undefined where it is none that may be. */
function number(input) {
  if (!input.checkValidity()) return undefined;
  return input.value === "" ? null : input.valueAsNumber;
}

function fill() {
  $("system").value = settings.system;
  $("temperature").value = settings.temperature ?? "";
  $("max-tokens").value = settings.max_tokens ?? "";
  $("sources").checked = settings.sources;
  for (const radio of document.querySelectorAll('[name="theme"]')) radio.checked = radio.value === settings.theme;
}

/** Fill the fields, and set what is set in them at once. */
export function open() {
  fill();
  $("settings").showModal();
}

$("system").addEventListener("input", () => set({ system: $("system").value }));
for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_tokens"]]) {
  $(id).addEventListener("input", () => {
    const value = number($(id));
    if (value !== undefined) set({ [name]: value });
  });
}
for (const radio of document.querySelectorAll('[name="theme"]')) {
  radio.addEventListener("change", () => set({ theme: radio.value }));
}
$("sources").addEventListener("change", () => set({ sources: $("sources").checked }));
$("defaults").addEventListener("click", () => {
  const { system, temperature, max_tokens, theme } = DEFAULTS;
  set({ system, temperature, max_tokens, theme });
  fill();
});
apply();
fill();
