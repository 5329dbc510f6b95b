"""What setup.py adds to a wheel, with a stand-in for the compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from omnidraft.models.native.prebuilt import LEVELS, PLATFORMS, object_path, probe_path

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]
COMPILER = """\
import sys
from pathlib import Path

Path(__file__).with_name("called").touch()
Path(sys.argv[sys.argv.index("-o") + 1]).write_text(" ".join(sys.argv))
"""


def objects(tag: str) -> dict[str, str]:
    """The paths of a wheel's objects, and what each is compiled for."""
    system, processor, _ = PLATFORMS[tag]
    levels = {object_path(name, system): each for name, each in LEVELS.items() if name.startswith(processor)}
    found = {path.name: level.compiled_for for path, level in levels.items()}
    found[probe_path(system).name] = {"x86_64": "x86_64", "aarch64": "generic"}[processor]
    return {f"omnidraft/models/native/{name}": compiled_for for name, compiled_for in found.items()}


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
    (tmp_path / "ziglang" / "__init__.py").touch()  # a package that is installed would come before a folder alone
    (tmp_path / "ziglang" / "__main__.py").write_text(COMPILER, encoding="utf-8")
    return tmp_path


def built(project: Path, kind: str, tag: str | None) -> tuple[str, dict[str, str]]:
    """The name of a wheel that is made, and its objects."""
    environment = {name: value for name, value in os.environ.items() if name != "OMNIDRAFT_PREBUILT"}
    environment |= {"PYTHONPATH": str(project)} | ({"OMNIDRAFT_PREBUILT": tag} if tag else {})
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True, check=True
    )
    name = done.stdout.split()[-1]
    with zipfile.ZipFile(project / name) as wheel:
        suffixes = {".so", ".dylib", ".dll", ".o"}
        return name, {each: wheel.read(each).decode() for each in wheel.namelist() if Path(each).suffix in suffixes}


@pytest.mark.slow
@pytest.mark.parametrize("tag", PLATFORMS)
def test_objects_are_made_for_the_platform_that_is_asked_for(tag: str, project: Path) -> None:
    name, found = built(project, "wheel", tag)
    assert name.endswith(f"-py3-none-{tag}.whl")
    assert found.keys() == objects(tag).keys()
    for path, compiled_for in objects(tag).items():
        words = found[path].split()
        assert PLATFORMS[tag].target in words
        if tag.startswith("win"):  # linked apart
            assert "-nostdlib" in words
        else:
            assert f"-mcpu={compiled_for}" in words


@pytest.mark.slow
def test_objects_are_of_the_source_and_in_no_wheel_for_all(project: Path) -> None:
    tag = "manylinux_2_28_x86_64"
    built(project, "wheel", tag)
    with (project / "src" / "omnidraft" / "models" / "native" / "step.c").open("a", encoding="utf-8") as file:
        file.write("\n")
    _, other = built(project, "wheel", tag)
    assert len(other) == len(objects(tag))
    assert not other.keys() & objects(tag).keys(), "what an earlier build has left is of another source"
    name, found = built(project, "wheel", None)
    assert name.endswith("-py3-none-any.whl")
    assert not found


@pytest.mark.parametrize("tag", [None, "win_amd64"])
def test_a_checkout_is_installed_without_objects(project: Path, tag: str | None) -> None:
    assert built(project, "editable", tag)[1] == {}
    assert not (project / "ziglang" / "called").exists()


def test_a_platform_without_a_wheel_is_named(project: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        built(project, "wheel", "win32")
    said = caught.value.stderr.strip().splitlines()[-1]
    assert said == f"OMNIDRAFT_PREBUILT is 'win32': set it to one of {', '.join(PLATFORMS)}, or unset it"


def test_the_compiler_is_the_one_that_is_tested() -> None:
    (pinned,) = re.findall(r"^ziglang==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f'COMPILER = "{pinned}"' in (ROOT / "setup.py").read_text(encoding="utf-8")
