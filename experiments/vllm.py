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
from typing import Any

from rich.console import Console

from experiments.command import parser, run
from experiments.real import shown, texts_of
from experiments.results import Results, Row, page_of
from experiments.tasks import PROMPTS
from omnidraft import zoo
from omnidraft.bench.environment import command
from omnidraft.bench.output import writing
from omnidraft.bench.prompts import read
from omnidraft.cli import flags
from omnidraft.models.loading import load_model
from omnidraft.models.tensors import in_8_bits

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
        return {
            "method": "draft_model",
            "model": str(options.plain),
            "use_heterogeneous_vocab": True,
        } | count
    return {"method": "custom_class", "model": "omnidraft.vllm.Proposer", **count} if method == OURS else None


class Engine:
    """vLLM with one way to draft."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        vllm = import_module("vllm")
        self._parameters = vllm.SamplingParams(temperature=options.temperature, seed=0, max_tokens=options.new_tokens)
        self._lm = vllm.LLM(
            str(options.target),
            dtype=options.dtype,
            max_model_len=CONTEXT,
            max_num_seqs=max(BATCHES),
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=speculation(method, options),
            additional_config={"omnidraft": {"drafter": options.drafter, "draft_length": options.draft_length}},
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
        "identical": sum(mine == theirs for mine, theirs in pairs) if options.temperature == 0 else None,
        "prompts": len(pairs),
    }


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure all methods in turns; 1 where a greedy answer in float32 is not that of vLLM alone."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(MEMORY_GB))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    batches = options.batch or list(BATCHES[:1] if options.quick else BATCHES)
    count = options.prompts or (2 if options.quick else 16)
    texts = list(read(PROMPTS / "instructions.jsonl", None, count))
    if options.data is not None:
        texts = [text for name in ("instructions", "gsm8k", "code") for text in texts_of(name, options.data, count)][
            :count
        ]
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "vllm")
    results.begin(command(options.words), {"length": options.length, "new_tokens": options.new_tokens})
    methods = (BASELINE, *(options.method or METHODS[1:]))
    engines = {}
    with TemporaryDirectory() as folder:
        options.plain = plain(options.drafter, Path(folder))
        for method in methods:
            console.print(f"starting {method}")
            engines[method] = Engine(method, options)
            engines[method].answer(texts[:1], 1)  # what is compiled at first
    for batch in batches:
        runs: dict[str, list[Run]] = {method: [] for method in methods}
        for _ in range(LAPS):
            for method, engine in engines.items():
                runs[method].append(engine.answer(texts, batch))
        for method in methods:
            row = row_of(method, batch, runs[method], runs[BASELINE], options)
            results.add("rows", f"{row['target']}|{options.dtype}|{method}|{batch}|{options.temperature:g}", row)
        console.print(f"batch {batch} is done")
    page = page_of("Inside vLLM", results, COLUMNS, "batch", 3)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    rows = results.of("rows").values()
    return int(any(row["dtype"] == "float32" and (row["identical"] or 0) < row["prompts"] for row in rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare ways to draft inside vLLM, and return the exit code."""
    made = parser(
        "vllm",
        "Drafting inside vLLM, beside vLLM alone and with its own ways to draft.",
        "--target FOLDER --quick",
        "--target FOLDER --dtype bfloat16 --data DIR --out results/vllm",
    )
    made.add_argument("--target", required=True, type=Path, metavar="FOLDER", help="of a chat model")
    made.add_argument(
        "--drafter", default="zoo:general", metavar="MODEL", help="a folder or zoo:NAME (default: %(default)s)"
    )
    made.add_argument("--dtype", default="float32", metavar="NAME", help="of vLLM (default: %(default)s)")
    made.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: instructions alone)")
    made.add_argument("--method", action="append", choices=METHODS[1:], help="beside vLLM alone (default: all)")
    made.add_argument("--batch", action="append", type=flags.at_least(1), metavar="N", help="(default: 1, 4, 8)")
    made.add_argument(
        "--length", type=flags.at_least(1), default=4, metavar="N", help="draft tokens at most (default: 4)"
    )
    made.add_argument(
        "--draft-length", default="goodput", type=flags.number, metavar="NAME|N", help="of ours (default: goodput)"
    )
    made.add_argument("--temperature", type=float, default=0.0, metavar="X", help="of sampling (default: 0)")
    made.add_argument("--prompts", type=flags.at_least(1), metavar="N", help="(default: 16, 2 with --quick)")
    made.add_argument(
        "--new-tokens", type=flags.at_least(1), default=64, metavar="N", help="of an answer (default: 64)"
    )
    made.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl and STEM.md")
    return run(made, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
