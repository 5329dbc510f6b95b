"""`omnidraft cache`: show or clear the folder of what can be made again: models, compiled code, measured costs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence

from omnidraft.cli import flags
from omnidraft.errors import ConfigError
from omnidraft.storage import cache_folder


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft cache`; raises InputError and its kinds."""
    parser = flags.CommandParser(
        prog="omnidraft cache",
        description="Show or clear the cache folder: the model of the demo, compiled code, and measured costs.",
        examples=("omnidraft cache", "omnidraft cache --clear"),
    )
    parser.add_argument("--clear", action="store_true", help="remove all of it")
    flags.add(parser, "--json")
    options = parser.read(arguments)
    if options.clear:
        flags.say(f"freed {sum(_sizes().values()) / 1e6:.0f} MB")
        try:
            if cache_folder().is_dir():
                shutil.rmtree(cache_folder())
        except OSError as error:
            raise ConfigError(f"cannot remove {cache_folder()} ({error}): remove it by hand") from error
    sizes = _sizes()
    if options.json:
        kept = [{"name": name, "bytes": size} for name, size in sizes.items()]
        print(json.dumps({"folder": str(cache_folder()), "kept": kept}))
        return 0
    for name, size in sizes.items():
        print(f"{name}  {size / 1e6:.0f} MB")
    flags.say(f"{sum(sizes.values()) / 1e6:.0f} MB in {cache_folder()}")
    return 0


def _sizes() -> Counter[str]:
    """Bytes of the files in each folder, by its path in the cache folder."""
    sizes: Counter[str] = Counter()
    for file in sorted(cache_folder().rglob("*")):
        if file.is_file():
            sizes[file.parent.relative_to(cache_folder()).as_posix()] += file.stat().st_size
    return sizes
