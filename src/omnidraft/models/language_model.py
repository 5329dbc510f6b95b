"""The interface of a language model (append ids, read logits, crop the cache), and `transformers` models behind it."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from omnidraft.errors import CONTEXT_LENGTH, InputError, ModelError, NumericsError, PromptError
from omnidraft.models.forks import mind_forks

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CHUNK = 512  # ids in one forward pass: bounds the memory of the attention over a long prompt
NO_LIMIT = 2**63 - 1  # context of a model without a maximum position
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that cache one entry a token
CACHE_ARGUMENTS = ("past_key_values", "cache")  # of models' `forward`, by the version that they were written for
# kinds of rotation whose angles do not depend on how a text is split into passes, within the context
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
SUPPORTED = "a decoder-only causal model whose layers are all full, sliding or chunked attention"


class LanguageModel(Protocol):
    """A causal language model with a KV cache that holds one sequence."""

    vocab_size: int  # rows of the logits, padded ids included
    context: int  # maximum number of tokens in the cache

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them, (keep, vocab_size) float32."""

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, 0 <= length <= self.length."""


class TransformersModel:
    """A `transformers` causal language model, batch 1; raises ModelError where its state cannot be rolled back."""

    chunk = CHUNK

    def __init__(self, model: PreTrainedModel) -> None:
        from omnidraft.models.kv_cache import new_cache

        check_supported(model)
        mind_forks()
        config = model.config.get_text_config(decoder=True)
        self.model = model.eval()
        self.name = model.name_or_path or type(model).__name__
        self.device, self.dtype = model.device, model.dtype
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
        self.context = _context(config)
        self.eos = _eos(model)  # ids that end a sequence
        self._cache_argument = cache_argument(model)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._new_cache = new_cache
        self._cache = new_cache()
        self._length = 0

    def with_own_cache(self) -> Self:
        """Return a model that shares these weights and has a cache of its own, empty."""
        other = copy.copy(self)
        vars(other).update(_cache=self._new_cache(), _length=0)
        return other

    def tensors(self) -> dict[str, Any]:
        """The weights by name."""
        return dict(self.model.state_dict())

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache, room to grow included."""
        return sum(getattr(layer, "nbytes", 0) for layer in self._cache.layers)

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return self._length

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them.

        Returns (keep, vocab_size) float32 on the model's device, an inference tensor: clone it before autograd or
        in-place work.  Raises PromptError for ids outside the vocabulary or beyond the context, InputError for a
        `keep` outside 0..len(ids), both before anything is read; NumericsError for logits that are NaN or +inf, or
        -inf throughout a row.  After NumericsError, or any interruption, the cache is empty.
        """
        self._check(ids, keep)
        try:
            logits = self._read(ids, keep)
            # the largest entry of a row is NaN or infinite if any is NaN or +inf, or if all are -inf
            # (numpy finds it three times as fast as torch on a CPU)
            best = logits.numpy().max(-1) if self.device.type == "cpu" else logits.amax(-1)
            if not all(map(math.isfinite, best.tolist())):
                raise NumericsError(
                    f"model {self.name!r} returned NaN or infinite logits in {self.dtype}, finite ones are needed: "
                    "load it with dtype='float32', or check its weights"
                )
        except BaseException:
            # an interrupted pass leaves layers of unequal length, which no crop can repair
            self.crop(0)
            raise
        return logits

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises InputError unless 0 <= length <= self.length."""
        if not 0 <= length <= self._length:
            raise InputError(f"cannot crop a cache of {self._length} tokens to {length}: use 0..{self._length}")
        if length == 0:
            self._cache = self._new_cache()
        elif length < self._length:
            self._cache.crop(length - self._length)  # negative: the number of tokens to remove
        self._length = length

    def _check(self, ids: Sequence[int], keep: int) -> None:
        if not 0 <= keep <= len(ids):
            raise InputError(f"cannot return logits of {keep} positions out of {len(ids)}: use 0..{len(ids)}")
        if self._length + len(ids) > self.context:
            raise PromptError(
                f"{self._length} + {len(ids)} tokens do not fit model {self.name!r}, which holds {self.context}: "
                "shorten the prompt or generate fewer tokens",
                code=CONTEXT_LENGTH,
            )
        check_ids(ids, self.vocab_size)  # on a GPU an id out of range is an error that only a new process recovers from

    def _read(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Run the model over `ids` in chunks; logits (keep, vocab_size) float32."""
        kept = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            inputs = torch.tensor([chunk], device=self.device)  # (1, T)
            rows = len(chunk) - max(0, len(ids) - keep - start)  # positions of this chunk whose logits are kept
            select = {"logits_to_keep": max(rows, 1)} if self._selects else {}  # 0 would mean all
            output = self.model(inputs, use_cache=True, **{self._cache_argument: self._cache}, **select)
            self._length += len(chunk)
            if self._cache.get_seq_length() != self._length:
                raise ModelError(f"model {self.name!r} does not use the KV cache it is given: use {SUPPORTED}")
            if rows > 0:
                kept.append(output.logits[0, -rows:].float())
        if not kept:
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device=self.device)
        return kept[0] if len(kept) == 1 else torch.cat(kept)


def check_supported(model: PreTrainedModel) -> None:
    """Raise ModelError unless the state of `model` is a causal KV cache: one entry a token and layer."""
    config = model.config
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ()) - ATTENTION
    # encoders set one or the other to False; the configs of some decoders say that they are none
    blind = all(getattr(module, name, True) for module in model.modules() for name in ("is_causal", "is_decoder"))
    if config.is_encoder_decoder:
        found = "an encoder"
    elif kinds:
        found = f"layers of kind {', '.join(sorted(kinds))}, whose state cannot be rolled back"
    elif getattr(model, "_is_stateful", False) or not cache_argument(model):
        found = "a state other than a KV cache, which cannot be rolled back"
    elif not blind and not getattr(config, "is_decoder", True):  # an image tower may attend both ways
        found = "attention to later tokens"
    else:
        return
    raise ModelError(f"model {model.name_or_path!r} ({type(model).__name__}) has {found}: use {SUPPORTED}")


def cache_argument(model: torch.nn.Module) -> str:
    """The name by which `model.forward` takes a KV cache; empty where it takes none."""
    parameters = inspect.signature(model.forward).parameters
    found = (name for name in CACHE_ARGUMENTS if name in parameters)
    # what XLM calls a cache is a dict of tensors
    return next((name for name in found if "dict" not in str(parameters[name].annotation)), "")


def check_rotation(config: PreTrainedConfig, name: str) -> None:
    """Raise ModelError for a rotation of queries and keys of a kind that is not known."""
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    for part in (rope, *rope.values()):  # one set for all layers, or one a kind of layer
        kind = part.get("rope_type", "default") if isinstance(part, dict) else "default"
        if kind not in ROTATIONS:
            raise ModelError(
                f"model {name!r} has rotary positions of type {kind!r}, which is not supported: use a model with one "
                f"of {', '.join(ROTATIONS)}"
            )


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise PromptError for an id that a model with `size` rows of logits does not have."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        fix = "use only tokens that it has rows of logits for"  # its own tokenizer may have more
        raise PromptError(f"token id {wrong} is not in 0..{size - 1}, the model's vocabulary: {fix}")


def _context(config: PreTrainedConfig) -> int:
    """Largest number of positions at which the logits do not depend on the split of the input into passes."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    sizes = [getattr(config, name, None) for name in names]
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):  # one set for all layers, or one a kind of layer
        # beyond this length longrope rotates the keys of a pass by other angles than those already in the cache
        longer = isinstance(part, dict) and part.get("rope_type") == "longrope"
        if longer and part.get("short_factor") != part.get("long_factor"):
            sizes += [part.get("original_max_position_embeddings")]
    return min((int(size) for size in sizes if size), default=NO_LIMIT)


def _eos(model: PreTrainedModel) -> tuple[int, ...]:
    """End-of-sequence ids: the generation config's, else the model config's."""
    sources = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    eos = next((ids for source in sources if (ids := getattr(source, "eos_token_id", None)) is not None), ())
    return tuple(eos) if isinstance(eos, list | tuple) else (eos,)
