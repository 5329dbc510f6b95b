"""`python -m experiments.device`: what a person with a CPU would run in our place, beside ours, on one GGUF file.

`generate` of transformers, our loop with weights of 8 bits, and llama.cpp answer each prompt in turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from rich.console import Console

from experiments import llama
from experiments.apart import Apart
from experiments.judging import CONTEXT, SEVERAL, judged_texts, quality, resident_mb, step_costs
from experiments.results import Results, Row, page_of, table
from experiments.runner import Experiment, Size, shown
from experiments.tasks import texts_of
from omnidraft.api import OmniDraft, load
from omnidraft.bench import methods
from omnidraft.bench.compare import Question, questions_of
from omnidraft.bench.interleaved import PLAIN, LaneMethod, Timed, interleave, lane_for
from omnidraft.bench.output import down
from omnidraft.bench.records import BASELINE
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.stats import Stats
from omnidraft.errors import InputError
from omnidraft.models.gguf.config import is_gguf
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import choose_dtype, load_skeleton
from omnidraft.verification.round import Round

OURS, DRAFTED, BY_MODEL = "8 bits", "8 bits, drafted", "8 bits, model"
SAMPLED, SAMPLED_DRAFTED = "8 bits, sampled", "8 bits, drafted, sampled"  # at temperature 1
LLAMA, LLAMA_8, LOOKUP = "llama.cpp", "llama.cpp Q8_0", "llama.cpp, lookup"
# ways that draft, and the same model without; sampled answers of both are equal, as a seed says which tokens are drawn
ALONE = {DRAFTED: OURS, BY_MODEL: OURS, SAMPLED_DRAFTED: SAMPLED, LOOKUP: LLAMA}
OF_OURS = {  # the drafts and the temperature of each of our ways; there is one copy of the weights
    OURS: (PLAIN, 0.0),
    DRAFTED: (Drafting(), 0.0),
    BY_MODEL: (Drafting(reuse_answers="nothing"), 0.0),
    SAMPLED: (PLAIN, 1.0),
    SAMPLED_DRAFTED: (Drafting(), 1.0),
}
METHODS = (BASELINE, *OF_OURS, *(OF_LLAMA := (LLAMA, LOOKUP, LLAMA_8)))
ABSENT = f"llama.cpp is left out, as it is not installed: {llama.EXTRA}"
KINDS = ("chat", "code", "everyday")
COLUMNS = (
    *("target", "method", "precision", "threads", "tokens_per_s", "deviation", *KINDS, "step_ms", "verify5"),
    *("perplexity", "agreement", "identical", "answers", "loaded_mb"),
)
DIGITS = {"perplexity": 3, "agreement": 4, "deviation": 3, "loaded_mb": 0}  # of others two
NEAREST = ("deviation", "step_ms", "verify5", "perplexity", "loaded_mb")
ROUNDS = (  # columns of the second table: all but the first round of each answer, which reads the prompt
    *("target", "method", "tokens_per_pass", *KINDS, "drafts", "without_draft", "draft_ms", "verify_ms", "rest_ms"),
)
ABOUT_ROUNDS = "Rounds after the first: tokens a pass, also by kind; drafts, the share of rounds without any, and ms.\n"
COUNTED = ("tokens", "rounds", "drafted", "rounds_without_draft", "draft_s", "verify_s", "overhead_s", "policy_s")
T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """A model in memory: its precision, and by how much the process grew; None for one of another process."""

    lm: LanguageModel | None
    precision: str | None
    loaded_mb: float


class Contest:
    """One target in every form, and the ways of decoding that share these."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options, self.path = options, Path(options.target)
        skeleton: Any = load_skeleton(self.path)
        name, _ = choose_dtype(torch.device("cpu"), skeleton.config.dtype, skeleton.num_parameters())
        self.models: dict[str, Loaded] = {}

        def ours(drafter: str | None, dtype: str) -> OmniDraft:
            return load(self.path, drafter, dtype=dtype, device="cpu", profile=None, warn=console.print)

        plain = self._grown(BASELINE, name, lambda: ours(None, name))
        alone = self._grown(OURS, "int8", lambda: ours(None, "int8"))  # kept until all are loaded, not to be reused
        drafted = self._grown(DRAFTED, "int8", lambda: ours(options.drafter, "int8"))
        self.models |= {
            name: self.models[DRAFTED if drafting.longest else OURS] for name, (drafting, _) in OF_OURS.items()
        }
        self.models[OURS] = replace(self.models[OURS], lm=drafted.target.lm)
        self.questions = questions_of(plain, self._prompts(), options.new_tokens, console)
        self.texts = judged_texts(plain, options.data, options.texts)
        self.ways, _ = methods.make((BASELINE,), plain, 0, Sampling())
        for name, (drafting, temperature) in OF_OURS.items():
            self.ways.append(LaneMethod(name, lane_for(drafted, drafting), Sampling(temperature=temperature)))
        asked = (len(each.ids) + options.new_tokens for each in self.questions)
        room = max(CONTEXT + SEVERAL, *asked, *(len(text.ids) for text in self.texts))
        if llama.llama_module() is not None:
            self._add_llama(sorted(plain.lane.eos), room)
        for name in options.also:
            other = Apart(name, self.path, room, options.threads)
            precision = self.models[LLAMA].precision if LLAMA in self.models else None
            self.models[name] = Loaded(None, precision, other.loaded_mb)
            self.ways.append(other)
        del alone

    def _prompts(self) -> dict[str, list[str]]:
        """Prompts of each kind: instructions and problems of GSM8K, tasks of MBPP and HumanEval, and daily use."""
        count, data = self.options.prompts, self.options.data
        both = zip(*(texts_of(name, data, count) for name in ("instructions", "gsm8k")), strict=False)
        chat = list(itertools.chain.from_iterable(both))[:count]
        everyday = texts_of("everyday", data, self.options.everyday)
        return dict(zip(KINDS, (chat, texts_of("code", data, count), everyday), strict=True))

    def _add_llama(self, eos: list[int], room: int) -> None:
        threads = self.options.threads
        for name, path in ((LLAMA, self.path), (LLAMA_8, llama.requantized(self.path, threads))):
            model = self._grown(name, "", partial(llama.LlamaModel, path, room, threads))
            self.models[name] = replace(self.models[name], precision=model.precision)
            self.ways.append(llama.LlamaMethod(name, model, eos))
            if name == LLAMA:
                self.models[LOOKUP] = self.models[name]
                self.ways.append(llama.LlamaMethod(LOOKUP, model, eos, llama.lookup()))

    def _grown(self, name: str, precision: str, made: Callable[[], T]) -> T:
        """Load a model; the weights of a mapped file are in memory after the first pass."""
        before = resident_mb()
        model = made()
        lm: Any = model.target.lm if isinstance(model, OmniDraft) else model
        lm.new_sequence().forward([0, 1], 1)
        self.models[name] = Loaded(lm, precision, resident_mb() - before)
        return model

    def turns(self, done: Mapping[str, Row], step: Callable[[], None]) -> Iterator[tuple[str, Row]]:
        """A row for each repeat of each prompt that is not done: tokens and seconds of each way, and same answers."""
        new_tokens = self.options.new_tokens
        interleave(self.ways, self.questions[0].ids, new_tokens, chunk=new_tokens)  # warms up
        for repeat in range(self.options.repeats):
            for way in self.ways:
                way.restart()
            for place, question in enumerate(self.questions):
                key, turn = f"{repeat}|{question.task}|{question.number}", repeat * len(self.questions) + place
                if key not in done:
                    yield key, self._turn(question, turn) | {"repeat": repeat, "task": question.task}
                step()

    def _turn(self, question: Question, turn: int) -> Row:
        """Tokens, seconds and rounds of each way, and for those that draft whether the answer is that without them."""
        new_tokens = self.options.new_tokens
        answers = interleave(self.ways, question.ids, new_tokens, 0, turn, new_tokens)
        timed: dict[str, Timed] = {way.name: each for way, each in zip(self.ways, answers, strict=True)}
        said = {name: each.answer.tokens for name, each in timed.items()}
        return {
            "tokens": {name: len(tokens) for name, tokens in said.items()},
            "seconds": {name: each.seconds for name, each in timed.items()},
            "same": {name: said[name] == said[alone] for name, alone in ALONE.items() if name in said},
            "rounds": {name: _counts(rounds[1:]) for name, each in timed.items() if (rounds := each.answer.rounds)},
        }

    def figures(self) -> dict[str, Row]:
        """What each model takes, costs and loses; ways that draft have the memory alone."""
        forms = ((name, each.lm) for name, each in self.models.items() if name not in {*ALONE, SAMPLED})
        own = {name: lm.new_sequence() for name, lm in forms if lm is not None}
        timed, judged = step_costs(own, self.texts[0].ids, self.options.passes), quality(own, self.texts)
        return {
            name: {"precision": each.precision, "loaded_mb": each.loaded_mb, "threads": self.options.threads}
            | (timed.get(name, {}) | judged.get(name, {}))
            for name, each in self.models.items()
        }


