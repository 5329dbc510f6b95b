"""`omnidraft adapt`, and `omnidraft generate --adapt`, as they are typed; in a process where signals matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft import OmniDraft
from omnidraft.cli import main as cli
from omnidraft.cli.adapt import NAMED, Data
from omnidraft.cli.flags import INTERRUPTED
from omnidraft.distillation.trainer import Trainer
from omnidraft.profiles.autosave import POSITION
from omnidraft.profiles.profile_file import ProfileFile
from support.learning import PROMPTS, found, saved, tree
from support.models import CONTEXT
from support.project_files import environment, lines

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]


def command(target: Path, drafter: Path, data: Path, *more: object) -> list[str]:
    models = ["--target", str(target), "--drafter", str(drafter)]
    return ["adapt", *models, "--data", str(data), "--max-new-tokens", "8", "--set", "interval=2", *map(str, more)]


def jsonl(folder: Path, prompts: Sequence[str]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def numbered(count: int) -> list[str]:
    return [f"{PROMPTS[i % len(PROMPTS)]} {i}" for i in range(count)]


def result(captured: Captured) -> tuple[dict[str, Any], list[str]]:
    """The JSON on the last line of stdout, and the lines on stderr."""
    out, err = captured.readouterr()
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer, lines(err)


def counters(profile: Path) -> dict[str, int | float]:
    manifest = ProfileFile(profile).manifest()
    return {} if manifest is None else dict(manifest.counters)


def position(profile: Path) -> int:
    return sum(int(count) for name, count in counters(profile).items() if name.startswith(POSITION))


@pytest.fixture
def prompted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that are answered, as they come."""
    asked: list[str] = []
    encode = OmniDraft.encode_message

    def noted(self: OmniDraft, message: str) -> list[int]:
        asked.append(message)
        return encode(self, message)

    monkeypatch.setattr(OmniDraft, "encode_message", noted)
    return asked


# ------------------------------------------------------------ the file


BROKEN = (
    b'{"prompt": "cut',
    b'["prompt"]',
    b'"prompt"',
    b'{"prompt": 7}',
    b'{"prompt": null}',
    b'{"prompt": ["hello"]}',
    b'{"prompt": ""}',
    b'{"text": "hello"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\xed\xa0\x80"}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:20])
def test_a_broken_line_is_counted(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "data"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\n' + line + b'\n  \n{"prompt": "two", "more": 1}')
    data = Data(path)
    assert (data.prompts, data.lines, data.broken) == (["one", "two"], [1, 5], [3])


def test_broken_lines_are_said_and_left_out(
    target: Path, drafter: Path, tmp_path: Path, capsys: Captured, prompted: list[str]
) -> None:
    path = tmp_path / "data"
    long = json.dumps({"prompt": "hello " * CONTEXT}).encode()
    path.write_bytes(b"\n".join([*BROKEN, b'{"prompt": "one"}', long, b'{"prompt": "two"}']))
    assert cli.main(command(target, drafter, path)) == 0
    answer, said = result(capsys)
    assert (answer["position"], answer["prompts"], answer["broken_lines"]) == (3, 3, len(BROKEN))
    assert answer["learned"]["answers"] == 2
    assert [prompt[:6] for prompt in prompted] == ["one", "hello ", "two"]
    named = ", ".join(str(number + 1) for number in range(NAMED))
    assert any(f"{len(BROKEN)} lines are left out" in line and line.endswith(f": {named}, ...") for line in said)
    assert any(f"line {len(BROKEN) + 2} is left out: the prompt has" in line for line in said)
    assert len(said) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "no line with a prompt"), (b"\n\n", "no line with a prompt"), (b"hello\n", "no line with a prompt")],
)
def test_a_file_without_prompts(tmp_path: Path, capsys: Captured, content: bytes, words: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    refused(command(Path("unread"), Path("unread"), path), words, capsys)


def test_no_file(tmp_path: Path, capsys: Captured) -> None:
    refused(command(Path("unread"), Path("unread"), tmp_path), "cannot read", capsys)
    refused(command(Path("unread"), Path("unread"), tmp_path / "nothing"), "nothing", capsys)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "intervall=1"), "unknown setting 'intervall': did you mean 'interval'?"),
        (("--adapt", "inline"), "unknown argument '--adapt'"),
        (("--int", 1), "unknown argument '--int'"),
        (("hello",), "unknown argument 'hello'"),
        (("--count", 0), "count is 0"),
        (("--count", "many"), "count is 'many'"),
        (("--profile", "none"), "what is learned would be lost"),
        (("--set", "rank=0"), "rank is 0"),
        (("--temperature", -1), "temperature is -1"),
        (("--set", "draft_length=1.5"), "draft_length is 1.5"),
        (("--max-new-tokens", 0), "max_new_tokens is 0"),
    ],
)
def test_bad_flags(tmp_path: Path, capsys: Captured, more: tuple[object, ...], words: str) -> None:
    refused(command(Path("unread"), Path("unread"), jsonl(tmp_path, ["hello"]), *more), words, capsys)


def refused(arguments: list[str], words: str, captured: Captured) -> None:
    assert cli.main(arguments) == 2
    out, err = captured.readouterr()
    assert out == ""
    (line,) = lines(err)
    assert line.startswith("omnidraft: error: ")
    assert words in line


