"""`omnidraft adapt`: train a drafter on the target's answers to a file of prompts.

The position in the file is kept in the profile, by the digest of the prompts: after Ctrl-C, a kill or a crash the same
command continues there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from omnidraft.cli import flags, prompts
from omnidraft.cli.progress import progress
from omnidraft.config import DraftingOptions, LearningOptions, Sampling
from omnidraft.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter

EXAMPLES = (f"omnidraft adapt {flags.PAIR} --data prompts.jsonl --profile my-profile --set adapter=lora",)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft adapt`; raises InputError and its kinds."""
    options = _parser().read(arguments)
    drafting, learning, sampling = flags.collect(options, DraftingOptions, LearningOptions, Sampling)
    if options.profile is None:
        raise ConfigError("profile is 'none', so what is learned would be lost: leave it out, or give a file")
    if options.drafter is None:
        raise ConfigError("there is no drafter to learn: give one with --drafter")
    texts = prompts.read(options.data)
    digest, texts = prompts.digest(texts), texts[: options.count]
    answers = {"max_new_tokens": options.max_new_tokens, **asdict(Sampling(**sampling))}
    with flags.load_models(options, adapt="inline", profile=options.profile, **drafting, **learning) as model:
        adaptive = cast("AdaptiveDrafter", model.adaptive)  # there is a drafter
        code = _learn(model, adaptive, digest, texts, answers)
    position = adaptive.positions.get(digest, 0)
    print(json.dumps({"position": position, "prompts": len(texts), "learned": model.learned}))
    return code


def _learn(
    model: OmniDraft, adaptive: AdaptiveDrafter, digest: str, texts: Sequence[str], settings: dict[str, Any]
) -> int:
    """Answer and learn, from where an earlier run ended; 130 after Ctrl-C."""
    if model.profile is not None and not adaptive.saves:
        raise ConfigError(
            "what would be learned cannot be saved: end the process that has the profile, or give another"
        )
    start, count = adaptive.positions.get(digest, 0), len(texts)
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
                if not adaptive.learns:  # what was wrong is said already
                    flags.say("nothing more is learned; the same command continues here")
                    return 1
                adaptive.positions[digest] = position + 1
                adaptive.wait()  # for the save of an earlier update: one in the midst of it would put this one off
                model.save_later()
                step()
    except KeyboardInterrupt:
        flags.say("interrupted" + ("; the same command continues here" if adaptive.saves else ""))
        return flags.INTERRUPTED
    finally:
        if adaptive.saves and adaptive.positions.get(digest, 0) > start:
            model.save()
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
    flags.add(group, "--dtype", "--device", "--graphs", "--threads")
    flags.add_set(parser, group, Sampling, DraftingOptions, LearningOptions)
    return parser
