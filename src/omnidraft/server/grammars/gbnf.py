"""Grammars in llama.cpp's notation, GBNF: their rules, read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
SYMBOL = re.compile(
    r"""(?P<blank>[ \t]+|\#[^\r\n]*)
    |(?P<line>\r\n?|\n)
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<range>\[(?:\\.|[^\]\\])*\])
    |(?P<count>[*+?]|\{[^}]*\})
    |(?P<token>!?<[^>]+>)
    |(?P<name>[\w-]+)
    |(?P<sign>::=|[|().])
    |(?P<wrong>.)""",
    re.VERBOSE | re.DOTALL,
)
CHARACTER = re.compile(r"\\x([\da-fA-F]{2})|\\u([\da-fA-F]{4})|\\U([\da-fA-F]{8})|\\(.)|(.)", re.DOTALL)
ESCAPED = {each: each for each in r"\"[]-"} | {"n": "\n", "r": "\r", "t": "\t"}
COUNT = re.compile(r"\{\s*(?P<least>\d{1,9})\s*(?P<more>,\s*(?P<most>\d{1,9})?\s*)?\}")
COUNTS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
MAX_COUNT = 2_000  # as in llama.cpp, where a greater upper bound is none
MAX_DEPTH = 2_000  # of nodes within each other, through rules: llguidance goes down by recursion
TOKEN_ID = re.compile(r"<\[(\d{1,9})\]>")
LAST, FIRST_HALF, LAST_HALF = 0x10FFFF, 0xD800, 0xDFFF  # code points; halves of pairs are in no text
Spans = tuple[tuple[int, int], ...]
"""Code points from first to last, in order and apart."""


@dataclass(frozen=True, eq=False)
class Characters:
    """One character of some code points."""

    spans: Spans


@dataclass(frozen=True, eq=False)
class Token:
    """A token of the target, or any other one."""

    id: int
    negated: bool


@dataclass(frozen=True, eq=False)
class Name:
    """What the rule of that name says."""

    name: str


@dataclass(frozen=True, eq=False)
class Series:
    """One node behind the other."""

    nodes: Sequence[Node]


@dataclass(frozen=True, eq=False)
class Choice:
    """One of some nodes."""

    nodes: Sequence[Node]


@dataclass(frozen=True, eq=False)
class Repeat:
    """A node from `least` to `most` times; None: any number."""

    node: Node
    least: int
    most: int | None


Node = Characters | Token | Name | Series | Choice | Repeat


class Symbol(NamedTuple):
    """A symbol of a grammar, by the name that `SYMBOL` has for its kind, and where it begins."""

    kind: str
    text: str
    start: int


def is_gbnf(grammar: str) -> bool:
    """Return True for a grammar in GBNF, not Lark."""
    return bool(RULE.search(grammar))


def rules_of(grammar: str, token_ids: Callable[[str], list[int]]) -> dict[str, Node]:
    """The rules of a grammar, of which `root` is the whole; `token_ids` are those of a text.

    Raises ValueError for what cannot be read.
    """
    reader = _Reader(grammar, token_ids)
    rules = reader.rules()
    if missing := [name for name in ("root", *reader.used) if name not in rules]:
        raise ValueError(f"it has no rule {missing[0]}")
    _check_depth(rules)
    return rules


def _check_depth(rules: Mapping[str, Node]) -> None:
    """Raise ValueError for rules that lead too far down."""
    read = {"root"}
    levels = [iter([rules["root"]])]
    while levels:
        node = next(levels[-1], None)
        if node is None:
            levels.pop()
        elif isinstance(node, Name):
            levels.append(iter([] if node.name in read else [rules[node.name]]))
            read.add(node.name)
        elif isinstance(node, Repeat):
            levels.append(iter([node.node]))
        elif isinstance(node, Series | Choice):
            levels.append(iter(node.nodes))
        if len(levels) > MAX_DEPTH:
            raise ValueError(f"its rules lead more than {MAX_DEPTH} levels down: make them flatter")


def union(spans: Sequence[tuple[int, int]]) -> Spans:
    """Spans of code points in order and apart."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def _encodable(spans: Spans, *, negated: bool) -> Spans:
    """The code points of some spans, or all others, that a text can have."""
    if negated:
        ends = [-1, *(end for span in spans for end in span), LAST + 1]
        spans = tuple((low + 1, high - 1) for low, high in zip(ends[::2], ends[1::2], strict=True))
    halves = [(low, min(high, FIRST_HALF - 1)) for low, high in spans]
    halves += [(max(low, LAST_HALF + 1), min(high, LAST)) for low, high in spans]
    return tuple(sorted((low, high) for low, high in halves if low <= high))


