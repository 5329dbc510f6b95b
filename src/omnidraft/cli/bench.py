"""`omnidraft bench`: timed comparisons of decoding methods, and the test of exactness.

Markdown, or JSON with --json, goes to stdout; progress and warnings go to stderr.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from omnidraft.bench import environment, output, records, report
from omnidraft.bench.records import BASELINE, METHODS
from omnidraft.cli import flags, prompts
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, DraftingOptions, Sampling
from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.bench import compare

FULL = {"count": None, "max_new_tokens": 64, "repeats": 3}
QUICK = {"count": 6, "max_new_tokens": 48, "repeats": 1}


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft bench`; 1 if a token differs that must not.  Raises InputError and its kinds."""
    parser = flags.CommandParser(
        prog="omnidraft bench",
        description="Compare decoding methods on your models, and test that sampling is exact.",
        examples=(f"omnidraft bench compare {flags.PAIR} --task prompts.jsonl --quick",),
    )
    for add in (_add_compare, _add_report, _add_exactness):
        add(parser)
    options = parser.read(arguments)
    options.words = ["omnidraft", "bench", *arguments]
    code: int = options.run(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
    return code


# ---------------------------------------------------------------- compare


def _compare(options: argparse.Namespace, console: Console) -> int:
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    Drafting(draft_length=options.draft_length)
    Sampling(temperature=options.temperature)
    methods = _methods(options.methods)
    texts = {prompts.name_of(task): prompts.read(task, options.data, options.count) for task in options.task}
    if len(texts) < len(options.task) or report.ALL in texts:
        names = ", ".join(prompts.name_of(task) for task in options.task)
        raise ConfigError(f"the tasks are called {names}: give each once, and files by names other than {report.ALL!r}")
    flags.prepare_libraries(options.threads)
    return _measured(options, methods, texts, console)


def _methods(text: str) -> list[str]:
    """The methods asked for, in the order of the tables; raises ConfigError for one that does not exist."""
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in METHODS:
            raise ConfigError(f"method {name!r} does not exist: use some of {', '.join(METHODS)}")
    return [name for name in METHODS if name in asked or name == BASELINE]


def _measured(options: argparse.Namespace, names: Sequence[str], texts: dict[str, list[str]], console: Console) -> int:
    from omnidraft.bench import compare, methods

    model = flags.load_models(options, profile=None, draft_length=options.draft_length)
    sampling = Sampling(temperature=options.temperature)
    ready, left_out = methods.make(names, model, options.draft_length, sampling)
    questions = compare.questions_of(model, texts, options.max_new_tokens, console)
    setting = _setting(options, model, texts, questions)
    name = re.sub(r"[^\w.-]+", "-", model.target.name)
    stem = options.out and options.out / f"compare-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if stem is not None:
        with output.writing(stem):  # known before minutes are spent
            stem.with_name(stem.name + ".json").touch()
    for name, reason in left_out.items():
        console.print(f"{name} is left out, {reason}")
    results = records.Results(setting=setting, unavailable=left_out)
    new_tokens, repeats = options.max_new_tokens, options.repeats
    plan = compare.Plan(new_tokens=new_tokens, repeats=repeats, seed=options.seed, sampled=not sampling.greedy)
    compare.compare(ready, questions, plan, results, progress(console, "timing", repeats * len(questions)))
    if stem is not None:
        with output.writing(stem):
            results.save(stem.with_name(stem.name + ".json"))
    rows = report.rows([results])
    _publish(report.markdown({"this run": results}, rows), {"rows": rows}, stem, as_json=options.json)
    wrong = [f"{row['method']} on {row['task']}" for row in rows if row["identical"] is False]
    if wrong:
        console.print(f"THE TOKENS DIFFER from those of {BASELINE}: {', '.join(wrong)}", style="bold red")
    return 1 if wrong and setting["dtype"] in ("float32", "int8") else 0


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
        "drafter_backend": model.drafter_backend,
        **{name: getattr(options, name) for name in names},
        "dtype": model.target.lm.precision,
        **environment.machine(model.target.lm.device),
        "command": environment.command(options.words),
        "tasks": {
            task: {"prompts": kept[task], "left_out": len(its) - kept[task], "hash": prompts.digest(its)}
            for task, its in texts.items()
        },
    }


# ---------------------------------------------------------------- report


def _report(options: argparse.Namespace, console: Console) -> int:
    names = [path.name for path in options.files]  # without folders if unique
    results = {path.name if names.count(path.name) == 1 else str(path): records.read(path) for path in options.files}
    for difference in report.differences(results):
        console.print(f"warning: {difference}", style="yellow")
    rows = report.rows(list(results.values()))
    _publish(report.markdown(results, rows), {"rows": rows}, options.out, as_json=options.json)
    return 0


