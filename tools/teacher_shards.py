"""What a teacher was asked and what it answered, in files: written by teacher_text.py, read to train a drafter on.

A shard is an .npz file.  Its row i has the places offsets[i]:offsets[i + 1] of

    tokens        int32    (T,)    what the teacher wrote, end of turn included unless the limit came first
    top_ids       int32    (T, 8)  its likeliest tokens there, likeliest first
    top_logprobs  float16  (T, 8)  their log-probabilities, at temperature 1 whatever the row's is

of which the first questions[i] (0: none) are a question of its own, ended by the end of turn, and the rest the answer.
numbers, sources, indices, forms and temperatures say where the row comes from; `Questions.asked` makes the user's words
of three of them, which for a question of the teacher's own are those that it was made to begin with.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

KEPT_OUT = 1_000  # last lines of GSM8K train.jsonl: the stream of user prompts for online learning
MBPP_TRAIN = range(601, 975)  # MBPP's own training split; 11-510 are its test tasks
OWN, GSM8K, MBPP = range(3)  # sources
FORMS = (
    ("", "Write a Python function", "How do I", "Summarize the following text in one sentence:", "Fix this code:"),
    ("{question}", "Question: {question}\nAnswer:"),
    ("Task: {text}\n{test}\nSolution:\n", "{text}\nYour code should pass this test:\n{test}", "{text}"),
)
OPENED = (0.72, 0.16, 0.04, 0.06, 0.02)  # how often the teacher's own question begins with each of its forms


@dataclass(frozen=True)
class Answer:
    """One answer, after the teacher's own question where `question` is not 0."""

    number: int
    source: int
    index: int  # line of the source's file, from 0; -1: the teacher's own question
    form: int
    temperature: float  # of the answer; a question of its own is sampled at 1
    question: int  # how many of `tokens` are the teacher's own question
    tokens: npt.NDArray[np.int32]  # (T,)
    top_ids: npt.NDArray[np.int32]  # (T, 8)
    top_logprobs: npt.NDArray[np.float16]  # (T, 8)


class Questions:
    """What is asked: the training questions below a folder, and the beginnings of the teacher's own."""

    def __init__(self, data: Path) -> None:
        gsm8k, mbpp = (
            [json.loads(line) for line in (data / name).read_bytes().splitlines()]
            for name in ("gsm8k/train.jsonl", "mbpp/mbpp.jsonl")
        )
        self._fields: tuple[list[dict[str, str]], ...] = (
            [{}],
            [{"question": row["question"]} for row in gsm8k],
            [{"text": row["text"], "test": row["test_list"][0]} for row in mbpp],
        )
        rng = np.random.default_rng(0)
        self._all = [(GSM8K, i, int(rng.integers(len(FORMS[GSM8K])))) for i in range(len(gsm8k) - KEPT_OUT)]
        tasks = [i for i, row in enumerate(mbpp) if row["task_id"] in MBPP_TRAIN]
        self._all += [(MBPP, i, form) for i in tasks for form in range(len(FORMS[MBPP]))]
        self._order = rng.permutation(len(self._all))

    def asked(self, source: int, index: int, form: int) -> str:
        """The user's words; for a question of the teacher's own, those it begins with."""
        return FORMS[source][form].format(**self._fields[source][index])

    def plan(self, number: int) -> tuple[int, int, int, float]:
        """Source, index, form and temperature of a row; every third one answers a question from the files."""
        rng = np.random.default_rng([0, number])
        again, place = divmod(number // 3, len(self._all))
        greedy = rng.random() < 0.5
        temperature = float(np.float32(rng.uniform(0.5, 1)))
        if number % 3 == 0:  # greedy answers are the same the second time
            return *self._all[self._order[place]], 0.0 if greedy and not again else temperature
        return OWN, -1, int(rng.choice(len(OPENED), p=OPENED)), 0.0 if greedy else temperature


def save(path: Path, answers: Sequence[Answer]) -> None:
    """Write a shard, whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            numbers=np.array([each.number for each in answers], np.int64),
            sources=np.array([each.source for each in answers], np.uint8),
            indices=np.array([each.index for each in answers], np.int32),
            forms=np.array([each.form for each in answers], np.uint8),
            temperatures=np.array([each.temperature for each in answers], np.float32),
            questions=np.array([each.question for each in answers], np.int32),
            offsets=np.cumsum([0] + [len(each.tokens) for each in answers], dtype=np.int64),
            tokens=np.concatenate([each.tokens for each in answers]),
            top_ids=np.concatenate([each.top_ids for each in answers]),
            top_logprobs=np.concatenate([each.top_logprobs for each in answers]),
        )
    os.replace(part, path)


def load(path: Path) -> Iterator[Answer]:
    """The answers of a shard."""
    with np.load(path) as file:
        shard = dict(file)
    whole = ("numbers", "sources", "indices", "forms", "questions")
    for i, (start, end) in enumerate(itertools.pairwise(shard["offsets"])):
        number, source, index, form, question = (int(shard[name][i]) for name in whole)
        temperature, place = float(shard["temperatures"][i]), slice(start, end)
        parts = shard["tokens"][place], shard["top_ids"][place], shard["top_logprobs"][place]
        yield Answer(number, source, index, form, temperature, question, *parts)
