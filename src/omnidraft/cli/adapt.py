"""`omnidraft adapt`: train a drafter on the target's answers to a file of prompts.

The position in the file is kept in the profile, by the file's digest: after Ctrl-C, a kill or a crash the same command
continues there.
"""

from __future__ import annotations

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
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.stats import Stats
from omnidraft.errors import ConfigError, InputError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

NAMED = 10  # broken lines that are listed
EXAMPLE = (
    f"omnidraft adapt --target {zoo.PREFIX}{zoo.names('target')[0]} --drafter {zoo.PREFIX}{zoo.names('drafter')[0]}"
)
EXAMPLES = (
    f"{EXAMPLE} --data prompts.jsonl",
    f"{EXAMPLE} --data prompts.jsonl --profile my-profile --set adapter=lora",
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft adapt`; raises InputError and its kinds."""
    options = _parser().read(arguments)
    if options is None:
        return 0
    given = vars(options)
    drafting, learning, sampling = flags.collect(options, Drafting, Learning, Sampling)
    loading = {name: given[name] for name in flags.LOAD if name in given}
    if flags.unless_none(options.profile) is None:
        raise ConfigError("profile is 'none', so what is learned would be lost: leave it out, or give a file")
    Drafting(**drafting)
    Learning(**learning)
    for name, fix in (("count", "leave it out for all"), ("max_new_tokens", "use 1 or more")):
        value = given[name]
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be an integer at least 1: {fix}")
    answers = {"max_new_tokens": options.max_new_tokens, **asdict(Sampling(**sampling))}
    data = Data(options.data)
    count = len(data.prompts) if options.count is None else min(options.count, len(data.prompts))
    data.report()
    from omnidraft.api import load

    flags.quiet_libraries()
    settings = {**loading, **drafting, **learning, "adapt": "inline", "profile": flags.unless_none(options.profile)}
    with load(options.target, options.drafter, warn=flags.say, **settings) as model:
        code = _learn(model, data, count, answers)
    print(json.dumps(_result(model, data, count)))
    return code


def _learn(model: OmniDraft, data: Data, count: int, settings: dict[str, Any]) -> int:
    """Answer and learn, from where an earlier run ended; 130 after Ctrl-C."""
    side = model.side
    if side is None:
        raise ConfigError("there is no drafter to learn: give one with --drafter")
    autosave, adaptation = side.autosave, side.adaptation
    if autosave.profile.file is not None and not autosave.writes:
        raise ConfigError(
            "what would be learned cannot be saved: end the process that has the profile, or give another"
        )
    start = autosave.positions.get(data.digest, 0)
    if start:
        flags.say(f"continuing after prompt {min(start, count)} of {count}")
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
                    flags.say("nothing more is learned; the same command continues here")
                    return 1
                autosave.positions[data.digest] = position + 1
                autosave.keep(every=1)
                accepted, proposed = (sum(getattr(s, name) for s in recent) for name in ("accepted", "proposed"))
                progress.update(task, advance=1, acceptance=f"acceptance {accepted / proposed:.2f}" if proposed else "")
    except KeyboardInterrupt:
        flags.say("interrupted" + ("; the same command continues here" if autosave.writes else ""))
        return flags.INTERRUPTED
    finally:
        if autosave.writes and autosave.positions.get(data.digest, 0) > start:
            autosave.save()
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
    """Prompts of a JSONL file with a `prompt` in each line; broken lines are left out and counted.

    Raises InputError for a file that cannot be read, PromptError for one without any prompt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prompts: list[str] = []
        self.lines: list[int] = []  # of each prompt
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
        """Name the lines that are left out."""
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
    position = 0 if side is None else side.autosave.positions.get(data.digest, 0)
    return {"position": position, "prompts": count, "broken_lines": len(data.broken), "learned": model.learned}


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft adapt",
        usage="%(prog)s --target MODEL --data FILE [--drafter MODEL] [OPTION ...]",
        description="Train a drafter on the target's answers to a file of prompts.",
        examples=EXAMPLES,
    )
    parser.add_argument("--target", required=True, metavar="MODEL", help="a folder, a hub id or zoo:NAME")
    parser.add_argument("--drafter", default="auto", metavar="MODEL", help=f"likewise (default: {flags.DRAFTER})")
    parser.add_argument("--data", required=True, type=Path, metavar="FILE", help="JSONL, a `prompt` in each line")
    parser.add_argument("--count", type=flags.number, metavar="N", help="the first N prompts (default: all)")
    parser.add_argument("--profile", default="auto", metavar="FILE", help="a file (default: that of the pair)")
    parser.add_argument(
        "--max-new-tokens", default=96, type=flags.number, metavar="N", help="maximum tokens of an answer (default: 96)"
    )
    group = flags.add(parser, "settings", flags.settings(Sampling, "temperature") | flags.LOAD)
    flags.add_set(parser, group, Sampling, Drafting, Learning)
    return parser
