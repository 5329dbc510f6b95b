"""A drafter that learns from answers recorded once, and drafts for others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.paper_training import HybridLoss, trainer_for
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.api import OmniDraft
from omnidraft.attach import make_cache
from omnidraft.bench.interleaved import drafter_of, emitted, lane_for, sampler
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import decode
from omnidraft.distillation.inline_trainer import InlineTrainer
from omnidraft.distillation.losses import acceptance
from omnidraft.distillation.online_adaptation import Adaptation
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
    lane = lane_for(model)
    lane.teacher_temperature = temperature
    rounds = list(decode(lane, prompt, new_tokens, sampling, sampler(seed)))
    teacher = tuple(probs for record in rounds for probs in record.teacher)
    return Recorded(tuple(prompt), tuple(emitted(rounds)), teacher)


class Student:
    """A drafter for one target, which learns by `learning`, or does not where that is None.

    It drafts with a copy of the drafter of its own.  `how` and `hybrid` are those of `paper_training.trainer_for`.
    """

    def __init__(
        self,
        model: OmniDraft,
        drafting: Drafting,
        learning: Learning | None = None,
        *,
        seed: int = 0,
        how: str = "joint",
        hybrid: HybridLoss | None = None,
        cache: NgramCache | None = None,
    ) -> None:
        if model.drafter is None:
            raise ValueError("a study of drafts needs a drafter")
        pair, self._shared = drafter_of(model), SharedDrafter(model.drafter.lm)
        self._model, self.drafting = model, drafting
        cache = make_cache(pair.cache.table, drafting) if cache is None else cache
        self.attached = AttachedDrafter(drafter=Drafter(self._shared.model), context=pair.context, cache=cache)
        learner = None
        if learning is not None:
            learner = InlineTrainer(trainer_for(self._shared.source.model, learning, cache.table, seed, how, hybrid))
        self.adaptation = Adaptation(self.attached, self._shared, learner)
        self.spent_s = 0.0  # on learning

    def resume(self, source: Student) -> None:
        """Go on with the weights of another student, and what the cache may keep of its n-grams; learn no more."""
        self.adaptation = Adaptation(self.attached, self._shared, None, source.adaptation.state)
        if not self.attached.cache.frozen:
            self.attached.cache.resume(source.attached.cache.state())

    # ------------------------------------------------------------ learning

    def learn_all(self, stream: Sequence[Recorded], *, drafting: bool = False) -> None:
        """Let the n-gram cache see a stream of answers, and learn from all of them.

        With `drafting`, they are drafted for at first, so that the cache knows merges that were rejected, too.
        """
        began = time.perf_counter()
        for recorded in stream:
            if drafting:
                list(decode(self.lane(), recorded.prompt, len(recorded.tokens), GREEDY, sampler()))
            else:
                self.attached.cache.observe(recorded.tokens)
            if self.adaptation.learner is not None:
                self.adaptation.learner.teach(self._trace(recorded), self.attached.cache)
                self.adaptation.load_weights()
        self.adaptation.flush()
        self.spent_s += time.perf_counter() - began

    # ------------------------------------------------------------ drafting

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

    def lane(self) -> Lane:
        """A lane over the target itself, with a KV cache of its own."""
        self.adaptation.load_weights()
        return lane_for(self._model, self.drafting, attached=self.attached)
