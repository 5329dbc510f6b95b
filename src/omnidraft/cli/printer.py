"""Tables and text on stdout."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class Printer(Console):
    """A console that raises what `print` raises where its reader has gone, and takes no text for markup."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError
