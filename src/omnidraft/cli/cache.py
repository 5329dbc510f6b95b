"""`omnidraft cache`: show or clear the weights that were converted from GGUF files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from omnidraft.cli import flags
from omnidraft.storage import cache_folder


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft cache`; raises InputError and its kinds."""
    parser = flags.CommandParser(
        prog="omnidraft cache",
        description="Show or clear the weights converted from GGUF files; they are converted again when needed.",
        examples=("omnidraft cache", "omnidraft cache --clear"),
    )
    parser.add_argument("--clear", action="store_true", help="remove all of it")
    flags.add(parser, "--json")
    options = parser.read(arguments)
    from omnidraft.models.gguf import conversion

    if options.clear:
        flags.say(f"freed {conversion.clear() / 1e6:.0f} MB")
    entries = conversion.kept()
    if options.json:
        converted = [{"name": each.name, "bytes": each.size, "used": _date(each.used)} for each in entries]
        print(json.dumps({"folder": str(cache_folder()), "converted": converted}))
        return 0
    for each in entries:
        print(f"{each.name}  {each.size / 1e6:.0f} MB  last used {_date(each.used)}")
    flags.say(f"{sum(each.size for each in entries) / 1e6:.0f} MB in {cache_folder()}")
    return 0


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
