"""Options of `load` that are wrong, or contradict each other: one line, before anything is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import omnidraft
from omnidraft import ConfigError, ModelError
from support.assembling import load_with


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": 3}, "target is of type int: give a folder"),
        ({"drafter": 3}, "drafter is of type int"),
        ({"drafter": np.array([1, 2])}, "drafter is of type ndarray"),
        ({"draft_length": "h"}, "draft_length is 'h'; use one of goodput, or an integer"),
        ({"draft_length": "head"}, "'head'; it is for experiments, use config.Drafting with omnidraft.api.assemble"),
        ({"draft_length": np.array(["goodput", "head"])}, "draft_length is array"),
        ({"adapt": np.array(["off", "inline"])}, "adapt is array"),
        ({"draftlength": 3}, "did you mean 'draft_length'"),
        ({"draft_length": -1}, "draft_length is -1"),
        ({"temperature": 1}, "give it to generate"),
        ({"adapt": "sometimes"}, "adapt is 'sometimes'; use one of background, inline, off"),
        ({"adapt": True}, "adapt is True"),
        ({"adapt": "inline", "drafter": None}, "adapt is 'inline' without a drafter"),
        ({"adapt": "background", "drafter": None}, "adapt is 'background' without a drafter"),
        ({"rank": 0}, "rank is 0; it must be an integer at least 1"),
        ({"rank": 10**6}, "rank is 1000000"),
        ({"update_every": 0}, "update_every is 0; it must be an integer at least 1"),
        ({"update_every": 1.5}, "update_every is 1.5"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"hold_out_every": 5}, "unknown option 'hold_out_every'"),
        ({"adapter": "qlora"}, "adapter is 'qlora'; use one of full, lora"),
        ({"mode": "paper"}, "it is for experiments, use config.Drafting with omnidraft.api.assemble"),
        ({"loss": "hybrid"}, "it is for experiments, use config.Learning"),
        ({"adapts": "inline"}, "did you mean 'adapt'"),
        ({"learning_rat": 1}, "did you mean 'learning_rate'"),
        ({"profiles": None}, "did you mean 'profile'"),
        ({"profile": 7}, "profile is 7"),
        ({"profile": ""}, "profile is ''"),
        ({"reuse_answers": "all"}, "reuse_answers is 'all'; use one of memory, nothing, profile, request"),
        ({"drafter": None, "reuse_answers": "nothing"}, "reuse_answers is 'nothing' without a drafter"),
        ({"reuse_answers": "profile"}, "use adapt='background', or leave reuse_answers out"),
        ({"reuse_answers": "profile", "adapt": "inline", "profile": None}, "or leave reuse_answers out"),
    ],
)
def test_one_line_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("omnidraft.api.load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError) as caught:
        omnidraft.load(**{"target": "unread", "drafter": "unread", **options})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_experiments_are_checked_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.api.load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match="loss is ''"):
        load_with("unread", "unread", loss="")
    with pytest.raises(ConfigError, match="give a drafter, use mode='exact', or use draft_length=0"):
        load_with("unread", None, mode="paper")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": "zoo:other"}, ModelError, "use one of general, target-b, drafter"),
        ({"device": 0}, ConfigError, "device 0 is not available"),
        ({"dtype": []}, ConfigError, "dtype .. is not known"),
    ],
)
def test_what_cannot_be_loaded(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        omnidraft.load(**{"target": "zoo:target-a", **options})
    assert "\n" not in str(caught.value)
