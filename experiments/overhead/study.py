"""What a round costs beside its forward passes, as ratios with bounds."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from transformers import DynamicCache, PreTrainedModel

from experiments.overhead import peak_memory as memory
from experiments.overhead.synthetic import Shape
from experiments.overhead.synthetic_models import ACCEPTANCE, Models
from omnidraft import zoo
from omnidraft.bench import environment as setting
from omnidraft.bench.environment import writing
from omnidraft.bench.tables import markdown_table
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.models.cpu_llama import LeanLlama
from omnidraft.models.language_model import CHUNK, LanguageModel
from omnidraft.models.loading import load_tokenizer
from omnidraft.verification.sampling import GeneratorSampler

TARGET = Shape(layers=9, hidden=1024, intermediate=2816, heads=16, tied=True)  # 271M with a vocabulary of 152k
DRAFTER = Shape(layers=2, hidden=768, intermediate=3072, heads=12, tied=False)  # that of Llama-68M
SHORT, LONG = 512, 4096  # contexts whose costs are compared
PROBES = 15
QUICK, FULL = (40, 3), (128, 5)  # tokens a turn, turns
SAMPLINGS = {
    "greedy": (Sampling(), 0.05),
    "temperature 1": (Sampling(temperature=1.0), 0.10),
    "top-k 50": (Sampling(temperature=0.8, top_k=50), 0.10),
    "top-p 0.9": (Sampling(temperature=0.8, top_p=0.9), 0.10),
}


class Bare:
    """A `transformers` model with the cache of `transformers`, and nothing around it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self.crop(0)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> None:
        self._model(torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=keep)

    def crop(self, length: int) -> None:
        if length == 0:
            self._cache = DynamicCache()
        else:
            self._cache.crop(length - self._cache.get_seq_length())  # negative: the number of tokens to remove


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure, and print the ratios with their verdicts; 0 whatever these are."""
    names = options.target_tokenizer, options.drafter_tokenizer
    if options.out is not None:
        with writing(options.out):  # known before minutes are spent on measuring
            pass
    console.print("two random models are made")
    tokens, turns = QUICK if options.quick else FULL
    models = Models(
        *(load_tokenizer(zoo.resolve(name)) for name in names), target=TARGET, drafter=DRAFTER,
        context=LONG + 1024, draft_length=options.draft_length, tokens=tokens,
    )  # fmt: skip
    found = []
    for ratio in Overhead(models, turns).ratios():
        found.append(ratio)
        console.print(f"{ratio.verdict:5} {ratio.name}: {ratio.value:.3f} {ratio.sign} {ratio.bound:g}")
    about = {
        "target": f"{TARGET.parameters(models.target.vocab_size) / 1e6:.0f}M, {models.target.dtype}",
        "drafter": f"{DRAFTER.parameters(models.source.vocab_size) / 1e6:.0f}M, {models.source.dtype}",
        **setting.machine(models.target.device),
        "command": setting.command(options.words),
    }
    result = {"ratios": [ratio.as_dict() for ratio in found], "setting": about}
    text = markdown(found, about)
    print(json.dumps(result) if options.json else text)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            options.out.with_name(options.out.name + ".md").write_text(text, "utf-8")
    return 0


def markdown(ratios: Sequence[Ratio], about: Mapping[str, Any]) -> str:
    """The setting, and a table of the ratios."""
    settings = "".join(f"- {name}: {value}\n" for name, value in about.items())
    lines = [(r.name, f"{r.value:.3f}", f"{r.sign} {r.bound:g}", r.verdict, r.detail) for r in ratios]
    return f"# Overhead\n\n{settings}\n{markdown_table(['what', 'measured', 'bound', '', ''], lines)}"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One thing that is measured, with the bound it is held to."""

    name: str
    value: float
    bound: float
    at_least: bool  # else at most
    detail: str

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else "MISS"

    @property
    def sign(self) -> str:
        return "≥" if self.at_least else "≤"

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_dict(self) -> dict[str, Any]:
        """The ratio with its verdict, for JSON."""
        return asdict(self) | {"pass": self.passed}


