"""`python -m experiments.real`: speed with real models on everyday prompts, frozen and after learning from a stream.

`generate` of transformers, alone and with the same drafter (UAD), and our own loop answer each prompt in turns.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from experiments import tasks
from experiments.command import parser, run
from experiments.results import Results, Row
from experiments.study import chosen
from omnidraft.api import OmniDraft, load
from omnidraft.bench import methods, prompts, records, report
from omnidraft.bench.compare import Plan, Question, questions_of, race, run_of
from omnidraft.bench.environment import command
from omnidraft.bench.interleaved import EngineWay, Timed, Way, engine_for, take_turns
from omnidraft.bench.output import down, markdown_table, progress, writing
from omnidraft.bench.records import BASELINE
from omnidraft.cli import flags
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.errors import ConfigError

TASKS = ("instructions", "summaries", "slow", "gsm8k", "code")
STREAMS = ("gsm8k", "code")  # the tasks that have other prompts to learn from
TEMPERATURES = (0.0, 1.0)
BASE_EVERY = 5  # in a stream, prompts that the baseline answers, too
LAST = 4  # the last quarter of a stream has a row of its own
FROZEN, LEARNED, LEARNING = "frozen", "learned", "learning"
COLUMNS = (
    *("target", "task", "temperature", "method", "speedup", "tokens_per_s", "acceptance_rate", "block_efficiency"),
    *("identical", "prompts", "logit_gap"),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Prompts of a task, tokens of an answer, and prompts of a stream (0: nothing is learned)."""

    prompts: int
    new_tokens: int
    stream: int


FULL = Sizes(prompts=20, new_tokens=128, stream=300)
QUICK = Sizes(prompts=2, new_tokens=32, stream=0)


def texts_of(task: str, data: Path | None, count: int) -> list[str]:
    """The first prompts of a task: those of `code` are of MBPP's test split and HumanEval, in turns."""
    if task == "code":
        both = zip(*(prompts.read(part, data, count) for part in ("mbpp", "humaneval")), strict=False)
        return list(itertools.chain.from_iterable(both))[:count]
    return prompts.read(task if task in prompts.TASKS else tasks.PROMPTS / f"{task}.jsonl", data, count)


def stream_of(task: str, data: Path | None, count: int) -> list[str]:
    """The first prompts of those that a task is learned from, none of which is among its tests."""
    found = tasks.mbpp_training(data) if task == "code" else tasks.parts(task, data, unseen=True)[0]
    return found[:count]


