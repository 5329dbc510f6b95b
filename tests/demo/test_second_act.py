"""The demonstration's second act, on two small models in place of those that ship."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from omnidraft import zoo
from omnidraft.cli import main as cli
from omnidraft.decoding.engine import Engine
from omnidraft.demo import second_act, terminal
from omnidraft.demo import show as demo
from omnidraft.demo.learning_curve import WINDOW, Curve, Figures, Point, check_folder, drawn, moving, save
from omnidraft.demo.problems import TEMPLATES, prompts
from omnidraft.errors import InputError
from omnidraft.verification.round import Round

pytestmark = pytest.mark.usefixtures("home")
SETTING = {"target": "target-b", "draft_len": 2}
PNG = b"\x89PNG\r\n"


def point(**changed: Any) -> Point:
    counts = {"tokens": 10, "rounds": 5, "drafted": 12, "proposed": 10, "accepted": 4, "updates": 0}
    return Point(**counts | {"seconds": 1.0, "learning_s": 0.5} | changed)


def curve(points: Sequence[Point], *, weights_unchanged: bool = True) -> Curve:
    return Curve(setting=SETTING, points=tuple(points), weights_unchanged=weights_unchanged, seconds=9.0)


def quiet() -> Console:
    return Console(file=io.StringIO(), highlight=False)


def output(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def spoil(patch: pytest.MonkeyPatch) -> None:
    """Let a drafter change the last token of every answer."""
    rounds = Engine.rounds

    def changed(self: Engine, *rest: Any) -> Iterator[Round]:
        for record in rounds(self, *rest):
            last = record.finish is not None and self.pair is not None
            yield replace(record, emitted=(*record.emitted[:-1], record.emitted[-1] ^ 1)) if last else record

    patch.setattr(Engine, "rounds", changed)


@pytest.fixture
def embedded(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models under the names of those that ship, nothing to do in the first act and little in the second."""
    monkeypatch.setattr(zoo, "path", lambda name: drafter if name in zoo.names("drafter") else target)
    monkeypatch.setattr(demo, "run", lambda *_: [])
    monkeypatch.setattr(demo, "show", lambda *_: None)
    run = second_act.run
    monkeypatch.setattr(second_act, "run", lambda *models: run(*models, budget_s=1.0, new_tokens=12))


# ---------------------------------------------------------------- prompts


def test_prompts_are_different_and_reproducible() -> None:
    some = list(itertools.islice(prompts(0), 1000))
    assert len(set(some)) == len(some)
    assert list(itertools.islice(prompts(0), 1000)) == some
    assert list(itertools.islice(prompts(1), 20)) != some[:20]


def test_prompts_have_the_form_that_the_targets_know_and_no_field_left() -> None:
    for prompt in itertools.islice(prompts(0), 200):
        assert prompt.startswith("Question: ")
        assert prompt.endswith("?\nAnswer:")
        assert not {"{", "}"} & set(prompt)


def test_every_window_holds_each_template_once() -> None:
    assert len(TEMPLATES) == WINDOW >= 12
    forms = [re.compile("Question: " + re.sub(r"\\{\w+\\}", r"\\w+", re.escape(text))) for text, _ in TEMPLATES]
    some = list(itertools.islice(prompts(0), 3 * WINDOW))
    kinds = [[number for number, form in enumerate(forms) if form.match(prompt)] for prompt in some]
    for start in (0, 7, 40):
        assert sorted(kinds[start : start + WINDOW]) == [[number] for number in range(WINDOW)]


def test_the_numbers_come_out_positive() -> None:
    """The templates with the smallest differences, at the ends of their ranges."""
    by_words = dict(TEMPLATES)
    (plays,) = (c for text, c in by_words.items() if text.startswith("Tickets"))
    a, b, c, d = (int(max(plays[key])) for key in "abcd")
    assert 200 - a * c - b * d > 0
    (pens,) = (c for text, c in by_words.items() if "notebooks" in text)
    a, b, c, d = (int(max(pens[key])) for key in "abcd")
    assert 100 - a * b - c * d > 0
    (books,) = (c for text, c in by_words.items() if "pages" in text)
    assert int(min(books["b"])) > int(max(books["c"])) + int(max(books["a"])) * int(max(books["d"]))
    (flour,) = (c for text, c in by_words.items() if "flour" in text)
    assert int(min(flour["a"])) * int(min(flour["b"])) > 2 * int(max(flour["c"])) + int(max(flour["d"]))


