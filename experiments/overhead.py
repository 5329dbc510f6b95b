"""`python -m experiments.overhead`: cost of a decoding round beside its forward passes, as ratios with bounds."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.command import DRAFTER, TARGET, parser, run
from experiments.scripted import Models, Shape, memory_at_peak
from omnidraft import zoo
from omnidraft.bench import environment as setting
from omnidraft.bench.output import markdown_table, writing
from omnidraft.config import Sampling
from omnidraft.models.language_model import KVSequence
from omnidraft.models.loading import load_tokenizer

SHAPES = (
    Shape(layers=9, hidden=1024, intermediate=2816, heads=16, tied=True),  # 271M with a vocabulary of 152k
    Shape(layers=2, hidden=768, intermediate=3072, heads=12, tied=False),  # that of Llama-68M
)
CONTEXTS = (512, 4096)  # tokens of prompts whose costs are compared
PROBES = 15
QUICK, FULL = (40, 3), (128, 5)  # tokens of an answer, answers
SAMPLINGS = {
    "greedy": (Sampling(), 0.05),
    "temperature 1": (Sampling(temperature=1.0), 0.10),
    "top-k 50": (Sampling(temperature=0.8, top_k=50), 0.10),
    "top-p 0.9": (Sampling(temperature=0.8, top_p=0.9), 0.10),
}


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A measured value, and the bound that it is held to."""

    name: str
    value: float
    bound: float
    at_least: bool  # else at most
    detail: str

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The ratio as a line of a table."""
        verdict = "pass" if self.passed else "MISS"
        return self.name, f"{self.value:.3f}", f"{'≥' if self.at_least else '≤'} {self.bound:g}", verdict, self.detail


class Overhead:
    """The measurements; each is taken `repeats` times, and the median counts."""

    def __init__(self, models: Models, repeats: int) -> None:
        self.models, self.repeats = models, repeats
        self.short, self.long = CONTEXTS

    def ratios(self) -> Iterator[Ratio]:
        """All of them, one after the other."""
        yield from self.memory()  # first: before anything else has grown
        for name, (sampling, bound) in SAMPLINGS.items():
            yield self.share(name, sampling, bound)
        yield self.against_transformers("greedy (UAD)", Sampling())
        yield self.against_transformers("temperature 1 (TLI)", Sampling(temperature=1.0))
        yield self.drafter_step()
        yield self.growth()

    def share(self, name: str, sampling: Sampling, bound: float) -> Ratio:
        """The part of a round that is not forward passes."""
        answers = [self.models.answer(self.short, sampling) for _ in range(self.repeats)]
        share = statistics.median(1 - answer.passes_s / answer.wall_s for answer in answers)
        beside = statistics.median(1e3 * answer.beside_s for answer in answers)
        whole = statistics.median(1e3 * answer.wall_s / answer.rounds for answer in answers)
        detail = f"{beside:.2f} of {whole:.1f} ms; acceptance of a symbol {answers[0].accepted:.2f}"
        name = f"share of a round that is no forward pass, {name}"
        return Ratio(name=name, value=share, bound=bound, at_least=False, detail=detail)

    def against_transformers(self, name: str, sampling: Sampling) -> Ratio:
        """The same seconds a round, beside those of `transformers`; the drafter knows nothing in either."""
        ours, theirs = [], []
        for _ in range(self.repeats):
            ours.append(self.models.answer(self.short, sampling, knowing=False, after_prompt=False).beside_s)
            theirs.append(self.models.assisted(self.short, sampling).beside_s)
        mine, other = statistics.median(ours), statistics.median(theirs)
        detail = f"{1e3 * mine:.2f} against {1e3 * other:.2f} ms a round"
        name = f"overhead per round, transformers ÷ ours, {name}"
        return Ratio(name=name, value=other / mine, bound=3.0, at_least=True, detail=detail)

    def drafter_step(self) -> Ratio:
        """A pass of one token through the drafter, by `transformers` in fp32 and as it is used here.

        As many in a row as a draft has, each after a pass of the target, which leaves the caches to its own weights.
        """
        target, steps = self.models.target.new_sequence(), self.models.drafting.longest
        kinds: list[KVSequence] = [each.new_sequence() for each in (self.models.source, self.models.step)]
        for model in (*kinds, target):
            model.crop(0)
            model.forward([1] * 128, 1)
        taken: list[list[float]] = [[] for _ in kinds]
        for _ in range(PROBES):
            for model, times in zip(kinds, taken, strict=True):
                target.forward([1], 1)
                target.crop(128)
                began = time.perf_counter()
                for _ in range(steps):
                    model.forward([1], 1)
                times.append((time.perf_counter() - began) / steps)
                model.crop(128)
        slow, fast = (statistics.median(times) for times in taken)
        detail = f"{1e3 * slow:.2f} against {1e3 * fast:.2f} ms; {type(self.models.step).__name__}"
        name = "drafter step of transformers in fp32, in ours"
        return Ratio(name=name, value=slow / fast, bound=3.0, at_least=True, detail=detail)

    def growth(self) -> Ratio:
        """How a token's cost grows with the text, beside how it grows where the target decodes alone on our cache."""
        costs = []
        for start in (self.short, self.long):
            drafted, plain = [], []
            for _ in range(min(2, self.repeats)):
                answer = self.models.answer(start, Sampling(), knowing=False)
                drafted.append(answer.wall_s / answer.tokens)
                plain.append(self.models.alone(start))
            costs.append((statistics.median(drafted), statistics.median(plain)))
        mine, alone = (late / early for early, late in zip(*costs, strict=True))
        detail = f"{mine:.2f} against {alone:.2f} times the cost at {self.short} tokens, both on the same cache"
        name = f"growth of a token's cost to {self.long} tokens, in that of the target alone"
        return Ratio(name=name, value=mine / alone, bound=1.0, at_least=False, detail=detail)

    def memory(self) -> Iterator[Ratio]:
        """Bytes at the peak of getting ready and answering, without the weights as loaded, keys and values."""
        models = self.models
        models.answer(self.short, Sampling(temperature=1.0))
        peak = memory_at_peak()
        if models.unused is None or peak is None:
            return
        weights = native.nbytes if (native := models.native) is not None else 0
        tokens = self.short + models.tokens
        mb = (peak - models.unused - models.cache_bytes(tokens) - weights) / 2**20
        copied = f", the drafter's copy but for its {weights / 2**20:.0f} MB of weights" if weights else ""
        detail = (
            f"counted from models and tokenizers on: building the table{copied}, answering; a vocabulary of "
            f"{models.target.vocab_size}, {tokens} tokens of text"
        )
        yield Ratio(name="MB beside weights and cache", value=mb, bound=150.0, at_least=False, detail=detail)