class LearningWay(EngineWay):
    """Drafting with what a model learned, n-grams included; where it learns, an answer's time has the learning in it.

    The trainer in the background stands still but for the time in which it is waited for.
    """

    def __init__(self, name: str, model: OmniDraft, sampling: Sampling) -> None:
        super().__init__(name, model.engine, sampling)
        if model.side is None:
            raise ConfigError("there is no drafter that could learn: give --drafter")
        self._side, self._answers, self._whole = model.side, 0, 0

    def restart(self) -> None:
        """What was learned is kept."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        self._side.adaptation.shared.slot.pause()
        self._side.adaptation.load_weights()
        super().begin(ids, new_tokens, seed)
        self._whole = new_tokens

    def advance(self, length: int) -> bool:
        more = super().advance(length)
        if not more or length >= self._whole:
            self._side.autosave.teach(self._done)
            self._answers += 1
            if self._answers % self._side.autosave.learning.interval == 0:
                self._side.adaptation.flush()
        return more


class Measurement:
    """One target with its drafter: the cells, each a task at a temperature, and the streams."""

    study = "real"
    tasks: tuple[str, ...] = TASKS
    streams: tuple[str, ...] = STREAMS

    def __init__(self, options: argparse.Namespace, target: str, sizes: Sizes, console: Console) -> None:
        self.options, self.target, self.sizes, self.console = options, target, sizes, console
        self.model = self.load(profile=None)
        self.dtype = self.model.target.lm.precision
        self._exact = self.model.target.lm.new_sequence()
        self._frozen: dict[str, Engine] = {}

    @staticmethod
    def texts(task: str, data: Path | None, count: int) -> Sequence[str | Sequence[str]]:
        """The first prompts of a task, of a conversation all its turns."""
        return texts_of(task, data, count)

    @staticmethod
    def summary(rows: Sequence[Row]) -> str:
        """The geometric means of speedups, in a line."""
        return summary(rows)

    def load(self, **options: Any) -> OmniDraft:
        """The target with the drafter."""
        places = {"dtype": self.options.dtype, "device": self.options.device, "warn": self.console.print}
        return load(self.target, self.options.drafter, **places, **options)

    def cell(self, task: str, temperature: float, learned: OmniDraft | None) -> list[Row]:
        """The rows of all methods on a task at a temperature."""
        sampling = Sampling(temperature=temperature)
        questions = self.questions(task)
        ways, left_out = self.ways(task, sampling, learned)
        results = self._results(task)
        for name, reason in left_out.items():
            results.drop(name, reason)
        gaps: dict[str, list[float]] = defaultdict(list)

        def watch(question: Question, answers: Sequence[Timed]) -> None:
            said = [each.answer.tokens for each in answers]
            for way, tokens in zip(ways, said, strict=True):
                if temperature == 0 and tokens != said[0]:
                    gaps[way.name].append(self._gap(question.ids, said[0], tokens))

        plan = Plan(new_tokens=self.sizes.new_tokens, repeats=1, sampled=not sampling.greedy)
        step = progress(self.console, f"{shown(self.target)}, {task}, temperature {temperature:g}", len(questions))
        race(ways, questions, plan, results, step, watch)
        return self._rows(results, temperature, gaps)

    def questions(self, task: str) -> list[Question]:
        """The prompts of a task, as token ids."""
        texts = list(texts_of(task, self.options.data, self.sizes.prompts))
        return questions_of(self.model, {task: texts}, self.sizes.new_tokens, self.console)

    def ways(self, task: str, sampling: Sampling, learned: OmniDraft | None) -> tuple[list[Way], dict[str, str]]:
        """What is compared on a task, and why the rest is left out."""
        ways, left_out = methods.make((BASELINE, "uad"), self.model, 0, sampling)
        ways.append(EngineWay(FROZEN, self._engine(task), sampling))
        if learned is not None:
            ways.append(LearningWay(LEARNED, learned, sampling))
        return ways, left_out

    def stream(self, task: str, profile: Path) -> list[Row]:
        """Learn from the answers to a stream of prompts into a profile; rows of the stream, and of its last part."""
        profile.unlink(missing_ok=True)  # of a stream that was cut off
        texts = stream_of(task, self.options.data, self.sizes.stream)
        with self.load(profile=profile, adapt="background") as model:
            questions = questions_of(model, {task: texts}, self.sizes.new_tokens, self.console)
            (base,), _ = methods.make((BASELINE,), self.model, 0, Sampling())
            ways: list[Way] = [base, LearningWay(LEARNING, model, Sampling())]  # the last run is of that
            warm = [base, EngineWay(FROZEN, self._engine(task), Sampling())]
            whole = self.sizes.new_tokens  # at once, as the ways use one KV cache
            take_turns(warm, questions[0].ids, whole, chunk=whole)
            runs = []
            step = progress(self.console, f"{shown(self.target)}, stream of {task}", len(questions))
            for number, question in enumerate(questions):
                asked = ways[number % BASE_EVERY != 0 :]
                timed = take_turns(asked, question.ids, whole, number, number, whole)
                runs += [run_of(way, question, each) for way, each in zip(asked, timed, strict=True)]
                step()
            began = time.perf_counter()
            model.close()  # learns from the last answers
            runs[-1] = replace(runs[-1], seconds=runs[-1].seconds + time.perf_counter() - began)
        rows = []
        for name, first in (("stream", 0), ("end of stream", len(questions) - len(questions) // LAST)):
            results = self._results(f"{task}, {name}")
            for each in runs:
                if each.prompt >= first:
                    results.add(replace(each, task=f"{task}, {name}"))
            rows += self._rows(results, 0.0, {})
        return rows

    def _engine(self, task: str) -> Engine:
        """The frozen drafter's engine for a task, whose draft-length policy keeps what it measured there."""
        if task not in self._frozen:
            self._frozen[task] = engine_for(self.model, Drafting())
        return self._frozen[task]

    def _results(self, task: str) -> records.Results:
        return records.Results(setting={"target": shown(self.target), "tasks": {task: {}}})

    def _rows(self, results: records.Results, temperature: float, gaps: Mapping[str, Sequence[float]]) -> list[Row]:
        """The rows of methods; `identical` counts answers that are those of the baseline."""
        rows = []
        for row in (row for row in report.rows([results]) if row["task"] != report.ALL):
            different, method = row["different"], row["method"]
            names = ("target", "task", "method", "speedup", "acceptance_rate", "block_efficiency", "prompts", "tokens")
            rows.append(
                {
                    **{name: row[name] for name in names},
                    "temperature": temperature,
                    "tokens_per_s": row["tokens_per_s_total"],
                    "identical": None if different is None else row["prompts"] - different,
                    "logit_gap": max(gaps.get(method, ()), default=None),
                    "learned": method in (LEARNED, LEARNING),
                    "dtype": self.dtype,
                    "drafter": self.model.drafter and self.model.drafter.name,
                    "unavailable": row["unavailable"],
                }
            )
        return rows

    def _gap(self, ids: list[int], expected: list[int], found: list[int]) -> float:
        """The distance of the target's logits of the first two tokens that differ: next to none at a tie."""
        pairs = enumerate(zip(expected, found, strict=False))
        place = next((place for place, (one, other) in pairs if one != other), None)
        if place is None:  # one ends before the other
            return math.inf
        self._exact.crop(0)
        logits = self._exact.forward([*ids, *expected[:place]], 1)[0].float()
        return abs(float(logits[expected[place]] - logits[found[place]]))


