"""A request to decode: its ids so far, how its tokens are drawn, and what is asked for beside them."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.config import Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.passes import Pace
from omnidraft.verification.round import TokenLogprobs
from omnidraft.verification.sampling import Processing, Sampler


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Further options of a request.

    `scores` are log-probabilities of the prompt's tokens, which is then read anew.  `marks` are special tokens whose
    text belongs to the answer's.  No stop string ends the answer within its first `least` tokens.  `circle` names those
    who may share what is read of it.  The others say how it is drafted, within what the lane does: at most `longest`
    tokens a round, and by whom.
    """

    scores: bool = False
    marks: frozenset[int] = frozenset()
    least: int = 0
    circle: bytes = b""
    longest: int | None = None
    drafter: bool = True
    counts: bool = True


NOTHING_ELSE = Extras()


@dataclass(kw_only=True)
class Request(Pace):
    """The state of one request; made by `Lane.request`.

    Where it is to `stop` while a long prompt is read, its round ends with `Stopped`.
    """

    ids: list[int]  # prompt and committed tokens
    prompt: int  # ids of the prompt
    end: int  # most ids there may be
    sampling: Sampling
    processing: Processing
    draw: Sampler
    lazy: bool  # the caller's processors may keep state: each is to see only ids that stay
    logprobs: int | None = None  # where set, records hold log-probabilities, and of this many tokens at each place
    # of the prompt's tokens but the first, where they are asked for: then each chunk is read with all its logits
    scores: list[TokenLogprobs] | None = None
    memory: AnswerMemory | None = None  # of earlier answers, which drafts count
    extras: Extras = NOTHING_ELSE
    cached: int = 0  # ids of the prompt that were not read
    turns: int = 0  # that its prompt waited for, or was read in
    policy_s: float = 0.0  # seconds of the policy since the last record
    read_s: float = 0.0  # seconds of reading chunks of the text since then
    finish: str | None = None

    @property
    def open(self) -> bool:
        return self.finish is None and len(self.ids) < self.end
