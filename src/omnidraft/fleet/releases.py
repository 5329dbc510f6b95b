"""Versions of the learned weights: numbered safetensors files, and one small file that says which are in use.

Every file is written under another name and renamed, so that a reader sees it whole or not at all.  A new version is a
canary at first, which a share of the replicas use; `promote` makes it the stable one, `withdraw` takes it back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from omnidraft.distillation.lora import Weights, merged, parted
from omnidraft.distillation.trainer import Counters
from omnidraft.errors import ModelError
from omnidraft.storage import make_folder, replace_file

POINTER = "current.json"
POLL_S = 5.0  # between looks at the pointer
KEPT = 4  # versions beside those in use
_log = logging.getLogger("omnidraft")


@dataclass(frozen=True, kw_only=True)
class Current:
    """The versions in use; 0 is the drafter as it was shipped, `canary` None where none is on trial."""

    stable: int = 0
    canary: int | None = None
    share: float = 0.0  # of the replicas that use the canary
    newest: int = 0  # number given last

    def version_for(self, replica: str) -> int:
        """The version that a replica is to use; each canary has other replicas."""
        place = int.from_bytes(hashlib.sha256(f"{self.canary}:{replica}".encode()).digest()[:8], "big") / 2**64
        return self.stable if self.canary is None or place >= self.share else self.canary


class Releases:
    """A folder of versions, written by one trainer and read by any number of replicas."""

    def __init__(self, folder: Path, pair: str) -> None:
        self.folder, self._pair = folder, pair

    def current(self) -> Current:
        """The versions in use; raises ModelError where the file that says so is damaged."""
        try:
            return Current(**json.loads((self.folder / POINTER).read_bytes()))
        except FileNotFoundError as error:
            if any(self.folder.glob("version-*.safetensors")):
                raise ModelError(f"{self.folder / POINTER} is missing: restore it, or empty the folder") from error
            return Current()
        except (TypeError, ValueError) as error:
            fix = "restore it, or remove it to begin anew"
            raise ModelError(f"{self.folder / POINTER} is damaged: {fix}") from error

    def weights(self, version: int, base: Mapping[str, torch.Tensor]) -> Weights:
        """The state of a version; raises ModelError for one that is damaged, or not of this drafter and target.

        An OSError may pass: a file system of several machines shows a new file late.
        """
        if version == 0:
            return {}
        path = self.folder / _name(version)
        try:
            data = path.read_bytes()
            state = load(data)
            size = int.from_bytes(data[:8], "little")
            pair = json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("pair")
        except (SafetensorError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: the trainer has to publish another version") from error
        if pair != self._pair:
            raise ModelError(f"{path} was learned with other tokenizers: give the folder of this drafter and target")
        check(state, base)
        return state

    def publish(self, state: Weights, share: float) -> Current:
        """Write a version; it is a canary for a share of the replicas, and stable at once where that is 1."""
        current = self.current()
        version = current.newest + 1
        make_folder(self.folder)
        if version == 1:  # versions without it would be those of a folder that is not whole
            self._point(current)
        replace_file(self.folder / _name(version), save(state, {"pair": self._pair, "version": str(version)}))
        if share >= 1:
            return self._point(replace(current, stable=version, canary=None, newest=version))
        return self._point(replace(current, canary=version, share=share, newest=version))

    def promote(self) -> Current:
        """Make the canary the stable version."""
        current = self.current()
        return self._point(replace(current, stable=current.canary or current.stable, canary=None))

    def withdraw(self) -> Current:
        """Take the canary back."""
        return self._point(replace(self.current(), canary=None))

    def _point(self, current: Current) -> Current:
        replace_file(self.folder / POINTER, json.dumps(asdict(current)).encode())
        for path in self.folder.glob("version-*.safetensors"):
            version = int(path.stem.removeprefix("version-"))
            if version not in (current.stable, current.canary) and version <= current.newest - KEPT:
                path.unlink(missing_ok=True)
        return current


class Follower:
    """The side of a replica: a `distillation.adaptation.Learner` whose weights come from the trainer's releases.

    A version that is damaged, does not fit or has values that are not finite is left alone, with one warning.  `look`
    reads files, and may be another thread's; `poll` does not.
    """

    def __init__(
        self,
        releases: Releases,
        replica: str,
        base: Mapping[str, torch.Tensor],
        *,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self.version = 0  # that drafts
        self.counters = Counters()
        self._releases, self._replica, self._base = releases, replica, base
        self._clock, self._warn = clock, warn
        self._looked = -POLL_S
        self._refused: int | None = None
        self._said: tuple[object, ...] = ()
        self._known = 0  # the version that was read last
        self._found: deque[tuple[int, Weights]] = deque(maxlen=1)  # and is not drafted with yet

    def poll(self) -> Weights | None:
        """The weights of another version than the last, once it was looked at."""
        try:
            self.version, state = self._found.pop()
        except IndexError:
            return None
        return state

    def look(self) -> None:
        """Read the version that this replica is to use, where it is another one; every POLL_S seconds at most."""
        if self._clock() - self._looked < POLL_S:
            return
        self._looked = self._clock()
        wanted: int | None = None
        try:
            wanted = self._releases.current().version_for(self._replica)
            if wanted in (self._known, self._refused):
                return
            self._found.append((wanted, self._releases.weights(wanted, self._base)))
        except (ModelError, OSError) as error:
            if isinstance(error, ModelError):
                self._refused = wanted
            if error.args != self._said:  # once, however often it is met
                self._warn(f"version {self.version} of the drafter stays: {error}")
            self._said = error.args
            return
        self._known, self._refused, self._said = wanted, None, ()

    def teach(self, *_: object) -> None:
        """Do nothing: answers go to the spool."""

    def flush(self, meanwhile: object = None) -> None:
        """Do nothing: the trainer learns when it does."""

    def pause(self) -> None:
        """Do nothing: nothing runs beside requests here."""

    def resume(self) -> None:
        """Do nothing, likewise."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


def check(state: Weights, base: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError for a state that does not fit the drafter, or has values that are not finite."""
    merged(base, parted(state)[0])
    for name, weight in state.items():
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(f"the learned weights {name!r} have values that are not finite: use an earlier version")


def _name(version: int) -> str:
    return f"version-{version:08d}.safetensors"
