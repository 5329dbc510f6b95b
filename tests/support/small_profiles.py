"""Profiles to save and compare; run as a program, a process that saves them until it is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as arrays_of

from omnidraft.profiles.manifest import Key, Profile
from omnidraft.profiles.profile_file import ProfileFile

KEY = Key(
    drafter="JackFram/llama-68m",
    target="Qwen/Qwen2-0.5B",
    tokenizers="a" * 64,
    drafter_weights="b" * 64,
    target_weights="c" * 64,
)


def numbered(number: int, size: int = 100, **more: Any) -> Profile:
    """A profile all parts of which say which one it is."""
    ngrams = {"hits": np.full(size, number, np.int32), "active": np.full(3, number % 2 == 1), "clock": np.array(number)}
    counters = {"rounds": number, "loss": number / 4}
    return Profile(**{"weights": {}, "ngrams": ngrams, "learning": {"adapter": "lora"}, "counters": counters, **more})


def number_of(profile: Profile | None) -> int | None:
    """Which one it is, None for none; ValueError where its parts are of several."""
    if profile is None:
        return None
    number = int(profile.counters["rounds"])
    expected = numbered(number, len(profile.ngrams["hits"]))
    same = profile.ngrams.keys() == expected.ngrams.keys() and all(
        np.array_equal(array, expected.ngrams[name]) for name, array in profile.ngrams.items()
    )
    if not same or profile.counters != expected.counters:
        raise ValueError("parts of several profiles")
    return number


def saved(file: ProfileFile, profile: Profile, key: Key = KEY) -> ProfileFile:
    """The file with this profile in it."""
    with file.held():
        file.save(key, profile)
    return file


def header(file: ProfileFile) -> dict[str, Any]:
    """The header of a safetensors file."""
    data = file.path.read_bytes()
    found: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return found


def made(metadata: dict[str, str], before: bytes = b"", more: Mapping[str, Any] | None = None) -> bytes:
    """A file with this header; header and arrays are added to those of the file `before`."""
    if before:
        header = json.loads(before[8 : 8 + int.from_bytes(before[:8], "little")])
        metadata = header["__metadata__"] | metadata
    arrays = {**(arrays_of.load(before) if before else {}), **(more or {})}
    return arrays_of.save(arrays, metadata)


@contextmanager
def saving_process(path: Path, number: int, pause: float) -> Iterator[subprocess.Popen[str]]:
    """A process that saves profiles from `number` + 1 on, says each number once it is saved, and is killed."""
    from support.project_files import environment  # which takes PyTorch along, and the process is to start fast

    command = [sys.executable, __file__, str(path), str(number), str(pause)]
    process = subprocess.Popen(
        command, env=environment(path.parent), stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _save_for_ever(path: Path, number: int, pause: float) -> None:
    file = ProfileFile(path)
    if not file.claim():
        raise SystemExit("in use")
    while True:
        number += 1
        file.save(KEY, numbered(number, 200_000))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        time.sleep(pause)


if __name__ == "__main__":
    _save_for_ever(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
