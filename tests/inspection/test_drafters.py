"""Several drafters for one target: figures against answers of the loop itself, the verdict, and the command."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest

from omnidraft.bench.interleaved import Timed, TimedAnswer
from omnidraft.cli import main as cli
from omnidraft.config import Drafting
from omnidraft.errors import ConfigError, ModelError
from omnidraft.inspection import drafters
from omnidraft.inspection.drafters import Comparison, DrafterFigures, compare_drafters, verdict
from omnidraft.verification.round import Round, RoundTimes
from support.command_line import one_error

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("home")

ROW = DrafterFigures(
    drafter="a", tokens_per_s=20.0, speedup=1.5, tokens_per_pass=2.0, acceptance=0.5, drafts=2.0, without_draft=0.1,
    step_ms=1.0, draft_ms=2.0, verify_ms=60.0, rest_ms=0.4,
)  # fmt: skip


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short answers, with drafts whatever their costs are on a busy machine."""
    monkeypatch.setattr(drafters, "Drafting", partial(Drafting, draft_length=3))
    monkeypatch.setattr(drafters, "QUESTIONS", drafters.QUESTIONS[:3])
    monkeypatch.setattr(drafters, "TOKENS", 12)


def compared(target: Path, *names: object) -> Comparison:
    said: list[str] = []
    return compare_drafters(str(target), [str(name) for name in names], say=said.append, warn=said.append)


@pytest.mark.medium
@pytest.mark.usefixtures("few")
def test_a_target_is_its_best_drafter(target: Path, drafter: Path) -> None:
    comparison = compared(target, drafter, target)
    rows = {row.drafter: row for row in comparison.drafters}
    itself, other = rows[str(target)], rows[str(drafter)]
    assert (comparison.answers, comparison.tokens, comparison.identical) == (3, 36, True)
    assert itself.acceptance > 0.5, "its weights are rounded to 5 bits"
    assert itself.tokens_per_pass > max(1.3, other.tokens_per_pass)
    assert itself.step_ms is not None
    assert itself.step_ms > 0 < itself.verify_ms
    assert [row.tokens_per_s for row in comparison.drafters] == sorted(r.tokens_per_s for r in rows.values())[::-1]
    for row in rows.values():
        assert row.speedup == pytest.approx(row.tokens_per_s / comparison.plain.tokens_per_s)
        round_ms = row.draft_ms + row.verify_ms + row.rest_ms
        assert row.tokens_per_s == pytest.approx(1e3 * row.tokens_per_pass / round_ms)


@pytest.mark.medium
@pytest.mark.usefixtures("few")
def test_no_question_is_asked_that_would_take_too_long(target: Path, drafter: Path) -> None:
    ticks = itertools.count(0, drafters.SECONDS / 2)
    comparison = compare_drafters(
        str(target), [str(drafter), str(target)], say=lambda _: None, warn=lambda _: None, clock=lambda: next(ticks)
    )
    assert comparison.answers == 2, "a third would end after the time"


def test_answers_that_end_at_once_are_no_measurement() -> None:
    ended = Timed(TimedAnswer([0], [Round(emitted=(0,))]), 0.1)
    with pytest.raises(ModelError, match="ends its answers with the first token"):
        drafters.comparison_of("t", [drafters.PLAIN, "a", "b"], [[ended] * 3])
    two = Timed(TimedAnswer([0, 1], [Round(emitted=(0,)), Round(emitted=(1,), times=RoundTimes(verify_s=0.5))]), 0.6)
    whole = Timed(TimedAnswer([0, 1], [Round(emitted=(0, 1), draft=(1,))]), 0.6)  # the first round drafted the rest
    comparison = drafters.comparison_of("t", [drafters.PLAIN, "a", "b"], [[two, whole, two]])
    assert (comparison.plain.tokens_per_s, comparison.plain.verify_ms, comparison.identical) == (2, 500, True)
    assert {row.drafter: row.speedup for row in comparison.drafters} == {"a": 0, "b": 1}
    other = replace(two, answer=replace(two.answer, tokens=[0, 2]))
    assert not drafters.comparison_of("t", [drafters.PLAIN, "a", "b"], [[two, two, other]]).identical


def test_the_verdict_says_which_and_why() -> None:
    slower = replace(ROW, drafter="b", tokens_per_s=16.0, speedup=1.2, tokens_per_pass=1.5, draft_ms=0.5)
    assert verdict([ROW, slower]) == (
        "take a: 1.25x the tokens/s of b, with 2.00 in place of 1.50 tokens a pass of the target, "
        "for 2.0 in place of 0.5 ms of drafting a round"
    )
    assert verdict([ROW, replace(slower, tokens_per_s=19.9)]).startswith(
        "a and b are equally fast within 3%, with 2.00"
    )
    dear = [replace(row, speedup=0.9) for row in (ROW, slower)]
    assert verdict(dear) == "none of them pays here: the best, a, makes 0.90x the tokens/s of no drafts"


@pytest.mark.medium
@pytest.mark.usefixtures("few")
def test_the_command_measures_several_drafters(target: Path, drafter: Path, capsys: Captured) -> None:
    words = ["inspect", str(target), "--drafter", str(drafter), "--drafter", str(target)]
    assert cli.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == [field.name for field in fields(Comparison)]
    assert list(report["plain"]) == [field.name for field in fields(DrafterFigures)]
    assert {row["drafter"] for row in report["drafters"]} == {str(drafter), str(target)}
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "no drafts" in out
    assert "speedup" in out


def test_mistakes(target: Path, drafter: Path, capsys: Captured) -> None:
    with pytest.raises(ConfigError, match=r"is given twice: give each once"):
        compared(target, drafter, drafter)
    line = one_error(capsys, "inspect", target, "--drafter", drafter, "--drafter", "none")
    assert "drafter is none, and inspect needs two models" in line
