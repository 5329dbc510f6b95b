"""The demonstration, on two small models in place of those that ship."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omnidraft import zoo
from omnidraft.cli import main as cli
from omnidraft.decoding.engine import Engine
from omnidraft.demo import second_act
from omnidraft.demo import show as demo
from omnidraft.demo.learning_curve import down
from omnidraft.verification.round import Round

pytestmark = pytest.mark.usefixtures("home")
PROMPTS = ("hello world", "def the")
COUNT = 8


@pytest.fixture
def embedded(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models under the names of those that ship, and little to do."""
    monkeypatch.setattr(zoo, "path", lambda name: drafter if name in zoo.names("drafter") else target)
    short: dict[str, Any] = {"prompts": PROMPTS, "new_tokens": COUNT, "repeats": 2}
    run = demo.run
    monkeypatch.setattr(demo, "run", lambda *models: run(*models, **short))
    act = second_act.run
    brief: dict[str, Any] = {"budget_s": 0.0, "new_tokens": COUNT}
    monkeypatch.setattr(second_act, "run", lambda *models: act(*models, **brief))


def spoil(patch: pytest.MonkeyPatch) -> None:
    """Let a drafter change the last token of every answer."""
    rounds = Engine.rounds

    def changed(self: Engine, prompt: Sequence[int], *rest: Any) -> Iterator[Round]:
        for record in rounds(self, prompt, *rest):
            last = record.finish is not None and self.pair is not None
            yield replace(record, emitted=(*record.emitted[:-1], record.emitted[-1] ^ 1)) if last else record

    patch.setattr(Engine, "rounds", changed)


@pytest.mark.usefixtures("embedded")
def test_json_is_the_last_line_and_all_else_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    results = json.loads(line)["targets"]
    assert [result["name"] for result in results] == list(zoo.names("target"))
    result = results[0]
    assert result["identical"] is True
    assert result["speedup"] == pytest.approx(result["tokens_per_s"] / result["plain_tokens_per_s"])
    assert 0 <= result["acceptance_rate"] <= 1 <= result["block_efficiency"]
    assert result["drafter_step"] > 0 < result["verify_step"]
    assert result["repeats"] == 2
    assert "of the target:" not in err, "no live view where there is no terminal"
    assert err.count(f"{COUNT} tokens") == len(PROMPTS) * len(results)
    assert down(result["speedup"], 2) + "x" in err


@pytest.mark.usefixtures("embedded")
def test_without_json_everything_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "speedup" in out
    assert out.count(", identical") == len(PROMPTS) * len(zoo.names("target"))


@pytest.mark.usefixtures("embedded")
def test_a_wrong_token_is_loud_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    assert cli.main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["targets"][0]["identical"] is False
    assert "THE TOKENS DIFFER" in err
    assert err.count("a pass, NOT IDENTICAL") == len(PROMPTS) * len(zoo.names("target"))


@pytest.mark.parametrize("phase", ["_show", "_race"])
def test_a_wrong_token_is_found_in_either_phase(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    method = getattr(demo._Bench, phase)

    def spoiled(*arguments: object) -> object:
        with pytest.MonkeyPatch.context() as patch:
            spoil(patch)
            return method(*arguments)

    monkeypatch.setattr(demo._Bench, phase, spoiled)
    console = Console(file=io.StringIO())
    (result,) = demo.run(console, {"a": target}, drafter, prompts=PROMPTS[:1], new_tokens=COUNT, repeats=1)
    assert result.identical is False


def test_a_terminal_shows_the_text_grow(target: Path, drafter: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=60, height=12)
    demo.run(console, {"a": target}, drafter, prompts=PROMPTS[:1], new_tokens=COUNT, repeats=1)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("tokens a pass of the target") > 2
    assert "\x1b[1;33m" in shown, "the target's own tokens have their color"


def test_slow_machines_repeat_less(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BUDGET_S", 0.0)
    console = Console(file=io.StringIO())
    (result,) = demo.run(console, {"a": target}, drafter, prompts=PROMPTS[:1], new_tokens=2, repeats=3)
    assert result.repeats == 1


def test_figures_are_never_rounded_up() -> None:
    assert [down(value, 2) for value in (1.999, 0.999, 1.0, 12.345)] == ["1.99", "0.99", "1.00", "12.34"]


def test_prompts_are_in_the_forms_that_the_targets_know() -> None:
    assert len(demo.PROMPTS) == 8
    assert sum(prompt.startswith("Question: ") and prompt.endswith("\nAnswer:") for prompt in demo.PROMPTS) == 5
    assert sum(prompt.startswith("Task: ") and prompt.endswith("\nSolution:\n") for prompt in demo.PROMPTS) == 3
