"""`omnidraft adapt`: train a drafter on the target's answers to a file of prompts.

The position in the file is kept in the profile, by the digest of the prompts: after Ctrl-C, a kill or a crash the same
command continues there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from omnidraft.cli import flags, prompts
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.attach import LearningSide

EXAMPLES = (
    f"omnidraft adapt {flags.PAIR} --data prompts.jsonl",
    f"omnidraft adapt {flags.PAIR} --data prompts.jsonl --profile my-profile --set adapter=lora",
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft adapt`; raises InputError and its kinds."""
    options = _parser().read(arguments)
    drafting, learning, sampling = flags.collect(options, Drafting, Learning, Sampling)
    if options.profile is None:
        raise ConfigError("profile is 'none', so what is learned would be lost: leave it out, or give a file")
    if options.drafter is None:
        raise ConfigError("there is no drafter to learn: give one with --drafter")
    file = Path(os.path.expanduser(options.data))  # noqa: PTH111  that of Path raises where there is no such user
    texts = prompts.read(file, fix="give --data a JSONL file")
    digest, texts = prompts.digest(texts), texts[: options.count]
    answers = {"max_new_tokens": options.max_new_tokens, **asdict(Sampling(**sampling))}
    with flags.load_models(options, adapt="inline", profile=options.profile, **drafting, **learning) as model:
        side = cast("LearningSide", model.side)  # there is a drafter
        code = _learn(model, side, digest, texts, answers)
    position = side.autosave.positions.get(digest, 0)
    print(json.dumps({"position": position, "prompts": len(texts), "learned": model.learned}))
    return code


def _learn(model: OmniDraft, side: LearningSide, digest: str, texts: Sequence[str], settings: dict[str, Any]) -> int:
    """Answer and learn, from where an earlier run ended; 130 after Ctrl-C."""
    autosave, count = side.autosave, len(texts)
    if autosave.profile.file is not None and not autosave.writes:
        raise ConfigError(
            "what would be learned cannot be saved: end the process that has the profile, or give another"
        )
    start = autosave.positions.get(digest, 0)
    if start:
        flags.say(f"continuing after prompt {min(start, count)} of {count}")
    step = progress(Console(stderr=True), "learning", max(count - start, 0))
    try:
        with flags.interruptible() as check:
            for position in range(start, count):
                check()
                try:
                    model.generate(model.encode_message(texts[position]), **settings)
                except PromptError as error:
                    flags.say(f"prompt {position + 1} is left out: {error}")
                if side.adaptation.learner is None:  # what was wrong is said already
                    flags.say("nothing more is learned; the same command continues here")
                    return 1
                autosave.positions[digest] = position + 1
                autosave.keep(every=1)
                step()
    except KeyboardInterrupt:
        flags.say("interrupted" + ("; the same command continues here" if autosave.writes else ""))
        return flags.INTERRUPTED
    finally:
        if autosave.writes and autosave.positions.get(digest, 0) > start:
            autosave.save()
    return 0


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft adapt",
        usage="%(prog)s --target MODEL --data FILE [--drafter MODEL] [OPTION ...]",
        description="Train a drafter on the target's answers to a file of prompts.",
        examples=EXAMPLES,
    )
    flags.add(parser, "--target", "--drafter")
    parser.add_argument("--data", required=True, type=Path, metavar="FILE", help="JSONL, a `prompt` in each line")
    flags.add(parser, "--count", "--profile")
    flags.add(parser, "--max-new-tokens", default=96)
    group = parser.add_argument_group("settings")
    flags.add_settings(group, Sampling, "temperature")
    flags.add(group, "--dtype", "--device")
    flags.add_set(parser, group, Sampling, Drafting, Learning)
    return parser
