"""What a learning drafter did answer by answer: the counts, the figures that follow from them, and their files."""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omnidraft.errors import InputError
from omnidraft.storage import replace_file

WINDOW = 20  # answers of a moving average, at most; the problems come in rounds of as many
STEM = "learning"
COLORS = {"drafter": "#0072B2", "net": "#D55E00", "alone": "#555555"}  # told apart by the color-blind, too
SIZE = (9.0, 8.0)  # inches, of 100 dots each


@dataclass(frozen=True, kw_only=True)
class Point:
    """One answer: what was counted, and seconds; those of the target alone only where it was timed."""

    tokens: int
    rounds: int
    drafted: int  # tokens
    proposed: int
    accepted: int
    seconds: float  # to the last token
    learning_s: float  # after it
    updates: int  # of the drafter so far
    plain_s: float | None = None
    identical: bool | None = None  # to the answer of the target alone


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What follows from the counts and times of some answers; None where nothing was timed."""

    acceptance_rate: float
    block_efficiency: float
    draft_len: float  # tokens a round
    speedup: float | None
    net_speedup: float | None  # with the time of learning

    @classmethod
    def of(cls, points: Sequence[Point]) -> Figures:
        """Fold a few answers; learning is spread over all of them, whether the target alone was timed or not."""
        proposed, rounds = sum(p.proposed for p in points), sum(p.rounds for p in points)
        timed = [(p.plain_s, p.seconds) for p in points if p.plain_s is not None]
        speedup = sum(alone for alone, _ in timed) / sum(ours for _, ours in timed) if timed else None
        decoding, learning = sum(p.seconds for p in points), sum(p.learning_s for p in points)
        return cls(
            acceptance_rate=sum(p.accepted for p in points) / proposed if proposed else 0.0,
            block_efficiency=sum(p.tokens for p in points) / rounds if rounds else 0.0,
            draft_len=sum(p.drafted for p in points) / rounds if rounds else 0.0,
            speedup=speedup,
            net_speedup=None if speedup is None else speedup * decoding / (decoding + learning),
        )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A whole run: its setting, its answers in order, and whether the target was left as it was."""

    setting: Mapping[str, Any]
    points: tuple[Point, ...]
    weights_unchanged: bool
    seconds: float
    counters: Mapping[str, int | float] = field(default_factory=dict)  # of the trainer

    @property
    def window(self) -> int:
        """Answers at either end that are compared."""
        return max(1, min(WINDOW, len(self.points) // 2))

    @property
    def first(self) -> Figures:
        return Figures.of(self.points[: self.window])

    @property
    def last(self) -> Figures:
        return Figures.of(self.points[-self.window :])

    @property
    def whole(self) -> Figures:
        return Figures.of(self.points)

    @property
    def timed(self) -> int:
        """Answers that were compared with those of the target alone."""
        return sum(point.identical is not None for point in self.points)

    @property
    def identical(self) -> bool:
        return all(point.identical is not False for point in self.points)

    @property
    def paid(self) -> bool:
        """Whether the run was faster than the target alone, learning included."""
        return (self.whole.net_speedup or 0.0) > 1

    @property
    def sound(self) -> bool:
        return self.identical and self.weights_unchanged

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        figures = {name: asdict(getattr(self, name)) for name in ("first", "last", "whole")}
        checks = ("timed", "identical", "weights_unchanged", "paid", "window", "seconds")
        counters = {name: None if math.isnan(count) else count for name, count in self.counters.items()}
        return {
            **self.setting,
            "prompts": len(self.points),
            **{name: getattr(self, name) for name in checks},
            **figures,
            "counters": counters,
            "answers": [asdict(point) for point in self.points],
        }


def moving(points: Sequence[Point]) -> list[Figures]:
    """At each answer, the figures of the last few."""
    return [Figures.of(points[max(0, end - WINDOW) : end]) for end in range(1, len(points) + 1)]


def down(value: float, digits: int) -> str:
    """A figure where more is better, never rounded up."""
    scale = 10**digits
    return f"{math.floor(value * scale) / scale:.{digits}f}"


# ---------------------------------------------------------------- files


def check_folder(folder: Path) -> None:
    """Make the folder; raises InputError where nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def save(curve: Curve, folder: Path) -> list[Path]:
    """Write the curve as JSON, and as PNG where matplotlib is installed; what was written.

    Raises InputError where that fails.
    """
    files = {".json": json.dumps(curve.as_dict(), indent=1).encode() + b"\n"}
    picture = drawn(curve)
    if picture is not None:
        files[".png"] = picture
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, data in files.items():
            replace_file(folder / (STEM + suffix), data)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return [folder / (STEM + suffix) for suffix in files]


def drawn(curve: Curve) -> bytes | None:
    """The curve as PNG; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figures, points = moving(curve.points), curve.points
    numbers = range(1, len(points) + 1)
    figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
    acceptance, blocks, speed = figure.subplots(3, 1, sharex=True)
    for panel, name, single in (
        (acceptance, "acceptance_rate", [Figures.of([p]).acceptance_rate for p in points]),
        (blocks, "block_efficiency", [Figures.of([p]).block_efficiency for p in points]),
    ):
        panel.plot(numbers, single, ".", color=COLORS["drafter"], alpha=0.3, label="one answer")
        panel.plot(numbers, [getattr(f, name) for f in figures], color=COLORS["drafter"], label=f"last {WINDOW}")
    timed = [(number, p.plain_s / p.seconds) for number, p in enumerate(points, 1) if p.plain_s is not None]
    speed.plot(*zip(*timed, strict=True), ".", color=COLORS["drafter"], alpha=0.3, label="one answer")
    for name, color, label in (("speedup", "drafter", ""), ("net_speedup", "net", ", learning included")):
        values = [math.nan if (value := getattr(f, name)) is None else value for f in figures]
        speed.plot(numbers, values, color=COLORS[color], label=f"last {WINDOW}{label}")
    speed.axhline(1.0, color=COLORS["alone"], linewidth=1.0, linestyle="--", label="the target alone")
    acceptance.set_ylabel("acceptance rate")
    blocks.set_ylabel("tokens a pass of the target")
    speed.set_ylabel("speedup")
    speed.set_xlabel("prompts answered")
    for panel in (acceptance, blocks, speed):
        panel.grid(alpha=0.3)
    for panel in (acceptance, speed):
        panel.legend(loc="upper left", frameon=False, ncols=4, fontsize="small")
        low, high = panel.get_ylim()
        panel.set_ylim(low, high + 0.2 * (high - low))  # room for the legend, over the points
    figure.suptitle(f"{curve.setting['target']} answers word problems, and its drafter learns from the answers")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write to {folder} ({error}): give --out another folder")
