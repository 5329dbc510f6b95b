"""Answers of a target that were recorded once, kept in a folder, to be learned from again and again."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.replay_learner import Recorded
from omnidraft.bench.environment import writing
from omnidraft.errors import InputError
from omnidraft.storage import replace_file
from omnidraft.verification.sparse_probs import SparseProbs

AT_ONCE = 25  # answers of a file
Make = Callable[[Sequence[list[int]], int], list[Recorded]]
"""Answers prompts, of which so many were answered before."""


class Recordings:
    """Recorded answers by a name for what was asked how; in memory alone where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, list[Recorded]] = {}

    def left(self, name: str, prompts: Sequence[list[int]]) -> int:
        """How many of the prompts have no answer yet."""
        return max(0, len(prompts) - len(self._of(name)))

    def answers(self, name: str, prompts: Sequence[list[int]], make: Make) -> list[Recorded]:
        """The answers to these prompts; `make` answers those that have none.

        Raises InputError where answers to other prompts lie under that name, or cannot be read or written.
        """
        known = self._of(name)
        for asked, one in zip(prompts, known, strict=False):
            if tuple(asked) != one.prompt:
                raise InputError(f"{self._folder} holds {name} to other prompts: give --out another folder")
        while len(known) < len(prompts):
            made = make(prompts[len(known) : len(known) + AT_ONCE], len(known))
            if self._folder is not None:
                with writing(self._folder / name):
                    replace_file(self._folder / f"{name}-{len(known):06d}.npz", packed(made))
            known += made
        return known[: len(prompts)]

    def _of(self, name: str) -> list[Recorded]:
        if name not in self._known:
            files = sorted(self._folder.glob(f"{name}-*.npz")) if self._folder is not None else []
            self._known[name] = [one for file in files for one in _read(file)]
        return self._known[name]


def packed(answers: Sequence[Recorded]) -> bytes:
    """Answers as the bytes of a file."""
    laws = [law for one in answers for law in one.laws]
    file = io.BytesIO()
    np.savez_compressed(
        file,
        prompts=_ints(chain.from_iterable(one.prompt for one in answers)),
        prompt_ends=_ends([len(one.prompt) for one in answers]),
        tokens=_ints(chain.from_iterable(one.tokens for one in answers)),
        token_ends=_ends([len(one.tokens) for one in answers]),
        law_tokens=np.concatenate([law.tokens for law in laws] or [np.empty(0, np.int32)]),
        law_probs=np.concatenate([law.probs for law in laws] or [np.empty(0, np.float32)]),
        law_ends=_ends([len(law.tokens) for law in laws]),
    )
    return file.getvalue()


def unpacked(data: bytes) -> list[Recorded]:
    """The answers that `packed` packed; raises ValueError or KeyError for other bytes."""
    with np.load(io.BytesIO(data)) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    prompts, tokens = (
        _parts(found[name], found[ends]) for name, ends in (("prompts", "prompt_ends"), ("tokens", "token_ends"))
    )
    pairs = zip(
        _parts(found["law_tokens"], found["law_ends"]), _parts(found["law_probs"], found["law_ends"]), strict=True
    )
    laws = [SparseProbs(ids, probs) for ids, probs in pairs]
    answers, start = [], 0
    for prompt, said in zip(prompts, tokens, strict=True):
        answers.append(Recorded(tuple(prompt.tolist()), tuple(said.tolist()), tuple(laws[start : start + len(said)])))
        start += len(said)
    return answers


def _read(file: Path) -> list[Recorded]:
    try:
        return unpacked(file.read_bytes())
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read recorded answers {file} ({error}): remove the file") from error


def _ints(values: chain[int]) -> npt.NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def _ends(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *lengths])


def _parts(values: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    return [values[start:end] for start, end in pairwise(ends.tolist())]
