"""The trainer: online distillation of a copy of the drafter, with a held-out check of every update."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch, groups
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.losses import divergence, hybrid
from omnidraft.distillation.replay_buffer import HELD_OUT, ReplayBuffer
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.weights import Weights, parted, trainable
from omnidraft.draft_length.acceptance_head import PREFIX, hidden_size, tap
from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULTS = TrainerSettings()
SPARE_BYTES = 2**29  # of free memory that training leaves to everything else
GAINS = 8  # updates over whose gains the update interval takes the mean
_Pass = tuple[Batch, torch.Tensor, torch.Tensor | None]  # with logits (T, V_q) and hidden states (T, H)
_outside_inference = torch.inference_mode(mode=False)  # a caller's inference mode would forbid gradients


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts of what a trainer did since it was made."""

    answers: int = 0
    updates: int = 0
    steps: int = 0
    dropped: int = 0  # batches whose loss or gradient was not finite
    rolled_back: int = 0  # updates that raised the held-out loss
    paused: int = 0  # updates that waited for memory
    held_out_loss: float = math.nan  # after the last update

    def plus(self, **more: int) -> Counters:
        """The counters with these counts added."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


class UpdateInterval:
    """Answers between updates; doubled while updates gain less than `min_gain` on average, 0 for never."""

    def __init__(self, answers: int, min_gain: float) -> None:
        self._shortest, self._min_gain = answers, min_gain
        self._gains: deque[float] = deque(maxlen=GAINS)
        self.answers = answers

    def record(self, gain: float) -> None:
        """Take in the relative fall of the held-out loss that an update brought."""
        if self._min_gain == 0:
            return
        self._gains.append(gain)
        if gain > 10 * self._min_gain:  # another task, perhaps
            self.answers = self._shortest
        elif len(self._gains) == GAINS and sum(self._gains) < GAINS * self._min_gain:
            self.answers = 2 * self._shortest
            self._gains.clear()


class Trainer:
    """Trains an fp32 copy of a drafter; the model that is given stays as it is.

    `shared` (V_q,) is the mask of `teacher.shared_tokens`, for the hybrid loss.  The same examples in the same order
    with the same `seed` give the same weights.  `yields` is called between passes, for a trainer that shares the
    machine; a pass reads `per_pass` examples, or fewer as memory allows: by default one on a CPU, where padding costs
    more than a pass saves.  Raises ModelError where the copy does not fit into memory.
    """

    @_outside_inference
    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        shared: npt.NDArray[np.bool_],
        seed: int = 0,
        settings: TrainerSettings = DEFAULTS,
        yields: Callable[[], None] = lambda: None,
        per_pass: int | None = None,
    ) -> None:
        check_memory(model)
        self.learning, self.settings = learning, settings
        self._adapted, self._model = trainable(model, learning, seed)
        self._shared = torch.from_numpy(shared).to(model.device)
        self._yields = yields
        self._per_pass = per_pass or (1 if model.device.type == "cpu" else settings.batch_size)
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning.learning_rate, weight_decay=settings.weight_decay
        )
        self._examples = ReplayBuffer(settings, seed)
        self._losses: dict[TrainingExample, float] = {}  # of held-out examples under the present weights
        self._interval = UpdateInterval(learning.interval, settings.min_gain)
        # examples of the hybrid loss do not say what is accepted
        size = None if learning.trains == "drafter" or learning.loss == "hybrid" else hidden_size(model)
        self._head = None if size is None else HeadTrainer(size, learning, settings, model.device, seed)
        self._hook = None if size is None else tap(self._model)
        self._untrained_head: Weights = {}  # of an earlier state, where no head is trained now
        self._head_steps = 0  # when the last state was made
        self.counters = Counters()

    # ------------------------------------------------------------ examples

    def add(self, example: TrainingExample) -> None:
        """Keep the training example of an answer."""
        if example.positions:
            self._count(answers=1)
            self._examples.add(example)

    @property
    def due(self) -> bool:
        """Whether an update is due: enough new answers, or as many as memory holds."""
        new = len(self._examples.new)
        return new >= self._interval.answers or (self._examples.overflowed and new > 0)

    # ------------------------------------------------------------ updates

    @_outside_inference
    def update(self) -> bool:
        """Learn from the new answers and from earlier ones; False where the weights stay as they are.

        Of more new answers than the interval asks for, only the latest are learned from at once; the others are left
        to replay.  Without enough memory the update waits.  One that raises the loss of the held-out answers (while
        there are few, of those learned from) is rolled back and the learning rate halved.  A batch whose loss or
        gradient is not finite is left out.
        """
        new = self._examples.new
        if not new:
            return False
        if self.learning.trains == "head":
            self.train_head()
            self._examples.mark_learned()
            self._count(updates=1)
            return True
        if not self._fits(new):
            self._count(paused=1)
            return False
        held_out = self._examples.held_out
        judged = held_out or new[:HELD_OUT]
        before, snapshot, steps = self._loss_of(judged), self._snapshot(), self.counters.steps
        self._examples.mark_learned()
        try:
            self._learn(new[-self.learning.interval :])
            if self.counters.steps == steps:
                return False
            self._losses.clear()
            after = self._loss_of(judged)
        except BaseException:  # Ctrl-C, or out of memory after all
            self._restore(snapshot)
            self._examples.mark_new(len(new))
            raise
        self._count(updates=1)
        if not after <= before + self.settings.rollback_margin * abs(before):
            self._restore(snapshot)
            for group in self._optimizer.param_groups:
                group["lr"] /= 2
            self._count(rolled_back=1)
            return False
        if held_out is not None:
            self.counters = replace(self.counters, held_out_loss=after)
            self._interval.record((before - after) / abs(before) if before else 0.0)
        return True

    @_outside_inference
    def train_head(self) -> None:
        """Train the acceptance head on the latest answer and an earlier one, where memory allows.

        Labels come from the present drafter (paper's Algorithm 4).  With joint training (Algorithm 3) the head learns
        in the drafter's updates instead.
        """
        if self._head is None or self.learning.trains == "joint":
            return
        with torch.no_grad():
            for example in self._examples.for_head():
                if free_bytes(self._model.device) < SPARE_BYTES + 8 * _rows(example) * len(self._shared):
                    return
                self._yields()
                self._teach_head(self._pass([example]))

    def _teach_head(self, read: _Pass) -> None:
        batch, logits, hidden = read
        if self._head is not None and hidden is not None and len(batch.teacher.positions):
            self._head.learn(hidden, logits, batch.teacher)

    def _learn(self, new: Sequence[TrainingExample]) -> None:
        """Take steps on new examples, each followed by steps on earlier ones."""
        size = self.settings.batch_size
        for start in range(0, len(new), size):
            self._step(new[start : start + size])
            for _ in range(self.learning.replays):
                self._step(self._examples.sample(size))

    def _step(self, examples: Sequence[TrainingExample]) -> None:
        """Take a step of AdamW on the mean loss over the positions of these examples."""
        total = sum(example.positions for example in examples)
        self._optimizer.zero_grad()
        with torch.enable_grad():
            for group in groups(examples, len(self._shared), self._per_pass):
                self._yields()
                read = self._pass(group)
                loss = self._loss(read).sum() / total
                if not bool(torch.isfinite(loss)):
                    self._count(dropped=1)
                    return
                loss.backward()
                if self.learning.trains == "joint":
                    self._teach_head(read)
        self._yields()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm)
        if not bool(torch.isfinite(norm)):
            self._count(dropped=1)
            return
        self._optimizer.step()
        self._count(steps=1)

    @torch.no_grad()
    def _loss_of(self, examples: Sequence[TrainingExample]) -> float:
        """Mean loss over the positions of these examples under the present weights."""
        known = self._losses
        self._losses = {}
        for example in examples:
            if example not in known:
                self._yields()
                known[example] = float(self._loss(self._pass([example])).sum())
            self._losses[example] = known[example]
        return sum(self._losses.values()) / sum(example.positions for example in examples)

    def _pass(self, examples: Sequence[TrainingExample]) -> _Pass:
        """Run the model over a few examples at once."""
        batch = Batch.of(examples, self._model.device)
        logits = self._model(batch.ids, use_cache=False, logits_to_keep=batch.keep).logits
        hidden = None
        if self._hook is not None and self._hook.last is not None:
            hidden = self._hook.last.detach().flatten(0, -2)
            self._hook.last = None  # it would keep the whole graph
        return batch, logits.reshape(-1, logits.shape[-1]), hidden

    def _loss(self, read: _Pass) -> torch.Tensor:
        """The loss at every position, (N,)."""
        batch, logits, _ = read
        if self.learning.loss == "hybrid":
            return hybrid(logits, batch.teacher, self._shared, batch.labels, self.settings.direct_divergence)
        return divergence(logits, batch.teacher, self.learning.loss)

    # ------------------------------------------------------------ weights

    def state(self) -> Weights:
        """A copy of the learned weights on the CPU, by name, with those of the head as they are now."""
        drafter = {name: p.detach().to("cpu", copy=True) for name, p in self._learned().items()}
        if self._head is None:
            return drafter | self._untrained_head
        self._head_steps = self._head.steps
        return drafter | self._head.state()

    @property
    def head_changed(self) -> bool:
        """Whether the head has learned since the last state."""
        return self._head is not None and self._head.steps > self._head_steps

    @_outside_inference
    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from an earlier state; raises ModelError for one of another shape of drafter or adapter."""
        state, head = parted(state)
        if self._head is not None:
            self._head.load_state(head)
            self._head_steps = self._head.steps
        else:
            self._untrained_head = {PREFIX + name: weight for name, weight in head.items()}
        own = self._learned()
        if own.keys() != state.keys() or any(p.shape != state[name].shape for name, p in own.items()):
            raise ModelError("the learned weights do not fit the drafter and its adapter: use another profile")
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(state[name])
        self._losses.clear()

    def _learned(self) -> Weights:
        named = (self._adapted or self._model).named_parameters()
        return {name.removeprefix("base_model.model."): p for name, p in named if p.requires_grad}

    def _snapshot(self) -> tuple[list[torch.Tensor], dict[str, Any], dict[TrainingExample, float]]:
        weights = [p.detach().clone() for p in self._parameters]
        return weights, copy.deepcopy(self._optimizer.state_dict()), dict(self._losses)

    def _restore(self, snapshot: tuple[list[torch.Tensor], dict[str, Any], dict[TrainingExample, float]]) -> None:
        weights, optimizer, self._losses = snapshot
        with torch.no_grad():
            for p, old in zip(self._parameters, weights, strict=True):
                p.copy_(old)
        self._optimizer.load_state_dict(optimizer)

    # ------------------------------------------------------------ memory

    def _fits(self, new: Sequence[TrainingExample]) -> bool:
        """Whether an update fits into the free memory.

        It takes gradients and a snapshot (a copy of the weights each), two moments for the optimizer that are made or
        copied, a copy of the state, and the merged weights that will draft; and for the logits of a pass 16 bytes a
        number: in fp32 with what the loss makes of them, and their gradients.
        """
        trained = sum(p.nbytes for p in self._parameters)
        merged = sum(p.nbytes for p in self._model.parameters() if not p.requires_grad) or trained
        logits = 16 * max(map(_rows, new)) * len(self._shared)
        return free_bytes(self._model.device) > SPARE_BYTES + 5 * trained + merged + logits

    def _count(self, **more: int) -> None:
        self.counters = self.counters.plus(**more)


def check_memory(model: PreTrainedModel) -> None:
    """Raise ModelError where an fp32 copy of a model does not fit into the free memory."""
    needed, free = 4 * sum(p.numel() for p in model.parameters()), free_bytes(model.device)
    if free < SPARE_BYTES + needed:
        raise ModelError(
            f"learning takes {needed / 2**30:.1f} GiB for a copy of the drafter, and {free / 2**30:.1f} GiB of memory "
            "are free: use adapt='off', or a smaller drafter"
        )


def free_bytes(device: torch.device) -> int:
    """Free memory where a model on this device is trained, in bytes."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    import psutil

    return int(psutil.virtual_memory().available)


def _rows(example: TrainingExample) -> int:
    return len(example.ids) - example.first
