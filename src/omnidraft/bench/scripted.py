"""Random models of a given shape that are made to say a given text, and the time that is spent inside of them.

The passes are real and cost what those of a trained model of that shape cost; only one logit of each row is changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from omnidraft.models import LanguageModel

Say = Callable[[int], tuple[int, float] | None]
"""The token that follows a position, and its odds against all others together at temperature 1; None: left alone."""


@dataclass(frozen=True)
class Shape:
    """A Llama architecture."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    tied: bool

    def parameters(self, vocab_size: int) -> int:
        """How many weights a model of this shape has, norms left out."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * vocab_size * self.hidden

    def build(self, vocab_size: int, context: int, dtype: torch.dtype) -> PreTrainedModel:
        """A random model of this shape."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=context,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
        model: Any = LlamaForCausalLM(config).eval()
        return cast("PreTrainedModel", model.to(dtype))


@dataclass
class Watch:
    """Seconds inside of forward passes and of scripts, and the passes made, oldest first."""

    passes_s: float = 0.0
    script_s: float = 0.0
    passes: list[Pass] = field(default_factory=list)


@dataclass(frozen=True)
class Pass:
    """One forward pass: who made it, tokens in the cache before, tokens fed, rows of logits asked for."""

    runner: Any
    before: int
    fed: int
    kept: int


@contextmanager
def watching(watch: Watch, runner: PreTrainedModel | LanguageModel, say: Say | None = None) -> Iterator[None]:
    """Time the passes that a runner makes inside, and change their logits as `say` says."""
    with _hooked(watch, runner, say) if isinstance(runner, torch.nn.Module) else _shadowed(watch, runner, say):
        yield


@contextmanager
def _hooked(watch: Watch, model: PreTrainedModel, say: Say | None) -> Iterator[None]:
    """The passes of a `transformers` model, whoever asks for them."""
    began = 0.0

    def before(*_: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def after(_model: Any, ids: Sequence[torch.Tensor], named: dict[str, Any], output: Any) -> None:
        watch.passes_s += (done := time.perf_counter()) - began
        fed = (ids[0] if ids else named["input_ids"]).shape[1]
        length = named["past_key_values"].get_seq_length()
        watch.passes.append(Pass(model, length - fed, fed, output.logits.shape[1]))
        _rewrite(output.logits[0], length, say)
        watch.script_s += time.perf_counter() - done

    hooks = model.register_forward_pre_hook(before), model.register_forward_hook(after, with_kwargs=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _shadowed(watch: Watch, model: LanguageModel, say: Say | None) -> Iterator[None]:
    """The passes of one of our own models."""
    forward = model.forward

    @torch.inference_mode()
    def timed(ids: Sequence[int], keep: int) -> torch.Tensor:
        before, began = model.length, time.perf_counter()
        logits = forward(ids, keep)
        watch.passes_s += (done := time.perf_counter()) - began
        watch.passes.append(Pass(model, before, len(ids), keep))
        _rewrite(logits, model.length, say)
        watch.script_s += time.perf_counter() - done
        return logits

    setattr(model, "forward", timed)  # noqa: B010  shadows the class's own until it is deleted
    try:
        yield
    finally:
        delattr(model, "forward")


def _rewrite(logits: torch.Tensor, length: int, say: Say | None) -> None:
    """Give each row of logits (n, V), the last of which follows `length` tokens, its scripted token."""
    if say is None:
        return
    for row, position in enumerate(range(length - len(logits) + 1, length + 1)):
        if (said := say(position)) is not None:
            token, odds = said
            logits[row, token] = logits[row].float().logsumexp(0) + math.log(odds)
