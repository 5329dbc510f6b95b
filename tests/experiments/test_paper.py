"""`python -m experiments.paper`: recipes, recorded answers, and every cell of the paper's evaluation on tiny models."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from experiments import tasks as parted
from experiments.paper import cache_study, recipe
from experiments.paper import figures as paper_figures
from experiments.paper import study as paper
from experiments.paper import tables as paper_tables
from experiments.paper.__main__ import main
from experiments.paper.evaluation import Evaluation, Speeds
from experiments.paper.tables import METHODS, TABLES, Cell
from experiments.recordings import AT_ONCE, Recordings, packed, unpacked
from experiments.results import Results
from experiments.student import Recorded
from omnidraft.config import Drafting, Learning
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.errors import ConfigError, InputError, PromptError
from omnidraft.verification.sparse_probs import SparseProbs
from support.project_files import shared

RECIPES = Path(__file__).parents[2] / "recipes"
TEXTS = ("one two three", "four and five", "six or seven", "a list of things", "no more of it", "what is left")
SMALL = """
drafter = "DRAFTER"
targets = ["TARGET"]
new_tokens = 8
repeats = 1
[tasks]
gsm8k = { train = 4, test = 2 }
code = { train = 3, test = 2 }
[subset]
train = 3
test = 1
"""


@pytest.fixture
def tasks(data: Path) -> Path:
    """A folder of all tasks, of a few lines each."""
    rows: dict[str, list[dict[str, str]]] = {
        "humaneval/HumanEval.jsonl": [{"prompt": f"def {text[:3]}():"} for text in TEXTS],
        "alpaca/train.jsonl": [{"instruction": text, "input": text[: i % 2]} for i, text in enumerate(TEXTS)],
        "xsum/train.jsonl": [{"document": text} for text in TEXTS],
        "xsum/test.jsonl": [{"document": text[::-1]} for text in TEXTS],
    }
    for name, its in rows.items():
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in its))
    return data


@pytest.fixture
def small(tmp_path: Path, target: Path, drafter: Path) -> Path:
    """A recipe of two small models."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("TARGET", str(target)).replace("DRAFTER", str(drafter)))
    return path


@pytest.fixture
def evaluation(small: Path, tasks: Path) -> Evaluation:
    found = recipe.read(small)
    texts = {name: parted.parts(name, tasks) for name in found.tasks}
    return Evaluation(found, found.targets[0], texts, Recordings(None), "cpu", Console(quiet=True))


# ---------------------------------------------------------------- recipes


