"""`omnidraft chat`: a conversation in the terminal; answers go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft.cli import answering, flags
from omnidraft.cli.prompts import MARK
from omnidraft.config import suggestion
from omnidraft.errors import ConfigError, InputError, PromptError
from omnidraft.storage import replace_file

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.conversation import Conversation

EXAMPLES = (
    "omnidraft chat --target ./my-model --adapt background --temperature 0.7",
    f"omnidraft chat --target {flags.TARGET} --json < messages.txt",
)
PROMPT = "> "
COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?")
COMMANDS = {
    "help": "/help          show this",
    "stats": "/stats         totals: tokens, time, acceptance, memory, learning",
    "reset": "/reset         begin a new conversation",
    "save": "/save FILE     write the conversation as JSON",
    "quit": "/quit, Ctrl-D  leave; Ctrl-C stops an answer",
}
LEAVING = ("quit", "exit", "bye")  # the last two as in other programs
NEAR = 0.75  # of names, by difflib: a slip of the finger
# of what a model writes, characters that a terminal would obey
OBEYED = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")}, "\N{REPLACEMENT CHARACTER}")


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft chat`; raises InputError and its kinds, for options before any model is loaded."""
    options = _parser().read(arguments)
    asked, loading = answering.settings(options)
    with answering.load(options, loading) as model:
        from omnidraft.conversation import Conversation

        talk = Conversation(model, options.system, **asked)
        return _Chat(talk, model, options).run()


class _Chat:
    """Lines in, answers and the effects of commands out."""

    def __init__(self, talk: Conversation, model: OmniDraft, options: argparse.Namespace) -> None:
        from rich.console import Console

        self.talk, self.model, self.json = talk, model, options.json
        self.person = sys.stdin.isatty()
        self.aside = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.saved: set[Path] = set()
        self.commands: dict[str, Callable[[str], object]] = {
            "help": lambda _: self.say("\n".join(COMMANDS.values())),
            "stats": lambda _: self.say(self._stats()),
            "reset": lambda _: self._reset(),
            "save": self._save,
        }

    def say(self, text: str) -> None:
        """To a person quietly; to a script as every command does."""
        if self.person:
            self.aside.print(text, style="dim")
        else:
            for line in text.splitlines():
                flags.say(line)

    def run(self) -> int:
        """Every line until the end or /quit; 130 where Ctrl-C ends what a script sends."""
        if self.person:
            self.say("/help lists the commands; Ctrl-D leaves")
        for line in _typed() if self.person else _piped():
            command = _command(line)
            if command and command[1].lower() in LEAVING:
                break
            try:
                if command:
                    self._do(command[1].lower(), command[2] or "")
                elif line.strip() and not self._answer(line) and not self.person:
                    return flags.INTERRUPTED
            except InputError as error:
                if not self.person:
                    raise
                flags.say(f"error: {error}")
        return 0

    def _do(self, name: str, argument: str) -> None:
        if name not in self.commands:
            fix = f"{suggestion(name, COMMANDS)} With a space before the slash, the line is a message"
            raise ConfigError(f"unknown command /{name}: {fix}")
        self.commands[name](argument)

    def _answer(self, message: str) -> bool:
        """Stream the answer to a message; False where Ctrl-C stopped it."""
        before = len(self.talk.answers)
        with flags.stoppable() as stopped, closing(_steps(self.talk, message, stopped)) as pieces:
            for piece in pieces:
                if not self.json:
                    print(piece.translate(OBEYED) if sys.stdout.isatty() else piece, end="", flush=True)
                if stopped():
                    break
            interrupted = stopped()
        answer = self.talk.answers[-1] if len(self.talk.answers) > before else None
        if self.json:
            print(json.dumps(answering.as_dict(answer) if answer else {}), flush=True)
        else:
            print(flush=True)
        self.say(answering.summary(answer) if answer else "stopped before the first token")
        return not interrupted

    def _stats(self) -> str:
        stats, learned = self.talk.stats, self.model.learned
        counters = ", ".join(f"{name} {value:g}" for name, value in learned.items())
        time = f"{stats.seconds:.2f} s ({stats.tokens_per_s:.1f} tokens/s)"
        return (
            f"answers: {len(self.talk.answers)}; {stats.tokens} tokens in {time}\n"
            f"block efficiency {stats.block_efficiency:.2f}, acceptance rate {stats.acceptance_rate:.2f}\n"
            f"KV cache: {self.talk.cache_bytes / 1e6:.1f} MB\n"
            f"learned: {counters or 'nothing'}"
        )

    def _reset(self) -> None:
        self.talk.reset()
        self.say("a new conversation")

    def _save(self, name: str) -> None:
        """Write the conversation; a file that this chat did not write is left alone."""
        if not name:
            raise ConfigError("/save wants the name of a file: give one, such as /save chat.json")
        path = Path(os.path.expanduser(name))  # noqa: PTH111  this and the next raise nothing, as those of Path do
        if os.path.exists(path) and path not in self.saved:  # noqa: PTH110
            raise ConfigError(f"{name} is there already: give another name")
        try:
            replace_file(path, self.talk.as_json().encode())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write {name} ({error}): give another name") from error
        self.saved.add(path)
        self.say(f"saved {len(self.talk.messages)} messages in {name}")


def _command(line: str) -> re.Match[str] | None:
    """The name and the argument of a command; a line whose name is near none is a message, as is one after a space."""
    command = COMMAND.fullmatch(line.rstrip())
    names = [*COMMANDS, *(() if command is None or command[2] else LEAVING)]  # "/bye bye" says something
    near = command and difflib.get_close_matches(command[1].lower(), names, n=1, cutoff=NEAR)
    return command if near else None


def _steps(talk: Conversation, message: str, stopped: Callable[[], bool]) -> Generator[str, None, None]:
    """The pieces of an answer; a conversation that has grown too long is told how to go on."""
    try:
        yield from talk.ask(message, stopped)
    except PromptError as error:
        raise PromptError(f"{error}; /reset begins a new conversation", code=error.code) from error


def _typed() -> Iterator[str]:
    """Lines from the keyboard, with history and editing where there is readline; Ctrl-C gives up the line."""
    with suppress(ImportError):
        import readline  # noqa: F401  (`input` uses it)
    while True:
        try:
            if not sys.stdout.isatty():  # the answers go elsewhere, and the sign must not
                print(PROMPT, end="", file=sys.stderr, flush=True)
            line = input(PROMPT if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        except EOFError:
            print(file=sys.stderr)
            return
        yield line


def _piped() -> Iterator[str]:
    """Lines of stdin, without a byte-order mark before the first; raises PromptError for bytes that are no text."""
    for number, line in enumerate(sys.stdin.buffer):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
            yield text if number else text.removeprefix(MARK)
        except UnicodeDecodeError as error:
            raise PromptError(f"a message on stdin is no UTF-8 ({error}): convert it") from error


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft chat",
        usage="%(prog)s --target MODEL [--drafter MODEL] [OPTION ...]",
        description="Talk with a target in its chat template. If stdin is no terminal, each line is a message.",
        examples=EXAMPLES,
    )
    text = answering.add_flags(parser)
    text.add_argument("--system", metavar="TEXT", help="system message")
    flags.add(text, "--json", help="print a line of JSON for each answer")
    return parser
