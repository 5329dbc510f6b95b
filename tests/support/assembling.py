"""Models of which every setting may be given by its name, also those that `load` does not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnidraft.api import OmniDraft, assemble
from omnidraft.config import Drafting, Learning, names


def load_with(target: str | Path, drafter: str | Path | OmniDraft | None, **options: Any) -> OmniDraft:
    """`assemble` with the settings among these options."""
    drafting, learning = ({n: options.pop(n) for n in names(cls) if n in options} for cls in (Drafting, Learning))
    return assemble(target, drafter, Drafting(**drafting), learning, **options)