def test_the_shipped_recipes_can_be_read() -> None:
    zoo, whole = (recipe.read(RECIPES / f"{name}.toml") for name in ("zoo", "paper"))
    assert zoo.targets == ("zoo:target-a", "zoo:target-b")
    assert zoo.unseen
    assert not whole.unseen
    assert whole.tasks.keys() == set(parted.NAMES)
    assert (whole.tasks["code"].train, whole.tasks["code"].test) == (910, 228)
    assert whole.learning.learning_rate == 1e-4
    assert whole.place("lmsys/vicuna-7b-v1.3") == "lmsys/vicuna-7b-v1.3"
    moved = recipe.read(RECIPES / "paper.toml", {"lmsys/vicuna-7b-v1.3": "folder"})
    assert moved.place("lmsys/vicuna-7b-v1.3") == "folder"
    assert moved.same == whole.same, "results go by the names of the recipe"
    quick = whole.quick()
    assert all((task.train, task.test) == (2, 1) for task in (*quick.tasks.values(), quick.subset))
    assert quick.tasks["xsum"].threshold == whole.tasks["xsum"].threshold


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("drafter", "drafters"), "unknown key 'drafters': did you mean 'drafter'?"),
        (("new_tokens = 8", "[learning]\nlearning_rat = 1"), "unknown option 'learning_rat'"),
        (("gsm8k", "gsm9k"), "task 'gsm9k' is not known: did you mean 'gsm8k'?"),
        (("train = 4", "train = 0"), "train is 0; it must be a positive integer"),
        (("train = 4", "training = 4"), "unknown option 'training'"),
        (('targets = ["TARGET"]', "targets = []"), "no targets: give at least one"),
        (('targets = ["TARGET"]', ""), "no targets: give it"),
        (("new_tokens = 8", 'switch = ["TARGET"]'), "it takes two"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_said(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        recipe.read(path)
    assert "recipe mine.toml" in str(error.value)


def test_recipes_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read recipe"):
        recipe.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InputError, match="cannot read recipe"):
        recipe.read(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="no model 'vicuna' to replace"):
        recipe.read(RECIPES / "paper.toml", {"vicuna": "folder"})


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize("task", parted.NAMES)
def test_what_is_learned_from_is_not_what_is_tested(task: str, tasks: Path) -> None:
    learn, tests = parted.parts(task, tasks)
    assert learn
    assert tests
    if task != "gsm8k":  # whose two files here are the same
        assert not set(learn) & set(tests)


def test_the_tasks_have_the_sizes_of_the_paper() -> None:
    data = shared("data")
    learn, tests = parted.parts("code", data)
    assert (len(learn), len(tests)) == (910, 228)
    assert len(parted.parts("gsm8k", data)[0]) == 7473
    unseen, others = parted.parts("code", data, unseen=True)
    assert len(unseen) + len(others) == 500 + 164
    assert len(parted.parts("gsm8k", data, unseen=True)[0]) == parted.KEPT_OUT
    with pytest.raises(ConfigError, match="task 'mbpp' is not known"):
        parted.parts("mbpp", data)


def test_splits_come_from_the_hub_where_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    class Datasets:
        @staticmethod
        def load_dataset(*source: str, split: str) -> list[dict[str, Any]]:
            asked.append((*source, split))
            return [{"instruction": "Say.", "input": "this", "document": "Long.", "question": "Who?"}] * 5

    monkeypatch.setattr("importlib.import_module", lambda _: Datasets)
    learn, tests = parted.parts("alpaca", None)
    assert (len(learn), len(tests)) == (4, 1)
    assert tests[0] == "Say.\n\nthis"
    assert "Long." in parted.parts("xsum", None)[1][0]
    parted.parts("gsm8k", None)
    assert asked == [
        ("tatsu-lab/alpaca", "train"),
        ("EdinburghNLP/xsum", "train"),
        ("EdinburghNLP/xsum", "test"),
        ("openai/gsm8k", "main", "train"),
        ("openai/gsm8k", "main", "test"),
    ]


# ---------------------------------------------------------------- recorded answers


def answer(prompt: Sequence[int], tokens: Sequence[int]) -> Recorded:
    laws = (
        SparseProbs(torch.arange(1 + token).int().numpy(), torch.full((1 + token,), 1 / (1 + token)).numpy())
        for token in tokens
    )
    return Recorded(tuple(prompt), tuple(tokens), tuple(laws))


def same(one: Recorded, other: Recorded) -> bool:
    laws = zip(one.teacher, other.teacher, strict=True)
    return (one.prompt, one.tokens) == (other.prompt, other.tokens) and all(
        (a.tokens == b.tokens).all() and (a.probs == b.probs).all() and a.tokens.dtype == b.tokens.dtype
        for a, b in laws
    )


def test_answers_survive_being_kept() -> None:
    answers = [answer((1, 2), (3, 0)), answer((), (5,)), answer((7,), ())]
    assert all(same(one, other) for one, other in zip(answers, unpacked(packed(answers)), strict=True))
    assert unpacked(packed([])) == []


def test_answers_are_recorded_once(tmp_path: Path) -> None:
    asked = [[number] for number in range(AT_ONCE + 5)]
    made: list[tuple[int, int]] = []

    def make(some: Sequence[list[int]], before: int) -> list[Recorded]:
        made.append((len(some), before))
        return [answer(ids, (1,)) for ids in some]

    first = Recordings(tmp_path)
    assert first.left("t", asked) == AT_ONCE + 5
    found = first.answers("t", asked[:AT_ONCE], make)
    assert [one.prompt for one in found] == [tuple(ids) for ids in asked[:AT_ONCE]]
    again = Recordings(tmp_path)
    assert again.left("t", asked) == 5
    assert [one.prompt for one in again.answers("t", asked, make)] == [tuple(ids) for ids in asked]
    assert made == [(AT_ONCE, 0), (5, AT_ONCE)]
    with pytest.raises(InputError, match="to other prompts"):
        Recordings(tmp_path).answers("t", [[99]], make)
    next(tmp_path.glob("t-*.npz")).write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot read recorded answers"):
        Recordings(tmp_path).left("t", asked)


# ---------------------------------------------------------------- cells


def test_the_methods_are_settings_that_there_are() -> None:
    for method in METHODS.values():
        Drafting(**method.drafting)
        Learning(**(method.learning or {}))
        TrainerSettings(**method.trainer)
    assert {name for table in TABLES.values() for name in table.methods} == METHODS.keys()


def test_a_cell_of_several_tables_is_measured_once(small: Path) -> None:
    found = recipe.read(small)
    one, two = ({cell.key for cell in TABLES[name].cells(found)} for name in ("table-1", "table-2"))
    assert len(one & two) == 2, "ours, on both tasks"
    every = [cell for table in TABLES.values() for cell in table.cells(found)]
    assert len({cell.key for cell in every}) == len(set(every)) < len(every)


def test_a_cell_learns_from_the_stream_and_is_timed_beside_the_target(evaluation: Evaluation) -> None:
    cell = Cell(evaluation.target, "gsm8k", "ours, fixed", 0.0, subset=False)
    row = evaluation.cell(cell)
    assert row["identical"] is True
    assert (row["train"], row["test"]) == (4, 2)
    assert row["updates"] > 0
    assert row["learned_bytes"] > 0
    assert row["training_s"] > 0
    assert row["speedup"] == pytest.approx(row["tokens_per_s"] / row["plain_tokens_per_s"], rel=1e-3)
    few = evaluation.cell(replace(cell, method="direct mapping", subset=True))
    assert (few["train"], few["test"]) == (3, 1)
    assert few["learned_bytes"] == few["updates"] == few["ngram_hits"] == 0
    sampled = evaluation.cell(replace(cell, method="L_DM + λ·L_N-gram", temperature=1.0))
    assert sampled["identical"] is None


def test_an_untrained_cache_sees_the_stream(evaluation: Evaluation) -> None:
    cell = Cell(evaluation.target, "code", "direct mapping + cache", 0.0, subset=False)
    row = evaluation.cell(cell)
    assert row["ngrams"] > 0
    assert row["updates"] == 0


def test_methods_are_given_what_the_recipe_says(evaluation: Evaluation) -> None:
    fixed = evaluation.student(METHODS["plain SpD"], 0.3).drafting
    assert (fixed.draft_length, fixed.threshold) == (4, None)
    assert evaluation.student(METHODS["joint"], 0.3).drafting.threshold == 0.3
    assert evaluation.student(METHODS["interleaved, γ = 0.9"], 0.3).drafting.threshold == 0.1


def test_it_does_not_matter_how_many_answers_are_sampled_at_a_time(evaluation: Evaluation) -> None:
    whole = evaluation.stream("gsm8k", 1.0, subset=False)
    evaluation.recordings = Recordings(None)
    few = evaluation.stream("gsm8k", 1.0, subset=True)
    assert len(few) < len(whole)
    both = few + evaluation.stream("gsm8k", 1.0, subset=False)[len(few) :]
    assert [one.tokens for one in both] == [one.tokens for one in whole]


def test_prompts_that_leave_no_room_are_left_out(evaluation: Evaluation) -> None:
    evaluation.recipe = replace(evaluation.recipe, new_tokens=evaluation.model.target.lm.context)
    with pytest.raises(PromptError, match=r"leaves .* room for an answer"):
        evaluation.prompts("gsm8k", tests=True, subset=False)


def test_the_plan_reckons_with_what_is_left(evaluation: Evaluation) -> None:
    speeds = Speeds(token=0.1, lesson=2.0)

    def job(needs: tuple[str, float, bool], passes: float = 1.0) -> paper.Job:
        return paper.Job("cells", "key", "table-1", (needs,), passes, 2, lambda _: {})

    tests = 2 * 2 * 1 * 8 * 0.1  # ways, prompts, repeats, tokens
    recording, lessons = 4 * 8 * 0.1, 4 * 2.0
    assert paper.estimate(evaluation, [], speeds) == 0
    one = paper.estimate(evaluation, [job(("gsm8k", 0.0, False))], speeds)
    assert one == pytest.approx(recording + lessons + tests)
    both = paper.estimate(evaluation, [job(("gsm8k", 0.0, False)), job(("gsm8k", 0.0, True), 0.0)], speeds)
    assert both == pytest.approx(one + tests / 2), "the few prompts are among the many"
    evaluation.stream("gsm8k", 0.0, subset=False)
    assert paper.estimate(evaluation, [job(("gsm8k", 0.0, False))], speeds) == pytest.approx(lessons + tests)
    measured = evaluation.speeds()
    assert measured.token > 0
    assert measured.lesson > 0


# ---------------------------------------------------------------- the cache


def test_the_cache_study_bounds_what_saw_the_same_answers(evaluation: Evaluation) -> None:
    evaluation.recipe = replace(evaluation.recipe, new_tokens=32)
    grown, seeded = (cache_study.cache_study(evaluation, "gsm8k", seed) for seed in ("empty", "vocabulary"))
    assert evaluation.model.engine.attached is not None
    table = evaluation.model.engine.attached.cache.table
    stream = evaluation.stream("gsm8k", 0.0, subset=False)
    said = sum(len(table.spelling(token)) > 1 for one in stream for token in one.tokens)
    for found in (grown, seeded):
        rows = {row["cache"]: row for row in found["rows"]}
        bounded = [f"{share} {eviction}" for share in ("1/8", "1/4", "1/2") for eviction in ("lru", "lfu")]
        assert list(rows) == [cache_study.NEVER, "none", "full", *bounded]
        assert rows["none"]["entries"] == rows["none"]["bytes"] == rows["none"]["ngram_hits"] == 0
        full = rows["full"]["entries"]
        for name in bounded:
            assert rows[name]["bound"] == max(1, full // int(name[2]))
            assert 0 < rows[name]["entries"] <= rows[name]["bound"]
        assert all(row["identical"] is True for row in found["rows"])
        assert len(found["curve"]) == 4
        assert found["curve"][-1][4] == full
        assert sum(point[0] for point in found["curve"]) == 4 * 32
        assert found["uses"] == sorted(found["uses"], reverse=True)
        assert sum(found["uses"]) == said, "those of the answers, not of the tests"
    assert all(a[4] <= b[4] for a, b in pairwise(grown["curve"]))
    own, whole = (next(row for row in found["rows"] if row["cache"] == "full") for found in (grown, seeded))
    assert len(grown["uses"]) == own["entries"] > 0, "what was emitted is what it holds"
    assert own["bytes"] > 0
    assert whole["entries"] > 8
    text = "\n".join(cache_study.markdown([grown, seeded]))
    assert text.count("\n| none |") == 1
    assert "empty: hits a round" in text
    assert "vocabulary: hits a round" in text


# ---------------------------------------------------------------- the command


def kept(folder: Path) -> Results:
    return Results(folder / paper.FILE, "paper", ("key",))


def run(*arguments: object) -> int:
    return main([*map(str, arguments)])


def test_the_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    listed = re.search(r"some of (.*), each in full", " ".join(capsys.readouterr().out.split()))
    assert listed is not None
    named, kind = [], ""
    for word in listed[1].split(", "):
        kind, number = word.split("-") if word[0] != "-" else (kind, word[1:])
        named.append(f"{kind}-{number}")
    assert sorted(named) == sorted(paper.PARTS)


def test_a_run_is_gone_on_with(
    small: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    given = (small, "--data", tasks, "--parts", "table-1,figure-5,figure-9", "--out", out)
    cell = Evaluation.cell
    calls: list[str] = []

    def failing(self: Evaluation, **given: Cell) -> dict[str, Any]:
        calls.append(given["cell"].method)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return cell(self, **given)

    monkeypatch.setattr(Evaluation, "cell", failing)
    with contextlib.suppress(KeyboardInterrupt):
        run(*given)
    assert len(kept(out).of("cells")) == 2
    assert run(*given) == 0
    assert len(calls) == 3 + 8, "ten cells, two of which were there"
    printed = capsys.readouterr()
    assert "2 there already" in printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert result == kept(out).as_dict()
    assert len(result["cells"]) == 10
    assert len(result["cache"]) == 4
    assert len(result["switch"]) == 1
    assert result["settings"][0]["command"].startswith("python -m experiments.paper small.toml")
    text = (out / "paper.md").read_text()
    assert "## Table 1: across vocabularies" in text
    assert "Table 2" not in text
    assert text.count("| ours |") == 1
    assert "## Table 14" in text
    assert {path.name for path in out.glob("*.png")} == {f"figure-{n}.png" for n in (5, 7, 8, 9)}
    assert run(*given, "--plan") == 0
    assert "all of 15 cells are there" in capsys.readouterr().err
    assert len(calls) == 11
    assert all(row["threads"] > 0 for row in (*result["cells"], *result["cache"]))
    capsys.readouterr()
    assert run(*given, "--quick") == 2
    assert "has another" in capsys.readouterr().err


def test_a_wrong_answer_is_an_error(
    small: Path, tasks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Evaluation.timed

    def wrong(self: Evaluation, *given: Any) -> dict[str, Any]:
        return {name: row | {"identical": False} for name, row in timed(self, *given).items()}

    monkeypatch.setattr(Evaluation, "timed", wrong)
    assert run(small, "--data", tasks, "--quick", "--parts", "table-12", "--json") == 1
    assert capsys.readouterr().out.count("\n") == 1


def test_mistakes_are_said_before_anything_is_loaded(
    small: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, message in (
        (("--parts", "table-4"), "part 'table-4' is not known"),
        (("--use", "zoo:drafter"), "give it as NAME=MODEL"),
        (("--use", "no=such"), "there is no model 'no' to replace"),
        (("--threads", "0"), "argument --threads: 0 is not"),
    ):
        assert run(small, "--data", tasks, *given) == 2
        assert message in capsys.readouterr().err
    more = tmp_path / "more.toml"
    more.write_text(small.read_text().replace("train = 4", "train = 400"))
    assert run(more, "--data", tasks) == 2
    assert "gsm8k has 6 prompts for train, 400 are asked for" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / paper.FILE).write_text("{")
    assert run(small, "--data", tasks, "--out", tmp_path / "out") == 2
    assert "no result file" in capsys.readouterr().err


def test_figures_are_left_out_where_there_is_nothing(tmp_path: Path) -> None:
    paper_figures.draw(Results(None, "paper", ("key",)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_show_what_is_measured_so_far(small: Path) -> None:
    found = recipe.read(small)
    cells = list(TABLES["table-5"].cells(found))
    row = {"acceptance_rate": 0.12345, "block_efficiency": 1.5004, "speedup": 1.239, "ngram_hits": 1.5}
    text = "\n".join(paper_tables.markdown({cells[0].key: row}, found, ["table-5"]))
    assert "| direct mapping | 0.123 | 1.500 | 1.24 | 1.50 |" in text
    assert text.count("\n| ") == 1 + 2, "no line for what is missing"
    assert paper_tables.markdown({cells[0].key: row}, found, []) == []
    every = dict.fromkeys((cell.key for cell in cells), row)
    assert len(paper_tables.markdown(every, found, [])) == 1


# ---------------------------------------------------------------- the paper's own models, in small


def tiny(folder: Path, tokenizer: str, config: LlamaConfig | Qwen2Config) -> Path:
    """A random model of this architecture with a real tokenizer."""
    torch.manual_seed(len(tokenizer))
    kind: type[PreTrainedModel] = Qwen2ForCausalLM if isinstance(config, Qwen2Config) else LlamaForCausalLM
    kind(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(shared("tokenizers", tokenizer)).save_pretrained(folder)
    return folder


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.mark.usefixtures("home")
def test_every_cell_of_the_papers_recipe_runs(tasks: Path, tmp_path: Path) -> None:
    whole = recipe.read(RECIPES / "paper.toml")
    llama2 = tiny(tmp_path / "llama2", "llama2", LlamaConfig(vocab_size=32_000, **SIZES))
    llama3 = tiny(tmp_path / "llama3", "llama3", LlamaConfig(vocab_size=128_256, num_key_value_heads=1, **SIZES))
    qwen = tiny(tmp_path / "qwen2", "qwen2", Qwen2Config(vocab_size=152_064, num_key_value_heads=1, **SIZES))
    named = {*whole.targets, *whole.same, *whole.larger, *whole.switch, whole.drafter}
    folders = {name: qwen if "Qwen" in name else llama3 if "Llama-3" in name else llama2 for name in named}
    use = [argument for name, folder in folders.items() for argument in ("--use", f"{name}={folder}")]
    out = tmp_path / "out"
    recipe_ = tmp_path / "paper.toml"
    # half precision takes longer on a CPU, and what is told here is only whether cells run
    recipe_.write_text((RECIPES / "paper.toml").read_text().replace("float16", "float32"))
    assert run(recipe_, "--quick", "--data", tasks, "--out", out, *use) == 0
    result = kept(out).as_dict()
    wanted = {cell.key for table in TABLES.values() for cell in table.cells(whole)}
    assert {row["key"] for row in result["cells"]} == wanted
    assert len(result["cache"]) == len(whole.tasks) * len(cache_study.SEEDS)
    assert result["switch"]
    assert result["targets"]
    assert result["settings"][0]["recipe"]["instead"] == sorted(
        f"{name}={folder.name}" for name, folder in folders.items()
    )
    assert {path.name for path in out.glob("*.png")} == {f"figure-{number}.png" for number in (5, 6, 7, 8, 9)}
    for title in ("Table 1", "Table 2", "Table 3", "Table 5", "Table 6", "Table 11", "Table 12", "Table 14"):
        assert f"## {title}:" in (out / "paper.md").read_text()
    assert str(tmp_path) not in json.dumps(result), "no folder of this machine"
