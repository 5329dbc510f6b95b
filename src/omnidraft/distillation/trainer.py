"""The trainer: online distillation of a copy of the drafter, with a held-out check of every update."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch, LossPositions, passes
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.lora import LORA_B, Weights, compact, merged, parted, trainable
from omnidraft.distillation.losses import TeacherDistributions, divergence
from omnidraft.distillation.replay_buffer import ReplayBuffer
from omnidraft.distillation.teacher import Trace, TrainingExample, exact_example
from omnidraft.draft_length.acceptance_head import hidden_size
from omnidraft.errors import ModelError
from omnidraft.models.loading import has_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH = 8  # answers per optimizer step
FIRST = 4  # answers before the first update, at most
MAX_GRADIENT_NORM = 1.0
ROLLBACK_MARGIN = 0.05  # relative rise of the held-out loss above which an update is rolled back
MAX_WAIT = 8  # intervals between updates at most, where they gain nothing
JUDGED = 2  # of the answers learned from, as long as too few are held out
COMPARED = 16  # latest answers, each before it was learned from, by which learned weights are compared with the base
WORSE_MARGIN = 0.02  # relative loss above the base's, beyond which the learned weights go half-way back to it
SPARE_BYTES = 2**29  # of free memory that training leaves to everything else
Loss = Callable[[torch.Tensor, TeacherDistributions], torch.Tensor]  # of logits (N, V_q): at each position, (N,)
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


class Trainer:
    """Trains an fp32 copy of a drafter; the model that is given stays as it is.

    `example` makes the training example of an answer; `loss` is that at each of its positions, by default the
    divergence that `learning` names.  The same examples in the same order with the same `seed` give the same weights.
    Where the device computes in bfloat16, matrix products do.  `yields` is called before each forward pass, for a
    trainer that shares the machine.  Raises ModelError where the copy does not fit into memory.
    """

    @_outside_inference
    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        seed: int = 0,
        *,
        example: Callable[[NgramCache, Trace], TrainingExample] = exact_example,
        loss: Loss | None = None,
        yields: Callable[[], object] = lambda: None,
    ) -> None:
        check_memory(sum(p.numel() for p in model.parameters()), model.device)
        self.learning, self.counters = learning, Counters()
        self.loss: Loss = loss or partial(divergence, kind=learning.loss)
        self._example = example
        self._base = model
        self._learned, self._model = trainable(model, learning, seed)
        self._yields = yields
        self._parameters = list(self._learned.values())
        fused = model.device.type in ("cpu", "cuda")  # on a CPU in a seventh of the time
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning.learning_rate, weight_decay=0.0, fused=fused)
        self._bfloat16 = has_bfloat16(model.device)
        self.examples = ReplayBuffer(seed)
        self._wait = min(learning.update_every, FIRST)  # new answers until the next update
        # losses of the latest answers under the weights that had not learned from them, and under the base
        self._compared: deque[tuple[float, float]] = deque(maxlen=COMPARED)
        size = hidden_size(model)
        self.head = None if size is None else HeadTrainer(size, learning.teacher_temperature, model.device, seed)
        self._output = LossPositions()
        if (layer := self._model.get_output_embeddings()) is not None:
            layer.register_forward_pre_hook(self._output)
        self._changed = False  # since the last poll: the drafter, or its head
        self._loaded_head: Weights = {}  # kept as it is where no head is trained

    # ------------------------------------------------------------ examples

    @_outside_inference
    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Keep an answer to learn from, of which `cache` has the active n-grams."""
        self.add(self._example(cache, trace))

    @_outside_inference  # else indices made here could not be used in a backward pass
    def add(self, example: TrainingExample) -> None:
        """Keep a training example, unless it has no term in the loss."""
        if example.positions:
            self.count(answers=1)
            self.examples.add(example)

    @property
    def due(self) -> bool:
        """True once there are enough new answers for an update."""
        return self.examples.unlearned >= self._wait

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
        new, interval = self.examples.new, self.learning.update_every
        latest = new[-interval:]
        if not new:
            return False
        if not self._fits(latest):
            self.count(paused=1)
            return False
        if self._worse_than_base(latest):
            self._go_half_way_back()
        held_out = self.examples.held_out
        judged = held_out or new[:JUDGED]
        before, snapshot, steps = self._loss_of(judged), self._snapshot(), self.counters.steps
        try:
            self._learn(latest)
            after = self._loss_of(judged)
        except BaseException:  # Ctrl-C, or out of memory after all
            self._restore(snapshot)
            raise
        self.examples.unlearned = 0
        if self.counters.steps == steps:
            return False
        self.count(updates=1)
        if not after <= before + ROLLBACK_MARGIN * abs(before):
            self._restore(snapshot)
            self._scale_rate(0.5)
            self.count(rolled_back=1)
            return False
        self._changed = True
        if after < before:
            self._scale_rate(2.0)
        self._wait = interval if after < before else min(2 * self._wait, MAX_WAIT * interval)
        if held_out is not None:
            self.counters = replace(self.counters, held_out_loss=after)
        return True

    def _worse_than_base(self, new: Sequence[TrainingExample]) -> bool:
        """True where the base does better on the latest answers, new ones included, by more than the margin."""
        self._compared += [(self._total([one], self._model), self._total([one], self._base)) for one in new]
        ours, base = (sum(losses) for losses in zip(*self._compared, strict=True))
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
        self._compared.clear()
        self._changed = True
        self._scale_rate(0.5)
        self.count(halved=1)

    def _learn(self, new: Sequence[TrainingExample]) -> None:
        """Take steps on new examples, each followed by steps on earlier ones."""
        for start in range(0, len(new), BATCH):
            self._step(new[start : start + BATCH])
            for _ in range(self.learning.replay_steps):
                self._step(self.examples.sample(BATCH))

    def _step(self, examples: Sequence[TrainingExample]) -> None:
        """Take a step of AdamW on the mean loss over the positions of these examples."""
        total = sum(example.positions for example in examples)
        self._optimizer.zero_grad()
        with torch.enable_grad():
            for one_pass in passes(examples):
                batch = self.batch(one_pass)
                logits, hidden = self.read(batch)
                loss = self.loss(logits, batch.teacher).sum() / total
                if not bool(torch.isfinite(loss)):
                    self.count(dropped=1)
                    return
                loss.backward()
                if self.learning.train == "joint":
                    self.train_head(batch, logits, hidden)
        self._yields()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM)
        if not bool(torch.isfinite(norm)):
            self.count(dropped=1)
            return
        self._optimizer.step()
        self.count(steps=1)

    def train_head(self, batch: Batch, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """Train the acceptance head on what a pass over a batch gave, if there is a head."""
        if self.head is not None and hidden is not None:
            self.head.learn(hidden, logits, batch.teacher)
            self._changed = True  # kept where the update of the drafter is rolled back

    def _loss_of(self, examples: Sequence[TrainingExample]) -> float:
        """Mean loss over the positions of these examples under the present weights."""
        return self._total(examples, self._model) / sum(example.positions for example in examples)

    @torch.no_grad()
    def _total(self, examples: Sequence[TrainingExample], model: PreTrainedModel) -> float:
        """Sum of the losses at all positions of these examples."""
        batches = [self.batch(one_pass) for one_pass in passes(examples)]
        return sum(float(self.loss(self.read(batch, model)[0], batch.teacher).sum()) for batch in batches)

    def batch(self, examples: Sequence[TrainingExample]) -> Batch:
        """The examples as one batch where the model is."""
        return Batch.of(examples, self._model.device)

    def read(self, batch: Batch, model: PreTrainedModel | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (N, V_q) of a model, by default that trained, and the latter's hidden states (N, H), at the places.

        There are no hidden states without an output layer.
        """
        self._yields()
        output, output.places = self._output, batch.places
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._bfloat16):
            logits = (model or self._model)(batch.ids, use_cache=False).logits
        hidden, output.hidden, output.places = output.hidden, None, None  # kept, it would keep the whole graph
        return (logits.flatten(0, 1)[batch.places] if hidden is None else logits[0]), hidden

    # ------------------------------------------------------------ weights

    def poll(self) -> Weights | None:
        """The state, where drafter or head have changed since the last time."""
        changed, self._changed = self._changed, False
        return self.state() if changed else None

    def state(self) -> Weights:
        """The learned weights on the CPU, by name, as `compact` keeps them, with those of the head as they are now."""
        drafter = compact(dict(self._base.named_parameters()), self._learned)
        return drafter | (self._loaded_head if self.head is None else self.head.state())

    @_outside_inference
    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from an earlier state; raises ModelError for one of another shape of drafter or adapter."""
        state, head = parted(state)
        learned = self._learned
        if self.learning.adapter == "full" and any(name.endswith(LORA_B) for name in state):
            state = merged(dict(self._base.named_parameters()), state)
        if learned.keys() != state.keys() or any(p.shape != state[name].shape for name, p in learned.items()):
            raise ModelError("the learned weights do not fit the drafter and its adapter: use another profile")
        if self.head is not None:
            self.head.load_state(head)
        self._loaded_head = head
        with torch.no_grad():
            for name, p in learned.items():
                p.copy_(state[name])

    def _snapshot(self) -> tuple[list[torch.Tensor], dict[str, Any]]:
        return [p.detach().clone() for p in self._parameters], copy.deepcopy(self._optimizer.state_dict())

    def _restore(self, snapshot: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
        weights, optimizer = snapshot
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
        """Compare the memory of an update with the free memory.

        It takes gradients and a snapshot (a copy of the weights each), two moments for the optimizer that are made or
        copied, a copy of the state, and the merged weights that will draft; and for the logits of a pass 16 bytes a
        number: in fp32 with what the loss makes of them, and their gradients.
        """
        trained = sum(p.nbytes for p in self._parameters)
        merged = sum(p.nbytes for p in self._model.parameters())
        positions = max(sum(example.positions for example in one_pass) for one_pass in passes(new))
        logits: int = 16 * positions * self._base.config.get_text_config().vocab_size
        return free_bytes(self._model.device) > SPARE_BYTES + 5 * trained + merged + logits

    def count(self, **more: int) -> None:
        """Add to the counters."""
        counters = self.counters
        self.counters = replace(counters, **{name: getattr(counters, name) + count for name, count in more.items()})


def check_memory(parameters: int, device: torch.device) -> None:
    """Raise ModelError where an fp32 copy of a model of so many weights does not fit into the free memory."""
    needed, free = 4 * parameters, free_bytes(device)
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
