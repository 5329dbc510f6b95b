"""One drafter for two targets, two processes for one profile, and disks that refuse."""

from __future__ import annotations

import copy
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import omnidraft
from omnidraft import OmniDraftError
from omnidraft.errors import ConfigError, ProfileError
from support.assembling import load_with
from support.faulty_disk import RefusingDisk, install
from support.learning import COUNT, FAST, PROMPTS, adaptive_of, alone, answers, drafts, saved, tree
from support.project_files import environment

pytestmark = pytest.mark.usefixtures("home")


# ------------------------------------------------------------ one drafter, two targets


@pytest.mark.slow
@pytest.mark.parametrize("step", ["auto", "transformers"])
def test_two_targets_share_one_drafter_in_memory(
    target: Path, drafter: Path, other_target: Path, home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    a = load_with(target, drafter, adapt="inline", drafter_backend=step, **FAST, warn=pytest.fail)
    b = omnidraft.load(other_target, a, adapt="inline", **FAST, warn=pytest.fail)
    assert b.drafter is a.drafter
    assert adaptive_of(b).shared is adaptive_of(a).shared
    source = adaptive_of(a).shared.source.model
    base = {name: (weight.data_ptr(), weight.clone()) for name, weight in source.named_parameters()}
    pristine = drafts(b)
    answers(a, 4)
    assert torch.equal(drafts(b), pristine), "what one target taught drafts for the other"
    for _ in range(2):
        for model in (a, b):
            for answer, prompt in zip(answers(model, 3), PROMPTS, strict=False):
                assert answer.token_ids == alone(model, prompt)
    of_a, of_b = drafts(a), drafts(b)
    assert len({tuple(logits.flatten().tolist()) for logits in (pristine, of_a, of_b)}) == 3

    monkeypatch.setattr("omnidraft.api.load_model", lambda *_: pytest.fail("loaded again"))
    monkeypatch.setattr(copy, "deepcopy", lambda *_: pytest.fail("copied again"))
    for _ in range(2):
        assert torch.equal(drafts(a), of_a)
        assert torch.equal(drafts(b), of_b)
    monkeypatch.undo()
    assert all((w.data_ptr(), True) == (base[n][0], torch.equal(w, base[n][1])) for n, w in source.named_parameters())

    monkeypatch.setenv("OMNIDRAFT_HOME", str(home))
    a.close()
    b.close()
    assert len(saved(home)) == 2
    for path, model in ((target, a), (other_target, b)):
        again = load_with(path, drafter, drafter_backend=step, warn=pytest.fail)
        assert again.learned == model.learned
        assert torch.equal(drafts(again), drafts(model))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "act"), [("auto", "close"), ("transformers", "save")])
def test_what_one_target_learned_waits_for_the_others_text(
    target: Path, drafter: Path, other_target: Path, step: str, act: str
) -> None:
    """Weights that came in the middle would meet keys and values of others."""
    a = load_with(target, drafter, adapt="inline", drafter_backend=step, **(FAST | {"update_every": 4}))
    with omnidraft.load(other_target, a, adapt="inline", **(FAST | {"update_every": 1, "learning_rate": 2e-2})) as b:
        for _ in range(12):
            b.generate(PROMPTS[0], max_new_tokens=COUNT)
    expected = b.generate(PROMPTS[0], max_new_tokens=COUNT)
    pristine, of_b = drafts(a), drafts(b)
    assert not torch.equal(pristine, of_b)
    answers(a, 2)
    stream = b.stream(PROMPTS[0], max_new_tokens=COUNT)
    next(stream)
    if act == "save":
        adaptive_of(a).adaptation.flush()
    getattr(a, act)()
    list(stream)
    assert stream.result.token_ids == expected.token_ids == alone(b, PROMPTS[0])
    assert stream.result.stats.accepted == expected.stats.accepted > 2
    assert torch.equal(drafts(b), of_b)
    assert not torch.equal(drafts(a), pristine)


# ------------------------------------------------------------ two processes


@contextmanager
def claimed(file: Path, home: Path) -> Iterator[None]:
    """Another process that has the profile."""
    code = (
        "import sys, time; from pathlib import Path; from omnidraft.profiles.profile_file import ProfileFile\n"
        "file = ProfileFile(Path(sys.argv[1])); print(file.claim(), flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"True\n"
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_profile_in_use_is_read_and_not_written(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, adapt="inline", **FAST) as first:
        answers(first, 2)
    (file,) = saved(home)
    before, said = file.read_bytes(), list[str]()
    with claimed(file, home):
        with omnidraft.load(target, drafter, adapt="inline", **FAST, warn=said.append) as second:
            assert second.learned == first.learned
            answers(second, 4)
            assert second.learned["answers"] == 6
            with pytest.raises(ProfileError, match="in use"):
                second.save()
        assert file.read_bytes() == before
        assert len(said) == 1
        assert "in use by another process" in said[0]
        omnidraft.load(target, drafter, warn=pytest.fail).close()
    with omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail) as third:
        answers(third, 1)
    assert file.read_bytes() != before


