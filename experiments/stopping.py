"""`python -m experiments.stopping`: draft-length policies against fixed lengths and plain decoding.

All ways answer a prompt together, some tokens in turns, each with KV caches and n-grams of its own.  N-grams begin anew
with each repeat, the measurements of a policy with each cell.  The acceptance head learned beforehand, from others.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.evaluation import TEMPERATURES, UNITS, Evaluation, Row, compared, medians
from experiments.recipe import Recipe
from experiments.study import JobPart, Measured, Part, Study
from experiments.tables import TABLE_2
from omnidraft.attach import attach_drafter
from omnidraft.bench.interleaved import PLAIN, EngineWay, drafter_of, engine_for, isolated, sampler
from omnidraft.bench.output import markdown_table
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.policy import Fixed
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.round import Round

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IN_TURNS = "in turns"  # the tasks' prompts, alternating
WITHOUT = "goodput without the head"
BINS = 10
LAPS = 4  # of a task's tests, where drafts cannot pay
SHORT = 8  # tokens of an answer to a long prompt
LONG = 600  # tokens of such a prompt
SLOW_LAYERS = 24
ONE_BY_ONE = 64  # tokens from which on a pass is a prompt, which is read as ever


def prompts_of(evaluation: Evaluation, task: str) -> list[list[int]]:
    """The tests of a task; for IN_TURNS the first half of the tests of each task, in turns."""
    if task != IN_TURNS:
        return evaluation.prompts(task, tests=True)
    parts = [evaluation.prompts(name, tests=True) for name in evaluation.recipe.tasks]
    return list(chain.from_iterable(zip(*(ids[: -(-len(ids) // 2)] for ids in parts), strict=False)))


# ---------------------------------------------------------------- policies


def ways(evaluation: Evaluation, sampling: Sampling) -> list[EngineWay]:
    """Plain decoding, fixed lengths and policies, with the taught head where they have one; and goodput without it."""
    model, recipe = evaluation.model, evaluation.recipe
    choices = {f"fixed {length}": length for length in recipe.lengths} | {name: name for name in recipe.policies}
    engines = {name: isolated(model, Drafting(draft_length=each), evaluation.head) for name, each in choices.items()}
    engines = {"plain": isolated(model, PLAIN), **engines}
    engines[WITHOUT] = isolated(model, Drafting(draft_length="goodput"), Head())
    return [EngineWay(name, engine, sampling) for name, engine in engines.items()]


def cell(evaluation: Evaluation, task: str, temperature: float) -> Row:
    """All ways on one task at one temperature, a row for each way and repeat."""
    recipe = evaluation.recipe
    compared_ways = ways(evaluation, Sampling(temperature=temperature))
    ids = prompts_of(evaluation, task)
    rows = list(compared(compared_ways, ids, recipe.new_tokens, range(recipe.repeats), restart=True))
    return {"target": evaluation.target, "task": task, "temperature": temperature, "rows": rows}


def _cells(rows: Sequence[Row]) -> str:
    """Tables of medians over repeats of each way's speedup, by the clock and by the processor's time."""
    return "\n".join(f"## {title}\n\n{_speedups(rows, unit)}" for title, unit in zip(TITLES, UNITS, strict=True))


TITLES = ("Speedup over plain decoding", "The same in time of the processor")


def _speedups(rows: Sequence[Row], unit: str) -> str:
    found = [medians(row["rows"]) for row in rows]
    names = [way for way in dict.fromkeys(chain.from_iterable(found)) if way != "plain"]
    lines = []
    for row, each in zip(rows, found, strict=True):
        shown = [f"{each[name][unit]:.3f}" if name in each else "–" for name in names]
        best = max(one[unit] for way, one in each.items() if way.startswith("fixed"))
        goodput = f"{each['goodput'][unit] / best:.3f}" if "goodput" in each else "–"
        plain = f"{each['plain'][UNITS[unit]]:.1f}"
        lines.append([row["target"], row["task"], f"{row['temperature']:g}", plain, *shown, goodput])
    heads = ["target", "task", "temperature", "plain, tokens/s", *names, "goodput, of the best fixed length"]
    return markdown_table(heads, lines, 2)


# ---------------------------------------------------------------- calibration of the head


class Noting(Fixed):
    """Drafts as far as is allowed, and notes the acceptance probability that the head predicts for each token."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._predicted: list[float] = []
        self.seen: list[tuple[float, bool]] = []  # a prediction, and whether the token was accepted

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        self._predicted.append(self._head.chance(logits, hidden, temperature))
        return True

    def learn(self, record: Round) -> None:
        accepted = record.counts.draft_accepted
        judged = self._predicted[: min(accepted + 1, len(record.draft))]
        self.seen += [(chance, at < accepted) for at, chance in enumerate(judged)]
        self._predicted = []  # a round without a draft begins none


