"""Rules of GBNF as a grammar in Lark for llguidance."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeGuard

from omnidraft.server.grammars.gbnf import LAST, Characters, Choice, Name, Node, Repeat, Series, Spans, Token, union

MAX_PAIRS, MAX_PASSES = 20_000, 50  # of the search for what follows what, without which there are no runs
NO_CHARACTER = rf"/[^\x{{0}}-\x{{{LAST:x}}}]/"


def to_lark(rules: Mapping[str, Node]) -> str:
    """The grammar whose texts are those of the rule `root`.

    llguidance's terminals take all that they can of a text, whatever comes behind them, and the longest of several
    wins.  So each is one character, but for runs of characters where that changes nothing: those are much faster.
    """
    shaped = _Runs(rules).shaped()
    safe = _safe_runs(shaped)
    names = {name: f"rule_{at}" for at, name in enumerate(shaped)} | {"root": "start"}
    return "".join(f"{names[name]}: {_lark(rule, names, safe)}\n" for name, rule in shaped.items())


def _lark(node: Node, names: Mapping[str, str], safe: Collection[Node]) -> str:
    """A node as an item of Lark."""
    if isinstance(node, Characters):
        first, last = node.spans[0] if node.spans else (0, LAST)
        return json.dumps(chr(first)) if len(node.spans) == 1 and first == last else _regex(node.spans)
    if isinstance(node, Token):
        return f"<[{'^' if node.negated else ''}{node.id}]>"
    if isinstance(node, Name):
        return names[node.name]
    if isinstance(node, Series | Choice):
        items = [_lark(each, names, safe) for each in node.nodes]
        return f"({(' | ' if isinstance(node, Choice) else ' ').join(items)})" if items else '""'
    most = "" if node.most is None else node.most
    if node in safe and isinstance(node.node, Characters):
        run = f"{_regex(node.node.spans)[:-1]}{{{node.least or 1},{most}}}/"
        return run if node.least else f"({run})?"
    return '""' if most == 0 else f"({_lark(node.node, names, safe)}){{{node.least},{most}}}"


def _regex(spans: Spans) -> str:
    ranges = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in spans)
    return f"/[{ranges}]/" if ranges else NO_CHARACTER


# ---------------------------------------------------------------- runs of characters


class _Runs:
    """Makes runs of the single characters within repetitions."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._spans: dict[str, Spans | None] = {}  # of rules that are one character
        self._more: dict[str, Node] = {}  # rules that are repeated, with runs
        self._done: dict[Node, Node] = {}  # as a node of two rules is one terminal

    def shaped(self) -> dict[str, Node]:
        """The rules with runs, and more rules behind them."""
        return {name: self._shaped(rule) for name, rule in self._rules.items()} | self._more

    def _shaped(self, node: Node) -> Node:
        if node not in self._done:
            self._done[node] = self._with_runs(node)
        return self._done[node]

    def _with_runs(self, node: Node) -> Node:
        if isinstance(node, Series | Choice):
            return type(node)([self._shaped(each) for each in node.nodes])
        if not isinstance(node, Repeat):
            return node
        if (spans := self._character(node.node)) is not None:
            return Repeat(Characters(spans), node.least, node.most)
        inner = self._rules[node.node.name] if isinstance(node.node, Name) else node.node
        if not (_is_free(node) and isinstance(inner, Choice) and any(map(self._character, inner.nodes))):
            return Repeat(self._shaped(node.node), node.least, node.most)
        if not isinstance(node.node, Name):
            return Repeat(self._turn(inner), node.least, node.most)
        if (name := f"{node.node.name} with runs") not in self._more:
            self._more[name] = Series([])  # it may be within itself
            self._more[name] = self._turn(inner)
        return Repeat(Name(name), node.least, node.most)

    def _turn(self, choice: Choice) -> Node:
        """A choice that is repeated, with one run in place of its single characters."""
        spans = [span for each in choice.nodes for span in self._character(each) or ()]
        others = [self._shaped(each) for each in choice.nodes if not self._character(each)]
        return Choice([Repeat(Characters(union(spans)), 1, None), *others])

    def _character(self, node: Node) -> Spans | None:
        """The code points of a node that is one character; None of any other."""
        if isinstance(node, Characters):
            return node.spans
        if isinstance(node, Series) and len(node.nodes) == 1:
            return self._character(node.nodes[0])
        if isinstance(node, Name):
            if node.name not in self._spans:
                self._spans[node.name] = None  # within itself
                self._spans[node.name] = self._character(self._rules[node.name])
            return self._spans[node.name]
        if isinstance(node, Choice):
            spans = [self._character(each) for each in node.nodes]
            return None if None in spans else union([span for each in spans for span in each or ()])
        return None