def test_help(capsys: Captured) -> None:
    assert cli.main(["adapt", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--data FILE", "--count N", "--profile FILE", "--set KEY=VALUE", "examples:"))
    assert cli.main(["--help"]) == 0
    assert "adapt" in capsys.readouterr().out


# ------------------------------------------------------------ going on


def test_it_goes_on_where_it_left_off(
    target: Path, drafter: Path, home: Path, tmp_path: Path, capsys: Captured, prompted: list[str]
) -> None:
    prompts = numbered(9)
    path, own = jsonl(tmp_path, prompts), tmp_path / "own" / "profile"
    arguments = command(target, drafter, path, "--profile", own)
    assert cli.main([*arguments, "--count", "5"]) == 0
    answer, said = result(capsys)
    assert (answer["position"], answer["prompts"], answer["learned"]["answers"]) == (5, 5, 5)
    assert answer["learned"]["updates"] == 3, "the fifth answer teaches, too"
    assert (prompted, said) == (prompts[:5], [])
    assert position(own) == 5

    assert cli.main(arguments) == 0
    answer, said = result(capsys)
    assert prompted == prompts
    assert (answer["position"], answer["learned"]["answers"]) == (9, 9)
    assert said == ["omnidraft: continuing after prompt 5 of 9"]
    assert counters(own)["answers"] == 9

    before = tree(own.parent)
    assert cli.main(arguments) == 0  # there is nothing left
    assert result(capsys)[0]["position"] == 9
    assert cli.main([*arguments, "--count", "5"]) == 0
    assert result(capsys)[1] == ["omnidraft: continuing after prompt 5 of 5"]
    assert prompted == prompts
    assert tree(own.parent) == before
    assert saved(home) == []

    path.write_text(path.read_text() + '{"prompt": "more"}\n')  # another file
    assert cli.main([*arguments, "--count", "1"]) == 0
    assert prompted == [*prompts, prompts[0]]
    assert found(own.parent, prompts, []) == []


def started(arguments: list[str], home: Path) -> subprocess.Popen[bytes]:
    whole = [sys.executable, "-m", "omnidraft", *arguments]
    return subprocess.Popen(whole, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(profile: Path, count: int) -> None:
    deadline = time.monotonic() + 500
    while position(profile) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_after_a_kill_it_goes_on_from_the_last_save(
    target: Path, drafter: Path, home: Path, tmp_path: Path, capsys: Captured, prompted: list[str]
) -> None:
    prompts = numbered(80)
    own = tmp_path / "own"
    arguments = command(target, drafter, jsonl(tmp_path, prompts), "--profile", own)
    with started(arguments, home) as process:
        wait_for(own, 4)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    before, at = counters(own), position(own)
    assert 4 <= at < len(prompts)
    assert before["answers"] == at, "what is saved was learned, and nothing that was learned is not in it"
    assert cli.main(arguments) == 0
    assert prompted == prompts[at:]
    assert result(capsys)[0]["position"] == len(prompts)
    assert counters(own)["answers"] == len(prompts)


@pytest.mark.slow
def test_ctrl_c_saves_where_it_is(target: Path, drafter: Path, home: Path, tmp_path: Path) -> None:
    prompts = numbered(400)
    own = tmp_path / "own"
    with started(command(target, drafter, jsonl(tmp_path, prompts), "--profile", own), home) as process:
        wait_for(own, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, err
    answer = json.loads(out.splitlines()[-1])
    assert 2 <= answer["position"] == position(own) < len(prompts)
    assert answer["position"] <= counters(own)["answers"] + 1
    assert b"interrupted; the same command continues here" in err
    assert b"Traceback" not in err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmniDraft, "generate", lambda *_, **__: pytest.fail("asked again"))
        arguments = command(target, drafter, tmp_path / "prompts.jsonl", "--profile", own)
        assert cli.main([*arguments, "--count", str(answer["position"])]) == 0


# ------------------------------------------------------------ generate --adapt


def test_a_learner_that_fails_ends_it_where_it_is(
    target: Path, drafter: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = jsonl(tmp_path, ["hello world"] * 6)

    def fail(*_: object) -> bool:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", fail)
        assert cli.main(command(target, drafter, data)) == 1
    out, err = capsys.readouterr()
    assert "the same command continues here" in err
    assert json.loads(out)["position"] < 3
    assert cli.main(command(target, drafter, data)) == 0
    assert json.loads(capsys.readouterr().out)["learned"]["updates"] >= 2


@pytest.mark.parametrize("adapt", ["inline", pytest.param("background", marks=pytest.mark.slow)])
def test_generate_says_the_same_and_learns(
    target: Path, drafter: Path, home: Path, capsys: Captured, adapt: str
) -> None:
    arguments = ["generate", "hello world", "--target", str(target), "--max-new-tokens", "12"]
    assert cli.main(arguments) == 0
    expected = capsys.readouterr().out
    arguments += ["--drafter", str(drafter)]
    assert cli.main([*arguments, "--adapt", adapt]) == 0
    assert capsys.readouterr().out == expected
    learned = omnidraft.load(target, drafter).learned
    assert (learned["answers"], learned["updates"]) == (1, 1)
    capsys.readouterr()
    before = tree(home)
    assert cli.main([*arguments, "--adapt", "inline", "--profile", "none"]) == 0
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == expected * 2
    assert tree(home) == before


@pytest.mark.skipif(os.name == "nt", reason="no process groups")
@pytest.mark.slow
def test_ctrl_c_at_a_terminal_leaves_the_trainer_to_its_parent(target: Path, drafter: Path, home: Path) -> None:
    """A terminal sends Ctrl-C to every process of the command."""
    whole = [sys.executable, "-m", "omnidraft", "generate", "hello", "--target", str(target), "--drafter", str(drafter)]
    whole += ["--adapt", "background", "--max-new-tokens", "4000"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(whole, env=environment(home), start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.read(40)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, err
    assert b"Traceback" not in err
    assert b"has died" not in err
