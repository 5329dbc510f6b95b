"""What the commands that answer have in common: their flags, the models they load, what they say of an answer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from omnidraft.cli import flags
from omnidraft.config import ADAPT, DraftingOptions, GenerationLimits, LearningOptions, Sampling, stop_strings

if TYPE_CHECKING:
    from omnidraft.api import Generation, OmniDraft


def add_flags(parser: flags.CommandParser) -> argparse._ArgumentGroup:
    """Add the flags of models, answers, learning and devices; the group returned is for input and output."""
    models = parser.add_argument_group("models")
    flags.add(models, "--target")
    flags.add(models, "--drafter", help=f"draft model, given like the target, or none (default: {flags.DRAFTER})")
    answer = parser.add_argument_group("answer (sampling defaults to the target's generation config, else to these)")
    flags.add_settings(answer, GenerationLimits)
    flags.add_settings(answer, Sampling, "temperature", "top_k", "top_p")
    text = parser.add_argument_group("input and output")
    text.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")
    more = parser.add_argument_group("drafting, learning and devices")
    flags.add_settings(more, DraftingOptions, "draft_length", "reuse_answers")
    more.add_argument(
        "--adapt", default="off", metavar="NAME", help=f"learn from the answers: {', '.join(ADAPT)} (default: off)"
    )
    flags.add(more, "--profile", help="where learned weights are kept: a file, or none (default: that of the pair)")
    flags.add(more, "--dtype", "--device", "--graphs", "--threads")
    flags.add_set(parser, more, GenerationLimits, Sampling, DraftingOptions, LearningOptions)
    return text


def settings(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a request, and those of `load`; raises ConfigError for one that is not usable."""
    kinds = (GenerationLimits, Sampling, DraftingOptions, LearningOptions)
    limits, sampling, drafting, learning = flags.collect(options, *kinds)
    stop_strings(options.stop)
    return {"stop": options.stop, **limits, **sampling}, {**drafting, **learning}


def load(options: argparse.Namespace, loading: dict[str, Any]) -> OmniDraft:
    """Load the models, and say on stderr which they are and what the target's generation config asks for."""
    model = flags.load_models(options, adapt=options.adapt, profile=options.profile, **loading)
    for role, m in described(model).items():
        step = f"; steps: {m['step']}" if m["step"] else ""
        flags.say(f"{role} {m['name']} in {m['dtype']} on {m['device']} ({m['dtype_reason']}){step}")
    asked = {name: value for name, value in vars(model.sampling).items() if value != getattr(Sampling(), name)}
    if asked:
        flags.say("the target's generation config: " + ", ".join(f"{name} {value}" for name, value in asked.items()))
    return model


def described(model: OmniDraft) -> dict[str, dict[str, str | None]]:
    """Name, type and device of the target and the drafter."""
    loaded = {"target": model.target, "drafter": model.drafter}
    return {
        role: {
            "name": m.name,
            "dtype": m.lm.precision,
            "dtype_reason": m.dtype_reason,
            "device": str(m.lm.device),
            "step": model.drafter_backend if role == "drafter" else None,
        }
        for role, m in loaded.items()
        if m is not None
    }


def as_dict(result: Generation) -> dict[str, Any]:
    """An answer for JSON."""
    answer = {"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason}
    return {**answer, "stats": result.stats.as_dict()}


def summary(result: Generation) -> str:
    """Length, speed and acceptance of an answer, in a line."""
    stats = result.stats
    without = f"{stats.rounds_without_draft} of {stats.rounds} rounds without a draft ({stats.no_draft_reason}); "
    return (
        f"{stats.tokens} tokens in {stats.seconds:.2f} s, prompt included ({stats.tokens_per_s:.1f} tokens/s); "
        f"block efficiency {stats.block_efficiency:.2f}, acceptance rate {stats.acceptance_rate:.2f}; "
        f"{without if stats.no_draft_reason else ''}ended by {result.finish_reason}"
    )
