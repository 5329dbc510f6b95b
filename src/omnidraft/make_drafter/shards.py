"""Teacher text in files: conversations in a teacher's tokens, with its likeliest tokens wherever it wrote one.

A shard is an .npz file of conversations one after the other; `offsets` (R + 1,) says where each begins in `ids` and
`written`.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from omnidraft.errors import InputError
from omnidraft.storage import replace_file

if TYPE_CHECKING:
    from omnidraft.models.loading import LoadedModel

VOCABULARY = "vocabulary.sha256"  # beside the shards: a hash of the vocabulary that their ids are of


@dataclass(frozen=True, eq=False)
class TeacherConversation:
    """A user's turn and the teacher's answer, T tokens of which the teacher wrote W."""

    number: int  # in the plan of what is asked; no two have the same
    ids: npt.NDArray[np.int32]  # (T,) tokens of the teacher, template included
    written: npt.NDArray[np.bool_]  # (T,) by the teacher: the answer, and a question of its own
    top_ids: npt.NDArray[np.int32]  # (W, K) its likeliest tokens there, likeliest first
    top_logprobs: npt.NDArray[np.float16]  # (W, K) at temperature 1, whatever it was sampled at


def save(path: Path, conversations: Sequence[TeacherConversation]) -> None:
    """Write a shard, whole or not at all."""
    data = io.BytesIO()
    np.savez_compressed(
        data,
        numbers=np.array([each.number for each in conversations], np.int64),
        offsets=np.cumsum([0] + [len(each.ids) for each in conversations], dtype=np.int64),
        ids=np.concatenate([each.ids for each in conversations]),
        written=np.concatenate([each.written for each in conversations]),
        top_ids=np.concatenate([each.top_ids for each in conversations]),
        top_logprobs=np.concatenate([each.top_logprobs for each in conversations]),
    )
    replace_file(path, data.getvalue())


def load(path: Path) -> Iterator[TeacherConversation]:
    """The conversations of a shard."""
    with np.load(path) as file:
        shard = dict(file)
    counts = np.concatenate([[0], np.cumsum(shard["written"])])
    for number, (start, end) in zip(shard["numbers"].tolist(), itertools.pairwise(shard["offsets"]), strict=True):
        top = slice(counts[start], counts[end])
        place = slice(start, end)
        columns = shard["ids"][place], shard["written"][place], shard["top_ids"][top], shard["top_logprobs"][top]
        yield TeacherConversation(number, *columns)


def find(folder: Path) -> list[Path]:
    """The shards in a folder, in the order in which they were written."""
    return sorted(folder.glob("shard-*.npz"))


def check_vocabulary(folder: Path, teacher: LoadedModel) -> None:
    """Raise InputError where a folder holds text in the ids of another vocabulary; one that does not say may hold any.

    Models in different folders may have the same name.
    """
    kept = folder / VOCABULARY
    if kept.exists() and kept.read_text(encoding="ascii").strip() != _fingerprint(teacher):
        why = f"the text in {folder} is of another model that is called {teacher.name}"
        raise InputError(f"{why}: rename the teacher's folder or file, or give another --out")


def keep_vocabulary(folder: Path, teacher: LoadedModel) -> None:
    """Write down whose ids the text in a folder is in; raises as `check_vocabulary`."""
    check_vocabulary(folder, teacher)
    if not (folder / VOCABULARY).exists():
        replace_file(folder / VOCABULARY, f"{_fingerprint(teacher)}\n".encode())


def _fingerprint(teacher: LoadedModel) -> str:
    return hashlib.sha256(json.dumps(sorted(teacher.tokenizer.get_vocab().items())).encode()).hexdigest()
