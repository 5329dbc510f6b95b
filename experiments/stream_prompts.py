"""Prompts of one user after the other's habit: many of a kind, no two the same, and none of a test set."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments import tasks
from omnidraft.cli.prompts import TASKS, rows_of, texts_of
from omnidraft.errors import ConfigError

SEED = 7
FIELD = re.compile(r"\{(?:(\d+)-(\d+)|(\w+))\}")
TRIES = 100  # for a text that is not there yet


@cache
def parts() -> dict[str, Any]:
    """What the prompts are made of, by stream."""
    found: dict[str, Any] = tomllib.loads((tasks.PROMPTS / "streams.toml").read_text(encoding="utf-8"))
    return found


def written(template: str, words: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A template with its fields filled in; no entry of a list comes twice while others are left."""
    used = set()

    def filled(field: re.Match[str]) -> str:
        low, high, name = field.groups()
        if name is None:
            return str(rng.randint(int(low), int(high)))
        left = [entry for entry in words[name] if entry not in used] or list(words[name])
        entry = rng.choice(left)
        used.add(entry)
        return FIELD.sub(filled, entry)

    return FIELD.sub(filled, template)


def _texts(words: Mapping[str, Any], rng: random.Random, now: Callable[[], Mapping[str, Any]] = dict) -> Iterator[str]:
    """Texts of all templates in turns, none of them twice; `now` has lists of the moment."""
    seen, templates = set[str](), list(words["templates"])
    while True:
        rng.shuffle(templates)
        for template in templates:
            tries = (written(template, {**words, **now()}, rng) for _ in range(TRIES))
            if (text := next((text for text in tries if text not in seen), None)) is not None:
                seen.add(text)
                yield text


def _made(name: str, count: int) -> list[str]:
    words = parts()[name]
    texts = _texts(words, random.Random(SEED))  # noqa: S311  the same in every run
    return [words.get("before", "") + next(texts) for _ in range(count)]


def _edits(count: int) -> list[str]:
    """Changes asked of a file in which a function makes place for another now and then."""
    words = parts()["edits"]
    functions: dict[str, str] = words["functions"]
    rng = random.Random(SEED)  # noqa: S311  the same in every run
    present = rng.sample(sorted(functions), words["shown"])
    requests = _texts(words, rng, lambda: {"function": present})
    found = []
    for number in range(count):
        if number and number % words["stays"] == 0:
            present[rng.randrange(len(present))] = rng.choice(sorted(functions.keys() - set(present)))
        file = "\n\n".join([words["header"], *(functions[name] for name in present)])
        found.append(f"{words['before']}```python\n{file}```\n\n{next(requests)} {words['after']}")
    return found


def _code(data: Path | None) -> list[str]:
    """Tasks of MBPP's training split that are in no other split, too."""
    rows = list(rows_of(TASKS["mbpp"], "mbpp", data, *tasks.MBPP_SPLITS))
    others = set(texts_of(rows, lambda row: None if row["task_id"] in tasks.MBPP_TRAINING else row["text"]))

    def asked(row: Mapping[str, Any]) -> str | None:
        if row["task_id"] not in tasks.MBPP_TRAINING or row["text"] in others:
            return None
        return f"{parts()['code']['before']}{row['text']}\nIt has to pass this test: {row['test_list'][0]}"

    return list(dict.fromkeys(texts_of(rows, asked)))


STREAMS = ("json", "chinese", "german", "code", "edits", "instructions", "gsm8k")


def prompts(stream: str, count: int, data: Path | None) -> list[str]:
    """The first prompts of a stream; those of `code` and `gsm8k` are of training files below `data`, or on the hub.

    Raises ConfigError where there are fewer, else as `bench.prompts.rows_of`.
    """
    if stream == "code":
        found = _code(data)[:count]
    elif stream == "gsm8k":
        found = tasks.parts("gsm8k", data, unseen=True)[0][:count]
    else:
        found = _edits(count) if stream == "edits" else _made(stream, count)
    if len(found) < count:
        raise ConfigError(f"stream {stream} has {len(found)} prompts, {count} are asked for: use fewer")
    return found
