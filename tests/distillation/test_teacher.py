"""What the target teaches: r against brute force, and training examples against texts taken apart by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.decoding.stream import decode
from omnidraft.distillation.losses import TeacherDistributions
from omnidraft.distillation.teacher import Trace, exact_example
from omnidraft.verification.sparse_probs import (
    MOST,
    SHARE,
    SparseProbs,
    masses_after,
    masses_below,
    root_masses,
    sparse,
)
from omnidraft.verification.trie_walk import Walk
from support.enumeration import FAR, SAMPLED, enumerate_draws
from support.table_models import PROMPT, SHAPES, Ids, TableModel, World, frozen_cache, make_world, seeded

# in these every token can be proposed where all n-grams are active, so r can be met in full
REACHABLE = ("tiny", "nested", "inner", "wide", "long", "long nested", "written end")


def whole(p: Probs) -> SparseProbs:
    tokens = np.flatnonzero(p).astype(np.int32)
    return SparseProbs(tokens, p[tokens].astype(np.float32))


class Taught(TableModel):
    """A drafter whose every law is the r of the target's laws along its own walk."""

    world: World
    cache: NgramCache

    def probs(self, ids: Ids) -> Probs:
        start = len(self.world.table.spelling(PROMPT))
        walk = Walk(self.cache, self.world.vocab.eos)
        for draft in ids[start:]:
            walk.push(draft)
        p = whole(self.world.target.probs((PROMPT, *walk.tokens)))
        node = walk.node
        token = self.cache.token_at(node) if node else -1
        if node == 0:
            symbols, masses = root_masses(self.cache, p)
        elif token >= 0:
            after = whole(self.world.target.probs((PROMPT, *walk.tokens, token)))
            symbols, masses = masses_after(self.cache, p, token, after)
        else:
            depth = 0
            while node not in self.walk_nodes(ids[start:], depth):
                depth += 1
            symbols, masses, stop = masses_below(self.cache, p, node, depth)
            assert stop == 0
        law = np.zeros(self.vocab_size)
        law[symbols] = masses
        result: Probs = law / law.sum()
        return result

    def walk_nodes(self, draft: Sequence[int], depth: int) -> list[int]:
        """The node that the last `depth` draft tokens lead to from the root."""
        node = 0
        for symbol in draft[len(draft) - depth :]:
            node = self.cache.child(node, symbol) if node >= 0 else node
        return [node] if depth else []


def taught_world(shape: str, seed: int) -> tuple[World, NgramCache]:
    world = make_world(shape, seed)
    cache = NgramCache(world.table, seed="vocabulary", frozen=True)
    drafter = Taught(world.drafter_vocab.size, ("r", shape, seed))
    drafter.world, drafter.cache = world, cache
    world.drafter = drafter
    return world, cache


@pytest.mark.medium
@pytest.mark.parametrize("shape", REACHABLE)
@pytest.mark.parametrize("seed", range(3))
def test_a_drafter_that_drafts_by_r_is_never_refused(shape: str, seed: int) -> None:
    world, cache = taught_world(shape, seed)
    symbols = 0
    for k in (1, 2, 3):
        lane = world.lane(cache, draft_length=k, verification="token")
        for probability, record in enumerate_draws(
            lambda draw, lane=lane: next(decode(lane, [PROMPT], FAR, SAMPLED, draw))  # type: ignore[misc]
        ):
            walk = Walk(cache, world.vocab.eos)
            for draft in record.draft:
                walk.push(draft)
            if probability > 1e-6:  # the laws are kept in single precision
                # what the end of the draft puts to the target was not drawn, and may be refused; so may a new token be
                # whose beginning could have been that of one which continues the last: it cannot be proposed there
                refused = walk.symbols[record.counts.symbols_accepted :][:1]
                assert all(symbol.after >= 0 for symbol in refused)
                symbols += record.counts.symbols_accepted
    assert symbols > 20


def test_r_of_the_wrong_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "masses_after", lambda cache, *rest: root_masses(cache, rest[-1]))
    with pytest.raises(AssertionError):
        test_a_drafter_that_drafts_by_r_is_never_refused("long nested", 0)


# ---------------------------------------------------------------- r, summed token by token


def by_hand(world: World, cache: NgramCache, token: int, before: Probs, after: Probs) -> Probs:
    """r after a token, each of its parts summed over the vocabulary."""
    spelled = {t: tuple(world.table.spelling(t).tolist()) for t in range(world.vocab.size) if cache.active[t]}
    own = spelled.get(token, ())
    longer = {t: s for t, s in spelled.items() if own and s[: len(own)] == own and len(s) > len(own)}
    goes_on = {s[len(own)] for s in longer.values()}
    r = np.zeros(world.drafter_vocab.size)
    for t, s in spelled.items():
        if s[0] not in goes_on:
            r[s[0]] += after[t]
    if not longer:
        result: Probs = r / r.sum()
        return result
    below = before[token] + sum(before[t] for t in longer)
    r = r / r.sum() * before[token] / below if r.sum() > 0 else r
    for t, s in longer.items():
        r[s[len(own)]] += before[t] / below
    result = r / r.sum()
    return result  # noqa: RET504  an annotated name, for the type checker


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("active", ["all", "random", "none"])
def test_r_is_the_sum_over_tokens(shape: str, active: str) -> None:
    world = make_world(shape, 1)
    cache = frozen_cache(world, active, 3)
    rng = seeded("laws", shape)
    for token in range(world.vocab.size):
        before, after = rng.dirichlet([1.0] * world.vocab.size), rng.dirichlet([1.0] * world.vocab.size)
        symbols, masses = masses_after(cache, whole(before), token, whole(after))
        assert len(set(symbols.tolist())) == len(symbols)
        r = np.zeros(world.drafter_vocab.size)
        r[symbols] = masses / masses.sum()
        assert r == pytest.approx(by_hand(world, cache, token, before, after), abs=1e-6)


