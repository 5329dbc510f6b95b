"""Settings of a trainer beyond the public ones of `config.Learning`, for experiments."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.config import Settings, integer, number, one_of


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(Settings):
    """Loss weights, optimizer settings, sizes and guard rails of a `trainer.Trainer`."""

    direct_divergence: str = one_of(
        "reverse", "of the hybrid loss at directly mapped tokens", "forward", "none", "reverse"
    )
    ngram_weight: float | None = number(
        0.2,
        "λ of the hybrid loss",
        low=0,
        none="the target's probability of the n-gram",
        fix="use 0.2, or None for the target's probability",
    )
    weight_decay: float = number(0.0, "of AdamW", low=0, fix="use 0 for none")
    max_gradient_norm: float = number(1.0, "gradients are clipped to this norm", low=0, zero=False, fix="1 is usual")
    batch_size: int = integer(8, "answers per optimizer step", low=1, fix="8 is usual")
    replay_bytes: int = integer(
        2**26, "bound on the training examples kept for replay", low=2**20, fix="use at least a mebibyte"
    )
    hold_out_every: int = integer(
        10, "one answer in this many is held out for the rollback check", low=2, fix="10 holds out one answer in ten"
    )
    rollback_margin: float = number(
        0.05,
        "relative rise of the held-out loss above which an update is rolled back",
        low=0,
        fix="use 0 to roll back every update that does not help",
    )
    min_gain: float = number(
        1e-3,
        "mean relative fall of the held-out loss below which the update interval doubles",
        low=0,
        fix="use 0 to keep the update interval",
    )
    head_learning_rate: float = number(
        3e-3, "of AdamW for the acceptance head", low=0, high=1, zero=False, fix="3e-3 is usual"
    )
    rejection_weight: float = number(
        1.0,
        "of rejections in the acceptance head's loss; 1 keeps its probabilities calibrated",
        low=0,
        zero=False,
        fix="use 1 for calibrated probabilities",
    )
