"""OmniDraft: one small drafter makes any causal language model faster and never changes what it says.

    import omnidraft

    model = omnidraft.load(target="zoo:target-b")
    print(model.generate([{"role": "user", "content": "Question: What is 2 plus 3?"}]).text)

Everything that needs PyTorch is imported when it is first used, `omnidraft.hf` for `generate` of transformers, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from omnidraft.errors import ConfigError, InputError, ModelError, NumericsError, OmniDraftError, PromptError

if TYPE_CHECKING:
    from omnidraft.api import Generation, OmniDraft, Stream, load

__all__ = [
    "ConfigError",
    "Generation",
    "InputError",
    "ModelError",
    "NumericsError",
    "OmniDraft",
    "OmniDraftError",
    "PromptError",
    "Stream",
    "__version__",
    "load",
]
__version__ = "0.1.0"

_LATE = ("Generation", "OmniDraft", "Stream", "load")


def __getattr__(name: str) -> Any:
    if name in _LATE:
        from omnidraft import api

        return getattr(api, name)
    if name == "hf":
        return import_module("omnidraft.hf")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, "hf"})
