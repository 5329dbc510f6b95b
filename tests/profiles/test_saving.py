"""When what is learned is saved: by one thread at a time, the latest last, and never once others have the profile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omnidraft.config import Learning
from omnidraft.distillation.trainer import Counters
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter
from omnidraft.profiles.manifest import Profile

WAIT_S = 0.2  # for a thread that has to wait; one that need not would be quicker


class Setting:
    """A drafter that has learned from as many answers as there were updates; `saved` are those of each save."""

    def __init__(self) -> None:
        self.saved: list[float] = []
        self.slowly: Callable[[], None] = lambda: None  # while the next save is under way
        cache = SimpleNamespace(frozen=True)
        adaptation = SimpleNamespace(
            attached=SimpleNamespace(cache=cache), shared=None, state={}, learner=object(), end=lambda: None
        )
        adaptation.flush = lambda meanwhile: meanwhile()
        adaptation.poll = lambda: None
        adaptation.counters = Counters()
        profile = SimpleNamespace(file=None, costs=None, warn=pytest.fail, claimed=True)
        profile.save, profile.release = self._save, self.release
        self.adaptation, self._profile = adaptation, profile
        given = (None, adaptation, profile, Profile(), Learning())
        self.drafter = AdaptiveDrafter(*cast("tuple[Any, ...]", given))
        profile.file = object()

    def learn(self) -> None:
        count = self.adaptation.counters.updates + 1
        self.adaptation.counters = Counters(answers=count, updates=count)

    def _save(self, profile: Profile) -> None:
        slowly, self.slowly = self.slowly, lambda: None
        slowly()
        assert self._profile.claimed, "another process may have it"
        self.saved.append(profile.counters["updates"])

    def release(self) -> None:
        self._profile.claimed = False


def test_an_earlier_snapshot_never_replaces_a_later_one() -> None:
    setting = Setting()
    drafter, begun, go_on = setting.drafter, threading.Event(), threading.Event()

    def late() -> None:
        """Another round, of another thread, is saved in a thread of its own, which is slow."""
        setting.learn()
        begun.set()
        go_on.wait()

    setting.learn()
    setting.slowly = late
    drafter.save_later(every=1)
    begun.wait()
    drafter.wait = lambda: None  # type: ignore[method-assign]  # as if the thread had begun just after it
    saving = threading.Thread(target=drafter.save)
    saving.start()
    saving.join(WAIT_S)
    go_on.set()
    saving.join()
    assert setting.saved == [1, 2]


def test_nothing_is_written_once_the_profile_isreleased() -> None:
    setting = Setting()
    drafter, go_on = setting.drafter, threading.Event()
    timer = threading.Timer(WAIT_S, go_on.set)

    def end_learner() -> None:
        """At the end of the trainer, an answer in another thread is saved, slowly."""
        setting.learn()
        setting.slowly = lambda: cast("None", go_on.wait())
        drafter.save_later(every=1)
        timer.start()

    setting.adaptation.end = end_learner
    drafter.finish()
    timer.join()
    drafter.wait()
    setting.learn()
    drafter.save_later(every=1)
    assert setting.saved == [1]


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_forked_while_another_thread_takes_a_snapshot_saves_nothing_and_ends() -> None:
    setting = Setting()
    drafter, held, done = setting.drafter, threading.Event(), threading.Event()
    setting.learn()

    def hold() -> None:
        held.set()
        done.wait()

    setting.adaptation.poll = hold
    thread = threading.Thread(target=drafter.save)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        setting.release()  # the claim is the other's
        try:
            drafter.save_later(every=1)
            drafter.finish()
        finally:
            os._exit(1 if setting.saved or sys.exc_info()[0] else 0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert setting.saved == [1]
