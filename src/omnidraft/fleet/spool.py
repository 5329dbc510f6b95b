"""Answers on their way to the trainer: a folder of segments, each written once and whole, read and removed by one.

A segment holds token ids and counts, no text.  It is written under another name and renamed; no name comes twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omnidraft.errors import ConfigError
from omnidraft.storage import make_folder, replace_file

SEGMENT_ANSWERS = 64  # after which a segment is written
SEGMENT_S = 10.0  # from its first answer on, likewise
PATIENCE_S = 10.0  # with another thread that writes
MOST_BYTES = 2**26  # of a replica's segments that nobody has read: the oldest go
SUFFIX = ".jsonl"
_log = logging.getLogger("omnidraft")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer as a replica gave it, in target tokens; `drafted` proposals were verified, `accepted` of them kept."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    drafted: int
    accepted: int
    version: int  # of the weights that drafted

    @classmethod
    def read(cls, line: bytes) -> Answer | None:
        """The answer in a line of a segment; None where there is none."""
        try:
            answer = cls(**json.loads(line))
        except (TypeError, ValueError, RecursionError):
            return None
        lists: tuple[object, ...] = (answer.prompt, answer.tokens)
        counts: tuple[object, ...] = (answer.drafted, answer.accepted, answer.version)
        sound = all(isinstance(each, list) for each in lists)
        return answer if sound and all(isinstance(each, int) and each >= 0 for each in counts) else None


class Spool:
    """Writes the answers of one replica; what cannot be written is dropped with a warning, as serving goes on.

    One thread may add answers while another writes.
    """

    def __init__(
        self,
        folder: Path,
        replica: str,
        *,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        most_bytes: int = MOST_BYTES,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        if not re.fullmatch(r"\w[\w.-]{0,63}", replica):
            raise ConfigError(
                f"replica is {replica!r}: use letters, digits, dots and hyphens, the first a letter or a digit"
            )
        make_folder(folder)
        self._folder, self._replica, self._clock, self._warn = folder, replica, clock, warn
        self._most_bytes, self._share, self._offered = most_bytes, share, 0
        self._answers, self._waiting = deque[bytes](), 0  # lines, and their bytes
        self._since = 0.0  # when the first of them came
        self._failed = False
        self._lock, self._writing = threading.Lock(), threading.Lock()  # of the answers that wait, and of files

    def add(self, answer: Answer) -> None:
        """Keep an answer for the segment to come, or leave it out where only a share of them is wanted."""
        self._offered += 1
        if int(self._offered * self._share) == int((self._offered - 1) * self._share):
            return
        line = json.dumps(asdict(answer), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._since = self._since if self._answers else self._clock()
            self._answers.append(line)
            self._waiting += len(line)
            while self._waiting > self._most_bytes:  # a file system that hangs; the oldest go, as of files
                self._waiting -= len(self._answers.popleft())

    def write(self, *, now: bool = False) -> None:
        """Write segments where they are full or old enough, or in any case `now`; another thread's come first."""
        if self._writing.acquire(timeout=PATIENCE_S):
            try:
                while self._write_one(now=now):
                    pass
            finally:
                self._writing.release()

    def _write_one(self, *, now: bool) -> bool:
        """Write a segment where one is due; whether it was."""
        with self._lock:
            due = len(self._answers) >= SEGMENT_ANSWERS or self._clock() - self._since >= SEGMENT_S
            if not self._answers or not (due or now):
                return False
            lines = [self._answers.popleft() for _ in range(min(SEGMENT_ANSWERS, len(self._answers)))]
            self._waiting -= sum(map(len, lines))
        name = f"{self._replica}-{time.time_ns():020d}-{secrets.token_hex(4)}{SUFFIX}"
        try:
            replace_file(self._folder / name, b"".join(lines))
            self._trim()
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._warn(f"answers are not spooled to {self._folder}: {error.strerror}; they are dropped")
            self._failed = True
        return True

    def _trim(self) -> None:
        """Remove this replica's oldest segments beyond the bound: nobody reads them."""
        own = [path for path in segments(self._folder) if path.name.rsplit("-", 2)[0] == self._replica]
        total = 0
        for path in reversed(own):
            with contextlib.suppress(FileNotFoundError):  # the trainer has read it
                total += path.stat().st_size
                if total > self._most_bytes and path != own[-1]:
                    path.unlink()


def segments(folder: Path) -> list[Path]:
    """The segments of a folder, the oldest first."""
    found = (path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))
    return sorted(found, key=lambda path: path.name.rsplit("-", 2)[-2:])


def answers(segment: Path) -> Iterator[Answer]:
    """The answers of a segment; a damaged line is skipped, and a segment that is gone has none."""
    try:
        found = segment.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:  # of somebody else
            return
        lines = segment.read_bytes().splitlines()
    except OSError:  # its replica has removed it, or it cannot be read
        return
    for line in lines:
        answer = Answer.read(line)
        if answer is not None:
            yield answer
