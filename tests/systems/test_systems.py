"""What differs between systems, with stand-ins for what the others have and this one has not."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from omnidraft import storage, systems


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


# ------------------------------------------------------------ files


class OpenElsewhere:
    """Another program, which has a file open for so many tries to change it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
        self.tries, self.waited = tries, 0.0
        monkeypatch.setattr(time, "sleep", self._wait)
        for name in ("rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._refusing(getattr(os, name)))

    def _wait(self, seconds: float) -> None:
        self.waited += seconds

    def _refusing(self, real: Callable[..., None]) -> Callable[..., None]:
        def change(*arguments: Any) -> None:
            self.tries -= 1
            if self.tries >= 0:
                raise PermissionError(errno.EACCES, "The process cannot access the file")
            real(*arguments)

        return change


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("tries", [0, 1, 5])
def test_a_file_that_another_program_reads_is_changed_once_it_is_closed(
    tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    reader = OpenElsewhere(monkeypatch, tries)
    storage.replace_file(path, b"after")
    assert path.read_bytes() == b"after"
    assert (reader.waited > 0) == (tries > 0)
    reader.tries = tries
    storage.rename(path, tmp_path / "b")
    reader.tries = tries
    storage.remove(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("windows")
def test_one_that_is_never_closed_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    reader = OpenElsewhere(monkeypatch, len(systems.WAITS_S) + 1)
    with pytest.raises(PermissionError):
        storage.replace_file(path, b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["a"], "nothing else is left"
    assert path.read_bytes() == b"before"
    assert 1 < reader.waited < 2


def test_elsewhere_what_is_forbidden_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = OpenElsewhere(monkeypatch, 1)
    with pytest.raises(PermissionError):
        storage.replace_file(tmp_path / "a", b"")
    assert reader.waited == 0


@pytest.mark.parametrize("absent", [False, True])
def test_bytes_are_read_at_a_place(absent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if absent:
        monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "a").write_bytes(b"0123456789")
    content = bytearray(4)
    with FileIO(tmp_path / "a") as file:
        assert systems.read_at(file, memoryview(content), 3) == 4
        assert content == b"3456"
        assert systems.read_at(file, memoryview(content), 8) == 2
        assert systems.read_at(file, memoryview(content), 10) == 0


def test_two_threads_read_one_file_where_its_place_is_theirs_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "a").write_bytes(b"0123456789")

    class Slow(FileIO):
        def seek(self, place: int, whence: int = 0) -> int:
            at = super().seek(place, whence)
            time.sleep(0.01)  # the other thread comes in between
            return at

    def read(place: int) -> list[bytes]:
        content = bytearray(2)
        return [bytes(content) for _ in range(5) if systems.read_at(file, memoryview(content), place)]

    with Slow(tmp_path / "a") as file, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, (1, 6))) == [[b"12"] * 5, [b"67"] * 5]


@pytest.mark.parametrize("name", ["con", "NUL", "aux.gguf", "com1", "Lpt9.x.y"])
def test_no_file_is_called_like_a_device(name: str) -> None:
    assert systems.file_name(name) == f"_{name}"


@pytest.mark.parametrize("name", ["console", "com", "com10", "a.con", "qwen", "nul-1"])
def test_other_names_stay(name: str) -> None:
    assert systems.file_name(name) == name


# ------------------------------------------------------------ signals, streams and processes


def test_the_signals_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGBREAK", raising=False)
    assert systems.end_signals() == (signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    assert systems.end_signals() == (signal.SIGINT, signal.SIGTERM, 21)


def test_a_pipe_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = OSError(errno.EINVAL, "Invalid argument")
    assert systems.is_without_reader(BrokenPipeError())
    assert not systems.is_without_reader(wrong)
    monkeypatch.setattr(sys, "platform", "win32")
    assert systems.is_without_reader(wrong)
    assert not systems.is_without_reader(OSError(errno.ENOSPC, "No space left on device"))


def test_a_process_that_ctrl_c_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CREATE_NEW_PROCESS_GROUP", "IDLE_PRIORITY_CLASS"):
        monkeypatch.delattr(subprocess, name, raising=False)
    assert systems.background_options() == {"start_new_session": True}
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "IDLE_PRIORITY_CLASS", 0x40, raising=False)
    assert systems.background_options() == {"creationflags": 0x240}


def test_what_is_absent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nice", "register_at_fork"):
        monkeypatch.delattr(os, name, raising=False)
    systems.lower_priority()
    systems.after_fork(pytest.fail)


def test_a_process_says_that_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(os, "nice", said.append, raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **each: said.append(each), raising=False)
    systems.lower_priority()
    systems.after_fork(print)
    assert said == [systems.NICENESS, {"after_in_child": print}]


# ------------------------------------------------------------ memory


@pytest.fixture
def without_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)


@pytest.mark.usefixtures("without_resource")
def test_no_bound_of_memory_where_none_can_be_set() -> None:
    assert systems.address_limit() is None


def test_the_most_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    most = systems.peak_memory()
    assert 2**24 < most < 2**40
    assert most >= 0.9 * psutil.Process().memory_info().rss
    monkeypatch.setattr(sys, "platform", "darwin")
    assert systems.peak_memory() < most, "it tells them as they are"
    monkeypatch.setitem(sys.modules, "resource", None)
    info = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=123))
    monkeypatch.setattr(psutil, "Process", lambda: info)
    assert systems.peak_memory() == 123


