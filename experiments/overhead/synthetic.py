"""Random models of a given shape that are made to say a given text, and the time that is spent inside of them.

The passes are real and cost what those of a trained model of that shape cost; only the logits are rewritten.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from omnidraft.verification.truncation import Probs, Row, Truncation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from omnidraft.models.language_model import LanguageModel

Say = Callable[[int, torch.Tensor], None]
"""Rewrites the logits (V,) of what follows a position."""
CERTAIN = 1e6  # odds of a token against all others together
EXPONENT = 1.5  # of Zipf's law
STRIDE = 7919  # ids by which the likely tokens move from one position to the next


def certain(row: torch.Tensor, token: int) -> None:
    """Change one logit of a row (V,), so that its token is as good as certain."""
    row[token] = row.float().logsumexp(0) + math.log(CERTAIN)


class Spread:
    """Rows of logits of a given distribution: one token is favored, the others share the rest by Zipf's law.

    Which others are likely is drawn once and moves with the position: a row costs one copy and two writes.
    """

    def __init__(self, tokens: Sequence[bytes | None], said: float, temperature: float, dtype: torch.dtype) -> None:
        weights = torch.arange(1, len(tokens) + 1, dtype=torch.float64) ** -EXPONENT
        logs = ((1 - said) / weights.sum() * weights).log()
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
        self._others = (temperature * logs[order]).to(dtype).repeat(2)  # from any id on, V of them are a row
        self._said = temperature * math.log(said)
        # padding and special tokens, which no trained model says in the middle of a text
        self._never = torch.tensor([token for token, data in enumerate(tokens) if data is None], dtype=torch.long)
        self._lowest = float(self._others.min())

    def write(self, position: int, row: torch.Tensor, token: int) -> None:
        """Make `row` (V,) the logits of a position where `token` is said."""
        start = STRIDE * position % len(row)
        row.copy_(self._others[start : start + len(row)])
        row[self._never] = self._lowest
        row[token] = self._said


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
    """Rewrite the rows of logits (n, V), the last of which follows `length` tokens."""
    if say is not None:
        for index, position in enumerate(range(length - len(logits) + 1, length + 1)):
            say(position, logits[index])


@contextmanager
def counting_truncations() -> Iterator[Counter[bool]]:
    """Counts of distributions truncated by our own code (True) and by the processors of `transformers`."""
    distribution, counts = Truncation.probs, Counter[bool]()

    def counted(self: Truncation, row: Row) -> Probs | None:
        made = distribution(self, row)
        counts[made is not None] += 1
        return made

    setattr(Truncation, "probs", counted)  # noqa: B010  put back below
    try:
        yield counts
    finally:
        setattr(Truncation, "probs", distribution)  # noqa: B010
