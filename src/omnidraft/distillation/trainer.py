"""The trainer: learns the drafter's weights from lessons, on a copy of its own.

What it learned is a state of `weights`, tensors by name.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch, groups
from omnidraft.distillation.counters import Counters, plus
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.losses import divergence, hybrid
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.update_interval import Pace
from omnidraft.distillation.weights import Weights, parted, trainable
from omnidraft.draft_length.acceptance_head import PREFIX, hidden_size, tap
from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Snapshot = tuple[list[torch.Tensor], dict[str, Any], dict[int, tuple[TrainingExample, float]]]
DEFAULTS = TrainerSettings()
RING = 6  # held-out answers that judge an update
JUDGES = 4  # of them are enough
FREE_BYTES = 2**29  # of memory that an update leaves to everything else
_Pass = tuple[Batch, torch.Tensor, torch.Tensor | None]  # with logits (T, V_q) and hidden states (T, H)


class Trainer:
    """Trains a copy of a drafter.

    `shared` (V_q,) are the drafter tokens that are target tokens of their own, which the hybrid loss needs.  The same
    lessons in the same order give the same weights for the same `seed`.  `yields` is called between the passes of an
    update, for a trainer that shares the machine; each reads `at_once` lessons, or as many as memory allows, by default
    one on a CPU, where a pass costs less than padding.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        shared: npt.NDArray[np.bool_],
        seed: int = 0,
        settings: TrainerSettings = DEFAULTS,
        yields: Callable[[], None] = lambda: None,
        at_once: int | None = None,
    ) -> None:
        self.learning, self.settings = learning, settings
        self._model, self._inner = trainable(model, learning, seed)
        self._shared = torch.from_numpy(shared)
        self._yields = yields
        self._at_once = at_once or (1 if model.device.type == "cpu" else settings.batch_size)
        self._random = np.random.default_rng(seed)
        self._parameters = [p for p in self._inner.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning.learning_rate, weight_decay=settings.weight_decay
        )
        self._new: list[TrainingExample] = []
        self._memory: deque[TrainingExample] = deque()
        self._bytes = 0
        self._ring: deque[TrainingExample] = deque(maxlen=RING)
        # losses of judges under the present weights, by id, which stays theirs as long as they are held here
        self._known: dict[int, tuple[TrainingExample, float]] = {}
        self._full = False  # new lessons had to go
        self._pace = Pace(settings.min_gain)
        # of the hybrid loss, lessons do not say what is accepted
        size = None if learning.trains == "drafter" or learning.loss == "hybrid" else hidden_size(model)
        self._head = None if size is None else HeadTrainer(size, learning, settings, model.device, seed)
        self._tap = None if size is None else tap(self._inner)
        self._old_head: Weights = {}  # of an earlier time, where none is trained now
        self._told = 0  # steps of the head that a state was made after
        self._picks = np.random.default_rng(seed)  # of lessons for the head, which change nothing for the drafter
        self.counters = Counters()

    # ------------------------------------------------------------ lessons

    def add(self, lesson: TrainingExample) -> None:
        """Take in what one answer taught; one in `hold_out_every` only judges."""
        if not lesson.positions:
            return
        self.counters = plus(self.counters, answers=1)
        if self.counters.answers % self.settings.hold_out_every == 0:
            self._ring.append(lesson)
            return
        self._new.append(lesson)
        self._memory.append(lesson)
        self._bytes += lesson.nbytes
        while self._bytes > self.settings.replay_bytes and len(self._memory) > 1:
            gone = self._memory.popleft()
            self._bytes -= gone.nbytes
            left = [one for one in self._new if one is not gone]
            self._full |= len(left) < len(self._new)
            self._new = left

    @property
    def due(self) -> bool:
        """Whether enough answers for an update have come in, or as many as can be kept."""
        enough = self.learning.interval * self._pace.intervals
        return len(self._new) >= enough or (self._full and bool(self._new))

    @property
    def nbytes(self) -> int:
        """Memory of the lessons kept, in bytes."""
        return self._bytes + sum(lesson.nbytes for lesson in self._ring)

    # ------------------------------------------------------------ updates

    def update(self) -> bool:
        """Learn from the answers since the last update, and from earlier ones; False where nothing changed.

        Without enough memory it waits.  An update that raises the loss of the held-out answers is taken back and the
        learning rate halved; while there are few of them, that of the answers learned from judges.  A batch whose loss
        or gradient is not finite is left out.  Where updates bring little they become rarer, and of the answers in
        between the latest are learned from at once, the others among the earlier ones.
        """
        if not self._new:
            return False
        if self.learning.trains == "head":
            self.train_head()
            self._new, self._full = [], False
            self.counters = plus(self.counters, updates=1)
            return True
        most = max(len(lesson.ids) - lesson.first for lesson in self._new)
        if not _roomy(16 * most * len(self._shared)):  # logits, what they are made into, and their gradients
            self.counters = plus(self.counters, paused=1)
            return False
        judged = len(self._ring) >= JUDGES
        judges = list(self._ring) if judged else self._new[:RING]
        before, kept, steps = self._loss_of(judges), self._snapshot(), self.counters.steps
        new, self._new, self._full = self._new, [], False
        try:
            self._learn(new[-self.learning.interval :] if self._pace.intervals > 1 else new)
            if self.counters.steps == steps:
                return False
            self._known.clear()
            after = self._loss_of(judges)
        except BaseException:  # Ctrl-C, or no memory after all
            self._restore(kept)
            self._new = [*new, *self._new]
            raise
        self.counters = plus(self.counters, updates=1)
        if not after <= before + self.settings.rollback_margin * abs(before):
            self._restore(kept)
            for group in self._optimizer.param_groups:
                group["lr"] /= 2
            self.counters = plus(self.counters, rolled_back=1)
            return False
        if judged:
            self.counters = replace(self.counters, held_out_loss=after)
            self._pace.learn((before - after) / abs(before) if before else 0.0)
        return True

    def train_head(self) -> None:
        """Let the head learn from the latest answer and an earlier one, where there is memory for it.

        Its labels are those of the drafter as it is now (paper Algorithm 4); where both learn jointly there is nothing
        to do (Algorithm 3).
        """
        if self._head is None or self.learning.trains == "joint" or not self._memory:
            return
        picks = [self._memory[-1]]
        if len(self._memory) > 1:
            picks.append(self._memory[int(self._picks.integers(len(self._memory) - 1))])
        with torch.no_grad():
            for lesson in picks:
                if not _roomy(8 * (len(lesson.ids) - lesson.first) * len(self._shared)):
                    return
                self._yields()
                self._teach_head(self._pass([lesson]))

    def _teach_head(self, read: _Pass) -> None:
        batch, flat, hidden = read
        if self._head is not None and hidden is not None and len(batch.laws.positions):
            self._head.learn(hidden, flat, batch.laws)

    def _learn(self, new: Sequence[TrainingExample]) -> None:
        """Steps on new lessons, each followed by steps on earlier ones."""
        batch = self.settings.batch_size
        for start in range(0, len(new), batch):
            self._step(new[start : start + batch])
            for _ in range(self.learning.replays):
                picks = self._random.choice(len(self._memory), min(batch, len(self._memory)), replace=False)
                self._step([self._memory[i] for i in picks])

    def _step(self, lessons: Sequence[TrainingExample]) -> None:
        """One step of AdamW on the mean loss of these lessons' positions."""
        total = sum(lesson.positions for lesson in lessons)
        self._optimizer.zero_grad()
        with torch.enable_grad():
            for group in groups(lessons, len(self._shared), self._at_once):
                self._yields()
                read = self._pass(group)
                loss = self._losses(read).sum() / total
                if not bool(torch.isfinite(loss)):
                    self.counters = plus(self.counters, dropped=1)
                    return
                loss.backward()
                if self.learning.trains == "joint":
                    self._teach_head(read)
        self._yields()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm)
        if not bool(torch.isfinite(norm)):
            self.counters = plus(self.counters, dropped=1)
            return
        self._optimizer.step()
        self.counters = plus(self.counters, steps=1)

    @torch.no_grad()
    def _loss_of(self, judges: Sequence[TrainingExample]) -> float:
        """Mean loss of their positions under the present weights."""
        known, self._known = self._known, {}
        for lesson in judges:
            if id(lesson) not in known:
                self._yields()
                known[id(lesson)] = lesson, float(self._losses(self._pass([lesson])).sum())
            self._known[id(lesson)] = known[id(lesson)]
        return sum(loss for _, loss in self._known.values()) / sum(lesson.positions for lesson in judges)

    def _pass(self, lessons: Sequence[TrainingExample]) -> _Pass:
        """Read a few lessons side by side."""
        batch = Batch.of(lessons, self._inner.device)
        logits = self._inner(batch.ids, use_cache=False, logits_to_keep=batch.keep).logits
        hidden = None
        if self._tap is not None and self._tap.last is not None:
            hidden = self._tap.last.detach().flatten(0, -2)
            self._tap.last = None  # which would keep the whole graph
        return batch, logits.reshape(-1, logits.shape[-1]), hidden

    def _losses(self, read: _Pass) -> torch.Tensor:
        """The loss of every position of lessons."""
        batch, flat, _ = read
        if self.learning.loss == "hybrid":
            shared = self._shared.to(flat.device)
            return hybrid(flat, batch.laws, shared, batch.labels, self.settings.direct_divergence)
        return divergence(flat, batch.laws, self.learning.loss)

    # ------------------------------------------------------------ weights

    def state(self) -> Weights:
        """What was learned, copied: tensors by name."""
        drafter = {name: p.detach().to("cpu", copy=True) for name, p in self._learned().items()}
        if self._head is None:
            return drafter | self._old_head
        self._told = self._head.steps
        return drafter | self._head.state()

    @property
    def news(self) -> bool:
        """Whether the head learned something since the last state."""
        return self._head is not None and self._head.steps > self._told

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from an earlier state; raises ModelError for one of another shape of drafter or adapter."""
        state, head = parted(state)
        if self._head is not None:
            self._head.load_state(head)
            self._told = self._head.steps
        else:
            self._old_head = {PREFIX + name: weight for name, weight in head.items()}
        own = self._learned()
        if own.keys() != state.keys() or any(p.shape != state[name].shape for name, p in own.items()):
            raise ModelError("the learned weights do not fit the drafter and its adapter: use another profile")
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(state[name])
        self._known.clear()

    def _learned(self) -> Weights:
        prefix = "base_model.model."
        return {
            name.removeprefix(prefix): parameter
            for name, parameter in (self._model or self._inner).named_parameters()
            if parameter.requires_grad
        }

    def _snapshot(self) -> _Snapshot:
        weights = [p.detach().clone() for p in self._parameters]
        return weights, copy.deepcopy(self._optimizer.state_dict()), dict(self._known)

    def _restore(self, kept: _Snapshot) -> None:
        with torch.no_grad():
            for parameter, old in zip(self._parameters, kept[0], strict=True):
                parameter.copy_(old)
        self._optimizer.load_state_dict(kept[1])
        self._known = kept[2]


def _roomy(needed: int) -> bool:
    import psutil

    return bool(psutil.virtual_memory().available > FREE_BYTES + needed)
