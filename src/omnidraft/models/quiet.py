"""Reports of transformers, which are for its own users."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def silence(*, bars: bool) -> None:
    """Silence the advice of transformers from now on, and its progress bars unless they are asked for.

    It is not imported for that, as not every model needs it: it reads these variables when it is.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if not bars:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_verbosity_error()
        if not bars:
            logging.disable_progress_bar()


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the reports of transformers inside, if it has been imported."""
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
