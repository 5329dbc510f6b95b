"""What takes a C compiler, which not every machine has."""

from __future__ import annotations

import shutil

import pytest

from omnidraft.models.native import step

COMPILERS = ("cc", "gcc", "clang")


def needs_the_8_bit_step() -> None:
    """Skip the test where nothing on the path is a compiler; one that is there must do."""
    if (unsupported := step.unsupported_reason()) is not None:
        assert not any(map(shutil.which, COMPILERS)), unsupported
        pytest.skip(f"the 8-bit step takes a C compiler, and none of {', '.join(COMPILERS)} is on the path")