def _publish(page: str, result: dict[str, Any], stem: Path | None, *, as_json: bool) -> None:
    """Print a page, or the result as JSON, and write STEM.md if there is a stem."""
    if stem is not None:
        with output.writing(stem):
            stem.with_name(stem.name + ".md").write_text(page, encoding="utf-8")
    print(json.dumps(result) if as_json else page)


# ---------------------------------------------------------------- exactness

SAMPLED: dict[str, Any] = {"temperature": 1.0}
DRAFTED: dict[str, Any] = {"draft_length": 4}  # drafts in every round, or there would be nothing to test


def _exactness(options: argparse.Namespace, console: Console) -> int:
    from omnidraft.bench import exactness

    chosen, drafting = flags.collect(options, Sampling, DraftingOptions)
    sampling = Sampling(**SAMPLED | chosen)
    if sampling.greedy:
        raise ConfigError("temperature is 0, which draws nothing: give --temperature above 0")
    samples = options.samples or (exactness.QUICK_SAMPLES if options.quick else exactness.SAMPLES)
    texts = options.prompt or exactness.PROMPTS
    flags.prepare_libraries(options.threads)
    model = flags.load_models(options, profile=None, **DRAFTED | drafting)
    step = progress(console, "sampling", samples * len(texts))
    result = exactness.examine(model, texts, sampling, samples=samples, seed=options.seed, say=console.print, step=step)
    result |= {"settings": environment.machine(model.target.lm.device), "command": environment.command(options.words)}
    if options.out is not None:
        with output.writing(options.out):
            options.out.with_suffix(".json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    _publish(exactness.markdown(result), result, options.out, as_json=options.json)
    return 0 if result["passes"] else 1


# ---------------------------------------------------------------- options


def _add_compare(bench: flags.CommandParser) -> None:
    parser = bench.command(
        "compare",
        "time decoding methods on the same prompts, interleaved",
        _compare,
        f"{flags.PAIR} --task prompts.jsonl --quick",
        f"{flags.PAIR} --task gsm8k --count 100 --temperature 1 --out results",
    )
    flags.add(parser, "--target")
    parser.add_argument("--drafter", required=True, metavar="MODEL", help="draft model, given like the target")
    tasks = f"{', '.join(prompts.TASKS)}, or a JSONL file with `prompt` in each line; repeatable"
    parser.add_argument("--task", required=True, action="append", help=tasks)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    flags.add(parser, "--count", help="the first N prompts of each task (default: all)")
    listed = f"of {', '.join(METHODS)} (default: all); {BASELINE} is always among them"
    parser.add_argument("--methods", default=",".join(METHODS), metavar="A,B", help=listed)
    flags.add(parser, "--max-new-tokens", help=f"maximum tokens of an answer (default: {FULL['max_new_tokens']})")
    turns = f"times that every prompt is answered (default: {FULL['repeats']})"
    parser.add_argument("--repeats", type=flags.at_least(1), metavar="N", help=turns)
    parser.add_argument("--draft-length", type=int, default=4, metavar="N", help="draft tokens a round (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    _add_run(parser)
    flags.add(parser, "--out", metavar="DIR", help="write results as JSON and Markdown (default: none)")
    quick = f"{QUICK['count']} prompts a task, {QUICK['max_new_tokens']} tokens, one repeat, unless given"
    parser.add_argument("--quick", action="store_true", help=quick)
    flags.add(parser, "--json")


def _add_report(bench: flags.CommandParser) -> None:
    example = "results/compare-*.json --out results/compare"
    parser = bench.command("report", "merge result files and print their tables", _report, example)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by `bench compare --out`")
    flags.add(parser, "--out", help="write STEM.md")
    flags.add(parser, "--json")


def _add_exactness(bench: flags.CommandParser) -> None:
    parser = bench.command(
        "exactness",
        "test that sampled text has the target's own distribution; exit code 1 if not",
        _exactness,
        f"{flags.PAIR} --quick",
        f"{flags.PAIR} --samples 10000 --prompt 'Dear Sir,' --temperature 0.8 --top-p 0.95",
    )
    flags.add(parser, "--target", "--drafter")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a text to continue; repeatable (default: three)"
    )
    samples = "answers to each prompt (default: 2000, 400 with --quick)"
    parser.add_argument("--samples", type=flags.at_least(100), metavar="N", help=samples)
    _add_run(parser)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    flags.add(parser, "--out", help="write STEM.json and STEM.md")
    flags.add(parser, "--json")
    settings = parser.add_argument_group("sampling and drafting")
    flags.add_settings(settings, Sampling, "temperature", "top_p", **SAMPLED)
    flags.add_settings(settings, DraftingOptions, "draft_length", **DRAFTED)
    flags.add_set(parser, settings, Sampling, DraftingOptions)


def _add_run(parser: flags.CommandParser) -> None:
    """Add the arguments for dtype, device, threads and seed."""
    flags.add(parser, "--dtype", default="float32")
    flags.add(parser, "--device", "--graphs", "--threads", "--seed")
