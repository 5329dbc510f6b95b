"""Settings of a replica, and of the trainer of a fleet."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft.config import ADAPTERS, Drafting, Settings, integer, names, number, one_of, shown, suggestion
from omnidraft.errors import ConfigError

TEXTS = ("drafter", "target", "spool", "releases", "replica", "device")


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """What a replica is told: the drafter, where it learns with others, and how it drafts.

    Without `releases` the drafter stays as it is; without `spool` nothing that is said leaves the replica.
    """

    drafter: str = "auto"
    target: str | None = None  # whose tokenizer and config are read; None: the model that is served
    spool: str | None = None  # a folder for answers, token ids alone, to learn from
    releases: str | None = None  # a folder of the learned weights
    replica: str | None = None  # a name that no other replica has; None: that of the machine
    device: str = "cpu"
    spool_share: float = 1.0  # of the answers that are spooled: in a large fleet the trainer reads but a few of them
    drafting: Drafting

    @classmethod
    def of(cls, given: object, longest: int) -> ReplicaSettings:
        """Settings from a mapping of names to values; raises ConfigError for an unknown name or a wrong value."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"the settings of omnidraft are {shown(given)}: give an object of names and values")
        known = [*TEXTS, "spool_share", *names(Drafting)]
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown setting {name!r} of omnidraft: {suggestion(str(name), known)}")
        texts: dict[str, Any] = {name: given[name] for name in TEXTS if given.get(name) is not None}
        for name, value in texts.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} is {shown(value)}; it must be a string: leave it out for the default")
        options = {"max_draft_length": longest} | {k: v for k, v in given.items() if k in names(Drafting)}
        drafting = Drafting(**options)
        if drafting.longest > longest:
            raise ConfigError(
                f"the draft length is up to {drafting.longest}, where the engine verifies {longest}: use less"
            )
        share = given.get("spool_share", 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"spool_share is {shown(share)}; it must be above 0, at most 1: leave spool out for none")
        return cls(drafting=drafting, spool_share=share, **texts)

    @property
    def name(self) -> str:
        return self.replica or socket.gethostname()

    def folder(self, name: str) -> Path | None:
        """The folder of that setting."""
        value = getattr(self, name)
        return None if value is None else Path(value).expanduser()


@dataclass(frozen=True, kw_only=True)
class FleetLearning(Settings):
    """How the trainer of a fleet makes versions."""

    answers: int = integer(64, "new answers that a version is learned from", low=8, high=4096, fix="64 is usual")
    hold_out: float = number(
        0.1, "share of the answers that is never learned from, to judge versions by", low=0.02, high=0.5, fix="use 0.1"
    )
    share: float = number(
        0.1, "share of the replicas that use a new version first; 1: all at once", low=0.001, high=1, fix="use 0.1"
    )
    trial: int = integer(
        2000, "verified proposals of a new version, after which it is judged", low=50, fix="2000 is usual"
    )
    patience: float = number(
        600, "seconds after which a trial without as many is decided by what there is", low=1, fix="600 is usual"
    )
    margin: float = number(
        0.02,
        "share of the acceptance rate that a version may lose in its trial",
        low=0,
        high=1,
        fix="use 0.02",
    )
    adapter: str = one_of("lora", "trained weights", *ADAPTERS)
    rank: int = integer(32, "rank of LoRA", low=1, high=1024, fix="32 is usual")
    learning_rate: float = number(3e-4, "learning rate of AdamW", low=0, high=1, zero=False, fix="3e-4 is usual")
