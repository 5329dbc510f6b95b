"""A random Qwen3.5 of 300M parameters: CPU seconds with scripted drafts of four tokens, and with a useless drafter.

taskset -c 0 env OMP_NUM_THREADS=1 python -m experiments.hybrids --dtype bfloat16
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from omnidraft import zoo
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.counted import CountedDraft
from omnidraft.decoding.engine import Engine, Request
from omnidraft.draft_length.goodput import Goodput
from omnidraft.draft_length.policy import Fixed
from omnidraft.hf.kept_drafters import make_ready
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.verification.round import Draft
from omnidraft.verification.sampling import GeneratorSampler

SHAPE: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "pad_token_id": 0, "eos_token_id": None,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 3,
}  # fmt: skip
ACCEPTANCE, LENGTH = 0.7, 4


class Saying(TransformersModel):
    """Says a given text, at the cost of its passes."""

    text: tuple[int, ...] = ()

    def run(self, cache: Any, ids: Sequence[int], length: int, rows: int) -> torch.Tensor:
        logits = super().run(cache, ids, length, rows).float()
        for place in range(1, len(logits) + 1):
            at = length + len(ids) - place + 1  # of the token after the row
            if at < len(self.text):
                logits[-place, self.text[at]] = 1e4
        return logits


class Scripted(Engine):
    """Drafts what the target will say, each token rightly with a probability of ACCEPTANCE."""

    def __init__(self, target: TransformersModel, text: list[int], policy: Goodput | Fixed) -> None:
        super().__init__(target, (), policy=policy)
        self._text, self._random = text, random.Random(0)  # noqa: S311

    def propose(self, request: Request) -> Any:
        yield from ()
        at, policy, tokens = len(request.ids), self.policy, list[int]()
        if not policy.rereads(self.behind(request) - 1) or not policy.begin(None, ACCEPTANCE):
            return Draft()
        while len(tokens) < LENGTH and policy.trusts(ACCEPTANCE):
            right = self._random.random() < ACCEPTANCE
            tokens.append((self._text[at + len(tokens)] + (not right)) % self.target.model.vocab_size)
        return CountedDraft(tokens=tokens, proposals=tokens, counted=len(tokens), eos=()) if tokens else Draft()


def measure(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The text, and the CPU seconds of a token after the first round."""
    rounds = engine.rounds(prompt, count, Sampling(), GeneratorSampler(torch.Generator()))
    text = [*prompt, *next(rounds).emitted]
    began, first = time.process_time(), len(text)
    for record in rounds:
        text += record.emitted
    return text, (time.process_time() - began) / (len(text) - first)


def main() -> None:
    """Print a line for each way of drafting: the median of the speedups over plain decoding beside it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--family", default="qwen3_5_text")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--way", default="", help="ways of drafting whose name contains this")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer: Any = AutoTokenizer.from_pretrained(zoo.path("target-b"))
    config = transformers.CONFIG_MAPPING[args.family](**SHAPE)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, args.dtype)).eval()
    target = Saying(model)
    target.text = tuple((7919 * i) % len(tokenizer) for i in range(40 + args.tokens + 2 * LENGTH))
    prompt, text = list(target.text[:40]), list(target.text)
    drafting = Drafting(remember="nothing")
    ready = make_ready(target, "zoo:general", None, tokenizer, drafting)
    ways = {
        f"{LENGTH} tokens, {ACCEPTANCE}": Scripted(target, text, Fixed(alone=True)),
        f"goodput, {ACCEPTANCE}": Scripted(target, text, Goodput(LENGTH, alone=True)),
        "zoo:general": Engine(target, (), ready.side.adaptation.attached, drafting, ready.policy),
    }
    ways = {name: engine for name, engine in ways.items() if args.way in name}
    found = {name: list[float]() for name in ways}
    for _ in range(args.laps):
        for name, engine in ways.items():
            plain = measure(Engine(target, ()), prompt, args.tokens)[1]
            said, seconds = measure(engine, prompt, args.tokens)
            found[name].append(plain / seconds)
            print(f"{name:24} {1e3 * plain:6.1f} ms {plain / seconds:5.2f} {said == text[: len(said)]}", flush=True)
    for name, ratios in found.items():
        print(f"{args.family}, {args.dtype}, {name}: {statistics.median(ratios):.2f}x")


if __name__ == "__main__":
    main()
