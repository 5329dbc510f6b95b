"""A drafter that learns from answers recorded once, and drafts for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from experiments.paper_training import HybridLoss, trainer_for
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.api import OmniDraft
from omnidraft.attach import make_cache
from omnidraft.bench.interleaved import drafter_of, emitted, engine_for, sampler
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stats import Stats
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.inline import InlineTrainer
from omnidraft.distillation.losses import acceptance, divergence
from omnidraft.distillation.teacher import Trace, exact_example
from omnidraft.verification.sparse_probs import SparseProbs

GREEDY = Sampling()


@dataclass(frozen=True, eq=False)
class Recorded:
    """A target's answer to a prompt, and its distribution at each token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    teacher: tuple[SparseProbs, ...]


def record(
    model: OmniDraft, prompt: Sequence[int], new_tokens: int, sampling: Sampling, temperature: float, seed: int = 0
) -> Recorded:
    """Answer a prompt by the target alone, and keep its distributions at the teacher's `temperature`."""
    engine = engine_for(model)
    engine.teacher_temperature = temperature
    rounds = list(engine.rounds(prompt, new_tokens, sampling, sampler(seed)))
    teacher = tuple(probs for record in rounds for probs in record.teacher)
    return Recorded(tuple(prompt), tuple(emitted(rounds)), teacher)


class Student:
    """A drafter for one target, which learns by `learning`, or does not where that is None.

    `shared` is the copy of the drafter that drafts, by default one of its own.  `how` and `hybrid` are those of
    `paper_training.trainer_for`.  `then` is the loss of updates in the second half of a stream, by default that of
    `learning`.  `caches` makes its n-gram caches, by default those of `drafting`.
    """

    def __init__(  # noqa: PLR0913  every method of the tables sets some of these
        self,
        model: OmniDraft,
        drafting: Drafting,
        learning: Learning | None = None,
        *,
        shared: SharedDrafter | None = None,
        seed: int = 0,
        how: str = "joint",
        hybrid: HybridLoss | None = None,
        then: str | None = None,
        caches: Callable[[], NgramCache] | None = None,
    ) -> None:
        pair = drafter_of(model)
        if shared is None:
            if model.drafter is None:
                raise ValueError("a study of drafts needs a drafter")
            shared = SharedDrafter(model.drafter.lm)
        self._model, self.drafting, self.shared = model, drafting, shared
        self._caches = caches or partial(make_cache, pair.cache.table, drafting)
        cache = self._caches()
        self.attached = AttachedDrafter(drafter=Drafter(shared.model), context=pair.context, cache=cache)
        self._then, self._trainer, learner = then, None, None
        if learning is not None:
            self._trainer = trainer_for(shared.source.model, learning, cache.table, seed, how, hybrid)
            learner = InlineTrainer(self._trainer)
        self.adaptation = Adaptation(self.attached, shared, learner)
        self.spent_s = 0.0  # on learning

    def resume(self, source: Student) -> None:
        """Go on with the weights of another student, and what the cache may keep of its n-grams; learn no more."""
        self.adaptation = Adaptation(self.attached, self.shared, None, source.adaptation.state)
        if not self.attached.cache.frozen:
            self.attached.cache.resume(source.attached.cache.state())

    # ------------------------------------------------------------ learning

    def follow(self, recorded: Recorded) -> Stats:
        """Draft for a recorded answer, then learn from it; the counts of drafting."""
        stats = self._drafted(recorded, self.attached.cache)
        self.learn(recorded)
        return stats

    def learn(self, recorded: Recorded) -> None:
        """Learn from a recorded answer."""
        if self.adaptation.learner is None:
            return
        began = time.perf_counter()
        self.adaptation.learner.teach(self._trace(recorded), self.attached.cache)
        self.adaptation.load_weights()
        self.spent_s += time.perf_counter() - began

    def learn_all(self, stream: Sequence[Recorded]) -> None:
        """Let the n-gram cache see a stream of answers, and learn from all of them."""
        for place, recorded in enumerate(stream):
            if self._then is not None and self._trainer is not None and 2 * place >= len(stream):
                self._trainer.loss = partial(divergence, kind=self._then)
            self.attached.cache.observe(recorded.tokens)
            self.learn(recorded)
        self.flush()

    def flush(self) -> None:
        """Learn from everything so far."""
        began = time.perf_counter()
        self.adaptation.flush()
        self.spent_s += time.perf_counter() - began

    # ------------------------------------------------------------ drafting

    def examine(self, tests: Sequence[Recorded]) -> Stats:
        """The counts of drafting for greedy answers, from which nothing is learned."""
        cache = self._caches()  # a copy, as drafting changes it
        if not cache.frozen:
            cache.resume(self.attached.cache.state())
        return Stats.sum(self._drafted(test, cache) for test in tests)

    def chances(self, tests: Sequence[Recorded], temperature: float, teacher_temperature: float) -> float:
        """The mean acceptance probability of a draft token at each place of recorded answers, greedy or at 1.

        The recorded distributions are those at `teacher_temperature`.
        """
        self.adaptation.load_weights()
        text = self.adaptation.lane().drafter.sequence
        total, count = 0.0, 0
        for test in tests:
            example = exact_example(self.attached.cache, self._trace(test))
            ids = example.ids.tolist()
            text.crop(0)
            logits = text.forward(ids, len(ids) - example.first)
            found = acceptance(logits, example.teacher, teacher_temperature)[:, 1 if temperature else 0]
            total, count = total + float(found.sum()), count + len(found)
        return total / count

    def _trace(self, recorded: Recorded) -> Trace:
        context = self.attached.context
        written = tuple(tuple(context.tokens([token])) for token in recorded.tokens)
        return Trace(tuple(context.prompt(recorded.prompt)), recorded.tokens, written, recorded.teacher)

    def engine(self) -> Engine:
        """An engine over the target itself, with a KV cache of its own."""
        self.adaptation.load_weights()
        return self._engine(self.attached.cache)

    def _engine(self, cache: NgramCache) -> Engine:
        return engine_for(self._model, self.drafting, attached=replace(self.attached, cache=cache))

    def _drafted(self, recorded: Recorded, cache: NgramCache) -> Stats:
        self.adaptation.load_weights()
        engine = self._engine(cache)
        return Stats.of(engine.rounds(recorded.prompt, len(recorded.tokens), GREEDY, sampler()))
