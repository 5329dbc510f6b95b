"""The demonstration, on two small models in place of the embedded ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omnidraft import demo, zoo
from omnidraft.api import Generation, OmniDraft
from omnidraft.cli.demo import down
from omnidraft.cli.main import main

pytestmark = pytest.mark.usefixtures("home")
PROMPTS = ("hello world", "def the")
COUNT = 8
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def embedded(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models under the names of the embedded ones, and little to do."""
    monkeypatch.setattr(zoo, "path", lambda name: drafter if name in zoo.names("drafter") else target)
    monkeypatch.setattr(demo, "run", partial(demo.run, prompts=PROMPTS, new_tokens=COUNT, repeats=2))


@pytest.mark.usefixtures("embedded")
def test_json_is_the_only_line_on_stdout(capsys: Captured) -> None:
    assert main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    results = json.loads(line)["targets"]
    assert [result["name"] for result in results] == list(zoo.names("target"))
    for result in results:
        assert result["identical"] is True
        assert result["speedup"] == pytest.approx(result["tokens_per_s"] / result["plain_tokens_per_s"])
        assert 0 <= result["acceptance_rate"] <= 1 <= result["block_efficiency"]
        assert result["repeats"] == 2
    assert err.count(f": {COUNT} tokens in") == len(PROMPTS) * len(results)


@pytest.mark.usefixtures("embedded")
def test_the_table_names_every_target(capsys: Captured) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert out.count("with drafts, identical") == len(PROMPTS) * len(zoo.names("target"))
    assert all(name in out.partition("greedy decoding in fp32")[2] for name in zoo.names("target"))


@pytest.mark.usefixtures("embedded")
def test_a_wrong_token_is_loud_and_fails(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = OmniDraft.generate

    def spoiled(self: OmniDraft, *prompt: Any, **options: Any) -> Generation:
        answer = generate(self, *prompt, **options)
        return replace(answer, token_ids=(*answer.token_ids[:-1], answer.token_ids[-1] ^ 1))

    monkeypatch.setattr(OmniDraft, "generate", spoiled)
    assert main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["targets"][0]["identical"] is False
    assert "THE TOKENS DIFFER" in err
    assert err.count("NOT IDENTICAL") == len(PROMPTS) * len(zoo.names("target"))


def test_a_slow_machine_repeats_less(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BUDGET_S", 0.0)
    assert demo.run("a", target, drafter, lambda _: None, prompts=PROMPTS[:1], new_tokens=2).repeats == 1


def test_figures_are_never_rounded_up() -> None:
    assert [down(value, 2) for value in (1.999, 0.999, 1.0, 12.345)] == ["1.99", "0.99", "1.00", "12.34"]


def test_an_unknown_flag_is_one_line(capsys: Captured) -> None:
    assert main(["demo", "--jsn"]) == 2
    assert "unknown argument '--jsn'" in capsys.readouterr().err
