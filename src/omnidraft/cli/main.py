"""The command line: `omnidraft generate`, `inspect`, `demo`, `bench`, `adapt` and `profiles`.

Answers go to stdout and everything else to stderr.  Exit codes: 0, 1 (something failed), 2 (bad input), 130 (Ctrl-C),
141 (the reader of stdout is gone).
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import omnidraft
from omnidraft import defaults, zoo
from omnidraft.cli import flags
from omnidraft.config import Drafting, GenerationLimits, Learning, Sampling, names, stop_strings, suggestion
from omnidraft.errors import ConfigError, InputError, NumericsError, OmniDraftError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import Generation, OmniDraft

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EMBEDDED = tuple(zoo.PREFIX + name for name in zoo.names("target"))
NO_READER = 141  # 128 + SIGPIPE

# commands that are read elsewhere, and their help
ELSEWHERE = {
    "adapt": ("omnidraft.cli.adapt", "let a drafter learn from a file of prompts"),
    "demo": ("omnidraft.cli.demo", "the embedded models, with and without drafts"),
    "bench": ("omnidraft.cli.bench", "compare ways of decoding, or report on comparisons"),
    "inspect": ("omnidraft.cli.inspect", "whether a drafter works for a target, and what it is worth"),
    "profiles": ("omnidraft.cli.profiles", "list, show or remove what was learned"),
}
COMMANDS = ("generate", *ELSEWHERE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the character must not end the answer
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries' advice to programmers
            code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except OmniDraftError as error:
        flags.say(f"error: {error}")
        # a model that returns NaN is as bad an input as one that cannot be read
        return 2 if isinstance(error, InputError | NumericsError) else 1
    except KeyboardInterrupt:
        flags.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # the interpreter flushes stdout once more on its way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    return code


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ELSEWHERE:
        return int(importlib.import_module(ELSEWHERE[arguments[0]][0]).main(arguments[1:], flags.CommandParser))
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise ConfigError(f"unknown command {arguments[0]!r}: {suggestion(arguments[0], COMMANDS)}")
    try:
        options, unknown = _parser().parse_known_args(arguments)
    except SystemExit:  # after --help or --version
        return 0
    if unknown:
        settings = (name for cls in (Drafting, Learning, Sampling, GenerationLimits) for name in names(cls))
        own = ("target", "drafter", "raw", "stop", "json")
        known = [flags.flag(name) for name in (*flags.LOAD, *flags.LEARN, *settings, *own)]
        fix = suggestion(unknown[0], known) if unknown[0].startswith("-") else "put quotation marks around the prompt"
        raise ConfigError(f"unknown argument {unknown[0]!r}: {fix}")
    flags.quiet_libraries()
    return _generate(options)


# ---------------------------------------------------------------- generate


def _generate(options: argparse.Namespace) -> int:
    given = vars(options)
    sampling, drafting, learning = (
        {name: given[name] for name in names(cls) if name in given} for cls in (Sampling, Drafting, Learning)
    )
    # what is wrong with the options or the prompt is said before seconds are spent on loading
    Sampling(**sampling)
    Drafting(**drafting)
    Learning(**learning)
    extent = {name: given[name] for name in flags.GENERATE if name in given}
    GenerationLimits(**extent)
    stop_strings(options.stop)
    prompt = _prompt(options.prompt)
    from omnidraft.api import load

    if "profile" in given:
        given["profile"] = flags.unless_none(given["profile"])
    loading = {name: given[name] for name in (*flags.LOAD, *flags.LEARN) if name in given}
    drafter = flags.unless_none(options.drafter)
    model = load(options.target, drafter, warn=flags.say, **loading, **drafting, **learning)
    for role, m in _models(model).items():
        step = f"; steps: {m['step']}" if m["step"] else ""
        flags.say(f"{role} {m['name']} in {m['dtype']} on {m['device']} ({m['dtype_reason']}){step}")
    if model.sampling != Sampling():
        asked = (
            f"{name} {value}" for name, value in vars(model.sampling).items() if value != getattr(Sampling(), name)
        )
        flags.say(f"the target's generation config: {', '.join(asked)}")
    ids = model.encode(prompt) if options.raw else model.encode_message(prompt)
    stream = model.stream(ids, stop=options.stop, **extent, **sampling)
    code = 0
    try:
        with flags.interruptible() as check:
            for piece in stream:
                check()
                if not options.json:
                    print(piece, end="", flush=True)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        if not options.json:
            print()
    if options.json:
        print(_as_json(model, stream.result))
    flags.say(_summary(stream.result))
    model.close()
    return code


def _prompt(argument: str) -> str:
    """The prompt as given, or all of stdin for `-`, without its last line end."""
    if argument != "-":
        text = argument
    else:
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PromptError(f"the prompt on stdin is no UTF-8 ({error}): convert it") from error
        text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise PromptError("the prompt is empty: give some text, or - to read it from stdin")
    return text


def _models(model: OmniDraft) -> dict[str, dict[str, str | None]]:
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


def _as_json(model: OmniDraft, result: Generation) -> str:
    return json.dumps(
        {
            "text": result.text,
            "token_ids": result.token_ids,
            "finish_reason": result.finish_reason,
            "stats": result.stats.as_dict(),
            **_models(model),
        }
    )


def _summary(result: Generation) -> str:
    stats = result.stats
    idle = (
        f"no draft in {stats.rounds_without_draft} of {stats.rounds} rounds, mostly as {stats.no_draft_reason}; "
        if stats.no_draft_reason
        else ""
    )
    return (
        f"{stats.tokens} tokens in {stats.seconds:.2f} s, prompt included ({stats.tokens_per_s:.1f} a second); "
        f"block efficiency {stats.block_efficiency:.2f}, acceptance rate {stats.acceptance_rate:.2f}; "
        f"{idle}ended by {result.finish_reason}"
    )


# ---------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = flags.CommandParser(
        prog="omnidraft",
        description="Faster answers of any causal language model, unchanged.",
        examples=(
            "omnidraft demo",
            f'omnidraft generate "def mean(values):" --target {EMBEDDED[0]}',
            f"omnidraft inspect {EMBEDDED[-1]}",
            "omnidraft COMMAND --help",
        ),
    )
    parser.add_argument("--version", action="version", version=f"omnidraft {omnidraft.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    generate = commands.add_parser(
        "generate",
        help="answer a prompt",
        usage="%(prog)s PROMPT --target MODEL [--drafter MODEL] [OPTION ...]",
        description="Answer a prompt: in the chat template of a target that has one, else by continuing it.",
        allow_abbrev=False,
        examples=(
            f'omnidraft generate "def mean(values):" --target {EMBEDDED[0]}',
            'omnidraft generate "Why is the sky blue?" --target Qwen/Qwen2-7B-Instruct --max-new-tokens 500',
            f"omnidraft generate - --target ./my-model --drafter {defaults.EMBEDDED} --adapt background < prompt.txt",
        ),
    )
    generate.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    generate.add_argument(
        "--target", required=True, metavar="MODEL", help=f"a folder, a hub id, or one that ships: {', '.join(EMBEDDED)}"
    )
    generate.add_argument(
        "--drafter", default="auto", metavar="MODEL", help=f"likewise, or none (default: {flags.DRAFTER})"
    )
    generate.add_argument("--raw", action="store_true", help="continue the text as it stands, without a chat template")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text; repeatable"
    )
    generate.add_argument("--json", action="store_true", help="print one JSON object with text, token ids and stats")
    flags.add(generate, "models", flags.LOAD)
    flags.add(generate, "drafting", flags.settings(Drafting))
    flags.add(generate, "learning", {**flags.LEARN, **flags.settings(Learning)})
    flags.add(generate, "sampling", {**flags.GENERATE, **flags.settings(Sampling)})

    # for the list of commands only: what follows it is read elsewhere
    for command, (_, text) in ELSEWHERE.items():
        commands.add_parser(command, help=text, add_help=False)
    return parser
