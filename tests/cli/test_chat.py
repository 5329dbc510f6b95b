"""`omnidraft chat`: through its own entry point by lines of stdin, and at a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import Stream
from omnidraft.cli import main as cli
from omnidraft.cli.flags import INTERRUPTED
from omnidraft.models.language_model import Read
from omnidraft.models.transformers_model import TransformersModel
from support.homes import with_native
from support.project_files import environment
from support.reads import watch
from support.waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]
Chat = Callable[..., int]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SIZE = 12  # tokens of an answer


@pytest.fixture(scope="module")
def chatty(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(target, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture
def chat(chatty: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    def run(lines: str | bytes, *more: str) -> int:
        data = lines if isinstance(lines, bytes) else lines.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        models = ["--target", str(chatty), "--drafter", str(drafter)]
        return cli.main(["chat", *models, "--max-new-tokens", str(SIZE), *more])

    return run


def expected(chatty: Path, *users: str, system: str | None = None) -> list[str]:
    """The answers of the target alone to messages in turns."""
    model = omnidraft.load(chatty, None, profile=None)
    messages = [] if system is None else [{"role": "system", "content": system}]
    for text in users:
        messages.append({"role": "user", "content": text})
        answer = model.generate(messages, max_new_tokens=SIZE).text
        messages.append({"role": "assistant", "content": answer})
    return [message["content"] for message in messages if message["role"] == "assistant"]


# ------------------------------------------------------------ lines of a script


@pytest.mark.medium
def test_each_line_is_a_message_and_follows_from_those_before(chat: Chat, chatty: Path, capsys: Captured) -> None:
    first, second = expected(chatty, "hello", "world")
    (alone,) = expected(chatty, "world")
    assert second != alone, "else nothing is shown"
    capsys.readouterr()
    assert chat("hello\n\nworld\r\n") == 0
    out, err = capsys.readouterr()
    assert out == f"{first}\n{second}\n"
    assert err.count(f"{SIZE} tokens in") == 2
    assert chat("hello\n/reset\nworld") == 0
    assert capsys.readouterr().out == f"{first}\n{alone}\n"


@pytest.mark.medium
def test_a_system_message_stays_when_the_rest_goes(chat: Chat, chatty: Path, capsys: Captured) -> None:
    (answer,) = expected(chatty, "hello", system="world")
    assert [answer] != expected(chatty, "hello")
    capsys.readouterr()
    assert chat("hello\n/reset\nhello\n", "--system", "world") == 0
    assert capsys.readouterr().out == f"{answer}\n" * 2


@pytest.mark.medium
def test_the_flags_are_those_of_generate(chat: Chat, chatty: Path, capsys: Captured) -> None:
    model = omnidraft.load(chatty, None, profile=None)
    asked = [{"role": "user", "content": "hello"}]
    answer = model.generate(asked, max_new_tokens=SIZE, temperature=0.9, seed=3, top_k=20)
    capsys.readouterr()
    assert (
        chat("hello\n", "--temperature", "0.9", "--seed", "3", "--set", "top_k=20", "--drafter", "none", "--json") == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["token_ids"]) == (answer.text, list(answer.token_ids))
    assert found["stats"]["tokens"] == SIZE


@pytest.mark.medium
def test_a_later_message_is_read_alone(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    watch(monkeypatch, TransformersModel, lambda each: read.append(len(each.ids)))
    assert chat("hello " * 300 + "\nworld\n", "--draft-length", "0") == 0
    passes = [count for count in read if count > 1]
    assert len(passes) == 2
    assert passes[1] < passes[0] / 4


@pytest.mark.medium
def test_stats_and_help(chat: Chat, capsys: Captured) -> None:
    assert chat("/help\n/stats\nhello\nworld\n/stats\n", "--adapt", "inline") == 0
    err = capsys.readouterr().err
    for name in ("/help", "/stats", "/reset", "/save FILE", "/quit"):
        assert name in err
    assert "answers: 0; 0 tokens" in err
    assert f"answers: 2; {2 * SIZE} tokens" in err
    assert "KV cache: 0.0 MB" in err
    assert "learned: answers" in err


@pytest.mark.medium
def test_a_conversation_is_saved(chat: Chat, chatty: Path, tmp_path: Path, capsys: Captured) -> None:
    answers = expected(chatty, "hello", "world")
    path = tmp_path / "a chat.json"
    assert chat(f"hello\n/save {path}\nworld\n/save {path}\n") == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["target"] == "chatty"
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"] * 2
    assert [message["content"] for message in saved["messages"][1::2]] == answers
    before = path.read_bytes()
    capsys.readouterr()
    assert chat(f"/save {path}\n") == 2, "of another chat"
    assert "is there already" in capsys.readouterr().err
    assert path.read_bytes() == before


BAD = {
    "unknown": ("/sav x\n", "unknown command /sav: did you mean 'save'? With a space before the slash"),
    "no file": ("/save\n", "/save wants the name of a file"),
    "no folder": ("hello\n/save {folder}/none/x.json\n", "cannot write"),
    "no name": (f"hello\n/save {'x' * 300}\n", "cannot write"),
    "no UTF-8": (b"hello\n\xff\n", "no UTF-8"),
    "too long": ("hello " * 5000 + "\n", "/reset begins a new conversation"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_done_ends_a_script(name: str, chat: Chat, tmp_path: Path, capsys: Captured) -> None:
    lines, words = BAD[name]
    given = lines.replace("{folder}", str(tmp_path)) if isinstance(lines, str) else lines
    assert chat(given) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert words in errors[0]


@pytest.mark.parametrize("name", ["quit", "exit", "bye", "Quit", "quit now"])
def test_quit_reads_no_further(name: str, chat: Chat, capsys: Captured) -> None:
    assert chat(f"/{name}\nhello\n") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.medium
def test_a_byte_order_mark_is_no_part_of_the_first_line(chat: Chat, capsys: Captured) -> None:
    assert chat("\ufeff/stats\n\ufeff/quit") == 0
    out, err = capsys.readouterr()
    assert "answers: 0;" in err
    assert out.strip(), "what is before another line is of the message"


@pytest.mark.medium
def test_a_path_is_no_command(chat: Chat, capsys: Captured) -> None:
    assert chat("/hello/world what\n") == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.medium
@pytest.mark.parametrize(
    "line", ["/no_think hello", "/list is full, what now?", "/nothing", " /sav x", " /stats", "/bye bye"]
)
def test_a_line_that_is_near_no_command_is_a_message(line: str, chat: Chat, chatty: Path, capsys: Captured) -> None:
    expected_answers = expected(chatty, line, "world")
    capsys.readouterr()
    assert chat(f"{line}\nworld\n") == 0
    assert capsys.readouterr().out.removesuffix("\n") == "\n".join(expected_answers)


@pytest.mark.medium
def test_a_system_message_for_a_template_that_refuses_it(chat: Chat, chatty: Path, capsys: Captured) -> None:
    template = chatty / "chat_template.jinja"
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template.write_text(refusing + TEMPLATE, encoding="utf-8")
    try:
        (answer,) = expected(chatty, "Be short.\nhello")
        capsys.readouterr()
        assert chat("hello\n", "--system", "Be short.") == 0
    finally:
        template.write_text(TEMPLATE, encoding="utf-8")
    assert capsys.readouterr().out == f"{answer}\n"


def test_a_target_without_template_is_told_of_generate(target: Path, capsys: Captured) -> None:
    assert cli.main(["chat", "--target", str(target), "--drafter", "none"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (error,) = (line for line in err.splitlines() if "error:" in line)
    assert "no chat template" in error
    assert "use omnidraft generate" in error


@pytest.mark.medium
def test_ctrl_c_ends_a_script_with_the_text_so_far(
    chat: Chat, chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = expected(chatty, "hello")
    step = Stream.step
    count = 0

    def interrupted(stream: Stream) -> str | None:
        nonlocal count
        count += 1
        if count == 4:
            signal.raise_signal(signal.SIGINT)
        return step(stream)

    monkeypatch.setattr(Stream, "step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    capsys.readouterr()
    assert chat("hello\nworld\n") == INTERRUPTED
    out, err = capsys.readouterr()
    text = out.removesuffix("\n")
    assert text
    assert text != whole
    assert whole.startswith(text)
    assert "ended by interrupted" in err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_a_message_is_read_ends_it(chat: Chat, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = 0

    def interrupted(read: Read) -> None:
        nonlocal parts
        parts += read.keep == 0
        if parts == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TransformersModel, "chunk", 8)
    watch(monkeypatch, TransformersModel, interrupted)
    assert chat("hello world " * 40 + "\n", "--draft-length", "0") == INTERRUPTED
    assert parts == 2
    assert "stopped before the first token" in capsys.readouterr().err


# ------------------------------------------------------------ a terminal


class Screen(io.TextIOWrapper):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.medium
@pytest.mark.parametrize("kind", [Screen, io.TextIOWrapper])
def test_a_terminal_obeys_no_answer(kind: type[io.TextIOWrapper], chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = iter(["one\n\t", "\x1b[2J\x9b2J\rtwo"])
    monkeypatch.setattr(Stream, "step", lambda _: next(pieces, None))
    stdout = kind(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert chat("hello\n") == 0
    shown = stdout.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown == ("one\n\t\ufffd[2J\ufffd2J\ufffdtwo\n" if kind is Screen else "one\n\t\x1b[2J\x9b2J\rtwo\n")


class Terminal:
    """A process at a terminal of its own, and what it has written."""

    def __init__(self, command: list[str], home: Path) -> None:
        self._here, there = pty.openpty()
        pipes: dict[str, Any] = {"stdin": there, "stdout": there, "stderr": there}
        self.process = subprocess.Popen(command, env=environment(with_native(home)), start_new_session=True, **pipes)
        os.close(there)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def wait_for(self, words: str, seconds: float = WAIT_S) -> None:
        """Read until the words are there, and forget what is before their end."""
        end = time.monotonic() + seconds
        while words not in self.text:
            ready, _, _ = select.select([self._here], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {words!r} in {self.text!r}"
            self.text += os.read(self._here, 4096).decode(errors="replace")
        self.text = self.text.partition(words)[2]

    def wait_for_more(self) -> None:
        """Read until anything is there."""
        ready, _, _ = select.select([] if self.text else [self._here], [], [], 0 if self.text else WAIT_S)
        assert self.text or ready, "nothing comes"

    def shows(self, words: str, seconds: float) -> bool:
        """`wait_for`, and whether they came in time."""
        try:
            self.wait_for(words, seconds)
        except AssertionError:
            return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)


@pytest.fixture
def terminal(chatty: Path, drafter: Path, home: Path) -> Iterator[Terminal]:
    models = ["--target", str(chatty), "--drafter", str(drafter), "--max-new-tokens", "3000"]
    terminal = Terminal([sys.executable, "-m", "omnidraft", "chat", *models], home)
    yield terminal
    terminal.close()


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("hello\r\n")
    terminal.wait_for_more()
    os.killpg(terminal.process.pid, signal.SIGINT)  # as a terminal does
    terminal.wait_for("ended by interrupted")
    terminal.wait_for("> ")
    terminal.type("half a li")
    terminal.wait_for("half a li")
    for _ in range(20):  # Python misses a signal between two waits for a key
        os.killpg(terminal.process.pid, signal.SIGINT)  # no answer is made: only the line is given up
        if terminal.shows("> ", seconds=1):
            break
    else:
        pytest.fail("Ctrl-C does not give up the line")
    terminal.type("/sav\n")
    terminal.wait_for("unknown command /sav")
    terminal.wait_for("> ")
    terminal.type(f"/save {tmp_path / 'chat.json'}\n")
    terminal.wait_for("saved 2 messages")
    user, answer = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert user == {"role": "user", "content": "hello"}
    assert answer["content"]
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(WAIT_S) == 0
