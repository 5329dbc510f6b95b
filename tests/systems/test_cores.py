"""The threads that pay, by what machines tell of themselves: trees of files, and answers of macOS and Windows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch

from omnidraft import cores, systems
from omnidraft.cli import flags

CPUS = "sys/devices/system/cpu"
Files = dict[str, str]


def machine(siblings: Iterable[str], name: str = "", figures: Iterable[int] = ()) -> Files:
    """Files of logical processors: those of each one's core, and a figure of each."""
    files = {f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": text for cpu, text in enumerate(siblings)}
    return files | {f"{CPUS}/cpu{cpu}/{name}": str(figure) for cpu, figure in enumerate(figures)}


# 8 cores with two threads each, two of which may be faster, and 16 without
HYBRID = machine(
    [*(f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}" for cpu in range(16)), *map(str, range(16, 32))],
    "cpufreq/cpuinfo_max_freq",
    [5_700_000] * 12 + [6_000_000] * 4 + [4_400_000] * 16,
)
KINDS = {"sys/devices/cpu_core/cpus": "0-15", "sys/devices/cpu_atom/cpus": "16-31"}
RYZEN = machine(
    [f"{cpu % 16},{cpu % 16 + 16}" for cpu in range(32)],
    "cpufreq/cpuinfo_max_freq",
    ([5_881_000] * 8 + [5_482_000] * 8) * 2,
)
BOARD = machine(map(str, range(8)), "cpu_capacity", [397] * 4 + [1024] * 4)
PHONE = machine(map(str, range(8)), "cpu_capacity", [325] * 4 + [871] * 3 + [1024])
PI = machine(map(str, range(4)), "cpufreq/cpuinfo_max_freq", [2_400_000] * 4)
PAIRS = machine([f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)])


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The threads that pay on a machine with these files, of whose logical processors some are allowed."""
    monkeypatch.setattr(systems, "sysctl", lambda _: None)
    monkeypatch.setattr(systems, "windows_cores", lambda: None)

    def count(files: Mapping[str, str], allowed: Iterable[int]) -> int:
        monkeypatch.setattr(systems, "affinity", lambda: frozenset(allowed))
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
        return cores.threads_that_pay(tmp_path)

    return count


@pytest.mark.parametrize(
    ("files", "allowed", "expected"),
    [
        (HYBRID | KINDS, range(32), 8),
        (HYBRID, range(32), 8),  # an older kernel
        (HYBRID | KINDS, range(16, 24), 8),  # of the slow kind alone
        (HYBRID, range(16, 24), 8),
        (HYBRID | KINDS, [*range(4), *range(16, 24)], 2),
        (RYZEN, range(32), 16),
        (BOARD, range(8), 4),
        (PHONE, range(8), 4),
        (PI, range(4), 4),
        (PAIRS, [0, 4, 5], 2),  # two of three are one core's
        (PAIRS, [3], 1),
        (PAIRS | {f"{CPUS}/cpu0/cpu_capacity": "1024"}, range(8), 4),  # of one processor alone
        (PAIRS | {f"{CPUS}/cpu0/topology/thread_siblings_list": "zero"}, [0, 1], 2),
        ({}, range(6), 6),  # nothing in /sys
    ],
)
def test_one_thread_for_each_fast_core_that_is_allowed(
    files: Files, allowed: Iterable[int], expected: int, threads: Callable[..., int]
) -> None:
    assert threads(files, allowed) == expected


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
IN_V2, IN_V1 = {"proc/self/cgroup": "0::/a/b"}, {"proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/a/b\n0::/c"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "250000 100000"}, 2),  # a container
        (IN_V2 | {f"{V2}/a/b/cpu.max": "max 100000", f"{V2}/a/cpu.max": "150000 50000"}, 3),
        (IN_V2 | {f"{V2}/a/b/cpu.max": "100000 100000", f"{V2}/a/cpu.max": "300000 100000"}, 1),
        (IN_V2 | {f"{V2}/a/b/cpu.max": "50000 100000"}, 1),  # half a processor
        (IN_V2 | {f"{V2}/a/b/cpu.max": "6400000 100000"}, 4),
        (IN_V2 | {f"{V2}/a/b/cpu.max": "max 100000"}, 4),
        (IN_V2 | {f"{V2}/a/b/cpu.max": "1"}, 4),
        ({"proc/self/cgroup": "0::/../a", f"{V2}/a/cpu.max": "200000 100000"}, 2),
        (IN_V1 | {f"{V1}/a/b/cpu.cfs_quota_us": "250000", f"{V1}/a/b/cpu.cfs_period_us": "100000"}, 2),
        (IN_V1 | {f"{V1}/cpu.cfs_quota_us": "350000", f"{V1}/cpu.cfs_period_us": "100000"}, 3),  # a container
        (IN_V1 | {f"{V2}/cpu/a/cpu.cfs_quota_us": "100000", f"{V2}/cpu/a/cpu.cfs_period_us": "100000"}, 1),
        (IN_V1 | {f"{V1}/a/b/cpu.cfs_quota_us": "-1", f"{V1}/a/b/cpu.cfs_period_us": "100000"}, 4),
        (IN_V1, 4),
    ],
)
def test_no_more_than_the_quota_of_the_cgroup(files: Files, expected: int, threads: Callable[..., int]) -> None:
    assert threads(PAIRS | files, range(8)) == expected


def test_those_of_the_fast_kind_of_a_mac(threads: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"hw.perflevel0.physicalcpu": 6, "hw.physicalcpu": 8}
    monkeypatch.setattr(systems, "sysctl", lambda name: told[name].to_bytes(4, "little") if name in told else None)
    assert threads({}, ()) == 6
    told.pop("hw.perflevel0.physicalcpu")  # Intel's
    assert threads({}, ()) == 8


def record(kind: int, *masks: tuple[int, int]) -> bytes:
    """What Windows tells of a core: its class, and its logical processors by their group."""
    size = 32 + 16 * len(masks)
    groups = b"".join(struct.pack("<QH6x", mask, group) for group, mask in masks)
    return struct.pack("<IIBB20xH", 0, size, 1, kind, len(masks)) + groups


@pytest.mark.parametrize(
    ("records", "allowed", "expected"),
    [
        ([*(record(1, (0, 3 << 2 * core)) for core in range(4)), record(0, (0, 1 << 8))], range(9), 4),
        ([*(record(1, (0, 3 << 2 * core)) for core in range(4)), record(0, (0, 1 << 8))], [0, 1, 2, 8], 2),
        ([*(record(1, (0, 3 << 2 * core)) for core in range(4)), record(0, (0, 1 << 8))], [8], 1),
        ([record(0, (0, 1 << core)) for core in range(6)], range(6), 6),
        ([record(0, (core // 64, 1 << core % 64)) for core in range(96)], range(32), 96),  # processes have both groups
    ],
)
def test_those_of_the_fast_kind_of_windows(
    records: list[bytes],
    allowed: Iterable[int],
    expected: int,
    threads: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(systems, "windows_cores", lambda: b"".join(records))
    assert threads({}, allowed) == expected


def test_a_system_that_says_nothing_of_its_cores(threads: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "logical_processors", lambda: 12)
    assert threads({}, ()) == 12


@pytest.fixture
def set_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that PyTorch is told."""
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(cores, "threads_that_pay", lambda: 3)
    for name in cores.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    return told


def test_a_command_takes_those_that_pay_or_that_it_is_told(set_threads: list[int]) -> None:
    flags.prepare_libraries()
    flags.prepare_libraries(5)
    assert set_threads == [3, 5]


@pytest.mark.parametrize("name", cores.CHOSEN)
def test_what_the_environment_gives_pytorch_stays(
    name: str, set_threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "7")
    flags.prepare_libraries()
    assert set_threads == []
    flags.prepare_libraries(5)
    assert set_threads == [5]