def markdown(ratios: Sequence[Ratio], about: Mapping[str, Any]) -> str:
    """The setting, and a table of the ratios."""
    settings = "".join(f"- {name}: {value}\n" for name, value in about.items())
    table = markdown_table(["what", "measured", "bound", "", ""], [ratio.cells for ratio in ratios])
    return f"# Overhead\n\n{settings}\n{table}"


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure, and print the ratios with their verdicts; 0 whatever these are."""
    names = options.target_tokenizer, options.drafter_tokenizer
    if options.out is not None:
        with writing(options.out):  # known before minutes are spent on measuring
            pass
    target, drafter = (load_tokenizer(zoo.resolve(name)) for name in names)
    console.print("two random models are made")
    tokens, repeats = QUICK if options.quick else FULL
    models = Models((target, drafter), SHAPES, CONTEXTS[1] + 1024, tokens)
    found = []
    for ratio in Overhead(models, repeats).ratios():
        found.append(ratio)
        console.print(" ".join(ratio.cells[:4]))
    sizes = (
        shape.parameters(lm.vocab_size) / 1e6 for shape, lm in zip(SHAPES, (models.target, models.source), strict=True)
    )
    about = {
        "target": f"{next(sizes):.0f}M, {models.target.dtype}",
        "drafter": f"{next(sizes):.0f}M, {models.source.dtype}",
        **setting.machine(models.target.device),
        "command": setting.command(options.words),
    }
    result = {"ratios": [asdict(ratio) | {"pass": ratio.passed} for ratio in found], "setting": about}
    print(markdown(found, about))
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            options.out.with_name(options.out.name + ".md").write_text(markdown(found, about), "utf-8")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the ratios, and return the exit code."""
    options = parser(
        "overhead",
        "Cost of a decoding round beside its forward passes, as ratios with bounds.",
        f"--quick --target-tokenizer {TARGET} --drafter-tokenizer {DRAFTER}",
    )
    tokenizer = "its vocabulary: a folder, a hub id or zoo:NAME (default: %(default)s)"
    options.add_argument("--target-tokenizer", default="Qwen/Qwen2-7B", metavar="MODEL", help=tokenizer)
    options.add_argument("--drafter-tokenizer", default="JackFram/llama-68m", metavar="MODEL", help=tokenizer)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
