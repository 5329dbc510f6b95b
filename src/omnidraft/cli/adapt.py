"""`omnidraft adapt`: let a drafter learn from a file of prompts, answered by the target.

How far it came is kept in the profile, as a number beside the digest of the file: after Ctrl-C, a kill or a crash the
same command goes on there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from omnidraft import zoo
from omnidraft.cli import flags
from omnidraft.config import Drafting, Learning, Sampling, names
from omnidraft.decoding.stats import Stats
from omnidraft.errors import ConfigError, InputError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

INTERRUPTED = 130
NAMED = 10  # numbers of broken lines that are listed
EXAMPLE = (
    f"omnidraft adapt --target {zoo.PREFIX}{zoo.names('target')[0]} --drafter {zoo.PREFIX}{zoo.names('drafter')[0]}"
)
EXAMPLES = (
    f"{EXAMPLE} --data prompts.jsonl",
    f"{EXAMPLE} --data prompts.jsonl --profile my-profile --adapter lora",
)


def main(arguments: Sequence[str], parser: flags.Parser) -> int:
    """Run `omnidraft adapt` with these arguments; raises InputError and its kinds."""
    options = _parsed(arguments, parser)
    if options is None:
        return 0
    given = vars(options)
    loading, drafting, learning = (
        {name: given[name] for name in its if name in given} for its in (flags.LOAD, names(Drafting), names(Learning))
    )
    if flags.unless_none(options.profile) is None:
        raise ConfigError("profile is 'none', so what is learned would be lost: leave it out, or give a file")
    Drafting(**drafting)
    Learning(**learning)
    sampling = Sampling(**{name: given[name] for name in names(Sampling) if name in given})
    data = Data(options.data)
    count = len(data.prompts) if options.count is None else min(options.count, len(data.prompts))
    data.report()
    from omnidraft.api import load

    flags.quiet_libraries()
    settings = {**loading, **drafting, **learning, "adapt": "inline", "profile": flags.unless_none(options.profile)}
    with load(options.target, options.drafter, warn=flags.say, **settings) as model:
        code = _learn(model, data, count, {"max_new_tokens": given.get("max_new_tokens", 96), **asdict(sampling)})
    print(json.dumps(_result(model, data, count)))
    return code


def _learn(model: OmniDraft, data: Data, count: int, settings: dict[str, Any]) -> int:
    """Answer and learn, from where an earlier run left off; 130 where it is interrupted."""
    side = model.side
    if side is None:
        raise ConfigError("there is no drafter to learn: give one with --drafter")
    memory, adaptation = side.memory, side.adaptation
    if memory.file is not None and not memory.writes:
        raise ConfigError(
            "what would be learned cannot be saved: end the process that has the profile, or give another"
        )
    start = memory.positions.get(data.digest, 0)
    if start:
        flags.say(f"going on after prompt {min(start, count)} of {count}")
    recent: list[Stats] = []
    try:
        with _progress() as progress, flags.interruptible() as check:
            task = progress.add_task("learning", total=count, completed=min(start, count), acceptance="")
            for position in range(start, count):
                check()
                try:
                    recent = [
                        *recent[-24:],
                        model.generate(model.encode_message(data.prompts[position]), **settings).stats,
                    ]
                except PromptError as error:
                    flags.say(f"line {data.lines[position]} is left out: {error}")
                if adaptation.learner is None:  # what was wrong is said already
                    flags.say("nothing more is learned; the same command goes on from here")
                    return 1
                memory.positions[data.digest] = position + 1
                memory.keep(adaptation, every=1)
                accepted, proposed = (sum(getattr(s, name) for s in recent) for name in ("accepted", "proposed"))
                progress.update(task, advance=1, acceptance=f"acceptance {accepted / proposed:.2f}" if proposed else "")
    except KeyboardInterrupt:
        flags.say("interrupted" + ("; the same command goes on from here" if memory.writes else ""))
        return INTERRUPTED
    finally:
        if memory.writes and memory.positions.get(data.digest, 0) > start:
            memory.save(adaptation)
    return 0


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[acceptance]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


class Data:
    """A JSONL file with a `prompt` in each line; broken lines are counted and left out.

    Raises InputError for a file that cannot be read, PromptError for one without any prompt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prompts: list[str] = []
        self.lines: list[int] = []  # where each prompt stands
        self.broken: list[int] = []
        try:
            content = path.expanduser().read_bytes()
        except (OSError, RuntimeError) as error:
            raise InputError(f"cannot read {path} ({error}): give --data a JSONL file") from error
        self.digest = hashlib.sha256(content).hexdigest()[:12]
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip():
                continue
            prompt = _prompt_of(line)
            if prompt is None:
                self.broken.append(number)
            else:
                self.prompts.append(prompt)
                self.lines.append(number)
        if not self.prompts:
            raise PromptError(f'{path} has no line with a prompt: write one {{"prompt": ...}} a line')

    def report(self) -> None:
        """Say which lines are left out, if any are."""
        if self.broken:
            listed = ", ".join(map(str, self.broken[:NAMED])) + (", ..." if len(self.broken) > NAMED else "")
            lines = "1 line is" if len(self.broken) == 1 else f"{len(self.broken)} lines are"
            flags.say(f"{lines} left out, being no JSON object with a text as `prompt`: {listed}")


def _prompt_of(line: bytes) -> str | None:
    try:
        prompt = json.loads(line)["prompt"]
        prompt.encode()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return prompt or None


def _result(model: OmniDraft, data: Data, count: int) -> dict[str, Any]:
    side = model.side
    position = 0 if side is None else side.memory.positions.get(data.digest, 0)
    return {"position": position, "prompts": count, "broken_lines": len(data.broken), "learned": model.learned}


def _parsed(arguments: Sequence[str], parser: flags.Parser) -> argparse.Namespace | None:
    adapt = parser(
        prog="omnidraft adapt",
        usage="%(prog)s --target MODEL --data FILE [--drafter MODEL] [OPTION ...]",
        description="Let a drafter learn from the target's answers to a file of prompts.",
        examples=EXAMPLES,
        allow_abbrev=False,
    )
    adapt.add_argument("--target", required=True, metavar="MODEL", help="a folder, a hub id or zoo:NAME")
    adapt.add_argument("--drafter", default="auto", metavar="MODEL", help=f"likewise (default: {flags.DRAFTER})")
    adapt.add_argument("--data", required=True, type=Path, metavar="FILE", help="JSONL, a `prompt` in each line")
    adapt.add_argument("--count", type=flags.number, metavar="N", help="the first N prompts (default: all)")
    adapt.add_argument("--profile", default="auto", metavar="FILE", help="a file (default: that of the two models)")
    flags.add(adapt, "models", flags.LOAD)
    flags.add(adapt, "learning", flags.settings(Learning))
    flags.add(adapt, "drafting", flags.settings(Drafting))
    flags.add(
        adapt, "answers", {"max_new_tokens": (96, flags.GENERATE["max_new_tokens"][1]), **flags.settings(Sampling)}
    )
    try:
        options, unknown = adapt.parse_known_args(arguments)
    except SystemExit:  # after --help
        return None
    if unknown:
        adapt.error(f"unknown argument {unknown[0]!r}")
    for name, fix in (("count", "leave it out for all"), ("max_new_tokens", "ask for some")):
        value = getattr(options, name, None)
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be an integer at least 1: {fix}")
    return options
