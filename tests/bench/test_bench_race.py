"""The parts of the comparison: order, what is forgotten between repeats, progress, the setting."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omnidraft.api import load
from omnidraft.bench import compare, methods
from omnidraft.bench import environment as setting
from omnidraft.bench.interleaved import TimedAnswer, interleave
from omnidraft.bench.methods import UnavailableError
from omnidraft.bench.records import Results
from omnidraft.cli.progress import progress
from omnidraft.config import Sampling

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]
COUNT = 8


class Scripted:
    """A method that answers with the prompt, and notes when it is asked what."""

    def __init__(self, name: str, log: list[Any], fails_at: int | None = None, adds: int = 0) -> None:
        self.name, self.log, self.fails_at, self.adds = name, log, fails_at, adds

    def restart(self) -> None:
        self.log.append(("restart", self.name))

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        self.said, self.seed = [ids[0] + self.adds] * new_tokens, seed

    def advance(self, length: int) -> bool:
        self.log.append((self.name, self.said[0] - self.adds))
        if self.said[0] == self.fails_at:
            raise UnavailableError(self.name, "why")
        return len(self.said) >= length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self.said)


def compared(*made: Scripted, questions: int) -> Results:
    """The results of two repeats."""
    results, asked = Results(setting={}), [compare.Question("t", number, [number]) for number in range(questions)]
    steps: list[None] = []
    plan = compare.Plan(new_tokens=2, repeats=2)
    compare.compare(list(made), asked, plan, results, lambda: steps.append(None))
    assert len(steps) == 2 * questions
    return results


def test_the_first_method_is_the_baseline() -> None:
    results = compared(Scripted("a", []), Scripted("b", [], adds=1), questions=2)
    assert {(run.method, run.identical) for run in results.runs} == {("a", True), ("b", False)}


def test_each_repeat_begins_afresh_and_warming_up_is_not_recorded() -> None:
    log: list[Any] = []
    results = compared(Scripted("a", log), Scripted("b", log), questions=2)
    assert set(log[:2]) == {("a", 0), ("b", 0)}
    assert log[2:4] == [("restart", "a"), ("restart", "b")]
    assert log.count(("restart", "a")) == 2
    assert [(run.tokens, run.identical) for run in results.runs] == [(2, True)] * 8


def test_a_method_that_fails_late_is_dropped_for_good() -> None:
    log: list[Any] = []
    results = compared(Scripted("a", log), Scripted("b", log, fails_at=1), questions=3)
    assert results.unavailable == {"b": "why"}
    assert [entry for entry in log if entry[0] == "b"] == [("b", 0), ("b", 0), ("b", 1)]
    assert sum(run.method == "a" for run in results.runs) == 6


@pytest.mark.medium
def test_the_drafter_of_transformers_is_a_copy(target: Path, drafter: Path) -> None:
    model = load(target, drafter, dtype="float32")
    (uad,), _ = methods.make(["uad"], model, 4, Sampling())
    assert model.drafter
    made: list[None] = []
    model.drafter.lm.model.register_forward_pre_hook(lambda *_: made.append(None))
    (timed,) = interleave([uad], model.encode("hello world"), COUNT, chunk=COUNT)
    assert not made, "the own drafter makes no forward pass"
    assert timed.answer.passes
    assert sum(timed.answer.passes) > COUNT, "drafts are verified"


def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    now = iter([0.0, 5.0, 16.0, 20.0, 40.0])
    monkeypatch.setattr("omnidraft.cli.progress.time.perf_counter", lambda: next(now))
    step = progress(Console(stderr=True), "timing", 8)
    for _ in range(4):
        step()
    assert capsys.readouterr().err.splitlines() == [
        "timing: 2 of 8, about 48 s left",
        "timing: 4 of 8, about 40 s left",
    ]


# ---------------------------------------------------------------- the setting


def test_the_command_line_names_no_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    given = ["bench", f"{tmp_path}/made", f"--data={tmp_path}", "~/x y", "a/b=../c/d", "zoo:a", "a/b", "1 / 2"]
    given += [r"C:\x\y z", r"--data=D:/a\b", r"..\a\b", r"\\host\a", r"a\b"]
    kept = ["bench", "made", f"--data={tmp_path.name}", "x y", "a/b=d", "zoo:a", "a/b", "1 / 2"]
    kept += ["y z", "--data=b", "b", "a", r"a\b"]
    assert shlex.split(setting.command(given)) == kept
    monkeypatch.setenv("CC", f"{tmp_path}/gcc -mno-avx512f")
    assert shlex.split(setting.command(given)) == ["CC=gcc -mno-avx512f", *kept]


@pytest.mark.medium
def test_the_commit_is_that_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(
            [shutil.which("git") or "", *who, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
        )
        return done.stdout.strip()

    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.touch()
    assert setting.commit(file) is None
    git("init")
    git("commit", "--allow-empty", "-m", "none of it")
    assert setting.commit(file) is None, "an installed copy in the folder of some checkout"
    git("add", ".")
    git("commit", "-m", "one")
    head = git("rev-parse", "--short=12", "HEAD")
    assert setting.commit(file) == head
    (tmp_path / "results.json").touch()
    assert setting.commit(file) == head, "what a run writes is no change of the package"
    (file.parent / "new").mkdir()
    (file.parent / "new" / "other.py").touch()
    assert setting.commit(file) == head + "+dirty"
    shutil.rmtree(file.parent / "new")
    assert setting.commit(file) == head
    file.write_text("1", encoding="utf-8")
    assert setting.commit(file) == head + "+dirty"
