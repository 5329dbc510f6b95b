"""`python -m experiments.retrieval`: drafts counted from the request's text, alone and with the drafter's network.

`generate` of transformers, alone and with prompt lookup, and our loop with each source of drafts answer in turns.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.real import Real
from experiments.tasks import texts_of
from omnidraft.api import OmniDraft
from omnidraft.bench import methods
from omnidraft.bench.compare import Question
from omnidraft.bench.interleaved import engine_for
from omnidraft.bench.records import BASELINE
from omnidraft.cli.prompts import MBPP_TEST, TASKS, rows_of
from omnidraft.cli.prompts import texts_of as written
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine

EDITS = (
    "Add a docstring to this code, and give the whole code again.",
    "Rename the first function to `solve` wherever it is used, and give the whole code again.",
    "Add type hints to this code, and give the whole code again.",
    "Add a check that raises ValueError where an argument is None, and give the whole code again.",
)
TURNS = (
    "Add a docstring to this code, and give the whole code again.",
    "Now add type hints, and give the whole code again.",
    "Rename the first function to `solve`, and give the whole code again.",
    "Add a line that prints an example result at the end, and give the whole code again.",
)
SUMMARIZE = "Summarize the following text in two sentences.\n\n"  # the beginning of the prompts of `summaries`
QUOTES = "Summarize the following text, and quote its two most important sentences word for word.\n\n"
PASSAGE = "Answer from this passage alone, and quote the sentence that says it: what changes, or is new, and why?\n\n"
COPIES = ("edits", "quotes", "passages")  # much of the answer stands in the prompt


def code_of(row: dict[str, Any]) -> str | None:
    """A solution of MBPP's test split or of HumanEval; None for others."""
    if "canonical_solution" in row:
        return f"{row['prompt']}{row['canonical_solution']}".strip()
    return row["code"].replace("\r\n", "\n").strip() if row["task_id"] in MBPP_TEST else None


def codes(data: Path | None, count: int) -> list[str]:
    """Solutions of MBPP and HumanEval in turns."""
    parts = (written(rows_of(TASKS[name], name, data, "test"), code_of) for name in ("mbpp", "humaneval"))
    return list(itertools.islice(itertools.chain.from_iterable(zip(*parts, strict=False)), count))


def asked(order: str, code: str) -> str:
    """A message that gives code and says what to do with it."""
    return f"{order}\n\n```python\n{code}\n```"


class Retrieval(Real):
    """Targets on tasks whose answers repeat much of the prompt, and others, by each source of drafts."""

    name = "retrieval"
    about = "Drafts counted from the request's text, alone and with the drafter's, on real models."
    examples = ("--target MODEL --data DIR --quick", "--target MODEL --data DIR --out results/retrieval")
    tasks = (*COPIES, "conversation", "instructions", "gsm8k")
    theirs = (BASELINE, "lookup")

    def texts(self, task: str, data: Path | None, count: int) -> Sequence[str | Sequence[str]]:
        if task == "edits":
            return [asked(order, code) for order, code in zip(itertools.cycle(EDITS), codes(data, count), strict=False)]
        if task == "conversation":
            return [(asked(TURNS[0], code), *TURNS[1:]) for code in codes(data, count)]
        if task in COPIES:
            order = QUOTES if task == "quotes" else PASSAGE
            return [text.replace(SUMMARIZE, order) for text in texts_of("summaries", data, count)]
        return texts_of(task, data, count)

    def engines(self, model: OmniDraft) -> dict[str, Engine]:
        """As files have called them since drafts were copied from the text; the last one has no drafter."""
        counts, eos = Drafting(reuse_answers="request"), sorted(model.engine.eos)
        return {
            "auto": engine_for(model, counts),
            "model": engine_for(model, Drafting(reuse_answers="nothing")),
            "retrieval": Engine(model.target.lm, eos, None, counts),
        }

    def questions(self, model: OmniDraft, texts: dict[str, Any], new_tokens: int, console: Console) -> list[Question]:
        """Each turn of a conversation is one, after the target's own answers."""
        ((task, given),) = texts.items()
        if task != "conversation":
            return super().questions(model, texts, new_tokens, console)
        found: list[list[int]] = []
        (plain,), _ = methods.make((BASELINE,), model, 0, Sampling())
        for turns in given:
            messages: list[dict[str, str]] = []
            for turn in turns:
                messages.append({"role": "user", "content": turn})
                found.append(model.encode(messages))
                plain.begin(found[-1], new_tokens, 0)
                plain.advance(new_tokens)
                answer = model.target.tokenizer.decode(plain.end().tokens, skip_special_tokens=True)
                messages.append({"role": "assistant", "content": str(answer)})
        return [Question(task, number, ids) for number, ids in enumerate(found)]


main = Retrieval().main

if __name__ == "__main__":
    sys.exit(main())
