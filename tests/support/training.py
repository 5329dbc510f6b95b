"""Trainers, and training examples that are easy to learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch
from omnidraft.distillation.losses import TeacherDistributions, TokenLabels, divergence, hybrid
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.trainer import Trainer
from omnidraft.distillation.weights import Weights, merged, parted
from support.models import random_model

SIZE = 40  # of the vocabulary
ONES = np.ones(SIZE, np.bool_)


def settings_of(options: dict[str, Any]) -> tuple[Learning, TrainerSettings]:
    """The public settings of learning, and those of the trainer, given by their names."""
    own = {f.name for f in fields(TrainerSettings)}
    return (
        Learning(**{name: value for name, value in options.items() if name not in own}),
        TrainerSettings(**{name: value for name, value in options.items() if name in own}),
    )


def small_drafter(seed: int = 0, kind: str = "llama") -> PreTrainedModel:
    model: PreTrainedModel = random_model(kind, SIZE, seed).model
    return model


def certain(positions: Sequence[int], symbols: Sequence[int]) -> TeacherDistributions:
    """Distributions of one token each."""
    count = len(positions)
    return TeacherDistributions(
        positions=torch.tensor(positions, dtype=torch.int32),
        rows=torch.arange(count, dtype=torch.int32),
        symbols=torch.tensor(symbols, dtype=torch.int32),
        probs=torch.ones(count),
        rest=torch.zeros(count),
        coarse=torch.zeros(count, dtype=torch.bool),
        best=torch.tensor(symbols, dtype=torch.int32),
    )


def labels_of(positions: Sequence[int], symbols: Sequence[int], weight: float = 0.2) -> TokenLabels:
    return TokenLabels(
        positions=torch.tensor(positions, dtype=torch.int32),
        symbols=torch.tensor(symbols, dtype=torch.int32),
        weights=torch.full((len(positions),), weight),
    )


def example_of(
    seed: int, length: int = 12, *, labels: bool = False, prompt: int = 4, shift: int = 3
) -> TrainingExample:
    """A text whose tokens rise by three, in which each token is taught to be followed by the one `shift` above it."""
    ids = ((np.random.default_rng(seed).integers(SIZE) + 3 * np.arange(length)) % SIZE).astype(np.int32)
    positions = list(range(prompt, length))
    symbols = [int(ids[i] + shift) % SIZE for i in positions]
    half = len(positions) // 2 if labels else len(positions)
    return TrainingExample(
        torch.from_numpy(ids), certain(positions[:half], symbols[:half]), labels_of(positions[half:], symbols[half:])
    )


def make_trainer(
    model: PreTrainedModel | None = None, *, seed: int = 0, per_pass: int | None = None, **options: Any
) -> Trainer:
    learning, settings = settings_of({"interval": 4, "batch_size": 4, "learning_rate": 1e-2} | options)
    return Trainer(model or small_drafter(), learning, ONES, seed, settings, per_pass=per_pass)


def teach(trainer: Trainer, count: int, **example: Any) -> list[bool]:
    """Add examples, with an update wherever one is due; whether each changed the weights."""
    changes = []
    for seed in range(count):
        trainer.add(example_of(seed, **example))
        if trainer.due:
            changes.append(trainer.update())
    return changes


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def loss_under(
    state: Weights, examples: Sequence[TrainingExample], loss: str = "forward+tv", kind: str = "llama"
) -> float:
    """Mean loss of `small_drafter` with a state merged into it."""
    model = copy.deepcopy(small_drafter(kind=kind))
    model.load_state_dict(merged(dict(model.named_parameters()), parted(state)[0]), strict=False)
    batch = Batch.of(examples, torch.device("cpu"))
    with torch.no_grad():
        logits = model(batch.ids, logits_to_keep=batch.keep).logits.flatten(0, -2)
    if loss == "hybrid":
        return float(hybrid(logits, batch.teacher, torch.from_numpy(ONES), batch.labels).mean())
    return float(divergence(logits, batch.teacher, loss).mean())