def shown(target: str) -> str:
    """A target's name without the folders that it lies in."""
    return Path(target).name if Path(target).exists() else target


def summary(rows: Sequence[Row]) -> str:
    """The geometric mean of speedups of each target and method, beside that of the frozen drafter on the same tasks."""
    parts = []
    for target in dict.fromkeys(row["target"] for row in rows):
        speed: dict[str, dict[tuple[str, float], float]] = defaultdict(dict)
        for row in rows:
            if row["target"] == target and row["speedup"]:
                speed[row["method"]][row["task"], row["temperature"]] = row["speedup"]
        said = []
        for name in ("uad", FROZEN, LEARNED):
            same = {cell: speed[FROZEN][cell] for cell in speed.get(name, ())}  # a method may lack some cells
            beside = f" ({FROZEN} on the same {_mean(same)})" if 0 < len(same) < len(speed[FROZEN]) else ""
            said += [f"{name} {_mean(speed[name])}{beside}"] if same else []
        parts.append(f"{target}: {', '.join(said)}")
    return f"geometric-mean speedup over {BASELINE}: {'; '.join(parts)}"


def _mean(speed: Mapping[tuple[str, float], float]) -> str:
    return down(statistics.geometric_mean(speed.values()), 2)


def markdown(results: Results, rows: Sequence[Row], said: str) -> str:
    """The commands, a table of all rows, and the summary."""
    commands = "".join(f"    {each}\n" for each in dict.fromkeys(setting["command"] for setting in results.settings))
    cells = [[down(row[c], 3) if isinstance(row[c], float) else row[c] for c in COLUMNS] for row in rows]
    lines = [["–" if cell is None else cell for cell in line] for line in cells]
    return f"# Real models\n\n{commands}\n{markdown_table(COLUMNS, lines, COLUMNS.index('speedup'))}\n{said}\n"


