"""The adaptation study: its figures follow from what was counted, and the replayed target says what it said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

import omnidraft
from experiments import tasks
from experiments.adaptation import ablations
from experiments.adaptation import background_cost as beside
from experiments.adaptation import report as adapt_report
from experiments.adaptation import study as adapt
from experiments.adaptation.__main__ import main
from experiments.adaptation.setup import Study, taught
from experiments.adaptation.streams import Live, filled, live_row, streams
from experiments.results import Results
from experiments.student import GREEDY, Replay, Student, record
from omnidraft.api import OmniDraft
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.stats import Stats
from support.texts import QUESTIONS

LEARNING = Learning(interval=2, learning_rate=3e-3, replays=1)


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None, draft_length=3)


def study(model: OmniDraft, name: str = "one") -> Study:
    ids = [model.encode(text) for text in QUESTIONS]
    return Study(
        model=model, name=name, stream=ids[:4], tests=ids[4:], other=ids[2:], new_tokens=12, draft_length=3,
        learning=LEARNING, console=Console(quiet=True), ablation=2, sampled=1,
    )  # fmt: skip


# ---------------------------------------------------------------- arithmetic


def test_speedups_and_crossover_by_hand() -> None:
    found = Live(adapted=[3.0, 2.0, 1.0, 1.0], frozen=[2.0] * 4, plain=[2.5] * 4, identical=True)
    assert found.net_speedup == round(10 / 7, 4)
    assert found.frozen_speedup == 1.25
    assert found.crossover == 3  # 6 seconds of either, and less from then on


@pytest.mark.parametrize(
    ("adapted", "crossover"), [([1.0, 1.0], 1), ([3.0, 2.0], None), ([2.0, 3.0, 1.0, 1.0], 3), ([1.0, 4.0], None)]
)
def test_crossover_is_where_it_stays_ahead(adapted: list[float], crossover: int | None) -> None:
    found = Live(adapted=adapted, frozen=[2.0] * len(adapted), plain=[2.0] * len(adapted), identical=True)
    assert found.crossover == crossover


def test_prompts_that_were_not_timed_are_filled_in_by_their_tokens() -> None:
    assert filled({0: 2.0, 2: 1.0}, [4, 10, 2]) == [2.0, 5.0, 1.0]
    assert filled({0: 2.0, 1: 1.0}, [1, 1]) == [2.0, 1.0]


def test_sums_of_stats() -> None:
    one, other = Stats(rounds=1, tokens=3, verify_s=0.5), Stats(rounds=2, tokens=4, accepted=2)
    assert Stats.sum([one, other]) == Stats(rounds=3, tokens=7, accepted=2, verify_s=0.5)
    assert Stats.sum([]) == Stats()


def test_moving_block_efficiency() -> None:
    tokens = [4, 6, 2, *[4] * adapt_report.WINDOW]
    found = adapt_report.moving(tokens, [2] * len(tokens))
    assert found[:3] == [2.0, 2.5, 2.0]
    assert found[-1] == 2.0, "the first answers are out of the window"


# ---------------------------------------------------------------- replayed answers


def test_a_replayed_target_greedily_says_what_it_said(model: OmniDraft) -> None:
    recorded = record(model, [model.encode(QUESTIONS[0])], 12, GREEDY, temperature=1.0)[0]
    replay = Replay(model.vocab.size)
    replay.text = (*recorded.prompt, *recorded.tokens)
    logits = replay.forward(recorded.prompt, 1)
    assert int(logits[-1].argmax()) == recorded.tokens[0]
    logits = replay.forward(recorded.tokens[:5], 5)
    assert logits.argmax(-1).tolist() == list(recorded.tokens[1:6])
    replay.crop(len(recorded.prompt))
    assert replay.length == len(recorded.prompt)


def test_an_examination_counts_what_live_decoding_counts(model: OmniDraft) -> None:
    one = study(model)
    tests = one.recorded("tests")
    student = one.student(None)
    examined = student.examine(tests)
    engine = one.student(None).engine()
    rounds = [r for ids in one.tests for r in engine.rounds(ids, 12, GREEDY, lambda _: 0)]
    lived = Stats.of(rounds)
    for name in ("rounds", "tokens", "drafted", "proposed", "accepted", "symbols", "symbols_accepted"):
        assert getattr(examined, name) == getattr(lived, name), name
    assert examined.proposed > 0


def test_an_examination_teaches_nothing(model: OmniDraft) -> None:
    one = study(model)
    student = Student(model, one.serving, Drafting(draft_length=3, ngram_seed="empty"), LEARNING)
    taught(student, one.recorded("stream"))
    before, active = student.adaptation.state, student.attached.cache.active.copy()
    first, second = (student.examine(one.recorded("tests")) for _ in range(2))
    assert (first.accepted, first.proposed) == (second.accepted, second.proposed)
    assert student.adaptation.state is before
    assert (student.attached.cache.active == active).all()


def test_what_is_recorded_holds_the_laws_of_the_teacher(model: OmniDraft) -> None:
    ids = model.encode(QUESTIONS[1])
    soft, sharp = (record(model, [ids], 6, GREEDY, temperature=temperature)[0] for temperature in (1.0, 0.25))
    assert soft.tokens == sharp.tokens
    assert all(a.probs.max() < b.probs.max() for a, b in zip(soft.teacher, sharp.teacher, strict=True))
    assert len(record(model, [ids], 6, Sampling(temperature=1.0), 1.0)[0].teacher) == 6


# ---------------------------------------------------------------- parts


def test_the_parts_give_whole_rows(model: OmniDraft) -> None:
    one = study(model)
    row, curve = live_row(one)
    assert row["identical"]
    assert len(curve["adapted_s"]) == len(curve["frozen_s"]) == len(curve["plain_s"]) == len(one.stream)
    assert row["net_speedup"] == pytest.approx(sum(curve["plain_s"]) / sum(curve["adapted_s"]), rel=0.05)
    wanted = {"target", "method", "seed", "acceptance_before", "acceptance_after"} | {
        f"block_efficiency_{when}" for when in ("before", "after")
    }
    rows = [row, *streams(one, 2), *ablations.losses(one, (0.0, 1.0)), *ablations.ranks(one)]
    assert all(wanted <= row.keys() for row in rows)
    assert len(rows) == 1 + 2 + 2 * len(ablations.LOSSES) + 4
    switched = ablations.switch(one)
    assert all(len(found) == 4 for found in switched["curves"].values())
    results = Results(None, "adaptation", adapt.KEYS)
    for each in rows:
        results.add("losses" if "temperature" in each else "rows", each)
    assert adapt_report.markdown(results).count("| direct only |") == 2


def test_a_target_comes_back_to_what_was_learned_for_it(model: OmniDraft) -> None:
    found = ablations.targets(study(model), study(model, "other"))
    for tests in found["tests"].values():
        assert tests["leaving"] == tests["coming back"]
    assert set(found["curves"]) == {"with the n-gram cache", "without it"}


@pytest.mark.slow
def test_replies_beside_a_trainer_in_the_background(model: OmniDraft) -> None:
    found = beside.background(study(model), 4, pause_s=1.5)
    assert found["reply_time_ratio"] > 0 < found["slowest_ratio"]
    assert found["updates_while_timed"] >= 1
    assert found["updates"] >= 1
    assert found["prompts"] == 4


# ---------------------------------------------------------------- the command


SIZES = {"stream": 4, "tests": 2, "seeds": 1, "ablation": 2, "sampled": 1, "beside": 2, "interval": 2}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))] + ["--new-tokens", "8"]


@pytest.mark.slow
def test_the_command_writes_its_files(
    target: Path, drafter: Path, data: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = tmp_path / "results" / "adaptation"
    models: list[str] = ["--target", str(target), "--drafter", str(drafter), "--data", str(data), "--out", str(stem)]
    assert main([*models, *SMALL, "--parts", "live,streams"]) == 0
    assert main([*models, *SMALL, "--parts", "switch,ranks"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [setting["parts"] for setting in result["settings"]] == [["live", "streams"], ["switch", "ranks"]]
    assert str(tmp_path) not in json.dumps(result["settings"])
    assert len(result["rows"]) == 2
    assert "Before and after the stream" in stem.with_suffix(".md").read_text()
    assert {path.name for path in stem.parent.glob("*.png")} == {"adaptation-curves.png", "adaptation-switch.png"}
    assert not (home / "profiles").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--parts", "lives"], "part 'lives'"),
        (["--stream", "0"], "argument --stream: 0 is not"),
        (["--stream", "100"], "6 prompts, 100 are asked for"),
        (["--rank", "0"], "rank is 0"),
        (["--draft-length", "-1"], "argument --draft-length: -1 is not"),
    ],
)
def test_mistakes_are_said_before_models_are_loaded(
    data: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--target", "nowhere", "--drafter", "nowhere", "--data", str(data), *options]
    assert main(arguments) in {1, 2}
    assert words in capsys.readouterr().err


def test_training_prompts_are_all_of_them(data: Path) -> None:
    assert tasks.training(data) == [f"Question: {text}\nAnswer:" for text in QUESTIONS]


def test_figures_are_drawn(tmp_path: Path) -> None:
    results = Results(None, "adaptation", adapt.KEYS)
    seconds = {"adapted_s": [1.0, 2.0], "frozen_s": [1.0, 1.0], "plain_s": [1.0, 1.0]}
    results.add("curves", {"target": "a", **seconds})
    results.add("targets", {"targets": ["a", "b"], "curves": {"with": [[[1, 2, 3, 2]]] * 3}, "tests": {}})
    adapt_report.write(results, tmp_path / "found")
    assert {path.name for path in tmp_path.glob("*.png")} == {"found-curves.png", "found-targets.png"}
