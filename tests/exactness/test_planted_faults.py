"""Negative controls: each wrong reading of the scheme, planted in the production code, must change the distribution.

The harness that passes the code as it is must reject the code with the fault.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import pytest

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import ROOT, Probs
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.proposals import propose
from omnidraft.verification.rejection import residual
from omnidraft.verification.rejection import symbols as verify
from omnidraft.verification.trie_walk import Walk
from support.enumeration import EXACT, Case

PLAIN = 1e-3  # a fault that moves less than this could hide
Calls = list[str]


def planted(patch: pytest.MonkeyPatch, function: Any, broken: Callable[..., Any], calls: Calls) -> None:
    """Put `broken` where the package refers to `function`, and note each call of it."""

    @functools.wraps(broken)
    def noted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(function.__qualname__)
        return broken(*arguments, **keywords)

    *owner, name = function.__qualname__.split(".")
    if owner:
        patch.setattr(getattr(sys.modules[function.__module__], owner[0]), name, noted)
        return
    for module in [module for key, module in sys.modules.items() if key.startswith("omnidraft.")]:
        for key in [key for key, value in vars(module).items() if value is function]:
            patch.setattr(module, key, noted)


@dataclass(frozen=True)
class Rewrite:
    """One function of the package with a part of its text replaced."""

    function: Any
    old: str
    new: str

    def __call__(self, patch: pytest.MonkeyPatch, calls: Calls) -> None:
        assert isinstance(self.function, FunctionType)
        source = textwrap.dedent(inspect.getsource(self.function))
        where = self.function.__qualname__
        assert source.count(self.old) == 1, f"{self.old!r} is not what {where} says any more: plant the fault anew"
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        names: dict[str, Any] = {}
        exec(compile(code, f"{where}, broken", "exec"), self.function.__globals__, names)  # noqa: S102 - our own text
        planted(patch, self.function, names[self.function.__name__], calls)


@dataclass(frozen=True)
class Replace:
    """One function of the package with another in its place, which is given the true one first."""

    function: Any
    broken: Callable[..., Any]

    def __call__(self, patch: pytest.MonkeyPatch, calls: Calls) -> None:
        planted(patch, self.function, functools.partial(self.broken, self.function), calls)


# ---------------------------------------------------------------- faults of more than a line


def doubled(true: Callable[..., Any], cache: NgramCache, p: Probs, *arguments: Any) -> Any:
    """Masses with what duplicates weigh added to the token that owns their spelling."""
    p, table = p.copy(), cache.table
    for token in range(table.target_size):
        spelling = table.spelling(token).tolist()
        for owner in range(token):
            if spelling and spelling == table.spelling(owner).tolist() and table.node[owner] >= 0:
                p[owner] += p[token]
    return true(cache, p, *arguments)


def known_by_its_name(true: Callable[..., None], walk: Walk, draft: int) -> None:
    """A drafter token that stands for target tokens is taken for the only one that proposes their first symbol."""
    known = len(walk.symbols)
    true(walk, draft)
    for position, symbol in enumerate(walk.symbols):
        if position >= known and symbol.node == ROOT and symbol.position >= 0:
            walk.symbols[position] = replace(symbol, symbol=draft)


def trimmed(_: object, walk: Walk) -> None:
    """Forgets the draft tokens behind the last complete target token."""
    walk.symbols = [symbol for symbol in walk.symbols if symbol.index < len(walk.tokens) or symbol.child < 0]
    if walk.open:
        walk.node = ROOT
    walk.open = False


def with_the_end_in_sight(true: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
    """Reads the whole draft as the longest target tokens it holds, going back to where one ended."""
    draft = yield from true(*arguments, **how)
    cache = draft.walk.cache
    cuts, start = set(), 0
    while start < len(draft.tokens):
        node, end = ROOT, start + 1
        for position in range(start, len(draft.tokens)):
            node = cache.child(node, draft.tokens[position])
            if node < 0:
                break
            if cache.token_at(node) >= 0:
                end = position + 1
        start = end
        cuts.add(start)
    walk = Walk(cache, draft.walk.eos)
    for position, token in enumerate(draft.tokens):
        if walk.node != ROOT and position in cuts and cache.child(walk.node, token) >= 0:
            walk._stop(position)
        if walk.open:
            walk.push(token)
    walk.finish()
    return replace(draft, walk=walk, proposals=walk.tokens, ended=walk.ended)


# ---------------------------------------------------------------- the list


TRIED = """len(p) >= LARGE:
        for _ in range(TRIES):
            token = draw(p)
            child = cache.root_child(token)
            if child < 0:
                return token
            other = replace(symbol, symbol=int(cache.table.symbol[child]), child=child)
            big_p, big_q = target_probability(cache, other, p), drafter_probability(cache, other, qs)"""


@dataclass(frozen=True)
class Fault:
    """What is planted, and the worlds in which it could show."""

    plants: tuple[Rewrite | Replace, ...]
    shapes: tuple[str, ...] = ("full", "nested", "wide", "tiny")
    active: str = "all"
    ways: tuple[str, ...] = ("block", "token")
    drafting: dict[str, object] = field(default_factory=dict)

    def cases(self) -> Iterator[Case]:
        for number, shape in enumerate(self.shapes):
            verification = self.ways[number % len(self.ways)]
            drafting = {"draft_length": 2, "verification": verification, **self.drafting}
            yield Case(shape, number, active=self.active, count=1 if shape.startswith("long") else 2, drafting=drafting)


BLOCK = ("block",)
FAULTS = {
    "end of draft accepted as STOP": Fault(
        (Rewrite(Walk.finish, "self._stop(position=-1)", "self._complete(self.cache.token_at(self.node))"),)
    ),
    "P renormalized over the active children": Fault(
        (
            Rewrite(residual.target_probability, "1.0 if symbol.node == ROOT else cache.mass(", "cache.mass("),
            Rewrite(residual.residual_at, "alone = cache.outside", "alone = cache.outside[:0]"),
        ),
        active="random",
    ),
    "leaf of the active trie taken as finished": Fault(
        (  # inactive n-grams stay in the intervals, where the leaf's token hides them
            Rewrite(NgramCache.tokens, "tokens[self.active[tokens]] if self._partial else tokens", "tokens"),
            Rewrite(NgramCache.mass, "weights[self._active_in_order[low:high]]", "weights"),
            Rewrite(NgramCache.child_masses, "weights *= self._active_in_order[low:high]", "pass"),
            Rewrite(NgramCache._refresh, "np.flatnonzero(~self.active)", "np.flatnonzero(self.table.node < 0)"),
        ),
        active="random",
    ),
    "duplicate counted in the interval and as an extra symbol": Fault(
        (Replace(NgramCache.mass, doubled), Replace(NgramCache.child_masses, doubled)), ("duplicate", "full")
    ),
    "Q(STOP) over all children": Fault(
        (
            Rewrite(
                residual.drafter_probability,
                "cache.children(symbol.node)",
                "np.arange(cache.table.first[symbol.node], cache.table.first[symbol.node + 1])",
            ),
            Rewrite(
                residual.residual_at,
                "max(0.0, 1.0 - q.sum(dtype=np.float64))",
                "drafter_probability(cache, Symbol(node, STOP, -1, symbol.index, symbol.position), qs)",
            ),
        ),
        ("wide", "wide"),
        active="random",
    ),
    "correction drawn from the whole p": Fault(
        (Rewrite(residual.draw_from, "draw_inside(cache, p, int(residual.children[option]), draw)", "draw(p)"),)
    ),
    "over-long drafter token with Q = q(D)": Fault(
        (
            Replace(Walk.push, known_by_its_name),
            Rewrite(
                residual.drafter_probability,
                "q[cache.proposers(symbol.child)].sum(dtype=np.float64)",
                "q[symbol.symbol]",
            ),
        ),
        ("long", "long nested"),
    ),
    "drawn token dropped by a stop policy that peeks": Fault(
        (
            Rewrite(
                Drafter.draft,
                "tokens.append(token)",
                "if (token + len(tokens)) % 2: return tokens, vectors\n        tokens.append(token)",
            ),
        )
    ),
    "dead draft token cut off": Fault(
        (Rewrite(Walk.push, "self.symbols.append(Symbol(ROOT, DEAD, -1, len(self.tokens), position, after))", "pass"),),
        ("full",),
    ),
    "trailing partial n-gram trimmed": Fault((Replace(Walk.finish, trimmed),)),
    "longest match over the whole draft": Fault((Replace(propose, with_the_end_in_sight),), ("full", "inner")),
    "root distribution after STOP not restricted": Fault(
        (Rewrite(residual._drafter_root, "if after < 0:", "if after < 99:"),)
    ),
    "root distribution after STOP not renormalized": Fault(
        (Rewrite(residual._drafter_root, "rest / total if total > 0 else rest", "rest"),)
    ),
    "masked sampling with the raw q as Q": Fault(
        (Rewrite(Drafter.draft, "vectors.append(q)", "vectors.append(softmax(logits, temperature))"),),
        ("full", "inner", "long"),
        drafting={"mode": "intersection"},
    ),
    "Q at another temperature than it was drawn at": Fault(
        (Rewrite(Drafter.draft, "vectors.append(q)", "vectors.append(softmax(logits, 1.0))"),),
        drafting={"drafter_temperature": 0.5},
    ),
    "stale q: the vector of the token before": Fault(
        (Rewrite(Drafter.draft, "vectors.append(q)", "vectors.append(vectors[-1] if vectors else q)"),)
    ),
    "block: cut chance without + 1 - a": Fault(
        (Rewrite(verify.verify_block, "residual.total / (residual.total + 1 - ratio)", "float(residual.total > 0)"),),
        ways=BLOCK,
    ),
    "block: a residual skipped at no cost": Fault(
        (
            Rewrite(
                residual.thinned,
                "if int(cache.table.hi[symbol.node] - cache.table.lo[symbol.node]) < LARGE:\n"
                "        return 1.0\n"
                "    return 0.0 if draw(np.array([ratio, 1 - ratio])) == 1 else ratio",
                "return 0.0 if draw(np.array([ratio, 1 - ratio])) == 1 else 1.0",
            ),
        ),
        ways=BLOCK,
    ),
    "a correction found without regard to Q": Fault(
        (Rewrite(residual._by_rejection, "len(p) >= LARGE:", "len(p):\n        return draw(p)"),),
    ),
    "a correction found by the q of one proposer": Fault(
        (
            Rewrite(
                residual._by_rejection,
                TRIED,
                TRIED.replace("len(p) >= LARGE", "len(p)").replace(
                    "drafter_probability(cache, other, qs)", "float(qs[symbol.position][other.symbol])"
                ),
            ),
        ),
        ("inner", "tiny", "written end"),
    ),
    "block: residual of the whole P": Fault(
        (
            Rewrite(
                verify.verify_block, "residual_at(cache, symbol, qs, p, ratio)", "residual_at(cache, symbol, qs, p, 1)"
            ),
        ),
        ways=BLOCK,
    ),
    "block: ratio capped only at the end": Fault(
        (
            Rewrite(
                verify.verify_block,
                "ratios.append(1.0 if ratio > 1 - 1e-12 else ratio)\n    accept = ratios[-1]",
                "ratios.append(ratio)\n    ratios = [min(1.0, ratio) for ratio in ratios]\n    accept = ratios[-1]",
            ),
        ),
        ways=BLOCK,
    ),
}


KNOWN: dict[str, float] = {}


def true_deviation(case: Case) -> float:
    """What the code as it is deviates by; most faults share their worlds."""
    if repr(case) not in KNOWN:
        KNOWN[repr(case)] = case.deviation()
    return KNOWN[repr(case)]


@pytest.mark.medium
@pytest.mark.parametrize("name", FAULTS)
def test_the_distribution_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    cases = list(fault.cases())
    assert max(true_deviation(case) for case in cases) < EXACT
    calls: Calls = []
    for plant in fault.plants:
        plant(monkeypatch, calls)
    assert any(case.deviation() > PLAIN for case in cases)
    assert set(calls) == {plant.function.__qualname__ for plant in fault.plants}


@pytest.mark.medium
def test_the_harness_is_whole_again_afterwards() -> None:
    assert Case("nested", drafting={"draft_length": 2}).deviation() < EXACT


def test_a_rewriting_that_finds_nothing_to_rewrite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="plant the fault anew"):
        Rewrite(residual.draw_from, "no such text", "")(monkeypatch, [])
