"""A drafter that learns from answers recorded once, and how good it is at answers it never saw."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.api import OmniDraft
from omnidraft.attach import make_cache
from omnidraft.bench.interleaved import drafter_of, emitted, engine_for, own_cache, sampler
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stats import Stats
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.inline import InlineTrainer
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import Trace, shared_tokens
from omnidraft.distillation.trainer import DEFAULTS, Trainer
from omnidraft.models.language_model import NO_LIMIT, LanguageModel
from omnidraft.verification.round import Round
from omnidraft.verification.sparse_probs import SparseProbs

GREEDY = Sampling()
UNKNOWN = 0  # what a replayed target says off the recorded text, where nobody will ask


@dataclass(frozen=True, eq=False)
class Recorded:
    """What the target said to a prompt, and its distribution at each token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    teacher: tuple[SparseProbs, ...]

    @classmethod
    def of(cls, prompt: Sequence[int], rounds: Sequence[Round]) -> Recorded:
        """The answer that some rounds made."""
        teacher = tuple(probs for record in rounds for probs in record.teacher)
        return cls(tuple(prompt), tuple(emitted(rounds)), teacher)


def record(
    model: OmniDraft,
    prompts: Iterable[Sequence[int]],
    new_tokens: int,
    sampling: Sampling,
    temperature: float,
    seed: int = 0,
) -> list[Recorded]:
    """Answer prompts by the target alone, and keep its distributions at the teacher's `temperature`."""
    engine, draw = engine_for(model), sampler(seed)
    engine.teacher_temperature = temperature
    return [Recorded.of(prompt, list(engine.rounds(prompt, new_tokens, sampling, draw))) for prompt in prompts]


class Replay:
    """A `LanguageModel` whose greedy text is the recorded one: only its greedy choices along that text are right."""

    context = NO_LIMIT

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.text: Sequence[int] = ()
        self._fed: list[int] = []

    @property
    def length(self) -> int:
        return len(self._fed)

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids`; the logits of the last `keep` of them, one-hot, (keep, vocab_size)."""
        self._fed += ids
        ends = range(len(self._fed) - keep + 1, len(self._fed) + 1)
        said = [self.text[end] if end < len(self.text) else UNKNOWN for end in ends]
        logits = torch.zeros(keep, self.vocab_size)
        logits[torch.arange(keep), torch.tensor(said, dtype=torch.int64)] = 1.0
        return logits

    def crop(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self._fed[length:]


class Student:
    """A drafter for one target, which learns by `learning`, or does not where that is None.

    `serving` is the copy of the drafter that drafts, which any number of students may share.
    """

    def __init__(
        self,
        model: OmniDraft,
        serving: SharedDrafter,
        drafting: Drafting,
        learning: Learning | None,
        seed: int = 0,
        settings: TrainerSettings = DEFAULTS,
    ) -> None:
        pair = drafter_of(model)
        self._model, self.drafting, self._learning = model, drafting, learning
        cache = make_cache(pair.cache.table, drafting)
        self.attached = AttachedDrafter(drafter=Drafter(serving.model), context=pair.context, cache=cache)
        learner = None
        if learning is not None:
            trainer = Trainer(serving.source.model, learning, shared_tokens(cache.table), seed, settings)
            learner = InlineTrainer(trainer)
        self.adaptation = Adaptation(self.attached, serving, learner)
        self._replay = Replay(model.vocab.size)
        self.spent_s = 0.0  # on learning

    # ------------------------------------------------------------ learning

    def follow(self, recorded: Recorded) -> Stats:
        """Draft for a recorded answer, then learn from it; what drafting did."""
        stats = self._over(recorded, self.attached.cache)
        self.learn(recorded)
        return stats

    def learn(self, recorded: Recorded) -> None:
        """Learn from a recorded answer."""
        if self.adaptation.learner is None:
            return
        began = time.perf_counter()
        translator = self.attached.context
        written = tuple(tuple(translator.tokens([token])) for token in recorded.tokens)
        answer = Trace(tuple(translator.prompt(recorded.prompt)), recorded.tokens, written, recorded.teacher)
        self.adaptation.learner.teach(answer, self.attached.cache)
        self.adaptation.load_weights()
        self.spent_s += time.perf_counter() - began

    def flush(self) -> None:
        """Learn from everything so far."""
        began = time.perf_counter()
        self.adaptation.flush()
        self.spent_s += time.perf_counter() - began

    # ------------------------------------------------------------ examination

    def examine(self, tests: Sequence[Recorded]) -> Stats:
        """What drafting does for greedy answers, from which nothing is learned."""
        cache = self._settled()
        return Stats.sum(self._over(test, cache) for test in tests)

    def examine_live(self, tests: Sequence[Recorded], new_tokens: int, sampling: Sampling, seed: int = 0) -> Stats:
        """The same for answers that the target samples anew to the same prompts."""
        draw = sampler(seed)
        engine = self._engine(self._model.engine.target, self._settled())
        self.adaptation.load_weights()
        texts = (engine.rounds(test.prompt, new_tokens, sampling, draw) for test in tests)
        return Stats.of(record for rounds in texts for record in rounds)

    def engine(self) -> Engine:
        """Its engine over the target itself, with a KV cache of its own."""
        return self._engine(own_cache(self._model.target.lm), self.attached.cache)

    def _settled(self) -> NgramCache:
        """The n-gram cache as it is, to be used up."""
        cache = make_cache(self.attached.cache.table, self.drafting)
        if not cache.frozen:
            cache.resume(self.attached.cache.state())
        return cache

    def _engine(self, target: LanguageModel, cache: NgramCache) -> Engine:
        return engine_for(self._model, self.drafting, target=target, attached=replace(self.attached, cache=cache))

    def _over(self, recorded: Recorded, cache: NgramCache) -> Stats:
        self._replay.text = (*recorded.prompt, *recorded.tokens)
        engine = self._engine(self._replay, cache)
        self.adaptation.load_weights()
        return Stats.of(engine.rounds(recorded.prompt, len(recorded.tokens), GREEDY, sampler()))
