"""The profile of two loaded models: its key, its file, and whether that can be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.errors import ConfigError, ModelError, ProfileError
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.manifest import Key, Profile, model_name
from omnidraft.profiles.measured_costs import MeasuredCosts
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.profiles.store import ProfileStore

SAMPLE = 4096  # weights of each tensor, about, in the hash of a model


def key_of(drafter: LoadedModel, target: LoadedModel, table: SpellingTable) -> Key:
    """The key of a pair's profile: names, tokenizers, and a hash of a sample of each model's weights."""
    return Key(
        drafter=model_name(drafter.name),
        target=model_name(target.name),
        tokenizers=table.fingerprint,
        drafter_weights=drafter.sample.hex() or _hash_of_signs(drafter),
        target_weights=target.sample.hex() or _hash_of_signs(target),
    )


def _hash_of_signs(loaded: LoadedModel) -> str:
    """A hash of the signs of evenly spaced weights, the same in every dtype but that of 8 bits, which has zeros."""
    digest = hashlib.sha256()
    for name, value in sorted(loaded.lm.tensors().items()):
        if isinstance(value, torch.Tensor):
            sample = value.detach().flatten()[:: max(1, value.numel() // SAMPLE)]
            digest.update(f"{name} {tuple(value.shape)} ".encode())
            digest.update(np.packbits(torch.signbit(sample).cpu().numpy()).data)
    return digest.hexdigest()


class PairProfile:
    """The profile asked for with two models: "auto" for the one in the data folder, a path, or None.

    A profile of the data folder that cannot be used is left out with a warning; one given by its path raises
    ProfileError.  `learns` says whether it is to be learned into.  `file` is None where no profile is used.
    """

    def __init__(
        self, asked: str | Path | None, key: Callable[[], Key], *, learns: bool, warn: Callable[[str], None]
    ) -> None:
        self.learns, self.warn = learns, warn
        self.file: ProfileFile | None = None
        self.costs: MeasuredCosts | None = None  # where no profile keeps them
        self._by_path = asked != "auto"
        if asked is None:
            return
        try:
            self._key = key()
            self.file = ProfileFile(_path(asked)) if self._by_path else ProfileStore().file(self._key)
        except ConfigError as error:  # no home folder is known
            if learns:
                warn(f"what is learned here is not saved: {error}")

    @property
    def claimed(self) -> bool:
        """True while this process may save to it."""
        return self.file is not None and self.file.claimed

    def load(self, check: Callable[[Profile], None]) -> Profile:
        """Read the profile, an empty one where there is none; `check` raises ModelError for one that does not fit."""
        if self.file is None:
            return Profile()
        self.costs = None
        try:
            profile = self.file.load(self._key)
            if profile is not None:
                check(profile)
                return profile
            self.costs = MeasuredCosts(self._key)
            return Profile()
        except (ProfileError, ModelError) as error:
            refused = error if isinstance(error, ProfileError) else ProfileError(f"profile {self.file.name}: {error}")
            if self._by_path:
                raise refused from error
        self._set_aside(refused)
        return Profile()

    def _set_aside(self, refused: ProfileError) -> None:
        """Make room for a new profile; a load that does not learn leaves the file where it is."""
        file, self.file = self.file, None
        if file is None or not self.learns:
            self.warn(f"{refused}; continuing without a profile")
            return
        try:
            self.warn(f"{refused}; renamed to {file.set_aside().name}, and learning starts from the base weights")
            self.file = file
        except ProfileError as error:
            self.warn(f"{refused}; it cannot be renamed ({error}): continuing without a profile, and nothing is saved")

    def claim(self) -> None:
        """Keep other processes from learning into it; warns where that fails and nothing will be saved."""
        if self.file is None:
            return
        try:
            if not self.file.claim():
                self.warn(f"profile {self.file.name} is in use by another process: what is learned here is not saved")
        except ProfileError as error:
            if self._by_path:
                raise
            self.warn(f"what is learned here is not saved: {error}")

    def save(self, profile: Profile) -> None:
        """Replace the file, if there is one; raises ProfileError where it is not claimed or cannot be saved."""
        if self.file is not None:
            self.file.save(self._key, profile)

    def release(self) -> None:
        """Let others claim the profile."""
        if self.file is not None:
            self.file.release()


def _path(profile: str | Path) -> Path:
    """The path of a profile given by it, absolute and without links; raises ProfileError where it cannot be one.

    All that is written lies beside the file itself: of two names for it, one process may have the claim.
    """
    try:
        path = Path(profile).expanduser()
        path.exists()
        if "\0" in str(path):  # which is no file for pathlib, and an error for everything after it
            raise ValueError("it holds a null byte")
        path = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ProfileError(f"profile {str(profile)!r} cannot be read ({error}): give another path") from error
    return path
