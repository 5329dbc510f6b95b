"""The trainer: online distillation of a copy of the drafter, with a held-out check of every update."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch, LossPositions, passes
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.lora import LORA_B, Weights, compact, merged, parted, trainable
from omnidraft.distillation.losses import HybridLoss, divergence, hybrid
from omnidraft.distillation.replay_buffer import ReplayBuffer
from omnidraft.distillation.teacher import Trace, TrainingExample, training_example
from omnidraft.draft_length.acceptance_head import PREFIX, hidden_size
from omnidraft.errors import ModelError
from omnidraft.models.loading import has_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH = 8  # answers per optimizer step
FIRST = 4  # answers before the first update, at most
MAX_GRADIENT_NORM = 1.0
ROLLBACK_MARGIN = 0.05  # relative rise of the held-out loss above which an update is rolled back
LONGEST_WAIT = 8  # intervals between updates at most, where they bring nothing
JUDGED = 2  # of the answers learned from, as long as too few are held out
COMPARED = 16  # latest answers, each before it was learned from, by which learned weights are compared with the base
WORSE_MARGIN = 0.02  # relative loss above the base's, beyond which the learned weights go half-way back to it
SPARE_BYTES = 2**29  # of free memory that training leaves to everything else
_outside_inference = torch.inference_mode(mode=False)  # a caller's inference mode would forbid gradients


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts of what a trainer did since it was made."""

    answers: int = 0
    updates: int = 0
    steps: int = 0
    dropped: int = 0  # batches whose loss or gradient was not finite
    rolled_back: int = 0  # updates that raised the held-out loss
    halved: int = 0  # times that the learned weights went half-way back to the base
    paused: int = 0  # updates that waited for memory
    held_out_loss: float = math.nan  # after the last update

    def plus(self, **more: int) -> Counters:
        """The counters with these counts added."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


class Trainer:
    """Trains an fp32 copy of a drafter; the model that is given stays as it is.

    `shared` (V_q,) is the mask of `teacher.shared_tokens`, for the hybrid loss, whose choices are `variant`.  The same
    examples in the same order with the same `seed` give the same weights.  Where the device computes in bfloat16,
    matrix products do.  `yields` is called before each forward pass, for a trainer that shares the machine.  Raises
    ModelError where the copy does not fit into memory.
    """

    @_outside_inference
    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        shared: npt.NDArray[np.bool_],
        seed: int = 0,
        variant: HybridLoss | None = None,
        yields: Callable[[], object] = lambda: None,
    ) -> None:
        check_memory(model)
        self.learning, self._variant = learning, variant or HybridLoss()
        self._base = model
        self._learned, self._model = trainable(model, learning, seed)
        self._shared = torch.from_numpy(shared).to(model.device)
        self._yields = yields
        self._parameters = list(self._learned.values())
        fused = model.device.type in ("cpu", "cuda")  # on a CPU in a seventh of the time
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning.learning_rate, weight_decay=0.0, fused=fused)
        self._bfloat16 = has_bfloat16(model.device)
        self._examples = ReplayBuffer(seed)
        self._wait = min(learning.interval, FIRST)  # new answers until the next update
        self._losses: dict[TrainingExample, float] = {}  # of held-out examples under the present weights
        # losses of new examples under the weights that had not learned from them, and under the base
        self._compared: dict[TrainingExample, tuple[float, float]] = {}
        # examples of the hybrid loss do not say what is accepted
        size = None if learning.trains == "drafter" or learning.loss == "hybrid" else hidden_size(model)
        self._head = None if size is None else HeadTrainer(size, learning.teacher_temperature, model.device, seed)
        self._output = LossPositions()
        if (layer := self._model.get_output_embeddings()) is not None:
            layer.register_forward_pre_hook(self._output)
        self._untrained_head: Weights = {}  # of an earlier state, where no head is trained now
        self._head_steps = 0  # when the last state was made
        self.counters = Counters()

    # ------------------------------------------------------------ examples

    @_outside_inference
    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Keep an answer to learn from, of which `cache` has the active n-grams, and train the head on it."""
        self.add(training_example(cache, trace, self.learning.loss, self._variant))
        self.train_head()

    @_outside_inference  # else indices made here could not take part in a backward pass
    def add(self, example: TrainingExample) -> None:
        """Keep a training example, unless it has no term in the loss."""
        if example.positions:
            self._count(answers=1)
            self._examples.add(example)

    @property
    def due(self) -> bool:
        """Whether there are enough new answers for an update."""
        return self._examples.unlearned >= self._wait

    # ------------------------------------------------------------ updates

    @_outside_inference
    def update(self) -> bool:
        """Learn from the new answers and from earlier ones; False where the weights stay as they are.

        Of more new answers than the interval asks for, only the latest are learned from at once; the others are left
        to replay.  Without enough memory the update waits.  One that raises the loss of the held-out answers (while
        there are few, of those learned from) is rolled back and the learning rate halved; one that lowers it doubles
        the rate, up to the setting; after one that does neither, the wait for the next one doubles.  Where the base
        does better on the latest answers, none of them learned from by then, the learned weights go half-way back to it
        first, and the rate is halved.  A batch whose loss or gradient is not finite is left out.
        """
        new = self._examples.new
        if not new:
            return False
        if self.learning.trains == "head":
            self.train_head()
            self._examples.unlearned = 0
            self._count(updates=1)
            return True
        if not self._fits(new[-self.learning.interval :]):
            self._count(paused=1)
            return False
        if self._worse_than_base(new[-self.learning.interval :]):
            self._go_half_way_back()
        held_out = self._examples.held_out
        judged = held_out or new[:JUDGED]
        before, snapshot, steps = self._loss_of(judged), self._snapshot(), self.counters.steps
        try:
            self._learn(new[-self.learning.interval :])
            after = self._loss_of(judged)
        except BaseException:  # Ctrl-C, or out of memory after all
            self._restore(snapshot)
            raise
        self._examples.unlearned = 0
        if self.counters.steps == steps:
            return False
        self._count(updates=1)
        if not after <= before + ROLLBACK_MARGIN * abs(before):
            self._restore(snapshot)
            self._scale_rate(0.5)
            self._count(rolled_back=1)
            return False
        if after < before:
            self._scale_rate(2.0)
        longest = LONGEST_WAIT * self.learning.interval
        self._wait = self.learning.interval if after < before else min(2 * self._wait, longest)
        if held_out is not None:
            self.counters = replace(self.counters, held_out_loss=after)
        return True

    @torch.no_grad()
    def _worse_than_base(self, new: Sequence[TrainingExample]) -> bool:
        """Whether the base has the lower loss on the latest answers, new ones included, by more than the margin."""
        new = [example for example in new if example not in self._compared]  # an update may be tried again
        for example in new:
            batch = self._batch([example])
            ours, base = (float(self._loss(batch, self._read(batch, m)[0]).sum()) for m in (self._model, self._base))
            self._compared[example] = ours, base
        self._compared = dict(list(self._compared.items())[-COMPARED:])
        ours, base = (sum(losses) for losses in zip(*self._compared.values(), strict=True))
        return not ours <= base + WORSE_MARGIN * abs(base)

    @torch.no_grad()
    def _go_half_way_back(self) -> None:
        """Halve the difference from the base, and the learning rate."""
        base = dict(self._base.named_parameters())
        for name, p in self._learned.items():
            if name in base:
                p.lerp_(base[name].float(), 0.5)
            elif name.endswith(LORA_B):
                p.mul_(0.5)
        self._losses.clear()
        self._compared.clear()
        self._scale_rate(0.5)
        self._count(halved=1)

    @_outside_inference
    def train_head(self) -> None:
        """Train the acceptance head on the latest answer and an earlier one, where memory allows.

        Labels come from the present drafter (paper's Algorithm 4).  With joint training (Algorithm 3) the head learns
        in the drafter's updates instead.
        """
        if self._head is None or self.learning.trains == "joint":
            return
        examples = self._examples.for_head()
        if examples and free_bytes(self._model.device) > SPARE_BYTES + self._logits_bytes(examples) // 2:
            with torch.no_grad():
                batch = self._batch(examples)
                self._teach_head(batch, *self._read(batch))

    def _teach_head(self, batch: Batch, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        if self._head is not None and hidden is not None and len(batch.teacher.positions):
            self._head.learn(hidden, logits, batch.teacher)

    def _learn(self, new: Sequence[TrainingExample]) -> None:
        """Take steps on new examples, each followed by steps on earlier ones."""
        for start in range(0, len(new), BATCH):
            self._step(new[start : start + BATCH])
            for _ in range(self.learning.replays):
                self._step(self._examples.sample(BATCH))

    def _step(self, examples: Sequence[TrainingExample]) -> None:
        """Take a step of AdamW on the mean loss over the positions of these examples."""
        total = sum(example.positions for example in examples)
        self._optimizer.zero_grad()
        with torch.enable_grad():
            for part in passes(examples):
                batch = self._batch(part)
                logits, hidden = self._read(batch)
                loss = self._loss(batch, logits).sum() / total
                if not bool(torch.isfinite(loss)):
                    self._count(dropped=1)
                    return
                loss.backward()
                if self.learning.trains == "joint":
                    self._teach_head(batch, logits, hidden)
        self._yields()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM)
        if not bool(torch.isfinite(norm)):
            self._count(dropped=1)
            return
        self._optimizer.step()
        self._losses.clear()
        self._count(steps=1)

    @_outside_inference
    def loss(self, examples: Sequence[TrainingExample]) -> float:
        """Mean loss over the positions of some examples under the present weights; nan without any."""
        with torch.no_grad():
            sums = [float(self._loss(batch, self._read(batch)[0]).sum()) for batch in self._batches(examples)]
        return sum(sums) / sum(each.positions for each in examples) if examples else math.nan

    @torch.no_grad()
    def _loss_of(self, examples: Sequence[TrainingExample]) -> float:
        """Mean loss over the positions of these examples under the present weights."""
        known = self._losses
        self._losses = {}
        for example in examples:
            loss = known.get(example)
            if loss is None:
                batch = self._batch([example])
                loss = float(self._loss(batch, self._read(batch)[0]).sum())
            self._losses[example] = loss
        return sum(self._losses.values()) / sum(example.positions for example in examples)

    def _batches(self, examples: Sequence[TrainingExample]) -> Iterator[Batch]:
        """Batches of as many examples as one pass holds."""
        return (self._batch(part) for part in passes(examples))

    def _batch(self, examples: Sequence[TrainingExample]) -> Batch:
        return Batch.of(examples, self._model.device)

    def _read(self, batch: Batch, model: PreTrainedModel | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (N, V_q) of a model, by default that trained, and the latter's hidden states (N, H), at the places.

        There are no hidden states without an output layer.
        """
        self._yields()
        output, output.places = self._output, batch.places
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._bfloat16):
            logits = (model or self._model)(batch.ids, use_cache=False).logits
        hidden, output.hidden, output.places = output.hidden, None, None  # kept, it would keep the whole graph
        return (logits.flatten(0, 1)[batch.places] if hidden is None else logits[0]), hidden

    def _loss(self, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        """The loss at every position, (N,)."""
        if self.learning.loss == "hybrid":
            return hybrid(logits, batch.teacher, self._shared, batch.labels, self._variant.direct_divergence)
        return divergence(logits, batch.teacher, self.learning.loss)

    # ------------------------------------------------------------ weights

    def state(self) -> Weights:
        """The learned weights on the CPU, by name, as `compact` keeps them, with those of the head as they are now."""
        drafter = compact(dict(self._base.named_parameters()), self._learned)
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
        own = self._learned
        if self.learning.adapter == "full" and any(name.endswith(LORA_B) for name in state):
            state = merged(dict(self._base.named_parameters()), state)
        if own.keys() != state.keys() or any(p.shape != state[name].shape for name, p in own.items()):
            raise ModelError("the learned weights do not fit the drafter and its adapter: use another profile")
        if self._head is not None:
            self._head.load_state(head)
            self._head_steps = self._head.steps
        else:
            self._untrained_head = {PREFIX + name: weight for name, weight in head.items()}
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(state[name])
        self._losses.clear()

    def _snapshot(self) -> tuple[list[torch.Tensor], dict[str, Any], dict[TrainingExample, float]]:
        weights = [p.detach().clone() for p in self._parameters]
        return weights, copy.deepcopy(self._optimizer.state_dict()), dict(self._losses)

    def _restore(self, snapshot: tuple[list[torch.Tensor], dict[str, Any], dict[TrainingExample, float]]) -> None:
        weights, optimizer, self._losses = snapshot
        with torch.no_grad():
            for p, old in zip(self._parameters, weights, strict=True):
                p.copy_(old)
        self._optimizer.load_state_dict(optimizer)

    @property
    def learning_rate(self) -> float:
        """The learning rate at present."""
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    def _scale_rate(self, factor: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = min(self.learning.learning_rate, factor * group["lr"])

    # ------------------------------------------------------------ memory

    def _fits(self, new: Sequence[TrainingExample]) -> bool:
        """Whether an update fits into the free memory.

        It takes gradients and a snapshot (a copy of the weights each), two moments for the optimizer that are made or
        copied, a copy of the state, and the merged weights that will draft; and for the logits of a pass 16 bytes a
        number: in fp32 with what the loss makes of them, and their gradients.
        """
        trained = sum(p.nbytes for p in self._parameters)
        merged = sum(p.nbytes for p in self._model.parameters())
        return free_bytes(self._model.device) > SPARE_BYTES + 5 * trained + merged + self._logits_bytes(new)

    def _logits_bytes(self, examples: Sequence[TrainingExample]) -> int:
        """Memory of the logits of the largest pass over some examples, with gradients."""
        return 16 * max(sum(example.positions for example in part) for part in passes(examples)) * len(self._shared)

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
