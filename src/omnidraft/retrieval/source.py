"""The source of copied drafts: the request's own text, and a bounded store of earlier answers where one is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from omnidraft.config import Drafting
from omnidraft.draft_length.policy import DraftLengthPolicy
from omnidraft.errors import ConfigError
from omnidraft.retrieval.acceptance import CopyAcceptance
from omnidraft.retrieval.token_index import BOUNDARY, LONGEST, TokenIndex
from omnidraft.verification.rejection_sampling import Outcome
from omnidraft.verification.round import Draft

OWN, STORED = 0, 1  # sources
OWN_TOKENS = 2**20  # of a request, the latest are indexed
STORE_TOKENS = 2**18  # of earlier answers, the latest are kept: in 5 MiB


@dataclass(frozen=True, slots=True)
class Copy:
    """Tokens that followed a match of `length` tokens, and for each its acceptance probability given those before."""

    tokens: Sequence[int]
    chances: Sequence[float]
    source: int
    length: int


class Retrieval:
    """Proposes what followed the end of a text when it occurred before, in target tokens.

    Nothing is drawn: what is copied may depend on every token that is known, the drafter's drawn ones included, as long
    as these are verified themselves.  `store` holds earlier answers of the same target, and may be shared; without it
    nothing outlives a request.
    """

    def __init__(self, policy: DraftLengthPolicy, eos: Collection[int], store: TokenIndex | None = None) -> None:
        self.store = store
        self._policy, self._eos = policy, eos
        self._acceptance = CopyAcceptance(sources=2)
        self.start((), 0)

    def start(self, prompt: Sequence[int], new_tokens: int) -> None:
        """Begin a request for up to `new_tokens` tokens."""
        self._own = TokenIndex(min(len(prompt) + new_tokens, OWN_TOKENS))
        self._own.extend(prompt)
        self._answer: list[int] = []
        self._proposed: Copy | None = None  # in the present round

    def draft(self, ids: Sequence[int], room: int, *, alone: bool) -> Draft | None:
        """A draft of copied tokens for a round after `ids`; None where the drafter's pays more, unless `alone`."""
        copy = self._find(ids, room)
        copied = self._cut(copy, self._policy.copies(() if copy is None else copy.chances, alone=alone))
        return Draft(proposals=copied, retrieved=len(copied), ended=copied[-1] in self._eos) if copied else None

    def extended(self, draft: Draft, ids: Sequence[int], room: int) -> Draft:
        """The drafter's draft, with what followed its end before where that pays."""
        if not draft.proposals or not draft.extensible:
            return draft
        copy = self._find([*ids[-LONGEST:], *draft.proposals], room - len(draft.proposals))
        copied = self._cut(copy, 0 if copy is None else self._policy.extends(copy.chances))
        if not copied:
            return draft
        proposals = [*draft.proposals, *copied]
        return replace(draft, proposals=proposals, retrieved=len(copied), ended=copied[-1] in self._eos)

    def commit(self, emitted: Sequence[int], draft: Draft, outcome: Outcome, *, end: bool) -> int:
        """Take in the tokens of a round, and how many copied ones are accepted, which is returned.

        `end` says that the answer is complete: it is stored where answers are.
        """
        accepted = max(0, outcome.accepted - draft.drafted)
        if self._proposed is not None and outcome.accepted >= draft.drafted:
            outcomes = [place < accepted for place in range(min(accepted + 1, draft.retrieved))]
            self._acceptance.learn(self._proposed.source, self._proposed.length, outcomes)
        self._acceptance.next_round()
        self._proposed = None
        self._own.extend(emitted)
        self._answer += emitted
        if end and self.store is not None:
            self.store.extend([*self._answer, BOUNDARY])
        return accepted

    def release(self) -> None:
        """Drop the request's text."""
        self.start((), 0)

    def _find(self, text: Sequence[int], count: int) -> Copy | None:
        """Up to `count` tokens that followed the longest match of the end of `text`; of equal ones the request's."""
        if count <= 0:
            return None
        source, index, match = OWN, self._own, self._own.longest(text)
        if self.store is not None:
            stored = self.store.longest(text)
            if stored is not None and (match is None or stored.length > match.length):
                source, index, match = STORED, self.store, stored
        if match is None:
            return None
        tokens = index.after(match, count)
        return Copy(tokens, self._acceptance.chances(source, match.length, len(tokens)), source, match.length)

    def _cut(self, copy: Copy | None, count: int) -> Sequence[int]:
        """The first `count` tokens of a copy, up to an end of text."""
        self._proposed = copy if count else None
        if copy is None:
            return ()
        ends = (place + 1 for place, token in enumerate(copy.tokens[:count]) if token in self._eos)
        return copy.tokens[: next(ends, count)]


def retrieves(drafting: Drafting, *, drafter: bool) -> bool:
    """Whether these settings draft by retrieval; beside a drafter only where the policy weighs both."""
    if drafting.sources != "auto" or not drafter:
        return drafting.sources != "model" and drafting.longest > 0
    return drafting.draft_length == "goodput" and drafting.mode != "paper"


def new_store(drafting: Drafting, *, drafter: bool) -> TokenIndex | None:
    """An index for earlier answers where they are to be copied from; raises ConfigError where nothing is copied."""
    if drafting.remember == "nothing":
        return None
    if not retrieves(drafting, drafter=drafter):
        fix = "use draft_length='goodput', or leave remember out"
        raise ConfigError(f"remember is {drafting.remember!r} with settings that copy nothing: {fix}")
    return TokenIndex(STORE_TOKENS)
