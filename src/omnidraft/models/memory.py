"""Want of memory, said in one line with the bytes that are needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from omnidraft import systems
from omnidraft.errors import ModelError, OmniDraftError

FIX = "use a smaller model, or free some memory"
LIBRARIES = 2**29  # bytes that PyTorch and others take at the very least
SHORTER = "shorten the text, answer fewer at once, or use a smaller model"
# what the system's loader of libraries says, without a reason
NO_THREAD = "can't start new thread"
UNMAPPED = "failed to map segment from shared object"


def is_shortage(error: BaseException) -> bool:
    """True for what Python, numpy, PyTorch or the system raises where memory is short, and for what it is the cause of.

    False for an error of this package: it says itself what it is.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen and not isinstance(cause, OmniDraftError):
        if _is_short(cause):
            return True
        seen.append(cause)
        cause = cause.__cause__
    return False


def _is_short(error: BaseException) -> bool:
    kinds: tuple[type[BaseException], ...] = (MemoryError,)
    if (torch := sys.modules.get("torch")) is not None:
        kinds += (torch.cuda.OutOfMemoryError,)
    said = str(error)
    return (
        isinstance(error, kinds)
        or systems.is_out_of_memory(error)  # PyTorch has no kind of its own for CPUs, nor has the reader of safetensors
        or (isinstance(error, ImportError) and UNMAPPED in said)
        # a thread's stack takes megabytes, and extensions that do not look at what they allocated set no exception
        or ((said == NO_THREAD or isinstance(error, SystemError)) and systems.address_limit() is not None)
    )


def shortage(what: str, count: float | None, fix: str = FIX, *, least: bool = False) -> str:
    """The message that `what` take so many bytes, or `least` as many; None: more than this process has."""
    needed, free = None, None
    with suppress(Exception):  # where memory is short, this may fail as well
        needed = size(_held()) if count is None else size(count)
        free = size(free_bytes())
    if needed is None or free is None:
        return f"{what} take more memory than there is: {fix}"
    more = "more than " if least or count is None else ""
    return f"{what} take {more}{needed} of memory, and there are {free}: {fix}"


@contextmanager
def needing(count: float | None, what: str) -> Iterator[None]:
    """Turn want of memory inside into a ModelError with the message of `shortage`."""
    try:
        yield
    except Exception as error:
        if is_shortage(error):
            raise ModelError(shortage(what, count)) from error
        raise


def raise_for_pass(error: BaseException, tokens: int, token_bytes: Callable[[], float]) -> None:
    """Raise ModelError where a pass ended for want of memory; `tokens` are all in the texts that it read.

    A function, as it costs nothing while passes succeed.
    """
    if is_shortage(error):
        known = None
        with suppress(Exception):
            known = token_bytes() * tokens
        raise ModelError(shortage(f"passes over {tokens} tokens", known, SHORTER, least=True)) from error


def check_libraries() -> None:
    """Raise ModelError where the libraries themselves do not fit: some end the process then."""
    if (limit := systems.address_limit()) is None:
        return
    import psutil  # noqa: F401  (later there may be no memory to import it)

    if limit < LIBRARIES:
        least = size(LIBRARIES)
        raise ModelError(f"the libraries take more than {least} of memory, and `ulimit -v` is {size(limit)}: {FIX}")


def check_free(count: float, what: str) -> None:
    """Raise ModelError unless this many bytes are free."""
    if count > free_bytes():
        raise ModelError(shortage(what, count))


def free_bytes() -> int:
    """Bytes that this process may still take, by the system's memory and by its own limit (`ulimit -v`)."""
    import psutil

    free = int(psutil.virtual_memory().available)
    if (limit := systems.address_limit()) is None:
        return free
    return max(0, min(free, limit - int(psutil.Process().memory_info().vms)))


def _held() -> int:
    """Bytes of this process, by the measure that bounds it."""
    import psutil

    info = psutil.Process().memory_info()
    return int(info.rss if systems.address_limit() is None else info.vms)


class _NoThread(Executor):
    """Calls at once what is submitted."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001  for whoever asks for the result
            future.set_exception(error)
        return future


def thread_beside() -> Executor:
    """A thread to load something in; none where the address space has a bound, of which each takes 100 MB."""
    return ThreadPoolExecutor(1) if systems.address_limit() is None else _NoThread()


def size(count: float) -> str:
    """Bytes for a message."""
    if count >= 2**29:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count:.0f} bytes"
