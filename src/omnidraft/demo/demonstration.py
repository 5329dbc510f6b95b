"""Questions answered without drafts and with drafts, greedy, printed as they are decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.bench.interleaved import sampler
from omnidraft.bench.output import down
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.demo.smollm2 import smollm2
from omnidraft.errors import InputError

WITHOUT, WITH = "without drafts", "with drafts"
TOKENS, QUICK_TOKENS = 96, 32  # maximum tokens of an answer
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
PROBLEMS = (  # the embedded target was trained on such text
    "Question: Greta has 12 books and buys 7 more. How many books does Greta have now?\nAnswer:",
    "Question: Hugo has 42 stamps and gives 10 of them away. How many stamps are left?\nAnswer:",
    "Question: There are 8 boxes with 15 pencils in each. How many pencils are there in all?\nAnswer:",
)


@dataclass(frozen=True, kw_only=True)
class DemoAnswer:
    """A greedy answer; `seconds` include the prompt's prefill."""

    tokens: tuple[int, ...]
    rounds: int  # forward passes of the target
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Totals over all questions."""

    target: str
    drafter: str
    dtype: str  # of the target
    threads: int
    answers: int
    identical: int  # answers with drafts that have the same tokens as without
    plain_tokens_per_s: float  # without drafts
    tokens_per_s: float
    speedup: float
    tokens_per_pass: float

    @property
    def wrong(self) -> bool:
        """True if tokens differ in a dtype in which drafts may change none."""
        return self.dtype in ("float32", "int8") and self.identical < self.answers


def scene(
    say: Callable[[str], None], *, offline: bool = False, quick: bool = False
) -> tuple[str | Path, Sequence[str]]:
    """The target and its questions: SmolLM2 with chat questions, or the embedded target.

    The embedded one is used with `quick`, or if SmolLM2 is not available; `say` then receives the reason.
    """
    if not quick:
        try:
            return smollm2(say, offline=offline), CHAT
        except InputError as error:
            say(f"using an embedded test model, which is too small for a large speedup: {error}")
    return zoo.TARGET, PROBLEMS


def run(
    target: str | Path,
    questions: Sequence[str],
    console: Console,
    say: Callable[[str], None],
    *,
    new_tokens: int = TOKENS,
    **options: Any,
) -> Result:
    """Answer each question without and with drafts, and print the answers; `options` are those of `load`."""

    def show(text: str) -> None:
        console.print(text, end="", soft_wrap=True)

    with load(target, profile=None, warn=say, **options) as model:
        drafter = model.drafter.name if model.drafter else "none"
        dtype, threads = model.target.lm.precision, torch.get_num_threads()
        console.print(f"target {model.target.name} ({dtype}), drafter {drafter}, {threads} threads", soft_wrap=True)
        lanes = {WITHOUT: Lane(model.target.lm, model.vocab.eos), WITH: model.lane}
        for lane in lanes.values():  # the first passes allocate memory
            answer(lane, model, model.encode_message(questions[0]), 2, lambda _: None)
        answers: dict[str, list[DemoAnswer]] = {WITHOUT: [], WITH: []}
        for number, question in enumerate(questions):
            console.print(f"\n{question}", style="bold", soft_wrap=True)
            ids = model.encode_message(question)
            for name in list(lanes)[:: -1 if number % 2 else 1]:  # the second finds warm caches: take turns
                console.print(f"\n{name}:", style="dim")
                answers[name].append(answer(lanes[name], model, ids, new_tokens, show))
                seconds, speed = answers[name][-1].seconds, rate(answers[name][-1:])
                console.print(f"\n({seconds:.2f} s, {down(speed, 1)} tokens/s)", style="dim")
    plain, drafted = rate(answers[WITHOUT]), rate(answers[WITH])
    pairs = zip(answers[WITHOUT], answers[WITH], strict=True)
    return Result(
        target=model.target.name,
        drafter=drafter,
        dtype=dtype,
        threads=threads,
        answers=len(questions),
        identical=sum(one.tokens == other.tokens for one, other in pairs),
        plain_tokens_per_s=plain,
        tokens_per_s=drafted,
        speedup=drafted / plain,
        tokens_per_pass=sum(len(each.tokens) for each in answers[WITH]) / sum(each.rounds for each in answers[WITH]),
    )


def answer(lane: Lane, model: OmniDraft, ids: list[int], new_tokens: int, show: Callable[[str], None]) -> DemoAnswer:
    """Decode a prompt's greedy answer; `show` receives its text piece by piece."""
    text, tokens, passes = model.text_after(ids), list[int](), 0
    lane.release()  # the whole prompt is read each time
    began = time.perf_counter()
    for record in decode(lane, ids, new_tokens, Sampling(), sampler()):
        tokens += record.emitted
        passes += 1
        show(text.feed(record.emitted))
    seconds = time.perf_counter() - began
    show(text.end())
    return DemoAnswer(tokens=tuple(tokens), rounds=passes, seconds=seconds)


def rate(answers: Sequence[DemoAnswer]) -> float:
    """Tokens per second over some answers."""
    return sum(len(each.tokens) for each in answers) / sum(each.seconds for each in answers)


def summary(result: Result) -> str:
    """The totals in a line."""
    return (
        f"{result.identical} of {result.answers} answers are identical token for token; "
        f"{down(result.plain_tokens_per_s, 1)} tokens/s without drafts, {down(result.tokens_per_s, 1)} with drafts "
        f"({down(result.speedup, 2)}x, {down(result.tokens_per_pass, 2)} tokens per pass of the target)"
    )
