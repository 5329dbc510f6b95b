"""Embedded models, by name; `zoo:NAME` is accepted wherever a model is."""

from __future__ import annotations

from pathlib import Path

from omnidraft.errors import ModelError

PREFIX = "zoo:"
_WHEEL = {"general": "drafter", "target-b": "target"}  # names and roles
# small pieces for tests and studies, which pip does not install
_CHECKOUT = {"drafter": "drafter", "target-a": "target"}
TARGET = f"{PREFIX}target-b"  # for a first look: it is in every installation, and has a chat template
_FOLDER = Path(__file__).parent / "models"


def names(role: str | None = None) -> tuple[str, ...]:
    """Names of the embedded models that are here, all or those with the role "drafter" or "target"."""
    here = {name: fits for name, fits in (_WHEEL | _CHECKOUT).items() if _is_here(name)}
    return tuple(name for name, fits in here.items() if role in (None, fits))


def path(name: str) -> Path:
    """Folder of an embedded model; raises ModelError for one that does not exist, or not here."""
    if _is_here(name):
        return _FOLDER / name
    others = f"use one of {', '.join(names())}"
    if name in _CHECKOUT:
        raise ModelError(f"zoo model {name!r} comes with the source alone: {others}, or pip install -e its checkout")
    if name in _WHEEL:
        raise ModelError(f"zoo model {name!r} is not in this installation: install the package again")
    raise ModelError(f"zoo model {name!r} does not exist: {others}")


def resolve(model: str | Path) -> str | Path:
    """The folder of `zoo:NAME`; any other model unchanged."""
    return path(model.removeprefix(PREFIX)) if isinstance(model, str) and model.startswith(PREFIX) else model


def _is_here(name: str) -> bool:
    return name in _WHEEL | _CHECKOUT and (_FOLDER / name / "config.json").is_file()