def calibration(evaluation: Evaluation, temperature: float) -> Row:
    """For the taught head and an untrained one: predictions beside what was accepted."""
    found = {}
    for name, head in (("head", evaluation.head), ("entropy", Head())):
        noting = Noting(head)
        drafting = Drafting(draft_length=evaluation.recipe.draft_length)
        engine, draw = engine_for(evaluation.model, drafting, policy=noting), sampler()
        for ids in prompts_of(evaluation, IN_TURNS):
            list(engine.rounds(ids, evaluation.recipe.new_tokens, Sampling(temperature=temperature), draw))
        found[name] = reliability(noting.seen)
    return {"target": evaluation.target, "temperature": temperature, "by": found}


def reliability(seen: Sequence[tuple[float, bool]]) -> Row:
    """Mean prediction, share accepted and number of tokens in each bin of predictions; expected calibration error."""
    predicted, accepted = np.array([chance for chance, _ in seen]), np.array([was for _, was in seen], float)
    place = np.minimum((predicted * BINS).astype(int), BINS - 1)
    bins = {}
    for i in sorted(set(place.tolist())):
        here = place == i
        means = (round(float(values[here].mean()), 4) for values in (predicted, accepted))
        bins[str(i)] = [*means, int(here.sum())]
    error = sum(tokens * abs(chance - share) for chance, share, tokens in bins.values()) / max(1, len(seen))
    return {"expected_calibration_error": round(float(error), 4), "bins": bins}


def _calibration_table(rows: Sequence[Row]) -> str:
    """Share of draft tokens accepted, and their number, by tenth of the predicted probability."""
    lines = []
    for row in rows:
        for name, found in row["by"].items():
            bins = (found["bins"].get(str(i)) for i in range(BINS))
            shown = [f"{one[1]:.2f} ({one[2]})" if one else "–" for one in bins]
            error = f"{found['expected_calibration_error']:.3f}"
            lines.append([row["target"], name, f"{row['temperature']:g}", error, *shown])
    tenths = [f"{i / BINS:.1f}–{(i + 1) / BINS:.1f}" for i in range(BINS)]
    return f"## Calibration\n\n{markdown_table(['target', 'by', 'temperature', 'expected error', *tenths], lines, 2)}"


# ---------------------------------------------------------------- where drafts cannot pay


class OneByOne:
    """A model for which several tokens take as long as one after the other."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.vocab_size, self.context = model.vocab_size, model.context

    @property
    def length(self) -> int:
        """Tokens now in the cache."""
        return self._model.length

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` and return the logits of the last `keep` of them."""
        if len(ids) >= ONE_BY_ONE:
            return self._model.forward(ids, keep)
        return torch.cat([self._model.forward([token], 1) for token in ids])[len(ids) - keep :]

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        self._model.crop(length)


def scrambled(model: PreTrainedModel, layers: int | None = None) -> PreTrainedModel:
    """A model of the same kind with random weights, and as many layers as are asked for."""
    config = copy.deepcopy(model.config)
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: Any = type(model)(config)
    other: PreTrainedModel = made.to(model.device, model.dtype).eval()
    return other


