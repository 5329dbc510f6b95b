"""Prompts of daily use are none that the shipped drafter was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from experiments.tasks import texts_of
from support.project_files import shared

COUNT = 8  # words in a row; of seven there are stock phrases, such as "write a cover letter for a job"


def phrases(text: str) -> Iterator[tuple[str, ...]]:
    """All that stands in a row of words, or of signs where a script has no spaces between words."""
    words = re.findall(r"[\u4e00-\u9fff]|\w+", text.lower())
    yield from (tuple(words[at : at + COUNT]) for at in range(max(1, len(words) - COUNT + 1)))


@pytest.mark.medium
def test_no_phrase_of_them_is_in_a_prompt_that_teachers_were_asked() -> None:
    own = {phrase for text in texts_of("everyday", None, 48) for phrase in phrases(text)}
    assert len(texts_of("everyday", None, 1000)) == 48
    everyday, gsm8k, mbpp = (shared("data", *path) for path in (
        ("prompts", "everyday.jsonl"), ("gsm8k", "train.jsonl"), ("mbpp", "mbpp.jsonl"),
    ))  # fmt: skip
    asked = [
        value
        for path in (everyday, gsm8k, mbpp)
        for line in path.read_text(encoding="utf-8").splitlines()
        for value in json.loads(line).values()
        if isinstance(value, str)
    ]
    assert len(asked) > 10_000
    assert [phrase for text in asked for phrase in phrases(text) if phrase in own] == []
    assert any(phrase in own for phrase in phrases("Q: Why is the sky blue? Answer in three sentences.")), (
        "it would see"
    )
