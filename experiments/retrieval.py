"""`python -m experiments.retrieval`: drafts counted from the request's text, alone and with the drafter's network.

`generate` of transformers, alone and with prompt lookup, and our loop with each source of drafts answer in turns.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments import real
from experiments.command import run
from experiments.real import Measurement, texts_of
from experiments.results import Row
from omnidraft.api import OmniDraft
from omnidraft.bench import methods
from omnidraft.bench.compare import Question
from omnidraft.bench.interleaved import EngineWay, Way, engine_for
from omnidraft.bench.output import down
from omnidraft.bench.prompts import MBPP_TEST, TASKS, rows_of
from omnidraft.bench.prompts import texts_of as written
from omnidraft.bench.records import BASELINE
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
# how our loop drafts; as files have called it since drafts were copied from the text
SOURCES: dict[str, Drafting] = {
    "auto": Drafting(remember="request"),
    "model": Drafting(remember="nothing"),
    "retrieval": Drafting(remember="request"),  # without a drafter
}
GROUPS = {"copying": COPIES, "conversation": ("conversation",), "free": ("instructions", "gsm8k")}


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


class Copying(Measurement):
    """One target: prompts whose answers repeat much of them, a conversation, and prompts of other kinds."""

    study = "retrieval"
    tasks = tuple(itertools.chain.from_iterable(GROUPS.values()))
    streams = ()

    @staticmethod
    def texts(task: str, data: Path | None, count: int) -> Sequence[str | Sequence[str]]:
        """The first prompts of a task, of a conversation all its turns."""
        if task == "edits":
            return [asked(order, code) for order, code in zip(itertools.cycle(EDITS), codes(data, count), strict=False)]
        if task == "conversation":
            return [(asked(TURNS[0], code), *TURNS[1:]) for code in codes(data, count)]
        if task in COPIES:
            order = QUOTES if task == "quotes" else PASSAGE
            return [text.replace(SUMMARIZE, order) for text in texts_of("summaries", data, count)]
        return texts_of(task, data, count)

    def questions(self, task: str) -> list[Question]:
        """The prompts of a task, as token ids; a turn of a conversation follows the target's own answers."""
        found: list[list[int]] = []
        (plain,), _ = methods.make((BASELINE,), self.model, 0, Sampling())
        for text in self.texts(task, self.options.data, self.sizes.prompts):
            if isinstance(text, str):
                found.append(self.model.encode_message(text))
                continue
            messages: list[dict[str, str]] = []
            for turn in text:
                messages.append({"role": "user", "content": turn})
                ids = self.model.encode(messages)
                plain.begin(ids, self.sizes.new_tokens, 0)
                plain.advance(self.sizes.new_tokens)
                answer = self.model.target.tokenizer.decode(plain.end().tokens, skip_special_tokens=True)
                messages.append({"role": "assistant", "content": str(answer)})
                found.append(ids)
        return [Question(task, number, ids) for number, ids in enumerate(found)]

    def ways(self, task: str, sampling: Sampling, learned: OmniDraft | None) -> tuple[list[Way], dict[str, str]]:
        """Transformers, alone and with prompt lookup, and our loop with each source of drafts."""
        del task, learned
        ways, left_out = methods.make((BASELINE, "lookup"), self.model, 0, sampling)
        target, eos = self.model.target.lm, sorted(self.model.engine.eos)
        for source, drafting in SOURCES.items():
            alone = Engine(target, eos, None, drafting) if source == "retrieval" else engine_for(self.model, drafting)
            ways.append(EngineWay(source, alone, sampling))
        return ways, left_out

    @staticmethod
    def summary(rows: Sequence[Row]) -> str:
        """Both sources over the better one alone, and over prompt lookup (without it, no drafts): means of groups."""
        cells: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
        for row in rows:
            if row["speedup"]:
                cells[row["target"], row["temperature"], row["task"]][row["method"]] = row["speedup"]
        said = []
        for target, temperature in dict.fromkeys(key[:2] for key in cells):
            for group, tasks in GROUPS.items():
                found = [cells[target, temperature, task] for task in tasks if (target, temperature, task) in cells]
                if found:
                    alone = _mean(cell["auto"] / max(cell["model"], cell["retrieval"]) for cell in found)
                    other = "lookup" if all("lookup" in cell for cell in found) else BASELINE
                    ratio = _mean(cell["auto"] / cell[other] for cell in found)
                    said.append(f"{target}, temperature {temperature:g}, {group} {alone}, over {other} {ratio}")
        return f"both sources over the better one alone: {'; '.join(said)}"


def _mean(ratios: Iterable[float]) -> str:
    return down(statistics.geometric_mean(ratios), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure copied drafts on real models, and return the exit code."""
    about = "Drafts copied from earlier text, alone and with the drafter's, on real models."
    return run(real.options_of(Copying, about), partial(real.measure, measurement=Copying), arguments)


if __name__ == "__main__":
    sys.exit(main())
