"""vLLM with the proposer: answers stay its own, what is learned elsewhere is adopted, what is said is spooled.

Runs where vLLM is installed, in the environment that `make fleet-test` makes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="no vLLM in this environment: make fleet-test has one")

import torch  # noqa: E402  after the skip

from omnidraft.config import Drafting  # noqa: E402
from omnidraft.fleet.pair import load_pair  # noqa: E402
from omnidraft.fleet.releases import Releases  # noqa: E402
from omnidraft.fleet.spool import answers, segments  # noqa: E402
from support.models import build  # noqa: E402
from support.small_tokenizers import byte_level, wrap  # noqa: E402

LONGEST, CONTEXT = 3, 128
PROMPTS = [[1 + number % 40, 50 + number % 9, 7, 5 + number % 13][: 2 + number % 3] for number in range(20)]


@pytest.fixture(scope="module")
def small_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with heads of a size that vLLM's attention has a kernel for."""
    folder = tmp_path_factory.mktemp("models") / "target"
    tokenizer = wrap(byte_level())
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
    }
    build("llama", vocab_size=len(tokenizer), **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


def started(target: Path, omnidraft: dict[str, Any] | None) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    config = {"method": "custom_class", "model": "omnidraft.vllm.Proposer", "num_speculative_tokens": LONGEST}
    return vllm.LLM(
        str(target),
        dtype="float32",
        max_model_len=CONTEXT,
        max_num_seqs=8,
        disable_log_stats=False,
        enable_prefix_caching=False,
        speculative_config=None if omnidraft is None else config,
        additional_config={"omnidraft": omnidraft or {}},
    )


def answered(lm: Any, count: int = 24) -> list[list[int]]:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    sampling = [vllm.SamplingParams(temperature=0, max_tokens=count - number % 7) for number in range(len(prompts))]
    return [list(each.outputs[0].token_ids) for each in lm.generate(prompts, sampling, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(small_target: Path) -> list[list[int]]:
    return answered(started(small_target, None))


@pytest.fixture(scope="module")
def drafting(small_target: Path, drafter: Path, folder: Path, expected: object) -> Any:  # noqa: ARG001
    """vLLM with our drafts, and the folders of a fleet; made after vLLM alone, which takes over its counters else."""
    settings = {"drafter": str(drafter), "draft_length": LONGEST, "replica": "one"}
    return started(small_target, settings | {name: str(folder / name) for name in ("spool", "releases")})


def counts(lm: Any) -> dict[str, int]:
    return {each.name.split("spec_decode_")[-1]: each.value for each in lm.get_metrics() if hasattr(each, "value")}


def test_greedy_answers_in_mixed_batches_are_those_of_vllm_alone(drafting: Any, expected: list[list[int]]) -> None:
    before = counts(drafting)
    assert answered(drafting) == expected
    after = counts(drafting)
    assert after["num_draft_tokens"] - before["num_draft_tokens"] > 100


def test_answers_are_spooled_as_token_ids(drafting: Any, expected: list[list[int]], folder: Path) -> None:
    answered(drafting)
    time.sleep(11)  # until a segment is old enough
    assert answered(drafting) == expected
    found = {tuple(each.prompt): list(each.tokens) for path in segments(folder / "spool") for each in answers(path)}
    assert len(found) > len(PROMPTS) / 2
    for prompt, tokens in found.items():
        assert tokens == expected[PROMPTS.index(list(prompt))][: len(tokens)]


def test_a_version_is_adopted_and_answers_stay(
    drafting: Any, expected: list[list[int]], small_target: Path, drafter: Path, folder: Path
) -> None:
    pair = load_pair(small_target, drafter, Drafting(drafter_step="transformers"), "cpu", pytest.fail)
    releases = Releases(folder / "releases", pair.key)
    changed = {name: weight.detach() + 0.02 * torch.randn_like(weight) for name, weight in pair.base.items()}
    releases.publish(changed, 1.0)
    time.sleep(6)  # until it is looked for
    for _ in range(3):
        assert answered(drafting) == expected
    time.sleep(11)
    answered(drafting)
    versions = {each.version for path in segments(folder / "spool") for each in answers(path)}
    assert versions == {0, 1}
