"""What differs between Linux, macOS and Windows: names that not all of them have are used here alone."""

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
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
REGISTRY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"  # of Windows
WAITS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # between tries to change a file that another program has open
PAGING_FILE = 1455  # Windows' error where memory and its file are used up
CORES = 0  # what Windows is asked of: RelationProcessorCore
NICENESS = 19
LARGE_PAGE = 2**21  # bytes of a page of memory on x86-64, and on most of ARM
LARGE = 2 * LARGE_PAGE  # bytes from which on memory is in such
OWN_PAGES = 2**17  # bytes from which on it is no piece of the heap
# names of files that Windows takes for devices, whatever their endings
DEVICES = {"AUX", "CON", "NUL", "PRN", *(f"{kind}{digit}" for kind in ("COM", "LPT") for digit in "123456789")}
_PLACES = Lock()  # of files that are read by threads


def on_windows() -> bool:
    """True on Windows."""
    return sys.platform == "win32"


# ---------------------------------------------------------------- files


def patiently(change: Callable[..., object], *arguments: object) -> None:
    """Call what replaces or removes a file; on Windows again where another program has it open, for a second."""
    for wait in WAITS_S if on_windows() else ():
        try:
            change(*arguments)
        except PermissionError:
            time.sleep(wait)
        else:
            return
    change(*arguments)


def read_at(file: FileIO, view: memoryview, place: int) -> int:
    """Read bytes of an open file into `view`; return how many.

    The place of the file, which a fork shares, is left alone where processes are forked.
    """
    if (preadv := getattr(os, "preadv", None)) is not None:
        count: int = preadv(file.fileno(), [view], place)
        return count
    with _PLACES:  # else another thread might move it in between
        file.seek(place)
        return file.readinto(view)


# ---------------------------------------------------------------- signals, streams and processes


def end_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a server to end; on Windows also that of a console that is closed, and of Ctrl-Break."""
    return tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))


def is_without_reader(error: OSError) -> bool:
    """True for what writing to a pipe raises once its reader is gone; Windows has several numbers for it."""
    return isinstance(error, BrokenPipeError) or (on_windows() and error.errno == errno.EINVAL)


def background_options() -> dict[str, Any]:
    """Options of `subprocess.Popen` for a process that Ctrl-C does not reach, on Windows also of low priority."""
    flags = [getattr(subprocess, name, 0) for name in ("CREATE_NEW_PROCESS_GROUP", "IDLE_PRIORITY_CLASS")]
    return {"creationflags": sum(flags)} if any(flags) else {"start_new_session": True}


def lower_priority() -> None:
    """Let other processes go first, where a process says that of itself."""
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)


def after_fork(run: Callable[[], None]) -> None:
    """Call a function in every process that this one forks from now on, where processes are forked."""
    if (register := getattr(os, "register_at_fork", None)) is not None:
        register(after_in_child=run)


# ---------------------------------------------------------------- memory


def address_limit() -> int | None:
    """The bound of this process's address space (`ulimit -v`); None where it has none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft: int = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def peak_memory() -> int:
    """The most bytes that this process ever had in memory."""
    try:
        import resource
    except ImportError:
        import psutil

        peak: int = psutil.Process().memory_info().peak_wset
        return peak
    most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error of the system, or of a library that repeats it, that memory is used up."""
    said = str(error)
    # Windows' words are none of C's, and PyTorch has its own there
    return (
        os.strerror(errno.ENOMEM) in said
        or "DefaultCPUAllocator: not enough memory" in said
        or getattr(error, "winerror", None) == PAGING_FILE
    )


def own_pages(count: int) -> memoryview | None:
    """Empty memory in pages of its own, of 2 MB as far as it fills such; None for few bytes, or where not on Linux.

    Addresses in large pages are found faster.  It is no piece of the heap, where neighbors would take such pages apart,
    and of which the system gets nothing back while other pieces are in use.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or count < OWN_PAGES:
        return None
    large = count >= LARGE
    try:
        block = mmap.mmap(-1, count + LARGE_PAGE * large, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # who asks for memory in the usual way says how much there is
        return None
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(block)) % LARGE_PAGE if large else 0
    with suppress(OSError):  # where there are none, pages are as they were
        if large:
            block.madvise(advice, begin, count // LARGE_PAGE * LARGE_PAGE)  # the rest would fill another with nothing
    return memoryview(block)[begin : begin + count]


# ---------------------------------------------------------------- processors


def affinity() -> frozenset[int] | None:
    """The numbers of the logical processors on which this process may run; None where the system does not say."""
    if (ask := getattr(os, "sched_getaffinity", None)) is not None:
        return frozenset(ask(0))
    import psutil

    with suppress(AttributeError, psutil.Error, OSError):  # macOS
        return frozenset(psutil.Process().cpu_affinity())
    return None


def logical_processors() -> int:
    """How many logical processors the machine has, at least 1."""
    return os.cpu_count() or 1


def sysctl(name: str) -> bytes | None:
    """A value of the kernel of macOS; None where there is none of that name."""
    size = ctypes.c_size_t(0)
    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, TypeError, OSError):  # Linux, and Windows, whose libraries have names
        return None
    if ask(name.encode(), None, ctypes.byref(size), None, 0):
        return None
    value = ctypes.create_string_buffer(size.value)
    return None if ask(name.encode(), value, ctypes.byref(size), None, 0) else value.raw[: size.value]


def windows_cores() -> bytes | None:
    """What Windows tells of its cores, records of GetLogicalProcessorInformationEx; None on other systems."""
    library: Any = getattr(ctypes, "windll", None)
    if library is None:
        return None
    ask, size = library.kernel32.GetLogicalProcessorInformationEx, ctypes.c_uint32(0)
    ask(CORES, None, ctypes.byref(size))
    records = ctypes.create_string_buffer(size.value)
    return records.raw[: size.value] if size.value and ask(CORES, records, ctypes.byref(size)) else None


def processor_name() -> str:
    """The name under which this processor is sold, else that of its kind."""
    with suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if (name := sysctl("machdep.cpu.brand_string")) is not None:
        return name.rstrip(b"\0").decode(errors="replace")
    with suppress(ImportError, OSError):
        import winreg

        registry: Any = winreg
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, REGISTRY) as key:
            return str(registry.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    return platform.processor() or platform.machine()


def file_name(name: str) -> str:
    """A name that every system takes for a file's: those of Windows' devices begin with a line."""
    return f"_{name}" if name.partition(".")[0].upper() in DEVICES else name
