"""Want of memory is an error of one line, with the bytes that are needed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.api import load
from omnidraft.cli import main as cli
from omnidraft.errors import ModelError
from omnidraft.models import memory
from support.compilers import needs_the_8_bit_step
from support.homes import with_native
from support.models import refused
from support.project_files import environment

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "allocate",
    [lambda: np.empty(2**58), lambda: torch.empty(2**60), lambda: bytearray(2**62)],
    ids=["numpy", "torch", "python"],
)
def test_want_of_memory_is_known_whoever_says_it(allocate: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        allocate()
    assert memory.is_shortage(raised.value)
    other = ValueError("no config.json")
    assert not memory.is_shortage(other)
    other.__cause__ = raised.value
    assert memory.is_shortage(other), "libraries put an error of their own above it"
    circle = ValueError("x")
    circle.__cause__ = circle
    assert not memory.is_shortage(circle)
    with refused(ModelError, "it take 3.0 GiB of memory, and there are "):
        within(raised.value)
    with pytest.raises(ValueError, match="no config"):
        within(ValueError("no config.json"))


def test_what_libraries_raise_where_the_address_space_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    said = SystemError("error return without exception set"), RuntimeError("can't start new thread")
    monkeypatch.setattr("omnidraft.systems.address_limit", lambda: None)
    assert not any(map(memory.is_shortage, said))
    monkeypatch.setattr("omnidraft.systems.address_limit", lambda: 700_000 * 1024)
    assert all(map(memory.is_shortage, said))
    assert not memory.is_shortage(RuntimeError("no config.json"))


def within(error: BaseException) -> None:
    with memory.needing(3 * 2**30, "it"):
        raise error


def test_memory_that_cannot_be_looked_at_is_short_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: bytearray(2**62))
    assert memory.shortage("they", 1).startswith("they take more memory than there is: ")


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory.free_bytes()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, resource.RLIM_INFINITY))
    assert memory.free_bytes() == 0 < free
    with refused(ModelError, "the libraries take more than 0.5 GiB", "`ulimit -v` is 1.0 MiB"):
        memory.check_libraries()


PLACES = {  # that allocate by the size of a model, of a text, or of tables, and what the line says takes memory
    "omnidraft.models.loading._read_model": "the weights of model",
    "omnidraft.models.loading.load_tokenizer": "the models and their tables",
    "omnidraft.models.transformers_cache._enlarged": "passes over",
    "omnidraft.counts.token_index.array": "the models and their tables",
    "omnidraft.attach.load_table": "the models and their tables",
    "omnidraft.models.native.model.LayerWeights": "the weights of",
    "omnidraft.models.native.kv_cache.KVBlocks.reserve": "passes over",
    "omnidraft.cli.generate.answering.load": "the libraries and models",
}


@pytest.mark.medium
@pytest.mark.parametrize("place", PLACES)
def test_a_command_without_memory_says_how_much(
    place: str, target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "native" in place:
        needs_the_8_bit_step()

    def short(*_: object, **__: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(place, short)
    words = ["--target", str(target), "--drafter", str(drafter), "--max-new-tokens", "4", "--dtype", "float32"]
    assert cli.main(["generate", "hello", *words]) in (1, 2)
    out, err = capsys.readouterr()
    assert "kv_cache" in place or out.strip() == ""
    (line,) = [line for line in err.splitlines() if "error: " in line]
    assert line.startswith(f"omnidraft: error: {PLACES[place]}")
    assert " of memory, and there are " in line
    assert "Traceback" not in err


def test_weights_that_do_not_fit_are_not_read(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 5)
    monkeypatch.setattr("omnidraft.models.loading._read_model", pytest.fail)
    with refused(ModelError, "target", "in float32 take ", " bytes of memory, and there are 5 bytes"):
        load(target, None, dtype="float32")


@pytest.mark.medium
def test_a_long_prompt_without_memory_leaves_the_model_as_it_was(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(target, None, dtype="float32")
    expected = model.generate("hello world", max_new_tokens=4).token_ids
    lane = model.lanes(1)[0]
    with monkeypatch.context() as patch:
        patch.setattr("omnidraft.models.transformers_cache._enlarged", lambda *_: bytearray(2**62))
        with refused(ModelError, "passes over", "take more than", "shorten the text"):
            lane.stream("hello world " * 40, max_new_tokens=4).step()
    assert [*lane.stream("hello world", max_new_tokens=4)]
    assert model.generate("hello world", max_new_tokens=4).token_ids == expected


# a user's environment has no scipy, whose library of linear algebra may wait for memory for ever while it is imported
AS_FOR_USERS = """
import runpy, sys

sys.modules["scipy"] = None
runpy.run_module("omnidraft", run_name="__main__", alter_sys=True)
"""
ABORTED = 127, -signal.SIGABRT  # by the C library, or by Rust's, which say so themselves


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no ulimit")
@pytest.mark.parametrize("kilobytes", [400_000, 700_000, 800_000])
def test_a_process_with_little_memory(kilobytes: int, home: Path) -> None:
    command = [sys.executable, "-c", AS_FOR_USERS, "generate", "hello", "--target", "zoo:target-b"]
    limited = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh", *command, "--max-new-tokens", "4"]
    done = subprocess.run(
        limited, env=environment(with_native(home)), capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode, "the libraries alone take more"
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode in ABORTED:
        return
    # what Python itself says at its end, where even that finds no memory, comes after it
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("omnidraft: error: ")]
    assert " memory" in line
