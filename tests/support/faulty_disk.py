"""Stand-ins for `os` in `omnidraft.storage`: a process that is killed, a power cut and a disk that refuses."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omnidraft import storage

CHANGES = ("fsync", "mkdir", "open", "rename", "replace", "rmdir", "unlink", "write")


class Killed(BaseException):
    """The process is gone: no handler of errors runs any more."""


class KilledDisk:
    """Ends the process at its `at`-th change of the disk, with half of it made where that is a write and `torn`."""

    def __init__(self, at: int = 0, *, torn: bool = False) -> None:
        self.at = at
        self.torn = torn
        self.count = 0
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGES:
            return real

        def change(*arguments: Any) -> Any:
            self.count += 1
            if self.at and self.count >= self.at:
                if self.count == self.at and self.torn and name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise Killed
            self.log.append(name)
            return self.perform(name, real, *arguments)

        return change

    def perform(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ARG002
        return real(*arguments)

    def crash(self) -> None:
        """What the machine does to the disk after the process is gone: nothing."""


class PowerCut(KilledDisk):
    """Loses half of what was written and not synced, and the `names` that were not: none, those made, or all."""

    def __init__(self, at: int = 0, *, names: str, deaf: bool = False) -> None:
        super().__init__(at)
        self.names = names
        self.deaf = deaf  # fsync does nothing: the negative control
        self.opened: dict[int, Path] = {}
        self.unsynced: set[Path] = set()
        self.undo: list[tuple[Path, str, Callable[[], None]]] = []  # by folder, oldest first

    def perform(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        first = arguments[0]
        if name == "fsync":
            if not self.deaf:
                self.note_synced(self.opened[first])
            return None
        if name == "open":
            path, new = Path(first), not Path(first).exists()
            descriptor = real(*arguments)
            self.opened[descriptor] = path
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self.unsynced.add(path)
                if new:
                    self.undo.append((path.parent, "made", lambda: path.unlink(missing_ok=True)))
            return descriptor
        if name == "mkdir":
            self.undo.append((Path(first).parent, "made", lambda: shutil.rmtree(first, ignore_errors=True)))
        elif name == "replace":
            self.note_replaced(Path(first), Path(arguments[1]))
        return real(*arguments)

    def note_synced(self, path: Path) -> None:
        self.unsynced.discard(path)
        self.undo = [change for change in self.undo if change[0] != path]

    def note_replaced(self, source: Path, destination: Path) -> None:
        before = destination.read_bytes() if destination.exists() else None
        if source in self.unsynced:
            self.unsynced = (self.unsynced - {source}) | {destination}

        def undo() -> None:
            if before is None:
                destination.unlink(missing_ok=True)
            else:
                destination.write_bytes(before)

        self.undo.append((destination.parent, "replaced", undo))

    def crash(self) -> None:
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        for _, kind, undo in reversed(self.undo):
            if self.names in (kind, "all"):
                undo()


class RefusingDisk(KilledDisk):
    """Answers `error` to whatever takes room from the `at`-th change on; what gives room back works."""

    def __init__(self, at: int, error: int) -> None:
        super().__init__()
        self.first = at
        self.error = error

    def perform(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        takes = name in ("mkdir", "write", "fsync", "replace", "rename") or (
            name == "open" and arguments[1] & os.O_CREAT
        )
        if self.count >= self.first and takes:
            raise OSError(self.error, os.strerror(self.error))
        return real(*arguments)


def install(disk: object, monkeypatch: Any) -> None:
    """Have `omnidraft.storage` change the disk through `disk`; None: through `os` again."""
    monkeypatch.setattr(storage, "os", disk or os)
