"""What setup.py adds to a wheel, with a stand-in for the compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from omnidraft.models.native.prebuilt import LEVELS, object_path

ROOT = Path(__file__).parents[2]
COMPILER = """\
import sys
from pathlib import Path

Path(__file__).with_name("called").touch()
Path(sys.argv[sys.argv.index("-o") + 1]).write_text(" ".join(sys.argv))
"""
OBJECTS = {f"omnidraft/models/native/{object_path(level).name}" for level in LEVELS}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that setup.py reads, and a package `ziglang` beside them."""
    package = tmp_path / "src" / "omnidraft"
    ignored = shutil.ignore_patterns("*.py", "__pycache__", "*.so")
    shutil.copytree(ROOT / "src" / "omnidraft" / "models", package / "models", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "LICENSE", "NOTICE", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("__init__.py", "models/__init__.py", "models/native/__init__.py", "models/native/prebuilt.py"):
        shutil.copy(ROOT / "src" / "omnidraft" / name, package / name)
    shutil.copy(ROOT / "src" / "omnidraft" / "errors.py", package)
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__main__.py").write_text(COMPILER, encoding="utf-8")
    return tmp_path


def built(project: Path, kind: str, *, objects: bool) -> tuple[str, dict[str, str]]:
    """The name of a wheel that is made, and its objects."""
    environment = {name: value for name, value in os.environ.items() if name != "OMNIDRAFT_PREBUILT"}
    environment |= {"PYTHONPATH": str(project)} | ({"OMNIDRAFT_PREBUILT": "1"} if objects else {})
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True, check=True
    )
    name = done.stdout.split()[-1]
    with zipfile.ZipFile(project / name) as wheel:
        return name, {each: wheel.read(each).decode() for each in wheel.namelist() if each.endswith(".so")}


@pytest.mark.slow
def test_objects_are_made_where_they_are_asked_for(project: Path) -> None:
    name, found = built(project, "wheel", objects=True)
    assert name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    assert found.keys() == OBJECTS
    for path, command in found.items():
        assert "x86_64-linux-gnu.2.28" in command
        (level,) = [level for level in LEVELS if f"step-{level}-" in path]
        assert command.split().count(f"-mcpu={level}") == 1
    with (project / "src" / "omnidraft" / "models" / "native" / "step.c").open("a", encoding="utf-8") as file:
        file.write("\n")
    _, other = built(project, "wheel", objects=True)
    assert len(other) == len(OBJECTS)
    assert not other.keys() & OBJECTS, "what an earlier build has left is of another source"
    name, found = built(project, "wheel", objects=False)
    assert name.endswith("-py3-none-any.whl")
    assert not found


@pytest.mark.parametrize("objects", [False, True])
def test_a_checkout_is_installed_without_objects(project: Path, objects: bool) -> None:
    assert built(project, "editable", objects=objects)[1] == {}
    assert not (project / "ziglang" / "called").exists()
