"""Chat answers without and with drafts, live, then drafts that get better along a stream; greedy decoding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers.generation.streamers import BaseStreamer

from omnidraft.api import OmniDraft, load
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.demo.scenes import Scene
from omnidraft.models.loading import choose_dtype
from omnidraft.verification.sampling import GeneratorSampler

WAYS = ("without drafts", "with drafts")
GENERATE = "generate of transformers"
TOKENS = 64, 64  # of an answer of the chat and of the stream, at most
QUICK_TOKENS = 32, 24
GROUP = 4  # prompts of a bar, and answers between two updates of the drafter
BUDGET_S = 200.0  # no group of the stream begins after it
LEARN_S = 15.0  # that an update is waited for
FRAME_S = 0.1  # between two drawings of an answer
BAR = 32  # characters


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
    generate_tokens_per_s: float | None  # of transformers, which has no 8-bit weights on a CPU; None in other dtypes
    stream: tuple[Figures, ...]
    updates: int  # of the drafter
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether a token differs that may not: in float32 and int8 all are the same without drafts."""
        parts = (self.chat, *self.stream)
        return self.dtype in ("float32", "int8") and any(part.identical < part.prompts for part in parts)


def run(
    shown: Scene,
    console: Console,
    say: Callable[[str], None],
    *,
    tokens: tuple[int, int] = TOKENS,
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
    usual = _usual(model, shown, say, options)
    answers = [
        _chat(model, prompt, tokens[0], console, usual, swapped=number % 2 == 1)
        for number, prompt in enumerate(shown.chat)
    ]
    generate = None if usual is None else _rate([first for first, *_ in answers])
    del model, usual  # the next one has the same weights
    console.print(f"\n{len(shown.stream)} prompts of one kind; drafts follow earlier answers, and the drafter learns")
    with load(shown.target, profile=None, warn=say, adapt=adapt, interval=GROUP, **options) as model:
        stream = _stream(_ready(model, shown.stream[0]), shown.stream, tokens[1], console, began + BUDGET_S)
        updates = int(model.learned["updates"])
        dtype = model.target.lm.precision
        return Result(
            target=model.target.name,
            drafter=drafter,
            dtype=dtype,
            threads=torch.get_num_threads(),
            chat=Figures.of([(plain, drafted) for *_, plain, drafted in answers]),
            generate_tokens_per_s=generate,
            stream=tuple(stream),
            updates=updates,
            seconds=time.perf_counter() - began,
        )


def _usual(model: OmniDraft, shown: Scene, say: Callable[[str], None], options: Mapping[str, Any]) -> OmniDraft | None:
    """A target of 8 bits as transformers runs it, in the precision that suits this machine; None for other targets."""
    if model.target.lm.generates:
        return None
    skeleton = model.target.lm.model
    dtype, _ = choose_dtype(torch.device("cpu"), skeleton.config.dtype, skeleton.num_parameters())
    named = {**options, "drafter": None, "dtype": dtype}
    usual = load(shown.target, profile=None, warn=say, **named)
    _plain(usual, usual.encode_message(shown.chat[0]), 2, lambda _: None)
    return usual


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

    def __init__(self, way: str, model: OmniDraft, prompt: list[int], show: Show) -> None:
        self._way = way
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
        return Answer(way=self._way, text="".join(self._pieces), tokens=ids, passes=len(ids), seconds=seconds)


def _plain(model: OmniDraft, prompt: list[int], new_tokens: int, show: Show, way: str = WAYS[0]) -> Answer:
    """Answer with `generate` of transformers, the target alone; with 8-bit weights, which it has not, with our loop."""
    ids = torch.tensor([prompt], device=model.target.lm.device)
    tokens = _Tokens(way, model, prompt, show)
    if not model.target.lm.generates:
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
    model.engine.release()  # as without drafts, the whole prompt is read
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


def _chat(
    model: OmniDraft, prompt: str, new_tokens: int, console: Console, usual: OmniDraft | None, *, swapped: bool
) -> tuple[Answer, ...]:
    """Answers to a prompt, drawn side by side while they are made; off a terminal once they are complete.

    They are those without and with drafts, after that of transformers where there is a `usual` model.
    """
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

        slow = [] if usual is None else [_plain(usual, model.encode_message(prompt), new_tokens, show, GENERATE)]
        answers = (*slow, *in_turns(model, prompt, new_tokens, swapped=swapped, show=show))
        live.update(_panels({answer.way: answer for answer in answers}), refresh=True)
    return answers


def _panels(answers: Mapping[str, Answer]) -> Table:
    grid = Table.grid(expand=True)
    panels = []
    for way in (GENERATE, *WAYS) if GENERATE in answers else WAYS:
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
    slow = result.generate_tokens_per_s
    beside = "" if slow is None else f"{down(slow, 1)} tokens/s by generate of transformers, "
    return (
        f"measured: chat {beside}{down(chat.plain_tokens_per_s, 1)} tokens/s without drafts, "
        f"{down(chat.tokens_per_s, 1)} with drafts ({down(chat.speedup, 2)}x); stream {down(first.speedup, 2)}x at "
        f"first, {down(last.speedup, 2)}x in the end, {down(first.block_efficiency, 2)} and "
        f"{down(last.block_efficiency, 2)} tokens a pass, after {result.updates} updates of the drafter; "
        f"{sum(part.identical for part in parts)} of {sum(part.prompts for part in parts)} answers identical token for "
        f"token; {result.dtype}, threads: {result.threads}, {result.seconds:.0f} s in all"
    )


def down(value: float, digits: int) -> str:
    """A figure of which more is better, never rounded up."""
    scale = 10**digits
    return f"{math.floor(value * scale) / scale:.{digits}f}"
