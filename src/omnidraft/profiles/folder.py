"""The folder of a profile: claimed by one process, read by many, saved so that no crash can tear it.

A folder holds numbered versions and `current`, which names one of them and the checksum of its manifest, which names
the checksums of the other files.  A save writes a new version and then replaces `current`: whatever ends it, the
profile is the old one or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import FILES, Key, LaterFormatError, Manifest, Setting, digest, parse
from omnidraft.profiles.profile import Profile

CURRENT = "current"
MANIFEST = "manifest.json"
LOCK = "lock"
_POINTER = re.compile(rb"(v\d{8}) ([0-9a-f]{64})\n")
_VERSION = re.compile(r"v\d{8}")
_Pointer = tuple[str, str]
T = TypeVar("T")


class ProfileFolder:
    """The folder of one profile, wherever it lies; nothing is made before the first claim.

    Every method raises ProfileError, which names the profile, what is wrong and the fix.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        self._lock: FileLock | None = None

    def exists(self) -> bool:
        """Whether a profile was saved here; it may be one that is refused."""
        with self._trouble("read"):
            return (self.path / CURRENT).is_file()

    # ------------------------------------------------------------ claiming

    @property
    def claimed(self) -> bool:
        return self._lock is not None

    def claim(self) -> bool:
        """Make sure that no other process saves here until `release`, or the end of this one; False: one does."""
        if self._lock is not None:
            return True
        with self._trouble("written"):
            if not self.path.is_dir():
                with suppress(FileExistsError):  # another process made it
                    storage.make_folder(self.path)
            # not only the thread that claims may save
            lock = FileLock(self.path / LOCK, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Let others claim the profile."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """The claim for one operation, or the one that there is; ProfileError where another process has it."""
        before = self.claimed
        if not self.claim():
            raise self.in_use()
        try:
            yield
        finally:
            if not before:
                self.release()

    def in_use(self) -> ProfileError:
        """What to raise where this process has no claim."""
        fix = "end that one, and claim it first"
        return ProfileError(f"profile {self.name} is not claimed, so it may be in use by another process: {fix}")

    # ------------------------------------------------------------ reading

    def load(self, key: Key) -> Profile | None:
        """The profile that was saved last; None where there is none."""

        def decode(pointer: _Pointer) -> Profile:
            manifest = self._manifest(pointer, key)
            files = self._files(pointer, manifest)
            try:
                return Profile.decode(files, manifest.learning, manifest.counters)
            except ProfileError as error:
                raise self._damaged(str(error)) from error

        return self._settled(decode)

    def read(self) -> tuple[Manifest, dict[str, bytes]] | None:
        """The manifest and the content of the files; None where there is no profile."""

        def read(pointer: _Pointer) -> tuple[Manifest, dict[str, bytes]]:
            manifest = self._manifest(pointer)
            return manifest, self._files(pointer, manifest)

        return self._settled(read)

    def manifest(self, key: Key | None = None) -> Manifest | None:
        """The manifest alone, which is quick; None where there is no profile."""
        return self._settled(lambda pointer: self._manifest(pointer, key))

    def _settled(self, read: Callable[[_Pointer], T]) -> T | None:
        while True:
            pointer = self._pointer()
            if pointer is None:
                return None
            try:
                return read(pointer)
            except ProfileError:
                # a process that saves twice meanwhile removes what is being read
                if self._pointer() == pointer:
                    raise

    def _pointer(self) -> _Pointer | None:
        """The current version and the checksum of its manifest."""
        try:
            with self._trouble("read"):
                data = (self.path / CURRENT).read_bytes()
        except _NothingError:
            return None
        match = _POINTER.fullmatch(data)
        if match is None:
            raise self._damaged(f"{CURRENT} names no version")
        return match[1].decode(), match[2].decode()

    def _manifest(self, pointer: _Pointer, key: Key | None = None) -> Manifest:
        data = self._file(pointer[0], MANIFEST, pointer[1])
        try:
            manifest = parse(data)
        except LaterFormatError as error:
            raise ProfileError(f"profile {self.name} cannot be read, {error}: upgrade OmniDraft") from error
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if key is not None:
            self._check(manifest.key, key)
        return manifest

    def _files(self, pointer: _Pointer, manifest: Manifest) -> dict[str, bytes]:
        return {name: self._file(pointer[0], name, manifest.files[name]) for name in FILES}

    def _file(self, version: str, name: str, checksum: str) -> bytes:
        try:
            with self._trouble("read"):
                data = (self.path / version / name).read_bytes()
        except _NothingError:
            raise self._damaged(f"{version}/{name} is missing") from None
        if digest(data) != checksum:
            raise self._damaged(f"{version}/{name} has another checksum")
        return data

    def _check(self, found: Key, key: Key) -> None:
        for field, what in (
            ("drafter", f"the drafter {found.drafter}, not {key.drafter}"),
            ("target", f"the target {found.target}, not {key.target}"),
            ("tokenizers", "another pair of tokenizers"),
            ("weights", "other weights of the drafter"),
        ):
            if getattr(found, field) != getattr(key, field):
                raise ProfileError(f"profile {self.name} belongs to {what}: use another, or {self._rename}")

    # ------------------------------------------------------------ writing

    def save(self, key: Key, profile: Profile) -> None:
        """Make this the current version and keep the one before; the folder must be claimed.

        A profile that `load` refuses is not replaced: set it aside first.
        """
        if not self.claimed:
            raise self.in_use()
        self.manifest(key)
        self.put(key, profile.learning, profile.counters, profile.encode())

    def put(
        self,
        key: Key,
        learning: Mapping[str, Setting],
        counters: Mapping[str, int | float],
        files: Mapping[str, bytes],
        saved: str | None = None,
    ) -> None:
        """Make this the current version, whatever was there; the folder must be claimed."""
        manifest = Manifest(
            key=key,
            learning=dict(learning),
            counters=dict(counters),
            saved=saved or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            files={name: digest(data) for name, data in files.items()},
        )
        data = manifest.encode()
        with self._trouble("saved"):
            before = self._named()
            taken = [int(path.name[1:]) for path in self.path.iterdir() if _VERSION.fullmatch(path.name)]
            number = max(taken, default=0) + 1
            version = self.path / f"v{number:08}"
            try:
                storage.make_folder(version)
                for name, content in {**files, MANIFEST: data}.items():
                    storage.write_file(version / name, content)
                storage.sync_folder(version)
                storage.replace_file(self.path / CURRENT, f"{version.name} {digest(data)}\n".encode())
            except OSError:
                with suppress(OSError, ProfileError):
                    if self._named() != version.name:  # `current` may be new already
                        storage.remove(version)
                raise
        with suppress(OSError):
            self._clean({version.name, before})

    def _named(self) -> str | None:
        """The version that `current` names, if it does."""
        with suppress(ProfileError):
            return pointer[0] if (pointer := self._pointer()) else None
        return None

    def _versions(self) -> list[Path]:
        """Folders of versions; one that holds anything else is somebody's own, whatever its name."""
        found = [path for path in self.path.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()]
        return [path for path in found if all(_ours(file.name) for file in path.iterdir())]

    def _clean(self, keep: set[str | None]) -> None:
        """Remove older versions, and what saves that were cut off left behind."""
        for path in self._versions():
            if path.name not in keep:
                storage.remove(path)
        for path in self.path.glob(f".{CURRENT}.*.tmp"):
            storage.remove(path)

    def set_aside(self) -> Path:
        """Give the folder a free name next to it, so that a new profile can be begun; nothing is deleted."""
        before = self.claimed
        with self.held(), self._trouble("set aside"):
            number = 1
            while (aside := self.path.with_name(f"{self.path.name}.aside-{number}")).exists():
                number += 1
            storage.rename(self.path, aside)
            self.release()  # the lock went along
        if before and not self.claim():
            raise self.in_use()
        return aside

    def remove(self) -> None:
        """Delete the profile and its folder."""
        with self.held(), self._trouble("removed"):
            # without this file there is no profile, so that nothing torn is left when this is cut off
            with suppress(FileNotFoundError):
                storage.remove(self.path / CURRENT)
            storage.sync_folder(self.path)
            storage.remove(self.path)

    # ------------------------------------------------------------ refusing

    @property
    def _rename(self) -> str:
        return f"rename the folder {self.path} to begin anew"

    def _damaged(self, what: str) -> ProfileError:
        return ProfileError(f"profile {self.name} is damaged ({what}): {self._rename}")

    @contextmanager
    def _trouble(self, done: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if done == "read":
                raise _NothingError from error
            raise ProfileError(f"profile {self.name} cannot be {done} ({error}): use another folder") from error
        except OSError as error:
            fix = f"make {self.path} readable" if done == "read" else "make room, or use a folder that can be written"
            raise ProfileError(f"profile {self.name} cannot be {done} ({error.strerror or error}): {fix}") from error


def _ours(name: str) -> bool:
    """Whether a file of a version, or what is left of writing one, has this name."""
    return any(known in name for known in (*FILES, MANIFEST))


class _NothingError(Exception):
    """There is no such file."""
