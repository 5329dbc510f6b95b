"""The glossary names things that exist, and the steps of a request name modules and functions that do."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")


def exists(path: str) -> bool:
    """True of a name in a module below `omnidraft`, and of an attribute or a field of a class there."""
    parts = path.split(".")
    depth = next((n for n in range(len(parts), 0, -1) if is_module(parts[:n])), 0)
    found: object = import_module(".".join(["omnidraft", *parts[:depth]])) if depth else None
    for name in parts[depth:]:
        names = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
        if not hasattr(found, name) and name not in names:
            return False
        found = getattr(found, name, None)  # a field without a default is no attribute of its class
    return depth > 0


def is_module(parts: list[str]) -> bool:
    """True of a module of the package."""
    place = (ROOT / "src" / "omnidraft").joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").is_file()


def glossary() -> list[tuple[str, list[str]]]:
    """Each term with the identifiers of its row."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE.partition("## Glossary")[2], flags=re.MULTILINE)
    return [(term, re.findall(r"`([^`]+)`", code)) for term, code in rows if not term.startswith(("term", "---"))]


def test_the_glossary_is_found() -> None:
    assert len(glossary()) > 15
    assert all(paths for _, paths in glossary())


@pytest.mark.parametrize("path", sorted({path for _, paths in glossary() for path in paths}))
def test_identifiers_of_the_glossary_exist(path: str) -> None:
    assert exists(path)


@pytest.mark.parametrize(
    "path", ["no.such.module", "config.Nothing", "config.Drafting.nothing", "config.Drafting.mode.x"]
)
def test_an_identifier_that_does_not_exist_is_found(path: str) -> None:
    assert not exists(path)


def test_what_the_eight_steps_name_is_there() -> None:
    steps = PAGE.partition("## A request in eight steps")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_/]+(?:\.\w+)*)`", steps)) - {"src/omnidraft/"}
    assert len(named) > 20
    for name in named:
        path = name.rstrip("/").replace("/", ".")
        # a name alone may be of the module named before it
        known = [path, f"decoding.{path}", f"decoding.round.{path}", f"decoding.schedule.{path}"]
        assert any(is_module(each.split(".")) or exists(each) for each in known), name