def _is_run(node: Node) -> TypeGuard[Repeat]:
    return isinstance(node, Repeat) and isinstance(node.node, Characters) and node.most != 0


def _is_free(node: Repeat) -> bool:
    """True of a repetition that two of its turns in one leave as it is."""
    return node.most is None and node.least <= 1


class _Ends(NamedTuple):
    """Whether a node may be empty, and the terminals that it may begin and end with."""

    empty: bool = False
    first: AbstractSet[Node] = frozenset()
    last: AbstractSet[Node] = frozenset()


class _Neighbors:
    """Finds the terminals that the whole may begin with, and those that may come behind each other."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._rule_ends = dict.fromkeys(rules, _Ends())
        self._pairs = 0
        self.behind: dict[Node, set[Node]] = defaultdict(set)
        self.doubled: set[Node] = set()  # runs that may come behind themselves
        for _ in range(MAX_PASSES):
            before = dict(self._rule_ends), self._pairs
            for name, rule in rules.items():
                self._rule_ends[name] = self._ends(rule)
            if before == (self._rule_ends, self._pairs):
                break
        else:
            raise OverflowError
        self.first = self._rule_ends["root"].first

    def _ends(self, node: Node) -> _Ends:
        if isinstance(node, Name):
            return self._rule_ends[node.name]
        if isinstance(node, Characters | Token) or _is_run(node):
            return _Ends(isinstance(node, Repeat) and node.least == 0, frozenset([node]), frozenset([node]))
        if isinstance(node, Repeat):
            ends = self._ends(node.node)
            if node.most != 1:
                turn = self._rules[node.node.name] if isinstance(node.node, Name) else node.node
                nodes = turn.nodes if _is_free(node) and isinstance(turn, Choice) else ()
                self._join(ends.last, ends.first, apart=[each for each in nodes if _is_run(each) and _is_free(each)])
            return ends._replace(empty=ends.empty or node.least == 0)
        joined = _Ends(empty=isinstance(node, Series))
        for ends in map(self._ends, node.nodes):
            if isinstance(node, Choice):
                joined = _Ends(joined.empty or ends.empty, joined.first | ends.first, joined.last | ends.last)
                continue
            self._join(joined.last, ends.first)
            first = joined.first | ends.first if joined.empty else joined.first
            joined = _Ends(joined.empty and ends.empty, first, ends.last | joined.last if ends.empty else ends.last)
        return joined

    def _join(self, last: Iterable[Node], first: AbstractSet[Node], apart: Collection[Node] = ()) -> None:
        """Note that some terminals come behind others; those `apart` may come behind themselves as if they went on."""
        for each in last:
            behind = self.behind[each]
            before = len(behind)
            behind |= first
            if each in first and each not in apart:
                self.doubled.add(each)
            self._pairs += len(behind) - before
            if self._pairs > MAX_PAIRS:
                raise OverflowError


def _safe_runs(rules: Mapping[str, Node]) -> AbstractSet[Node]:
    """The runs that end where they must as terminals: nothing that may come in their place or behind begins like them.

    What follows two terminals that may be the same character is what follows any of them.
    """
    try:
        neighbors = _Neighbors(rules)
    except OverflowError:
        return frozenset()
    behind = neighbors.behind
    runs = {node for group in (neighbors.first, *behind.values()) for node in group if _is_run(node)}
    for run in runs:
        if run.least != run.most:
            behind[run].add(run)  # goes on
    unsafe: set[Node] = {*neighbors.doubled}
    grown = True
    while grown:
        grown = False
        for group in [neighbors.first, *behind.values()]:
            for one, other in _overlaps(group):
                unsafe |= {one, other} & runs
                if (first := behind[one]) != (second := behind[other]):
                    both = first | second
                    behind |= {node: both for node, each in behind.items() if each is first or each is second}
                    grown = True
        for node in unsafe:  # which are single characters then
            grown |= node not in behind[node]
            behind[node].add(node)
    return {run for run in runs if run not in unsafe}


def _overlaps(group: Iterable[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs of terminals that may begin with the same character: each such terminal is in one."""
    nodes = list(group)
    spans = sorted((low, high, at) for at, node in enumerate(nodes) for low, high in _begins(node))
    end, widest = -1, 0
    for low, high, at in spans:
        if low <= end:
            yield nodes[widest], nodes[at]
        if high > end:
            end, widest = high, at


def _begins(node: Node) -> Spans:
    character = node.node if isinstance(node, Repeat) else node
    return character.spans if isinstance(character, Characters) else ()
