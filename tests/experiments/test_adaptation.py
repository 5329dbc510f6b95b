"""Losses compared by what they leave of a drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import adaptation
from experiments.evaluation import Evaluation, Method
from experiments.results import Results
from omnidraft.distillation.losses import divergence
from omnidraft.distillation.trainer import Trainer


@pytest.mark.slow
def test_losses_are_judged_by_what_they_leave_of_the_drafter(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    update = Trainer.update

    def noted(self: Trainer) -> bool:
        trained.append("hybrid" if self.loss.func is not divergence else self.loss.keywords["kind"])  # type: ignore[attr-defined]
        return update(self)

    monkeypatch.setattr(Trainer, "update", noted)
    some = ("none", "hybrid, λ = 0.2", "forward", "tv")
    monkeypatch.setattr(adaptation, "LOSSES", {name: adaptation.LOSSES[name] for name in some})
    found = adaptation.losses(evaluation, "gsm8k", 1.0)
    assert [len(found["losses"][name]) for name in some] == [1, 3, 3, 3]
    assert all(0 < chance < 1 for its in found["losses"].values() for chance in its)
    assert len({tuple(its) for its in found["losses"].values()}) == len(some)
    assert set(trained) == {"hybrid", "forward", "tv"}
    results = Results(None, "adaptation")
    results.add("losses", "x", found)
    text = adaptation.PARTS["losses"].markdown(results, evaluation.recipe, partial=True)
    assert text.count(" ± 0.") == len(some) - 1


@pytest.mark.slow
def test_chances_rise_with_what_is_learned(evaluation: Evaluation) -> None:
    """A drafter that learns an answer by heart has more of it accepted."""
    tests = evaluation.answers("gsm8k", tests=True)[:1]
    method = Method({"draft_length": 1})
    frozen, learns = evaluation.student(method), evaluation.student(replace(method, learning={}))
    before = [student.chances(tests, warm, 0.5) for student in (frozen, learns) for warm in (0.0, 1.0)]
    assert before[:2] == before[2:]
    frozen.learn_all(tests)
    learns.learn_all(tests * 120)
    assert [frozen.chances(tests, warm, 0.5) for warm in (0.0, 1.0)] == before[:2]
    greedy, sampled = (learns.chances(tests, warm, 0.5) for warm in (0.0, 1.0))
    assert greedy > 0.8 > before[0]
    assert sampled > before[1] + 0.05


@pytest.mark.slow
def test_the_command(
    small: Path,
    tasks: Path,
    tmp_path: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {name: adaptation.LOSSES[name] for name in ("none", "forward+tv")}
    monkeypatch.setattr(adaptation, "LOSSES", few)
    out = tmp_path / "results"
    assert adaptation.main([str(small), "--data", str(tasks), "--quick", "--out", str(out)]) == 0
    assert "\n## Losses\n" in capsys.readouterr().out
    assert len(Results(out / "adaptation.jsonl", "adaptation").of("losses")) == 4
    assert not (home / "profiles").exists()
