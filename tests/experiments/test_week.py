"""The simulated week: days that go on from a profile, beside a drafter that learns nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import week
from experiments.tasks import parts
from omnidraft.errors import ConfigError


def rows(path: Path) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == "rows"]


@pytest.mark.usefixtures("home")
def test_a_week(
    tasks: Path,
    target: Path,
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(week, "QUICK", week.Sizes(prompts=14, new_tokens=8))
    out = tmp_path / "week"
    given = ["--target", str(target), "--drafter", str(drafter), "--data", str(tasks), "--quick", "--out", str(out)]
    assert week.main(given) == 0
    days = rows(out.with_suffix(".jsonl"))
    assert [(each["day"], each["prompts"]) for each in days] == [(day, 2) for day in range(1, 8)]
    assert days[0]["acceptance_rate"] == days[0]["acceptance_frozen"], "nothing is learned before an update"
    assert sum(each["updates"] for each in days) > 0
    assert any(each["acceptance_rate"] != each["acceptance_frozen"] for each in days[1:])
    assert all(each["resident_mb"] > 0 < each["profile_mb"] for each in days)
    assert capsys.readouterr().out.count("\n| ") == 2 + 7

    lines = out.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    out.with_suffix(".jsonl").write_text("".join(lines[:-1]), encoding="utf-8")  # cut off in the last day
    assert week.main(given) == 0
    assert [each["day"] for each in rows(out.with_suffix(".jsonl"))] == list(range(1, 8))
    monkeypatch.setattr(week, "QUICK", week.Sizes(prompts=7, new_tokens=8))
    assert week.main(given) != 0


def test_prompts_of_both_tasks_are_spread_over_the_week(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(week, "SITTING", 2)
    found = week.prompts_of(tasks, 8)
    assert len(found) == len(set(found)) == 8
    own = [set(parts(task, tasks)[0]) for task in week.TASKS]
    kinds = [next(at for at, its in enumerate(own) if text in its) for text in found]
    assert kinds[:2] == [0, 0]
    assert 1 in kinds[:6]
    with pytest.raises(ConfigError, match="use fewer"):
        week.prompts_of(tasks, 10**6)
