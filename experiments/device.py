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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from experiments.command import parser, run
from experiments.judging import CONTEXT, SEVERAL, judged_texts, passes, quality, resident_mb
from experiments.real import shown, texts_of
from experiments.results import Results, Row
from experiments.tasks import PROMPTS
from omnidraft.api import OmniDraft, load
from omnidraft.bench import llama, methods, prompts
from omnidraft.bench.compare import Question, questions_of
from omnidraft.bench.environment import command
from omnidraft.bench.interleaved import PLAIN, EngineWay, Way, engine_for, take_turns
from omnidraft.bench.output import down, markdown_table, progress, writing
from omnidraft.bench.records import BASELINE
from omnidraft.cli import flags
from omnidraft.config import Drafting, Sampling
from omnidraft.errors import ConfigError, InputError
from omnidraft.models import gguf
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import choose_dtype, load_skeleton

OURS, DRAFTED, BY_MODEL = "8 bits", "8 bits, drafted", "8 bits, model"
LLAMA, LLAMA_8, LOOKUP = "llama.cpp", "llama.cpp Q8_0", "llama.cpp, lookup"
ALONE = {DRAFTED: OURS, BY_MODEL: OURS, LOOKUP: LLAMA}  # ways that draft, and the same model without
METHODS = (BASELINE, OURS, DRAFTED, BY_MODEL, *(OF_LLAMA := (LLAMA, LOOKUP, LLAMA_8)))
ABSENT = f"llama.cpp is left out, as it is not installed: {llama.EXTRA}"
KINDS = ("chat", "code")
COLUMNS = (
    *("target", "method", "precision", "threads", "tokens_per_s", "deviation", *KINDS, "step_ms", "verify5"),
    *("perplexity", "agreement", "identical", "answers", "loaded_mb"),
)
DIGITS = {"perplexity": 3, "agreement": 4, "deviation": 3, "loaded_mb": 0}  # of others two
MORE_IS_BETTER = ("tokens_per_s", *KINDS, "agreement")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Prompts of a kind, tokens of an answer, times that all is answered, passes timed, texts that are judged."""

    prompts: int
    new_tokens: int
    repeats: int
    passes: int
    texts: int


FULL = Sizes(prompts=6, new_tokens=128, repeats=3, passes=30, texts=40)
QUICK = Sizes(prompts=2, new_tokens=48, repeats=1, passes=6, texts=4)


@dataclass(frozen=True)
class Loaded:
    """A model in memory: its precision, and by how much the process grew."""

    lm: LanguageModel
    precision: str
    loaded_mb: float


def questions(model: OmniDraft, data: Path | None, sizes: Sizes, console: Console) -> list[Question]:
    """Prompts of each kind: of the project, and with `data` those of GSM8K, MBPP and HumanEval."""
    chat = texts_of("instructions", None, sizes.prompts)
    if data is None:
        code = prompts.read(PROMPTS / "code.jsonl", None, sizes.prompts)
    else:
        both = zip(chat, texts_of("gsm8k", data, sizes.prompts), strict=False)
        chat = list(itertools.chain.from_iterable(both))[: sizes.prompts]
        code = texts_of("code", data, sizes.prompts)
    return questions_of(model, dict(zip(KINDS, (chat, code), strict=True)), sizes.new_tokens, console)


class Contest:
    """One target in every form, and the ways of decoding that share these."""

    def __init__(self, options: argparse.Namespace, sizes: Sizes, console: Console) -> None:
        self.path, self.sizes, self.data = Path(options.target), sizes, options.data
        self.threads = torch.get_num_threads()
        skeleton: Any = load_skeleton(self.path)
        name, _ = choose_dtype(torch.device("cpu"), skeleton.config.dtype, skeleton.num_parameters())
        for each in dict.fromkeys((name, "bfloat16")):  # the latter for 8 bits; no part of what is loaded
            gguf.converted(self.path, getattr(torch, each), console.print)
        self.models: dict[str, Loaded] = {}

        def ours(drafter: str | None, dtype: str) -> OmniDraft:
            return load(self.path, drafter, dtype=dtype, device="cpu", profile=None, warn=console.print)

        plain = self._grown(BASELINE, name, lambda: ours(None, name))
        alone = self._grown(OURS, "int8", lambda: ours(None, "int8"))  # kept until all are loaded, not to be reused
        drafted = self._grown(DRAFTED, "int8", lambda: ours(options.drafter, "int8"))
        self.models[BY_MODEL] = self.models[DRAFTED]
        self.models[OURS] = replace(self.models[OURS], lm=drafted.target.lm)
        self.questions = questions(plain, self.data, sizes, console)
        self.texts = judged_texts(plain, self.data, sizes.texts)
        self.ways, _ = methods.make((BASELINE,), plain, 0, Sampling())
        for name, drafting in ((OURS, PLAIN), (DRAFTED, Drafting()), (BY_MODEL, Drafting(remember="nothing"))):
            self.ways.append(EngineWay(name, engine_for(drafted, drafting), Sampling()))
        if llama.llama_module() is not None:
            self._add_llama(sorted(plain.engine.eos))
        del alone

    def _add_llama(self, eos: list[int]) -> None:
        asked = (len(each.ids) + self.sizes.new_tokens for each in self.questions)
        room = max(CONTEXT + SEVERAL, *asked, *(len(text.ids) for text in self.texts))
        for name, path in ((LLAMA, self.path), (LLAMA_8, llama.requantized(self.path, self.threads))):
            model = self._grown(name, "", partial(llama.LlamaModel, path, room, self.threads))
            self.models[name] = replace(self.models[name], precision=model.precision)
            self.ways.append(llama.LlamaWay(name, model, eos))
            if name == LLAMA:
                self.models[LOOKUP] = self.models[name]
                self.ways.append(llama.LlamaWay(LOOKUP, model, eos, llama.lookup()))

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
        new_tokens = self.sizes.new_tokens
        take_turns(self.ways, self.questions[0].ids, new_tokens, chunk=new_tokens)  # warms up
        for repeat in range(self.sizes.repeats):
            for way in self.ways:
                way.restart()
            for place, question in enumerate(self.questions):
                key, turn = f"{repeat}|{question.task}|{question.number}", repeat * len(self.questions) + place
                if key not in done:
                    timed = take_turns(self.ways, question.ids, new_tokens, 0, turn, new_tokens)
                    yield key, turn_row(self.ways, timed) | {"repeat": repeat, "task": question.task}
                step()

    def figures(self) -> dict[str, Row]:
        """What each model takes, costs and loses; ways that draft have the memory alone."""
        own = {name: each.lm.new_sequence() for name, each in self.models.items() if name not in ALONE}
        timed, judged = passes(own, self.texts[0].ids, self.sizes.passes), quality(own, self.texts)
        less = {} if self.data else {"perplexity": None}  # the project's own texts are too few
        return {
            name: {"precision": each.precision, "loaded_mb": each.loaded_mb, "threads": self.threads}
            | (timed.get(name, {}) | judged.get(name, {}) | less)
            for name, each in self.models.items()
        }


def turn_row(ways: Sequence[Way], timed: Sequence[Any]) -> Row:
    """The tokens and seconds of each way, and for those that draft whether the answer is that without drafts."""
    said = {way.name: each.answer.tokens for way, each in zip(ways, timed, strict=True)}
    return {
        "tokens": {name: len(tokens) for name, tokens in said.items()},
        "seconds": {way.name: each.seconds for way, each in zip(ways, timed, strict=True)},
        "same": {name: said[name] == said[alone] for name, alone in ALONE.items() if name in said},
    }


def rows_of(results: Results) -> list[Row]:
    """A row for each target and method: its model's figures, and speed over all answers of a repeat, the median."""
    made = []
    for target in dict.fromkeys(key.partition("|")[0] for key in results.of("models")):
        turns = [row for key, row in results.of("turns").items() if key.partition("|")[0] == target]
        for method in METHODS:
            if (model := results.of("models").get(f"{target}|{method}")) is None:
                continue
            speeds = _speeds(turns, method)
            same = [turn["same"][method] for turn in turns if method in turn["same"]]
            made.append(
                {name: model.get(name) for name in COLUMNS}
                | {"target": target, "method": method, "tokens_per_s": statistics.median(speeds)}
                | {"deviation": statistics.stdev(speeds) if len(speeds) > 1 else None}
                | {kind: statistics.median(_speeds([t for t in turns if t["task"] == kind], method)) for kind in KINDS}
                | {"identical": sum(same) if same else None, "answers": len(turns)}
            )
    return made


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
        others = [f"{down(speed[DRAFTED] / speed[n], 2)}x {n}" for n in (BASELINE, LLAMA, LLAMA_8) if n in speed]
        said.append(f"{target}: {DRAFTED} {down(speed[DRAFTED], 1)} tokens/s, {', '.join(others)}")
    return "; ".join(said)


