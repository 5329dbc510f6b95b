"""What the draft-length policy measured with a pair of models on this machine, kept in the cache folder.

A pair that learns keeps it in its profile.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import torch

from omnidraft import storage
from omnidraft.errors import ConfigError
from omnidraft.profiles.manifest import Array, Key

FOLDER = "costs"  # in the cache folder


class MeasuredCosts:
    """The file of a pair of models with as many threads as PyTorch has now; it is of no use to anyone but a policy."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def load(self) -> Array | None:
        """The measurements of an earlier run; None where there are none, or none that can be read."""
        try:
            return np.array(json.loads(self._path().read_bytes()), np.float64)
        except (OSError, ValueError, TypeError, RecursionError, OverflowError, ConfigError):
            return None

    def save(self, measurements: Array) -> None:
        """Replace the file; where that is not possible, a later run measures anew."""
        with contextlib.suppress(OSError, ConfigError):
            path = self._path()
            storage.make_folder(path.parent)
            storage.replace_file(path, json.dumps(measurements.tolist()).encode())

    def _path(self) -> Path:
        drafter, target = self._key.place
        return storage.cache_folder() / FOLDER / drafter / f"{target}-{torch.get_num_threads()}.json"
