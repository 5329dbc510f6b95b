"""The file of a study, rows of compared ways, and tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnidraft
from experiments.compared import compared, medians
from experiments.results import Results
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import PLAIN, Answer, EngineWay, isolated
from omnidraft.bench.tables import down, markdown_table, percent
from omnidraft.config import Drafting, Sampling
from omnidraft.errors import InputError

KEYS = ("target", "seed")


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None)


def results(path: Path | None, study: str = "some") -> Results:
    return Results(path, study, KEYS)


def test_a_row_takes_the_place_of_the_one_of_its_key_and_a_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first = results(path)
    first.begin("a command", sizes={"n": 1})
    first.add("rows", {"target": "a", "seed": 0, "value": 1})
    second = results(path)
    second.begin("another")
    second.add("rows", {"target": "a", "seed": 1, "value": 2})
    second.add("rows", {"target": "a", "seed": 0, "value": 3})
    second.add("others", {"target": "a", "seed": 0})
    found = results(path)
    assert [(row["seed"], row["value"]) for row in found.of("rows")] == [(0, 3), (1, 2)]
    assert found.as_dict() == second.as_dict()
    assert [setting["command"] for setting in found.settings] == ["a command", "another"]
    found.forget("rows", {"seed": 0})
    assert [row["seed"] for row in results(path).of("rows")] == [1]
    assert len(found.of("others")) == 1


def test_a_line_that_was_cut_off_is_passed_over_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    made = results(path)
    made.begin("a command")
    made.add("rows", {"target": "a", "seed": 0})
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:-5])
    again = results(path)
    assert again.of("rows") == made.of("rows")
    again.add("rows", {"target": "b", "seed": 0})
    assert len(results(path).of("rows")) == 2, "what is added begins a line"
    with pytest.raises(InputError, match="format"):
        results(path, "other")
    path.write_text(whole.replace("\n", "\n{\n", 1))
    with pytest.raises(InputError, match="broken line"):
        results(path)
    with pytest.raises(InputError, match="another place"):
        results(path / "below.jsonl")


def test_in_memory_alone_where_there_is_no_file() -> None:
    made = results(None)
    made.add("rows", {"target": "a", "seed": 0})
    assert len(made.of("rows")) == 1


def test_ways_are_compared_repeat_by_repeat(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was")]
    ways = [EngineWay(str(n), isolated(model, Drafting(draft_length=n)), Sampling()) for n in (0, 1, 3)]
    rows = list(compared(ways, ids, 8, range(2, 5), restart=True))
    assert [(row["repeat"], row["way"]) for row in rows] == [(n, way) for n in (2, 3, 4) for way in ("0", "1", "3")]
    assert all(row["identical"] for row in rows)
    plain, one, three = medians(rows).values()
    assert plain["drafted"] == plain["acceptance_rate"] == 0
    assert plain["block_efficiency"] == plain["speedup"] == 1
    assert 0 < one["drafted"] <= 1 < three["drafted"] <= 3
    speedups = sorted(row["tokens_per_s"] / row["plain_tokens_per_s"] for row in rows if row["way"] == "3")
    assert three["speedup"] == pytest.approx(speedups[1], abs=1e-3)


@pytest.mark.parametrize(("temperature", "identical"), [(0.0, False), (1.0, None)])
def test_greedy_answers_that_differ_are_noticed(temperature: float, identical: bool | None, model: OmniDraft) -> None:
    class Wrong(EngineWay):
        def end(self) -> Answer:
            said = super().end()
            return Answer([*said.tokens[:-1], said.tokens[-1] + 1], said.rounds)

    ways = [kind("x", isolated(model, PLAIN), Sampling(temperature=temperature)) for kind in (EngineWay, Wrong)]
    rows = list(compared(ways, [model.encode("hello world")], 8))
    assert {row["identical"] for row in rows} == {identical}


def test_tables_and_figures_that_never_flatter() -> None:
    assert markdown_table(["a", "b"], [["x|y", 1], ["z", 2]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n| z | 2 |\n"
    assert [down(1.999, 2), down(None, 2), percent(0.999), percent(None)] == ["1.99", "–", "99 %", "–"]
