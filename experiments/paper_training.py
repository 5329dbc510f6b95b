"""The paper's training, where ours is another: the hybrid loss (Eq. 3 and 4), and heads trained after each answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.losses import TeacherDistributions, divergence
from omnidraft.distillation.teacher import TeacherRow, Trace, TrainingExample, example_of, starts
from omnidraft.distillation.trainer import Trainer
from omnidraft.verification.sparse_probs import NONE

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class HybridLoss:
    """The paper's hybrid loss, with its λ: by default the paper's, None for the target's probability of the n-gram."""

    ngram_weight: float | None = 0.2

    def example(self, cache: NgramCache, trace: Trace) -> TrainingExample:
        """Distributions at directly mapped tokens, and the sub-tokens of n-grams as labels.

        A label is a `coarse` row with one entry, whose probability is its weight λ.
        """
        table = cache.table
        rows: list[TeacherRow] = []
        for i, start in starts(trace):
            token, p = trace.tokens[i], trace.distributions[i]
            if table.node[token] < 0:
                continue
            if len(trace.written[i]) == 1:
                direct = _is_direct(table, p.tokens)
                symbols = table.flat[table.offsets[p.tokens[direct]]]
                rows.append(TeacherRow(start - 1, NONE, symbols, p.probs[direct], 0.0, coarse=False))
            elif cache.active[token]:
                own = float(p.probs[p.tokens == token].sum()) if self.ngram_weight is None else self.ngram_weight
                for depth, symbol in enumerate(trace.written[i]):
                    label = np.array([symbol], np.int32)
                    rows.append(TeacherRow(start - 1 + depth, NONE, label, np.array([own]), 0.0, coarse=True))
        return example_of(trace, rows)

    def loss(self, logits: torch.Tensor, teacher: TeacherDistributions, shared: torch.Tensor) -> torch.Tensor:
        """The paper's loss, (N,): L_DM at directly mapped tokens, then λ·L_N-gram at labels (Eq. 3 and 4).

        `logits` (T, V_q); `shared` (V_q,) bool marks the drafter tokens of direct mapping, over which q is renormalized
        there.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        direct, labels = (_chosen(teacher, rows) for rows in (~teacher.coarse, teacher.coarse))
        log_q = torch.log_softmax(logits[labels.positions], dim=-1)
        ngrams = -labels.probs * log_q[labels.rows, labels.symbols]
        mapped = logits[direct.positions].masked_fill(~shared.to(logits.device), -torch.inf)
        own = replace(direct, positions=torch.arange(len(direct.positions), device=logits.device))
        return torch.cat([divergence(mapped, own, "reverse"), ngrams])


def shared_tokens(table: SpellingTable) -> npt.NDArray[np.bool_]:
    """The mask (V_q,) of drafter tokens that spell a whole target token: the vocabulary of direct mapping."""
    shared = np.zeros(table.drafter_size, np.bool_)
    direct = np.flatnonzero(_is_direct(table, np.arange(table.target_size, dtype=np.int32)))
    shared[table.flat[table.offsets[direct]]] = True
    return shared


def _is_direct(table: SpellingTable, tokens: Ints) -> npt.NDArray[np.bool_]:
    direct: npt.NDArray[np.bool_] = (table.node[tokens] >= 0) & (table.offsets[tokens + 1] - table.offsets[tokens] == 1)
    return direct


def _chosen(teacher: TeacherDistributions, rows: torch.Tensor) -> TeacherDistributions:
    """Some of the distributions, by a mask (N,)."""
    entries, place = rows[teacher.rows], rows.cumsum(0) - 1
    return TeacherDistributions(
        positions=teacher.positions[rows],
        rows=place[teacher.rows[entries]],
        symbols=teacher.symbols[entries],
        probs=teacher.probs[entries],
        rest=teacher.rest[rows],
        coarse=teacher.coarse[rows],
        best=teacher.best[rows],
    )


class AlternatingTrainer(Trainer):
    """Trains the head after each answer, on it and an earlier one (Algorithm 4), and not with the drafter.

    With `head_alone` the drafter stays as it is.
    """

    def __init__(
        self, model: PreTrainedModel, learning: Learning, seed: int = 0, *, head_alone: bool, **objective: Any
    ) -> None:
        super().__init__(model, learning, seed, **objective)
        self._head_alone, self._random = head_alone, np.random.default_rng(seed)
        self._seen: list[TrainingExample] = []

    @torch.inference_mode(mode=False)
    def add(self, example: TrainingExample) -> None:
        """Keep an example, and train the head on it and an earlier one."""
        super().add(example)
        earlier = [self._seen[self._random.integers(len(self._seen))]] if self._seen else []
        self._seen.append(example)
        with torch.no_grad():
            batch = self.batch([example, *earlier])
            super().train_head(batch, *self.read(batch))

    def train_head(self, *_: object) -> None:
        """Do nothing: the head was trained when the examples came."""

    def update(self) -> bool:
        """Train the drafter, where it is trained at all."""
        if not self._head_alone:
            return super().update()
        self.examples.unlearned = 0
        self.count(updates=1)
        return False


def trainer_for(
    model: PreTrainedModel, learning: Learning, table: SpellingTable, seed: int, how: str, hybrid: HybridLoss | None
) -> Trainer:
    """A trainer whose head is trained as `how` says, by the paper's loss where its choices are given."""
    objective: dict[str, Any] = {}
    if hybrid is not None:
        shared = torch.from_numpy(shared_tokens(table))
        objective = {"example": hybrid.example, "loss": partial(hybrid.loss, shared=shared)}
    if how in ("head", "interleaved"):
        return AlternatingTrainer(model, learning, seed, head_alone=how == "head", **objective)
    return Trainer(model, replace(learning, train=how), seed, **objective)
