#!/usr/bin/env python3
"""Fetch the page's scripts of others from npm: `python tools/vendor_scripts.py`, after a change of `vendored.toml`.

Writes each script and its license beside that file, and the scripts' SHA-256 into it.  Needs `npm`, which checks the
packages against the registry's own hashes.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src" / "omnidraft" / "server" / "page" / "vendor"
KEPT = FOLDER / "vendored.toml"


def fetch(package: str, version: str, paths: list[str]) -> list[bytes]:
    """Files of a package's release."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{package}@{version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        (archive,) = Path(folder).iterdir()
        with tarfile.open(archive) as tar:
            members = [tar.extractfile(f"package/{path}") for path in paths]
            return [member.read() for member in members if member is not None]


def main() -> None:
    """Fetch all of them."""
    text = KEPT.read_text(encoding="utf-8")
    for name, made in tomllib.loads(text).items():
        script, license_text = fetch(made["package"], made["version"], [made["path"], "LICENSE"])
        (FOLDER / name).write_bytes(script)
        (FOLDER / name).with_suffix(".LICENSE").write_bytes(license_text)
        head, table, rest = text.partition(f'["{name}"]')
        digest = hashlib.sha256(script).hexdigest()
        text = head + table + re.sub(r'sha256 = "\w*"', f'sha256 = "{digest}"', rest, count=1)
        print(f"{name}: {made['package']} {made['version']}, {len(script):,} bytes")
    KEPT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
