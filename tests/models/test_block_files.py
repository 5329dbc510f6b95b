"""Blocks on disk: there whole or not at all, found by later runs, and never the reason of a failure."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from omnidraft.errors import ConfigError
from omnidraft.models import block_files
from omnidraft.models.block_files import HEAD, BlockFiles, Header
from omnidraft.models.prefix_cache import PrefixCache, circle_of

ROOM = 10**8


def header(number: int, ids: int = 256) -> Header:
    return Header(bytes([number]) * 32, bytes([number + 1]) * 32, tuple(range(number, number + ids)))


def data(number: int, size: int = 5000) -> bytes:
    return random.Random(number).randbytes(size)


def opened(folder: Path, limit: int = ROOM, warn: Any = pytest.fail) -> BlockFiles:
    return BlockFiles(folder, limit, warn)


def written(folder: Path, *numbers: int, limit: int = ROOM) -> None:
    files = opened(folder, limit)
    for number in numbers:
        files.put(header(number), memoryview(data(number)))
    files.close()


def test_a_later_run_finds_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "blocks"
    written(folder, 1, 2, 3)
    files = opened(folder)
    assert sorted(files.headers()) == [header(number) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        assert header(number).name in files
        assert files.get(header(number)) == data(number)
    assert files.get(header(4)) is None
    assert files.get(header(1)._replace(ids=header(2).ids)) is None, "another text"
    files.close()


@pytest.mark.medium
def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    written(tmp_path, 1)
    (path,) = tmp_path.glob("*.kv")
    whole = path.read_bytes()
    rng = random.Random(1)
    for at in [*range(HEAD.size), *rng.sample(range(HEAD.size, len(whole)), 40)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert opened(tmp_path).get(header(1)) is None, at
    for length in (0, 5, HEAD.size, HEAD.size + 10, len(whole) - 1):
        path.write_bytes(whole[:length])
        files = opened(tmp_path)
        assert files.headers() == []
        assert files.get(header(1)) is None
    path.write_bytes(whole)
    assert opened(tmp_path).get(header(1)) == data(1)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    others = {"notes.txt": b"x", "zz.kv": b"no name", f"{bytes(32).hex()}.kv": b"OMNIKV0\n" + bytes(4000)}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / f".{bytes(32).hex()}.kv.77.tmp").write_bytes(b"begun now")
    old = tmp_path / f".{bytes(31).hex()}00.kv.77.tmp"
    old.write_bytes(b"begun long ago")
    os.utime(old, (1, 1))
    written(tmp_path, 1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in others} == others
    assert not old.exists()
    files = opened(tmp_path)
    assert files.headers() == [header(1)]
    files.close()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    for number in (1, 2, 3):
        os.utime(tmp_path / f"{header(number).name.hex()}.kv", (number, number))
    files = opened(tmp_path, limit=20_000)
    assert [each.name[0] for each in files.headers()] == [1, 2, 3]
    assert files.get(header(1)) == data(1), "used again"
    files.put(header(4), memoryview(data(4)))
    files.close()
    assert {path.stem[:2] for path in tmp_path.glob("*.kv")} == {"01", "03", "04"}


def test_blocks_of_another_version_make_room(tmp_path: Path) -> None:
    for number in range(9, 15):
        (tmp_path / f"{bytes([number]).hex() * 32}.kv").write_bytes(b"OMNIKV0\n" + bytes(4000))
    written(tmp_path, 1, 2, limit=15_000)
    assert {header(1).name.hex(), header(2).name.hex()} <= {path.stem for path in tmp_path.glob("*.kv")}
    assert sum(path.stat().st_size for path in tmp_path.glob("*.kv")) <= 15_000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_one_warning(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1)
    said: list[str] = []
    files = opened(tmp_path, warn=said.append)

    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(block_files.BlockFiles, "_write_file", failing)
    for each in (2, 3, 4):
        files.put(header(each), memoryview(data(each)))
    files.close()
    assert len(said) == 1
    assert os.strerror(number) in said[0]
    assert files.get(header(1)) == data(1), "what is there is still read"


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="choose another --cache-dir"):
        opened(tmp_path / "file")


def test_two_servers_in_one_folder_lose_nothing(tmp_path: Path) -> None:
    one, other = opened(tmp_path, 30_000), opened(tmp_path, 30_000)
    for number in range(1, 9):
        for files in (one, other):
            files.put(header(number), memoryview(data(number)))
    one.close()
    other.close()
    for files in (one, other, opened(tmp_path)):
        found = [files.get(header(number)) for number in range(1, 9)]
        assert all(each in (None, data(number)) for number, each in enumerate(found, 1))
        assert sum(each is not None for each in found) >= 3
    assert not list(tmp_path.glob("*.tmp"))


WRITER = """
import sys, time
from pathlib import Path
from omnidraft.models.block_files import BlockFiles, Header
import random
files = BlockFiles(Path(sys.argv[1]), 10**8, print)
print("ready", flush=True)
number = 0
while True:
    number = number % 200 + 1
    name = bytes([number]) * 32
    files._sizes.pop(name, None)
    files.put(Header(name, name, (number,) * 256), memoryview(random.Random(number).randbytes(10**6)))
    while files._waiting_bytes > 5 * 10**6:
        time.sleep(0.001)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    rng, found = random.Random(3), 0
    for _ in range(25):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            threading.Event().wait(rng.random() * 0.2)
            process.kill()
        files = opened(tmp_path)
        for each in files.headers():
            assert files.get(each) == random.Random(each.ids[0]).randbytes(10**6)
            found += 1
        files.close()
    assert found > 25


# ------------------------------------------------------------ with what is kept in memory


def test_what_is_kept_is_found_after_a_restart_and_never_anothers(tmp_path: Path) -> None:
    from models.test_prefix_cache import SIZE, Text, found, text

    ids, circle, other = text(1, 5 * SIZE + 20), circle_of(b"model", b"one"), circle_of(b"model", b"two")
    for turn in range(3):
        files = opened(tmp_path)
        kept = PrefixCache(10**6, files)
        length = 5 * SIZE + 20 * (turn > 0)
        assert found(kept, ids, circle) == (length if turn else 0)
        assert found(kept, ids, other) == 0
        sequence: Any = Text(list(ids), lasting=True)
        kept.add(circle, ids, sequence, end=True)
        kept.close()
    files = opened(tmp_path)
    kept = PrefixCache(100, files)
    assert found(kept, ids, circle) == len(ids), "also where memory holds but one of them"
    assert kept.nbytes <= 100
    names = sorted(tmp_path.glob("*.kv"), key=lambda path: path.stat().st_size)
    names[0].write_bytes(b"damaged")
    kept = PrefixCache(10**6, opened(tmp_path))
    assert found(kept, ids, circle) < len(ids)
    kept.close()
