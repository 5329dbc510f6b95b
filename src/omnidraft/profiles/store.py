"""The store of profiles: one folder for each drafter and target, and profiles as single files."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft import storage
from omnidraft.config import data_folder, suggestion
from omnidraft.errors import ProfileError
from omnidraft.profiles.folder import CURRENT, MANIFEST, ProfileFolder
from omnidraft.profiles.manifest import FILES, Key, LaterFormatError, Manifest, digest, folder_name, parse
from omnidraft.profiles.profile import Profile, check_files

CHECKSUM = "sha256"  # of the manifest, in a file that was exported
MEMBERS = (CHECKSUM, MANIFEST, *FILES)
_PLACE = re.compile(r".+-[0-9a-f]{12}")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same profile makes the same file


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a list says of a profile; `manifest` is None where there is a `problem`."""

    name: str
    path: Path
    size: int  # bytes on disk, all versions
    manifest: Manifest | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {"name": self.name, "path": str(self.path), "size": self.size, "problem": self.problem}
        if self.manifest is not None:
            key = self.manifest.key
            found |= {"drafter": key.drafter, "target": key.target, "saved": self.manifest.saved}
            found |= {"tokenizers": key.tokenizers, "weights": key.weights}
            found |= {"learning": dict(self.manifest.learning), "counters": dict(self.manifest.counters)}
        return found


class ProfileStore:
    """All profiles of a user, by default below the data folder; each method raises ProfileError.

    A name is what `list` prints, such as `llama-68m/qwen-0123456789ab`; names are looked up, never used as paths.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = data_folder() / "profiles" if root is None else root

    def folder(self, key: Key) -> ProfileFolder:
        """Where the profile of `key` lies, or will."""
        drafter, target = key.place
        return ProfileFolder(self.root / drafter / target, f"{drafter}/{target}")

    def may_hold(self, drafter: str, target: str) -> bool:
        """Whether there may be a profile of models with these names, whatever their weights."""
        return any(self.root.joinpath(folder_name(drafter)).glob(f"{folder_name(target)}-*"))

    def load(self, key: Key) -> Profile | None:
        """The profile of `key`; None where there is none."""
        return self.folder(key).load(key)

    def set_aside(self, key: Key) -> Path:
        """Give the folder of `key` a free name next to it, which is returned."""
        return self.folder(key).set_aside()

    # ------------------------------------------------------------ names

    def list(self) -> list[Entry]:
        """All profiles, those that cannot be used included; reads no tensors."""
        return [self._entry(folder, whole=False) for folder in self._folders().values()]

    def show(self, name: str) -> Entry:
        """One profile, its checksums compared."""
        return self._entry(self._find(name), whole=True)

    def remove(self, name: str) -> None:
        """Delete a profile that no process has claimed."""
        folder = self._find(name)
        folder.remove()
        with suppress(OSError):  # other profiles of the drafter are there
            folder.path.parent.rmdir()

    def _folders(self) -> dict[str, ProfileFolder]:
        try:
            paths = sorted(self.root.glob(f"*/*/{CURRENT}")) if self.root.is_dir() else []
        except OSError as error:
            raise ProfileError(
                f"profiles in {self.root} cannot be listed ({error.strerror}): make it readable"
            ) from error
        names = {path.parent.relative_to(self.root).as_posix(): path.parent for path in paths}
        return {name: ProfileFolder(path, name) for name, path in names.items()}

    def _find(self, name: str) -> ProfileFolder:
        folders = self._folders()
        if name not in folders:
            fix = suggestion(name, folders) if folders else "there are none yet"
            raise ProfileError(f"profile {name!r} does not exist: {fix}")
        return folders[name]

    @staticmethod
    def _entry(folder: ProfileFolder, *, whole: bool) -> Entry:
        manifest, problem = None, None
        try:
            found = folder.read() if whole else (folder.manifest(), None)
            manifest = found and found[0]
        except ProfileError as error:
            problem = str(error)
        if manifest is not None and not _PLACE.fullmatch(folder.path.name):
            problem = "set aside, and not in use: remove it, or export it"
        size = 0
        with suppress(OSError):  # another process saves, which removes a version
            size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
        return Entry(name=folder.name, path=folder.path, size=size, manifest=manifest, problem=problem)

    # ------------------------------------------------------------ single files

    def export(self, name: str, file: Path, *, force: bool = False) -> None:
        """Write a profile to one file, which is replaced with `force` only."""
        found = self._find(name).read()
        if found is None:
            raise ProfileError(f"profile {name!r} does not exist: it was removed a moment ago")
        if file.exists() and not force:
            raise ProfileError(f"{file} is there already: use --force to replace it, or another name")
        try:
            storage.replace_file(file, pack(*found))
        except OSError as error:
            raise ProfileError(f"{file} cannot be written ({error.strerror}): give another place") from error

    def import_(self, file: Path, *, force: bool = False) -> str:
        """Save a file that was exported as a profile of this store, and return its name.

        Over a profile that is there with `force` only, as a new version of it.
        """
        with _refusing(file):
            manifest, files = unpack(file.read_bytes())
        folder = self.folder(manifest.key)
        with folder.held():
            if folder.exists() and not force:
                raise ProfileError(f"profile {folder.name} is there already: use --force to replace it")
            folder.put(manifest.key, manifest.learning, manifest.counters, files, manifest.saved)
        return folder.name


def pack(manifest: Manifest, files: dict[str, bytes]) -> bytes:
    """A profile as the bytes of a ZIP archive that compresses nothing."""
    data = manifest.encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, content in {CHECKSUM: digest(data).encode(), MANIFEST: data, **files}.items():
            target.writestr(zipfile.ZipInfo(name, _LONG_AGO), content)
    return archive.getvalue()


def unpack(archive: bytes) -> tuple[Manifest, dict[str, bytes]]:
    """The profile that was packed; raises ProfileError for anything else, or what `zipfile` raises."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        members = source.infolist()
        if sorted(member.filename for member in members) != sorted(MEMBERS):
            raise ProfileError("it holds other files than a profile")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ProfileError("it is compressed")  # a small file may claim to hold terabytes
        content = {member.filename: source.read(member) for member in members}
    if content.pop(CHECKSUM) != digest(content[MANIFEST]).encode():
        raise ProfileError("its checksum does not match")
    manifest = parse(content.pop(MANIFEST))
    if {name: digest(data) for name, data in content.items()} != manifest.files:
        raise ProfileError("a checksum does not match")
    check_files(content)
    return manifest, content


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except LaterFormatError as error:
        raise ProfileError(f"{file} cannot be imported, {error}: upgrade OmniDraft") from error
    except FileNotFoundError as error:
        raise ProfileError(f"{file} does not exist: give a file that `omnidraft profiles export` wrote") from error
    # what `zipfile` raises for a damaged archive; RuntimeError: a flag that asks for a password
    except (OSError, EOFError, LookupError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise ProfileError(f"{file} cannot be imported ({error}): export the profile again") from error