class _Reader:
    """Goes through the symbols of a grammar once."""

    def __init__(self, grammar: str, token_ids: Callable[[str], list[int]]) -> None:
        self._grammar, self._token_ids = grammar, token_ids
        self._symbols = [*self._kept(), Symbol("end", "the end", len(grammar))]
        self._at = 0
        self.used: list[str] = []  # names of rules

    def _kept(self) -> Iterator[Symbol]:
        """The symbols without blanks, comments, and line breaks that end no rule."""
        depth, goes_on = 0, True
        for match in SYMBOL.finditer(self._grammar):
            symbol = Symbol(match.lastgroup or "", match[0], match.start())
            if symbol.kind == "blank" or (symbol.kind == "line" and (goes_on or depth)):
                continue
            depth += {"(": 1, ")": -1}.get(symbol.text, 0)
            goes_on = symbol.kind == "line" or symbol.text in ("::=", "|")
            yield symbol

    def rules(self) -> dict[str, Node]:
        """All rules; the last of a name counts."""
        rules = {}
        while self._next.kind != "end":
            name = self._take("name", "the name of a rule")
            self._take("::=", f"::= behind {name}")
            rules[name] = self._choice()
            if self._next.kind != "end":
                self._take("line", "the end of the line")
        return rules

    @property
    def _next(self) -> Symbol:
        return self._symbols[self._at]

    def _take(self, wanted: str, words: str) -> str:
        """Go past a symbol of a kind or text; raises ValueError for another."""
        symbol = self._next
        if wanted not in (symbol.kind, symbol.text):
            raise self._error(f"{symbol.text!r} is where {words} should be")
        self._at += 1
        return symbol.text

    def _error(self, words: str) -> ValueError:
        line = self._grammar.count("\n", 0, self._next.start) + 1
        return ValueError(f"line {line}: {words}")

    def _choice(self) -> Node:
        series = [self._series()]
        while self._next.text == "|":
            self._at += 1
            series.append(self._series())
        return series[0] if len(series) == 1 else Choice(series)

    def _series(self) -> Node:
        nodes: list[Node] = []
        while True:
            if self._next.kind == "count" and nodes:
                nodes.append(self._repeated(nodes.pop(), self._next.text))
                self._at += 1
            elif (node := self._node()) is not None:
                nodes.append(node)
            else:
                return nodes[0] if len(nodes) == 1 else Series(nodes)

    def _node(self) -> Node | None:
        """The next node of a series; None at its end."""
        node: Node
        kind, text, _ = self._next
        if kind == "literal":
            codes = [code for code, _ in self._codes(text[1:-1])]
            node = Series([Characters(_encodable(((code, code),), negated=False)) for code in codes])
        elif kind == "range":
            node = self._range(text[1:-1])
        elif kind == "name":
            self.used.append(text)
            node = Name(text)
        elif kind == "token":
            node = self._token(text)
        elif text == ".":
            node = Characters(_encodable((), negated=True))
        elif text == "(":
            self._at += 1
            node = self._choice()
            self._take(")", ")")
            return node
        else:
            return None
        self._at += 1
        return node

    def _repeated(self, node: Node, count: str) -> Node:
        if count in COUNTS:
            return Repeat(node, *COUNTS[count])
        if (counts := COUNT.fullmatch(count)) is None or int(counts["least"]) > MAX_COUNT:
            raise self._error(f"{count} is no count of up to {MAX_COUNT}")
        least = int(counts["least"])
        most = int(counts["most"] or MAX_COUNT + 1) if counts["more"] else least
        if most < least:
            raise self._error(f"{count} has a greater least than most")
        return Repeat(node, least, most if most <= MAX_COUNT else None)

    def _codes(self, text: str) -> list[tuple[int, str]]:
        """The code points of a literal or a range, with how each is written."""
        codes = []
        for match in CHARACTER.finditer(text):
            escaped = match[4]
            if escaped is not None and escaped not in ESCAPED:
                raise self._error(f"{match[0]} is no escape: write \\\\ for a backslash")
            digits = match[1] or match[2] or match[3]
            codes.append((int(digits, 16) if digits else ord(ESCAPED[escaped] if escaped else match[5]), match[0]))
        return codes

    def _range(self, text: str) -> Node:
        negated = text.startswith("^")
        codes, spans, at = self._codes(text[negated:]), [], 0
        if not codes:
            return Series([])
        while at < len(codes):
            last = at + 2 if at + 2 < len(codes) and codes[at + 1][1] == "-" else at
            spans.append((codes[at][0], codes[last][0]))
            at = last + 1
        kept = union([(low, min(high, LAST)) for low, high in spans if low <= min(high, LAST)])
        return Characters(_encodable(kept, negated=negated))

    def _token(self, text: str) -> Node:
        name = text.removeprefix("!")
        match = TOKEN_ID.fullmatch(name)
        ids = [int(match[1])] if match else self._token_ids(name)
        if len(ids) != 1:
            raise self._error(f"{name} is no token of the target")
        return Token(ids[0], negated=text.startswith("!"))
