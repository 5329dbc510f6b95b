"""Processes that are forked after models were loaded: they answer as the other does, and hang nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnidraft.errors import OmniDraftError
from omnidraft.models.forks import ForkLock
from support.compilers import needs_the_8_bit_step
from support.homes import with_native
from support.project_files import environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
# with two threads of torch's, which a fork leaves behind; whoever waits for them is ended by the alarm
SCRIPT = """
import os, signal, sys, torch
import omnidraft
dtype, adapt, profile = sys.argv[1:]
torch.set_num_threads(2)
options = {"adapt": adapt, "profile": profile, "update_every": 1} if adapt != "off" else {"profile": None}
model = omnidraft.load("zoo:target-a", "zoo:drafter", dtype=dtype, draft_length=4, **options)
def answer():
    return model.generate("def mean(values):", max_new_tokens=8, temperature=0).token_ids
expected = answer()
begun = model.stream("def mean(values):", max_new_tokens=8, temperature=0)
begun.step()
child = os.fork()
if child == 0:
    signal.alarm(400)
    list(begun)
    assert begun.result.token_ids == expected
    assert answer() == expected
    (lane,) = model.lanes(1)
    assert "".join(lane.stream("def mean(values):", max_new_tokens=4))
    if adapt == "off":
        again = omnidraft.load("zoo:target-a", "zoo:drafter", dtype=dtype, draft_length=4, profile=None)
        assert again.generate("def mean(values):", max_new_tokens=8, temperature=0).token_ids == expected
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert adapt == "off" or not os.path.exists(profile)
model.close()
assert adapt == "off" or os.path.exists(profile)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "adapt"), [("float32", "off"), ("int8", "off"), ("float32", "background")])
def test_a_forked_process_answers(dtype: str, adapt: str, tmp_path: Path) -> None:
    if dtype == "int8":
        needs_the_8_bit_step()
    own = environment(with_native(tmp_path / "home")) | {"OMP_WAIT_POLICY": "passive"}  # no thread spins meanwhile
    command = [sys.executable, "-c", SCRIPT, dtype, adapt, str(tmp_path / "profile.safetensors")]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


def test_a_lock_that_was_held_at_the_fork_is_an_error() -> None:
    lock = ForkLock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            lock.acquire()
        except OmniDraftError as error:
            os._exit(0 if "fork while they are idle" in str(error) else 2)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_lock_that_was_free_at_the_fork_can_be_taken() -> None:
    lock = ForkLock()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with lock, lock:
            os._exit(0 if lock.acquire(timeout=0.1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
