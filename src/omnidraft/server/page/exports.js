// A conversation as a file: JSON in the form of requests, and Markdown to be read.

import { titleOf } from "./conversations.js";
import { download } from "./dom.js";
import { composed } from "./files.js";
import { parts } from "./thinking.js";

/** The messages of a conversation as a request has them. */
export function asRequest(messages) {
  return messages.map(({ role, content, files, reasoning }) => {
    if (role === "user") return { role, content: composed({ content, files }) };
    return { role, content, ...(reasoning && { reasoning_content: reasoning }) };
  });
}

export function asJson(conversation) {
  const { created, changed, messages } = conversation;
  const date = (time) => new Date(time).toISOString();
  const said = asRequest(messages).map((message, i) => {
    const { model, finish, figures, rounds } = messages[i];
    return { ...message, ...(model && { model, finish_reason: finish, figures, tokens_a_pass: rounds }) };
  });
  const head = { title: titleOf(conversation), created: date(created), changed: date(changed) };
  return `${JSON.stringify({ ...head, messages: said }, null, 2)}\n`;
}

export function asMarkdown(conversation) {
  const turns = conversation.messages.map((message) => {
    if (message.role === "user") return `## You\n\n${composed(message).trim()}`;
    const { thought, answer } = parts(message);
    const folded = thought[0].trim();
    const before = folded ? `<details><summary>Thought</summary>\n\n${folded}\n\n</details>\n\n` : "";
    return `## ${message.model ?? "Answer"}\n\n${before}${answer[0].trim()}`;
  });
  return `${[`# ${titleOf(conversation)}`, ...turns].join("\n\n")}\n`;
}

/** Have a conversation saved; `kind` is "json" or "md". */
export function save(conversation, kind) {
  const [type, write] = { json: ["application/json", asJson], md: ["text/markdown", asMarkdown] }[kind];
  const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").toLowerCase();
  download(`${name || "conversation"}.${kind}`, type, write(conversation));
}
