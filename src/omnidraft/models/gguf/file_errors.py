"""Errors of reading as ModelErrors of one line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnidraft.errors import ModelError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line, and silence `transformers`."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with naming(path):
            yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(f"reading {path.name} takes the gguf package: pip install 'omnidraft[gguf]'") from error
    except Exception as error:  # tokenizers raise anything
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise ModelError(
            f"cannot read GGUF file {path.name} ({reason}): get the complete file of a text model"
        ) from error
