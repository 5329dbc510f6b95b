"""Prompts of the tasks GSM8K, MBPP and HumanEval, or of a JSONL file."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft.errors import ConfigError, InputError, PromptError

MBPP_TEST = range(11, 511)  # task ids of MBPP's test split
CHECK = "check the file"
MARK = "\ufeff"  # the byte-order mark, with which editors and shells of Windows begin a text


@dataclass(frozen=True)
class TaskSource:
    """The location of a task's rows, and their prompt format."""

    hub: tuple[str, ...]  # the data set, and its configuration if it has several
    files: tuple[str, ...]  # below a folder of data, first choice first
    write: Callable[[dict[str, Any]], str | None]  # a row as a prompt; None: not in the test set


def gsm8k_prompt(row: dict[str, Any]) -> str:
    """A problem of GSM8K."""
    return f"Question: {row['question']}\nAnswer:"


def mbpp_prompt(row: dict[str, Any]) -> str | None:
    """A task of MBPP's test split; None for others."""
    return f"Task: {row['text']}\n{row['test_list'][0]}\nSolution:\n" if row["task_id"] in MBPP_TEST else None


def own_prompt(row: dict[str, Any]) -> str:
    """The field `prompt`."""
    if not isinstance(row["prompt"], str):
        raise TypeError
    return row["prompt"]


TASKS = {
    "gsm8k": TaskSource(("openai/gsm8k", "main"), ("gsm8k/test.jsonl", "test.jsonl"), gsm8k_prompt),
    "mbpp": TaskSource(("google-research-datasets/mbpp",), ("mbpp/mbpp.jsonl", "mbpp.jsonl"), mbpp_prompt),
    "humaneval": TaskSource(
        ("openai/openai_humaneval",),
        tuple(f"{folder}HumanEval.jsonl{end}" for folder in ("humaneval/", "") for end in (".gz", "")),
        own_prompt,
    ),
}


def name_of(task: str) -> str:
    """The name of a task; of a file, without folder and endings."""
    return task if task in TASKS else Path(task).name.split(".")[0]


def read(task: str | Path, data: Path | None = None, count: int | None = None) -> list[str]:
    """The first `count` prompts of a task, or all of them.

    `task` is a key of TASKS, looked for below the folder `data` or, without one, on the Hugging Face hub; anything
    else, and any Path, is a JSONL file, gzipped or not, with a `prompt` in each line.  Raises ConfigError if the
    datasets library is missing, InputError for a file that cannot be read, PromptError for a line without a prompt.
    """
    if isinstance(task, str) and task in TASKS:
        rows, write = rows_of(TASKS[task], task, data, "test"), TASKS[task].write
    # these raise nothing, as those of Path do
    elif os.path.isfile(file := Path(os.path.expanduser(task))) or isinstance(task, Path):  # noqa: PTH111, PTH113
        rows, write = _lines(file), own_prompt
    else:
        known = ", ".join(TASKS)
        raise InputError(f"task {task!r} is no file and none of {known}: give one of these, or a JSONL file")
    prompts = list(itertools.islice(texts_of(rows, write), count))
    if not prompts:
        raise PromptError(f"task {str(task)!r} has no prompts: give a file with at least one")
    return prompts


def chats(path: Path) -> list[str | dict[str, Any]]:
    """The prompts of a JSONL file: the field `prompt` of a line, or the whole line where it has `messages`.

    Raises InputError for a file that cannot be read, PromptError for a line with neither and a file without lines.
    """
    prompts: list[str | dict[str, Any]] = []
    for place, row in _lines(path):
        chat = row if isinstance(row, dict) else {}
        if not isinstance(chat.get("messages", chat.get("prompt")), list | str):
            raise PromptError(f"{place} has neither a text as prompt nor a list of messages: {CHECK}")
        prompts.append(chat if "messages" in chat else chat["prompt"])
    if not prompts:
        raise PromptError(f"{path} has no prompts: give a file with at least one")
    return prompts


def rows_of(task: TaskSource, name: str, data: Path | None, *splits: str) -> Iterator[tuple[str, Any]]:
    """The rows of some splits of a task, each with its place: below `data` from one file, else from the hub."""
    if data is None:
        return itertools.chain.from_iterable(_hub(name, task.hub, split) for split in splits)
    files = task.files
    if splits == ("train",):
        files = tuple(file.replace("test.jsonl", "train.jsonl") for file in files)
    for file in files:
        if (data / file).is_file():
            return _lines(data / file)
    raise InputError(f"{data} holds none of {', '.join(files)}: give --data the folder that does")


def digest(prompts: Sequence[str]) -> str:
    """Short SHA-256 of prompts and their order."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:12]


def texts_of(rows: Iterable[tuple[str, Any]], write: Callable[[dict[str, Any]], str | None]) -> Iterator[str]:
    """The rows as prompts, without those that are not of the task."""
    for place, row in rows:
        try:
            text = write(row)
        except (KeyError, IndexError, TypeError) as error:
            raise PromptError(f"{place} lacks a field of the prompt ({error!r}): check the file") from error
        if text is not None:
            yield text


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a JSONL file, each with its place."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{path}, line {number},"
                    yield place, _row(line, place)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): give a JSONL file") from error


def _row(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", "too long an integer")
        raise PromptError(f"{place} is no JSON that can be read ({why}): {CHECK}") from error


def _hub(task: str, source: tuple[str, ...], split: str = "test") -> Iterator[tuple[str, Any]]:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        fix = "pip install 'omnidraft[bench]', or give --data the folder it lies in"
        raise ConfigError(f"task {task!r} is on the hub, which takes the datasets library: {fix}") from error
    try:
        rows = datasets.load_dataset(*source, split=split)
    except Exception as error:  # the connection, the hub's answers, damaged files: anything
        fix = "check the connection, or give --data the folder it lies in"
        raise InputError(f"cannot get task {task!r} from the hub ({type(error).__name__}): {fix}") from error
    for number, row in enumerate(rows, 1):
        yield f"{source[0]}, row {number},", row
