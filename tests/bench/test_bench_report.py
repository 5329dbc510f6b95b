"""Rows, tables and result files, from records made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnidraft.bench import report
from omnidraft.bench.output import down
from omnidraft.bench.records import RESULTS_FORMAT, Results, Run, read
from omnidraft.cli import main as cli
from support.command_line import one_error

Captured = pytest.CaptureFixture[str]
COUNTS: dict[str, dict[str, float]] = {
    "generate": {"rounds": 10, "drafted": 0, "rounds_without_draft": 10, "symbols": 0, "symbols_accepted": 0},
    "exact": {
        "rounds": 5,
        "rounds_without_draft": 1,
        "drafted": 20,
        "symbols": 16,
        "symbols_accepted": 8,
        "draft_s": 0.25,
        "verify_s": 0.5,
        "overhead_s": 0.05,
    },
    "lookup": {"rounds": 5, "drafted": 20, "rounds_without_draft": 2, "symbols": 20, "symbols_accepted": 10},
}


def setting(*tasks: str, target: str = "big", **more: Any) -> dict[str, Any]:
    known = {task: {"prompts": 2, "left_out": 0, "hash": f"hash of {task}"} for task in tasks}
    return {"target": target, "drafter": "small", "dtype": "float32", "threads": 1, "tasks": known, **more}


def run(method: str, prompt: int, repeat: int, tokens: int, seconds: float, **more: Any) -> Run:
    record: dict[str, Any] = {"task": "math", "identical": True, **COUNTS[method], **more}
    return Run(method=method, prompt=prompt, repeat=repeat, tokens=tokens, seconds=seconds, **record)


def results(task: str = "math", **more: Any) -> Results:
    """Two prompts of 10 and 20 tokens, twice; `exact` takes half as long, `lookup` longer than `generate`."""
    made = Results(setting=setting(task, **more))
    for repeat in (0, 1):
        for prompt, tokens in ((0, 10), (1, 20)):
            seconds = {"generate": tokens / 10, "lookup": tokens / 8, "exact": tokens / (20 + 10 * repeat)}
            for method, its in seconds.items():
                made.runs.append(run(method, prompt, repeat, tokens, its, task=task))
    return made


def rows_of(made: Results | list[Results]) -> dict[str, report.Row]:
    made = made if isinstance(made, list) else [made]
    return {f"{row['target']} {row['task']} {row['method']}": row for row in report.rows(made)}


def write(path: Path, made: Results) -> Path:
    made.save(path)
    return path


# ---------------------------------------------------------------- rows


def test_speeds_and_speedups() -> None:
    rows = rows_of(results())
    alone, lookup, exact = (rows[f"big math {name}"] for name in ("generate", "lookup", "exact"))
    assert alone["speedup"] == 1.0
    assert lookup["speedup"] == pytest.approx((10 / 10 + 20 / 10) / (10 / 8 + 20 / 8)) == pytest.approx(0.8)
    # 3 s alone each time; 1.5 and 1 s with drafts
    assert exact["speedup"] == pytest.approx(6 / 2.5)
    assert exact["tokens_per_s"] == pytest.approx(25), "the median over repeats of 20 and 30"
    assert exact["tokens_per_s_total"] == pytest.approx(60 / 2.5)
    assert exact["deviation"] == pytest.approx(50**0.5 / 25)
    assert alone["deviation"] == 0
    assert (exact["prompts"], exact["repeats"], exact["tokens"]) == (2, 2, 60)


def test_quartiles_are_over_prompts() -> None:
    made = results()
    made.runs[:] = [run("generate", prompt, 0, 10, 10 / speed) for prompt, speed in enumerate((10, 20, 30, 40, 90))]
    row = rows_of(made)["big math generate"]
    figures = [row[key] for key in ("tokens_per_s_q1", "tokens_per_s", "tokens_per_s_q3")]
    assert figures == [pytest.approx(speed) for speed in (20, 30, 40)]
    made.runs[1:] = []
    row = rows_of(made)["big math generate"]
    assert row["tokens_per_s_q1"] == row["tokens_per_s_q3"] == pytest.approx(10)
    assert row["deviation"] is None, "of one repeat"


def test_acceptance_comes_from_rounds() -> None:
    rows = rows_of(results())
    exact, lookup, alone = (rows[f"big math {name}"] for name in ("exact", "lookup", "generate"))
    assert exact["block_efficiency"] == pytest.approx(60 / 20)
    assert exact["acceptance_rate"] == 0.5
    assert exact["draft_length"] == 4
    assert exact["draft_ms"] == pytest.approx(250 / 4), "of five rounds the first reads the prompt"
    assert exact["verify_ms"] == pytest.approx(500 / 4)
    assert exact["overhead_ms"] == pytest.approx(50 / 4)
    assert (exact["without_draft"], lookup["without_draft"], alone["without_draft"]) == (0.2, 0.4, 1)
    assert (lookup["acceptance_rate"], lookup["draft_ms"]) == (0.5, None), "times are known of our own loop"
    assert (alone["block_efficiency"], alone["acceptance_rate"]) == (60 / 40, None), "nothing was drafted"


def test_a_method_is_compared_with_the_baseline_of_its_own_tasks() -> None:
    """Over all tasks a method that only some files have must not be credited with the others' seconds."""
    math, code = results(), results("code")
    code.runs[:] = [one for one in code.runs if one.method != "lookup"]
    rows = rows_of([math, code])
    assert rows["big all lookup"]["speedup"] == rows["big math lookup"]["speedup"] == pytest.approx(0.8)
    assert rows["big all exact"]["speedup"] == pytest.approx(6 / 2.5)
    code.unavailable["lookup"] = "why"
    rows = rows_of([math, code])
    assert rows["big math lookup"]["speedup"] == pytest.approx(0.8)
    assert rows["big code lookup"]["unavailable"] == rows["big all lookup"]["unavailable"] == "why"


