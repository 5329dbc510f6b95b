// What an answer came to, in words.

import { element } from "./dom.js";

export const NOTES = { length: "cut off at the token limit", stopped: "stopped", lost: "broken off" };

export const count = (tokens) => (tokens === 1 ? "1 token" : `${tokens.toLocaleString("en")} tokens`);

/** The figures of an answer as spans. */
export function figures({ figures, rounds, finish, continued }) {
  const said = [];
  const tokens = rounds.reduce((sum, round) => sum + round, 0);
  if (figures) {
    const { seconds, tokens_per_s, acceptance_rate, tokens_per_pass, estimated_speedup } = figures;
    said.push(count(figures.tokens), `${seconds.toFixed(2)} s`, `${tokens_per_s.toFixed(1)} tokens/s`);
    const drafted = acceptance_rate != null; // else an estimate would be noise
    said.push(drafted ? `${Math.round(100 * acceptance_rate)} % of draft tokens accepted` : "no drafts");
    if (tokens_per_pass != null) said.push(`${tokens_per_pass.toFixed(2)} tokens a pass`);
    if (drafted && estimated_speedup != null) said.push(`${estimated_speedup.toFixed(2)}× against no drafting (estimate)`);
    if (continued) said.push(`of the last part; ${count(tokens)} in all`);
  } else if (tokens) {
    said.push(count(tokens));
  }
  if (NOTES[finish]) said.push(NOTES[finish]);
  return said.map((text) => element("span", {}, text));
}
