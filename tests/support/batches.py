"""An engine that verifies a batch of rows as vLLM's V1 runner does, with answers that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from omnidraft.vllm.rows import Rows

WIDTH = 512  # ids of a row


@dataclass(eq=False)
class Asked:
    """A request: its prompt, the tokens that the target answers, how many are out, and its draft."""

    prompt: list[int]
    answer: list[int]
    out: int = 0
    draft: list[int] = field(default_factory=list)
    proposed: list[list[int]] = field(default_factory=list)
    accepted: int = 0

    @property
    def done(self) -> bool:
        return self.out >= len(self.answer)

    def step(self, verified: int | None = None) -> list[int]:
        """The tokens of a step in which so many of the draft are verified; None: all."""
        draft = self.draft[:verified]
        rest = self.answer[self.out :]
        pairs = enumerate(zip(draft, rest, strict=False))
        accepted = next((at for at, (one, other) in pairs if one != other), min(len(draft), len(rest)))
        new = rest[: accepted + 1]
        self.accepted += min(accepted, len(new))
        self.out += len(new)
        return new


class Batch:
    """Steps of rows that come, go and move; `propose` is asked after each as a proposer of vLLM is."""

    def __init__(self, rows: Rows, longest: int) -> None:
        self.rows, self.longest = rows, longest
        self.table = np.full((16, WIDTH), -7, np.int32)  # what is not a row's must not be read

    def step(
        self,
        places: Sequence[Asked],
        waiting: Iterable[Asked] = (),
        verified: Callable[[Asked], int | None] = lambda _: None,
    ) -> None:
        """A step of the requests at these places; those `waiting` are there without new tokens."""
        idle = set(map(id, waiting))
        sampled = [[] if id(each) in idle else each.step(verified(each)) for each in places]
        lengths = np.zeros(len(self.table), np.int32)
        self.table[:] = -7
        for at, each in enumerate(places):
            ids = [*each.prompt, *each.answer[: each.out]]
            self.table[at, : len(ids)], lengths[at] = ids, len(ids)
        drafts = self.rows.propose(sampled, lengths, self.table)
        assert len(drafts) == len(places)
        for each, draft in zip(places, drafts, strict=True):
            assert len(draft) <= self.longest
            assert all(type(token) is int for token in draft)
            each.draft = draft
            each.proposed.append(draft)

    def run(self, requests: Sequence[Asked]) -> None:
        """Steps of all until they are done."""
        while left := [each for each in requests if not each.done]:
            self.step(left)
