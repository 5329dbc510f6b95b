"""Statistical test that sampled text follows the target's own distribution, on any pair of models.

For each prompt, the first two tokens of many answers are counted, each over as many rounds as they take, and compared
with their joint distribution under the target alone in a chi-squared test.  With N samples, a distribution at total
variation δ has a noncentrality of at least N·(2δ)² where its bins show it, so each test states the distance that it
would have found.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from omnidraft.alignment.spelling_table import Probs
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import sampler
from omnidraft.bench.output import markdown_table, progress
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.passes import Passes
from omnidraft.decoding.stats import Stats
from omnidraft.errors import ConfigError, InputError
from omnidraft.models.language_model import LanguageModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import softmax, target_processors

if TYPE_CHECKING:
    from omnidraft.decoding.drafter import Drafter

try:
    from scipy import optimize, stats
except ImportError as error:
    raise ConfigError("the test needs the scipy package: pip install 'omnidraft[bench]'") from error

PROMPTS = (
    "Question: Tom has 3",
    "def mean(values):\n",
    "Once upon a time there was a",
)
SAMPLES = 2000
QUICK_SAMPLES = 400
POWER = 0.95  # chance to find the distance that is stated
EXPECTED = 8.0  # smallest expected count of a bin
LENGTH = 2  # tokens of a text that are looked at
ROOM = 24  # tokens that may be drafted for, so that no draft is cut short by the end of the text
Text = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The test of one prompt."""

    prompt: str
    samples: int
    drafted: float  # draft tokens of a text
    bins: int
    detectable: float  # total variation that would have been found, by `POWER`
    p_value: float
    limit: float  # of that, below which the test fails

    @property
    def passes(self) -> bool:
        return self.p_value >= self.limit


# ---------------------------------------------------------------- the test


def joint_distribution(
    model: LanguageModel, prompt: Sequence[int], eos: Sequence[int], sampling: Sampling, floor: float
) -> dict[Text, float]:
    """Probabilities of the beginnings of a text, by the target alone.

    Pairs of tokens of at least `floor`, and for what lies below it the first token alone, as far as that is so likely.
    """
    processors, text = target_processors(sampling), model.new_sequence()

    def next_probs(ids: list[int]) -> Probs:
        text.crop(0)
        return softmax(processors(torch.tensor([ids]), text.forward(ids, 1).cpu().float())[0])  # type: ignore[arg-type]

    distribution: dict[Text, float] = {}
    first = next_probs(list(prompt))
    for a in np.flatnonzero(first >= floor).tolist():
        rest = float(first[a])
        if a not in eos:
            second = next_probs([*prompt, a])
            for b in np.flatnonzero(first[a] * second >= floor).tolist():
                distribution[a, b] = float(first[a] * second[b])
                rest -= distribution[a, b]
        if rest >= floor:
            distribution[a,] = rest
    return distribution


def sampled(
    engine: Engine, prompt: Sequence[int], count: int, sampling: Sampling, seed: int, step: Callable[[], None]
) -> tuple[Counter[Text], Stats]:
    """Counts of the beginnings of `count` sampled texts, and the statistics of their rounds."""
    draw = sampler(seed)
    found: Counter[Text] = Counter()
    records: list[Round] = []
    for _ in range(count):
        tokens: list[int] = []
        for record in engine.rounds(prompt, ROOM, sampling, draw):
            tokens += record.emitted
            records.append(record)
            if len(tokens) >= LENGTH:
                break
        found[tuple(tokens[:LENGTH])] += 1
        step()
    return found, Stats.of(records)


def judged(
    found: Counter[Text], distribution: dict[Text, float], did: Stats, prompt: str, limit: float
) -> Finding | None:
    """Chi-squared test of counts against a distribution, with one bin for all the rest; None for a single bin."""
    count = found.total()
    observed: Counter[Text] = Counter()
    for text, times in found.items():
        observed[next((key for key in (text, text[:1]) if key in distribution), ())] += times
    expected = {key: share * count for key, share in distribution.items()}
    rest = count - sum(expected.values())
    if rest >= EXPECTED:
        expected[()] = rest
    else:  # too small a rest to be a bin: it goes to the largest
        largest = max(expected, key=lambda key: expected[key])
        expected[largest] += rest
        observed[largest] += observed.pop((), 0)
    degrees = len(expected) - 1
    if degrees < 1:
        return None
    tested = stats.chisquare([observed[key] for key in expected], list(expected.values()))
    return Finding(
        prompt=prompt,
        samples=count,
        drafted=round(did.drafted / count, 3),
        bins=len(expected),
        detectable=math.sqrt(_noncentrality(degrees, limit) / count) / 2,
        p_value=float(tested.pvalue),
        limit=limit,
    )


