"""Commands whose output leads nowhere: closed streams, pipes without a reader, full disks."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnidraft.cli import main as cli
from omnidraft.cli import streams
from omnidraft.cli.streams import FAILED, NO_READER
from omnidraft.models.memory import NO_THREAD
from support.project_files import environment

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device"),
]
Captured = pytest.CaptureFixture[str]
FULL = "omnidraft: error: cannot write to stdout (No space left on device): "
CLOSED = "omnidraft: error: stdout is closed: "
QUICK = {  # commands that load no model, and their exit codes
    "--version": 0,
    "--help": 0,
    "bench compare --help": 0,
    "cache --json": 0,
    "make-drafter --help": 0,
    "profiles list --json": 0,
    "inspect --header no.gguf": 2,
}


def run(words: list[str], redirected: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "omnidraft", *words]
    return subprocess.run(
        command, env=environment(home) | more, capture_output=True, text=True, check=False, encoding="utf-8"
    )


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", NO_READER, CLOSED),
        ("<&- >&- 2>&-", NO_READER, ""),
        (">/dev/full", FAILED, FULL),
        (">/dev/full 2>&1", FAILED, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
    ],
)
def test_no_command_shows_a_traceback(redirected: str, code: int, said: str, unbuffered: str, home: Path) -> None:
    for command, usual in QUICK.items():
        done = run(command.split(), redirected, home, PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == (usual or code), (command, done)
        assert done.stdout == "" if code else done.stdout or usual, command
        lines = done.stderr.splitlines()
        if usual:
            assert len(lines) == ("2>" not in redirected)
        else:
            assert [line.startswith(said) for line in lines] == [True] * bool(said), (command, lines)


@contextmanager
def led(monkeypatch: pytest.MonkeyPatch, stream: str, where: str) -> Iterator[None]:
    """A standard stream leads to a pipe without a reader, or to a full disk."""
    with monkeypatch.context() as patch:
        if where == "pipe":
            read, write = os.pipe()
            os.close(read)
        else:
            write = os.open("/dev/full", os.O_WRONLY)
        patch.setattr(sys, stream, os.fdopen(write, "w", encoding="utf-8", closefd=False))
        yield
        os.close(write)


@pytest.fixture(params=["generate", "generate --json", "chat", "chat --json", "inspect", "demo"])
def command(request: pytest.FixtureRequest, target: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a command that writes an answer or tables."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n"), encoding="utf-8"))
    monkeypatch.setattr("omnidraft.demo.demonstration.QUICK_TOKENS", 4)
    name, *more = request.param.split()
    rest = ["--target", str(target), "--drafter", "none", "--max-new-tokens", "4", *more]
    words = {
        "generate": ["hello", *rest],
        "chat": ["--target", "zoo:target-b", *rest[2:]],
        "inspect": ["zoo:target-b", "--drafter", "zoo:drafter"],
        "demo": ["--quick"],
    }
    return [name, *words[name]]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "code", "said"), [("pipe", NO_READER, ""), ("disk", FAILED, FULL)])
def test_an_answer_that_cannot_be_written(
    command: list[str], where: str, code: int, said: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with led(monkeypatch, "stdout", where):
        assert cli.main(command) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert [line.startswith(said) for line in errors] == [True] * bool(said)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pipe", "disk"])
def test_messages_that_nobody_reads(
    command: list[str], where: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with led(monkeypatch, "stderr", where):
        assert cli.main(command) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("terminal", "named", "encoding"), [(False, "", "utf-8"), (True, "", "cp1252"), (False, "cp1252", "cp1252")]
)
def test_files_and_pipes_of_windows_are_in_utf_8(
    terminal: bool, named: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all that is read is, whatever its own characters are; those of a terminal, and those asked for, stay."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if named:
        monkeypatch.setenv("PYTHONIOENCODING", named)

    class File(io.FileIO):
        def isatty(self) -> bool:
            return terminal

    text, path = "été ✓ 你好\n", tmp_path / "out"
    with io.TextIOWrapper(io.BufferedWriter(File(path, "w")), encoding="cp1252") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with streams.usable():
            sys.stdout.write(text)
            sys.stdout.flush()
    assert path.read_bytes() == text.encode(encoding, "replace")


def test_a_pipe_of_windows_without_a_reader(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """It says that an argument is wrong."""

    class Gone(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, _: object, /) -> int:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Gone()), encoding="utf-8"))
    assert cli.main(["cache", "--json"]) == FAILED
    assert "error" in capsys.readouterr().err
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Gone()), encoding="utf-8"))
    assert cli.main(["cache", "--json"]) == NO_READER
    assert "error" not in capsys.readouterr().err


def test_a_full_disk_elsewhere_is_one_line(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr("omnidraft.cli.cache.main", full)
    assert cli.main(["cache"]) == FAILED
    assert "error: cannot write ([Errno 28] No space left on device: 'here'): " in capsys.readouterr().err


def test_a_limit_of_threads_is_one_line(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: object) -> None:
        raise RuntimeError(NO_THREAD)

    monkeypatch.setattr("omnidraft.cli.cache.main", crowded)
    monkeypatch.setattr("omnidraft.systems.address_limit", lambda: None)
    assert cli.main(["cache"]) == FAILED
    assert "error: can't start new thread: use fewer (--threads)" in capsys.readouterr().err


def test_more_threads_than_can_be_started_are_refused(capsys: Captured) -> None:
    assert cli.main(["generate", "hi", "--target", "zoo:target-b", "--threads", "100000"]) == 2
    assert "--threads: '100000' is no integer from 1 to 1024: " in capsys.readouterr().err
