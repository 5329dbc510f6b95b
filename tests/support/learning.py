"""Learning: trainers with examples that are easy to learn, and answers of a model that learns from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import omnidraft
from omnidraft import OmniDraft
from omnidraft.config import Learning, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import Stream
from omnidraft.distillation.lora import Weights, merged, parted
from omnidraft.distillation.losses import TeacherDistributions, divergence
from omnidraft.distillation.online_adaptation import Adaptation
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.trainer import Trainer
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter
from omnidraft.profiles.manifest import Profile
from omnidraft.profiles.pair_profile import PairProfile
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler
from support.lanes import generate
from support.models import random_model

SIZE = 40  # of the vocabulary
PROMPT = 4  # tokens of an example that are not taught


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


@torch.inference_mode(mode=False)  # as `Trainer.teach` makes them
def example_of(seed: int, length: int = 12, *, shift: int = 3) -> TrainingExample:
    """A text whose tokens rise by three, in which each token is taught to be followed by the one `shift` above it."""
    ids = ((np.random.default_rng(seed).integers(SIZE) + 3 * np.arange(length)) % SIZE).astype(np.int32)
    taught = certain(list(range(length - PROMPT)), ((ids[PROMPT:] + shift) % SIZE).tolist())
    return TrainingExample(torch.from_numpy(ids), PROMPT, taught)


def make_trainer(
    model: PreTrainedModel | None = None, *, seed: int = 0, yields: Callable[[], object] = lambda: None, **options: Any
) -> Trainer:
    learning = Learning(**({"update_every": 4, "learning_rate": 1e-2, "replay_steps": 0} | options))
    return Trainer(model or small_drafter(), learning, seed, yields=yields)


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
    losses = []
    for example in examples:
        with torch.no_grad():
            logits = model(example.ids[None].long()).logits[0, example.first :]
        losses.append(divergence(logits, example.teacher, loss))
    return float(torch.cat(losses).mean())


PROMPTS = ("hello world", "the world was hello", "def ing 10 the", "don't hello the été", "10 worlds, 10 hellos")
COUNT = 16
# drafts of a length, so that a drafter of random weights drafts at all
FAST: dict[str, Any] = {"draft_length": 4, "update_every": 2, "learning_rate": 1e-2}


def answered(adaptation: Adaptation, lane: Lane, prompt: list[int], count: int, **sampling: Any) -> list[Round]:
    """The rounds of an answer that is learned from, as a request goes through them."""
    profile = PairProfile(None, lambda: pytest.fail("asked for"), learns=False, warn=pytest.fail)
    adaptive = AdaptiveDrafter(None, adaptation, profile, Profile(), Learning())  # type: ignore[arg-type]
    draw = GeneratorSampler(torch.Generator().manual_seed(3))
    lane.learning, lane.turns = adaptive, adaptation.shared.turns
    stream = Stream(lane, lane.request(prompt, count, Sampling(**sampling), draw))
    while stream.step() is not None:
        pass
    return stream.records


def adaptive_of(model: OmniDraft) -> AdaptiveDrafter:
    assert model.adaptive is not None
    return model.adaptive


def answers(model: OmniDraft, count: int, **options: Any) -> list[omnidraft.Generation]:
    """Answers to the prompts in turn."""
    return [model.generate(PROMPTS[i % len(PROMPTS)], **{"max_new_tokens": COUNT, **options}) for i in range(count)]


def alone(model: OmniDraft, prompt: str, count: int = COUNT) -> tuple[int, ...]:
    """What `transformers` answers without us."""
    target = model.target
    return tuple(generate(target.lm, target.tokenizer(prompt)["input_ids"], count, target.lm.eos))


def drafts(model: OmniDraft) -> torch.Tensor:
    """What the drafter, as it serves this target, says about a text."""
    adaptive = adaptive_of(model)
    adaptive.adaptation.load_weights()
    return adaptive.attached.drafter.model.new_sequence().forward([1, 5, 9, 40, 41], 5).clone()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved(home: Path) -> list[Path]:
    """The files of the profiles in a home, those set aside included."""
    return sorted(home.glob("profiles/*/*.safetensors"))


def spellings(text: str) -> Iterator[bytes]:
    """How a file may hold a text."""
    for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"):
            yield form.encode(encoding, "replace")


def sequences(ids: Iterable[int], length: int = 6) -> Iterator[bytes]:
    """How a file may hold so many tokens in a row; rows of few different ones, which occur anywhere, are left out."""
    row = list(ids)
    for start in range(len(row) - length + 1):
        window = row[start : start + length]
        if len(set(window)) > length // 2:
            for kind in ("<i4", "<i8", ">i4", ">i8", "<u2"):
                yield np.array(window, kind).tobytes()


def found(folder: Path, texts: Iterable[str], rows: Iterable[Iterable[int]]) -> list[str]:
    """The files that hold one of these texts, or a part of one of these rows of tokens."""
    patterns = {form for text in texts for form in spellings(text)} | {form for row in rows for form in sequences(row)}
    assert len(patterns) > 8
    return [name for name, data in tree(folder).items() if any(pattern in data for pattern in patterns)]
