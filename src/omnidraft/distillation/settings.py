"""Settings of a trainer beyond the public ones of `config.Learning`, for experiments."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.config import check_integer, check_number, choice

DIRECT_DIVERGENCES = ("forward", "none", "reverse")


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Loss weights, optimizer settings, sizes and guard rails of a `trainer.Trainer`."""

    direct_divergence: str = "reverse"  # of the hybrid loss at directly mapped tokens; "reverse" is the paper's
    ngram_weight: float | None = 0.2  # λ of the hybrid loss; None: the target's probability of the n-gram
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    batch_size: int = 8  # answers per optimizer step
    replay_bytes: int = 2**26  # bound on the training examples kept for replay
    hold_out_every: int = 10  # one answer in so many is held out for the rollback check
    rollback_margin: float = 0.05  # relative rise of the held-out loss above which an update is rolled back
    min_gain: float = 1e-3  # mean relative fall of the held-out loss below which the update interval doubles; 0: never
    head_learning_rate: float = 3e-3
    rejection_weight: float = 1.0  # of rejections in the acceptance head's loss; 1 keeps its probabilities calibrated

    def __post_init__(self) -> None:
        choice("direct_divergence", self.direct_divergence, DIRECT_DIVERGENCES)
        if self.ngram_weight is not None:
            check_number(self, "ngram_weight", low=0.0, fix="use 0.2, or None for the target's probability")
        check_number(self, "weight_decay", low=0.0, fix="use 0 for none")
        check_number(self, "max_gradient_norm", low=0.0, low_open=True, fix="1 is usual")
        check_integer(self, "batch_size", low=1, fix="8 is usual")
        check_integer(self, "replay_bytes", low=2**20, fix="use at least a mebibyte")
        check_integer(self, "hold_out_every", low=2, fix="10 holds out one answer in ten")
        check_number(self, "rollback_margin", low=0.0, fix="use 0 to roll back every update that does not help")
        check_number(self, "min_gain", low=0.0, fix="use 0 to keep the update interval")
        check_number(self, "head_learning_rate", low=0.0, high=1.0, low_open=True, fix="3e-3 is usual")
        check_number(self, "rejection_weight", low=0.0, low_open=True, fix="use 1 for calibrated probabilities")
