"""Statistical test that sampled text follows the target's own distribution, on any pair of models.

For each prompt, the first two tokens of many answers are counted and compared in a chi-squared test with their joint
distribution under the target alone.  With N samples, a distribution at total variation δ from it has a noncentrality
of at least N·(2δ)² if its bins show it, so each test states the distance that it would have found.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from omnidraft.alignment.spelling_table import Probs
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import sampler
from omnidraft.bench.output import markdown_table
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stats import Stats
from omnidraft.decoding.stream import decode
from omnidraft.errors import ConfigError, InputError
from omnidraft.models.language_model import LanguageModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import processed, softmax, target_processors

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
ALPHA = 1e-3  # probability that a correct pair fails
POWER = 0.95  # probability to find the distance that is stated
EXPECTED = 8.0  # smallest expected count of a bin
LENGTH = 2  # tokens of a text that are counted
ROOM = 24  # max_new_tokens, large enough that it cuts no draft short
Text = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The test of one prompt."""

    prompt: str
    samples: int
    drafted: float  # draft tokens per text
    bins: int
    detectable: float  # total variation that is found with probability `POWER`
    p_value: float
    limit: float  # of that, below which the test fails

    @property
    def passes(self) -> bool:
        return self.p_value >= self.limit


# ---------------------------------------------------------------- the test


def joint_distribution(
    model: LanguageModel, prompt: Sequence[int], eos: Sequence[int], sampling: Sampling, floor: float
) -> dict[Text, float]:
    """Probabilities of the first tokens of a text, by the target alone.

    Pairs of tokens with a probability of at least `floor`; the rest of a first token is a bin of its own if it has it.
    """
    processors, text = target_processors(sampling), model.new_sequence()

    def next_probs(ids: list[int]) -> Probs:
        text.crop(0)
        return softmax(processed(processors, torch.tensor([ids]), text.forward(ids, 1).cpu().float())[0])

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
    lane: Lane, prompt: Sequence[int], count: int, sampling: Sampling, seed: int, step: Callable[[], None]
) -> tuple[Counter[Text], Stats]:
    """Counts of the first tokens of `count` sampled texts, and the statistics of their rounds."""
    draw = sampler(seed)
    counts: Counter[Text] = Counter()
    records: list[Round] = []
    for _ in range(count):
        tokens: list[int] = []
        for record in decode(lane, prompt, ROOM, sampling, draw):
            tokens += record.emitted
            records.append(record)
            if len(tokens) >= LENGTH:
                break
        counts[tuple(tokens[:LENGTH])] += 1
        step()
    return counts, Stats.of(records)


def judged(
    counts: Counter[Text], distribution: dict[Text, float], did: Stats, prompt: str, limit: float
) -> Finding | None:
    """Chi-squared test of counts against a distribution, with one bin for the rest; None if there is one bin only."""
    count = counts.total()
    observed: Counter[Text] = Counter()
    for text, times in counts.items():
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


def examine(
    model: OmniDraft,
    texts: Sequence[str],
    sampling: Sampling,
    *,
    samples: int,
    seed: int,
    say: Callable[[str], None],
    step: Callable[[], None],
) -> dict[str, Any]:
    """Test a pair on some prompts; a correct pair fails with probability ALPHA, over all prompts together.

    `step` is called after each sample.  Raises ConfigError for a model without a drafter, InputError if no prompt
    allows a test.
    """
    lane = model.lane
    if lane.attached is None:
        raise ConfigError("there is no drafter to test: give --drafter, and a draft_length above 0")
    findings = []
    for number, text in enumerate(texts):
        ids, eos = model.encode(text), sorted(lane.eos)
        lane.check(ids)
        distribution = joint_distribution(model.target.lm, ids, eos, sampling, EXPECTED / samples)
        counts, did = sampled(lane, ids, samples, sampling, seed + number, step)
        finding = judged(counts, distribution, did, text, ALPHA / len(texts))
        if finding is None:
            say(f"prompt {text!r} is left out: the target is almost certain of what follows")
        else:
            findings.append(finding)
    if not findings:
        raise InputError("no prompt has several likely continuations: give another --prompt, or more --samples")
    return {
        "passes": all(finding.passes for finding in findings),
        "findings": [asdict(finding) | {"passes": finding.passes} for finding in findings],
        "target": model.target.name,
        "drafter": model.drafter.name if model.drafter else None,
        "drafting": asdict(lane.drafting),
        "sampling": asdict(sampling),
    }


def markdown(result: dict[str, Any]) -> str:
    """The tests as a table, and the conclusion."""
    heads = ["prompt", "answers", "drafted", "bins", "detectable total variation", "p", ""]
    rows = [
        (
            json.dumps(each["prompt"], ensure_ascii=False),
            *(each["samples"], each["drafted"], each["bins"], f"{each['detectable']:.3f}", f"{each['p_value']:.2g}"),
            "passes" if each["passes"] else "fails",
        )
        for each in result["findings"]
    ]
    said = "has" if result["passes"] else "does not have"
    conclusion = f"Text sampled with {result['drafter']} {said} the distribution of {result['target']}."
    return f"{markdown_table(heads, rows)}\n{conclusion}\n"