# ---------------------------------------------------------------- what is kept of a law


@pytest.mark.parametrize("size", [10, 5_000, 150_000])
@pytest.mark.parametrize("sharpness", [0.5, 3.0, 8.0])
def test_almost_all_of_a_law_is_kept(size: int, sharpness: float) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * sharpness
    p = torch.softmax(logits, -1).numpy()
    law = sparse(p)
    assert np.array_equal(law.probs, p[law.tokens].astype(np.float32))
    assert len(law.tokens) <= MOST
    assert law.probs.sum() >= SHARE or len(law.tokens) == MOST
    assert law.probs.min() >= np.delete(p, law.tokens).max(initial=0)  # none left out is likelier


def test_a_certain_law_is_one_token() -> None:
    law = sparse(np.eye(40)[7])
    assert law.tokens.tolist() == [7]
    assert law.probs.tolist() == [1.0]


# ---------------------------------------------------------------- training examples


def entries(teacher: TeacherDistributions, row: int) -> dict[int, float]:
    mine = teacher.rows == row
    return dict(zip(teacher.symbols[mine].tolist(), teacher.probs[mine].tolist(), strict=True))


def trace(tokens: list[int], written: list[list[int]], distributions: list[SparseProbs]) -> Trace:
    """An answer to a prompt of one token."""
    return Trace((0,), tuple(tokens), tuple(map(tuple, written)), tuple(distributions))


def nested() -> tuple[World, NgramCache, list[SparseProbs]]:
    """Tokens a, ab, aba, abab, b; an end of text."""
    world = make_world("nested", 0)
    laws = [whole(np.array([0.1, 0.3, 0.2, 0.2, 0.2, 0.0])), whole(np.array([0.4, 0.1, 0.1, 0.1, 0.2, 0.1]))]
    return world, NgramCache(world.table, seed="vocabulary"), laws


def test_an_exact_example_taken_apart() -> None:
    world, cache, laws = nested()
    example = exact_example(cache, trace([1, 4], [[0, 1], [1]], laws))  # "ab", then "b"
    assert example.ids.tolist() == [0, 0, 1, 1]
    assert example.teacher.positions.tolist() == [0, 1, 2]
    assert example.teacher.coarse.tolist() == [False, True, False]
    assert entries(example.teacher, 0) == pytest.approx({0: 0.8, 1: 0.2})
    # inside the token, after "a": "b" goes on to ab, aba, abab (.7 of .8), or the token "a" has ended (.1)
    assert entries(example.teacher, 1) == pytest.approx({1: 0.7 / 0.8})
    assert example.teacher.rest[1] == pytest.approx(0.1 / 0.8)
    # after "ab": "a" goes on (.4 of .7); else the next token begins with "b" or ends the text, "a" left out
    assert entries(example.teacher, 2) == pytest.approx(
        {0: 0.4 / 0.7, 1: 0.3 / 0.7 * 0.2 / 0.3, 2: 0.3 / 0.7 * 0.1 / 0.3}
    )
    assert example.positions == 3
    assert example.nbytes > 50
    assert world.vocab.eos == (5,)


@pytest.mark.medium
def test_every_distribution_of_an_example_sums_to_one() -> None:
    for shape in SHAPES:
        world = make_world(shape, 2)
        for active in ("all", "random", "none"):
            cache = frozen_cache(world, active, 1)
            rng = seeded(shape, active)
            tokens = [int(t) for t in rng.integers(world.vocab.size, size=12)]
            written = [world.table.spelling(t).tolist() for t in tokens]
            laws = [whole(rng.dirichlet([1.0] * world.vocab.size)) for _ in tokens]
            made = exact_example(cache, trace(tokens, written, laws)).teacher
            sums = np.bincount(made.rows, weights=made.probs, minlength=len(made.positions))
            sums += np.where(made.coarse, made.rest, 0)
            assert sums == pytest.approx(np.ones(len(made.positions)), abs=1e-5)


def test_tokens_that_the_drafter_does_not_see_leave_no_law() -> None:
    _, cache, laws = nested()
    example = exact_example(cache, trace([5, 4], [[], [1]], laws))
    assert example.teacher.positions.tolist() == [0]
    assert entries(example.teacher, 0) == pytest.approx(
        entries(exact_example(cache, trace([4], [[1]], laws[1:])).teacher, 0)
    )
