// The conversations that are kept: one is opened, renamed, exported or deleted.

import * as conversations from "./conversations.js";
import { $, button, element } from "./dom.js";
import { save } from "./exports.js";
import { notice } from "./notice.js";

export class List {
  /** `current` gives the id of the one that is shown; `open` is told which one is to be; `removed` which one is gone. */
  constructor({ current, open, removed, renamed }) {
    Object.assign(this, { current, open, removed, renamed });
    conversations.onChange(() => this.draw());
    $("menu").addEventListener("click", ({ target }) => this.#act(target.value));
    $("menu").addEventListener("toggle", ({ newState }) => {
      if (newState === "closed") this.control?.setAttribute("aria-expanded", "false");
    });
  }

  /** Show what there is; nodes that are there already, which may have the focus, stay. */
  draw() {
    const all = conversations.all();
    const state = JSON.stringify([all, this.current()]);
    if (this.renaming || state === this.state) return;
    this.state = state;
    $("conversations").replaceChildren(...all.map((one) => this.#item(one)));
    $("none").hidden = all.length > 0;
  }

  #item(conversation) {
    const { title } = conversation;
    const name = button(title, () => this.open(conversation.id), { className: "name", title });
    if (conversation.id === this.current()) name.ariaCurrent = "true";
    const about = { className: "more", ariaLabel: `Actions for ${title}` };
    const control = button("⋯", () => this.#menu(control, conversation), about);
    control.ariaHasPopup = "true";
    control.ariaExpanded = "false";
    const item = element("li", {}, name, control);
    item.dataset.id = conversation.id;
    return item;
  }

  #menu(control, conversation) {
    Object.assign(this, { control, chosen: conversation });
    const menu = $("menu");
    menu.showPopover();
    control.ariaExpanded = "true";
    const { right, bottom } = control.getBoundingClientRect();
    menu.style.left = `${Math.max(8, right - menu.offsetWidth)}px`;
    menu.style.top = `${Math.min(bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
    menu.firstElementChild.focus();
  }

  #act(what) {
    if (!what) return;
    $("menu").hidePopover();
    const conversation = conversations.load(this.chosen.id);
    if (!conversation) this.draw(); // another tab has deleted it
    else if (what === "rename") this.#rename(conversation);
    else if (what === "delete") this.#delete(conversation);
    else save(conversation, what);
  }

  #delete(conversation) {
    conversations.remove(conversation.id);
    this.removed(conversation.id);
    this.draw();
    notice(`Deleted “${conversations.titleOf(conversation)}”`, "Undo", () => {
      conversations.save(conversation);
      this.draw();
    });
  }

  #rename(conversation) {
    const item = $("conversations").querySelector(`[data-id="${conversation.id}"]`);
    const field = element("input", { value: conversations.titleOf(conversation), ariaLabel: "Name of the conversation" });
    const end = (keeps) => {
      this.renaming = false;
      this.state = null;
      if (keeps && field.value.trim()) {
        conversations.save({ ...conversation, title: field.value.trim() });
        this.renamed(conversation.id, field.value.trim());
      }
      this.draw();
      $("conversations").querySelector(`[data-id="${conversation.id}"] button`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    this.renaming = true;
    item.replaceChildren(field, button("Save", () => end(true)));
    field.select();
  }
}