def markdown(results: Results, rows: Sequence[Row]) -> str:
    """The commands, a table of all rows, what is left out, and the summary."""
    commands = "".join(f"    {each}\n" for each in dict.fromkeys(setting["command"] for setting in results.settings))
    lines = [[_cell(name, row[name]) for name in COLUMNS] for row in rows]
    absent = "" if any(row["method"] in OF_LLAMA for row in rows) else f"{ABSENT}\n\n"
    table = markdown_table(COLUMNS, lines, COLUMNS.index("threads"))
    return f"# On this device\n\n{commands}\n{table}\n{absent}{summary(rows)}\n"


def _cell(name: str, value: Any) -> object:
    if not isinstance(value, float):
        return "–" if value is None else value
    digits = DIGITS.get(name, 2)
    return down(value, digits) if name in MORE_IS_BETTER else f"{value:.{digits}f}"


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure what the file lacks; 1 where an answer of ours with drafts was not that without."""
    given = {name: value for name in asdict(FULL) if (value := getattr(options, name)) is not None}
    sizes = replace(QUICK if options.quick else FULL, **given)
    if not gguf.is_gguf(options.target):
        raise InputError(f"target {options.target!r} is no GGUF file, which llama.cpp needs: give --target FILE.gguf")
    found = [name for name in METHODS if llama.llama_module() is not None or name not in OF_LLAMA]
    if len(found) < len(METHODS):
        console.print(ABSENT)
    target = shown(options.target)
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "device")
    more = {"threads": torch.get_num_threads(), "methods": found, "data": options.data is not None}
    setting = asdict(sizes) | {"drafter": shown(str(options.drafter))} | more
    if results.settings and (before := results.settings[0]["recipe"]) != setting:
        raise ConfigError(f"--out has results of other settings ({before}): give another place")
    results.begin(command(options.words), setting)
    if f"{target}|done" not in results.of("done"):
        _complete(results, target, Contest(options, sizes, console), console)
    rows = rows_of(results)
    page = markdown(results, rows)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    return 1 if any(row["identical"] < row["answers"] for row in rows if row["method"] in (DRAFTED, BY_MODEL)) else 0


def _complete(results: Results, target: str, contest: Contest, console: Console) -> None:
    """Measure a target: answers, each written at once, then passes and quality."""
    done = {key.partition("|")[2]: row for key, row in results.of("turns").items() if key.startswith(f"{target}|")}
    steps = contest.sizes.repeats * len(contest.questions)
    for key, row in contest.turns(done, progress(console, f"{target}, answers", steps)):
        results.add("turns", f"{target}|{key}", row)
    for name, row in contest.figures().items():
        results.add("models", f"{target}|{name}", row)
    results.add("done", f"{target}|done", {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a GGUF file on this CPU, and return the exit code."""
    options = parser(
        "device",
        "What runs a GGUF file on this CPU, and how fast: generate of transformers, ours, llama.cpp.",
        "--target MODEL.gguf --threads 2 --quick",
        "--target MODEL.gguf --threads 2 --data DIR --out results/device",
    )
    options.add_argument("--target", required=True, metavar="FILE", help="a GGUF file")
    flags.add(options, "--drafter")
    options.add_argument("--data", type=Path, metavar="DIR", help="the folder of GSM8K, MBPP and HumanEval")
    for name, what in (
        ("prompts", "prompts of a kind, chat and code"),
        ("new_tokens", "maximum tokens of an answer"),
        ("repeats", "times that every prompt is answered"),
        ("passes", "timed passes of a model"),
        ("texts", "texts that are judged"),
    ):
        default = f"{what} (default: {getattr(FULL, name)}, {getattr(QUICK, name)} with --quick)"
        options.add_argument(flags.flag(name), type=flags.at_least(1), metavar="N", help=default)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
