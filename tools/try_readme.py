"""Run what the README shows, by the Python that runs this and the commands beside it: `PYTHON tools/try_readme.py`.

The block of Python, the chat with a question, and the server with OpenAI's client, which has to be installed.  An
embedded model takes the place of the file; nothing is read from a network.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

README = Path(__file__).parents[1] / "README.md"
FILE, STAND_IN = re.compile(r"[\w.-]+\.gguf"), "zoo:target-b"
QUESTION = "Question: Tim has 4 boxes of 6 pens. How many pens has he?\n"
SECONDS = 600  # for a model to load, and for an answer, on a machine that is busy


def blocks(language: str) -> list[str]:
    text = FILE.sub(STAND_IN, README.read_text(encoding="utf-8"))
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def command(name: str) -> list[str]:
    """The words of the command of that name, the program being the one beside this Python."""
    lines = "".join(blocks("console")).splitlines()
    (line,) = [line for line in lines if line.startswith(f"$ omnidraft {name} ")]
    return [str(Path(sys.executable).with_name("omnidraft")), *shlex.split(line)[2:]]


def show(words: list[str], said: str = "") -> None:
    done = subprocess.run(words, input=said, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS)  # noqa: S603
    if not (answer := done.stdout.strip()):
        raise SystemExit(f"{shlex.join(words)} said nothing")
    print(f"{' '.join(words)[:70]!r}: {answer[:60]!r}", flush=True)


def serve(client: str) -> None:
    """The server of the README on a free port, and what a client is answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*command("serve"), "--port", str(port)]) as server:  # noqa: S603
        try:
            end = time.monotonic() + SECONDS
            while not answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the server did not start")
                time.sleep(0.1)
            show([sys.executable, "-c", client.replace(":8080", f":{port}")])
        finally:
            server.terminate()


def answers(url: str) -> bool:
    try:
        return bool(urlopen(url, timeout=SECONDS).status == 200)  # noqa: S310  our own
    except OSError:
        return False


def main() -> None:
    (python,) = [block for block in blocks("python") if "OpenAI" not in block]
    (client,) = [block for block in blocks("python") if "OpenAI" in block]
    show([sys.executable, "-c", python])
    show(command("chat"), QUESTION)
    serve(client)


if __name__ == "__main__":
    main()
