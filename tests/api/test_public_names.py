"""What a user finds under `omnidraft`, and the models that ship by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import omnidraft
from omnidraft import ModelError, zoo


def test_public_names() -> None:
    assert {name for name in omnidraft.__all__ if getattr(omnidraft, name) is not None} == set(omnidraft.__all__)
    assert set(omnidraft.__all__) <= set(dir(omnidraft))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        omnidraft.lode  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert omnidraft.__version__ == project["version"]


def test_zoo_names_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(zoo.names()) == {*zoo.names("target"), *zoo.names("drafter")}
    assert len(zoo.names("drafter")) == 1
    assert zoo.resolve("owner/name") == "owner/name"
    assert zoo.resolve(Path("zoo:drafter")) == Path("zoo:drafter")  # a folder of that name
    monkeypatch.setattr(zoo, "_FOLDER", tmp_path)
    with pytest.raises(ModelError, match="install the package again"):
        zoo.path("drafter")
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "config.json").touch()
    assert zoo.resolve("zoo:drafter") == zoo.path("drafter") == tmp_path / "drafter"