def rest(rows: Mapping[str, Row], target: str) -> dict[str, Row]:
    """The rows of a target, by the rest of their keys."""
    return {key.removeprefix(f"{target}|"): row for key, row in rows.items() if key.startswith(f"{target}|")}


def rows_of(results: Results) -> list[Row]:
    """A row for each target and method: its model's figures, and speed over all answers of a repeat, the median."""
    made = []
    for target in dict.fromkeys(key.partition("|")[0] for key in results.of("models")):
        turns, models = list(rest(results.of("turns"), target).values()), rest(results.of("models"), target)
        for method, model in sorted(models.items(), key=lambda each: (*METHODS, each[0]).index(each[0])):
            speeds = _speeds(turns, method)
            same = [turn["same"][method] for turn in turns if method in turn["same"]]
            made.append(
                {name: model.get(name) for name in COLUMNS}
                | {"target": target, "method": method, "tokens_per_s": statistics.median(speeds)}
                | {"deviation": statistics.stdev(speeds) if len(speeds) > 1 else None}
                | {kind: statistics.median(_speeds(its, method)) for kind, its in _by_kind(turns).items()}
                | {"identical": sum(same) if same else None, "answers": len(turns)}
            )
    return made


def rounds_of(results: Results) -> list[Row]:
    """A row for each target and way of ours: tokens a pass, by kind too, and how the time of a round was spent."""
    made = []
    for target in dict.fromkeys(key.partition("|")[0] for key in results.of("models")):
        turns = list(rest(results.of("turns"), target).values())
        for method in OF_OURS:
            several = [turn for turn in turns if turn.get("rounds", {}).get(method, {}).get("rounds")]
            if not several:
                continue
            total = _total(several, method)
            per_pass = {kind: _total(its, method)["tokens"] for kind, its in _by_kind(several).items()}
            made.append(
                {"target": target, "method": method, "tokens_per_pass": total["tokens"]}
                | per_pass
                | {"drafts": total["drafted"], "without_draft": total["rounds_without_draft"]}
                | {"draft_ms": 1e3 * total["draft_s"], "verify_ms": 1e3 * total["verify_s"]}
                | {"rest_ms": 1e3 * (total["overhead_s"] + total["policy_s"])}
            )
    return made


