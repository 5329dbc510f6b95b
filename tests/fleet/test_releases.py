"""Versions of learned weights: whole or not there, of this drafter, and never one that is poisoned."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from omnidraft.distillation.lora import Weights
from omnidraft.errors import ModelError
from omnidraft.fleet.releases import KEPT, POINTER, POLL_S, Current, Follower, Releases

BASE = {"layer.weight": torch.zeros(3, 2), "norm.weight": torch.ones(2)}
PAIR = "two tokenizers"


def state(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(weight, value) for name, weight in BASE.items()}


class Looking(Follower):
    """Reads the folder whenever it is asked."""

    def poll(self) -> Weights | None:
        self.look()
        return super().poll()


def follower(folder: Path, warn: Any = pytest.fail, name: str = "replica") -> Follower:
    ticks = itertools.count(0.0, POLL_S)
    return Looking(Releases(folder, PAIR), name, BASE, clock=lambda: next(ticks), warn=warn)


def test_a_replica_takes_over_a_version_once(tmp_path: Path) -> None:
    releases, replica = Releases(tmp_path, PAIR), follower(tmp_path)
    assert replica.poll() is None
    assert releases.publish(state(2.0), 1.0) == Current(stable=1, newest=1)
    found = replica.poll()
    assert found is not None
    assert torch.equal(found["norm.weight"], state(2.0)["norm.weight"])
    assert (replica.poll(), replica.version) == (None, 1)


def test_the_folder_is_looked_at_now_and_then(tmp_path: Path) -> None:
    now = [0.0]
    replica = Looking(Releases(tmp_path, PAIR), "replica", BASE, clock=lambda: now[0], warn=pytest.fail)
    assert replica.poll() is None
    Releases(tmp_path, PAIR).publish(state(2.0), 1.0)
    now[0] += POLL_S / 2
    assert replica.poll() is None
    now[0] += POLL_S
    assert replica.poll() is not None


def test_a_share_of_the_replicas_uses_a_canary_first() -> None:
    names = [f"replica-{number}" for number in range(2000)]
    used = [
        {name for name in names if Current(stable=3, canary=4, share=share).version_for(name) == 4}
        for share in (0.0, 0.1, 0.3, 1.0)
    ]
    assert [len(each) / len(names) for each in used] == pytest.approx([0.0, 0.1, 0.3, 1.0], abs=0.03)
    assert used[1] < used[2] < used[3]
    assert used[1] != {name for name in names if Current(stable=3, canary=5, share=0.1).version_for(name) == 5}


def test_a_canary_becomes_stable_or_is_withdrawn(tmp_path: Path) -> None:
    releases, replica = Releases(tmp_path, PAIR), follower(tmp_path)
    for _ in range(2):
        releases.publish(state(2.0), 0.999999)
        assert replica.poll() is not None
        assert releases.withdraw().canary is None
        assert replica.poll() == {}  # the drafter as it was shipped
    releases.publish(state(3.0), 0.999999)
    assert releases.promote() == Current(stable=3, share=0.999999, newest=3)
    replica.poll()
    assert replica.version == 3


@pytest.mark.parametrize("fault", ["nan", "infinite", "shape", "missing", "pair", "cut", "gone"])
def test_a_poisoned_version_is_not_adopted(tmp_path: Path, fault: str) -> None:
    warnings: list[str] = []
    releases, replica = Releases(tmp_path, PAIR), follower(tmp_path, warnings.append)
    releases.publish(state(2.0), 1.0)
    assert replica.poll() is not None
    bad = state(3.0)
    if fault in ("nan", "infinite"):
        bad["layer.weight"][1, 1] = {"nan": math.nan, "infinite": math.inf}[fault]
    elif fault == "shape":
        bad["layer.weight"] = torch.zeros(2, 2)
    elif fault == "missing":
        del bad["norm.weight"]
    Releases(tmp_path, "others" if fault == "pair" else PAIR).publish(bad, 1.0)
    file = tmp_path / "version-00000002.safetensors"
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif fault == "gone":
        file.unlink()
    assert [replica.poll() for _ in range(3)] == [None] * 3
    assert (replica.version, len(warnings)) == (1, 1)
    assert "version 1 of the drafter stays" in warnings[0]
    releases.publish(state(4.0), 1.0)
    assert replica.poll() is not None
    assert replica.version == 3


def test_a_damaged_pointer_is_said_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    replica = follower(tmp_path, warnings.append)
    (tmp_path / POINTER).write_text('{"stable": 1', encoding="utf-8")
    assert [replica.poll() for _ in range(3)] == [None] * 3
    assert len(warnings) == 1
    with pytest.raises(ModelError, match="is damaged: restore it"):
        Releases(tmp_path, PAIR).current()
    (tmp_path / POINTER).write_text('{"latest": 1}', encoding="utf-8")
    with pytest.raises(ModelError, match="is damaged"):
        Releases(tmp_path, PAIR).current()


def test_a_file_that_comes_late_is_adopted_when_it_is_there(tmp_path: Path) -> None:
    warnings: list[str] = []
    releases, replica = Releases(tmp_path, PAIR), follower(tmp_path, warnings.append)
    releases.publish(state(2.0), 1.0)
    file, hidden = tmp_path / "version-00000001.safetensors", tmp_path / "hidden"
    file.rename(hidden)
    assert [replica.poll() for _ in range(3)] == [None] * 3
    assert len(warnings) == 1
    hidden.rename(file)
    assert replica.poll() is not None


def test_versions_without_the_file_that_names_them_are_not_begun_anew(tmp_path: Path) -> None:
    releases = Releases(tmp_path, PAIR)
    releases.publish(state(2.0), 1.0)
    (tmp_path / POINTER).unlink()
    with pytest.raises(ModelError, match="is missing: restore it"):
        releases.current()


def test_old_versions_go(tmp_path: Path) -> None:
    releases = Releases(tmp_path, PAIR)
    for number in range(2 * KEPT):
        releases.publish(state(float(number)), 1.0)
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == [f"version-{number:08d}.safetensors" for number in range(KEPT + 1, 2 * KEPT + 1)]


def test_a_reader_never_sees_half_a_version(tmp_path: Path) -> None:
    """A trainer that is killed while it publishes leaves versions that can all be read."""
    code = f"""
import sys, torch
from pathlib import Path
from omnidraft.fleet.releases import Releases
big = {{"layer.weight": torch.zeros(3, 2), "norm.weight": torch.ones(2), "more": torch.zeros(2_000_000)}}
releases = Releases(Path({str(tmp_path)!r}), {PAIR!r})
print("ready", flush=True)
while True:
    releases.publish(big, 1.0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ, encoding="utf-8"
    )
    assert process.stdout is not None
    process.stdout.readline()
    base = BASE | {"more": torch.zeros(2_000_000)}
    releases, seen = Releases(tmp_path, PAIR), set[int]()
    while len(seen) < 5:
        seen.add(releases.current().stable)
    process.kill()
    process.wait()
    process.stdout.close()
    last = releases.current().stable
    assert releases.weights(last, base)["more"].shape == (2_000_000,)
    assert releases.publish(state(1.0), 1.0).stable == last + 1


def test_names_and_shapes_are_checked_before_values(tmp_path: Path) -> None:
    (tmp_path / "version-00000001.safetensors").write_bytes(save({"other": torch.ones(1)}, {"pair": PAIR}))
    with pytest.raises(ModelError, match="do not fit"):
        Releases(tmp_path, PAIR).weights(1, BASE)