@pytest.mark.medium
def test_a_refused_profile_in_use_is_done_without(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, adapt="inline") as first:
        answers(first, 1)
    (file,) = saved(home)
    file.write_bytes(file.read_bytes()[:-1])
    before = file.read_bytes()
    with claimed(file, home):
        for adapt in ("off", "inline"):
            said: list[str] = []
            with omnidraft.load(target, drafter, adapt=adapt, update_every=1, warn=said.append) as model:
                assert answers(model, 2)[1].token_ids == alone(model, PROMPTS[1])
            assert len(said) == 1
            assert ("cannot be renamed" if adapt == "inline" else "continuing without a profile") in said[0]
            assert file.read_bytes() == before


# ------------------------------------------------------------ disks that refuse


@pytest.mark.slow
def test_a_full_disk_is_one_warning(target: Path, drafter: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with omnidraft.load(target, drafter, adapt="inline", **FAST) as first:
        answers(first, 2)
    before, said = tree(home), list[str]()
    model = omnidraft.load(target, drafter, adapt="inline", **(FAST | {"update_every": 1}), warn=said.append)
    install(RefusingDisk(1, errno.ENOSPC), monkeypatch)
    for answer, prompt in zip(answers(model, 10), PROMPTS * 2, strict=True):
        assert answer.token_ids == alone(model, prompt)
        adaptive_of(model).wait()
    with pytest.raises(ProfileError, match="make room"):
        model.save()
    model.close()
    assert len(said) == 1
    assert "what was learned is not saved" in said[0]
    assert os.strerror(errno.ENOSPC) in said[0]
    assert "\n" not in said[0]
    assert tree(home) == before
    install(None, monkeypatch)
    assert omnidraft.load(target, drafter, warn=pytest.fail).learned == first.learned


@pytest.mark.slow
def test_what_is_learned_while_the_end_waits_is_saved_at_once(
    target: Path, drafter: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a background trainer that has much to learn from, and is given up or killed in the end."""
    said: list[str] = []
    model = omnidraft.load(target, drafter, adapt="inline", warn=said.append)
    learner = adaptive_of(model).adaptation.learner
    assert learner is not None
    flush, on_disk = learner.flush, list[float]()

    def slow(meanwhile: Callable[[], None]) -> None:
        for _ in range(2):
            meanwhile()
            assert len(saved(home)) == len(on_disk[:1]), "nothing new is not saved"
            answers(model, 1)
            flush()
            meanwhile()
            on_disk.append(omnidraft.load(target, drafter, warn=pytest.fail).learned["updates"])
        raise OmniDraftError("it was given up")

    monkeypatch.setattr(learner, "flush", slow)
    model.close()
    assert on_disk == [1, 2]
    assert said == ["not all answers were learned from: it was given up"]
    with omnidraft.load(target, drafter, adapt="inline", warn=pytest.fail) as again:
        assert again.learned["answers"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("by", ["save", "itself"])
def test_what_a_full_disk_refused_is_saved_once_there_is_room(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    said: list[str] = []
    model = omnidraft.load(target, drafter, adapt="inline", **(FAST | {"update_every": 1}), warn=said.append)
    install(RefusingDisk(1, errno.ENOSPC), monkeypatch)
    answers(model, 8 + 1)  # one is held out
    adaptive_of(model).wait()
    if by == "save":
        with pytest.raises(ProfileError):
            model.save()
    install(None, monkeypatch)
    model.close()
    assert omnidraft.load(target, drafter).learned == model.learned
    assert model.learned["answers"] == 9


@pytest.mark.medium
def test_a_place_that_cannot_be_written(target: Path, drafter: Path, home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "profiles").write_text("in the way", encoding="utf-8")
    said: list[str] = []
    with omnidraft.load(target, drafter, adapt="inline", update_every=1, warn=said.append) as model:
        assert answers(model, 1)[0].token_ids == alone(model, PROMPTS[0])
    assert len(said) == 1
    assert "what is learned here is not saved" in said[0]
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ProfileError, match="file/profile cannot be written"):
        omnidraft.load(target, drafter, adapt="inline", profile=tmp_path / "file" / "profile")


@pytest.mark.medium
def test_without_a_home_nothing_is_kept(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNIDRAFT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    for adapt, count in (("off", 1), ("inline", 2)):
        said: list[str] = []
        with omnidraft.load(target, drafter, adapt=adapt, update_every=1, warn=said.append) as model:
            assert answers(model, 1)[0].token_ids == alone(model, PROMPTS[0])
        assert [line.split(":")[0] for line in said] == [
            "spelling tables are not stored",
            "what is learned here is not saved",
        ][:count]


@pytest.mark.medium
def test_the_step_of_a_shared_drafter_cannot_be_chosen_again(target: Path, drafter: Path, other_target: Path) -> None:
    a = omnidraft.load(target, drafter, profile=None)
    with pytest.raises(ConfigError, match="drafter_backend is that of the drafter that is shared"):
        load_with(other_target, a, profile=None, drafter_backend="transformers")
