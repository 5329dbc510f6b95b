"""`omnidraft bench exactness`: its bins, that correct pairs pass, and that a planted fault is found."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.bench import exactness
from omnidraft.cli.main import main
from omnidraft.config import Sampling
from omnidraft.decoding.stats import Stats
from omnidraft.verification.drawn import NextToken, Outcome
from omnidraft.verification.sampling import processed, softmax, target_processors
from omnidraft.verification.trie_walk import Walk

SAMPLED = Sampling(temperature=1.0)
NOTHING = Stats.of([])


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None, draft_length=3)


# ---------------------------------------------------------------- the test


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(temperature=0.7, top_k=12, repetition_penalty=1.3)])
def test_bins_have_the_distribution_of_plain_decoding(model: OmniDraft, sampling: Sampling) -> None:
    prompt, eos, floor = model.encode("hello"), [7], 0.004
    found = exactness.joint_distribution(model.target.lm, prompt, eos, sampling, floor)
    processors = target_processors(sampling)

    def after(ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            logits = model.target.lm.model(torch.tensor([ids])).logits[:, -1].float()
        return softmax(processed(processors, torch.tensor([ids]), logits)[0])

    first = after(prompt)
    second = {a: after([*prompt, a]) for a in range(len(first)) if first[a] > 0}
    pairs = {(a, b): first[a] * second[a][b] for a, b in itertools.product(second, range(len(first))) if a not in eos}
    for key, share in found.items():
        if len(key) == 2:
            assert share == pytest.approx(pairs[key], rel=1e-4)
            assert share >= floor
        else:
            rest = first[key[0]] - sum(pairs[pair] for pair in found if len(pair) == 2 and pair[0] == key[0])
            assert share == pytest.approx(rest, rel=1e-3)
    assert {pair for pair, share in pairs.items() if share >= floor * 1.001} <= found.keys()
    assert not any(len(key) == 2 and key[0] in eos for key in found)


def test_the_test_is_that_of_chi_squared() -> None:
    shares = {(1, 2): 0.5, (1,): 0.2, (3, 4): 0.2}
    counts: Counter[exactness.Text] = Counter(
        {(1, 2): 470, (1, 9): 150, (1, 8): 60, (3, 4): 190, (5, 6): 100, (3, 5): 30}
    )
    found = exactness.judged(counts, shares, NOTHING, "x", 0.01)
    assert found is not None
    expected = stats.chisquare([470, 210, 190, 130], [500, 200, 200, 100])
    assert (found.samples, found.bins) == (1000, 4)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.passes == (expected.pvalue >= 0.01)
    # a distribution at that distance is found with the probability that is promised
    distance = found.detectable
    power = stats.ncx2.sf(stats.chi2.isf(0.01, 3), 3, 1000 * (2 * distance) ** 2)
    assert power == pytest.approx(exactness.POWER, abs=1e-6)


def test_a_rest_too_small_for_a_bin_goes_to_the_largest() -> None:
    shares: dict[exactness.Text, float] = {(1, 2): 0.7, (3, 4): 0.299}
    found = exactness.judged(Counter({(1, 2): 690, (3, 4): 309, (9, 9): 1}), shares, NOTHING, "x", 0.01)
    assert found is not None
    assert found.bins == 2
    assert found.p_value == pytest.approx(stats.chisquare([691, 309], [701, 299]).pvalue)
    assert exactness.judged(Counter({(1, 2): 1000}), {(1, 2): 0.999}, NOTHING, "x", 0.01) is None


@pytest.mark.slow
def test_the_distance_that_is_stated_is_found() -> None:
    """A distribution so far away fails about as often as is promised, and the right one hardly ever."""
    shares: dict[exactness.Text, float] = {(i,): 0.1 for i in range(9)}
    random = np.random.default_rng(0)
    count, limit = 2000, 0.01
    stated = exactness.judged(Counter({(i,): 200 for i in range(10)}), shares, NOTHING, "x", limit)
    assert stated is not None
    assert 0.02 < stated.detectable < 0.2
    true, moved = np.full(10, 0.1), np.full(10, 0.1)
    moved[:5] += stated.detectable / 5
    moved[5:] -= stated.detectable / 5

    def fails(p: np.ndarray) -> float:
        counts: list[Counter[exactness.Text]] = [
            Counter({(i,): int(n) for i, n in enumerate(random.multinomial(count, p))}) for _ in range(150)
        ]
        tried = [exactness.judged(each, shares, NOTHING, "x", limit) for each in counts]
        return sum(each is not None and not each.passes for each in tried) / len(tried)

    assert fails(moved) > 0.9
    assert fails(true) < 0.03


# ---------------------------------------------------------------- the command


def keep_all_drafts(patch: pytest.MonkeyPatch) -> None:
    """Plant a fault: the verifier keeps every proposal, whatever the target says."""

    def careless(walk: Walk, next_token: NextToken) -> Outcome:
        accepted = len(walk.tokens)
        emitted = (*walk.tokens, *(() if walk.ended else (next_token(accepted),)))
        return Outcome(emitted, accepted, len(walk.symbols), None)

    patch.setattr("omnidraft.decoding.proposals.verify_walk", careless)


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_right_pair_passes_and_the_fault_is_found(
    target: Path,
    drafter: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stem = tmp_path / "results" / "law"
    command = ["bench", "exactness", "--target", str(target), "--drafter", str(drafter), "--prompt", "hello world"]
    command += ["--samples", "600", "--draft-length", "3", "--json"]
    assert main([*command, "--out", str(stem)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passes"]
    assert result == json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    (finding,) = result["findings"]
    assert (finding["samples"], finding["limit"]) == (600, 1e-3)
    assert finding["drafted"] > 1
    assert 0 < finding["detectable"] < 0.3
    assert "has the distribution of target" in stem.with_suffix(".md").read_text(encoding="utf-8")
    assert str(tmp_path) not in result["command"]
    keep_all_drafts(monkeypatch)
    assert main(command) == 1
    assert not json.loads(capsys.readouterr().out)["passes"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "0"], "draws nothing"),
        (["--samples", "5"], "argument --samples: '5' is no integer from 100"),
        (["--draft-length", "0"], "no drafter to test"),
    ],
)
def test_mistakes(target: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "exactness", "--target", str(target), "--quick", *options]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
