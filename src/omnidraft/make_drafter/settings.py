"""Settings of a drafter to be made: its shape, the teacher text, its training."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.config import Settings, integer, number


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """The layers and the vocabulary size that the drafter keeps of the source model."""

    layers: tuple[int, ...]
    vocab: int


@dataclass(frozen=True, kw_only=True)
class Writing(Settings):
    """Settings of writing teacher text."""

    text_tokens: int = integer(1_000_000, "tokens that a teacher writes", low=1, fix="use 1000000")
    self_asked: float = number(
        0.67, "share of the questions that the teacher writes itself", low=0, high=1, fix="use 0.67, or 0 for none"
    )
    batch_size: int = integer(32, "conversations written at once", low=1, fix="use 32, or fewer to save memory")
    conversation_tokens: int = integer(
        2048, "tokens of a conversation, at most; a prompt has at most three quarters of them", low=256, fix="use 2048"
    )
    shard_minutes: float = number(5, "minutes between two files of text", low=0, fix="use 5")


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """Settings of distillation."""

    tokens: int = integer(
        5_000_000, "tokens read in training, repetitions counted", low=1, fix="use 5000000, or fewer for a trial"
    )
    batch_tokens: int = integer(8192, "tokens in an optimizer step", low=1, fix="use 8192")
    learning_rate: float = number(1e-3, "peak learning rate of AdamW", low=0, fix="use 0.001")
    decay: float = number(
        0.3, "share of the training, at its end, in which the learning rate falls to 0", low=0, high=1, fix="use 0.3"
    )
    seed: int = integer(0, "decides the order of the text", low=0, fix="use 0")
