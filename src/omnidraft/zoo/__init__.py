"""The models that ship with the package, each by name; `zoo:NAME` stands for one wherever a model is asked for."""

from __future__ import annotations

from pathlib import Path

from omnidraft.errors import ModelError

PREFIX = "zoo:"
_ROLES = {"drafter": "drafter", "target-a": "target", "target-b": "target"}
_FOLDER = Path(__file__).parent / "models"


def names(role: str | None = None) -> tuple[str, ...]:
    """The names of all models, or of those with a role: "drafter" or "target"."""
    return tuple(name for name, its in _ROLES.items() if role in (None, its))


def path(name: str) -> Path:
    """The folder of a model; raises ModelError where there is no such model."""
    if name not in _ROLES:
        raise ModelError(f"zoo model {name!r} does not exist: use one of {', '.join(names())}")
    folder = _FOLDER / name
    if not (folder / "config.json").is_file():
        raise ModelError(f"zoo model {name!r} is not in this installation: install the package again")
    return folder


def resolve(model: str | Path) -> str | Path:
    """The folder that `zoo:NAME` stands for; anything else as it is."""
    return path(model.removeprefix(PREFIX)) if isinstance(model, str) and model.startswith(PREFIX) else model
