"""Settings of a trainer beyond the public ones of `config.Learning`, for experiments."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnidraft.config import Settings, integer, number, one_of


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(Settings):
    """Loss weights, optimizer settings, sizes and guard rails of a `trainer.Trainer`."""

    direct_divergence: str = field(
        default="reverse",  # the paper's
        metadata=one_of("of the hybrid loss at directly mapped tokens", "forward", "none", "reverse"),
    )
    ngram_weight: float | None = field(
        default=0.2,
        metadata=number(
            "λ of the hybrid loss",
            low=0,
            none="the target's probability of the n-gram",
            fix="use 0.2, or None for the target's probability",
        ),
    )
    weight_decay: float = field(default=0.0, metadata=number("of AdamW", low=0, fix="use 0 for none"))
    max_gradient_norm: float = field(
        default=1.0, metadata=number("gradients are clipped to this norm", low=0, above=True, fix="1 is usual")
    )
    batch_size: int = field(default=8, metadata=integer("answers per optimizer step", low=1, fix="8 is usual"))
    replay_bytes: int = field(
        default=2**26,
        metadata=integer("bound on the training examples kept for replay", low=2**20, fix="use at least a mebibyte"),
    )
    hold_out_every: int = field(
        default=10,
        metadata=integer(
            "one answer in this many is held out for the rollback check", low=2, fix="10 holds out one answer in ten"
        ),
    )
    rollback_margin: float = field(
        default=0.05,
        metadata=number(
            "relative rise of the held-out loss above which an update is rolled back",
            low=0,
            fix="use 0 to roll back every update that does not help",
        ),
    )
    min_gain: float = field(
        default=1e-3,
        metadata=number(
            "mean relative fall of the held-out loss below which the update interval doubles",
            low=0,
            fix="use 0 to keep the update interval",
        ),
    )
    head_learning_rate: float = field(
        default=3e-3,
        metadata=number("of AdamW for the acceptance head", low=0, high=1, above=True, fix="3e-3 is usual"),
    )
    rejection_weight: float = field(
        default=1.0,
        metadata=number(
            "of rejections in the acceptance head's loss; 1 keeps its probabilities calibrated",
            low=0,
            above=True,
            fix="use 1 for calibrated probabilities",
        ),
    )
