"""`omnidraft cache`: show or clear the GGUF files that were downloaded, and what earlier versions made of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from omnidraft.cli import flags
from omnidraft.errors import ConfigError
from omnidraft.storage import cache_folder


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft cache`; raises InputError and its kinds."""
    parser = flags.CommandParser(
        prog="omnidraft cache",
        description="Show or clear the model of `omnidraft demo`, and what earlier versions converted from GGUF files.",
        examples=("omnidraft cache", "omnidraft cache --clear"),
    )
    parser.add_argument("--clear", action="store_true", help="remove all of it")
    flags.add(parser, "--json")
    options = parser.read(arguments)
    if options.clear:
        flags.say(f"freed {_megabytes(_kept())}")
        _clear()
    entries = _kept()
    if options.json:
        print(json.dumps({"folder": str(cache_folder()), "converted": entries}))
        return 0
    for each in entries:
        print(f"{each['name']}  {_megabytes([each])}  last used {each['used']}")
    flags.say(f"{_megabytes(entries)} in {cache_folder()}")
    return 0


def _kept() -> list[dict[str, Any]]:
    """Name, bytes and date of each folder, the one used last first."""
    found = [file.parent for file in (cache_folder() / "gguf").glob("*/NAME")]
    return [
        {
            "name": (folder / "NAME").read_text(encoding="utf-8"),
            "bytes": sum(file.stat().st_size for file in folder.iterdir()),
            "used": f"{datetime.fromtimestamp(folder.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        for folder in sorted(found, key=lambda folder: -folder.stat().st_mtime)
    ]


def _clear() -> None:
    """Remove all folders; raises ConfigError."""
    try:
        if (cache_folder() / "gguf").is_dir():
            shutil.rmtree(cache_folder() / "gguf")
    except OSError as error:
        fix = "set OMNIDRAFT_HOME to a writable folder"
        raise ConfigError(f"cannot write to {cache_folder()} ({error}): {fix}") from error


def _megabytes(entries: Sequence[dict[str, Any]]) -> str:
    return f"{sum(each['bytes'] for each in entries) / 1e6:.0f} MB"
