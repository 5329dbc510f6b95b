"""Another library that runs GGUF files, in a process of its own: its symbols would clash with those of llama.cpp."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.judging import resident_mb
from omnidraft.bench.interleaved import TimedAnswer
from omnidraft.errors import ModelError

_loaded: list[Any] = []  # of the process


class Apart:
    """Greedy decoding by CLASS(file, n_ctx, n_threads).generate(ids, max_tokens, temperature) of MODULE:CLASS.

    Raises ModelError where there is no such class.
    """

    def __init__(self, name: str, path: Path, room: int, threads: int) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        self.loaded_mb = self._pool.submit(_load, name, str(path), room, threads).result()
        self._prompt, self._tokens = list[int](), list[int]()

    def restart(self) -> None:
        """Nothing is kept between answers."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:  # noqa: ARG002  greedy, of any length
        self._prompt, self._tokens = ids, []

    def advance(self, length: int) -> bool:
        """Answer in one go."""
        self._tokens = self._pool.submit(_answer, self._prompt, length).result()
        return len(self._tokens) >= length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self._tokens)


def _load(name: str, path: str, room: int, threads: int) -> float:
    """Load a file in this process; MB by which that grows it."""
    module, _, kind = name.partition(":")
    before = resident_mb()
    try:
        made = getattr(import_module(module), kind)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"--also {name!r} is no class that is installed ({error}): give MODULE:CLASS") from error
    _loaded.append(made(path, n_ctx=room, n_threads=threads, verbose=False))
    _answer([0, 1], 1)  # the weights of a mapped file are in memory after the first pass
    return resident_mb() - before


def _answer(ids: list[int], count: int) -> list[int]:
    return list(_loaded[0].generate(ids, max_tokens=count, temperature=0.0))