def _by_kind(turns: Sequence[Row]) -> dict[str, list[Row]]:
    """The turns of each kind of prompts that there is."""
    return {kind: its for kind in KINDS if (its := [turn for turn in turns if turn["task"] == kind])}


def _total(turns: Sequence[Row], method: str) -> dict[str, float]:
    """Each count of a way over all its rounds, a round."""
    rounds = sum(turn["rounds"][method]["rounds"] for turn in turns)
    return {name: sum(turn["rounds"][method][name] for turn in turns) / rounds for name in COUNTED}


def _counts(rounds: Sequence[Round]) -> Row:
    stats = Stats.of(rounds)
    return {name: getattr(stats, name) for name in COUNTED}


def _speeds(turns: Sequence[Row], method: str) -> list[float]:
    """Tokens a second of each repeat."""
    parts: dict[int, list[Row]] = defaultdict(list)
    for turn in turns:
        parts[turn["repeat"]].append(turn)
    return [sum(t["tokens"][method] for t in part) / sum(t["seconds"][method] for t in part) for part in parts.values()]


def summary(rows: Sequence[Row]) -> str:
    """Ours with drafts over each of the others, in a line."""
    said = []
    for target in dict.fromkeys(row["target"] for row in rows):
        speed = {row["method"]: row["tokens_per_s"] for row in rows if row["target"] == target}
        others = [f"{down(speed[DRAFTED] / each, 2)}x {n}" for n, each in speed.items() if n not in {*ALONE, *OF_OURS}]
        said.append(f"{target}: {DRAFTED} {down(speed[DRAFTED], 1)} tokens/s, {', '.join(others)}")
    return "; ".join(said)


