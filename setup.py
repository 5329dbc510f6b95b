"""What pyproject.toml cannot say: with OMNIDRAFT_PREBUILT=win_amd64 the wheel is one for that, with step.c compiled.

The compiler is that of the package ziglang, which makes the objects of every platform on any machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))

from omnidraft.models.native.prebuilt import (
    ANY,
    LEVELS,
    PLATFORMS,
    PROBE,
    SOURCE,
    commands,
    object_path,
    probe_path,
)

COMPILER = "ziglang==0.17.1"
TOGETHER = 2  # objects that are compiled at once
TAG = os.environ.get("OMNIDRAFT_PREBUILT")


class WithObjects(build_py):
    """Beside the modules, an object for each level, and one that tells what the processor has."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        system, processor, _ = PLATFORMS[TAG]
        folder = Path(self.build_lib, "omnidraft", "models", "native")
        for left in folder.glob("*-*.*"):  # by an earlier build, perhaps of another source
            left.unlink()
        levels = {name: level for name, level in LEVELS.items() if name.startswith(processor)}
        objects = [(SOURCE, level.compiled_for, object_path(name, system).name) for name, level in levels.items()]
        objects.append((PROBE, ANY[processor], probe_path(system).name))
        with ThreadPoolExecutor(TOGETHER) as pool:
            for _ in pool.map(lambda each: compile_one(*each[:2], folder / each[2]), objects):
                pass


def compile_one(source: Path, compiled_for: str, made: Path) -> None:
    """Compile a library; what the linker leaves beside it goes."""
    system, _, target = PLATFORMS[TAG]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s"]
    with tempfile.TemporaryDirectory() as place:
        library = Path(place, made.name)
        for command in commands(compiler, [f"-mcpu={compiled_for}"], source, library, system):
            subprocess.run(command, check=True)  # noqa: S603
        made.write_bytes(library.read_bytes())


class ForOnePlatform(bdist_wheel):
    """For any Python, and one system and processor."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", TAG


class NotPure(Distribution):
    """Has a build folder of its own, so that no object comes into a wheel for all systems."""

    def has_ext_modules(self) -> bool:
        return True


if TAG is None:
    setup()
elif TAG in PLATFORMS:
    setup(
        cmdclass={"bdist_wheel": ForOnePlatform, "build_py": WithObjects}, distclass=NotPure, setup_requires=[COMPILER]
    )
else:
    sys.exit(f"OMNIDRAFT_PREBUILT is {TAG!r}: set it to one of {', '.join(PLATFORMS)}, or unset it")
