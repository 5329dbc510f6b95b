"""The options of `omnidraft bench`, and the files that `--out` names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from omnidraft import flags, zoo
from omnidraft.bench import prompts
from omnidraft.bench.records import BASELINE, METHODS
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.errors import InputError

SIZES = {
    "stream": "prompts to learn from",
    "tests": "prompts to be examined on",
    "seeds": "orders of the stream",
    "ablation": "prompts to learn from where methods are compared",
    "sampled": "test prompts at temperature 1",
    "beside": "prompts beside the background trainer",
    "new_tokens": "tokens of an answer",
}
TARGET, DRAFTER = (zoo.PREFIX + zoo.names(role)[0] for role in ("target", "drafter"))
PAIR = f"--target {TARGET} --drafter {DRAFTER}"  # of examples
QUICK = {"count": 6, "max_new_tokens": 48}
Run = Callable[[argparse.Namespace, Console], int]


def add_compare(commands: Any, run: Run) -> None:
    """Those of `bench compare`, which `run` takes."""
    compare = _parser(
        commands,
        "compare",
        "run the methods against the clock",
        f"{PAIR} --task prompts.jsonl --quick",
        f"{PAIR} --task gsm8k --count 100 --temperature 1 --out results",
        f"{PAIR} --task prompts.jsonl --methods exact,generate --json",
    )
    compare.set_defaults(run=run, parser=compare)
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
    compare.add_argument("--repeats", type=int, default=3, metavar="N", help="turns of every method (default: 3)")
    compare.add_argument("--draft-length", type=int, default=4, metavar="N", help="draft tokens a round (default: 4)")
    _add_run(compare)
    compare.add_argument("--temperature", type=float, default=0.0, metavar="N", help="0 is greedy (default: 0)")
    compare.add_argument("--out", type=Path, metavar="DIR", help="write results, Markdown and figure (default: none)")
    compare.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from a result file that was cut off: keep its whole repeats"
    )
    quick = f"{QUICK['count']} prompts a task and {QUICK['max_new_tokens']} tokens"
    compare.add_argument(
        "--quick", action="store_true", help=f"{quick} where not given, and fewer repeats on a slow machine"
    )
    compare.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")


def add_report(commands: Any, run: Run) -> None:
    """Those of `bench report`."""
    parser = _parser(
        commands,
        "report",
        "merge result files and print their tables",
        "results/compare-*.jsonl --out results/compare",
    )
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by `bench compare --out`")
    parser.add_argument("--out", type=Path, metavar="STEM", help="write STEM.md and STEM.png")
    parser.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")


def add_overhead(commands: Any, run: Run) -> None:
    """Those of `bench overhead`."""
    overhead = _parser(
        commands,
        "overhead",
        "what a round costs beside its passes",
        f"--quick --target-tokenizer {TARGET} --drafter-tokenizer {DRAFTER}",
    )
    overhead.set_defaults(run=run, parser=overhead)
    tokenizer = "its vocabulary: a folder, a hub id or zoo:NAME (default: %(default)s)"
    overhead.add_argument("--target-tokenizer", default="Qwen/Qwen2-7B", metavar="MODEL", help=tokenizer)
    overhead.add_argument("--drafter-tokenizer", default="JackFram/llama-68m", metavar="MODEL", help=tokenizer)
    overhead.add_argument("--draft-length", type=int, default=4, metavar="N", help="draft tokens a round (default: 4)")
    overhead.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (default: its own choice)")
    overhead.add_argument("--quick", action="store_true", help="fewer tokens and turns")
    overhead.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md")
    overhead.add_argument("--json", action="store_true", help="print one JSON line instead of Markdown")


def add_adapt(commands: Any, run: Run) -> None:
    """Those of `bench adapt`."""
    adapt = _study(commands, "adapt", "what learning from answers is worth", run)
    adapt.add_argument(
        "--parts",
        default="live,streams,losses,targets,switch,ranks,background",
        metavar="A,B",
        help="some of %(default)s (default: all)",
    )
    for name, text in SIZES.items():
        flag = "--" + name.replace("_", "-")
        adapt.add_argument(flag, type=int, metavar="N", help=f"{text} (default: that of the study, less with --quick)")
    adapt.add_argument("--draft-length", type=int, default=4, metavar="N", help="draft tokens a round (default: 4)")
    flags.add(adapt, "learning", flags.settings(Learning))
    adapt.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json, STEM.md and figures")


def add_law(commands: Any, run: Run) -> None:
    """Those of `bench law`."""
    law = _parser(
        commands,
        "law",
        "whether sampled text has the target's own law: a statistical test, exit code 1 where it fails",
        f"{PAIR} --quick",
        f"{PAIR} --samples 10000 --prompt 'Dear Sir,' --temperature 0.8 --top-p 0.95",
        f"{PAIR} --quick --fault permuted-q",
    )
    law.set_defaults(run=run, parser=law)
    law.add_argument("--target", required=True, metavar="MODEL", help="a folder, a hub id or zoo:NAME")
    law.add_argument("--drafter", default="auto", metavar="MODEL", help=f"likewise (default: {flags.DRAFTER})")
    law.add_argument("--prompt", action="append", metavar="TEXT", help="text to continue; repeatable (default: three)")
    law.add_argument("--samples", type=int, metavar="N", help="texts for each prompt (default: 2000, 400 with --quick)")
    law.add_argument(
        "--alpha", type=float, default=1e-3, metavar="N", help="chance to fail without a fault (default: 0.001)"
    )
    law.add_argument("--fault", choices=("permuted-q",), help="plant a fault, to see it found")
    _add_run(law)
    law.add_argument("--quick", action="store_true", help="fewer samples")
    law.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md")
    law.add_argument("--json", action="store_true", help="print one JSON line instead of Markdown")
    flags.add(law, "drafting", flags.settings(Drafting))
    flags.add(law, "sampling", flags.settings(Sampling))


def add_paper(commands: Any, run: Run) -> None:
    """Those of `bench paper`."""
    paper = _parser(
        commands,
        "paper",
        "the tables and figures of the paper, by a recipe",
        "recipes/zoo.toml --data DIR --quick",
        "recipes/zoo.toml --data DIR --parts table-1,table-14 --out results/paper-zoo",
        "recipes/paper.toml --plan --use lmsys/vicuna-7b-v1.3=FOLDER",
    )
    paper.set_defaults(run=run, parser=paper)
    paper.add_argument("recipe", type=Path, metavar="FILE", help="models, tasks, sizes and settings, as in recipes/")
    paper.add_argument(
        "--parts",
        default="all",
        metavar="A,B",
        help="some of table-1, -2, -3, -5, -6, -11, -12, -14, figure-5, -6, -7, -8, -9, each in full (default: all)",
    )
    paper.add_argument("--plan", action="store_true", help="print what there is to do, and how long it will take")
    paper.add_argument(
        "--use",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="take a model in place of one that the recipe names; repeatable",
    )
    paper.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    paper.add_argument("--device", default="auto", metavar="NAME", help="for all models (default: auto)")
    paper.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (default: its own choice)")
    paper.add_argument("--quick", action="store_true", help="two prompts of each cell, to see that all of them run")
    paper.add_argument("--out", type=Path, metavar="DIR", help="write results there, and go on with what is there")
    paper.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")


def add_stopping(commands: Any, run: Run) -> None:
    """Those of `bench stopping`."""
    stopping = _study(commands, "stopping", "what each way to end a draft is worth", run)
    stopping.add_argument(
        "--parts", default="cells,hopeless,schedules", metavar="A,B", help="some of %(default)s (default: all)"
    )
    stopping.add_argument(
        "--task",
        action="append",
        choices=("gsm8k", "mbpp", "in turns"),
        help="one task only; repeatable (default: all)",
    )
    stopping.add_argument(
        "--temperature",
        type=float,
        action="append",
        choices=(0.0, 1.0),
        help="of the cells, one only; repeatable (default: both)",
    )
    stopping.add_argument(
        "--draft-length",
        type=int,
        action="append",
        metavar="N",
        help="a fixed draft length to measure; repeatable (default: 1 to 8; 1, 2 and 4 with --quick)",
    )
    stopping.add_argument(
        "--goodput-only",
        action="store_true",
        help="of the policies goodput alone, with and without the head",
    )
    stopping.add_argument("--count", type=int, metavar="N", help="prompts of a task (default: 50, less with --quick)")
    stopping.add_argument("--learn", type=int, metavar="N", help="prompts a task to learn from (default: 100, or 8)")
    stopping.add_argument("--repeats", type=int, metavar="N", help="turns of every way (default: 3, 1 with --quick)")
    stopping.add_argument("--max-new-tokens", type=int, metavar="N", help="of an answer (default: 96, or 48)")
    stopping.add_argument("--hopeless", type=int, metavar="N", help="prompts where drafts cannot pay (default: 200)")
    stopping.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md, or add to them")
    stopping.add_argument(
        "--more", action="store_true", help="add repeats to the cells in STEM.json (default: new ones)"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    """How two models are run."""
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="of both models (default: float32)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="for both models (default: auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (default: its own choice)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")


def _parser(commands: Any, name: str, about: str, *examples: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about.capitalize() + ".",
        allow_abbrev=False,
        examples=[f"omnidraft bench {name} {example}" for example in examples],
    )
    return made


def _study(commands: Any, name: str, about: str, run: Run) -> argparse.ArgumentParser:
    """A command that studies one drafter with several targets on GSM8K and MBPP."""
    study = _parser(commands, name, about, f"{PAIR} --data DIR --quick", f"{PAIR} --data DIR --out results/{name}")
    study.set_defaults(run=run, parser=study)
    study.add_argument(
        "--target", required=True, action="append", metavar="MODEL", help="a folder, a hub id or zoo:NAME; repeatable"
    )
    study.add_argument("--drafter", required=True, metavar="MODEL", help="likewise, one for all targets")
    study.add_argument("--data", required=True, type=Path, metavar="DIR", help="the folder of GSM8K and MBPP")
    study.add_argument("--dtype", default="float32", metavar="NAME", help="of all models (default: float32)")
    study.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (default: its own choice)")
    study.add_argument("--quick", action="store_true", help="a few prompts of everything")
    return study


@contextmanager
def writing(stem: Path) -> Iterator[None]:
    """Make the folder of files named after `stem`, and say what to do where they cannot be written."""
    if not stem.name:
        raise InputError(f"{str(stem)!r} is no name for files: give --out another place, such as results/mine")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot write {stem} ({error}): give --out another place") from error
