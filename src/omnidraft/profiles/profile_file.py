"""The file of a profile: claimed by one process, read by many, replaced in one step so that no crash can tear it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import ANSWER_TOKENS, SIZE, Key, LaterFormatError, Manifest, Profile

ASIDE = ".aside-"  # and a number
MAX_HEADER = 100_000_000  # bytes, as safetensors has it


class ProfileFile:
    """The file of one profile, wherever it lies; nothing is written before the first claim.

    Every method raises ProfileError, which names the profile, what is wrong and the fix.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        self._lock_path = storage.beside(path, ".lock")
        self._lock: FileLock | None = None
        self._process = 0  # that claimed it: one forked later has no claim

    # ------------------------------------------------------------ claiming

    @property
    def claimed(self) -> bool:
        return self._lock is not None and self._process == os.getpid()

    def claim(self) -> bool:
        """Keep other processes from saving here until `release` or the end of this one; False: one does already."""
        if self.claimed:
            return True
        with self._change("written"):
            storage.make_folder(self.path.parent)
            # any thread may save, not only the one that claims
            lock = FileLock(self._lock_path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                return False
        self._lock, self._process = lock, os.getpid()
        with suppress(OSError):
            storage.remove_leftovers(self.path)
        return True

    def release(self) -> None:
        """Let others claim the profile."""
        if self._lock is not None and self.claimed:
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

    # ------------------------------------------------------------ reading

    def load(self, key: Key) -> Profile | None:
        """Read the profile of these models; None where there is no file."""
        decoded = self._decoded()
        if decoded is None:
            return None
        self._check_owner(decoded[0], key)
        return decoded[1]

    def manifest(self) -> Manifest | None:
        """Read the manifest; None where there is no file."""
        header = self._read(header=True)
        if header is None:
            return None
        with self._refusal():
            return Manifest.decode(*header)

    def _decoded(self) -> tuple[Key, Profile] | None:
        content = self._read()
        if content is None:
            return None
        with self._refusal():
            return Profile.decode(content[0])

    def _read(self, *, header: bool = False) -> tuple[bytes, int] | None:
        """The bytes of the file or of its header, and its size; one file object: a save meanwhile changes nothing."""
        try:
            with self.path.open("rb") as file:
                start = file.read(SIZE)
                more = min(int.from_bytes(start, "little"), MAX_HEADER) if header else -1
                return start + file.read(more), os.fstat(file.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            fix = f"make {self.path} a file that can be read"
            raise ProfileError(f"profile {self.name} cannot be read ({error.strerror or error}): {fix}") from error

    # ------------------------------------------------------------ writing

    def save(self, key: Key, profile: Profile) -> None:
        """Replace the file in one step; it must be claimed.

        Its header is read: one that is no profile of these models is not replaced, set it aside first.
        """
        if not self.claimed:
            raise self._in_use()
        if (manifest := self.manifest()) is not None:
            self._check_owner(manifest.key, key)
        data = profile.encode(key)
        with self._change("saved"):
            storage.replace_file(self.path, data)

    def forget(self) -> None:
        """Save the profile without the earlier answers in it."""
        with self.held():
            decoded = self._decoded()
            if decoded is None:
                raise ProfileError(f"profile {self.name} does not exist: there is nothing to forget")
            key, profile = decoded
            counters = {name: count for name, count in profile.counters.items() if name != ANSWER_TOKENS}
            self.save(key, replace(profile, answers={}, counters=counters))

    def set_aside(self) -> Path:
        """Give the file a free name next to it, so that a new profile can be begun; nothing is deleted."""
        with self.held(), self._change("set aside"):
            number, stem = 1, storage.fitting(self.path.stem, len(ASIDE) + 6 + len(self.path.suffix.encode()))
            while (aside := self.path.with_stem(f"{stem}{ASIDE}{number}")).exists():
                number += 1
            storage.rename(self.path, aside)
        return aside

    def remove(self) -> None:
        """Delete the profile and its lock file."""
        with self.held(), self._change("removed"):
            storage.remove(self.path)
            with suppress(OSError):  # some systems remove no open files
                storage.remove(self._lock_path)
            storage.sync_folder(self.path.parent)

    # ------------------------------------------------------------ refusing

    def _check_owner(self, owner: Key, key: Key) -> None:
        for field, what in (
            ("drafter", f"the drafter {owner.drafter}, not {key.drafter}"),
            ("target", f"the target {owner.target}, not {key.target}"),
            ("tokenizers", "another pair of tokenizers"),
            ("drafter_weights", "other weights of the drafter"),
            ("target_weights", "other weights of the target"),
        ):
            if getattr(owner, field) != getattr(key, field):
                raise ProfileError(f"profile {self.name} belongs to {what}: use another, or {self._fix}")

    def _in_use(self) -> ProfileError:
        fix = "end that one, and claim it first"
        return ProfileError(f"profile {self.name} is not claimed, so it may be in use by another process: {fix}")

    @property
    def _fix(self) -> str:
        return f"rename the file {self.path} to begin anew"

    @contextmanager
    def _refusal(self) -> Iterator[None]:
        """Name the file and the fix in errors about its content."""
        try:
            yield
        except LaterFormatError as error:
            raise ProfileError(f"profile {self.name} cannot be read, {error}: upgrade OmniDraft") from error
        except ProfileError as error:
            raise ProfileError(f"profile {self.name} is damaged or no profile ({error}): {self._fix}") from error

    @contextmanager
    def _change(self, done: str) -> Iterator[None]:
        """Name the file and the fix in errors of the disk."""
        try:
            yield
        except OSError as error:
            fix = "make room, or use a folder that can be written"
            raise ProfileError(f"profile {self.name} cannot be {done} ({error.strerror or error}): {fix}") from error