# ---------------------------------------------------------------- figures and files


def test_figures_follow_from_the_counts() -> None:
    points = [point(accepted=2, plain_s=2.0), point(accepted=6, seconds=3.0, plain_s=4.0), point(learning_s=2.0)]
    figures = Figures.of(points)
    assert figures.acceptance_rate == 12 / 30
    assert figures.block_efficiency == 30 / 15
    assert figures.speedup == 6.0 / 4.0
    assert figures.net_speedup == pytest.approx(1.5 * 5.0 / (5.0 + 3.0))
    assert Figures.of([point()]).speedup is Figures.of([point()]).net_speedup is None
    assert Figures.of([]) == Figures(
        acceptance_rate=0.0, block_efficiency=0.0, draft_len=0.0, speedup=None, net_speedup=None
    )


def test_the_ends_of_a_curve_are_compared_without_overlap() -> None:
    rising = [point(accepted=number % 11, plain_s=1.0) for number in range(50)]
    long, short = curve(rising), curve(rising[:7])
    assert (long.window, short.window, curve(rising[:1]).window) == (20, 3, 1)
    assert long.first == Figures.of(rising[:20])
    assert long.last == Figures.of(rising[-20:]) == moving(rising)[-1]
    assert short.last == Figures.of(rising[4:7])


@pytest.mark.parametrize(("alone", "words"), [(2.0, "it paid"), (1.0, "it did not pay"), (1.5, "it did not pay")])
def test_whether_it_paid_counts_the_time_of_learning(alone: float, words: str) -> None:
    console, its = quiet(), curve([point(plain_s=alone, identical=True)] * 4)
    second_act.show(console, its)
    assert its.paid == (words == "it paid")
    assert f": {words}; give --out DIR to keep the curve" in output(console)


def test_a_drafter_that_pays_only_at_last_is_said_to() -> None:
    points = [point(plain_s=0.5)] * 10 + [point(plain_s=1.6, identical=True)] * 10
    console = quiet()
    second_act.show(console, curve(points))
    assert "it has not paid yet, but the last 10 did (1.06x)" in output(console)


def test_a_curve_without_matplotlib_is_kept_as_json_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    console = quiet()
    second_act.show(console, curve([point(plain_s=1.0)] * 3), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["learning.json"]
    assert "needs matplotlib, which is not installed" in output(console)


def test_the_picture_of_one_answer_can_be_drawn() -> None:
    pytest.importorskip("matplotlib")
    assert (drawn(curve([point(plain_s=1.0, identical=True)])) or b"").startswith(PNG)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for attempt in (check_folder, lambda folder: save(curve([point(plain_s=1.0)]), folder)):
        with pytest.raises(InputError, match=r"^cannot write to .*: give --out another folder$"):
            attempt(tmp_path / "file" / "inner")


# ---------------------------------------------------------------- runs


@pytest.mark.slow
def test_a_run_learns_and_every_token_is_the_targets_own(target: Path, drafter: Path) -> None:
    console = quiet()
    its = second_act.run(console, target, drafter, budget_s=3.0, new_tokens=12)
    assert len(its.points) > WINDOW
    assert its.sound
    assert its.timed == sum(p.plain_s is not None for p in its.points) >= len(its.points) // 2 - 10
    assert its.points[-1].updates == its.counters["updates"] >= 1
    assert all(0 < p.accepted + p.rounds >= p.tokens for p in its.points)
    assert 1 <= output(console).count("acceptance rate") <= second_act.LINES, "a few lines where nobody watches"
    found = its.as_dict()
    answers = [Point(**answer) for answer in json.loads(json.dumps(found))["answers"]]
    assert answers == list(its.points)
    assert found["whole"] == asdict(Figures.of(answers))
    assert found["prompts"] == len(answers)


def test_a_run_without_time_still_answers_one_prompt(target: Path, drafter: Path) -> None:
    its = second_act.run(quiet(), target, drafter, budget_s=0.0, new_tokens=4)
    assert len(its.points) == its.timed == 1
    assert its.sound


def test_a_terminal_shows_charts(target: Path, drafter: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=70, height=24)
    second_act.run(console, target, drafter, budget_s=1.0, new_tokens=6)
    shown = output(console)
    assert "learning from the answer" in shown
    assert "prompt 2" in shown
    assert any(0x2800 < ord(character) <= 0x28FF for character in shown)
    assert shown.endswith("\x1b[?25h"), "the cursor is back"


@pytest.mark.usefixtures("embedded")
def test_a_change_of_the_targets_text_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    assert cli.main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["learning"]["identical"] is False
    assert "NOT IDENTICAL" in err
    assert "WHAT THE TARGET SAYS HAS CHANGED" in err


@pytest.mark.usefixtures("embedded")
def test_a_change_of_the_targets_weights_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = second_act._Stage.answer

    def changed(self: second_act._Stage, *arguments: Any, **more: Any) -> Point:
        with torch.no_grad():
            next(iter(self.engine.target.model.parameters())).view(-1)[0] += 1e-3  # type: ignore[attr-defined]
        return answer(self, *arguments, **more)

    monkeypatch.setattr(second_act._Stage, "answer", changed)
    assert cli.main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    learning = json.loads(out)["learning"]
    assert learning["weights_unchanged"] is False
    assert learning["identical"] is True
    assert "NOT WHAT THEY WERE" in err


@pytest.mark.usefixtures("embedded")
def test_out_keeps_the_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["demo", "--json", "--out", str(tmp_path / "new" / "curve")]) == 0
    out, err = capsys.readouterr()
    kept = tmp_path / "new" / "curve"
    assert json.loads((kept / "learning.json").read_text()) == json.loads(out.splitlines()[-1])["learning"]
    pytest.importorskip("matplotlib")
    assert (kept / "learning.png").read_bytes().startswith(PNG)
    assert str(kept / "learning.png") in err


@pytest.mark.usefixtures("embedded")
def test_nothing_is_kept_without_out(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["demo"]) == 0
    assert "give --out DIR to keep the curve" in capsys.readouterr().out
    assert list((tmp_path / "here").iterdir()) == []
    assert not (home / "profiles").exists()


def test_an_unwritable_out_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "run", lambda *_: pytest.fail("the demonstration began"))
    (tmp_path / "file").touch()
    places = [tmp_path / "file"]
    if os.name == "posix" and os.geteuid() != 0:  # root writes everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        places.append(tmp_path / "closed")
    for place in places:
        assert cli.main(["demo", "--out", str(place)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"cannot write to {place}" in line
    assert cli.main(["demo", "--out"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("embedded")
def test_ctrl_c_leaves_cleanly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    alone = second_act._Stage._alone

    def interrupted(self: second_act._Stage, ids: list[int]) -> Any:
        asked.append(ids)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return alone(self, ids)

    monkeypatch.setattr(second_act._Stage, "_alone", interrupted)
    console = Console(file=io.StringIO(), force_terminal=True, width=70, height=24)
    monkeypatch.setattr(demo, "Console", lambda **_: console)
    assert cli.main(["demo", "--json", "--out", str(tmp_path / "out")]) == 130
    out, err = capsys.readouterr()
    assert out == "", "no figures of half a run"
    assert err.splitlines()[-1].endswith("interrupted")
    assert output(console).rstrip().endswith("\x1b[?25h"), "the cursor is back"
    assert list((tmp_path / "out").iterdir()) == []


# ---------------------------------------------------------------- charts


def test_a_chart_is_as_large_as_asked_and_labels_its_ends() -> None:
    values = [number / 100 for number in range(100)]
    lines = terminal.chart([(values, "green"), ([None, 0.5, None, 0.2], "cyan")], 50, 6, step=0.5, rule=0.5)
    assert len(lines) == 6
    assert {len(line) for line in lines} == {50}
    assert [lines[0].plain[:8], lines[-1].plain[:8]] == ["  1.00 ┤", "  0.00 ┤"]
    assert lines[-1].plain[8] != chr(terminal.BLANK), "the line begins at the bottom left"
    assert lines[0].plain[-1] != chr(terminal.BLANK), "and ends at the top right"


@pytest.mark.parametrize("values", [[], [None], [0.3], [0.3, 0.3], [math.pi * 100] * 3])
def test_odd_series_can_be_drawn(values: list[float | None]) -> None:
    for width, height in ((80, 9), (8, 2), (3, 1)):
        assert len(terminal.chart([(values, "green")], width, height, step=0.1)) == height