def test_words_for_memory_that_is_used_up() -> None:
    paged = OSError(errno.EINVAL, "The paging file is too small for this operation to complete")
    assert not systems.is_out_of_memory(paged)
    setattr(paged, "winerror", systems.PAGING_FILE)  # noqa: B010  which Windows alone has
    assert systems.is_out_of_memory(paged)
    for words in (
        "[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes.",
        f"Error code 12 ({os.strerror(errno.ENOMEM)})",
    ):
        assert systems.is_out_of_memory(RuntimeError(words))
    assert not systems.is_out_of_memory(RuntimeError("a shape is wrong"))


def flags_of(address: int) -> list[str]:
    """What the system says of a mapping of this process."""
    inside, flags = False, ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            start, end = (int(each, 16) for each in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            flags = " ".join(words)
    return flags.split()


@pytest.mark.medium
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages")
def test_large_pages_are_asked_for_as_far_as_memory_fills_them() -> None:
    count = 2 * systems.LARGE + 5
    view = systems.own_pages(count)
    assert view is not None
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    assert (len(view), address % systems.LARGE_PAGE) == (count, 0)
    view[0] = view[-1] = 1
    assert "hg" in flags_of(address)
    assert "hg" in flags_of(address + 2 * systems.LARGE - 1)
    assert "hg" not in flags_of(address + count - 1)
    view = systems.own_pages(systems.LARGE - 1)
    assert view is not None
    view[0] = 1
    assert "hg" not in flags_of(ctypes.addressof(ctypes.c_char.from_buffer(view)))
    assert systems.own_pages(systems.OWN_PAGES - 1) is None


@pytest.mark.parametrize("fault", ["absent", "refused"])
def test_where_there_are_no_large_pages(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    if fault == "absent":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    else:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
        monkeypatch.setattr(mmap, "mmap", refuse)
    assert systems.own_pages(systems.LARGE) is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_memory_that_is_refused_large_pages_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1)  # no advice that there is
    view = systems.own_pages(systems.LARGE)
    assert view is not None
    assert not any(view[:: 2**12])


# ------------------------------------------------------------ processors


def test_where_a_process_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3}, raising=False)
    assert systems.affinity() == frozenset({1, 3})
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_affinity=lambda: [0, 2]))
    assert systems.affinity() == frozenset({0, 2})
    monkeypatch.setattr(psutil, "Process", SimpleNamespace)
    assert systems.affinity() is None


def answers(values: dict[bytes, bytes]) -> Callable[..., int]:
    """A stand-in for `sysctlbyname`."""

    def ask(name: bytes, value: Any, size: Any, _new: None, _length: int) -> int:
        if name not in values:
            return -1
        size._obj.value = len(values[name])  # noqa: SLF001
        if value is not None:
            value[: len(values[name])] = values[name]
        return 0

    return ask


def test_what_the_kernel_of_macos_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(sysctlbyname=answers({b"a": b"\x06\0\0\0", b"machdep.cpu.brand_string": b"Apple M4\0"}))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(systems, "CPUINFO", Path("nowhere"))
    assert systems.sysctl("a") == b"\x06\0\0\0"
    assert systems.sysctl("b") is None
    assert systems.processor_name() == "Apple M4"


@pytest.mark.parametrize("error", [TypeError, OSError, AttributeError])
def test_what_other_kernels_tell(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert systems.sysctl("a") is None


def test_what_windows_tells_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(kind: int, records: Any, size: Any) -> int:
        assert kind == 0, "cores"
        size._obj.value = 5  # noqa: SLF001
        if records is None:
            return 0
        records[:5] = b"cores"
        return 1

    assert systems.windows_cores() is None
    kernel = SimpleNamespace(GetLogicalProcessorInformationEx=ask)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert systems.windows_cores() == b"cores"
    monkeypatch.setattr(kernel, "GetLogicalProcessorInformationEx", lambda *_: 0)
    assert systems.windows_cores() is None


@pytest.fixture
def unnamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither /proc nor a kernel that tells the processor's name; where the first would be."""
    monkeypatch.setattr(systems, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(systems, "sysctl", lambda _: None)
    return tmp_path / "cpuinfo"


def test_the_name_of_the_processor(unnamed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert systems.processor_name() == platform.machine()
    unnamed.write_text("processor : 0\nFeatures : asimd\n", encoding="utf-8")  # of ARM, nameless
    assert systems.processor_name() == platform.machine()
    unnamed.write_text("processor : 0\nmodel name\t: AMD Ryzen 9\nmodel name : other\n", encoding="utf-8")
    assert systems.processor_name() == "AMD Ryzen 9"


@pytest.mark.usefixtures("unnamed")
def test_its_name_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(root: int, path: str) -> Iterator[str]:
        assert root == 2
        yield path

    values = {systems.REGISTRY: {"ProcessorNameString": ("Intel(R) Core(TM) i9 ", 1)}}
    registry = SimpleNamespace(HKEY_LOCAL_MACHINE=2, OpenKey=opened, QueryValueEx=lambda path, name: values[path][name])
    monkeypatch.setitem(sys.modules, "winreg", registry)
    assert systems.processor_name() == "Intel(R) Core(TM) i9"


def test_this_system() -> None:
    """Whatever it is, each question has an answer."""
    assert systems.processor_name()
    assert systems.logical_processors() >= 1
    assert {signal.SIGINT, signal.SIGTERM} <= set(systems.end_signals())
