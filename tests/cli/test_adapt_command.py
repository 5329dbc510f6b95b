"""`omnidraft adapt`, and `omnidraft generate --adapt`."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import omnidraft
from omnidraft import OmniDraft
from omnidraft.cli import main as cli
from omnidraft.cli.flags import INTERRUPTED
from omnidraft.distillation.trainer import Trainer
from omnidraft.profiles import adaptive_drafter
from omnidraft.profiles.profile_file import ProfileFile
from support.command_line import one_error
from support.learning import PROMPTS, found, saved, tree
from support.models import CONTEXT
from support.project_files import lines

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]
Hooks = list[Callable[[int], None]]


def command(target: Path, drafter: Path, data: Path, *more: object) -> list[str]:
    models = ["--target", str(target), "--drafter", str(drafter)]
    return ["adapt", *models, "--data", str(data), "--max-new-tokens", "8", "--set", "update_every=2", *map(str, more)]


def jsonl(folder: Path, prompts: Sequence[str]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    return path


def numbered(count: int) -> list[str]:
    return [f"{PROMPTS[i % len(PROMPTS)]} {i}" for i in range(count)]


def result(captured: Captured) -> tuple[dict[str, Any], list[str]]:
    """The JSON on the last line of stdout, and the lines on stderr."""
    out, err = captured.readouterr()
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer, lines(err)


def answers(profile: Path) -> int:
    """How many answers the weights of a profile were learned from."""
    manifest = ProfileFile(profile).manifest()
    return 0 if manifest is None else int(manifest.counters["answers"])


@pytest.fixture
def hooks() -> Hooks:
    """Calls to make before a prompt is answered, with the number of prompts before it."""
    return []


@pytest.fixture
def prompted(monkeypatch: pytest.MonkeyPatch, hooks: Hooks) -> list[str]:
    """The prompts that are answered, as they come."""
    asked: list[str] = []
    encode = OmniDraft.encode_message

    def noted(self: OmniDraft, message: str) -> list[int]:
        for hook in hooks:
            hook(len(asked))
        asked.append(message)
        return encode(self, message)

    monkeypatch.setattr(OmniDraft, "encode_message", noted)
    return asked


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no prompts"),
        (b'{"prompt": "one"}\n{"prompt": "cut', "line 2, is no JSON"),
        (b'{"prompt": "\xff"}', "cannot read"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, capsys: Captured, content: bytes | None, words: str) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    assert words in one_error(capsys, *command(Path("unread"), Path("unread"), path))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "update_evry=1"), "unknown setting 'update_evry': did you mean 'update_every'?"),
        (("--adapt", "inline"), "unknown argument '--adapt'"),
        (("--count", 0), "--count: '0' is no integer from 1"),
        (("--count", "many"), "--count: 'many' is no integer"),
        (("--profile", "none"), "what is learned would be lost"),
        (("--drafter", "none"), "there is no drafter to learn: give one with --drafter"),
        (("--data", "~no-such-user/prompts"), "'~no-such-user/prompts'): give a JSONL file"),
        (("--data", "~/no-such-file"), f"cannot read {Path.home()}/no-such-file ("),
        (("--set", "rank=0"), "rank is 0"),
        (("--temperature", -1), "temperature is -1"),
        (("--max-new-tokens", 0), "--max-new-tokens: '0' is no integer from 1"),
    ],
)
def test_bad_flags(tmp_path: Path, capsys: Captured, more: tuple[object, ...], words: str) -> None:
    assert words in one_error(capsys, *command(Path("unread"), Path("unread"), jsonl(tmp_path, ["hello"]), *more))


@pytest.mark.medium
def test_prompts_that_do_not_fit_are_left_out(
    target: Path, drafter: Path, tmp_path: Path, capsys: Captured, prompted: list[str]
) -> None:
    path = jsonl(tmp_path, ["one", "hello " * CONTEXT, "", "two"])
    assert cli.main(command(target, drafter, path)) == 0
    answer, said = result(capsys)
    assert (answer["position"], answer["prompts"], answer["learned"]["answers"]) == (4, 4, 2)
    assert len(prompted) == 4
    assert [line.partition(":")[2][:21] for line in said] == [f" prompt {number} is left out" for number in (2, 3)]


@pytest.mark.slow
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

    assert cli.main(arguments) == 0
    answer, said = result(capsys)
    assert prompted == prompts
    assert (answer["position"], answer["learned"]["answers"]) == (9, 9)
    assert said == ["omnidraft: continuing after prompt 5 of 9"]
    assert answers(own) == 9

    before = tree(own.parent)
    assert cli.main(arguments) == 0  # there is nothing left
    assert result(capsys)[0]["position"] == 9
    assert cli.main([*arguments, "--count", "5"]) == 0
    assert result(capsys)[1] == ["omnidraft: continuing after prompt 5 of 5"]
    assert prompted == prompts
    assert tree(own.parent) == before
    assert saved(home) == []

    path.write_text(path.read_text(encoding="utf-8") + '{"prompt": "more"}\n', encoding="utf-8")  # another file
    assert cli.main([*arguments, "--count", "1"]) == 0
    assert prompted == [*prompts, prompts[0]]
    assert found(own.parent, prompts, []) == []


class Late(threading.Thread):
    """A thread that saves, as late as it can: when it is waited for."""

    def start(self) -> None: ...

    def is_alive(self) -> bool:
        return self.ident is None or super().is_alive()

    def join(self, timeout: float | None = None) -> None:
        if self.ident is None:
            super().start()
        super().join(timeout)


@pytest.mark.medium
@pytest.mark.parametrize("end", ["kill", "Ctrl-C"])
def test_it_goes_on_after_an_end_at_any_time(
    target: Path,
    drafter: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    prompted: list[str],
    hooks: Hooks,
    end: str,
) -> None:
    """What a kill leaves is the profile as it lies there at that moment, whatever the process does later."""
    prompts, own, left = numbered(8), tmp_path / "own", tmp_path / "left"
    data = jsonl(tmp_path, prompts)
    late = SimpleNamespace(Thread=Late, current_thread=threading.current_thread)
    monkeypatch.setattr(adaptive_drafter, "threading", late)

    def ended(number: int) -> None:
        if number == 5 and end == "kill":
            shutil.copy(own, left)
        elif number == 5:
            signal.raise_signal(signal.SIGINT)

    hooks.append(ended)
    code = cli.main(command(target, drafter, data, "--profile", own))
    answer, said = result(capsys)
    if end == "kill":
        assert code == 0
        own = left
    else:
        assert (code, answer["position"]) == (INTERRUPTED, 5)
        assert said == ["omnidraft: interrupted; the same command continues here"]
    at = answers(own)
    assert at == (4 if end == "kill" else 5), "nothing that was learned is lost but since the last update"
    del prompted[:], hooks[:]
    assert cli.main(command(target, drafter, data, "--profile", own)) == 0
    assert prompted == prompts[at:]
    assert result(capsys)[0]["position"] == answers(own) == len(prompts)


@pytest.mark.medium
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


@pytest.mark.medium
def test_generate_says_the_same_and_learns(target: Path, drafter: Path, home: Path, capsys: Captured) -> None:
    arguments = ["generate", "hello world", "--target", str(target), "--max-new-tokens", "12"]
    assert cli.main(arguments) == 0
    expected = capsys.readouterr().out
    arguments += ["--drafter", str(drafter)]
    assert cli.main([*arguments, "--adapt", "inline"]) == 0
    assert capsys.readouterr().out == expected
    learned = omnidraft.load(target, drafter).learned
    assert (learned["answers"], learned["updates"]) == (1, 1)
    capsys.readouterr()
    before = tree(home)
    assert cli.main([*arguments, "--adapt", "inline", "--profile", "none"]) == 0
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == expected * 2
    assert tree(home) == before
