"""`omnidraft bench`: its commands, and what they print.

What people read goes to stderr, but for the Markdown table; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markdown import Markdown

from omnidraft import zoo
from omnidraft.bench import environment, output, prompts, records, report
from omnidraft.bench.records import BASELINE, METHODS
from omnidraft.cli import flags
from omnidraft.config import Drafting, Sampling
from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.bench import compare

LARGEST = 2**31  # of any number on the command line
TARGET, DRAFTER = (zoo.PREFIX + zoo.names(role)[0] for role in ("target", "drafter"))
PAIR = f"--target {TARGET} --drafter {DRAFTER}"  # of examples
EXAMPLES = ("omnidraft bench compare --help", f"omnidraft bench compare {PAIR} --task prompts.jsonl --quick")
QUICK = {"count": 6, "max_new_tokens": 48, "repeats": 1}


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft bench`; 1 where a token differs that must not.  Raises InputError and its kinds."""
    bench = flags.CommandParser(
        prog="omnidraft bench",
        description="Compare ways of decoding, every figure beside its baseline.",
        examples=EXAMPLES,
    )
    commands = bench.add_subparsers(metavar="COMMAND", required=True)
    for add in (_add_compare, _add_report, _add_exactness):
        add(commands)
    options = bench.read(arguments)
    if options is None:
        return 0
    options.words = ["omnidraft", "bench", *arguments]
    code: int = options.run(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
    return code


# ---------------------------------------------------------------- compare


def _compare(options: argparse.Namespace, console: Console) -> int:
    defaults = QUICK if options.quick else {"count": None, "max_new_tokens": 64, "repeats": 3}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    methods = _checked(options)
    texts = {prompts.name_of(task): prompts.read(task, options.data, options.count) for task in options.task}
    if len(texts) < len(options.task) or report.ALL in texts:
        names = ", ".join(prompts.name_of(task) for task in options.task)
        raise ConfigError(f"the tasks are called {names}: give each once, and files by names other than {report.ALL!r}")
    import torch
    from transformers.utils import logging

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    flags.quiet_libraries()
    logging.set_verbosity_error()
    return _measured(options, methods, texts, console)


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


def _measured(options: argparse.Namespace, names: Sequence[str], texts: dict[str, list[str]], console: Console) -> int:
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
    made, left_out = methods.make(names, model, options.draft_length, sampling)
    questions = compare.questions_of(model, texts, options.max_new_tokens, console)
    setting = _setting(options, model, texts, questions)
    name = re.sub(r"[^\w.-]+", "-", model.target.name)
    stem = options.out and options.out / f"compare-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with _opened(stem) as file:
        results = records.Results(setting=setting, file=file)
        for name, reason in left_out.items():
            console.print(f"{name} is left out, {reason}")
            results.drop(name, reason)
        plan = compare.Plan(
            new_tokens=options.max_new_tokens,
            repeats=options.repeats,
            seed=options.seed,
            sampled=not sampling.greedy,
        )
        step = output.progress(console, "timing", plan.repeats * len(questions))
        compare.race(made, questions, plan, results, step)
        results.end()
    rows = report.rows([results])
    _publish({"this run": results}, rows, stem, console, as_json=options.json)
    wrong = [f"{row['method']} on {row['task']}" for row in rows if row["identical"] is False]
    if wrong:
        console.print(f"THE TOKENS DIFFER from those of {BASELINE}: {', '.join(wrong)}", style="bold red")
    return 1 if wrong and setting["dtype"] == "float32" else 0


@contextmanager
def _opened(stem: Path | None) -> Iterator[TextIO | None]:
    """The result file; None where none is asked for."""
    if stem is None:
        yield None
        return
    with output.writing(stem):
        file = stem.with_name(stem.name + ".jsonl").open("w", encoding="utf-8")
    with file:
        yield file


def _setting(
    options: argparse.Namespace,
    model: OmniDraft,
    texts: dict[str, list[str]],
    questions: Sequence[compare.Question],
) -> dict[str, Any]:
    kept = Counter(question.task for question in questions)
    names = ("dtype", "seed", "temperature", "max_new_tokens", "draft_length", "repeats")
    return {
        "target": model.target.name,
        "drafter": model.drafter and model.drafter.name,
        "drafter_step": model.drafter_step,
        **{name: getattr(options, name) for name in names},
        "dtype": str(model.target.lm.dtype).removeprefix("torch."),
        **environment.machine(model.target.lm.device),
        "command": environment.command(options.words),
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
        with output.writing(stem):
            stem.with_name(stem.name + ".md").write_text(text, encoding="utf-8")
            drawn = report.speedups(rows, stem.with_name(stem.name + ".png"))
        if not drawn:
            console.print("no figure is drawn, which takes matplotlib: pip install 'omnidraft[bench]'")
    if not as_json:
        print(text)
    print(json.dumps({"rows": rows}))


# ---------------------------------------------------------------- exactness


def _exactness(options: argparse.Namespace, console: Console) -> int:
    _check(options, {"samples": 100, "seed": 0, "threads": 1})
    import torch

    from omnidraft.api import load
    from omnidraft.bench import exactness

    sampling, drafting = flags.collect(options, Sampling, Drafting)
    drafting = {"draft_length": 4} | drafting  # drafts in every round, or there would be nothing to test
    experiment = exactness.Experiment(
        samples=options.samples or (exactness.QUICK_SAMPLES if options.quick else exactness.SAMPLES),
        alpha=options.alpha,
        sampling=Sampling(**{"temperature": 1.0} | sampling),
        seed=options.seed,
        fault=options.fault,
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    flags.quiet_libraries()
    model = load(options.target, options.drafter, dtype=options.dtype, device=options.device, profile=None, **drafting)
    result = exactness.examine(model, options.prompt or exactness.PROMPTS, experiment, console)
    result["settings"] = environment.machine(model.target.lm.device)
    result["command"] = environment.command(options.words)
    page = exactness.markdown(result)
    if options.out is not None:
        with output.writing(options.out):
            options.out.with_suffix(".json").write_text(json.dumps(result) + "\n", encoding="utf-8")
            options.out.with_suffix(".md").write_text(page, encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    else:
        Console(markup=False, highlight=False).print(Markdown(page))
    return 0 if result["passes"] else 1


# ---------------------------------------------------------------- options


def _add_compare(commands: Any) -> None:
    """Those of `bench compare`, which `run` takes."""
    compare = _parser(
        commands,
        "compare",
        "run the methods against the clock",
        f"{PAIR} --task prompts.jsonl --quick",
        f"{PAIR} --task gsm8k --count 100 --temperature 1 --out results",
        f"{PAIR} --task prompts.jsonl --methods exact,generate --json",
    )
    compare.set_defaults(run=_compare)
    compare.add_argument("--target", required=True, metavar="MODEL", help="a folder, a hub id or zoo:NAME")
    compare.add_argument("--drafter", required=True, metavar="MODEL", help="likewise")
    known = ", ".join(prompts.TASKS)
    compare.add_argument(
        "--task",
        required=True,
        action="append",
        help=f"{known}, or a JSONL file with `prompt` in each line; repeatable",
    )
    compare.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    compare.add_argument("--count", type=int, metavar="N", help="the first N prompts of each task (default: all)")
    compare.add_argument(
        "--methods",
        default=",".join(METHODS),
        metavar="A,B",
        help=f"of {', '.join(METHODS)} (default: all); {BASELINE} is always among them",
    )
    compare.add_argument("--max-new-tokens", type=int, metavar="N", help="of each answer (default: 64)")
    compare.add_argument("--repeats", type=int, metavar="N", help="turns of every method (default: 3)")
    compare.add_argument("--draft-length", type=int, default=4, metavar="N", help="draft tokens a round (default: 4)")
    _add_run(compare)
    compare.add_argument("--temperature", type=float, default=0.0, metavar="N", help="0 is greedy (default: 0)")
    compare.add_argument("--out", type=Path, metavar="DIR", help="write results, Markdown and figure (default: none)")
    quick = f"{QUICK['count']} prompts a task, {QUICK['max_new_tokens']} tokens and one repeat where not given"
    compare.add_argument("--quick", action="store_true", help=quick)
    compare.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")


def _add_report(commands: Any) -> None:
    """Those of `bench report`."""
    parser = _parser(
        commands,
        "report",
        "merge result files and print their tables",
        "results/compare-*.jsonl --out results/compare",
    )
    parser.set_defaults(run=_report)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by `bench compare --out`")
    parser.add_argument("--out", type=Path, metavar="STEM", help="write STEM.md and STEM.png")
    parser.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")


def _add_exactness(commands: Any) -> None:
    """Those of `bench exactness`."""
    test = _parser(
        commands,
        "exactness",
        "whether sampled text has the target's own distribution: a statistical test, exit code 1 where it fails",
        f"{PAIR} --quick",
        f"{PAIR} --samples 10000 --prompt 'Dear Sir,' --temperature 0.8 --top-p 0.95",
        f"{PAIR} --quick --fault permuted-q",
    )
    test.set_defaults(run=_exactness)
    test.add_argument("--target", required=True, metavar="MODEL", help="a folder, a hub id or zoo:NAME")
    test.add_argument("--drafter", default="auto", metavar="MODEL", help=f"likewise (default: {flags.DRAFTER})")
    test.add_argument("--prompt", action="append", metavar="TEXT", help="to continue; repeatable (default: three)")
    test.add_argument(
        "--samples", type=int, metavar="N", help="answers to each prompt (default: 2000, 400 with --quick)"
    )
    test.add_argument(
        "--alpha", type=float, default=1e-3, metavar="N", help="chance to fail without a fault (default: 0.001)"
    )
    test.add_argument("--fault", choices=("permuted-q",), help="plant a fault, to see it found")
    _add_run(test)
    test.add_argument("--quick", action="store_true", help="fewer samples")
    test.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md")
    test.add_argument("--json", action="store_true", help="print one JSON line instead of Markdown")
    settings = flags.settings(Sampling, "temperature", "top_p") | flags.settings(Drafting, "draft_length")
    flags.add_set(test, flags.add(test, "sampling and drafting", settings), Sampling, Drafting)


def _add_run(parser: argparse.ArgumentParser) -> None:
    """How two models are run."""
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="of both models (default: float32)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="for both models (default: auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (default: its own choice)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")


def _parser(commands: Any, name: str, about: str, *examples: str) -> flags.CommandParser:
    made: flags.CommandParser = commands.add_parser(
        name,
        help=about,
        description=about.capitalize() + ".",
        examples=[f"omnidraft bench {name} {example}" for example in examples],
    )
    return made
