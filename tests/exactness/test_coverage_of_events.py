"""Whatever can happen to a draft does happen in the worlds whose distributions are enumerated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omnidraft.alignment.spelling_table import ROOT, SpellingTable
from omnidraft.config import Sampling
from omnidraft.decoding.proposals import TrieDraft
from omnidraft.decoding.rejection import RejectionDraft
from omnidraft.decoding.stream import decode
from omnidraft.verification.drawn import Outcome
from omnidraft.verification.trie_walk import DEAD, STOP, Symbol, Walk
from support.enumeration import EXACT, Case
from support.table_models import PROMPT, make_world

EVENTS = {
    "n-gram accepted",
    "n-gram rejected",
    "STOP accepted",
    "STOP rejected",
    "token at the end of the draft accepted",
    "token at the end of the draft rejected",
    "draft ends inside a node where no token ends",
    "over-long token accepted",
    "over-long token rejected at its first symbol",
    "over-long token rejected after its first symbol",
    "rejected at depth 0",
    "rejected at depth 1",
    "rejected at depth 2",
    "rejected at depth 3",
    "symbol after an implied STOP accepted",
    "symbol after an implied STOP rejected",
    "end of text accepted inside a block",
    "end of text rejected",
    "end of text as correction",
    "dead symbol at the root",
    "dead symbol inside a node",
    "token without bytes as correction",
    "duplicate as correction",
    "bonus token",
}


def depths(table: SpellingTable) -> list[int]:
    result = [0] * len(table.lo)
    for node, depth in enumerate(result):
        for child in range(table.first[node], table.first[node + 1]):
            result[child] = depth + 1
    return result


def of_symbols(walk: Walk, drafted: list[int], accepted: int) -> Iterator[str]:
    """Events of single symbols: those accepted, and the one that was not."""
    table, eos = walk.cache.table, walk.eos
    forced = False
    for number, symbol in enumerate(walk.symbols[: accepted + 1]):
        verdict = "accepted" if number < accepted else "rejected"
        long = symbol.position >= 0 and table.root[drafted[symbol.position]] < 0 and symbol.child >= 0
        last = number + 1 == len(walk.symbols)
        if symbol.symbol == STOP and symbol.position >= 0:
            yield f"STOP {verdict}"
        if symbol.symbol == STOP and symbol.position < 0 and last and not forced:
            yield f"token at the end of the draft {verdict}"
        if symbol.after >= 0 and symbol.child >= 0:
            yield f"symbol after an implied STOP {verdict}"
        if symbol.symbol == DEAD:
            yield f"dead symbol {'at the root' if symbol.node == ROOT else 'inside a node'}"
        if walk.ended and symbol.index == len(walk.tokens) - 1 and number == accepted and walk.tokens[-1] in eos:
            yield "end of text rejected"
        if long and number == accepted:
            yield "over-long token rejected at its first symbol"
        if forced and symbol.position < 0 and number == accepted:
            yield "over-long token rejected after its first symbol"
        forced = long or (forced and symbol.position < 0)
        if forced and number < accepted and (last or walk.symbols[number + 1].position >= 0):
            yield "over-long token accepted"


def of_outcome(walk: Walk, outcome: Outcome, refused: Symbol | None) -> Iterator[str]:
    """Events of the tokens that were accepted, refused and emitted."""
    cache, last = walk.cache, outcome.emitted[-1]
    ngrams = [len(cache.table.spelling(token)) > 1 for token in walk.tokens]
    if any(ngrams[: outcome.accepted]):
        yield "n-gram accepted"
    if refused is None:
        if walk.ended:
            assert last == walk.tokens[-1]
            if len(walk.tokens) > 1:
                yield "end of text accepted inside a block"
        elif walk.node != ROOT:
            assert cache.token_at(walk.node) < 0
            yield "draft ends inside a node where no token ends"
        elif walk.tokens:
            yield "bonus token"
        return
    yield f"rejected at depth {depths(cache.table)[refused.node]}"
    if any(ngrams[refused.index : refused.index + 1]):
        yield "n-gram rejected"
    if last in walk.eos:
        yield "end of text as correction"
    elif cache.table.node[last] < 0:
        yield "duplicate as correction" if len(cache.table.spelling(last)) else "token without bytes as correction"


WAYS: dict[str, tuple[dict[str, object], Sampling]] = {
    "block": ({"verification": "block"}, Sampling(temperature=1.0)),
    "token": ({"verification": "token"}, Sampling(temperature=1.0)),
    "greedy": ({"drafter_temperature": 1.0, "verification": "block"}, Sampling()),
    "seeded": ({"verification": "seeded"}, Sampling(temperature=1.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_event_occurs(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafting, sampling = WAYS[way]
    kind = TrieDraft if way == "seeded" else RejectionDraft
    verify, counts = kind.verify, Counter[str]()

    def watched(draft: Any, *arguments: Any, **how: Any) -> Outcome:
        outcome = verify(draft, *arguments, **how)
        walk, refused = draft.walk, outcome.refused
        assert (refused is None) == (outcome.symbols_accepted == len(walk.symbols))
        assert refused is None or walk.symbols[outcome.symbols_accepted] == refused
        counts.update(of_symbols(walk, list(draft.tokens), outcome.symbols_accepted))
        counts.update(of_outcome(walk, outcome, refused))
        return outcome

    monkeypatch.setattr(kind, "verify", watched)
    for shape in ("full", "nested", "inner", "long nested"):
        for seed in range(12 if way in ("greedy", "seeded") else 2):
            case = Case(shape, seed, count=1, drafting={"draft_length": 3, **drafting}, sampling=sampling)
            assert case.deviation() < EXACT
    assert counts.keys() == EVENTS


@pytest.mark.medium
def test_the_records_count_what_the_walks_did() -> None:
    """Round's own counters, which statistics and learning read, against the drafts and what was emitted."""
    world = make_world("nested", 4)
    lane = world.lane(draft_length=4)
    lengths = np.diff(world.table.offsets)
    totals = Counter[str]()
    for seed in range(8):
        rng = np.random.default_rng(seed)

        def draw(weights: Any, rng: np.random.Generator = rng) -> int:
            return int(rng.choice(len(weights), p=weights / weights.sum()))

        for record in decode(lane, [PROMPT], 40, Sampling(temperature=1.0), draw):
            assert record.emitted[: record.counts.accepted] == record.proposals[: record.counts.accepted]
            assert record.counts.accepted <= len(record.proposals)
            assert len(record.emitted) <= record.counts.accepted + 1
            assert record.counts.ngrams_proposed == sum(lengths[list(record.proposals)] > 1)
            assert record.counts.ngrams_accepted == sum(lengths[list(record.proposals[: record.counts.accepted])] > 1)
            assert record.counts.symbols_accepted <= record.counts.symbols
            assert len(record.draft) <= 4
            totals.update(
                accepted=record.counts.accepted,
                ngrams=record.counts.ngrams_accepted,
                false_merges=record.counts.false_merges,
                ended=record.finish == "eos",
            )
    assert all(totals[name] > 0 for name in ("accepted", "ngrams", "false_merges", "ended"))
