"""The comparison from end to end, on two small models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from transformers.generation import candidate_generator

from omnidraft.bench.compare import Question, run_of
from omnidraft.bench.interleaved import LaneMethod, Timed, TimedAnswer
from omnidraft.bench.records import METHODS, read
from omnidraft.cli import main as cli
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import commit
from omnidraft.verification.round import Round, RoundTimes
from support.command_line import one_error

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]


def spoil(patch: pytest.MonkeyPatch) -> None:
    """Let a drafter change the last token of every answer."""

    def changed(lane: Lane, *rest: Any) -> Round:
        record = commit(lane, *rest)
        last = record.finish is not None and lane.attached is not None
        return replace(record, emitted=(*record.emitted[:-1], record.emitted[-1] ^ 1)) if last else record

    patch.setattr("omnidraft.decoding.stream.commit", changed)


COUNT = 8
TEXTS = ("hello world", "def the", "été don't")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def command(target: Path, drafter: Path, task: Path) -> list[str]:
    models = ["--target", str(target), "--drafter", str(drafter)]
    return ["bench", "compare", *models, "--task", str(task), "--max-new-tokens", str(COUNT), "--repeats", "2"]


def rows(out: str) -> dict[str, dict[str, Any]]:
    made = json.loads(out)["rows"]
    return {row["method"]: row for row in made if row["task"] != "all"}


@pytest.mark.slow
def test_every_method_has_a_full_row(command: list[str], task: Path, tmp_path: Path, capsys: Captured) -> None:
    other = task.with_name("other.jsonl")
    other.write_text(task.read_text(encoding="utf-8"), encoding="utf-8")
    folder = tmp_path / "made"
    assert cli.main([*command, "--task", str(other), "--out", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    all_rows = json.loads(out)["rows"]
    assert [(row["task"], row["method"]) for row in all_rows] == [
        (name, method) for name in ("own", "other", "all") for method in METHODS
    ]
    for row in all_rows:
        empty = {name for name, value in row.items() if value is None} - {"unavailable"}
        ours = row["method"] in ("plain", "intersection", "paper", "exact", "goodput")
        drafts = row["method"] not in ("generate", "plain")
        if row["method"] == "goodput":  # whether it drafts at all here, or copies alone, is for it to decide
            drafts = "acceptance_rate" not in empty
        assert empty == (set() if ours else {"draft_ms", "verify_ms", "overhead_ms"}) | (
            set() if drafts else {"acceptance_rate"}
        )
        assert row["identical"] is True
        assert row["different"] == 0
        assert row["prompts"] == (6 if row["task"] == "all" else 3)
        assert row["tokens"] == row["prompts"] * row["repeats"] * COUNT
        assert row["tokens_per_s_q1"] <= row["tokens_per_s"] <= row["tokens_per_s_q3"]
    assert {row["speedup"] for row in all_rows if row["method"] == "generate"} == {1.0}

    (path,) = folder.glob("compare-target-*.json")
    assert {file.suffix for file in folder.iterdir()} == {".json", ".md"}
    assert str(tmp_path) not in path.read_text(encoding="utf-8") + out
    made = read(path)
    assert made.setting["tasks"]["own"]["hash"] == made.setting["tasks"]["other"]["hash"]
    assert len(made.runs) == 2 * 6 * len(METHODS)
    undrafted = [run for run in made.runs if run.method in ("generate", "plain")]
    assert {(run.rounds, run.drafted, run.rounds_without_draft) for run in undrafted} == {(COUNT, 0, COUNT)}
    assert all(run.drafted > 0 for run in made.runs if run.method in ("uad", "intersection", "paper", "exact"))
    assert cli.main(["bench", "report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == all_rows


@pytest.mark.slow
def test_wrong_tokens_are_flagged_and_fail(
    command: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    assert cli.main([*command, "--methods", "plain, lookup,exact", "--json"]) == 1
    out, err = capsys.readouterr()
    made = rows(out)
    assert {name: row["identical"] for name, row in made.items()} == {
        "generate": True,
        "plain": True,
        "lookup": True,
        "exact": False,
    }
    assert made["exact"]["different"] == len(TEXTS)
    assert "THE TOKENS DIFFER from those of generate: exact on own" in err
    # in a coarser dtype, logits depend on the shape of a batch: that is told, and is no failure
    assert cli.main([*command, "--methods", "exact", "--dtype", "bfloat16", "--json"]) == 0
    assert rows(capsys.readouterr().out)["exact"]["identical"] is False


@pytest.mark.medium
def test_a_method_that_these_models_cannot_run(
    command: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("not with such tokenizers")

    generator = candidate_generator.AssistedCandidateGeneratorDifferentTokenizers
    monkeypatch.setattr(generator, "get_candidates", fail)
    assert cli.main([*command, "--methods", "uad,exact", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    made = rows(out)
    assert made["uad"]["unavailable"] == "ValueError: not with such tokenizers"
    assert made["uad"]["speedup"] is None
    assert made["exact"]["identical"] is True
    (page,) = tmp_path.glob("compare-*.md")
    assert "| uad | unavailable: ValueError: not with such tokenizers |" in page.read_text(encoding="utf-8")
    assert "Traceback" not in err


@pytest.mark.slow
def test_sampling_leaves_out_what_does_not_follow_the_law(command: list[str], capsys: Captured) -> None:
    assert cli.main([*command, "--temperature", "0.8", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    made = rows(out)
    assert list(made) == list(METHODS)
    assert made["uad"]["unavailable"].startswith("greedy only")
    assert "uad is left out, greedy only" in err
    assert {row["identical"] for row in made.values()} == {None}
    assert made["exact"]["speedup"] > 0


@pytest.mark.medium
def test_prompts_without_room_for_an_answer_are_left_out(
    command: list[str], task: Path, tmp_path: Path, capsys: Captured
) -> None:
    rest = ["--methods", "plain", "--json", "--out", str(tmp_path / "made")]
    with task.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "hello" * 4090}) + "\n")
    assert cli.main([*command, *rest]) == 0
    out, err = capsys.readouterr()
    assert "own: 1 prompts of more than 4088 tokens are left out" in err
    assert rows(out)["plain"]["prompts"] == len(TEXTS)
    (path,) = (tmp_path / "made").glob("*.json")
    assert {name: read(path).setting["tasks"]["own"][name] for name in ("prompts", "left_out")} == {
        "prompts": 3,
        "left_out": 1,
    }
    task.write_text(json.dumps({"prompt": "hello" * 4090}) + "\n", encoding="utf-8")
    assert cli.main([*command, *rest]) == 2
    assert "no prompt of own fits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "exact,magic"], "method 'magic' does not exist: use some of generate, plain"),
        (["--repeats", "0"], "argument --repeats: '0' is no integer from 1"),
        (["--draft-length", "65"], "draft_length is 65"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--count", "x"], "argument --count: 'x' is no integer from 1 to 2147483647: see omnidraft"),
        (["--repeat", "3"], "unknown argument '--repeat': did you mean '--repeats'?"),
        (["--task", "nothing"], "task 'nothing' is no file and none of gsm8k"),
        (["--task", "elsewhere/own.jsonl"], "the tasks are called own, own: give each once"),
    ],
)
def test_mistakes_are_one_line(
    command: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    Path("elsewhere/own.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    assert message in one_error(capsys, *command, *more)


@pytest.mark.medium
def test_a_folder_that_cannot_be_written_to(command: list[str], task: Path, capsys: Captured) -> None:
    assert "give --out another place" in one_error(capsys, *command, "--out", task)


def test_the_round_that_reads_the_prompt_is_no_part_of_the_times() -> None:
    first, later = RoundTimes(draft_s=9, verify_s=9), RoundTimes(draft_s=1, verify_s=2, overhead_s=3, policy_s=4)
    rounds = [Round(emitted=(1,), times=first), Round(emitted=(2, 3), draft=(5, 6), times=later)]
    method = LaneMethod("exact", cast(Lane, None), Sampling())
    run = run_of(method, Question("own", 0, [7, 8]), Timed(TimedAnswer([1, 2, 3], rounds), 30.0))
    assert (run.draft_s, run.verify_s, run.overhead_s) == (1, 2, 7)
    assert (run.rounds, run.tokens, run.drafted) == (2, 3, 2)
