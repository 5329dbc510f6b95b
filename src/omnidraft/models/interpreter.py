"""What the libraries need of the interpreter."""

from __future__ import annotations

import sys

from omnidraft.errors import ConfigError

WITHOUT_DOCSTRINGS = 2  # level of optimization


def check_docstrings() -> None:
    """Raise ConfigError for `python -OO`: transformers reads docstrings of its own when it is imported."""
    if sys.flags.optimize >= WITHOUT_DOCSTRINGS:
        raise ConfigError("transformers does not run under `python -OO` or PYTHONOPTIMIZE=2: use python without -OO")
