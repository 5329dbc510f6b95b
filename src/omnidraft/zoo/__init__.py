"""Embedded models, by name; `zoo:NAME` is accepted wherever a model is."""

from __future__ import annotations

from pathlib import Path

from omnidraft.errors import ModelError

PREFIX = "zoo:"
# "general" is for use, the others are small pieces for tests and studies
_ROLES = {"drafter": "drafter", "general": "drafter", "target-a": "target", "target-b": "target"}
_FOLDER = Path(__file__).parent / "models"


def names(role: str | None = None) -> tuple[str, ...]:
    """Names of all embedded models, or of those with the role "drafter" or "target"."""
    return tuple(name for name, own in _ROLES.items() if role in (None, own))


def path(name: str) -> Path:
    """Folder of an embedded model; raises ModelError for an unknown name."""
    if name not in _ROLES:
        raise ModelError(f"zoo model {name!r} does not exist: use one of {', '.join(names())}")
    folder = _FOLDER / name
    if not (folder / "config.json").is_file():
        raise ModelError(f"zoo model {name!r} is not in this installation: install the package again")
    return folder


def resolve(model: str | Path) -> str | Path:
    """The folder of `zoo:NAME`; any other model unchanged."""
    return path(model.removeprefix(PREFIX)) if isinstance(model, str) and model.startswith(PREFIX) else model
