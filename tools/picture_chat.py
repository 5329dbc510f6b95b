"""Make docs/chat.svg: a question to `omnidraft chat` in a terminal, and its answer.

    python tools/picture_chat.py QUESTION --target MODEL.gguf [OPTION ...]

The command runs in a pseudo-terminal; what it writes is drawn by rich, in the letters that the reader's system has.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "chat.svg"
COLUMNS, LINES = 92, 40
PROMPT = b"> "
# what moves no text: modes of the terminal, such as that for text that is pasted
MODES = re.compile(rb"\x1b\[\?\d+[hl]")
FORMAT = re.sub(r"\s*(@font-face {{.*?}}|<!--.*?-->)", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def said_until(terminal: int, end: bytes | None) -> bytes:
    """What a program writes until it waits after these bytes, or has ended."""
    said = b""
    while end is None or not MODES.sub(b"", said).endswith(end):
        try:
            part = os.read(terminal, 4096)
        except OSError:  # as Linux says that the other side is closed
            break
        if not part:
            break
        said += part
    return said


def conversation(words: list[str], question: str) -> str:
    """The screen of a program that asks for a line, is given the question, and then the end of its input."""
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(words, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True):  # noqa: S603
        os.close(other)
        said = said_until(terminal, b"\n" + PROMPT)
        os.write(terminal, f"{question}\n".encode())
        said += said_until(terminal, b"\n" + PROMPT)
        os.write(terminal, b"\x04")
        said_until(terminal, None)
        os.close(terminal)
    lines = MODES.sub(b"", said).decode().replace("\r\n", "\n").split("\n")[:-1]
    return "\n".join(line.rpartition("\r")[2] for line in lines)  # bars are drawn over what they were


def main(question: str, *options: str) -> None:
    command = ["omnidraft", "chat", *options]
    console = Console(width=COLUMNS, record=True, force_terminal=True, file=io.StringIO())
    shown = shlex.join(Path(word).name if "/" in word else word for word in command)
    console.print(Text(f"$ {shown}\n") + Text.from_ansi(conversation(command, question)), overflow="fold")
    picture = console.export_svg(title="omnidraft chat", code_format=FORMAT, unique_id="chat")
    PICTURE.write_text(picture.replace("Fira Code, ", ""), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
