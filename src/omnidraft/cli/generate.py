"""`omnidraft generate`: answer one prompt; the answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnidraft.cli import flags
from omnidraft.config import ADAPT, Drafting, GenerationLimits, Learning, Sampling, stop_strings
from omnidraft.errors import PromptError

if TYPE_CHECKING:
    from omnidraft.api import Generation, OmniDraft

EXAMPLES = (
    f'omnidraft generate "def mean(values):" --target {flags.TARGET}',
    'omnidraft generate "Why is the sky blue?" --target Qwen/Qwen2-7B-Instruct --max-new-tokens 500',
    "omnidraft generate - --target ./my-model --adapt background < prompt.txt",
    f'omnidraft generate "Once" --target {flags.TARGET} --temperature 0.8 --set min_p=0.05 --set verification=token',
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft generate`; raises InputError and its kinds, for options before any model is loaded."""
    options = _parser().read(arguments)
    limits, sampling, drafting, learning = flags.collect(options, GenerationLimits, Sampling, Drafting, Learning)
    stop_strings(options.stop)
    prompt = _prompt(options.prompt)
    model = flags.load_models(options, adapt=options.adapt, profile=options.profile, **drafting, **learning)
    for role, m in _models(model).items():
        step = f"; steps: {m['step']}" if m["step"] else ""
        flags.say(f"{role} {m['name']} in {m['dtype']} on {m['device']} ({m['dtype_reason']}){step}")
    asked = {name: value for name, value in vars(model.sampling).items() if value != getattr(Sampling(), name)}
    if asked:
        flags.say("the target's generation config: " + ", ".join(f"{name} {value}" for name, value in asked.items()))
    ids = model.encode(prompt) if options.raw else model.encode_message(prompt)
    return _answer(model, ids, options, {**limits, **sampling})


def _answer(model: OmniDraft, ids: list[int], options: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Stream the answer to stdout, or print it as JSON; 130 after Ctrl-C, with the answer so far."""
    stream = model.stream(ids, stop=options.stop, **settings)
    code = 0
    try:
        with flags.interruptible() as check:
            for piece in stream:
                check()
                if not options.json:
                    print(piece, end="", flush=True)
    except KeyboardInterrupt:
        code = flags.INTERRUPTED
    finally:
        if not options.json:
            print()
    result = stream.result
    if options.json:
        answer = {"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason}
        print(json.dumps({**answer, "stats": result.stats.as_dict(), **_models(model)}))
    flags.say(_summary(result))
    model.close()
    return code


def _prompt(argument: str) -> str:
    """The argument, or stdin for `-`, without its last line end."""
    text = argument
    if argument == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PromptError(f"the prompt on stdin is no UTF-8 ({error}): convert it") from error
        text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise PromptError("the prompt is empty: give some text, or - to read it from stdin")
    return text


def _models(model: OmniDraft) -> dict[str, dict[str, str | None]]:
    """Name, type and device of the target and the drafter."""
    loaded = {"target": model.target, "drafter": model.drafter}
    return {
        role: {
            "name": m.name,
            "dtype": str(m.lm.dtype).removeprefix("torch."),
            "dtype_reason": m.dtype_reason,
            "device": str(m.lm.device),
            "step": model.drafter_step if role == "drafter" else None,
        }
        for role, m in loaded.items()
        if m is not None
    }


def _summary(result: Generation) -> str:
    stats = result.stats
    without = f"no draft in {stats.rounds_without_draft} of {stats.rounds} rounds, mostly as {stats.no_draft_reason}; "
    return (
        f"{stats.tokens} tokens in {stats.seconds:.2f} s, prompt included ({stats.tokens_per_s:.1f} tokens/s); "
        f"block efficiency {stats.block_efficiency:.2f}, acceptance rate {stats.acceptance_rate:.2f}; "
        f"{without if stats.no_draft_reason else ''}ended by {result.finish_reason}"
    )


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft generate",
        usage="%(prog)s PROMPT --target MODEL [--drafter MODEL] [OPTION ...]",
        description="Answer a prompt: in the chat template of a target that has one, else by continuing it.",
        examples=EXAMPLES,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    models = parser.add_argument_group("models")
    flags.add(models, "--target")
    flags.add(models, "--drafter", help=f"likewise, or none (default: {flags.DEFAULT})")
    answer = parser.add_argument_group("answer (sampling defaults to the target's generation config, else to these)")
    flags.add_settings(answer, GenerationLimits)
    flags.add_settings(answer, Sampling, "temperature", "top_k", "top_p")
    text = parser.add_argument_group("input and output")
    text.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")
    text.add_argument("--raw", action="store_true", help="continue the prompt without a chat template")
    flags.add(text, "--json", help="print one JSON object with text, token ids and stats")
    more = parser.add_argument_group("drafting, learning and devices")
    flags.add_settings(more, Drafting, "draft_length", "sources")
    more.add_argument(
        "--adapt", default="off", metavar="NAME", help=f"learn from the answers: {', '.join(ADAPT)} (default: off)"
    )
    flags.add(more, "--profile", help="where learned weights are kept: a file, or none (default: that of the pair)")
    flags.add(more, "--dtype", "--device")
    flags.add_set(parser, more, GenerationLimits, Sampling, Drafting, Learning)
    return parser
