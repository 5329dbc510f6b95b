// The conversation: what is sent, how an answer comes in, and what is done again, changed or gone on with.

import { Answer, blank } from "./answer.js";
import { events, post } from "./api.js";
import { fresh, save } from "./conversations.js";
import { $ } from "./dom.js";
import { asRequest } from "./exports.js";
import { notice } from "./notice.js";
import { Question } from "./question.js";
import { goToEnd } from "./scrolling.js";
import { parameters, preamble } from "./settings.js";

const SAVED_MS = 2000; // between two times that an answer in the making is kept

export class Chat {
  /**
   * `model` gives the one that is asked; `changed` is called when there are other messages, `passed` while an answer
   * comes, and `busy` when one begins or ends.
   */
  constructor({ model, changed, passed, busy }) {
    Object.assign(this, { model, changed, passed, busy, running: null });
    this.open(fresh());
    addEventListener("pagehide", () => this.#keep(this.conversation));
  }

  /** Show a conversation; the answer that comes in for another ends. */
  open(conversation) {
    this.stop();
    if (this.conversation) this.#keep(this.conversation);
    this.conversation = conversation;
    this.views = [];
    $("log").replaceChildren($("empty"));
    goToEnd(() => conversation.messages.forEach((message) => this.#view(message)));
    $("empty").hidden = conversation.messages.length > 0;
    if (conversation.messages.at(-1)?.role === "user") {
      this.#view(blank()).fail("This message has no answer.", "Try again", () => this.retry());
    }
    this.changed();
  }

  /** Send a message, and show the answer. */
  async send(content, files = []) {
    if (this.running) return;
    const { messages } = this.conversation;
    if (messages.at(-1)?.role === "user") this.#cut(messages.length - 1); // many templates refuse two in a row
    const message = { role: "user", content, ...(files.length && { files }) };
    messages.push(message);
    this.#view(message);
    await this.#ask();
  }

  /** Ask again where there was no answer. */
  async retry() {
    if (this.running) return;
    this.#cut(this.conversation.messages.length);
    await this.#ask();
  }

  stop() {
    const { running } = this;
    if (!running) return;
    running.view.message.finish = "stopped";
    running.abort.abort();
    this.#done(running);
  }

  async #ask(before = null) {
    const message = blank(this.model());
    this.conversation.messages.push(message);
    await this.#run(this.#view(message), { before });
  }

  async #regenerate(view) {
    if (this.running) return;
    const place = this.views.indexOf(view);
    const before = place === this.views.length - 1 ? view.message : null; // put back where no other comes
    this.#drop(place);
    await this.#ask(before);
  }

  async #goOn(view) {
    if (this.running) return;
    const { message } = view;
    this.#cut(this.views.indexOf(view) + 1);
    const before = { finish: message.finish, figures: message.figures, continued: message.continued };
    Object.assign(message, { finish: null, continued: true });
    if (await this.#run(view, { goesOn: true })) return;
    Object.assign(message, before);
    view.end();
  }

  async #change(view, content) {
    if (this.running) return;
    const { files } = view.message;
    this.#drop(this.views.indexOf(view));
    await this.send(content, files);
  }

  /** Have an answer come in; true where there was something of it. */
  async #run(view, { goesOn = false, before = null }) {
    const { message } = view;
    const { conversation } = this;
    const { messages } = conversation;
    const running = (this.running = { view, conversation, abort: new AbortController() });
    const length = message.content.length + message.reasoning.length;
    conversation.changed = Date.now();
    this.#keep(conversation);
    this.changed();
    this.busy(true);
    let failure = null;
    try {
      await this.#stream(view, conversation, running.abort.signal, goesOn);
    } catch (error) {
      if (!running.abort.signal.aborted) {
        message.finish = "lost";
        failure = error instanceof TypeError ? "The server cannot be reached." : error.message;
      }
    }
    const came = message.content.length + message.reasoning.length > length;
    const nothing = !came && !goesOn;
    if (nothing) messages.splice(-1, 1, ...(before ? [before] : []));
    if (conversation === this.conversation) {
      view.end();
      if (nothing && before) {
        this.views.pop().element.remove();
        view = this.#view(before);
      }
      const again = () => (before ? this.#regenerate(view) : this.retry());
      if (failure) view.fail(failure, nothing && "Try again", again);
    }
    this.#done(running);
    return came;
  }

  async #stream(view, conversation, signal, goesOn) {
    const model = this.model();
    const said = conversation.messages.filter((message) => message !== view.message || goesOn);
    const messages = [...preamble(), ...asRequest(said)];
    const body = { model, messages, stream: true, return_progress: true, ...parameters(), omnidraft: { trace: true } };
    if (goesOn) body.continue_final_message = true;
    view.begin(this.#length(model, messages, signal));
    const response = await post("v1/chat/completions", body, signal);
    let saved = performance.now();
    for await (const chunk of events(response)) {
      view.add(chunk);
      if (performance.now() - saved < SAVED_MS) continue;
      this.#keep(conversation);
      this.passed();
      saved = performance.now();
    }
  }

  /** How many tokens the texts of a request have, without what a template puts around them; null where nobody says. */
  async #length(model, messages, signal) {
    try {
      const content = messages.map((message) => message.content).join("\n");
      return (await (await post("tokenize", { model, content }, signal)).json()).tokens.length;
    } catch {
      return null; // the answer says what is wrong
    }
  }

  #done(running) {
    this.#keep(running.conversation);
    if (this.running !== running) return;
    this.running = null;
    this.busy(false);
    this.changed();
  }

  #keep(conversation) {
    const begun = ({ role, content, reasoning }) => role === "user" || content || reasoning;
    const messages = conversation.messages.filter(begun);
    if (conversation.removed || save({ ...conversation, messages })) return;
    notice("This browser has no room for the conversation: export it, and delete old ones.");
  }

  #view(message) {
    const view =
      message.role === "user"
        ? new Question(message, (text) => this.#change(view, text))
        : new Answer(message, { again: () => this.#regenerate(view), goOn: () => this.#goOn(view) });
    $("empty").hidden = true;
    this.views.push(view);
    goToEnd(() => $("log").append(view.element));
    return view;
  }

  /** Cut messages that others take the place of; more than a question and its answer can be had back. */
  #drop(place) {
    const { conversation } = this;
    const all = [...conversation.messages];
    this.#cut(place);
    if (all.length - place <= 2) return;
    notice(`${all.length - place} messages were dropped.`, "Undo", () => {
      if (conversation !== this.conversation) return;
      this.stop();
      conversation.messages = all;
      this.open(conversation);
    });
  }

  /** Drop the messages from a place on, and what is shown of them. */
  #cut(place) {
    this.conversation.messages.splice(place);
    for (const view of this.views.splice(place)) view.element.remove();
  }
}
