"""The store of profiles: one file for each drafter and target below the data folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omnidraft.config import suggestion
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import Key, Manifest
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.storage import data_folder

SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the list of profiles; `manifest` is None where it cannot be read."""

    name: str
    path: Path
    size: int  # bytes on disk
    manifest: Manifest | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON, those of the manifest among them."""
        fields: dict[str, Any] = {"name": self.name, "path": str(self.path), "size": self.size, "problem": self.problem}
        if self.manifest is not None:
            manifest = asdict(self.manifest)
            fields |= manifest.pop("key") | manifest
        return fields


class ProfileStore:
    """All profiles of a user, by default below the data folder; each method raises ProfileError.

    A name is one that `list` gives, such as `llama-68m/qwen-0123456789ab`; names are looked up, never used as paths.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = data_folder() / "profiles" if root is None else root

    def file(self, key: Key) -> ProfileFile:
        """The file of these models, which need not exist."""
        drafter, target = key.place
        return ProfileFile(self.root / drafter / f"{target}{SUFFIX}", f"{drafter}/{target}")

    def list(self) -> list[Entry]:
        """All profiles, those that cannot be used included; reads headers only."""
        return [self._entry(file) for file in self._files().values()]

    def show(self, name: str) -> Entry:
        """One profile, all of which is read."""
        return self._entry(self._find(name), whole=True)

    def remove(self, name: str) -> None:
        """Delete a profile that no process has claimed."""
        file = self._find(name)
        file.remove()
        with suppress(OSError):  # other profiles of the drafter are there
            file.path.parent.rmdir()

    def forget(self, name: str) -> None:
        """Remove the earlier answers from a profile that no process has claimed, and keep the rest."""
        self._find(name).forget()

    def _files(self) -> dict[str, ProfileFile]:
        try:
            paths = sorted(self.root.glob(f"*/*{SUFFIX}"))
        except OSError as error:
            raise ProfileError(
                f"profiles in {self.root} cannot be listed ({error.strerror}): make it readable"
            ) from error
        names = {path.relative_to(self.root).as_posix().removesuffix(SUFFIX): path for path in paths}
        return {name: ProfileFile(path, name) for name, path in names.items()}

    def _find(self, name: str) -> ProfileFile:
        files = self._files()
        if name not in files:
            fix = suggestion(name, files) if files else "there are none yet"
            raise ProfileError(f"profile {name!r} does not exist: {fix}")
        return files[name]

    @staticmethod
    def _entry(file: ProfileFile, *, whole: bool = False) -> Entry:
        manifest, problem, size = None, None, 0
        try:
            manifest = file.manifest()
            if whole and manifest is not None:
                file.load(manifest.key)
        except ProfileError as error:
            problem = str(error)
        if manifest is not None and file.name != "/".join(manifest.key.place):
            problem = "set aside or renamed, and not in use: remove it, or load it by its path"
        with suppress(OSError):  # another process removes it
            size = file.path.stat().st_size
        return Entry(name=file.name, path=file.path, size=size, manifest=manifest, problem=problem)