class Device(Experiment):
    """One GGUF file on this CPU, by all that runs it."""

    name = "device"
    about = "What runs a GGUF file on this CPU, and how fast: generate of transformers, ours, llama.cpp."
    examples = (
        "--target MODEL.gguf --threads 2 --data DIR --quick",
        "--target MODEL.gguf --threads 2 --data DIR --out results/device",
    )
    sizes: ClassVar = {
        "prompts": Size(6, 2, "prompts of a kind, chat and code"),
        "everyday": Size(48, 2, "prompts of daily use"),
        "new_tokens": Size(128, 48, "maximum tokens of an answer"),
        "repeats": Size(3, 1, "times that every prompt is answered"),
        "passes": Size(30, 6, "timed passes of a model"),
        "texts": Size(40, 4, "texts that are judged"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        to.add_argument("--target", required=True, metavar="FILE", help="a GGUF file")
        flags.add(to, "--drafter")
        to.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
        about = "another library that runs the file, such as ik_llama_cpp:IkLlama; repeatable"
        to.add_argument("--also", action="append", default=[], metavar="MODULE:CLASS", help=about)

    def setting(self, options: argparse.Namespace) -> Row:
        if not is_gguf(options.target):
            raise InputError(
                f"target {options.target!r} is no GGUF file, which llama.cpp needs: give --target FILE.gguf"
            )
        found = [name for name in METHODS if llama.llama_module() is not None or name not in OF_LLAMA]
        more = {"threads": options.threads, "methods": [*found, *options.also]}
        return {"drafter": shown(str(options.drafter))} | more

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        """Answers, each written at once, then passes and quality."""
        if llama.llama_module() is None:
            console.print(ABSENT)
        target = shown(options.target)
        if f"{target}|done" in results.of("done"):
            return
        contest = Contest(options, console)
        step = progress(console, f"{target}, answers", options.repeats * len(contest.questions))
        for key, row in contest.turns(rest(results.of("turns"), target), step):
            results.add("turns", f"{target}|{key}", row)
        for name, row in contest.figures().items():
            results.add("models", f"{target}|{name}", row)
        results.add("done", f"{target}|done", {})

    def page(self, results: Results) -> str:
        rows = rows_of(results)
        absent = "" if any(row["method"] in OF_LLAMA for row in rows) else f"{ABSENT}\n"
        columns = [name for name in COLUMNS if name not in KINDS or any(row.get(name) is not None for row in rows)]
        made = table(rows, columns, "threads", digits=DIGITS, nearest=NEAREST)
        rounds = rounds_of(results)  # of earlier results there is none
        spent = (ABOUT_ROUNDS, table(rounds, ROUNDS, "tokens_per_pass", nearest=ROUNDS)) if rounds else ()
        return page_of("On this device", results, made, absent, *spent, f"{summary(rows)}\n")

    def wrong(self, results: Results) -> bool:
        drafted = (row for row in rows_of(results) if row["method"] in OF_OURS and row["method"] in ALONE)
        return any(row["identical"] < row["answers"] for row in drafted)


main = Device().main

if __name__ == "__main__":
    sys.exit(main())
