"""The trainer of a fleet: what replicas gain from it, and what it never publishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.config import Drafting
from omnidraft.errors import ConfigError
from omnidraft.fleet.pair import RemotePair, load_pair
from omnidraft.fleet.releases import POLL_S, Follower, Releases
from omnidraft.fleet.rows import Rows
from omnidraft.fleet.settings import FleetLearning, ReplicaSettings
from omnidraft.fleet.spool import Answer, Spool, segments
from omnidraft.fleet.trainer import LEAST_HELD_OUT, LEFTOVER_S, FleetTrainer
from support.batches import WIDTH, Asked, Batch
from support.waiting import WAIT_S, until

LENGTH = 4
DRAFTING = Drafting(draft_length=LENGTH, remember="nothing", drafter_step="transformers")
QUICK: dict[str, Any] = {
    "answers": 16,
    "hold_out": 0.3,
    "learning_rate": 3e-3,
    "adapter": "full",
    "share": 1.0,
    "trial": 50,
}


@pytest.fixture(scope="module")
def pair(target: Path, drafter: Path) -> RemotePair:
    return load_pair(target, drafter, DRAFTING, "cpu", pytest.fail)


def asked() -> list[Asked]:
    """Prompts with answers that are easy to learn."""
    pattern = [80, 81, 90, 84, 70, 75, 95]
    return [
        Asked([1 + number % 50, 60 + number % 7, 5], [*pattern[number % 7 :], *pattern, 80][:12])
        for number in range(48)
    ]


class Fleet:
    """Replicas and a trainer, in one process."""

    def __init__(self, pair: RemotePair, folder: Path, replicas: int = 2, **settings: Any) -> None:
        self.pair, self.folder, self.said = pair, folder, list[str]()
        self.now = 0.0
        self.releases = Releases(folder / "releases", pair.key)
        self.settings = FleetLearning(**QUICK | settings)
        self.trainer = self.new_trainer()
        self.followers: list[Follower] = []
        self.batches = [self._replica(f"replica-{number}") for number in range(replicas)]

    def new_trainer(self) -> FleetTrainer:
        spool = self.folder / "spool"
        return FleetTrainer(
            self.pair, self.releases, spool, self.settings, clock=lambda: self.now, say=self.said.append
        )

    def _replica(self, name: str) -> Batch:
        follower = Follower(self.releases, name, self.pair.base, clock=lambda: self.now, warn=pytest.fail)
        self.followers.append(follower)
        spool = Spool(self.folder / "spool", name)
        rows = Rows(self.pair, DRAFTING, context=WIDTH, most=8, follower=follower, spool=spool, warn=pytest.fail)
        return Batch(rows, LENGTH)

    def serve(self, requests: list[Asked]) -> list[float]:
        """Answer the requests with every replica; the share of the proposals that each gets accepted."""
        rates = []
        for batch in self.batches:
            self.now += POLL_S
            mine = [Asked(each.prompt, each.answer) for each in requests]
            for start in range(0, len(mine), 8):
                batch.run(mine[start : start + 8])
            batch.rows.close()
            proposed = sum(len(draft) for each in mine for draft in each.proposed)
            rates.append(sum(each.accepted for each in mine) / proposed)
        return rates


def answers(count: int, version: int = 0, accepted: int = 2, first: int = 1) -> list[Answer]:
    return [
        Answer(
            prompt=[first + at % 50, 5], tokens=[9, 8, 7, 9, 8, at % 3], drafted=4, accepted=accepted, version=version
        )
        for at in range(count)
    ]


def spooled(fleet: Fleet, some: list[Answer], name: str = "someone") -> None:
    spool = Spool(fleet.folder / "spool", name)
    for each in some:
        spool.add(each)
    spool.write(now=True)


def test_two_replicas_draft_better_with_what_both_have_answered(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path)
    before = after = fleet.serve(asked())
    for _ in range(4):
        fleet.trainer.step()
        after = fleet.serve(asked())
    assert fleet.releases.current().stable >= 2
    assert min(after) > max(before) + 0.3
    assert [each.version for each in fleet.followers] == [fleet.releases.current().stable] * 2


def test_answers_are_kept_until_they_are_learned_from(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    spooled(fleet, answers(LEAST_HELD_OUT))
    fleet.trainer.step()
    assert segments(tmp_path / "spool")
    assert fleet.releases.current().newest == 0
    again = fleet.new_trainer()  # the one before was killed
    spooled(fleet, answers(60))
    again.step()
    assert not segments(tmp_path / "spool")
    assert fleet.releases.current().newest == 1


def test_a_version_that_is_worse_on_held_out_answers_is_not_published(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0, learning_rate=1.0)
    spooled(fleet, answers(80))
    before = fleet.trainer.state()
    fleet.trainer.step()
    assert fleet.releases.current().newest == 0
    assert fleet.said[-1].endswith("not published")
    after = fleet.trainer.state()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize(("accepted", "stable"), [(3, 1), (2, 1), (1, 0)])
def test_a_canary_is_judged_by_what_replicas_accept(
    pair: RemotePair, tmp_path: Path, accepted: int, stable: int
) -> None:
    fleet = Fleet(pair, tmp_path, 0, share=0.5)
    spooled(fleet, answers(80))
    fleet.trainer.step()
    assert (fleet.releases.current().stable, fleet.releases.current().canary) == (0, 1)
    spooled(fleet, answers(30, version=1, accepted=accepted))
    fleet.trainer.step()
    assert fleet.releases.current().canary == 1  # the others are not known yet
    spooled(fleet, answers(30, version=0))
    fleet.trainer.step()
    assert (fleet.releases.current().stable, fleet.releases.current().canary) == (stable, None)
    weights = fleet.trainer.state()
    own = fleet.releases.weights(1, pair.base)
    assert all(torch.equal(weights[name], weight) for name, weight in own.items()) == (stable == 1)


def test_a_restart_in_a_trial_goes_on_from_the_canary(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0, share=0.5)
    spooled(fleet, answers(80))
    fleet.trainer.step()
    again, own = fleet.new_trainer().state(), fleet.releases.weights(1, pair.base)
    assert all(torch.equal(again[name], weight) for name, weight in own.items())


def test_answers_wait_for_memory_and_for_a_disk(
    pair: RemotePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    spooled(fleet, answers(80))
    with monkeypatch.context() as patch:
        patch.setattr("omnidraft.distillation.trainer.free_bytes", lambda _: 0)
        fleet.trainer.step()
    with monkeypatch.context() as patch:
        patch.setattr(Releases, "publish", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            fleet.trainer.step()
    assert segments(tmp_path / "spool")
    fleet.new_trainer().step()
    assert fleet.releases.current().newest == 1
    assert not segments(tmp_path / "spool")


def test_a_trial_without_replicas_ends_in_time(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0, share=0.01)
    spooled(fleet, answers(80))
    fleet.trainer.step()
    fleet.now += fleet.settings.patience - 1
    fleet.trainer.step()
    assert fleet.releases.current().canary == 1
    fleet.now += 1
    fleet.trainer.step()
    assert fleet.releases.current().stable == 1
    assert "unknown" in fleet.said[-1]


def test_foreign_and_empty_answers_are_left_out(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    ids: list[tuple[list[Any], list[Any]]] = [
        ([1], [10**6]),
        ([-1], [2]),
        ([], [1]),
        ([1], []),
        ([1], ["a"]),
        ([1.5], [1]),
    ]
    spooled(fleet, [Answer(prompt=p, tokens=t, drafted=1, accepted=1, version=0) for p, t in ids] * 40)
    fleet.trainer.step()
    assert fleet.trainer.waiting == 0
    spooled(fleet, answers(5), "another")
    fleet.trainer.step()
    assert 0 < fleet.trainer.waiting <= 5


def test_a_restart_goes_on_from_the_stable_version(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    spooled(fleet, answers(80))
    fleet.trainer.step()
    weights = fleet.new_trainer().state()
    own = fleet.releases.weights(1, pair.base)
    assert all(torch.equal(weights[name], weight) for name, weight in own.items())
    (tmp_path / "releases" / "version-00000001.safetensors").unlink()
    fleet.new_trainer()
    assert "learning begins anew" in fleet.said[-1]


def test_what_killed_processes_have_begun_to_write_is_removed_in_time(pair: RemotePair, tmp_path: Path) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    for folder in ("spool", "releases"):
        for age, name in ((2 * LEFTOVER_S, "old"), (0.0, "new")):
            leftover = tmp_path / folder / f".{name}.jsonl.{'0' * 16}.tmp"
            leftover.write_bytes(b"{")
            os.utime(leftover, (time.time() - age,) * 2)
        (tmp_path / folder / ".other.tmp").write_bytes(b"")
        os.utime(tmp_path / folder / ".other.tmp", (0, 0))
    fleet.trainer.step()
    for folder in ("spool", "releases"):
        assert sorted(path.name.split(".")[1] for path in (tmp_path / folder).glob(".*")) == ["new", "other"]


def test_settings_of_a_replica_are_checked() -> None:
    settings = ReplicaSettings.of({"drafter": "zoo:general", "draft_length": 2}, 4)
    assert (settings.drafting.draft_length, settings.drafting.max_draft_length) == (2, 4)
    assert settings.name
    wrong: list[tuple[object, str]] = [
        ([], "give an object"),
        ({"spol": "x"}, "did you mean 'spool'"),
        ({"spool": 3}, "spool is 3"),
        ({"spool_share": 0}, "spool_share is 0"),
        ({"draft_length": "long"}, "draft_length is 'long'"),
        ({"max_draft_length": 8}, "the engine verifies 4"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            ReplicaSettings.of(given, 4)


def started(target: Path, drafter: Path, folder: Path) -> subprocess.Popen[str]:
    options = ["--target", str(target), "--drafter", str(drafter), "--spool", str(folder / "spool")]
    options += ["--releases", str(folder / "releases"), "--answers", "16", "--hold-out", "0.3", "--share", "1"]
    command = [sys.executable, "-m", "omnidraft", "train-fleet", *options, "--adapter", "full", "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def said(process: subprocess.Popen[str], words: str) -> str:
    """The next line with these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


@pytest.mark.usefixtures("home")
def test_the_command_learns_survives_a_kill_and_ends_when_told(
    pair: RemotePair, target: Path, drafter: Path, tmp_path: Path
) -> None:
    fleet = Fleet(pair, tmp_path, 0)
    first = started(target, drafter, tmp_path)
    said(first, "learning from")
    other = started(target, drafter, tmp_path)
    assert "another trainer publishes" in said(other, "error")
    assert other.wait(WAIT_S) == 2
    spooled(fleet, answers(80))
    until(lambda: fleet.releases.current().newest >= 1)
    first.kill()
    first.wait()
    version = fleet.releases.current().stable
    assert fleet.releases.weights(version, pair.base)
    second = started(target, drafter, tmp_path)
    said(second, "learning from")
    spooled(fleet, answers(80, first=20), "someone-else")
    until(lambda: fleet.releases.current().newest > version or not segments(tmp_path / "spool"))
    second.send_signal(signal.SIGTERM)
    assert second.wait(WAIT_S) == 0
    for process in (first, other, second):
        assert process.stderr is not None
        process.stderr.close()
