"""Trainers with settings of either kind, given by their names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from omnidraft.config import Learning
from omnidraft.distillation.settings import TrainerSettings


def settings_of(options: dict[str, Any]) -> tuple[Learning, TrainerSettings]:
    """The public settings of learning, and those of the trainer."""
    own = {f.name for f in fields(TrainerSettings)}
    return (
        Learning(**{name: value for name, value in options.items() if name not in own}),
        TrainerSettings(**{name: value for name, value in options.items() if name in own}),
    )