class Overhead:
    """The measurements; `turns` are taken of each, and the median counts."""

    def __init__(self, models: Models, turns: int, short: int = SHORT, long: int = LONG) -> None:
        self.models, self.turns, self.short, self.long = models, turns, short, long

    def ratios(self) -> Iterator[Ratio]:
        """All of them, one after the other."""
        yield from self.memory()  # first: before anything else has grown
        for name, (sampling, bound) in SAMPLINGS.items():
            yield self.beside(name, sampling, bound)
        yield self.against_transformers("greedy (UAD)", Sampling())
        yield self.against_transformers("temperature 1 (TLI)", Sampling(temperature=1.0))
        yield self.drafter_step()
        yield self.plain()
        yield self.bound()
        yield self.growth()

    def beside(self, name: str, sampling: Sampling, bound: float) -> Ratio:
        """What is not forward passes, as a share of a round."""
        turns = [self.models.rounds(self.short, sampling) for _ in range(self.turns)]
        share = statistics.median(1 - turn.passes_s / turn.wall_s for turn in turns)
        beside, whole = (
            1e3 * statistics.median(values)
            for values in ([t.beside_s for t in turns], [t.wall_s / t.rounds for t in turns])
        )
        detail = f"{beside:.2f} of {whole:.1f} ms; acceptance of a symbol {turns[0].accepted:.2f}"
        if sampling.top_k > 0 or sampling.top_p < 1:
            detail += f"; {100 * turns[0].left:.1f} % of the rows left to transformers"
        name = f"share of a round that is no forward pass, {name}"
        return Ratio(name=name, value=share, bound=bound, at_least=False, detail=detail)

    def against_transformers(self, name: str, sampling: Sampling) -> Ratio:
        """The same seconds a round, beside those of `transformers`; the drafter knows nothing in either."""
        ours, theirs = [], []
        for _ in range(self.turns):
            ours.append(self.models.rounds(self.short, sampling, knowing=False, after_prompt=False).beside_s)
            theirs.append(self.models.assisted(self.short, sampling).beside_s)
        mine, other = statistics.median(ours), statistics.median(theirs)
        detail = f"{1e3 * mine:.2f} against {1e3 * other:.2f} ms a round"
        name = f"what transformers takes beside forward passes, in ours, {name}"
        return Ratio(name=name, value=other / mine, bound=3.0, at_least=True, detail=detail)

    def drafter_step(self) -> Ratio:
        """A pass of one token through the drafter, by `transformers` in fp32 and as it is used here.

        As many in a row as a draft has, each after a pass of the target, which leaves the caches to its own weights.
        """
        plain, steps, target = (
            Bare(self.models.source.model),
            self.models.drafting.longest,
            self.models.target,
        )
        for model in (plain, self.models.step, target):
            model.crop(0)
            model.forward([1] * 128, 1)
        taken: dict[Bare | LanguageModel, list[float]] = {plain: [], self.models.step: []}
        for _ in range(PROBES):
            for model, times in taken.items():
                target.forward([1], 1)
                target.crop(128)
                began = time.perf_counter()
                for _ in range(steps):
                    model.forward([1], 1)
                times.append((time.perf_counter() - began) / steps)
                model.crop(128)
        slow, fast = (statistics.median(times) for times in taken.values())
        detail = f"{1e3 * slow:.2f} against {1e3 * fast:.2f} ms; {type(self.models.step).__name__}"
        name = "drafter step of transformers in fp32, in ours"
        return Ratio(name=name, value=slow / fast, bound=3.0, at_least=True, detail=detail)

    def plain(self) -> Ratio:
        """Plain decoding through the loop of this package, beside `generate`; the prompt's pass included."""
        engine = Engine(self.models.target, ())

        def ours() -> None:
            draw = GeneratorSampler(torch.Generator())
            list(engine.rounds(self.models.ids[: self.short], self.models.tokens, Sampling(), draw))

        theirs, mine = _medians([lambda: self.models.generate(self.short, Sampling(), {}), ours], self.turns)
        detail = f"{self.models.tokens / mine:.1f} against {self.models.tokens / theirs:.1f} tokens/s"
        return Ratio(
            name="draft_length 0 against generate", value=theirs / mine, bound=1.0, at_least=True, detail=detail
        )

    def bound(self) -> Ratio:
        """Throughput at the scripted acceptance, in that of the same forward passes with nothing between them."""
        shares, speeds = [], []
        for _ in range(self.turns):
            turn = self.models.rounds(self.short, Sampling())
            shares.append(self.models.replay(turn.passes) / turn.wall_s)
            speeds.append(turn.tokens / turn.wall_s)
        detail = f"{statistics.median(speeds):.1f} tokens/s"
        name = f"throughput at acceptance {ACCEPTANCE}, of what the passes alone allow"
        return Ratio(name=name, value=statistics.median(shares), bound=0.95, at_least=True, detail=detail)

    def growth(self) -> Ratio:
        """How a token's cost grows with the text, beside how it grows where the target decodes alone on our cache."""
        costs = []
        for start in (self.short, self.long):
            model = Bare(self.models.target.model)
            for chunk in range(0, start, CHUNK):
                model.forward(self.models.ids[chunk : min(chunk + CHUNK, start)], 1)
            step = _medians([lambda model=model: model.forward([1], 1)])[0]  # type: ignore[misc]
            drafted, plain = [], []
            for _ in range(min(2, self.turns)):
                turn = self.models.rounds(start, Sampling(), knowing=False)
                drafted.append(turn.wall_s / turn.tokens)
                plain.append(self.models.alone(start))
            costs.append((statistics.median(drafted), statistics.median(plain), step))
        mine, alone, copying = (late / early for early, late in zip(*costs, strict=True))
        detail = (
            f"{mine:.2f} against {alone:.2f} times the cost at {self.short} tokens, both on the same cache; "
            f"{copying:.2f} by a step on the cache of transformers"
        )
        name = f"growth of a token's cost to {self.long} tokens, in that of the target alone"
        return Ratio(name=name, value=mine / alone, bound=1.0, at_least=False, detail=detail)

    def memory(self) -> Iterator[Ratio]:
        """Bytes at the peak of getting ready and answering, without the weights as loaded, keys and values."""
        if self.models.unused is None:
            return
        self.models.rounds(self.short, Sampling(temperature=1.0))
        peak = memory.peak()
        if peak is not None:
            held = self.models.cache_bytes(self.short + self.models.tokens)
            step = self.models.step
            weights = step.nbytes if isinstance(step, LeanLlama) else 0
            mb = (peak - self.models.unused - held - weights) / 2**20
            copied = f", the drafter's copy but for its {weights / 2**20:.0f} MB of weights" if weights else ""
            detail = (
                f"counted from models and tokenizers on: building the table{copied}, answering; a vocabulary of "
                f"{self.models.target.vocab_size}, {self.short + self.models.tokens} tokens of text"
            )
            yield Ratio(name="MB beside weights and cache", value=mb, bound=150.0, at_least=False, detail=detail)


def _medians(actions: Sequence[Callable[[], object]], laps: int = PROBES) -> list[float]:
    """Median seconds of each action; they take turns, and the first lap does not count."""
    taken: list[list[float]] = [[] for _ in actions]
    for lap in range(laps + 1):
        for action, times in zip(actions, taken, strict=True):
            began = time.perf_counter()
            action()
            if lap:
                times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in taken]
