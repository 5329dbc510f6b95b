"""What takes a C compiler, which not every machine has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from omnidraft.models.native import step
from support.homes import NATIVE

COMPILERS = ("cc", "gcc", "clang")


def needs_the_8_bit_step() -> None:
    """Skip the test where nothing on the path is a compiler; one that is there must do."""
    if (unsupported := step.unsupported_reason()) is not None:
        assert not any(map(shutil.which, COMPILERS)), unsupported
        pytest.skip(f"the 8-bit step takes a C compiler, and none of {', '.join(COMPILERS)} is on the path")


def looked_for_anew(patch: pytest.MonkeyPatch) -> None:
    """Have step.c looked for, and compiled where it is not found, as in a new process."""
    patch.setattr(step, "_loaded", cache(step._loaded.__wrapped__))


@contextmanager
def compiled_with(*flags: str) -> Iterator[None]:
    """The block uses step.c as compiled with these flags, and kept where all tests find it.

    Bits do not depend on how much a compiler optimizes, but the time that it takes does.
    """
    usual = step.step_functions()._name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(Path(os.environ[NATIVE]).parents[1]))
        patch.setattr(step, "FLAGS", ((*flags, "-O1", "-march=native"),))
        looked_for_anew(patch)
        assert step.step_functions()._name != usual
        yield
