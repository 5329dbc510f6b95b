"""`python -m experiments.vllm`: drafting inside vLLM, beside vLLM alone and with its own ways to draft.

It runs in an environment with vLLM, made by `make vllm`.  The engines take turns, and their batches stay full.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from rich.console import Console

from experiments.results import Results, Row
from experiments.runner import Experiment, Size, shown
from experiments.tasks import texts_of
from omnidraft import zoo
from omnidraft.cli import flags
from omnidraft.models.loading import load_model
from omnidraft.models.safetensors_files import in_8_bits

BASELINE, OURS, SHARED = "vllm", "omnidraft", "shared vocabulary"
METHODS = (BASELINE, "n-gram", SHARED, OURS)
BATCHES = (1, 4, 8)
LAPS = 2  # over the prompts, in turns
MEMORY_GB = 1  # of an engine's KV cache
CONTEXT = 1024
COUNTERS = ("num_draft_tokens", "num_accepted_tokens")
COLUMNS = (
    *("target", "dtype", "method", "batch", "speedup", "tokens_per_s", "acceptance_rate", "tokens_per_step"),
    *("draft_tokens", "identical", "prompts"),
)


@dataclass(frozen=True)
class Run:
    """What one engine made of a list of prompts."""

    seconds: float
    answers: list[list[int]]
    proposed: int
    accepted: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))


def plain(drafter: str, folder: Path) -> Path:
    """A drafter's folder, or one made in `folder` where its weights are in 8 bits: vLLM reads no such files."""
    source = Path(zoo.resolve(drafter))
    if not in_8_bits(source):
        return source
    loaded = load_model(source, "float32", "cpu")
    loaded.lm.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def speculation(method: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The `speculative_config` of a method."""
    count = {"num_speculative_tokens": options.length}
    if method == "n-gram":
        return {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2, **count}
    if method == SHARED:
        return {"method": "draft_model", "model": str(options.plain), "use_heterogeneous_vocab": True} | count
    return {"method": "custom_class", "model": "omnidraft.vllm.Proposer", **count} if method == OURS else None


class Lane:
    """vLLM with one way to draft."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        vllm = import_module("vllm")
        self._parameters = vllm.SamplingParams(temperature=0.0, max_tokens=options.new_tokens)
        self._lm = vllm.LLM(
            str(options.target),
            dtype=options.dtype,
            max_model_len=CONTEXT,
            max_num_seqs=max(BATCHES),
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=speculation(method, options),
            additional_config={"omnidraft": {"drafter": options.drafter}},
        )
        # a later engine takes these names over; the counters of this one go on counting
        named = import_module("prometheus_client").REGISTRY._names_to_collectors  # noqa: SLF001  the only way
        self._counters = {name: named.get(f"vllm:spec_decode_{name}") for name in COUNTERS}

    def answer(self, prompts: Sequence[str], batch: int) -> Run:
        """The answers to prompts, of which `batch` are answered at a time: another one begins where one ends."""
        engine, tokenizer = self._lm.llm_engine, self._lm.get_tokenizer()
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            for text in prompts
        ]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        answers: dict[int, list[int]] = {}
        before, began = self._counts(), time.perf_counter()
        asked = 0
        while len(answers) < len(ids):
            while asked < len(ids) and asked - len(answers) < batch:
                engine.add_request(f"{began}-{asked}", {"prompt_token_ids": ids[asked]}, self._parameters)
                asked += 1
            for output in engine.step():
                if output.finished:
                    answers[int(output.request_id.rsplit("-", 1)[1])] = list(output.outputs[0].token_ids)
        seconds, after = time.perf_counter() - began, self._counts()
        counts = (after[name] - before[name] for name in COUNTERS)
        return Run(seconds, [answers[at] for at in range(len(ids))], *counts)

    def _counts(self) -> Mapping[str, int]:
        return {name: _total(counter) for name, counter in self._counters.items()}


