"""Settings of the proposer inside vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnidraft.config import Drafting, names, shown, suggestion
from omnidraft.errors import ConfigError

TEXTS = ("drafter", "target", "device")


@dataclass(frozen=True, kw_only=True)
class ProposerSettings:
    """The drafter, where it runs, and how it drafts."""

    drafter: str = "auto"
    target: str | None = None  # whose tokenizer and config are read; None: the model that is served
    device: str = "cpu"
    drafting: Drafting

    @classmethod
    def of(cls, given: object, longest: int) -> ProposerSettings:
        """Settings from a mapping of names to values; raises ConfigError for an unknown name or a wrong value."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"the settings of omnidraft are {shown(given)}: give an object of names and values")
        known = [*TEXTS, *names(Drafting)]
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
        return cls(drafting=drafting, **texts)
