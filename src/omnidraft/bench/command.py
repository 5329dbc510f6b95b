"""`omnidraft bench`: its commands, and what they print.

What people read goes to stderr, but for the Markdown table; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from omnidraft.bench import options as options_of
from omnidraft.bench import prompts, records, report
from omnidraft.bench.options import QUICK
from omnidraft.bench.records import BASELINE, METHODS
from omnidraft.config import Drafting, Sampling
from omnidraft.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.bench.compare import Question

EXAMPLES = ("omnidraft bench compare --help", f"omnidraft bench compare {options_of.PAIR} --task prompts.jsonl --quick")
QUICK_S = 150.0  # for the timed part of a quick run: fewer repeats where the machine is slow
LARGEST = 2**31  # of any number on the command line
Parser = Callable[..., argparse.ArgumentParser]


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run `omnidraft bench` with these arguments; 1 where a token differs that must not.

    `parser` makes the parsers, so that mistakes are reported as everywhere else.  Raises InputError and its kinds.
    """
    bench = parser(
        prog="omnidraft bench",
        description="Compare ways of decoding, every figure beside its baseline.",
        examples=EXAMPLES,
    )
    commands = bench.add_subparsers(metavar="COMMAND", required=True)
    options_of.add_compare(commands, _compare)
    options_of.add_report(commands, _report)
    options_of.add_overhead(commands, _overhead)
    options_of.add_adapt(commands, _adapt)
    sizes = dict.fromkeys(("count", "repeats", "max_new_tokens", "hopeless", "learn", "threads"), 1)
    options_of.add_stopping(commands, _study("stopping", **sizes))
    options_of.add_law(commands, _study("law", samples=100, seed=0, threads=1))
    options_of.add_paper(commands, _study("paper", threads=1))
    try:
        options, unknown = bench.parse_known_args(arguments)
    except SystemExit:  # after --help
        return 0
    if unknown:
        options.parser.error(f"unknown argument {unknown[0]!r}")
    options.arguments = ["bench", *arguments]
    code: int = options.run(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
    return code


def _overhead(options: argparse.Namespace, console: Console) -> int:
    Drafting(draft_length=options.draft_length)
    _check(options, {"threads": 1, "draft_length": 1})
    from omnidraft.bench.overhead import main as measure

    return measure(options, console)


def _adapt(options: argparse.Namespace, console: Console) -> int:
    Drafting(draft_length=options.draft_length)
    given = {name: 1 for name in (*options_of.SIZES, "threads") if getattr(options, name) is not None}
    _check(options, given)
    from omnidraft.bench.adapt import main as measure

    return measure(options, console)


def _study(name: str, **smallest: int) -> options_of.Run:
    """What the module of this name does, its numbers being looked at first."""

    def run(options: argparse.Namespace, console: Console) -> int:
        _check(options, smallest)
        code: int = importlib.import_module(f"omnidraft.bench.{name}").main(options, console)
        return code

    return run


# ---------------------------------------------------------------- compare


def _compare(options: argparse.Namespace, console: Console) -> int:
    defaults = QUICK if options.quick else {"count": None, "max_new_tokens": 64}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    methods = _checked(options)
    texts = {prompts.name_of(task): prompts.read(task, options.data, options.count) for task in options.task}
    if len(texts) < len(options.task) or report.ALL in texts:
        names = ", ".join(prompts.name_of(task) for task in options.task)
        raise ConfigError(f"the tasks are called {names}: give each once, and files by names other than {report.ALL!r}")
    import torch

    from omnidraft.bench.methods import quiet_libraries

    before = torch.get_num_threads()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        with quiet_libraries():
            return _measured(options, methods, texts, console)
    finally:
        torch.set_num_threads(before)


def _checked(options: argparse.Namespace) -> list[str]:
    """Refuse what is wrong with the options before seconds are spent on loading; the methods, in their order."""
    Drafting(draft_length=options.draft_length)
    Sampling(temperature=options.temperature)
    _check(options, {"count": 1, "max_new_tokens": 1, "repeats": 1, "threads": 1, "seed": 0})
    asked = [name.strip() for name in options.methods.split(",")]
    for name in asked:
        if name not in METHODS:
            raise ConfigError(f"method {name!r} does not exist: use some of {', '.join(METHODS)}")
    return [name for name in METHODS if name in asked or name == BASELINE]


def _check(options: argparse.Namespace, smallest: dict[str, int]) -> None:
    for name, least in smallest.items():
        value = getattr(options, name)
        if value is not None and not least <= value < LARGEST:
            raise ConfigError(f"{name} is {value}; it must be an integer from {least} to {LARGEST - 1}: give another")


def _measured(
    options: argparse.Namespace, names: Sequence[str], texts: dict[str, list[prompts.Prompt]], console: Console
) -> int:
    from omnidraft.api import load
    from omnidraft.bench import compare, methods

    model = load(
        options.target,
        options.drafter,
        dtype=options.dtype,
        device=options.device,
        profile=None,
        warn=console.print,
        draft_length=options.draft_length,
    )
    sampling = Sampling(temperature=options.temperature)
    made, left_out = methods.make(names, model, options.draft_length, sampling, options.seed)
    questions = _questions(model, texts, options.max_new_tokens, console)
    setting = _setting(options, model, texts, questions)
    name = re.sub(r"[^\w.-]+", "-", model.target.name)
    stem = options.out and options.out / f"compare-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    before = _resumed(options.resume, setting, [method.name for method in made])
    with _opened(stem) as file:
        writer = records.Writer(setting, file)
        for name, reason in left_out.items():
            console.print(f"{name} is left out, {reason}")
            writer.drop(name, reason)
        first = 0
        for run in before:
            writer.add(run)
            first = run.repeat + 1
        with compare.progress(console, "timing", (options.repeats - first) * len(questions)) as step:
            plan = compare.Plan(
                new_tokens=options.max_new_tokens,
                repeats=options.repeats,
                contexts=(model.target.lm.context, model.drafter.lm.context if model.drafter else 1),
                first=first,
                budget_s=QUICK_S if options.quick else math.inf,
            )
            compare.race(made, questions, plan, writer, step)
        writer.end()
    rows = report.rows([writer.results])
    _publish({"this run": writer.results}, rows, stem, console, as_json=options.json)
    wrong = [f"{row['method']} on {row['task']}" for row in rows if row["identical"] is False]
    if wrong:
        console.print(f"THE TOKENS DIFFER from those of {BASELINE}: {', '.join(wrong)}", style="bold red")
    return 1 if wrong and setting["dtype"] == "float32" else 0


def _resumed(path: Path | None, setting: dict[str, Any], methods: Sequence[str]) -> Sequence[records.Run]:
    """The runs of the repeats that a result file holds, which are not made again; notes in the setting where from.

    Raises ConfigError where they were made in another setting.
    """
    if path is None:
        return []
    found = records.unfinished(path)
    ran = sorted({run.method for run in found.runs})
    same = [key for key in report.SAME if key not in ("commit", "repeats")]
    for key in ("target", *same, "tasks"):
        if found.setting.get(key) != setting[key]:
            was, now = found.setting.get(key), setting[key]
            raise ConfigError(f"{path} was made with another {key} ({was}, not {now}): give the same, or begin anew")
    if ran and ran != sorted(methods):
        raise ConfigError(f"{path} holds {', '.join(ran)}, not {', '.join(methods)}: give the same --methods")
    setting["resumed"] = {name: found.setting.get(name) for name in ("date", "commit", "command")}
    return [run for run in found.runs if run.repeat < setting["repeats"] - 1]  # passes are counted in another one


@contextmanager
def _opened(stem: Path | None) -> Iterator[TextIO | None]:
    """The result file; None where none is asked for."""
    if stem is None:
        yield None
        return
    with options_of.writing(stem):
        file = stem.with_name(stem.name + ".jsonl").open("w", encoding="utf-8")
    with file:
        yield file


def _questions(
    model: OmniDraft, texts: dict[str, list[prompts.Prompt]], new_tokens: int, console: Console
) -> list[Question]:
    """The prompts that leave room for an answer, as token ids."""
    from omnidraft.bench.compare import Question

    questions: list[Question] = []
    room = model.target.lm.context - new_tokens
    for task, its in texts.items():
        fitting = [ids for prompt in its if len(ids := model.encode_message(prompt.text)) <= room]
        if not fitting:
            raise PromptError(f"no prompt of {task} fits {room} tokens, what an answer leaves: use --max-new-tokens")
        if len(fitting) < len(its):
            console.print(f"{task}: {len(its) - len(fitting)} prompts of more than {room} tokens are left out")
        questions += [Question(task, number, ids) for number, ids in enumerate(fitting)]
    return questions


def _setting(
    options: argparse.Namespace,
    model: OmniDraft,
    texts: dict[str, list[prompts.Prompt]],
    questions: Sequence[Question],
) -> dict[str, Any]:
    from omnidraft.bench import setting

    kept = Counter(question.task for question in questions)
    names = ("dtype", "seed", "temperature", "max_new_tokens", "draft_length", "repeats")
    return {
        "target": model.target.name,
        "drafter": model.drafter and model.drafter.name,
        "drafter_step": model.drafter_step,
        **{name: getattr(options, name) for name in names},
        "dtype": str(model.target.lm.dtype).removeprefix("torch."),
        **setting.machine(model.target.lm.device),
        "command": setting.command(options.arguments),
        "tasks": {
            task: {"prompts": kept[task], "left_out": len(its) - kept[task], "hash": prompts.digest(its)}
            for task, its in texts.items()
        },
    }


# ---------------------------------------------------------------- report


def _report(options: argparse.Namespace, console: Console) -> int:
    names = [path.name for path in options.files]  # without their folders, where that tells them apart
    results = {path.name if names.count(path.name) == 1 else str(path): records.read(path) for path in options.files}
    for difference in report.differences(results):
        console.print(f"warning: {difference}", style="yellow")
    _publish(results, report.rows(list(results.values())), options.out, console, as_json=options.json)
    return 0


def _publish(
    results: dict[str, records.Results],
    rows: Sequence[report.Row],
    stem: Path | None,
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Print rows, and write STEM.md and STEM.png where there is a stem."""
    text = report.markdown(results, rows)
    if stem is not None:
        from omnidraft.bench.figure import draw

        with options_of.writing(stem):
            stem.with_name(stem.name + ".md").write_text(text, encoding="utf-8")
            drawn = draw(rows, stem.with_name(stem.name + ".png"))
        if not drawn:
            console.print("no figure is drawn, which takes matplotlib: pip install 'omnidraft[bench]'")
    if not as_json:
        print(text)
    print(json.dumps({"rows": rows}))
