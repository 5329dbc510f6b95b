"""What pyproject.toml cannot say: with OMNIDRAFT_PREBUILT=1 the wheel is one for Linux on x86-64, with step.c compiled.

The compiler is that of the package ziglang, which makes the same objects on every machine, for an old glibc.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))

from omnidraft.models.native.prebuilt import LEVELS, OPTIONS, SOURCE, object_path

GLIBC = "2.28"  # the oldest on which PyTorch runs
COMPILER = "ziglang==0.17.1"


class WithObjects(build_py):
    """Beside the modules, an object for each level."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, "omnidraft", "models", "native")
        for left in folder.glob("*.so"):  # by an earlier build, perhaps of another source
            left.unlink()
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}", *OPTIONS, "-s"]
        for level in LEVELS:
            made = folder / object_path(level).name
            subprocess.run([*command, f"-mcpu={level}", str(SOURCE), "-o", str(made), "-lm"], check=True)  # noqa: S603


class ForLinux(bdist_wheel):
    """For any Python, and no other system."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", f"manylinux_{GLIBC.replace('.', '_')}_x86_64"


class NotPure(Distribution):
    """Has a build folder of its own, so that no object comes into a wheel for all systems."""

    def has_ext_modules(self) -> bool:
        return True


if os.environ.get("OMNIDRAFT_PREBUILT"):
    setup(cmdclass={"bdist_wheel": ForLinux, "build_py": WithObjects}, distclass=NotPure, setup_requires=[COMPILER])
else:
    setup()
