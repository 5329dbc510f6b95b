"""The trainer of a fleet: reads what replicas spooled, learns, and publishes the versions that are better.

Replicas give tokens and no distributions, so each token stands for the target's whole distribution at its place.  What
is learned from that is the target's likeliest token, the one that replicas propose.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from omnidraft.config import Learning
from omnidraft.distillation.lora import Weights
from omnidraft.distillation.losses import HybridLoss
from omnidraft.distillation.teacher import TrainingExample, shared_tokens, trace_of, training_example
from omnidraft.distillation.trainer import Trainer
from omnidraft.errors import ModelError
from omnidraft.fleet.pair import RemotePair, fits
from omnidraft.fleet.releases import Current, Releases, check
from omnidraft.fleet.settings import FleetLearning
from omnidraft.fleet.spool import Answer, answers, segments
from omnidraft.storage import make_folder, remove_old_leftovers
from omnidraft.verification.sparse_probs import SparseProbs

HELD_OUT = 48  # latest held-out answers that a version is judged by
LEAST_HELD_OUT = 8  # below which nothing is published
LOOK_S = 1.0  # between looks at the spool
LEFTOVER_S = 3600.0  # after which what a killed process has begun to write is removed
_log = logging.getLogger("omnidraft")


class FleetTrainer:
    """Makes versions of a drafter for one target, one step after the other; a restart goes on from the stable one."""

    def __init__(
        self,
        pair: RemotePair,
        releases: Releases,
        spool: Path,
        settings: FleetLearning,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = _log.info,
    ) -> None:
        make_folder(spool)
        make_folder(releases.folder)
        self._tidied = -LEFTOVER_S
        self._pair, self._releases, self._spool, self._settings = pair, releases, spool, settings
        self._clock, self._say = clock, say
        learning = Learning(
            trains="drafter",
            adapter=settings.adapter,
            rank=settings.rank,
            learning_rate=settings.learning_rate,
            interval=settings.answers,
        )
        self._trainer = Trainer(pair.drafter.lm.model, learning, shared_tokens(pair.attached.cache.table))
        self._first = self._trainer.state()  # that changes nothing
        current = releases.current()
        self._load(current.stable if current.canary is None else current.canary)
        self._held_out: deque[TrainingExample] = deque(maxlen=HELD_OUT)
        self._read: set[Path] = set()  # segments whose answers are not learned from yet
        self._new = 0  # answers in them to learn from
        self._drafted, self._accepted = Counter[int](), Counter[int]()  # proposals, by version
        self._trial_began = clock()

    @property
    def waiting(self) -> int:
        """Answers that were read and are not learned from yet."""
        return self._new

    def state(self) -> Weights:
        """A copy of the weights as they are now."""
        return self._trainer.state()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Take steps until `stopped`, waiting where there is nothing to do."""
        while not stopped():
            self.step()
            time.sleep(LOOK_S)

    def step(self) -> None:
        """Read the spool; then judge the version on trial, or learn the next one where there are answers enough."""
        self._tidy()
        self._take_answers()
        current = self._releases.current()
        if current.canary is not None:
            self._judge(current)
        elif self._new >= self._settings.answers and len(self._held_out) >= LEAST_HELD_OUT:
            self._learn()

    def _tidy(self) -> None:
        """Remove what killed processes had begun to write, now and then."""
        if time.monotonic() - self._tidied >= LEFTOVER_S:
            self._tidied = time.monotonic()
            with contextlib.suppress(OSError):
                for folder in (self._spool, self._releases.folder):
                    remove_old_leftovers(folder, LEFTOVER_S)

    # ------------------------------------------------------------ answers

    def _take_answers(self) -> None:
        for path in segments(self._spool):
            if path not in self._read:
                self._read.add(path)
                for answer in answers(path):
                    self._take(answer)

    def _take(self, answer: Answer) -> None:
        vocab = self._pair.vocab
        if not (answer.prompt and answer.tokens and fits(answer.prompt, vocab) and fits(answer.tokens, vocab)):
            return
        self._drafted[answer.version] += answer.drafted
        self._accepted[answer.version] += min(answer.accepted, answer.drafted)
        example = self._example(answer)
        if not example.positions:
            return
        digest = hashlib.sha256(np.array([*answer.prompt, -1, *answer.tokens], np.int64).tobytes()).digest()
        if int.from_bytes(digest[:8], "big") / 2**64 < self._settings.hold_out:  # of equal answers all or none
            self._held_out.append(example)
        else:
            self._trainer.add(example)
            self._new += 1

    def _example(self, answer: Answer) -> TrainingExample:
        attached = self._pair.attached
        prompt = attached.context.prompt(answer.prompt)
        certain = [SparseProbs(np.array([token], np.int32), np.ones(1, np.float32)) for token in answer.tokens]
        longest = attached.drafter.model.context
        trace = trace_of(attached.context, prompt, answer.tokens, certain, longest)
        return training_example(attached.cache, trace, self._trainer.learning.loss, HybridLoss())

    def _forget(self) -> None:
        """Remove the segments whose answers were learned from."""
        for path in self._read:
            path.unlink(missing_ok=True)
        self._read, self._new = set(), 0

    # ------------------------------------------------------------ versions

    def _learn(self) -> None:
        held_out = list(self._held_out)
        before, learned = self._trainer.loss(held_out), min(self._new, self._settings.answers)
        paused = self._trainer.counters.paused
        changed = self._trainer.update()
        if self._trainer.counters.paused > paused:
            return  # for want of memory: the answers wait
        after = self._trainer.loss(held_out) if changed else before
        said = f"{learned} answers: held-out loss {before:.4f} -> {after:.4f}"
        if not (changed and math.isfinite(after) and after < before):
            self._load(self._releases.current().stable)
            self._forget()
            self._say(f"{said}, not published")
            return
        state = self._trainer.state()
        check(state, self._pair.base)
        current = self._releases.publish(state, self._settings.share)
        self._forget()
        self._drafted.clear()
        self._accepted.clear()
        self._trial_began = self._clock()
        where = "for all" if current.canary is None else f"for {current.share:.1%} of the replicas"
        self._say(f"{said}, version {current.newest} {where}")

    def _judge(self, current: Current) -> None:
        """End the trial of a version where there are proposals enough, or time is up."""
        canary = current.canary or 0
        waited = self._clock() - self._trial_began
        counts = [self._drafted[canary], self._drafted[current.stable]]
        if min(counts) < self._settings.trial and waited < self._settings.patience:
            return
        ours, theirs = (self._rate(version) for version in (canary, current.stable))
        said = f"version {canary}: acceptance rate {_percent(ours)} of {counts[0]} proposals, "
        said += f"{_percent(theirs)} of {counts[1]} with version {current.stable}"
        lost = 0.0 if ours is None or theirs is None else theirs - ours
        if lost > self._settings.margin * (theirs or 0.0) + self._noise(canary, current.stable):
            self._releases.withdraw()
            self._load(current.stable)
            self._say(f"{said}: withdrawn")
        else:
            self._releases.promote()
            self._say(f"{said}: for all")

    def _noise(self, canary: int, stable: int) -> float:
        """Two standard errors of the difference of the acceptance rates of two versions."""
        counts = [max(1, self._drafted[version]) for version in (canary, stable)]
        rate = sum(self._accepted[version] for version in (canary, stable)) / sum(counts)
        return 2 * math.sqrt(rate * (1 - rate) * sum(1 / count for count in counts))

    def _rate(self, version: int) -> float | None:
        drafted = self._drafted[version]
        return self._accepted[version] / drafted if drafted else None

    def _load(self, version: int) -> None:
        """Go on from a version; from the drafter as it was shipped where it cannot be read."""
        state: Weights = {}
        try:
            state = self._releases.weights(version, self._pair.base)
        except (ModelError, OSError) as error:
            self._say(f"{error}; learning begins anew")
        self._trainer.load_state(state or self._first)


def _percent(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.1%}"
