"""Commands through their own entry point."""

from __future__ import annotations

import pytest

from omnidraft.cli.main import main
from support.project_files import lines


def one_error(captured: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line by which a command refuses its arguments."""
    captured.readouterr()
    assert main([*map(str, arguments)]) == 2, arguments
    out, err = captured.readouterr()
    assert out == ""
    (line,) = lines(err)
    assert line.startswith("omnidraft: error: ")
    return line
