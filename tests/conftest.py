"""Two small random models of different tokenizers, in folders as users have them.

What imports torch is imported by fixtures: the process that only hands out tests need not wait for it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from omnidraft.defaults import SMALL
from support.homes import NATIVE, with_native
from support.texts import QUESTIONS

# a busy machine takes long to make examples, and to run them
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# a shell starts what runs in its background, and thereby every process of these tests, with Ctrl-C ignored
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays to the end: looking through it for garbage again and again takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models here are too small for a second one to help, and idle threads of test processes get in the way."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # which commands leave as it is
        yield


@pytest.fixture(scope="session", autouse=True)
def _a_home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the folders of whoever runs them, or written there."""
    home, run = tmp_path_factory.mktemp("home"), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # the other processes of this run find what one has compiled
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NATIVE, str(run / "compiled" / "cache" / "native"))
        patch.setenv("OMNIDRAFT_HOME", str(with_native(home)))
        yield


@pytest.fixture(autouse=True)
def _a_small_default_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are better off with it, and tests as well."""
    monkeypatch.setattr("omnidraft.defaults.DRAFTER", SMALL)


@pytest.fixture(autouse=True)
def _no_measurements_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy decides follows from the test alone."""
    monkeypatch.setattr("omnidraft.profiles.measured_costs.MeasuredCosts.load", lambda _: None)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.models import save_model
    from support.small_tokenizers import byte_level

    return save_model(tmp_path_factory.mktemp("models") / "target", byte_level(), seed=1)


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.models import save_model
    from support.small_tokenizers import sentencepiece

    return save_model(tmp_path_factory.mktemp("models") / "drafter", sentencepiece(), seed=2)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty OMNIDRAFT_HOME."""
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of GSM8K and MBPP as they are laid out, of a few lines each."""
    gsm8k = [{"question": text, "answer": "none"} for text in QUESTIONS]
    mbpp = [{"text": text, "test_list": ["assert x"], "task_id": 11 + i} for i, text in enumerate(QUESTIONS)]
    files: dict[str, list[Any]] = {"gsm8k/train.jsonl": gsm8k, "gsm8k/test.jsonl": gsm8k, "mbpp/mbpp.jsonl": mbpp}
    for name, rows in files.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path / "data"
