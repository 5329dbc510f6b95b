"""The demonstration's second act: a drafter learns while its target answers one prompt after another.

Greedy, in fp32.  Every second prompt is answered by the target alone as well, through the same loop and next to the
other answer in time, which gives the speedup and shows that no token changed.  Nothing learned is kept.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console, Group
from rich.text import Text

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.config import Learning, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.stats import Stats
from omnidraft.demo.learning_curve import WINDOW, Curve, Figures, Point, down, moving, save
from omnidraft.demo.problems import prompts
from omnidraft.demo.terminal import bars, chart, display
from omnidraft.detokenizer import Detokenizer
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

TARGET = zoo.names("target")[-1]  # the chat model
NEW_TOKENS = 64
BUDGET_S = 120.0  # no prompt is begun after it
SEED = 0  # of the prompts
LINES = 4  # in which a run without a terminal tells how far it is
ACCEPTED, OWN, NET = "green", "bold yellow", "cyan"
TEXT_ROWS = 7  # of the terminal, for the prompt and its answer
LARGEST_CHART = 9  # rows


def run(
    console: Console,
    target: Path,
    drafter: Path,
    *,
    name: str = TARGET,
    budget_s: float = BUDGET_S,
    new_tokens: int = NEW_TOKENS,
) -> Curve:
    """Answer prompts and learn from the answers until the time is over; drawn live where `console` is a terminal."""
    console.print(f"{name}: learning from its answers, for {budget_s:.0f} s", style="dim")
    warn = console.print
    loaded = load(target, drafter, dtype="float32", adapt="inline", profile=None, warn=warn)
    with loaded as model, display(console) as live:
        before = _digest(model)
        stage = _Stage(model, new_tokens)
        view = _View(console, live, model, name, budget_s)
        stage.warm_up()
        began = time.perf_counter()
        for number, prompt in enumerate(prompts(SEED)):
            passed = time.perf_counter() - began
            if number and passed >= budget_s:
                break
            view.begin(number, prompt, passed)
            # alternately the even and the odd ones of a round of templates, so that all of them are timed
            timed = (number + number // WINDOW) % 2 == 0
            ids = model.encode_message(prompt)
            view.end(stage.answer(ids, view.show, timed=timed, alone_first=number % 4 < 2))
        setting = {
            "target": name,
            "stopping": model.engine.drafting.stopping,
            "draft_len": model.engine.drafting.longest,
            "new_tokens": new_tokens,
            "budget_s": budget_s,
            "seed": SEED,
            "threads": torch.get_num_threads(),
            "settings": asdict(Learning()),
        }
        return Curve(
            setting=setting,
            points=tuple(view.points),
            weights_unchanged=_digest(model) == before,
            seconds=time.perf_counter() - began,
            counters=model.learned,
        )


def show(console: Console, curve: Curve, folder: Path | None = None) -> None:
    """Print what came of it, and keep the curve where a folder is given; raises InputError where that fails."""
    first, last, whole, count = curve.first, curve.last, curve.whole, len(curve.points)
    updates, back = (curve.counters.get(key, 0) for key in ("updates", "rolled_back"))
    console.print(
        f"{count} prompts in {curve.seconds:.0f} s, {updates} updates of the drafter ({back} taken back); "
        f"{curve.timed} answers compared with plain greedy decoding: "
        + ("every token identical" if curve.identical else "NOT IDENTICAL")
        + f"; the target's weights are {'unchanged' if curve.weights_unchanged else 'NOT WHAT THEY WERE'}",
        soft_wrap=not console.is_terminal,
    )
    if not curve.sound:
        console.print("WHAT THE TARGET SAYS HAS CHANGED. This is a bug.", style="bold red")
    if folder is None:
        kept = "give --out DIR to keep the curve"
    else:
        paths = save(curve, folder)
        kept = f"the curve is kept in {' and '.join(map(str, paths))}"
        kept += "" if len(paths) > 1 else " (a picture of it needs matplotlib, which is not installed)"
    console.print(
        f"{curve.setting['target']}, first {curve.window} -> last {curve.window} prompts: "
        f"acceptance rate {down(first.acceptance_rate, 2)} -> {down(last.acceptance_rate, 2)}, "
        f"block efficiency {down(first.block_efficiency, 2)} -> {down(last.block_efficiency, 2)}, "
        f"draft tokens a round {first.draft_len:.2f} -> {last.draft_len:.2f}, "
        f"speedup {_times(first.speedup)} -> {_times(last.speedup)}; "
        f"with the time of learning {_times(whole.net_speedup)} over the whole run: {_verdict(curve)}; {kept}",
        style="bold",
        soft_wrap=not console.is_terminal,
    )


class _Stage:
    """A target that answers, with its learning drafter and alone."""

    def __init__(self, model: OmniDraft, new_tokens: int) -> None:
        if model.side is None:
            raise ValueError("the demonstration needs a drafter")
        self.side = model.side
        self.engine = model.engine
        self.new_tokens = new_tokens
        self.alone = Engine(model.target.lm, tuple(model.engine.eos))
        self.first = model.encode_message("Question: How much is 2 and 3?\nAnswer:")

    def warm_up(self) -> None:
        """Run everything once that is slower the first time; nothing is learned from it."""
        for engine in (self.alone, self.engine):
            for _ in engine.rounds(self.first, 4, Sampling(), GeneratorSampler(torch.Generator())):
                pass

    def answer(
        self, ids: list[int], say: Callable[[str, Sequence[Round]], None], *, timed: bool, alone_first: bool
    ) -> Point:
        """Answer one prompt and learn from the answer; where it is `timed`, the target answers alone as well."""
        alone: tuple[list[Round], float] | None = None
        if timed and alone_first:  # whoever comes second finds warm caches: they take turns at that
            say("the target answers alone, to compare", [])
            alone = self._alone(ids)
        say("answering with the drafter", [])
        records: list[Round] = []
        began = last = time.perf_counter()
        rounds = self.side.adaptation.following(self._rounds(self.engine, ids))
        for record in rounds:
            records.append(record)
            last = time.perf_counter()
            if record.finish is not None:
                break
        say("learning from the answer", records)
        learning = time.perf_counter()
        for _ in rounds:  # nothing more is said: what is left to do is to learn
            pass
        learned = time.perf_counter()
        if timed and not alone_first:
            say("the target answers alone, to compare", records)
            alone = self._alone(ids)
        stats, learner = Stats.of(records), self.side.adaptation.learner
        return Point(
            tokens=stats.tokens,
            rounds=stats.rounds,
            drafted=stats.drafted,
            proposed=stats.proposed,
            accepted=stats.accepted,
            seconds=last - began,
            learning_s=learned - learning,
            updates=learner.counters.updates if learner else 0,
            plain_s=alone[1] if alone else None,
            identical=_tokens(alone[0]) == _tokens(records) if alone else None,
        )

    def _alone(self, ids: list[int]) -> tuple[list[Round], float]:
        began = time.perf_counter()
        records = list(self._rounds(self.alone, ids))
        return records, time.perf_counter() - began

    def _rounds(self, engine: Engine, ids: list[int]) -> Iterator[Round]:
        return engine.rounds(ids, self.new_tokens, Sampling(), GeneratorSampler(torch.Generator()))


class _View:
    """What is seen of the run: charts in a terminal, else a line now and then."""

    def __init__(self, console: Console, live: Live | None, model: OmniDraft, name: str, budget_s: float) -> None:
        self.console = console
        self.live = live
        self.model = model
        self.name = name
        self.budget_s = budget_s
        self.points: list[Point] = []
        self.prompt = ""
        self._passed = 0.0
        self._said = 0  # lines
        self._figures: list[Figures] = []

    def begin(self, number: int, prompt: str, passed: float) -> None:
        """A prompt is next."""
        self.prompt, self._passed = prompt, passed
        if self.live is None and number and passed * (LINES + 1) >= self.budget_s * (self._said + 1):
            self._said = int(passed * (LINES + 1) / self.budget_s)
            said = f"{passed:.0f} s, {number} prompts; in the last {min(number, WINDOW)}: {_phrase(self._figures[-1])}"
            self.console.print(said, soft_wrap=True)

    def end(self, point: Point) -> None:
        """The prompt is answered and learned from."""
        self.points.append(point)
        self._figures = [*self._figures, *moving(self.points[-WINDOW:])[-1:]]

    def show(self, state: str, records: Sequence[Round]) -> None:
        """Draw everything anew, between what is timed."""
        if self.live is not None:
            self.live.update(self._drawn(state, records), refresh=True)

    def _drawn(self, state: str, records: Sequence[Round]) -> RenderableType:
        width, height = self.console.width, self.console.height
        updates = self.points[-1].updates if self.points else 0
        lengths = bars([len(record.draft) for record in records], width // 2)
        head = Text.assemble(
            (f"{self.name}, prompt {len(self.points) + 1}", "bold"),
            f"  {self._passed:.0f} of {self.budget_s:.0f} s  updates of the drafter: {updates}",
        )
        text_rows = min(TEXT_ROWS, max(0, height - 12))
        rows = max(2, min(LARGEST_CHART, (height - text_rows - 7) // 2))
        lines = self._answer(records).wrap(self.console, width)[:text_rows]
        blank = [Text()] * (text_rows - len(lines))
        now = self._figures[-1] if self._figures else Figures.of([])
        acceptance = [figures.acceptance_rate for figures in self._figures]
        speedup, net = ([getattr(f, key) for f in self._figures] for key in ("speedup", "net_speedup"))
        over = Text.assemble(
            "speedup over the target alone ",
            (_times(now.speedup), ACCEPTED),
            ", with the time of learning ",
            (_times(now.net_speedup), NET),
            " (dots: 1x)",
        )
        rate = Text.assemble(
            f"mean of the last {WINDOW} prompts: acceptance rate ",
            (down(now.acceptance_rate, 2), ACCEPTED),
            f", tokens a pass {down(now.block_efficiency, 2)}, draft tokens a round {now.draft_len:.2f}",
        )
        drawings = (
            rate,
            *chart([(acceptance, ACCEPTED)], width, rows, step=0.1),
            over,
            *chart([(net, NET), (speedup, ACCEPTED)], width, rows, step=0.2, rule=1.0),
        )
        for line in (head, over, rate):
            line.truncate(width, overflow="ellipsis")
        now_at = Text.assemble((state, "italic"), f"  drafts {lengths}" if lengths else "")
        now_at.truncate(width, overflow="ellipsis")
        return Group(head, now_at, *lines, *blank, *drawings)

    def _answer(self, records: Sequence[Round]) -> Text:
        """The prompt, and its answer: accepted tokens in one color, the target's own in another."""
        said = Text(self.prompt, style="dim")
        text = Detokenizer(self.model.vocab.tokens)
        for record in records:
            for place, token in enumerate(record.emitted):
                said.append(text.feed([token]), style=ACCEPTED if place < record.accepted else OWN)
        return said


def _digest(model: OmniDraft) -> str:
    """A hash of the target's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.target.lm.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tokens(records: Sequence[Round]) -> list[int]:
    return [token for record in records for token in record.emitted]


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{down(ratio, 2)}x"


def _phrase(figures: Figures) -> str:
    return (
        f"acceptance rate {down(figures.acceptance_rate, 2)}, block efficiency {down(figures.block_efficiency, 2)}, "
        f"draft tokens a round {figures.draft_len:.2f}, "
        f"speedup {_times(figures.speedup)}, with the time of learning {_times(figures.net_speedup)}"
    )


def _verdict(curve: Curve) -> str:
    if curve.paid:
        return "it paid"
    last = curve.last.net_speedup or 0.0
    return f"it has not paid yet, but the last {curve.window} did ({_times(last)})" if last > 1 else "it did not pay"
