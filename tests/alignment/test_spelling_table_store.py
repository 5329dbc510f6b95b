"""The store of spelling tables on disk: whatever happens to a file or a folder, the table is right."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.alignment import spelling_table as spelling
from omnidraft.alignment.spelling_table import SpellingTable, default_cache_dir, load_table
from omnidraft.alignment.vocab import Vocab
from omnidraft.errors import ConfigError
from support.table_models import Greedy, table_of, vocabulary

DRAFTER = vocabulary(b"a", b"b", b"abc", None, eos=(3,))
TARGET = vocabulary(b"ab", b"a", None, b"abb", b"b", b"c", eos=(2,))
OTHER = vocabulary(b"ab", b"b")
BUILT = table_of(DRAFTER, TARGET)


def load(folder: Path | None, target: Vocab = TARGET) -> tuple[SpellingTable, list[str]]:
    warnings: list[str] = []
    table = load_table(DRAFTER, target, Greedy(DRAFTER), Greedy(target), folder, warnings.append)
    assert all("\n" not in warning for warning in warnings)
    return table, warnings


def contents(table: SpellingTable) -> dict[str, object]:
    return {name: value if isinstance(value, int | str) else value.tolist() for name, value in vars(table).items()}


def stored(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_table_is_stored_once_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"
    assert load(folder)[1] == []
    assert stored(folder).name == f"{BUILT.fingerprint}.safetensors"
    monkeypatch.delattr(spelling, "build_table")
    table, warnings = load(folder)
    assert warnings == []
    assert contents(table) == contents(BUILT)
    assert not any(getattr(table, name).flags.writeable for name in ("order", "flat", "long_flat"))


def test_without_a_folder_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, warnings = load(None)
    assert (contents(table), warnings) == (contents(BUILT), [])
    assert list(tmp_path.iterdir()) == []


def test_pairs_do_not_share_a_file(tmp_path: Path) -> None:
    assert load(tmp_path)[0].target_size == 6
    assert load(tmp_path, OTHER)[0].target_size == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert load(tmp_path)[0].target_size == 6


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("tables")
    load(folder)
    path = stored(folder)
    whole = bytearray(path.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    table, warnings = load(folder)
    assert contents(table) == contents(BUILT)
    assert len(warnings) == 1
    assert load(folder)[1] == []  # replaced by a good one


@given(keep=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30, deadline=None)
def test_a_truncated_file_is_noticed(tmp_path_factory: pytest.TempPathFactory, keep: float) -> None:
    folder = tmp_path_factory.mktemp("tables")
    load(folder)
    path = stored(folder)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    table, warnings = load(folder)
    assert contents(table) == contents(BUILT)
    assert len(warnings) == 1
    assert load(folder)[1] == []


def test_a_file_of_another_format_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(spelling, "FORMAT", "0")
        load(tmp_path)
    stored(tmp_path).rename(tmp_path / f"{BUILT.fingerprint}.safetensors")
    table, (warning,) = load(tmp_path)
    assert contents(table) == contents(BUILT)
    assert "its format is 0, not 2" in warning


def test_a_file_of_another_pair_is_built_anew(tmp_path: Path) -> None:
    load(tmp_path, OTHER)
    stored(tmp_path).rename(tmp_path / f"{BUILT.fingerprint}.safetensors")
    table, (warning,) = load(tmp_path)
    assert contents(table) == contents(BUILT)
    assert "another pair" in warning


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table, warnings = load(tmp_path / "file" / "tables")
    assert contents(table) == contents(BUILT)
    assert any("going on without" in warning for warning in warnings)


def test_a_folder_in_place_of_the_file_is_done_without(tmp_path: Path) -> None:
    (tmp_path / f"{BUILT.fingerprint}.safetensors").mkdir()
    table, warnings = load(tmp_path)
    assert contents(table) == contents(BUILT)
    assert len(warnings) == 2
    assert stored(tmp_path).is_dir()  # and no temporary file beside it


def test_a_full_disk_is_done_without_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, f"No space left on device {descriptor}")

    monkeypatch.setattr(os, "fsync", full)
    table, (warning,) = load(tmp_path)
    assert contents(table) == contents(BUILT)
    assert "No space left" in warning
    assert "going on without" in warning
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    old = stored(tmp_path)
    old.write_bytes(b"torn")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt(descriptor)

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path)
    assert stored(tmp_path).read_bytes() == b"torn"


RACE = """
import sys
from pathlib import Path
from alignment.test_spelling_table_store import BUILT, contents, load

for turn in range(100):
    table, warnings = load(Path(sys.argv[1]))
    assert warnings == [], warnings
    assert contents(table) == contents(BUILT)
    if turn % 3 == 0:
        Path(sys.argv[1], f"{BUILT.fingerprint}.safetensors").unlink(missing_ok=True)
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    racers = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [racer.communicate()[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], errors
    assert list(tmp_path.glob("*.tmp")) == []


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".local" / "share" / "omnidraft" / "tables"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_cache_dir() == tmp_path / ".local" / "share" / "omnidraft" / "tables"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_cache_dir() == tmp_path / "data" / "omnidraft" / "tables"
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own" / "tables"


def test_without_a_home_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="OMNIDRAFT_HOME"):
        default_cache_dir()
