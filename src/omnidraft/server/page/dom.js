// Short names for what is done to the document again and again.

export const $ = (id) => document.getElementById(id);

/** A new element with properties and children; text as a child is text. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** A button that does something and nothing else. */
export function button(text, action, properties = {}) {
  const made = element("button", { type: "button", ...properties }, text);
  made.addEventListener("click", action);
  return made;
}

/** Have a file saved by the browser. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url));
}

/** Copy what `text` gives, and say so on the button; without a clipboard what is in `shown` is selected. */
export async function copy(text, control, shown) {
  const label = control.dataset.label ?? control.textContent;
  control.dataset.label = label;
  try {
    await navigator.clipboard.writeText(text());
    control.textContent = "Copied";
  } catch { // no clipboard outside of https and loopback
    getSelection().selectAllChildren(shown);
    control.textContent = "Selected";
  }
  setTimeout(() => (control.textContent = label), 2000);
}
