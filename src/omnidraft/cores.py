"""How many threads pay: one for each fast core that this process may use, within its share of the processor's time."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path, PurePosixPath

from omnidraft import systems

CPUS = "sys/devices/system/cpu"
CGROUPS = "sys/fs/cgroup"
FAST_CORES = "sys/devices/cpu_core/cpus"  # Intel's processors of two kinds alone have it
# shares of the largest figure from which on a core counts as fast: small ones of ARM have a third of the capacity of
# the large at most, middle ones more than half; the frequencies of equal cores differ by up to a tenth, as some are
# allowed more than others, those of small ones by more than a quarter
CAPACITY, FREQUENCY = 0.5, 0.8
CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by which users give PyTorch a number of threads
RECORD = struct.Struct("<IIBB20xH")  # of Windows, up to its masks: relation, size, flags, class, count of masks
MASK = struct.Struct("<QH6x")  # logical processors of a group, and its number


def default_threads() -> int | None:
    """Threads to compute with; None where an environment variable gives PyTorch a number."""
    return None if any(os.environ.get(name) for name in CHOSEN) else threads_that_pay()


def threads_that_pay(root: Path = Path("/")) -> int:
    """The fast cores among those that this process may use, within the quota of its cgroup, at least 1."""
    cores = _cores_of_windows() or _cores_of_macos() or _cores_of_linux(root) or systems.logical_processors()
    return max(1, min(cores, int(min(_quotas(root), default=cores))))


# ---------------------------------------------------------------- Linux


def _cores_of_linux(root: Path) -> int:
    """Physical cores; logical ones where /sys does not tell them apart, 0 where nothing is known."""
    allowed = systems.affinity() or frozenset()
    fast = _fast(root, allowed)
    return len({_siblings(root, cpu) for cpu in fast})


def _fast(root: Path, allowed: AbstractSet[int]) -> AbstractSet[int]:
    """The logical processors of the fastest kind among those that are allowed."""
    if fast := allowed & _numbers(_text(root / FAST_CORES)):
        return fast
    for name, share in (("cpu_capacity", CAPACITY), ("cpufreq/cpuinfo_max_freq", FREQUENCY)):
        figures = {cpu: _text(root / CPUS / f"cpu{cpu}" / name) for cpu in allowed}
        if figures and all(text.isdigit() for text in figures.values()):
            least = share * max(map(int, figures.values()))
            return {cpu for cpu, text in figures.items() if int(text) >= least}
    return allowed


def _siblings(root: Path, cpu: int) -> AbstractSet[int]:
    """The logical processors of one core."""
    return frozenset(_numbers(_text(root / CPUS / f"cpu{cpu}" / "topology/thread_siblings_list")) or {cpu})


def _numbers(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8; of anything else none."""
    numbers: set[int] = set()
    with suppress(ValueError):
        for piece in text.split(","):
            first, _, last = piece.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _quotas(root: Path) -> Iterator[float]:
    """How many processors' time this process and its cgroups may take, each that has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0":
            yield from _limits(root / CGROUPS, group, ("cpu.max",))
        elif "cpu" in controllers.split(","):
            for folder in dict.fromkeys((controllers, "cpu")):
                yield from _limits(root / CGROUPS / folder, group, ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def _limits(base: Path, group: str, names: Iterable[str]) -> Iterator[float]:
    """Those of a cgroup and of all above it; a container may see its own in the place of the highest."""
    inner = PurePosixPath(*(step for step in PurePosixPath(group).parts if step not in ("/", "..")))
    for place in (inner, *inner.parents):
        words = " ".join(_text(base / place / name) for name in names).split()
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # else "max", or -1
            yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


# ---------------------------------------------------------------- macOS and Windows


def _cores_of_macos() -> int:
    """Those of the highest performance level, 0 on other systems."""
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        if value := systems.sysctl(name):
            return int.from_bytes(value, "little")
    return 0


def _cores_of_windows() -> int:
    """Those of the highest class, 0 on other systems; of several groups of processors all are allowed."""
    records = systems.windows_cores()
    if records is None:
        return 0
    cores = list(_records(records))
    allowed = systems.affinity()
    if allowed and len({group for _, masks in cores for group in masks}) == 1:
        bits = sum(1 << cpu for cpu in allowed)
        cores = [(kind, masks) for kind, masks in cores if any(mask & bits for mask in masks.values())]
    fastest = max((kind for kind, _ in cores), default=0)
    return sum(kind == fastest for kind, _ in cores)


def _records(records: bytes) -> Iterator[tuple[int, Mapping[int, int]]]:
    """The class of each core, and the mask of its logical processors in each group."""
    at = 0
    while at < len(records):
        _, size, _, kind, count = RECORD.unpack_from(records, at)
        masks = (MASK.unpack_from(records, at + RECORD.size + place * MASK.size) for place in range(count))
        yield kind, {group: mask for mask, group in masks}
        at += size