def _total(counter: Any) -> int:
    """The value of a counter of Prometheus, over all labels; 0 without one."""
    samples = [sample for metric in counter.collect() for sample in metric.samples] if counter is not None else []
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))


def row_of(method: str, batch: int, runs: Sequence[Run], base: Sequence[Run], options: argparse.Namespace) -> Row:
    """The figures of a method for a batch, `base` those of vLLM alone."""
    tokens, proposed, accepted = (
        sum(getattr(each, name) for each in runs) for name in ("tokens", "proposed", "accepted")
    )
    speed = [sum(each.tokens for each in some) / sum(each.seconds for each in some) for some in (runs, base)]
    pairs = [
        pair for mine, theirs in zip(runs, base, strict=True) for pair in zip(mine.answers, theirs.answers, strict=True)
    ]
    return {
        "target": shown(str(options.target)),
        "dtype": options.dtype,
        "method": method,
        "batch": batch,
        "speedup": speed[0] / speed[1],
        "tokens_per_s": speed[0],
        "acceptance_rate": accepted / proposed if proposed else None,
        "tokens_per_step": tokens / (tokens - accepted),
        "draft_tokens": proposed,
        "identical": sum(mine == theirs for mine, theirs in pairs),
        "prompts": len(pairs),
    }


class Vllm(Experiment):
    """Drafting inside vLLM."""

    name = "vllm"
    about = "Drafting inside vLLM, beside vLLM alone and with its own ways to draft."
    examples = ("--target FOLDER --quick", "--target FOLDER --dtype bfloat16 --data DIR --out results/vllm")
    sizes: ClassVar = {
        "batch": Size(BATCHES, BATCHES[:1], "requests at a time, repeatable"),
        "prompts": Size(16, 2, "prompts"),
        "length": Size(4, 4, "draft tokens at most"),
        "new_tokens": Size(64, 64, "maximum tokens of an answer"),
    }
    title, columns, first, places = "Inside vLLM", COLUMNS, "batch", 3

    def add_options(self, to: flags.CommandParser) -> None:
        to.add_argument("--target", required=True, type=Path, metavar="FOLDER", help="of a chat model")
        about = "a folder or zoo:NAME (default: %(default)s)"
        to.add_argument("--drafter", default="zoo:general", metavar="MODEL", help=about)
        to.add_argument("--dtype", default="float32", metavar="NAME", help="of vLLM (default: %(default)s)")
        to.add_argument(
            "--data", type=Path, metavar="DIR", help="the folder of the tasks (default: instructions alone)"
        )
        to.add_argument("--method", action="append", choices=METHODS[1:], help="beside vLLM alone (default: all)")

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        """Measure all methods in turns."""
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(MEMORY_GB))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        tasks = ("instructions", "gsm8k", "code") if options.data is not None else ("instructions",)
        texts = [text for name in tasks for text in texts_of(name, options.data, options.prompts)][: options.prompts]
        methods = (BASELINE, *(options.method or METHODS[1:]))
        engines = {}
        with TemporaryDirectory() as folder:
            options.plain = plain(options.drafter, Path(folder))
            for method in methods:
                console.print(f"starting {method}")
                engines[method] = Lane(method, options)
                engines[method].answer(texts[:1], 1)  # what is compiled at first
        for batch in options.batch:
            runs: dict[str, list[Run]] = {method: [] for method in methods}
            for _ in range(LAPS):
                for method, engine in engines.items():
                    runs[method].append(engine.answer(texts, batch))
            for method in methods:
                row = row_of(method, batch, runs[method], runs[BASELINE], options)
                results.add("rows", f"{row['target']}|{options.dtype}|{method}|{batch}", row)
            console.print(f"batch {batch} is done")

    def wrong(self, results: Results) -> bool:
        """Whether a greedy answer in float32 is not that of vLLM alone."""
        rows = results.of("rows").values()
        return any(row["dtype"] == "float32" and row["identical"] < row["prompts"] for row in rows)


main = Vllm().main

if __name__ == "__main__":
    sys.exit(main())
