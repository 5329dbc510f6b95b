"""Profiles to save and compare; run as a program, a process that saves them until it is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from omnidraft.profiles.folder import ProfileFolder
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Profile

KEY = Key(drafter="JackFram/llama-68m", target="Qwen/Qwen2-0.5B", tokenizers="a" * 64, weights="b" * 64)


def numbered(number: int, size: int = 100, **more: Any) -> Profile:
    """A profile all parts of which say which one it is."""
    arrays = {"hits": np.full(size, number, np.int32), "active": np.full(3, number % 2 == 1), "clock": np.array(number)}
    counters = {"rounds": number, "loss": number / 4}
    return Profile(**{"tensors": {}, "arrays": arrays, "learning": {"adapter": "lora"}, "counters": counters, **more})


def number_of(profile: Profile | None) -> int | None:
    """Which one it is, None for none; ValueError where its parts are of several."""
    if profile is None:
        return None
    number = int(profile.counters["rounds"])
    expected = numbered(number, len(profile.arrays["hits"]))
    same = profile.arrays.keys() == expected.arrays.keys() and all(
        np.array_equal(array, expected.arrays[name]) for name, array in profile.arrays.items()
    )
    if not same or profile.counters != expected.counters:
        raise ValueError("parts of several profiles")
    return number


def _save_for_ever(path: Path, number: int, pause: float) -> None:
    folder = ProfileFolder(path)
    if not folder.claim():
        raise SystemExit("in use")
    while True:
        number += 1
        folder.save(KEY, numbered(number, 200_000))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        time.sleep(pause)


if __name__ == "__main__":
    _save_for_ever(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
