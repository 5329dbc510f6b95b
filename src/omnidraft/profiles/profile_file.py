"""The file of a profile: claimed by one process, read by many, replaced in one step so that no crash can tear it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import Key, LaterFormatError, Manifest
from omnidraft.profiles.profile import SIZE, Profile, read_manifest, read_whole

LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it


class ProfileFile:
    """The file of one profile, wherever it lies; nothing is written before the first claim.

    Every method raises ProfileError, which names the profile, what is wrong and the fix.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        self._lock: FileLock | None = None

    # ------------------------------------------------------------ claiming

    @property
    def claimed(self) -> bool:
        return self._lock is not None

    def claim(self) -> bool:
        """Keep other processes from saving here until `release` or the end of this one; False: one does already."""
        if self._lock is not None:
            return True
        with self._trouble("written"):
            storage.make_folder(self.path.parent)
            # any thread may save, not only the one that claims
            lock = FileLock(self._lock_path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                return False
        self._lock = lock
        with suppress(OSError):
            storage.remove_leftovers(self.path)
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
            raise self._in_use()
        try:
            yield
        finally:
            if not before:
                self.release()

    def _in_use(self) -> ProfileError:
        fix = "end that one, and claim it first"
        return ProfileError(f"profile {self.name} is not claimed, so it may be in use by another process: {fix}")

    # ------------------------------------------------------------ reading

    def load(self, key: Key) -> Profile | None:
        """Read the profile of these models; None where there is no file."""
        data = self._read(key)
        if data is None:
            return None
        with self._refusing():
            return Profile.decode(data)

    def manifest(self, *, whole: bool = True) -> Manifest | None:
        """Read the manifest, and compare the checksum where `whole`; None where there is no file."""
        data = self._bytes(whole=whole)
        if data is None:
            return None
        with self._refusing():
            return read_whole(data) if whole else read_manifest(data)

    def _read(self, key: Key) -> bytes | None:
        """The file's bytes, checked to be whole and of these models."""
        data = self._bytes()
        if data is None:
            return None
        with self._refusing():
            found = read_whole(data).key
        for field, what in (
            ("drafter", f"the drafter {found.drafter}, not {key.drafter}"),
            ("target", f"the target {found.target}, not {key.target}"),
            ("tokenizers", "another pair of tokenizers"),
            ("drafter_weights", "other weights of the drafter"),
            ("target_weights", "other weights of the target"),
        ):
            if getattr(found, field) != getattr(key, field):
                raise ProfileError(f"profile {self.name} belongs to {what}: use another, or {self._fix}")
        return data

    def _bytes(self, *, whole: bool = True) -> bytes | None:
        """The bytes of the file, or of its header; one file object, so that a save meanwhile changes nothing."""
        try:
            with self._trouble("read"):
                if self.path.is_dir():
                    raise ProfileError(
                        f"profile {self.name} is a folder, as earlier versions wrote, and is not read: give a file"
                    )
                with self.path.open("rb") as file:
                    start = file.read(SIZE)
                    return start + file.read(-1 if whole else min(int.from_bytes(start, "little"), LONGEST_HEADER))
        except _NothingError:
            return None

    # ------------------------------------------------------------ writing

    def save(self, key: Key, profile: Profile) -> None:
        """Replace the file in one step; it must be claimed.

        A file that `load` refuses is not replaced: set it aside first.
        """
        if not self.claimed:
            raise self._in_use()
        self._read(key)
        data = profile.encode(key)
        with self._trouble("saved"):
            storage.replace_file(self.path, data)

    def set_aside(self) -> Path:
        """Give the file a free name next to it, so that a new profile can be begun; nothing is deleted."""
        with self.held(), self._trouble("set aside"):
            number = 1
            while (aside := self.path.with_stem(f"{self.path.stem}.aside-{number}")).exists():
                number += 1
            storage.rename(self.path, aside)
        return aside

    def remove(self) -> None:
        """Delete the profile and its lock file."""
        with self.held(), self._trouble("removed"):
            storage.remove(self.path)
            with suppress(OSError):  # some systems remove no open files
                storage.remove(self._lock_path)
            storage.sync_folder(self.path.parent)

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    # ------------------------------------------------------------ refusing

    @property
    def _fix(self) -> str:
        return f"rename the file {self.path} to begin anew"

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except LaterFormatError as error:
            raise ProfileError(f"profile {self.name} cannot be read, {error}: upgrade OmniDraft") from error
        except ProfileError as error:
            raise ProfileError(f"profile {self.name} is damaged or no profile ({error}): {self._fix}") from error

    @contextmanager
    def _trouble(self, done: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if done == "read":
                raise _NothingError from error
            raise ProfileError(f"profile {self.name} cannot be {done} ({error}): use another place") from error
        except OSError as error:
            fix = f"make {self.path} readable" if done == "read" else "make room, or use a folder that can be written"
            raise ProfileError(f"profile {self.name} cannot be {done} ({error.strerror or error}): {fix}") from error


class _NothingError(Exception):
    """There is no such file."""