def _noncentrality(degrees: int, limit: float) -> float:
    """Noncentrality at which the test fails, at level `limit`, with probability `POWER`."""
    bound = stats.chi2.isf(limit, degrees)
    return float(optimize.brentq(lambda x: stats.ncx2.sf(bound, degrees, x) - POWER, 1e-3, 100 + 10 * bound))


def permute(drafter: Drafter) -> None:
    """Plant a fault: the verifier is told of a q whose tokens have changed places."""
    draft = drafter.draft

    def faulty(*arguments: Any, **options: Any) -> Passes[tuple[list[int], list[Probs]]]:
        tokens, vectors = yield from draft(*arguments, **options)
        return tokens, [np.roll(vector, len(vector) // 2) for vector in vectors]

    drafter.draft = faulty  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Sizes of a test; `alpha` is the chance that it fails without a fault, shared by its prompts."""

    samples: int = SAMPLES
    alpha: float = 1e-3
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    seed: int = 0
    fault: str | None = None  # "permuted-q" plants a fault, to see it found

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha:g}; it must be above 0 and below 1: 0.001 is usual")
        if self.sampling.greedy:
            raise ConfigError("temperature is 0, which draws nothing: give --temperature above 0")


def examine(model: OmniDraft, texts: Sequence[str], experiment: Experiment, console: Console) -> dict[str, Any]:
    """Test a pair on some prompts; the findings, and whether all pass.

    Raises ConfigError for a model without a drafter, InputError where no prompt allows a test.
    """
    engine, sampling = model.engine, experiment.sampling
    if engine.attached is None:
        raise ConfigError("there is no drafter to test: give --drafter, and a draft_length above 0")
    if experiment.fault is not None:
        permute(engine.attached.drafter)
    findings = []
    step = progress(console, "sampling", experiment.samples * len(texts))
    for number, text in enumerate(texts):
        ids, eos = model.encode(text), sorted(engine.eos)
        engine.check(ids)
        distribution = joint_distribution(model.target.lm, ids, eos, sampling, EXPECTED / experiment.samples)
        found, did = sampled(engine, ids, experiment.samples, sampling, experiment.seed + number, step)
        finding = judged(found, distribution, did, text, experiment.alpha / len(texts))
        if finding is None:
            console.print(f"after {text!r} the target is too sure for a test: it is left out")
        else:
            findings.append(finding)
    if not findings:
        raise InputError("after no prompt is the target unsure enough: give another --prompt, or more --samples")
    return {
        "passes": all(finding.passes for finding in findings),
        "fault": experiment.fault,
        "findings": [asdict(finding) | {"passes": finding.passes} for finding in findings],
        "target": model.target.name,
        "drafter": model.drafter.name if model.drafter else None,
        "drafting": asdict(model.engine.drafting),
        "sampling": asdict(experiment.sampling),
    }


def markdown(result: dict[str, Any]) -> str:
    """The tests as a table, and what they say."""
    heads = ["prompt", "answers", "drafted", "bins", "finds a total variation of", "p", ""]
    rows = [
        (
            json.dumps(each["prompt"], ensure_ascii=False),
            *(each["samples"], each["drafted"], each["bins"], f"{each['detectable']:.3f}", f"{each['p_value']:.2g}"),
            "passes" if each["passes"] else "fails",
        )
        for each in result["findings"]
    ]
    said = "has" if result["passes"] else "does not have"
    fault = f", with the planted fault {result['fault']}," if result["fault"] else ""
    conclusion = f"Sampled with {result['drafter']}{fault} text {said} the distribution of {result['target']}."
    return f"{markdown_table(heads, rows)}\n{conclusion}\n"
