"""The tables of the paper's evaluation: the methods, the cells that each table has, and its Markdown.

A cell that several tables show is measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.paper.recipe import Recipe
from omnidraft.bench.tables import markdown_table

Row = dict[str, Any]
Options = dict[str, Any]
FIXED: Options = {"draft_length": 4}
DIRECT: Options = FIXED | {"mode": "intersection"}
# an acceptance rate is of proposed target tokens, which are fewer where drafts merge: it says less than tokens a pass
SHOWN = {"acceptance_rate": ".3f", "block_efficiency": ".3f", "speedup": ".2f"}
PAPER: Options = FIXED | {"mode": "paper", "ngram_seed": "empty"}
HYBRID: Options = {"loss": "hybrid", "trains": "drafter"}
ALONE: Options = {"trains": "drafter"}
RANKS = (8, 16, 32, 64, 128)
GAMMAS = (0.3, 0.5, 0.7, 0.9)
LORA_RATE = 3.0  # LoRA's learning rate, in that of all weights


@dataclass(frozen=True)
class Method:
    """How drafts are made, and what is learned by, where anything is; the rest is the recipe's."""

    drafting: Options
    learning: Options | None = None
    trainer: Options = field(default_factory=dict)  # of `TrainerSettings`
    lora: bool = False


UNTRAINED, DISTILLED = Method(FIXED), Method(FIXED, ALONE)  # each has another name in Table 2
METHODS: dict[str, Method] = {
    "direct mapping": Method(DIRECT),
    "direct mapping + cache": Method(PAPER),
    "L_DM": Method(DIRECT, HYBRID, {"ngram_weight": 0.0}),
    "L_DM + cache": Method(PAPER, HYBRID, {"ngram_weight": 0.0}),
    "L_DM + λ·L_N-gram": Method(PAPER, HYBRID),
    "L_DM + λ·L_N-gram, LoRA": Method(PAPER, HYBRID, lora=True),
    "L_DM + p(t)·L_N-gram": Method(PAPER, HYBRID, {"ngram_weight": None}),
    "L_N-gram alone (NLL)": Method(PAPER, HYBRID, {"direct_divergence": "none"}),
    "NLL + NLL": Method(PAPER, HYBRID, {"direct_divergence": "forward"}),
    "KL through the trie": Method(PAPER, ALONE | {"loss": "reverse"}),
    "exact, untrained": UNTRAINED,
    "ours, fixed": DISTILLED,
    "ours": Method({"draft_length": "goodput"}, {}),
    "plain SpD": UNTRAINED,
    "adapt only": Method({"draft_length": "head"}, {"trains": "head"}),
    "distil only": DISTILLED,
    "joint": Method({"draft_length": "head"}, {"trains": "joint"}),
    "interleaved": Method({"draft_length": "head"}, {"trains": "interleaved"}),
    **{f"interleaved, γ = {g:g}": Method({"draft_length": "head", "threshold": round(1 - g, 3)}, {}) for g in GAMMAS},
    **{f"LoRA {rank}": Method(PAPER, HYBRID | {"rank": rank}, lora=True) for rank in RANKS},
}


@dataclass(frozen=True)
class Cell:
    """One figure of a table: what a method comes to with a target on a task."""

    target: str
    task: str
    method: str
    temperature: float
    subset: bool  # fewer prompts

    @property
    def key(self) -> str:
        few = "|few" if self.subset else ""
        return f"{self.target}|{self.task}|{self.method}|T = {self.temperature:g}{few}"


@dataclass(frozen=True)
class Table:
    """A table of the paper, or a figure's cells."""

    title: str
    methods: Sequence[str]
    targets: Callable[[Recipe], Sequence[str]]
    tasks: Sequence[str] | None = None  # all
    temperatures: Sequence[float] | None = None  # the recipe's
    subset: bool = False
    shows: Mapping[str, str] = field(default_factory=lambda: SHOWN)

    def cells(self, recipe: Recipe) -> Iterator[Cell]:
        """What is to be measured for it."""
        for target in dict.fromkeys(self.targets(recipe)):
            for task in (task for task in recipe.tasks if self.tasks is None or task in self.tasks):
                for temperature in self.temperatures or (recipe.temperature,):
                    for method in self.methods:
                        yield Cell(target, task, method, temperature, self.subset)


