"""`python -m omnidraft`: the command line."""

from __future__ import annotations

import sys

from omnidraft.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
