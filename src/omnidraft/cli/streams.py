"""Standard streams of a command, wherever they lead: closed ones, pipes without a reader, full disks."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import IO, TYPE_CHECKING, TextIO, cast

from omnidraft import systems
from omnidraft.cli import flags
from omnidraft.models.memory import NO_THREAD, is_shortage, shortage

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NO_READER = 141  # 128 + SIGPIPE
FAILED = 1
NAMES = ("stdin", "stdout", "stderr")  # by their descriptors
FULL = {number for name in ("EDQUOT", "EFBIG", "EIO", "ENOSPC", "EROFS") if (number := getattr(errno, name, None))}


class Output:
    """What became of stdout; commands write to a stream that says so."""

    def __init__(self, *, closed: bool) -> None:
        self.closed = closed
        self.failure: OSError | None = None

    def ended(self, code: int) -> int:
        """The exit code of a command that ended with one, with a line on stderr where stdout did not take it all."""
        if self.failure is None:
            return code
        if not isinstance(self.failure, BrokenPipeError):
            why = self.failure.strerror
            flags.say(f"error: cannot write to stdout ({why}): free some space, or let it lead elsewhere")
            return FAILED
        if self.closed:
            flags.say("error: stdout is closed: let it lead somewhere, such as to a file")
        return NO_READER


@contextmanager
def usable() -> Iterator[Output]:
    """Inside, streams that were closed are there, and what stderr does not take is lost: no command fails of it."""
    closed = sys.stdout is None
    _open_closed()
    output = Output(closed=closed)
    with ExitStack() as stack:
        if (out := _above(sys.stdout, output)) is not None:
            stack.enter_context(redirect_stdout(out))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without the character must not end the answer
            if _is_of_code_page(sys.stdout):
                sys.stdout.reconfigure(encoding="utf-8")
        if (err := _above(sys.stderr, Output(closed=False))) is not None:
            stack.enter_context(redirect_stderr(err))
        yield output


def _is_of_code_page(stream: TextIO) -> bool:
    """True for a file or a pipe of Windows, whose own characters would leave out most of the world's."""
    return systems.on_windows() and not stream.isatty() and "PYTHONIOENCODING" not in os.environ


def failed(error: Exception, output: Output) -> int:
    """The exit code of a command that an error of its surroundings ended, with a line on stderr; raises others."""
    if isinstance(error, BrokenPipeError) or error is output.failure:
        return NO_READER  # `ended` knows better
    if is_shortage(error):
        flags.say(f"error: {shortage('the libraries and models', None)}")
    elif str(error) == NO_THREAD:  # containers have such limits
        flags.say(f"error: {NO_THREAD}: use fewer (--threads), or allow more (`ulimit -u`, --pids-limit of containers)")
    elif isinstance(error, OSError) and error.errno in FULL:
        flags.say(f"error: cannot write ({error}): free some space, or use another folder")
    else:
        raise error
    return FAILED


def _open_closed() -> None:
    """Open the streams that were closed at the start, by their own numbers, which the next files opened would take.

    stdin is empty then, what is written to stderr is lost, and stdout is a pipe without a reader.
    """
    for number in range(len(NAMES)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            if number == 1:
                read, write = os.pipe()
                os.close(read)
                os.dup2(write, number)
                os.close(write)
    for number, name in enumerate(NAMES):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def _above(stream: TextIO, output: Output) -> io.TextIOWrapper | None:
    """A stream in place of a standard one that notes a failure; None for what a program has put there itself."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # PYTHONUNBUFFERED leaves the raw one alone
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.RawIOBase):
        return None
    noting = _Noting(raw, output, loses=stream is sys.stderr)
    return io.TextIOWrapper(
        cast("IO[bytes]", noting if raw is buffer else io.BufferedWriter(noting)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Noting(io.RawIOBase):
    """A raw stream that notes when the one below fails, and loses what is written then; one that `loses`, at once."""

    def __init__(self, raw: io.RawIOBase, output: Output, *, loses: bool) -> None:
        self._raw, self._output, self._loses = raw, output, loses

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: ReadableBuffer, /) -> int:
        if self._output.failure is None or self._loses:
            try:
                if written := self._raw.write(data):
                    return written
            except OSError as error:
                gone = systems.is_without_reader(error)
                self._output.failure = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) if gone else error
                if not self._loses:
                    raise self._output.failure from None
        return memoryview(data).nbytes
