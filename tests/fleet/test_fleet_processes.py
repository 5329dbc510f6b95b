"""Two replicas of vLLM and a trainer, each a process: both get better, and what is killed or poisoned harms nobody.

Runs where vLLM is installed, in the environment that `make fleet-test` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM in this environment: make fleet-test has one")

import torch

from omnidraft.config import Drafting
from omnidraft.fleet.pair import load_pair
from omnidraft.fleet.releases import Releases
from omnidraft.fleet.spool import answers, segments
from support.replica import LONGEST, PROMPTS, save_target

TESTS = Path(__file__).parents[1]
WAIT_S = 240.0


class Process:
    """A process whose lines are read as they come."""

    def __init__(self, *words: str) -> None:
        env = os.environ | {"PYTHONPATH": str(TESTS), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            encoding="utf-8",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def laps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines) if line.startswith('{"answers"') and line.endswith("\n")]

    def until(self, seen: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not seen():
            assert self._process.poll() is None, "".join(self.lines[-30:])
            assert time.monotonic() < end, "".join(self.lines[-30:])
            time.sleep(0.2)


class Fleet:
    """A target and a drafter of random weights, the folders of a fleet, and its processes."""

    def __init__(self, folder: Path, drafter: Path) -> None:
        self.folder, self.drafter, self.target = folder, drafter, save_target(folder / "target")
        pair = load_pair(self.target, drafter, Drafting(drafter_step="transformers"), "cpu", pytest.fail)
        self.base, self.releases = pair.base, Releases(folder / "releases", pair.key)
        self.processes: list[Process] = []

    def replica(self, name: str) -> Process:
        settings = {"drafter": str(self.drafter), "draft_length": LONGEST, "remember": "nothing", "replica": name}
        settings |= {each: str(self.folder / each) for each in ("spool", "releases")}
        return self._start(str(TESTS / "support" / "replica.py"), str(self.target), json.dumps(settings))

    def trainer(self) -> Process:
        options = ["--target", str(self.target), "--drafter", str(self.drafter), "--spool", str(self.folder / "spool")]
        options += ["--releases", str(self.folder / "releases"), "--answers", "64", "--hold-out", "0.3"]
        options += ["--share", "1", "--adapter", "full", "--learning-rate", "3e-3", "--threads", "1"]
        return self._start("-m", "omnidraft", "train-fleet", *options)

    def _start(self, *words: str) -> Process:
        self.processes.append(Process(*words))
        return self.processes[-1]


@pytest.fixture
def fleet(tmp_path: Path, drafter: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, drafter)
    yield made
    for process in made.processes:
        process.kill()


def test_replicas_improve_and_survive_each_other(fleet: Fleet) -> None:
    one, two, trainer = fleet.replica("one"), fleet.replica("two"), fleet.trainer()
    for each in (one, two):
        each.until(lambda each=each: bool(each.laps))  # type: ignore[misc]
    begun = [each.laps[0] for each in (one, two)]
    expected = begun[0]["answers"]
    for each, first in zip((one, two), begun, strict=True):
        each.until(lambda each=each, first=first: each.laps[-1]["rate"] > first["rate"] + 0.2)  # type: ignore[misc]
    assert fleet.releases.current().stable >= 1

    one.kill()
    before = len(two.laps)
    two.until(lambda: len(two.laps) > before + 3)
    again = fleet.replica("one")  # with what was learned before it began
    again.until(lambda: len(again.laps) > 2)
    assert again.laps[2]["rate"] > begun[0]["rate"] + 0.2

    trainer.kill()
    version = fleet.releases.current().newest
    assert fleet.releases.weights(fleet.releases.current().stable, fleet.base)
    waiting = segments(fleet.folder / "spool")
    before = len(two.laps)
    two.until(lambda: len(two.laps) > before + 3 and len(segments(fleet.folder / "spool")) > len(waiting))
    trainer = fleet.trainer()
    trainer.until(lambda: not set(waiting) & set(segments(fleet.folder / "spool")))
    assert fleet.releases.current().newest >= version

    trainer.kill()
    poisoned = {name: torch.full_like(weight, float("nan")) for name, weight in fleet.base.items()}
    fleet.releases.publish(poisoned, 1.0)
    for each in (again, two):
        each.until(lambda each=each: any("not finite" in line for line in list(each.lines)))  # type: ignore[misc]
        before = len(each.laps)
        each.until(lambda each=each, before=before: len(each.laps) > before + 2)  # type: ignore[misc]
        assert each.laps[-1]["rate"] > begun[0]["rate"] + 0.2

    spooled = [answer for path in segments(fleet.folder / "spool") for answer in answers(path)]
    assert spooled
    for answer in spooled:
        whole, tokens = expected[PROMPTS.index(list(answer.prompt))], list(answer.tokens)
        assert tokens[: len(whole)] == whole[: len(tokens)]
        assert len(tokens) <= len(whole) + LONGEST, "of the last step vLLM may have cut some"
    for each in (one, two, again):
        assert all(lap["answers"] == expected for lap in each.laps), "drafts change no answer"
