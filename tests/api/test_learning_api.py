"""Learning through the Python interface: what a user sees of it, in memory and on disk."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import omnidraft
from omnidraft import ConfigError
from omnidraft import attach as pairing
from omnidraft.config import ADAPTERS
from omnidraft.draft_length.goodput_policy import Goodput
from omnidraft.errors import ProfileError
from omnidraft.profiles.profile_file import ProfileFile
from support.assembling import load_with
from support.homes import with_native
from support.learning import COUNT, FAST, PROMPTS, adaptive_of, alone, answers, drafts, found, saved, tree
from support.models import save_model
from support.project_files import environment
from support.small_tokenizers import byte_level, sentencepiece

pytestmark = pytest.mark.usefixtures("home")


# ------------------------------------------------------------ learning, and what becomes of it


@pytest.mark.medium
def test_what_was_measured_goes_on_with_the_profile(target: Path, drafter: Path) -> None:
    with omnidraft.load(
        target, drafter, adapt="inline", **FAST | {"draft_length": "goodput"}, warn=pytest.fail
    ) as first:
        policy = first.lane.policy
        assert isinstance(policy, Goodput)
        untouched = policy.state()
        answers(first, 4)
        assert not np.array_equal(policy.state(), untouched)
    again = omnidraft.load(target, drafter, warn=pytest.fail).lane.policy
    assert isinstance(again, Goodput)
    assert np.array_equal(again.state(), policy.state())


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_learned_is_saved_drafted_with_and_learned_on(
    target: Path, drafter: Path, home: Path, adapter: str
) -> None:
    with omnidraft.load(target, drafter, adapt="inline", adapter=adapter, rank=4, **FAST, warn=pytest.fail) as first:
        pristine = drafts(first)
        for answer, prompt in zip(answers(first, 10), PROMPTS * 2, strict=True):
            assert answer.token_ids == alone(first, prompt)
        assert not torch.equal(drafts(first), pristine)
        first.save()
        assert len(saved(home)) == 1
        counters = first.learned
        assert counters["answers"] == 10
        assert counters["updates"] >= 4

    second = omnidraft.load(target, drafter, warn=pytest.fail)
    assert torch.equal(drafts(second), drafts(first))
    assert second.learned == first.learned
    assert adaptive_of(second).learning.adapter == adapter
    before = tree(home)
    assert answers(second, 1)[0].token_ids == alone(second, PROMPTS[0])
    second.close()
    assert tree(home) == before, "a drafter that does not learn leaves the disk alone"

    with omnidraft.load(target, drafter, adapt="inline", **FAST, warn=pytest.fail) as third:
        assert torch.equal(drafts(third), drafts(first))
        answers(third, 4)
        assert third.learned["answers"] == 14
        assert third.learned["updates"] == first.learned["updates"] + 2
    fourth = omnidraft.load(target, drafter, warn=pytest.fail)
    assert fourth.learned == third.learned
    assert not torch.equal(drafts(fourth), drafts(first))


@pytest.mark.slow
def test_learning_helps(target: Path, drafter: Path) -> None:
    settings: dict[str, Any] = {**FAST, "update_every": 1, "learning_rate": 2e-2}
    with omnidraft.load(target, drafter, adapt="inline", **settings) as model:
        accepted = [model.generate(PROMPTS[0], max_new_tokens=COUNT).stats.accepted for _ in range(12)]
        assert accepted[-1] > accepted[0] + 3
    again = omnidraft.load(target, drafter, draft_length=4)
    assert again.generate(PROMPTS[0], max_new_tokens=COUNT).stats.accepted > accepted[0] + 3


@pytest.mark.medium
@pytest.mark.parametrize("how", ["close", "with", "garbage"])
def test_a_single_answer_teaches_at_the_end(target: Path, drafter: Path, how: str) -> None:
    model = omnidraft.load(target, drafter, adapt="inline", update_every=8, warn=pytest.fail)
    pristine = drafts(model)
    answers(model, 1)
    assert model.learned["updates"] == 0
    assert torch.equal(drafts(model), pristine)
    if how == "close":
        model.close()
        model.close()
    elif how == "with":
        with model:
            pass
    else:
        del model
        gc.collect()
    again = omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail)
    assert (again.learned["answers"], again.learned["updates"]) == (1, 1)
    assert not torch.equal(drafts(again), pristine)


@pytest.mark.medium
def test_a_complete_answer_that_is_closed_teaches(target: Path, drafter: Path) -> None:
    with omnidraft.load(target, drafter, adapt="inline", **FAST, warn=pytest.fail) as model:
        with model.stream(PROMPTS[0], max_new_tokens=COUNT) as stream:
            next(stream)
        assert (stream.result.finish_reason, model.learned["answers"]) == ("interrupted", 0)
        with model.stream(PROMPTS[0], max_new_tokens=COUNT) as stream:
            while stream.result.finish_reason == "interrupted":
                next(stream)
        assert model.learned["answers"] == 1


@pytest.mark.medium
def test_nothing_said_is_nothing_saved(target: Path, drafter: Path, home: Path) -> None:
    omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail).close()
    assert saved(home) == []


@pytest.mark.medium
def test_what_comes_after_the_end_is_not_learned_from(target: Path, drafter: Path, home: Path) -> None:
    model = omnidraft.load(target, drafter, adapt="inline", **(FAST | {"update_every": 1}), warn=pytest.fail)
    answers(model, 2)
    model.close()
    with pytest.raises(ConfigError, match="nothing is learned that could be saved"):
        model.save()
    counters, files, last = model.learned, tree(home), drafts(model)
    for answer, prompt in zip(answers(model, 10), PROMPTS * 2, strict=True):
        assert answer.token_ids == alone(model, prompt)
    adaptive_of(model).wait()
    assert (model.learned, tree(home)) == (counters, files)
    assert torch.equal(drafts(model), last)
    with omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail) as other:  # the profile is free
        assert other.learned == counters


@pytest.mark.slow
def test_a_process_that_closes_nothing_adds_what_it_learned(target: Path, drafter: Path, home: Path) -> None:
    code = (
        "import omnidraft, sys\n"
        "model = omnidraft.load(sys.argv[1], sys.argv[2], adapt='inline')\n"
        "for _ in range(3): model.generate('hello world', max_new_tokens=8)\n"
    )
    with omnidraft.load(target, drafter, adapt="inline") as model:
        answers(model, 1)
    subprocess.run(
        [sys.executable, "-c", code, str(target), str(drafter)], env=environment(with_native(home)), check=True
    )
    assert omnidraft.load(target, drafter, warn=pytest.fail).learned["answers"] == 1 + 3


# ------------------------------------------------------------ where it is kept


@pytest.mark.slow
def test_no_profile_is_no_file(target: Path, drafter: Path, home: Path) -> None:
    omnidraft.load(target, drafter, adapt="inline", update_every=1).close()
    before = tree(home)
    with omnidraft.load(target, drafter, adapt="inline", update_every=1, profile=None, warn=pytest.fail) as model:
        answers(model, 10)
        assert model.learned["updates"] == 9
        with pytest.raises(ConfigError, match="nothing is learned that could be saved"):
            model.save()
    assert tree(home) == before


@pytest.mark.medium
@pytest.mark.parametrize("kind", [str, Path])
def test_a_profile_in_a_file_of_ones_own(
    target: Path, drafter: Path, home: Path, tmp_path: Path, kind: type[Any]
) -> None:
    own = kind(tmp_path / "own" / "profile")
    with omnidraft.load(target, drafter, adapt="inline", profile=own, warn=pytest.fail) as model:
        answers(model, 1)
    assert Path(own).is_file()
    assert saved(home) == []
    assert omnidraft.load(target, drafter, profile=own).learned["answers"] == 1
    assert omnidraft.load(target, drafter).learned == {}


@pytest.mark.medium
def test_a_profile_that_a_link_leads_to_is_kept_and_claimed_where_it_lies(
    target: Path, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real" / "profile", tmp_path / "link"
    real.parent.mkdir()
    link.symlink_to(real)  # of nothing yet
    with omnidraft.load(target, drafter, adapt="inline", profile=link, warn=pytest.fail) as model:
        assert model.profile == real.resolve()
        answers(model, 1)
        assert not ProfileFile(real).claim()
    assert link.is_symlink()
    assert omnidraft.load(target, drafter, profile=real).learned["answers"] == 1
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    monkeypatch.chdir(tmp_path)
    with omnidraft.load(target, drafter, adapt="inline", profile="link", warn=pytest.fail) as model:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        answers(model, 1)
    assert [*Path().iterdir()] == []
    assert omnidraft.load(target, drafter, profile=real).learned["answers"] == 2


@pytest.mark.medium
@pytest.mark.parametrize("change", ["drafter", "target", "tokenizers", "drafter weights", "target weights"])
def test_a_profile_of_other_models_is_refused_by_its_path(
    target: Path, drafter: Path, tmp_path: Path, change: str
) -> None:
    own = tmp_path / "own"
    with omnidraft.load(target, drafter, adapt="inline", profile=own) as model:
        answers(model, 1)
    before = own.read_bytes()
    if change == "drafter":
        drafter = shutil.copytree(drafter, tmp_path / "other")
    elif change == "target":
        target = shutil.copytree(target, tmp_path / "other")
    elif change == "tokenizers":
        target = save_model(tmp_path / target.name, byte_level(more=["Ġa"]), seed=1)
    elif change == "target weights":
        target = save_model(tmp_path / target.name, byte_level(), seed=99)
    else:
        drafter = save_model(tmp_path / drafter.name, sentencepiece(), seed=99)
    for adapt in ("off", "inline"):
        with pytest.raises(ProfileError, match="belongs to") as caught:
            omnidraft.load(target, drafter, adapt=adapt, profile=own)
        assert str(own) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert own.read_bytes() == before


def forge(file: ProfileFile, what: str) -> None:
    """Save a profile that fits no drafter or tokenizer."""
    manifest = file.manifest()
    assert manifest is not None
    profile = file.load(manifest.key)
    assert profile is not None
    lora = "model.layers.0.mlp.down_proj.lora_A.default.weight"
    weights: dict[str, torch.Tensor] = {
        "other tensors": {"model.norm.weight": torch.ones(3)},
        "half a state": dict(list(profile.weights.items())[:-1]),
        "half a pair": {lora: torch.ones(2, 48)},
    }.get(what, dict(profile.weights))
    ngrams = {**profile.ngrams, "token": np.zeros(1, np.int64)} if what == "other n-grams" else profile.ngrams
    with file.held():
        file.save(manifest.key, replace(profile, weights=weights, ngrams=ngrams))


@pytest.mark.medium
@pytest.mark.parametrize("adapt", ["off", "inline"])
@pytest.mark.parametrize(
    "fault", ["foreign", "damage", "other tensors", "half a state", "half a pair", "other n-grams"]
)
def test_a_profile_of_the_store_that_is_refused_is_set_aside(
    target: Path, drafter: Path, home: Path, tmp_path: Path, fault: str, adapt: str
) -> None:
    with omnidraft.load(target, drafter, adapt="inline") as model:
        answers(model, 1)
    (file,) = saved(home)
    if fault == "damage":
        file.write_bytes(file.read_bytes()[:-1])
    elif fault == "foreign":
        other_drafter = save_model(tmp_path / drafter.name, sentencepiece(), seed=99)
        with omnidraft.load(target, other_drafter, adapt="inline", profile=tmp_path / "foreign") as model:
            answers(model, 1)
        shutil.copy(tmp_path / "foreign", file)
    else:
        forge(ProfileFile(file), fault)
    before = file.read_bytes()
    said: list[str] = []
    with omnidraft.load(target, drafter, adapt=adapt, warn=said.append) as other:
        assert len(said) == 1
        assert ("renamed to" if adapt == "inline" else "continuing without a profile") in said[0]
        assert "\n" not in said[0]
        assert not other.learned.get("answers")
        assert answers(other, 1)[0].token_ids == alone(other, PROMPTS[0])
    if adapt == "off":  # who only looks changes nothing
        assert file.read_bytes() == before
        assert saved(home) == [file]
        return
    assert file.with_stem(f"{file.stem}.aside-1").read_bytes() == before
    assert len(saved(home)) == 2
    omnidraft.load(target, drafter, warn=pytest.fail).close()


@pytest.mark.medium
@pytest.mark.parametrize("adapt", ["off", "inline"])
def test_what_is_no_profile_is_refused_by_its_path_and_left_alone(
    target: Path, drafter: Path, tmp_path: Path, adapt: str
) -> None:
    letter = tmp_path / "letter"
    letter.write_bytes(b"Dear Sir")
    with pytest.raises(ProfileError, match="is damaged or no profile"):
        omnidraft.load(target, drafter, adapt=adapt, profile=letter)
    assert letter.read_bytes() == b"Dear Sir"
    with pytest.raises(ProfileError, match="cannot be read"):
        omnidraft.load(target, drafter, adapt=adapt, profile=tmp_path)


@pytest.mark.slow
def test_a_cell_of_a_notebook_that_is_run_again(target: Path, drafter: Path) -> None:
    said: list[str] = []
    model = omnidraft.load(target, drafter, adapt="inline", **FAST, warn=said.append)
    for run in range(1, 4):
        answers(model, 3)
        model = omnidraft.load(target, drafter, adapt="inline", **FAST, warn=said.append)
        assert model.learned["answers"] == 3 * run
        assert len(said) == run
        assert "is taken over from a model loaded earlier here" in said[-1]
    earlier = model
    omnidraft.load(target, drafter, warn=pytest.fail)  # takes nothing
    answers(earlier, 1)
    earlier.close()
    with omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail) as last:
        assert last.learned["answers"] == 10


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["adapter", "target", "trainer"])
def test_a_load_that_fails_leaves_the_model_that_learns(
    target: Path, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    own = tmp_path / "own"
    with omnidraft.load(target, drafter, adapt="inline", profile=own, warn=pytest.fail) as model:
        answers(model, 1)
        model.save()
        if fault == "adapter":
            with pytest.raises(ConfigError, match="adapter is 'lora'"):
                omnidraft.load(target, drafter, adapt="inline", profile=own, adapter="lora", warn=pytest.fail)
        elif fault == "target":
            other = shutil.copytree(target, tmp_path / "other")
            with pytest.raises(ProfileError, match="belongs to"):
                omnidraft.load(other, drafter, adapt="inline", profile=own, warn=pytest.fail)
        if fault != "trainer":
            answers(model, 2)
            assert model.learned["answers"] == 3
            return
    monkeypatch.setattr(pairing, "make_learner", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        omnidraft.load(target, drafter, adapt="inline", profile=own, warn=pytest.fail)
    monkeypatch.undo()
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "home"))
    omnidraft.load(target, drafter, adapt="inline", profile=own, warn=pytest.fail).close()


@pytest.mark.medium
def test_an_earlier_model_that_cannot_end_does_not_end_the_load(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    model = omnidraft.load(target, drafter, adapt="inline", warn=said.append)
    answers(model, 1)

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(model.adaptive.adaptation, "flush", fail)  # type: ignore[union-attr]
    with omnidraft.load(target, drafter, adapt="inline", warn=said.append) as other:
        answers(other, 1)
    assert len(said) == 2
    assert "RuntimeError: no memory" in said[1]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["x" * 300, "~nosuchuser/x", "a\0b"])
def test_a_profile_that_can_be_no_file_is_one_line(target: Path, drafter: Path, name: str) -> None:
    for adapt in ("off", "inline"):
        with pytest.raises(ProfileError) as caught:
            omnidraft.load(target, drafter, adapt=adapt, profile=name)
        assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------ options


@pytest.mark.slow
def test_the_shape_of_the_profile_is_used_and_not_contradicted(target: Path, drafter: Path) -> None:
    with omnidraft.load(target, drafter, adapt="inline", adapter="lora", rank=3) as model:
        answers(model, 1)
    for wrong, words in (({"adapter": "full"}, "adapter is 'full'"), ({"rank": 5}, "rank is 5")):
        for adapt in ("inline", "off"):
            with pytest.raises(ConfigError, match=words) as caught:
                omnidraft.load(target, drafter, adapt=adapt, **wrong)
            assert "\n" not in str(caught.value)
    with omnidraft.load(target, drafter, adapt="inline", adapter="lora", update_every=3, warn=pytest.fail) as again:
        learning = adaptive_of(again).learning
        assert (learning.adapter, learning.rank, learning.update_every) == ("lora", 3, 3)
        answers(again, 1)
    with omnidraft.load(target, drafter, adapt="inline", adapter="full", profile=None) as anew:
        assert anew.learned["answers"] == 0


@pytest.mark.slow
def test_modes_that_have_no_ngrams_keep_those_of_the_profile(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, adapt="inline", **FAST) as model:
        answers(model, 4, temperature=1.0)
    assert model.lane.attached is not None
    kept = model.lane.attached.cache.state()
    with load_with(target, drafter, adapt="inline", mode="intersection", **FAST, warn=pytest.fail) as other:
        assert other.lane.attached is not None
        assert other.lane.attached.cache.size == 0
        answers(other, 4)
    with omnidraft.load(target, drafter, warn=pytest.fail) as again:
        assert again.lane.attached is not None
        state = again.lane.attached.cache.state()
    assert again.learned["answers"] == 8
    assert all((state[name] == kept[name]).all() for name in kept)
    assert len(saved(home)) == 1


# ------------------------------------------------------------ nothing of what was said


@pytest.mark.slow
def test_no_file_holds_what_was_said(
    target: Path, drafter: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    texts: list[str] = []
    rows: list[list[int]] = []
    with omnidraft.load(target, drafter, adapt="inline", **(FAST | {"update_every": 1})) as model:
        adaptive = adaptive_of(model)
        for prompt in ("my secret été is 日本 10", *PROMPTS * 2):
            answer = model.generate(prompt, max_new_tokens=24, temperature=1.0)
            texts += [prompt, answer.text, answer.text[:12]]
            rows += [[*model.encode(prompt), *answer.token_ids], list(adaptive.attached.drafter.text)]
        model.save()
    files = tree(home)
    assert any(b"ngrams.hits" in content for content in files.values())
    assert found(home, texts, rows) == []
    assert tree(temporary) == {}
    for number, planted in enumerate((json.dumps(texts[0]).encode(), torch.tensor(rows[0]).numpy().tobytes())):
        (home / f"planted-{number}").write_bytes(b"xyz" + planted)
    assert sorted(found(home, texts, rows)) == ["planted-0", "planted-1"]