def measure(options: argparse.Namespace, console: Console, measurement: type[Measurement] = Measurement) -> int:
    """Measure what the file lacks; 1 where a greedy answer in float32 or int8 was not the target's own."""
    given = {name: value for name in asdict(FULL) if (value := getattr(options, name, None)) is not None}
    sizes = replace(QUICK if options.quick else FULL, **given, **({} if measurement.streams else {"stream": 0}))
    asked = chosen("task", options.task or measurement.tasks, measurement.tasks)
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), measurement.study)
    setting = asdict(sizes) | {"drafter": shown(str(options.drafter)), "dtype": options.dtype}
    if results.settings and (before := results.settings[0]["recipe"]) != setting:
        raise ConfigError(f"--out has results of other settings ({before}): give another place")
    if len(set(map(shown, options.target))) < len(options.target):
        raise ConfigError("two targets have the same name: measure them one by one, each with an --out of its own")
    for task in asked:  # what is missing is known before minutes are spent
        measurement.texts(task, options.data, sizes.prompts)
    results.begin(command(options.words), setting)
    with TemporaryDirectory() as folder:
        kept = Path(folder) if options.out is None else options.out.with_name(options.out.name + "-learned")
        for target in options.target:
            _complete(results, measurement(options, target, sizes, console), asked, kept)
    rows = list(results.of("rows").values())
    page = markdown(results, rows, measurement.summary(rows))
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    greedy = (row for row in rows if row["dtype"] in ("float32", "int8") and row["identical"] is not None)
    return 1 if any(row["identical"] < row["prompts"] for row in greedy) else 0


def _complete(results: Results, one: Measurement, asked: Sequence[str], kept: Path) -> None:
    """Measure a target's cells and streams that the file does not have."""

    def add(rows: Sequence[Row], key: str) -> None:
        for row in rows:
            results.add("rows", f"{key}|{row['task']}|{row['method']}", row)
        results.add("done", key, {})

    for task in asked:
        place, learned = f"{shown(one.target)}|{task}", None
        if one.sizes.stream and task in one.streams:
            profile = kept / f"{shown(one.target).replace('/', '--')}-{task}"
            if f"{place}|stream" not in results.of("done") or not profile.exists():
                kept.mkdir(parents=True, exist_ok=True)
                add(one.stream(task, profile), f"{place}|stream")
            learned = one.load(profile=profile)
        for temperature in TEMPERATURES:
            if (key := f"{place}|{temperature:g}") not in results.of("done"):
                add(one.cell(task, temperature, learned), key)


def options_of(measurement: type[Measurement], about: str) -> flags.CommandParser:
    """The parser of a study of real models."""
    options = parser(
        measurement.study,
        about,
        "--target HuggingFaceTB/SmolLM2-135M-Instruct --data DIR --quick",
        f"--target FOLDER --target MODEL.gguf --drafter FOLDER --data DIR --out results/{measurement.study}",
    )
    flags.add(options, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
    flags.add(options, "--drafter", "--dtype", "--device")
    options.add_argument(
        "--task", action="append", metavar="NAME", help=f"of {', '.join(measurement.tasks)} (default: all)"
    )
    options.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    for name, least, what in (
        ("prompts", 1, "prompts of a task"),
        ("new_tokens", 1, "maximum tokens of an answer"),
        ("stream", 0, "prompts to learn from, 0 for none"),
    )[: 3 if measurement.streams else 2]:
        default = f"{what} (default: {getattr(FULL, name)}, {getattr(QUICK, name)} with --quick)"
        options.add_argument(flags.flag(name), type=flags.at_least(least), metavar="N", help=default)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure real models, and return the exit code."""
    about = "Speed with real models on everyday prompts, frozen and after learning from a stream."
    return run(options_of(Measurement, about), measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