def test_prompts_with_other_tokens_are_counted_once() -> None:
    made = results()
    made.runs[:] = [
        replace(one, identical=False) if one.method == "exact" and one.prompt == 1 else one for one in made.runs
    ]
    rows = rows_of(made)
    assert (rows["big math exact"]["identical"], rows["big math exact"]["different"]) == (False, 1)
    assert (rows["big math lookup"]["identical"], rows["big math lookup"]["different"]) == (True, 0)
    assert rows["big all exact"]["identical"] is False
    assert "NO, 1 differ" in report.markdown({"a": made}, list(rows.values()))


def test_sampled_answers_are_compared_by_the_token() -> None:
    made = results()
    made.runs[:] = [replace(one, identical=None) for one in made.runs]
    made.runs[:] = [
        replace(one, tokens=one.tokens // 2, seconds=one.seconds / 2) if one.method == "exact" else one
        for one in made.runs
    ]
    row = rows_of(made)["big math exact"]
    assert row["speedup"] == pytest.approx(6 / 2.5)
    assert row["identical"] is row["different"] is None


def test_a_method_that_could_not_run_has_a_row_that_says_so() -> None:
    made = results()
    made.unavailable["exact"] = "no such | luck"
    row = rows_of(made)["big math exact"]
    assert row["unavailable"] == "no such | luck"
    assert row["tokens_per_s"] is row["speedup"] is row["identical"] is None
    assert row.keys() == rows_of(made)["big math generate"].keys()
    assert "| exact | unavailable: no such \\| luck |" in report.markdown({"a": made}, [row])


def test_figures_are_never_rounded_up() -> None:
    assert [down(value, 2) for value in (1.999, 0.999, 1.0, None)] == ["1.99", "0.99", "1.00", "–"]


# ---------------------------------------------------------------- files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = results()
    made.unavailable |= {"uad": "why"}
    assert read(write(tmp_path / "a.json", made)) == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "a.json is no result file, or damaged") for text in ("", "hello", "[1]", "3", "{}", "[" * 100_000)),
        (
            f'{{"format": "{RESULTS_FORMAT}"}}',
            "a.json is no result file, or damaged (KeyError('runs')): run the comparison",
        ),
        (f'{{"format": "{RESULTS_FORMAT}", "runs": [{{"seconds": 1}}]}}', "a.json is no result file, or damaged"),
        (
            f'{{"format": "{RESULTS_FORMAT}0"}}',
            f"a.json is of format '{RESULTS_FORMAT}0', not '{RESULTS_FORMAT}': run the comparison again",
        ),
        ("\udcff", "cannot read result file"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, capsys: Captured, text: str, why: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert why in one_error(capsys, "bench", "report", path)


def test_files_are_merged(tmp_path: Path, capsys: Captured) -> None:
    files = [
        write(tmp_path / "a.json", results()),
        write(tmp_path / "b.json", results("code", dtype="bfloat16")),
        write(tmp_path / "c.json", results(target="other")),
    ]
    stem = tmp_path / "made" / "all.results"
    assert cli.main(["bench", "report", *map(str, files), "--out", str(stem)]) == 0
    out, err = capsys.readouterr()
    text = out.splitlines()
    assert cli.main(["bench", "report", *map(str, files), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["rows"]
    rows = {f"{row['target']} {row['task']} {row['method']}": row for row in made}
    places = [("big", "math"), ("big", "code"), ("big", "all"), ("other", "math"), ("other", "all")]
    assert list(rows) == [f"{a} {b} {method}" for a, b in places for method in ("generate", "lookup", "exact")]
    assert rows["big all exact"]["prompts"] == 4
    assert rows["big all exact"]["tokens"] == 120
    assert rows["big all exact"]["speedup"] == pytest.approx(6 / 2.5)
    assert "warning: dtype differs: float32 in a.json, bfloat16 in b.json, float32 in c.json" in err
    assert err.count("warning") == 1
    assert "\n".join(text).strip() == stem.with_name("all.results.md").read_text(encoding="utf-8").strip()
    assert "### other, math: 2 prompts, 2 repeats" in text
    assert "### other, all: 2 prompts, 2 repeats" not in text, "it would say the same twice"
    assert "### big, all: 4 prompts, 2 repeats" in text
    assert str(tmp_path) not in out


def test_files_that_cannot_be_compared(tmp_path: Path, capsys: Captured) -> None:
    files = [str(write(tmp_path / name, results())) for name in ("a.json", "b.json")]
    assert "task 'math' of target 'big' is in two result files" in one_error(capsys, "bench", "report", *files)
    first, second = results(), results(target="other")
    assert report.differences({"a": first, "b": second}) == []
    second.setting["tasks"]["math"]["hash"] = "another"
    assert report.differences({"a": first, "b": second}) == ["the prompts of task math differ"]


@pytest.mark.parametrize(("stem", "why"), [("a.json/b", "cannot write"), (".", "'.' is no name for files")])
def test_a_place_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, stem: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.json", results())
    error = one_error(capsys, "bench", "report", path, "--out", stem)
    assert why in error
    assert "give --out another place" in error
