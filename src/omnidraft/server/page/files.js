// Files of text that go into a message with their names.

import { button, element } from "./dom.js";

const LARGEST = 1_000_000; // bytes: more is no prompt, and would fill what the browser keeps
const SUFFIX = /\.(\w+)$/;

/** The text of a file; throws an Error that says why there is none. */
export async function read(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} is larger than ${LARGEST / 1e6} MB`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // said below
  }
  throw new Error(`${file.name} is not a text in UTF-8`);
}

/** What the model is sent for a message: the files, each in a fence that it does not hold itself, then the text. */
export function composed({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const ticks = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(ticks + 1);
    return `${name}:\n${fence}${SUFFIX.exec(name)?.[1] ?? ""}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}

/** A file in the conversation: its name and size, and opened its text. */
export function shown({ name, text }) {
  const title = element("summary", {}, `${name} · ${size(text)}`);
  return element("details", { className: "file" }, title, element("pre", { tabIndex: 0 }, text));
}

/** The files that wait in an element for the next message. */
export class Waiting {
  constructor(parent, refuse) {
    Object.assign(this, { parent, refuse, files: [] });
  }

  async add(files) {
    for (const file of files) {
      try {
        this.files.push({ name: file.name, text: await read(file) });
      } catch (error) {
        this.refuse(error.message);
      }
    }
    this.#draw();
  }

  /** The files, which wait no more. */
  take() {
    const { files } = this;
    this.files = [];
    this.#draw();
    return files;
  }

  #draw() {
    const items = this.files.map((file) => {
      const leave = () => {
        this.files = this.files.filter((one) => one !== file);
        this.#draw();
      };
      const control = button("×", leave, { ariaLabel: `Remove ${file.name}` });
      return element("li", {}, `${file.name} · ${size(file.text)}`, control);
    });
    this.parent.replaceChildren(...items);
    this.parent.hidden = !items.length;
  }
}

function size(text) {
  const lines = text.split("\n").length - text.endsWith("\n");
  return lines === 1 ? "1 line" : `${lines.toLocaleString("en")} lines`;
}
