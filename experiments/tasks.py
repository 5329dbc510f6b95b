"""Tasks in two parts that have no prompt in common: prompts to learn from, and prompts for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omnidraft.cli.prompts import TASKS, TaskSource, gsm8k_prompt, mbpp_prompt, own_prompt, read, rows_of
from omnidraft.cli.prompts import texts_of as written
from omnidraft.errors import ConfigError

PROMPTS = Path(__file__).parent / "prompts"
OWN = ("instructions", "summaries")  # prompts of the project: those to learn from end in `-stream`
NAMES = ("gsm8k", "mbpp", "code", *OWN, "alpaca", "xsum")  # `code` is MBPP and HumanEval together
Write = Callable[[dict[str, Any]], str | None]
KEPT_OUT = 1000  # prompts at the end of GSM8K's training file, which the embedded models never saw
TEST_EVERY = 5  # of tasks without a split of their own, every fifth prompt is for tests: 228 of MBPP and HumanEval
MBPP_TRAINING = range(601, 975)  # task ids
MBPP_SPLITS = ("prompt", "test", "validation", "train")  # on the hub, in the order of the one file elsewhere


def parts(task: str, data: Path | None, *, unseen: bool = False) -> tuple[list[str], list[str]]:
    """Prompts of a task to learn from, and others for tests: below the folder `data`, or from the hub.

    With `unseen`, only those that the embedded models never saw.  Raises ConfigError for an unknown task, else as
    `bench.prompts.read`.
    """
    if task in OWN:
        return read(PROMPTS / f"{task}-stream.jsonl"), read(PROMPTS / f"{task}.jsonl")
    if task == "gsm8k":
        learn, tests = (_prompts(task, TASKS[task], data, gsm8k_prompt, split) for split in ("train", "test"))
        return learn[-KEPT_OUT:] if unseen else learn, tests
    if task == "xsum":
        learn, tests = (_prompts(task, XSUM, data, _xsum, split) for split in ("train", "test"))
        return learn, tests
    if task == "alpaca":
        found = _prompts(task, ALPACA, data, _alpaca, "train")
    elif task in ("mbpp", "code"):
        found = _prompts(task, TASKS["mbpp"], data, mbpp_prompt if unseen else _any_mbpp, *MBPP_SPLITS)
        if task == "code":
            found += _prompts(task, TASKS["humaneval"], data, own_prompt, "test")
    else:
        raise ConfigError(f"task {task!r} is not known: use some of {', '.join(NAMES)}")
    return [one for i, one in enumerate(found) if i % TEST_EVERY], found[::TEST_EVERY]


def texts_of(task: str, data: Path | None, count: int) -> list[str]:
    """The first prompts of a task: those of `code` are of MBPP's test split and HumanEval, in turns."""
    if task == "code":
        both = zip(*(read(part, data, count) for part in ("mbpp", "humaneval")), strict=False)
        return list(itertools.chain.from_iterable(both))[:count]
    return read(task if task in TASKS else PROMPTS / f"{task}.jsonl", data, count)


def _prompts(name: str, task: TaskSource, data: Path | None, write: Write, *splits: str) -> list[str]:
    return list(written(rows_of(task, name, data, *splits), write))


def _any_mbpp(row: dict[str, Any]) -> str:
    return f"Task: {row['text']}\n{row['test_list'][0]}\nSolution:\n"


def _alpaca(row: dict[str, Any]) -> str:
    return "\n\n".join(part for part in (row["instruction"], row["input"]) if part)


def _xsum(row: dict[str, Any]) -> str:
    return f"{row['document']}\n\nSummary in one sentence:"


ALPACA = TaskSource(("tatsu-lab/alpaca",), ("alpaca/train.jsonl",), _alpaca)
XSUM = TaskSource(("EdinburghNLP/xsum",), ("xsum/test.jsonl",), _xsum)
