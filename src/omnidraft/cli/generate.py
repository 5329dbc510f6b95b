"""`omnidraft generate`: answer one prompt; the answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnidraft.cli import answering, flags
from omnidraft.cli.prompts import MARK
from omnidraft.errors import PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

EXAMPLES = (
    f'omnidraft generate "def mean(values):" --target {flags.TARGET}',
    "omnidraft generate - --target ./my-model --adapt background < prompt.txt",
    f'omnidraft generate "Once" --target {flags.TARGET} --temperature 0.8 --set min_p=0.05 --set max_draft_length=8',
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft generate`; raises InputError and its kinds, for options before any model is loaded."""
    options = _parser().read(arguments)
    asked, loading = answering.settings(options)
    prompt = _prompt(options.prompt)
    model = answering.load(options, loading)
    ids = model.encode(prompt) if options.raw else model.encode_message(prompt)
    return _answer(model, ids, asked, as_json=options.json)


def _answer(model: OmniDraft, ids: list[int], asked: dict[str, Any], *, as_json: bool) -> int:
    """Stream the answer to stdout, or print it as JSON; 130 after Ctrl-C, with the answer so far."""
    stream = model.stream(ids, **asked)
    code = 0
    try:
        with flags.interruptible() as check:
            for piece in stream:
                check()
                if not as_json:
                    print(piece, end="", flush=True)
    except KeyboardInterrupt:
        code = flags.INTERRUPTED
    finally:
        if not as_json:
            print(flush=True)  # before what is said on stderr, which may be the same file
    if as_json:
        print(json.dumps(answering.as_dict(stream.result) | answering.described(model)))
    flags.say(answering.summary(stream.result))
    model.close()
    return code


def _prompt(argument: str) -> str:
    """The argument, or stdin for `-`, without its last line end; neither begins with a byte-order mark."""
    text = argument
    if argument == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PromptError(f"the prompt on stdin is no UTF-8 ({error}): convert it") from error
        text = text.removesuffix("\n").removesuffix("\r")
    text = text.removeprefix(MARK)
    if not text:
        raise PromptError("the prompt is empty: give some text, or - to read it from stdin")
    return text


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft generate",
        usage="%(prog)s PROMPT --target MODEL [--drafter MODEL] [OPTION ...]",
        description="Answer a prompt: in the chat template of a target that has one, else by continuing it.",
        examples=EXAMPLES,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    text = answering.add_flags(parser)
    text.add_argument("--raw", action="store_true", help="continue the prompt without a chat template")
    flags.add(text, "--json", help="print one line of JSON with text, token ids and stats")
    return parser
