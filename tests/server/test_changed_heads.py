"""Prompts that differ early and then agree: told with the place and both sides, and nothing else is."""

from __future__ import annotations

import random

import pytest

from omnidraft.server.running.changed_heads import AGREE, ChangedHeads


def decode(ids: object) -> str:
    return "".join(chr(97 + each % 26) for each in ids)  # type: ignore[attr-defined]


def text(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


REST = text(1, 3 * AGREE)


@pytest.mark.parametrize(("before", "now"), [([7], [8]), ([7], [8, 9, 10]), (text(2, 40), text(3, 90)), ([], [5])])
def test_a_difference_near_the_beginning_is_found(before: list[int], now: list[int]) -> None:
    heads, begin = ChangedHeads(decode), text(4, 20)
    assert heads.look(0, [*begin, *before, *REST], 0) is None
    changed = heads.look(0, [*begin, *now, *REST, 1, 2], 20)
    assert changed is not None
    assert changed.character == 20
    assert changed.tokens > 0.8 * len(REST)
    assert changed.before == decode([*before, *REST])[:40]
    assert changed.now == decode([*now, *REST])[:40]
    assert "differ at character 20" in str(changed)


@pytest.mark.parametrize(
    ("key", "prompt", "cached"),
    [
        (1, [8, *REST], 0),  # another user's
        (0, [7, *REST], len(REST)),  # all of it is found
        (0, [8, *REST[: AGREE // 2]], 0),  # too short to matter
        (0, [8, *text(5, 3 * AGREE)], 0),  # another text
        (0, [7, *REST[: 2 * AGREE], 8, *REST[2 * AGREE :]], 0),  # late
    ],
)
def test_other_differences_are_not_told(key: int, prompt: list[int], cached: int) -> None:
    heads = ChangedHeads(decode)
    heads.look(0, [7, *REST], 0)
    assert heads.look(key, prompt, cached) is None