def _all(recipe: Recipe) -> Sequence[str]:
    return recipe.targets


def _first(recipe: Recipe) -> Sequence[str]:
    return recipe.targets[:1]


def _same(recipe: Recipe) -> Sequence[str]:
    return (*recipe.same, *recipe.targets[:1])


def _same_first(recipe: Recipe) -> Sequence[str]:
    return _same(recipe)[:1]


def _larger(recipe: Recipe) -> Sequence[str]:
    return recipe.larger


HITS = SHOWN | {"ngram_hits": ".2f"}
CROSS = ("direct mapping", "L_DM", "L_DM + λ·L_N-gram", "L_DM + λ·L_N-gram, LoRA", "ours")
TABLES: dict[str, Table] = {
    "table-1": Table("Table 1: across vocabularies", CROSS, _all),
    "table-2": Table(
        "Table 2: adaptive drafting, of the drafter's own vocabulary where the recipe has such a target, and across",
        ("plain SpD", "adapt only", "distil only", "joint", "interleaved", "ours"),
        _same,
    ),
    "table-3": Table("Table 3: larger targets", ("L_DM + λ·L_N-gram", "ours"), _larger, ("gsm8k",)),
    "table-5": Table(
        "Table 5: the cache and the losses",
        (
            "direct mapping",
            "direct mapping + cache",
            "exact, untrained",
            "L_DM",
            "L_DM + cache",
            "L_DM + λ·L_N-gram",
            "ours, fixed",
        ),
        _first,
        ("gsm8k",),
        subset=True,
        shows=HITS,
    ),
    "table-6": Table(
        "Table 6: losses at two temperatures",
        (
            "L_N-gram alone (NLL)",
            "NLL + NLL",
            "L_DM + λ·L_N-gram",
            "L_DM + p(t)·L_N-gram",
            "KL through the trie",
            "ours, fixed",
        ),
        _first,
        ("gsm8k",),
        (0.0, 1.0),
        subset=True,
    ),
    "table-11": Table(
        "Table 11: the threshold of adaptive drafting",
        (*(f"interleaved, γ = {gamma:g}" for gamma in GAMMAS), "ours"),
        _same_first,
        subset=True,
        shows=SHOWN | {"drafted": ".2f"},
    ),
    "table-12": Table(
        "Table 12: LoRA ranks",
        (*(f"LoRA {rank}" for rank in RANKS), "L_DM + λ·L_N-gram"),
        _first,
        ("gsm8k",),
        subset=True,
        shows=SHOWN | {"learned_bytes": ",.0f"},
    ),
}


def markdown(rows: Mapping[str, Row], recipe: Recipe, asked: Sequence[str]) -> list[str]:
    """The tables that are whole, and of those that are asked for what is there, each as a section."""
    sections = []
    for name, table in TABLES.items():
        whole = list(table.cells(recipe))
        cells = [cell for cell in whole if cell.key in rows]
        if cells and (name in asked or len(cells) == len(whole)):
            sections.append(f"## {table.title}\n\n{_table(table, cells, rows)}")
    return sections


def _table(table: Table, cells: Sequence[Cell], rows: Mapping[str, Row]) -> str:
    """A line for each method and target, columns for tasks and temperatures; – where nothing is measured yet."""
    places = list(dict.fromkeys((cell.task, cell.temperature) for cell in cells))
    names = [f"{task}, T = {temperature:g}" for task, temperature in places]
    heads = [f"{name}: {shown.replace('_', ' ')}" for name in names for shown in table.shows]
    lines = []
    found = {(cell.target, cell.method, cell.task, cell.temperature): rows[cell.key] for cell in cells}
    for target, method in dict.fromkeys((cell.target, cell.method) for cell in cells):
        its = [found.get((target, method, *place), {}) for place in places]
        shown = [format(row[name], form) if name in row else "–" for row in its for name, form in table.shows.items()]
        lines.append([target, method, *shown])
    return markdown_table(["target", "method", *heads], lines, 2)
