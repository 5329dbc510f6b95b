"""`python -m experiments.paper`: methods, cells, the study of the cache, and the whole evaluation on tiny models."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from experiments import adaptation, cache_study, paper, recipe, study
from experiments.evaluation import Evaluation, Row
from experiments.results import Results
from experiments.student import GREEDY, record
from experiments.tables import METHODS, Table, measured
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.errors import PromptError
from support.models import save_model
from support.project_files import ROOT
from support.small_tokenizers import byte_level

# ---------------------------------------------------------------- a drafter that learns from recorded answers


@pytest.mark.medium
def test_a_recorded_answer_holds_the_distributions_of_the_teacher(evaluation: Evaluation) -> None:
    ids = evaluation.prompts("gsm8k", tests=True)[0]
    soft, sharp = (record(evaluation.model, ids, 6, GREEDY, temperature) for temperature in (1.0, 0.25))
    assert soft.tokens == sharp.tokens
    assert all(a.probs.max() < b.probs.max() for a, b in zip(soft.teacher, sharp.teacher, strict=True))
    assert len(record(evaluation.model, ids, 6, Sampling(temperature=1.0), 1.0).teacher) == 6


@pytest.mark.medium
def test_prompts_that_leave_no_room_are_left_out(evaluation: Evaluation) -> None:
    evaluation.recipe = replace(evaluation.recipe, new_tokens=evaluation.model.target.lm.context)
    with pytest.raises(PromptError, match=r"leaves .* room for an answer"):
        evaluation.prompts("gsm8k", tests=True)


# ---------------------------------------------------------------- cells


def test_the_methods_are_settings_that_there_are_and_are_all_used() -> None:
    for method in METHODS.values():
        Drafting(**method.drafting)
        own = {"head", "hybrid", "interleaved"}  # of `paper_training`
        Learning(**{name: value for name, value in (method.learning or {}).items() if value not in own})
    tables = [part for part in paper.PARTS.values() if isinstance(part, Table)]
    assert {name for table in tables for name in table.methods} == METHODS.keys()


@pytest.mark.medium
def test_a_cell_learns_from_the_stream_and_is_timed_beside_the_target(evaluation: Evaluation) -> None:
    row = measured(evaluation, "gsm8k", "distil only")
    assert row["identical"] is True
    assert (row["train"], row["test"]) == (4, 2)
    assert row["updates"] > 0
    assert row["learned_bytes"] > 0
    assert row["training_s"] > 0
    direct = measured(evaluation, "code", "direct mapping")
    assert (direct["train"], direct["test"]) == (3, 2)
    assert direct["learned_bytes"] == direct["updates"] == direct["ngram_hits"] == 0
    evaluation.recipe = replace(evaluation.recipe, temperature=1.0)
    sampled = measured(evaluation, "gsm8k", "L_DM + λ·L_N-gram")
    assert sampled["identical"] is None
    assert sampled["ngrams"] > 0, "the cache sees the stream"


@pytest.mark.medium
def test_methods_are_given_the_settings_of_the_recipe(evaluation: Evaluation) -> None:
    fixed = evaluation.student(METHODS["plain SpD"], 0.3).drafting
    assert (fixed.draft_length, fixed.threshold) == (4, None)
    assert evaluation.student(METHODS["joint"], 0.3).drafting.threshold == 0.3
    assert evaluation.student(METHODS["interleaved, γ = 0.9"], 0.3).drafting.threshold == 0.1


@pytest.mark.medium
def test_a_cache_sees_answers_round_by_round_where_they_are_drafted_for(evaluation: Evaluation) -> None:
    evaluation.recipe = replace(evaluation.recipe, new_tokens=32)
    answers = evaluation.answers("gsm8k")
    drafted, seen = (evaluation.student(METHODS["plain SpD"]) for _ in range(2))
    drafted.learn_all(answers, drafting=True)
    seen.learn_all(answers)
    caches = drafted.attached.cache, seen.attached.cache
    assert (caches[0].hits == caches[1].hits).all()
    assert caches[0].last_use.max() > len(answers) >= caches[1].last_use.max() > 0


@pytest.mark.slow
def test_the_cache_study_bounds_what_saw_the_same_answers(evaluation: Evaluation) -> None:
    few = {"gsm8k": replace(evaluation.recipe.tasks["gsm8k"], test=1)}
    evaluation.recipe = replace(evaluation.recipe, new_tokens=32, tasks=few)
    grown, seeded = (cache_study.cache_study(evaluation, "gsm8k", seed) for seed in ("empty", "vocabulary"))
    assert evaluation.model.lane.attached is not None
    table = evaluation.model.lane.attached.cache.table
    said = {token for one in evaluation.answers("gsm8k") for token in one.tokens if len(table.spelling(token)) > 1}
    for found in (grown, seeded):
        rows = {row["cache"]: row for row in found["rows"]}
        bounded = [f"{share} {eviction}" for share in ("1/8", "1/4", "1/2") for eviction in ("lru", "lfu")]
        assert list(rows) == [cache_study.NEVER, "none", "full", *bounded]
        assert rows["none"]["entries"] == rows["none"]["bytes"] == rows["none"]["ngram_hits"] == 0
        for name in bounded:
            assert rows[name]["bound"] == max(1, rows["full"]["entries"] // int(name[2]))
            assert 0 < rows[name]["entries"] <= rows[name]["bound"]
        assert all(row["identical"] is True for row in found["rows"])
    assert grown["rows"][2]["entries"] == len(said) > 0, "what was emitted is what it holds"
    mixed = [seeded, grown | {"task": "code"}, grown]  # as several processes write them
    text = cache_study.markdown(mixed)
    assert text == cache_study.markdown(mixed[::-1])
    assert text.index(", code: ") < text.index(", gsm8k: ")


# ---------------------------------------------------------------- the command


def kept(folder: Path) -> Row:
    return Results(folder / "paper.jsonl", "paper").as_dict()


def run(*arguments: object) -> int:
    return paper.main([*map(str, arguments)])


STUDY = study.Study(
    "paper",
    "Two tables",
    {
        "one": Table("One", ("direct mapping", "plain SpD", "distil only"), attrgetter("targets"), ("gsm8k",)),
        "two": Table("Two", ("plain SpD", "L_DM"), attrgetter("targets"), ("gsm8k",)),
    },
    "recipe.toml",
)


@pytest.mark.medium
def test_a_run_is_gone_on_with(
    small: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    given = [*map(str, (small, "--data", tasks, "--parts", "one", "--out", out))]
    timed, calls = Evaluation.timed, 0

    def failing(self: Evaluation, *rest: Any) -> dict[str, Row]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return timed(self, *rest)

    monkeypatch.setattr(Evaluation, "timed", failing)
    with contextlib.suppress(KeyboardInterrupt):
        STUDY.main(given)
    assert len(kept(out)["cells"]) == 1
    assert STUDY.main(given) == 0
    assert calls == 2 + 2, "three cells, one of which was there"
    result = kept(out)
    assert len(result["cells"]) == 3
    assert result["settings"][0]["command"].startswith("python -m experiments.paper small.toml")
    text = (out / "paper.md").read_text(encoding="utf-8")
    assert "## One" in text
    assert "## Two" not in text, "of which only some is there, and nobody asked"
    assert STUDY.main([*given, "--plan"]) == 0
    assert "0 to be measured" in capsys.readouterr().err
    assert STUDY.main([*given, "--quick"]) == 2
    assert "results of other settings" in capsys.readouterr().err


@pytest.mark.medium
def test_a_wrong_answer_is_an_error(small: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Evaluation.timed

    def wrong(self: Evaluation, *rest: Any) -> dict[str, Row]:
        return {name: row | {"identical": False} for name, row in timed(self, *rest).items()}

    given = [str(small), "--data", str(tasks), "--quick", "--parts", "two"]
    assert STUDY.main(given) == 0
    monkeypatch.setattr(Evaluation, "timed", wrong)
    assert STUDY.main(given) == 1


def test_mistakes_are_said_before_anything_is_loaded(
    small: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, message in (
        (("--parts", "table-4"), "part 'table-4' is not known"),
        (("--target", "none"), "target 'none' is not known"),
        (("--use", "zoo:drafter"), "give it as NAME=MODEL"),
        (("--use", "no=such"), "there is no model 'no' to replace"),
        (("--threads", "0"), "argument --threads: '0' is no integer"),
    ):
        assert run(small, "--data", tasks, *given) == 2
        assert message in capsys.readouterr().err
    small.write_text(small.read_text(encoding="utf-8").replace("train = 4", "train = 400"), encoding="utf-8")
    assert run(small, "--data", tasks) == 2
    assert "gsm8k has 6 prompts for train, 400 are asked for" in capsys.readouterr().err
    assert run(tmp_path / "none.toml") == 2
    assert "cannot read recipe" in capsys.readouterr().err


def test_tables_show_what_is_measured_so_far(small: Path) -> None:
    found, table, results = recipe.read(small), paper.PARTS["table-11"], Results(None, "paper")
    row = {"acceptance_rate": 0.12345, "block_efficiency": 1.5004, "speedup": 1.239, "drafted": 1.5}
    results.add("cells", next(key for _, key, _ in table.jobs(found)), row)
    text = table.markdown(results, found, partial=True)
    assert "| interleaved, γ = 0.3 | 0.123 | 1.500 | 1.24 | 1.50 |" in text
    assert text.count("\n| ") == 1 + 2, "no line for what is missing"
    assert table.markdown(results, found, partial=False) == ""


def test_every_job_is_of_a_target_that_is_gone_through(small: Path) -> None:
    for path in (small, *(ROOT / "recipes").glob("*.toml")):
        found = recipe.read(path)
        for one in (paper.STUDY, adaptation.STUDY):
            jobs = [target for part in one.parts.values() for target, *_ in part.jobs(found)]
            assert set(jobs) <= set(found.every_target)


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_every_kind_of_cell_of_the_papers_recipe_runs(
    tasks: Path, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "QUICK_TOKENS", 5)
    text = (ROOT / "recipes" / "paper.toml").read_text(encoding="utf-8")
    # half precision takes longer on a CPU, and what is told here is only whether cells run
    text = re.sub(r"^(code|xsum) = .*\n", "", text.replace("float16", "float32"), flags=re.MULTILINE)
    copied = tmp_path / "paper.toml"
    one = re.sub(r'^(targets|larger) = \["(\S+)",.*', r'\1 = ["\2"]', text, flags=re.MULTILINE)
    copied.write_text(one, encoding="utf-8")
    whole = recipe.read(copied)
    named = sorted({*whole.every_target} - {*whole.same})
    folders = {name: save_model(tmp_path / str(n), byte_level(), seed=n) for n, name in enumerate(named)}
    folders |= dict.fromkeys([*whole.same, whole.drafter], drafter)  # which have one tokenizer
    use = [argument for name, folder in folders.items() for argument in ("--use", f"{name}={folder}")]
    out = tmp_path / "out"
    assert run(copied, "--quick", "--data", tasks, "--out", out, *use) == 0
    result = kept(out)
    wanted = {(part.kind, key) for part in paper.PARTS.values() for _, key, _ in part.jobs(whole.quick())}
    assert {(kind, row["key"]) for kind in ("cells", "cache") for row in result[kind]} == wanted
    for number in (1, 2, 3, 11, 14):
        assert f"## Table {number}:" in (out / "paper.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in json.dumps(result), "no folder of this machine"
