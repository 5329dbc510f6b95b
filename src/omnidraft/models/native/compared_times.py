"""How long a product takes in 8 bits and in a dtype of PyTorch: measured once on a machine, and kept."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import torch

from omnidraft.errors import ConfigError
from omnidraft.models.native import step
from omnidraft.models.native.prebuilt import source_bytes
from omnidraft.storage import cache_folder, make_folder, replace_file

FAR = 2.0  # times as long: closer ones are measured anew, as the moment may have decided


def compared_seconds(dtype: str) -> tuple[float, float]:
    """Seconds of the product of one row and a large matrix in 8 bits by step.c, and in a dtype.

    What an earlier run measured is taken from the cache folder: measuring takes a third of a second.
    """
    path = _path(dtype)
    with suppress(OSError, ValueError, TypeError):
        if path is not None and path.is_file():
            ours, other = map(float, json.loads(path.read_text(encoding="utf-8")))
            return ours, other
    ours, other = (step.product_seconds(each, step.threads()) for each in (step.PRECISIONS[0], dtype))
    with suppress(OSError):
        if path is not None and not 1 / FAR < ours / other < FAR:
            make_folder(path.parent)
            replace_file(path, json.dumps([ours, other]).encode())
    return ours, other


def _path(dtype: str) -> Path | None:
    """Where the times lie that were measured with this processor, code and number of threads."""
    with suppress(ConfigError):
        known = f"{step.processor()} {torch.__version__} {dtype} {step.threads()}".encode() + source_bytes()
        return cache_folder() / "native" / f"times-{hashlib.sha256(known).hexdigest()[:16]}.json"
    return None
