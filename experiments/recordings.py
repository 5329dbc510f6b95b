"""Answers of a target that were recorded once, kept in a folder, to be learned from again and again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from experiments.student import Recorded
from omnidraft.bench.output import writing
from omnidraft.errors import InputError
from omnidraft.storage import replace_file
from omnidraft.verification.sparse_probs import SparseProbs

AT_ONCE = 25  # answers of a file
Make = Callable[[Sequence[int], int], Recorded]
"""Answers a prompt, given its number."""


class Recordings:
    """Recorded answers, by a name for the question and its settings; in memory alone where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, list[Recorded]] = {}

    def answers(self, name: str, prompts: Sequence[list[int]], make: Make) -> list[Recorded]:
        """The answers to these prompts; `make` answers those that have none.

        Raises InputError where answers to other prompts lie under that name, or cannot be read or written.
        """
        if name not in self._known:
            files = sorted(self._folder.glob(f"{name}-*.npz")) if self._folder is not None else []
            self._known[name] = [one for file in files for one in _read(file)]
        known = self._known[name]
        for asked, one in zip(prompts, known, strict=False):
            if tuple(asked) != one.prompt:
                raise InputError(f"{self._folder} holds {name} to other prompts: give --out another folder")
        while (begin := len(known)) < len(prompts):
            made = [make(ids, begin + i) for i, ids in enumerate(prompts[begin : begin + AT_ONCE])]
            if self._folder is not None:
                with writing(self._folder / name):
                    replace_file(self._folder / f"{name}-{begin:06d}.npz", packed(made))
            known += made
        return known[: len(prompts)]


def packed(answers: Sequence[Recorded]) -> bytes:
    """Answers as the bytes of a file."""
    teacher = [probs for one in answers for probs in one.teacher]
    file = io.BytesIO()
    np.savez_compressed(
        file,
        answers=np.array(json.dumps([(one.prompt, one.tokens) for one in answers])),
        ends=np.cumsum([len(probs.tokens) for probs in teacher], dtype=np.int64)[:-1],
        ids=np.concatenate([np.empty(0, np.int32), *(probs.tokens for probs in teacher)]),
        probs=np.concatenate([np.empty(0, np.float32), *(probs.probs for probs in teacher)]),
    )
    return file.getvalue()


def _read(file: Path) -> list[Recorded]:
    """The answers of a file that `packed` made; raises InputError for another."""
    try:
        with np.load(file) as found:
            parts = zip(*(np.split(found[name], found["ends"]) for name in ("ids", "probs")), strict=True)
            teacher = (SparseProbs(ids, probs) for ids, probs in parts)
            answers = json.loads(str(found["answers"]))
        return [Recorded(tuple(prompt), tuple(said), tuple(islice(teacher, len(said)))) for prompt, said in answers]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise InputError(f"cannot read recorded answers {file} ({error}): remove the file") from error
