"""The trainer's process ends with its parent, however that ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.command_line import environment

PARENT = """
import sys, time, omnidraft
model = omnidraft.load(sys.argv[1], sys.argv[2], adapt="background", interval=1, profile=None)
learner = model.side.adaptation.learner
if sys.argv[3] == "paused":
    model.generate("hello world", max_new_tokens=8)
    learner.flush()
    model.generate("hello world", max_new_tokens=8)
    stream = model.stream("hello world", max_new_tokens=40)
    next(stream)
print(learner._process.pid, flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["starting", "paused"])
def test_a_trainer_whose_parent_was_killed_ends_by_itself(target: Path, drafter: Path, home: Path, state: str) -> None:
    command = [sys.executable, "-c", PARENT, str(target), str(drafter), state]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            worker = psutil.Process(int(parent.stdout.readline()))
            assert worker.is_running()
        finally:
            parent.kill()
    deadline = time.monotonic() + 60
    while alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(process: psutil.Process) -> bool:
    try:
        # what nobody waits for stays as a zombie where the first process of a container reaps none
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
