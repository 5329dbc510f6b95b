"""Loading `step.c` on systems that tests do not run on, with stand-ins for what is different there."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnidraft.models.native import prebuilt, step
from support.compilers import looked_for_anew, needs_the_8_bit_step


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Where all tests find it, and not in the home of the first."""
    needs_the_8_bit_step()


@pytest.fixture
def temporary(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """A folder for temporary ones, where a file of a library that runs can be neither deleted nor replaced."""
    library, running = Path(step.step_functions()._name), set()  # noqa: SLF001
    real, unlink, replace = ctypes.CDLL, os.unlink, os.replace

    def loaded(path: str) -> ctypes.CDLL:
        running.add(path)
        return real(path)

    def refused(path: object, folder: int | None = None) -> None:
        place = Path() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
        if str(place / str(path)) in running:
            raise PermissionError(13, "Access is denied")

    def unlinked(path: str, *, dir_fd: int | None = None) -> None:
        refused(path, dir_fd)
        unlink(path, dir_fd=dir_fd)

    def replaced(source: Path, to: Path) -> None:
        refused(to)
        replace(source, to)

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    monkeypatch.setattr(os, "unlink", unlinked)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    monkeypatch.setattr(step, "_compile", lambda made: shutil.copy(library, made))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    looked_for_anew(monkeypatch)
    return tmp_path / "temporary"


def loaded_from() -> Path:
    return Path(step.step_functions()._name)  # noqa: SLF001


def test_a_library_is_loaded_from_where_it_stays(temporary: Path, home: Path) -> None:
    assert loaded_from().parent == home / "cache" / "native"
    assert not list(temporary.iterdir())


def test_a_library_that_cannot_be_kept_stays_in_its_temporary_folder(temporary: Path, home: Path) -> None:
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "native").write_text("no folder", encoding="utf-8")
    assert temporary in loaded_from().parents


def test_a_library_that_another_process_has_made_and_runs_is_taken(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = step._compile  # noqa: SLF001

    def at_once(made: Path) -> None:
        compiled(made)
        theirs = home / "cache" / "native" / step._name_of(made.stem, made)  # noqa: SLF001
        compiled(theirs)
        ctypes.CDLL(str(theirs))

    monkeypatch.setattr(step, "_compile", at_once)
    assert loaded_from().parent == home / "cache" / "native"
    assert [path.suffix for path in loaded_from().parent.iterdir()] == [".so"], "and nothing is left of ours"
    assert not list(temporary.iterdir())


def test_a_library_that_was_cut_is_never_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would load, and the process would be killed at the first page that is not there."""
    library, run = step.step_functions(), list[bytes]()

    def loaded(path: str) -> ctypes.CDLL:
        run.append(Path(path).read_bytes())
        return library

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    monkeypatch.setattr(step, "_compile", lambda made: shutil.copy(library._name, made))  # noqa: SLF001
    looked_for_anew(monkeypatch)
    assert step.unsupported_reason() is None
    (kept,) = (home / "cache" / "native").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    looked_for_anew(monkeypatch)
    assert step.unsupported_reason() is None
    assert run[-1] == kept.read_bytes() == whole


@pytest.mark.parametrize(
    ("system", "suffix", "absent"), [("darwin", "dylib", {"-lm"}), ("win32", "dll", {"-fPIC", "-pthread", "-lm"})]
)
def test_each_system_has_its_names_and_options(
    system: str, suffix: str, absent: set[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        Path(command[command.index("-o") + 1]).touch()
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(step, "SYSTEM", prebuilt.SYSTEMS[system])
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    monkeypatch.setattr(step, "find_spec", lambda name: find_spec("json") if name == "ziglang" else None)
    for name in ("cc", "gcc", "clang"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    looked_for_anew(monkeypatch)
    assert "compiled code cannot be run" in str(step.unsupported_reason()), "the file is empty"
    (kept,) = (home / "cache" / "native").iterdir()
    assert kept.suffix == f".{suffix}"
    assert not absent & {word for command in commands for word in command}
    assert "-shared" in commands[-1]
    if system == "win32":
        assert ["-c" in command for command in commands] == [True, False], "compiled, and linked"
        assert commands[0][:5] == [sys.executable, "-P", "-m", "ziglang", "cc"], "no other compiler will do"
    else:
        assert [command[0] for command in commands] == [str(tmp_path / "cc")]


def test_a_compilers_path_keeps_its_backslashes_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "SYSTEM", prebuilt.SYSTEMS["win32"])
    for given, words in (
        (r'"C:\Program Files\zig\zig.exe" cc', [r"C:\Program Files\zig\zig.exe", "cc"]),
        (r"C:\zig\zig.exe cc", [r"C:\zig\zig.exe", "cc"]),
    ):
        monkeypatch.setenv("CC", given)
        assert step._compiler() == words  # noqa: SLF001
