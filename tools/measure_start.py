"""Seconds from a command to its first token, by parts: each row is a process of its own that does a little more.

    python tools/measure_start.py FILE.gguf [FILE.gguf ...] [--times 5]

The medians are printed as a table; PYTHONPATH says which source is measured.  Files should be in the page cache, and
the machine quiet.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

LOAD = "import omnidraft; model = omnidraft.load({path!r}{more}, profile=None)"
STEPS = {
    "`omnidraft --help`": "from omnidraft.cli import main; main.main(['--help'])",
    "import torch": "import torch",
    "and `import omnidraft.api`": "import omnidraft.api",
    "and load the target": LOAD.replace("{more}", ", None"),
    "and the drafter": LOAD.replace("{more}", ""),
    "and answer with one token": LOAD.replace("{more}", "") + "; model.generate('Hello', max_new_tokens=1)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--times", type=int, default=5, help="processes of each kind (default: 5)")
    options = parser.parse_args()
    print("| | " + " | ".join(path.rsplit("/", 1)[-1] for path in options.files) + " |")
    print("| --- |" + " ---: |" * len(options.files))
    for name, code in STEPS.items():
        taken = [median(code.replace("{path!r}", repr(path)), options.times) for path in options.files]
        print(f"| {name} | " + " | ".join(f"{each:.2f} s" for each in taken) + " |", flush=True)


def median(code: str, times: int) -> float:
    """Seconds of a process that runs this code, after one that is not counted."""
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)  # noqa: S603
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    main()
