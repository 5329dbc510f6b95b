// A message of the user on the page, which can be changed.

import { button, copy, element } from "./dom.js";
import { composed, shown } from "./files.js";

export class Question {
  /** `change` is told the new text. */
  constructor(message, change) {
    Object.assign(this, { message, change });
    this.element = element("article", { className: "own", ariaLabel: "You" });
    this.#draw();
  }

  #draw() {
    const { content, files = [] } = this.message;
    const copied = button("Copy", () => copy(() => composed(this.message), copied, this.text));
    const edited = button("Edit", () => this.#edit());
    this.text = element("div", { className: "text" }, content);
    const tools = element("p", { className: "tools" }, edited, copied);
    this.element.replaceChildren(...files.map(shown), ...(content ? [this.text] : []), tools);
    this.edited = edited;
  }

  #edit() {
    const area = element("textarea", { value: this.message.content, ariaLabel: "Message, changed" });
    const leave = () => {
      this.#draw();
      this.edited.focus();
    };
    const send = () => {
      if (area.value.trim() || this.message.files?.length) this.change(area.value.trim());
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      else send();
      event.preventDefault();
      event.stopPropagation(); // Escape stops nothing else
    });
    const sends = button("Send", send, { className: "main" });
    const buttons = element("p", { className: "buttons" }, button("Cancel", leave), sends);
    this.element.replaceChildren(area, buttons);
    area.focus();
  }
}
