"""Write the tables of docs/using.md: options of `load`, arguments of `generate`, fields of an answer.

    python tools/write_option_docs.py

The tests compare the page with the code.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from omnidraft.api import OmniDraft, load
from omnidraft.config import DraftingOptions, LearningOptions, Sampling
from omnidraft.decoding.stats import Stats
from omnidraft.decoding.stream import Generation

PAGE = Path(__file__).parents[1] / "docs" / "using.md"
BEGIN, END = "<!-- {name}: made by tools/write_option_docs.py -->", "<!-- end of {name} -->"
OWN = {
    "target": "a folder, a GGUF file, a hub id or `zoo:NAME`",
    "drafter": "the same, an `OmniDraft` to share its drafter, or `None` for [counts](#memory) alone; `auto` is "
    "[`zoo:general`](#defaults)",
    "dtype": "`float32`, `bfloat16` or `float16` of both models, or `int8` of the target",
    "device": "of both models: `cpu`, `cuda`, `cuda:N` or `mps`",
    "graphs": "[CUDA graphs](performance.md#gpus) of both models: `off` or `on`",
    "adapt": "[learning](learning.md) from the answers: `off`, `background` or `inline`",
    "profile": "[where learned weights are kept](profiles.md): a file, or `None`; `auto`: that of this pair",
    "warn": "a function that is called with each warning, one line",
}
ARGUMENTS = {
    "prompt": "[text, messages or token ids](#prompts)",
    "max_new_tokens": "tokens of the answer, at most",
    "seed": "decides every draw of a sampled answer",
    "stop": "[strings before which the answer ends](#stop-strings-processors-log-probabilities): one, or a list",
    "template": "variables of the chat template",
    "logits_processor": "[functions that change the target's scores](#stop-strings-processors-log-probabilities)",
    "logprobs": "log-probabilities in the records of `stream.rounds`, with so many tokens at each place (0 to 20)",
    "extras": "`decoding.request.Extras`, for servers",
    "should_stop": "a function that ends the answer by returning `True`: [cancelling](#cancelling)",
    "memory": "earlier answers of [one of several users](privacy.md), in place of the model's own",
    "lane": "the [lane](#several-requests) that it runs on",
}
ANSWER = {
    "text": "the answer, without stop strings and special tokens",
    "token_ids": "its tokens, an end of text and those of a stop string included",
    "finish_reason": "`eos`, `stop` (a stop string), `length` (`max_new_tokens`), `context` (the target holds no "
    "more) or `interrupted`",
    "stats": "counts and times, below",
}
STATS = {
    "rounds": "forward passes of the target",
    "tokens": "tokens of the answer",
    "drafted": "draft tokens",
    "counted": "of them, those of [counts](#memory) alone",
    "proposed": "target tokens that the target was asked about",
    "accepted": "of them, those that it took",
    "symbols": "steps through [the trie of spellings](how-it-works.md#one-round) that were verified",
    "symbols_accepted": "of them, those that were accepted",
    "ngrams_proposed": "proposed tokens that several draft tokens spell",
    "ngrams_accepted": "of them, those that were accepted",
    "false_merges": "draft tokens that were wrongly read as one target token",
    "rounds_without_draft": "rounds in which no draft was made",
    "no_draft_reason": "why, a phrase: the reason that came up most",
    "draft_s": "seconds of drafting; the first round holds the drafter's reading of the prompt",
    "verify_s": "seconds of the target's passes; the first round holds its reading of the prompt",
    "overhead_s": "seconds of the rest of the rounds",
    "policy_s": "seconds of choosing the draft length",
    "seconds": "all of them",
    "tokens_per_s": "tokens ÷ seconds",
    "draft_length": "draft tokens ÷ rounds",
    "acceptance_rate": "accepted ÷ proposed",
    "symbol_acceptance_rate": "accepted ÷ verified symbols",
    "block_efficiency": "tokens ÷ rounds: tokens per pass of the target, 1 without drafts",
}


def rows() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every option."""
    parameters = inspect.signature(load).parameters
    found = [(name, parameters[name].default, about) for name, about in OWN.items()]
    settings = (*fields(DraftingOptions), *fields(LearningOptions))
    found += [(f.name, f.default, f.metadata["help"]) for f in settings]
    shown = {inspect.Parameter.empty: "", parameters["warn"].default: "the logger `omnidraft`"}
    return [(name, shown[value] if callable(value) else f"`{value}`", about) for name, value, about in found]


def arguments() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every argument of `generate` and `stream`."""
    parameters = inspect.signature(OmniDraft.stream).parameters
    shown = {inspect.Parameter.empty: "", parameters["extras"].default: "none"}
    asked = [(name, parameters[name].default, about) for name, about in ARGUMENTS.items()]
    sampling = [(f.name, f.default, f.metadata["help"]) for f in fields(Sampling)]
    return [(name, shown.get(value, f"`{value}`"), about) for name, value, about in (*asked, *sampling)]


def page() -> str:
    """The whole page, with the tables as they are to be."""
    text = PAGE.read_text(encoding="utf-8")
    with_default = "| {} | default | |\n| --- | --- | --- |\n"
    tables = {
        "options": with_default.format("option") + "".join(f"| `{a}` | {b} | {c} |\n" for a, b, c in rows()),
        "arguments": with_default.format("argument") + "".join(f"| `{a}` | {b} | {c} |\n" for a, b, c in arguments()),
        "answer": _listed("field", ANSWER),
        "statistics": _listed("field of `stats`", STATS),
    }
    for name, table in tables.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def _listed(head: str, names: dict[str, str]) -> str:
    return f"| {head} | |\n| --- | --- |\n" + "".join(f"| `{name}` | {about} |\n" for name, about in names.items())


def names_of_answers() -> tuple[list[str], list[str]]:
    """The fields of an answer, and those of its statistics."""
    return [f.name for f in fields(Generation)], [*Stats().as_dict()]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
