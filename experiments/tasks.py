"""Tasks in two parts that have no prompt in common, to learn from and for tests.

They are GSM8K, `code` (MBPP and HumanEval together), Alpaca and XSum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omnidraft.bench.prompts import TASKS, Task, gsm8k_prompt, mbpp_prompt, own_prompt, read, rows_of, texts_of
from omnidraft.errors import ConfigError

NAMES = ("gsm8k", "code", "alpaca", "xsum")
KEPT_OUT = 1000  # prompts at the end of GSM8K's training file, which the embedded models never saw
TEST_EVERY = 5  # of tasks without a split of their own, every fifth prompt is for tests: 228 of MBPP and HumanEval


def _any_mbpp(row: dict[str, Any]) -> str:
    return f"Task: {row['text']}\n{row['test_list'][0]}\nSolution:\n"


def _alpaca(row: dict[str, Any]) -> str:
    return "\n\n".join(part for part in (row["instruction"], row["input"]) if part)


def _xsum(row: dict[str, Any]) -> str:
    return f"{row['document']}\n\nSummary in one sentence:"


ALPACA = Task(("tatsu-lab/alpaca",), ("alpaca/train.jsonl",), _alpaca)
XSUM = Task(("EdinburghNLP/xsum",), ("xsum/test.jsonl",), _xsum)
MBPP_SPLITS = ("prompt", "test", "validation", "train")  # on the hub, in the order of the one file elsewhere


def training(data: Path | None) -> list[str]:
    """All prompts of GSM8K's training split, below `data` or from the hub; raises as `prompts.read`."""
    return _prompts("gsm8k", TASKS["gsm8k"], data, gsm8k_prompt, "train")


def parts(task: str, data: Path | None, *, unseen: bool = False) -> tuple[list[str], list[str]]:
    """Prompts of a task to learn from, and others for tests; `data` as for `prompts.read`, which raises alike.

    With `unseen`, only those that the embedded models never saw.
    """
    if task == "gsm8k":
        learn = training(data)
        return learn[-KEPT_OUT:] if unseen else learn, read(task, data)
    if task == "xsum":
        return _prompts(task, XSUM, data, _xsum, "train"), _prompts(task, XSUM, data, _xsum, "test")
    if task == "alpaca":
        return _parted(_prompts(task, ALPACA, data, _alpaca, "train"))
    if task == "code":
        found = _prompts(task, TASKS["mbpp"], data, mbpp_prompt if unseen else _any_mbpp, *MBPP_SPLITS)
        return _parted(found + _prompts(task, TASKS["humaneval"], data, own_prompt, "test"))
    raise ConfigError(f"task {task!r} is not known: use some of {', '.join(NAMES)}")


def _parted(found: Sequence[str]) -> tuple[list[str], list[str]]:
    return [one for i, one in enumerate(found) if i % TEST_EVERY], list(found[::TEST_EVERY])


def _prompts(
    name: str, task: Task, data: Path | None, write: Callable[[dict[str, Any]], str | None], *splits: str
) -> list[str]:
    return list(texts_of(rows_of(task, name, data, *splits), write))