def _with_random_drafter(evaluation: Evaluation, layers: int | None) -> AttachedDrafter:
    model = evaluation.model
    if model.drafter is None:
        raise ValueError("there is no drafter to replace")
    loaded = replace(model.drafter, lm=TransformersModel(scrambled(model.drafter.lm.model, layers)))
    drafting, shared = Drafting(draft_length="goodput"), SharedDrafter(loaded.lm)
    return attach_drafter(model.target, model.vocab, loaded, drafting, evaluation.console.print, shared)


RANDOM = {"a drafter of random weights": None, "a drafter slower than the target": SLOW_LAYERS}  # its layers
CASES = (*RANDOM, "several tokens verified one by one", "long prompts, short answers")


def hopeless(evaluation: Evaluation, case: str) -> Row:
    """Seconds of the target alone over those with `goodput`, in turns, in a case where drafts cannot pay."""
    model = evaluation.model
    attached = _with_random_drafter(evaluation, RANDOM[case]) if case in RANDOM else drafter_of(model)
    ids, new_tokens = evaluation.prompts(next(iter(evaluation.recipe.tasks)), tests=True), evaluation.recipe.new_tokens
    if case == CASES[3]:
        whole = list(chain.from_iterable(ids))
        ids = [(whole[i * 97 % len(whole) :] + whole * (LONG // len(whole) + 1))[:LONG] for i in range(len(ids))]
        new_tokens = SHORT

    def way(name: str, drafting: Drafting) -> EngineWay:
        target: LanguageModel = model.target.lm.with_own_cache()
        target = OneByOne(target) if case == CASES[2] else target
        return EngineWay(name, engine_for(model, drafting, target=target, attached=attached), Sampling())

    both = [way("plain", PLAIN), way("goodput", Drafting(draft_length="goodput"))]
    list(compared([both[0], way("warms up", Drafting(draft_length=2))], ids[:1], new_tokens))
    _, row = compared(both, ids * LAPS, new_tokens)
    return {"target": evaluation.target, "case": case, **row}


def _hopeless_table(rows: Sequence[Row]) -> str:
    heads = ["target", "case", "goodput, of plain decoding", "in time of the processor", "prompts"]
    lines = [
        [
            *(row["target"], row["case"], f"{row['speedup']:.3f}", f"{row['speedup_cpu']:.3f}", row["prompts"]),
            *(f"{row['without_draft']:.2f}", row["no_draft_reason"] or "–"),
        ]
        for row in rows
    ]
    table = markdown_table([*heads, "rounds without a draft", "mostly as"], lines, 2)
    return f"## Where drafts cannot pay\n\n{table}"


# ---------------------------------------------------------------- the study


def _cell_jobs(recipe: Recipe) -> Measured:
    for target, task, warm in product((*recipe.targets, *recipe.same), (*recipe.tasks, IN_TURNS), TEMPERATURES):
        yield target, f"{task}|T = {warm:g}", partial(cell, task=task, temperature=warm)


def _calibration_jobs(recipe: Recipe) -> Measured:
    for target, warm in product((*recipe.targets, *recipe.same), TEMPERATURES):
        yield target, f"T = {warm:g}", partial(calibration, temperature=warm)


def _hopeless_jobs(recipe: Recipe) -> Measured:
    for target, case in product(recipe.targets, CASES):
        yield target, case, partial(hopeless, case=case)


PARTS: dict[str, Part] = {
    "cells": JobPart("policies", _cell_jobs, _cells),
    "calibration": JobPart("calibration", _calibration_jobs, _calibration_table),
    "hopeless": JobPart("hopeless", _hopeless_jobs, _hopeless_table),
    "table-2": TABLE_2,
}
STUDY = Study("stopping", "Draft-length policies", PARTS, "recipes/stopping.toml")
main = STUDY.main

if __name__ == "__main__":
    sys.exit(main())
