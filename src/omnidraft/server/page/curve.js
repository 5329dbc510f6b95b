// Tokens a pass of the target, along the conversation: where drafting pays, and where it does not.

import { Chart } from "./chart.js";
import { $ } from "./dom.js";

const WINDOW = 8; // passes that are averaged, so that a line is seen
const POINTS = 150; // at most

export class Curve {
  constructor() {
    this.chart = new Chart($("curve"), {
      title: "Tokens a pass, on average",
      unit: "passes",
      format: (value) => String(Number(value.toPrecision(3))),
      least: 2,
    });
  }

  /** Show the passes of a conversation's answers, with a mark where an answer begins. */
  draw(messages) {
    const answers = messages.filter(({ rounds }) => rounds?.length);
    const passes = answers.flatMap(({ rounds }) => rounds);
    const step = Math.max(1, Math.ceil(passes.length / POINTS));
    const values = [];
    for (let end = passes.length; end > 0; end -= step) {
      values.unshift(mean(passes.slice(Math.max(0, end - Math.max(WINDOW, step)), end)));
    }
    const marks = [];
    let start = 0;
    for (const { rounds } of answers) {
      marks.push(Math.floor(start / step));
      start += rounds.length;
    }
    this.chart.draw(values, { marks: marks.slice(1), now: passes.length ? mean(passes) : null, count: passes.length });
  }
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
