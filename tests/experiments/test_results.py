"""What studies share: the file of results, the runner, tasks, recipes, and ways that are compared."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from experiments import recipe
from experiments import tasks as parted
from experiments.evaluation import Evaluation, compared
from experiments.results import Results
from experiments.runner import Experiment, Size
from experiments.study import Study
from omnidraft.bench.interleaved import LaneMethod, TimedAnswer
from omnidraft.cli import flags
from omnidraft.config import Sampling
from omnidraft.errors import ConfigError, InputError, OmniDraftError
from support.lanes import isolated
from support.project_files import ROOT, shared

RECIPES = ROOT / "recipes"
KEPT = [path.relative_to(ROOT) for path in sorted((ROOT / "results").rglob("*.jsonl"))]

# ---------------------------------------------------------------- results


def test_a_row_takes_the_place_of_the_one_of_its_key_and_a_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first = Results(path, "some")
    first.begin("a command", {"n": 1})
    first.add("rows", "a", {"value": 1})
    second = Results(path, "some")
    second.begin("another", {"n": 1})
    second.add("rows", "b", {"value": 2})
    second.add("rows", "a", {"value": 3})
    second.add("others", "a", {})
    found = Results(path, "some")
    assert [(key, row["value"]) for key, row in found.of("rows").items()] == [("a", 3), ("b", 2)]
    assert found.as_dict() == second.as_dict()
    assert [setting["command"] for setting in found.settings] == ["a command", "another"]


def test_a_line_that_was_cut_off_is_passed_over_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    made = Results(path, "some")
    made.begin("a command", {})
    made.add("rows", "a", {})
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole.splitlines()[-1][:-5], encoding="utf-8")
    again = Results(path, "some")
    assert again.of("rows") == made.of("rows")
    again.add("rows", "b", {})
    assert len(Results(path, "some").of("rows")) == 2, "what is added begins a line"
    for study, place, message in (("other", path, "format"), ("some", path / "below.jsonl", "another place")):
        with pytest.raises(InputError, match=message):
            Results(place, study)
    for text, message in (
        (whole + '{"kind": "ro\n' + whole, "has a broken line"),
        (whole + "3\n", "a line holds no record"),
        (whole.replace("some 1", "some 10"), "is of format 'omnidraft some 10'"),
        ("hello\n", "is no result file"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            Results(path, "some")


@pytest.mark.parametrize("path", KEPT, ids=str)
def test_the_pages_of_kept_results_are_made_of_their_rows(path: Path) -> None:
    study = (ROOT / path).read_text(encoding="utf-8").partition('"format": "omnidraft ')[2].split()[0]
    results = Results(ROOT / path, study)
    made = import_module(f"experiments.{study}").main.__self__
    if isinstance(made, Study):
        made.recipe, made.asked = recipe.read(RECIPES / f"{results.settings[0]['recipe']['name']}.toml"), ()
    assert made.page(results) == (ROOT / path).with_suffix(".md").read_text(encoding="utf-8")


# ---------------------------------------------------------------- the runner


class Small(Experiment):
    """Rows of numbers."""

    name = "small"
    about = "Numbers."
    examples = ("--quick",)
    sizes: ClassVar = {"counts": Size((3, 4), (1,), "numbers, repeatable"), "more": Size(7, 5, "a number", 0)}
    title, columns, first = "Small", ("name", "count", "half", "none"), "count"

    def add_options(self, to: flags.CommandParser) -> None:
        to.add_argument("--kind", default="a")

    def setting(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"kind": options.kind}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        if options.kind == "bad":
            raise OmniDraftError("it is bad: use another")
        console.print("measuring")
        for count in options.counts:
            row = {"name": f"{options.kind}{options.more}", "count": count, "half": count / 2 + 0.009, "none": None}
            results.add("rows", str(count), row)

    def wrong(self, results: Results) -> bool:
        return "9" in results.of("rows")


@pytest.mark.medium
def test_the_runner_reads_options_goes_on_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, out = Small().main, ["--out", str(tmp_path / "small")]
    assert main([*out, "--counts", "2", "--counts", "9"]) == 1
    page = capsys.readouterr().out
    assert page == (tmp_path / "small.md").read_text(encoding="utf-8")
    command = "    python -m experiments.small --out small --counts 2 --counts 9\n"
    assert page.startswith(f"# Small\n\n{command}\n| name | count | half | none |\n| --- | ---: |")
    assert page.endswith("| a7 | 2 | 1.00 | – |\n| a7 | 9 | 4.50 | – |\n"), "rounded down"
    for given in (["--counts", "2"], ["--counts", "2", "--counts", "9", "--kind", "b"], ["--quick"]):
        assert main([*out, *given]) == 2
        assert "other settings (" in capsys.readouterr().err
    assert main(["--quick"]) == 0
    assert capsys.readouterr().out.endswith("| a5 | 1 | 0.50 | – |\n")
    for given, code in ((["--more", "-1"], 2), (["--no"], 2), (["--kind", "bad"], 1), (["--help"], 0)):
        assert main(given) == code


# ---------------------------------------------------------------- recipes and tasks


def test_the_shipped_recipes_can_be_read() -> None:
    found = {path.stem: recipe.read(path) for path in RECIPES.glob("*.toml")}
    assert {name: one.unseen for name, one in found.items() if name != "paper"} == {
        "zoo": True, "real": True, "learning": True,
    }  # fmt: skip
    assert found["paper"].tasks.keys() == set(parted.NAMES) - {"mbpp", *parted.OWN}
    assert (found["paper"].tasks["code"].train, found["paper"].tasks["code"].test) == (910, 228)
    moved = recipe.read(RECIPES / "paper.toml", {"lmsys/vicuna-7b-v1.3": "folder"})
    assert moved.place("lmsys/vicuna-7b-v1.3") == "folder"
    assert moved.same == found["paper"].same, "results go by the names of the recipe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("new_tokens", "new_token"), "unknown option 'new_token': did you mean 'new_tokens'?"),
        (("drafter", "drafters"), "there is no drafter: give it"),
        (("learning_rate", "learning_rat"), "unknown option 'learning_rat'"),
        (("gsm8k", "gsm9k"), "task 'gsm9k' is not known: did you mean 'gsm8k'?"),
        (("train = 4", "train = 0"), "train is 0; it must be a positive integer"),
        (("train = 4", "training = 4"), "unknown option 'training'"),
        (("targets = [", "targets = []\nsame = ["), "no targets: give at least one"),
    ],
)
def test_a_mistake_in_a_recipe_is_said(change: tuple[str, str], message: str, small: Path) -> None:
    small.write_text(small.read_text(encoding="utf-8").replace(*change, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        recipe.read(small)
    assert "recipe small.toml" in str(error.value)


@pytest.mark.parametrize("task", parted.NAMES)
def test_what_is_learned_from_is_not_what_is_tested(task: str, tasks: Path) -> None:
    learn, tests = parted.parts(task, tasks)
    assert learn
    assert tests
    if task != "gsm8k":  # whose two files here are the same
        assert not set(learn) & set(tests)


@pytest.mark.medium
def test_the_tasks_have_the_sizes_of_the_paper() -> None:
    data = shared("data")
    assert [len(part) for part in parted.parts("code", data)] == [910, 228]
    assert len(parted.parts("gsm8k", data)[0]) == 7473
    assert sum(map(len, parted.parts("code", data, unseen=True))) == 500 + 164
    assert len(parted.parts("gsm8k", data, unseen=True)[0]) == parted.KEPT_OUT


def test_splits_come_from_the_hub_where_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    class Datasets:
        @staticmethod
        def load_dataset(*source: str, split: str) -> list[dict[str, Any]]:
            asked.append((*source, split))
            return [{"instruction": "Say.", "input": "this", "document": "Long."}] * 5

    monkeypatch.setattr("importlib.import_module", lambda _: Datasets)
    learn, tests = parted.parts("alpaca", None)
    assert (len(learn), tests) == (4, ["Say.\n\nthis"])
    assert "Long." in parted.parts("xsum", None)[1][0]
    assert asked == [("tatsu-lab/alpaca", "train"), ("EdinburghNLP/xsum", "train"), ("EdinburghNLP/xsum", "test")]


# ---------------------------------------------------------------- compared ways


@pytest.mark.medium
def test_ways_are_compared(evaluation: Evaluation) -> None:
    model, ids = evaluation.model, evaluation.prompts("gsm8k", tests=True)
    ways = [LaneMethod(str(n), isolated(model, draft_length=n), Sampling()) for n in (0, 1, 3)]
    found = compared(ways, ids, 8)
    assert list(found) == ["0", "1", "3"]
    assert all(row["identical"] for row in found.values())
    plain, one, three = found.values()
    assert plain["drafted"] == plain["acceptance_rate"] == 0
    assert plain["block_efficiency"] == plain["speedup"] == 1
    assert 0 < one["drafted"] <= 1 < three["drafted"] <= 3


@pytest.mark.medium
@pytest.mark.parametrize(("temperature", "identical"), [(0.0, False), (1.0, None)])
def test_greedy_answers_that_differ_are_noticed(
    temperature: float, identical: bool | None, evaluation: Evaluation
) -> None:
    class Wrong(LaneMethod):
        ended = 0

        def end(self) -> TimedAnswer:
            said = super().end()
            Wrong.ended += 1
            return TimedAnswer([*said.tokens[:-1], said.tokens[-1] + (Wrong.ended == 1)], said.rounds)

    lanes = (isolated(evaluation.model, draft_length=0) for _ in range(2))
    ways = [kind(kind.__name__, next(lanes), Sampling(temperature=temperature)) for kind in (LaneMethod, Wrong)]
    found = compared(ways, evaluation.prompts("gsm8k", tests=True), 8)
    assert {row["identical"] for row in found.values()} == {identical}, "to the first prompt alone"
