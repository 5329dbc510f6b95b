"""`python -m experiments.sampled`: tokens per pass of sampled answers, by the way in which drafts are verified.

Every way answers each prompt with each seed; draft length and drafter are the same, and all ways draft from counts of
the text and of their own earlier answers, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import ClassVar

from rich.console import Console

from experiments.results import Results, Row, page_of, table
from experiments.runner import Experiment, Size, shown
from experiments.tasks import texts_of
from omnidraft.api import load
from omnidraft.bench.interleaved import lane_for, sampler
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode

TEMPERATURES = 0.7, 1.0
WAYS = "seeded", "block"
DRAFTS = 4  # draft tokens a round
COLUMNS = ("target", "temperature", "verification", "tokens", "tokens_per_pass", "error")


def answer(lane: Lane, ids: list[int], new_tokens: int, sampling: Sampling, memory: AnswerMemory, seed: int) -> Row:
    """Tokens and passes of an answer, without the first round."""
    seed = memory.seed_of(seed) if lane.drafting.rejection else seed
    rounds = list(decode(lane, ids, new_tokens, sampling, sampler(seed), memory=memory))
    return {"tokens": sum(len(each.emitted) for each in rounds[1:]), "passes": len(rounds) - 1}


class Sampled(Experiment):
    """Ways to verify drafts of sampled answers."""

    name = "sampled"
    about = "Tokens per pass of sampled answers, by the way in which drafts are verified."
    examples = ("--target zoo:target-b --quick", "--target MODEL.gguf --threads 2 --out results/sampled")
    sizes: ClassVar = {
        "prompts": Size(48, 2, "prompts of daily use"),
        "seeds": Size(3, 1, "answers to each"),
        "new_tokens": Size(128, 8, "tokens of an answer, at most"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", "--drafter")

    def setting(self, options: argparse.Namespace) -> Row:
        return {"drafter": shown(str(options.drafter))}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        model = load(options.target, options.drafter, profile=None, warn=console.print)
        prompts = [model.encode_message(text) for text in texts_of("everyday", None, options.prompts)]
        step = progress(console, shown(options.target), len(TEMPERATURES) * len(WAYS) * len(prompts))
        for temperature in TEMPERATURES:
            for way in WAYS:
                lane = lane_for(model, Drafting(draft_length=DRAFTS, verification=way))
                memory = AnswerMemory()
                for number, ids in enumerate(prompts):
                    for seed in range(options.seeds):
                        key = f"{shown(options.target)}|{temperature}|{way}|{number}|{seed}"
                        if key not in results.of("answers"):
                            sampling = Sampling(temperature=temperature)
                            row = answer(lane, ids, options.new_tokens, sampling, memory, seed)
                            where: Row = {
                                "target": shown(options.target),
                                "temperature": temperature,
                                "verification": way,
                            }
                            results.add("answers", key, where | {"prompt": number, "seed": seed} | row)
                    step()

    def page(self, results: Results) -> str:
        ways = defaultdict[tuple[str, ...], list[Row]](list)
        for row in results.of("answers").values():
            ways[row["target"], row["temperature"], row["verification"]].append(row)
        rows: list[Row] = [{**dict(zip(COLUMNS, way, strict=False)), **_sums(answers)} for way, answers in ways.items()]
        about = (
            f"Up to {DRAFTS} draft tokens a round; `seeded` keeps drafts while they are the token that the seed draws, "
            "`block` is rejection sampling. `error` is the standard error over prompts.\n"
        )
        return page_of("Sampled answers", results, about, table(rows, COLUMNS, "tokens", 3, {"tokens": 0}))

    def wrong(self, results: Results) -> bool:  # noqa: ARG002
        return False


def _sums(answers: list[Row]) -> Mapping[str, float]:
    """Tokens, and tokens per pass with its standard error over prompts."""
    prompts = defaultdict[int, list[Row]](list)
    for row in answers:
        prompts[row["prompt"]].append(row)
    tokens, passes = (sum(row[name] for row in answers) for name in ("tokens", "passes"))
    rates = [sum(r["tokens"] for r in rows) / max(1, sum(r["passes"] for r in rows)) for rows in prompts.values()]
    error = statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
    return {"tokens": tokens, "tokens_per_pass": tokens / max(1, passes), "error": error}


main = Sampled().main

if __name__ == "__main__":
    sys.exit(main())
