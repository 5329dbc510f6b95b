// The figures beside the chat: charts of the last answers, what was learned, and the report on the pair.

import { json } from "./api.js";
import { Chart } from "./chart.js";
import { $ } from "./dom.js";

const EVERY_MS = 2000;
const percent = (value) => `${Math.round(100 * value)} %`;
const short = (value) => (value < 100 ? Number(value.toPrecision(2)) : Math.round(value)).toLocaleString("en");
const CHARTS = {
  acceptance: { title: "Draft tokens accepted", format: percent, top: 1 },
  tokens_per_pass: { title: "Tokens a pass of the target", format: short },
  draft_length: { title: "Draft length", format: short },
  updates: { title: "Learning updates", format: short, least: 2 },
};

/** Shows what the server says of one model, again and again while the page is visible. */
export class Panel {
  constructor(model) {
    this.model = model; // a function to the id of the model that is shown
    this.charts = {};
    for (const [name, options] of Object.entries(CHARTS)) this.charts[name] = new Chart($("charts"), options);
    $("report").addEventListener("toggle", () => this.report());
    document.addEventListener("visibilitychange", () => this.follow());
  }

  /** Look now, and from then on every few seconds. */
  async follow() {
    clearTimeout(this.timer);
    const turn = (this.turn = Symbol("turn"));
    if (document.hidden) return;
    try {
      const { models } = await json("stats", false);
      if (turn === this.turn) this.#show(models.find(({ id }) => id === this.model()));
    } catch (error) {
      if (turn === this.turn) $("requests").textContent = `No figures: ${error.message}`;
    }
    if (turn === this.turn) this.timer = setTimeout(() => this.follow(), EVERY_MS);
  }

  #show(stats) {
    if (!stats) return;
    const { requests, active, queued, series } = stats;
    $("requests").textContent = `${count(requests, "request")}, ${active} active, ${queued} waiting`;
    for (const [name, chart] of Object.entries(this.charts)) chart.draw(series[name] ?? []);
    terms($("profile"), {
      drafter: stats.drafter ?? "none",
      precision: stats.precision,
      profile: stats.profile ?? "none: what is learned is not kept",
      ...(Object.keys(stats.learned).length ? stats.learned : { learned: "nothing yet" }),
    });
  }

  /** Fetch the report on the pair where it is open and of another model. */
  async report() {
    const model = this.model();
    if (!$("report").open || this.reported === model) return;
    this.reported = model;
    $("tables").replaceChildren(paragraph("Reading both vocabularies …"));
    try {
      const found = await json(`report?model=${encodeURIComponent(model)}`);
      if (this.reported === model) $("tables").replaceChildren(...tables(found));
    } catch (error) {
      this.reported = null;
      $("tables").replaceChildren(paragraph(`No report: ${error.message}`));
    }
  }
}

function tables({ works, reason, target, drafter, spellings }) {
  const found = [paragraph(works ? "The pair works together." : `The pair does not work: ${reason}`)];
  const models = [target, drafter];
  const rows = {
    name: models.map((one) => one.name),
    tokenizer: models.map((one) => one.vocabulary?.kind),
    vocabulary: models.map((one) => one.vocabulary?.size),
    parameters: models.map((one) => one.memory && `${short(one.memory.parameters / 1e6)} M`),
    weights: models.map((one) => one.memory && `${short(one.memory.weight_bytes / 1e6)} MB`),
    context: models.map((one) => one.memory?.context),
  };
  found.push(table("Models", ["", "target", "drafter"], Object.entries(rows)));
  if (spellings) {
    found.push(
      table("The target’s vocabulary in drafter tokens", ["", "tokens"], [
        ["the same bytes", [spellings.byte_matches]],
        ["spelled", [spellings.spelled]],
        ["not spelled", [spellings.unspelled]],
        ["of several drafter tokens", [spellings.ngrams]],
        ["mean length", [spellings.mean_length]],
      ]),
    );
  }
  return found;
}

function table(title, head, rows) {
  const element = document.createElement("table");
  element.createCaption().textContent = title;
  const top = element.createTHead().insertRow();
  for (const name of head) cell(top, "th", name).scope = "col";
  const body = element.createTBody();
  for (const [name, values] of rows) {
    const row = body.insertRow();
    cell(row, "th", name).scope = "row";
    for (const value of values) cell(row, "td", written(value));
  }
  return element;
}

function cell(row, tag, text) {
  return Object.assign(row.appendChild(document.createElement(tag)), { textContent: text });
}

function terms(list, entries) {
  const parts = Object.entries(entries).filter(([, value]) => value !== undefined && value !== null);
  const nodes = parts.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name.replaceAll("_", " ") }),
    Object.assign(document.createElement("dd"), { textContent: written(value) }),
  ]);
  list.replaceChildren(...nodes);
}

function written(value) {
  if (typeof value !== "number") return value ?? "unknown";
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(3);
}

function paragraph(text) {
  return Object.assign(document.createElement("p"), { textContent: text });
}

function count(n, name) {
  return `${n} ${name}${n === 1 ? "" : "s"}`;
}
