"""The page of the command line is what the commands say, and every command shows how it is used."""

from __future__ import annotations

import re
import shlex
import sys
from types import ModuleType

import pytest

from support.project_files import tool


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return tool("write_cli_docs")


@pytest.mark.medium
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words help differently in other versions")
def test_the_page_is_what_the_commands_say(page: ModuleType) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_cli_docs.py"


def test_every_command_has_examples_that_are_commands(page: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    helps = page.helps()
    assert {"omnidraft generate", "omnidraft bench compare", "omnidraft profiles show"} <= helps.keys()
    for name, text in helps.items():
        _, _, examples = text.partition("\nexamples:\n")
        lines = [line.strip() for line in examples.partition("\n\n")[0].splitlines() if line.strip()]
        assert lines, name
        for line in lines:
            words = shlex.split(line.partition(" < ")[0])
            known = [each for each in helps if line == each or line.startswith(each + " ")]
            assert known, line
            command = max(known, key=len)
            if "COMMAND" in words:
                continue
            flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))
            assert flags <= set(re.findall(r"--[a-z][a-z-]*", helps[command])), line
    assert not capsys.readouterr().out
