"""A lean Llama forward pass for small drafters on a CPU, where framework overhead is most of a step.

It uses the weights of the `transformers` model.  Its precision does not affect exactness: q is the (finite) vector
that the draft tokens were drawn from, whichever forward pass computed it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from omnidraft.errors import InputError
from omnidraft.models.int8 import Int8Linear, Linear, available, fastest
from omnidraft.models.language_model import CHUNK, NO_LIMIT, TransformersModel

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM


RELEASED = 512  # tokens of a cache from which on its memory is given back when it is emptied
LARGEST_CACHE = 2**28  # bytes; the cache is allocated for the whole context at the start


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, stacked where they share an input, and its keys and values."""

    before_attention: torch.Tensor
    qkv: Linear
    out: Linear
    before_mlp: torch.Tensor
    gate_up: Linear
    down: Linear
    keys: torch.Tensor  # (key heads, context, head size)
    values: torch.Tensor


class LeanLlama:
    """A `LanguageModel` over the weights of a Llama model on a CPU, with a cache of fixed size.

    It computes in fp32; large matrices are quantized to 8 bits where the machine has the kernels.
    """

    def __init__(self, source: TransformersModel) -> None:
        model: LlamaForCausalLM = source.model
        config: LlamaConfig = model.config
        self.vocab_size = source.vocab_size
        self.context = source.context
        self.length = 0
        self.hidden: torch.Tensor | None = None  # (H,) input of the LM head at the last position
        self._heads: int = config.num_attention_heads
        self._key_heads: int = config.num_key_value_heads or self._heads
        self._size: int = config.head_dim or config.hidden_size // self._heads
        self._epsilon = config.rms_norm_eps
        self._base = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._tied = bool(config.tie_word_embeddings)
        shape = (config.num_hidden_layers, 2, self._key_heads, self.context, self._size)
        self._caches = torch.zeros(shape, dtype=torch.float32, device="cpu")
        self.load_weights({})
        # rotary position embedding as one complex product a head: (context, 1, head size / 2)
        positions = torch.arange(self.context, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, model.model.rotary_emb.inv_freq.float())
        self._rotations = torch.polar(torch.ones_like(angles), angles)[:, None]

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Use these weights, by their names in the source, and the source's for all others; the cache is kept."""
        own = self._base | {name: weight.detach() for name, weight in weights.items()}
        self._embedding = own["model.embed_tokens.weight"]
        self._head = fastest(self._embedding if self._tied else own["lm_head.weight"])
        self._norm = own["model.norm.weight"].float()
        self._layers = [self._layer(own, f"model.layers.{i}.", cache) for i, cache in enumerate(self._caches)]

    def _layer(self, weights: dict[str, torch.Tensor], name: str, cache: torch.Tensor) -> _Layer:
        q, k, v = (weights[f"{name}self_attn.{part}_proj.weight"] for part in "qkv")
        gate, up = (weights[f"{name}mlp.{part}_proj.weight"] for part in ("gate", "up"))
        return _Layer(
            before_attention=weights[f"{name}input_layernorm.weight"].float(),
            qkv=fastest(torch.cat([self._paired(q), self._paired(k), v])),
            out=fastest(weights[f"{name}self_attn.o_proj.weight"]),
            before_mlp=weights[f"{name}post_attention_layernorm.weight"].float(),
            gate_up=fastest(torch.cat([gate, up])),
            down=fastest(weights[f"{name}mlp.down_proj.weight"]),
            keys=cache[0],
            values=cache[1],
        )

    def with_own_cache(self) -> LeanLlama:
        """Return a model that shares these weights and has a cache of its own, empty."""
        other = copy.copy(self)
        other._new_cache()  # noqa: SLF001  a copy of this one
        return other

    def _new_cache(self) -> None:
        """An empty cache, whose memory is taken as it is written."""
        self._caches = torch.empty_like(self._caches)
        pairs = zip(self._layers, self._caches, strict=True)
        self._layers = [replace(layer, keys=cache[0], values=cache[1]) for layer, cache in pairs]
        self.length, self.hidden = 0, None

    @property
    def weights(self) -> str:
        """Precision of the matrices, a phrase."""
        linears = self._linears()
        rounded = sum(isinstance(part, Int8Linear) for part in linears)
        return f"8 bits in {rounded} of {len(linears)} matrices, else 32" if rounded else "32 bits"

    @property
    def nbytes(self) -> int:
        """Memory of the quantized matrices, which the source does not share, in bytes."""
        return sum(part.nbytes for part in self._linears() if isinstance(part, Int8Linear))

    @property
    def cache_bytes(self) -> int:
        """Memory of the keys and values of the tokens in the cache."""
        return self._caches.nbytes * self.length // self.context

    def _linears(self) -> list[Linear]:
        return [self._head, *(part for one in self._layers for part in (one.qkv, one.out, one.gate_up, one.down))]

    def _paired(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder rows so that the two halves that a rotary position rotates together are adjacent."""
        halves = weight.view(-1, 2, self._size // 2, weight.shape[1])
        return halves.transpose(1, 2).reshape(weight.shape)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them, (keep, vocab_size) float32."""
        if not 0 <= keep <= len(ids) or self.length + len(ids) > self.context:
            raise InputError(f"{self.length} + {len(ids)} tokens, {keep} kept: the cache holds {self.context}")
        kept = []
        for start in range(0, len(ids), CHUNK):
            x = self._read(ids[start : start + CHUNK])
            skipped = max(0, len(ids) - keep - start)
            if skipped < len(x):
                kept.append(x[skipped:])
        if not kept:
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device="cpu")
        x = kept[0] if len(kept) == 1 else torch.cat(kept)
        x = rms_norm(x, x.shape[-1:], self._norm, self._epsilon)
        self.hidden = x[-1]
        return self._head(x)

    def _read(self, ids: Sequence[int]) -> torch.Tensor:
        """Append `ids` to the cache and return the output of the last layer, (T, hidden)."""
        start, end = self.length, self.length + len(ids)
        x: torch.Tensor = self._embedding[torch.tensor(ids, device="cpu")].float()
        mask = None
        if len(ids) > 1:
            mask = torch.ones(len(ids), end, dtype=torch.bool, device="cpu").tril_(start)
        for layer in self._layers:
            x = x + self._attend(layer, rms_norm(x, x.shape[-1:], layer.before_attention, self._epsilon), start, mask)
            gate, up = layer.gate_up(rms_norm(x, x.shape[-1:], layer.before_mlp, self._epsilon)).chunk(2, -1)
            x = x + layer.down(silu(gate) * up)
        self.length = end
        return x

    def _attend(self, layer: _Layer, x: torch.Tensor, start: int, mask: torch.Tensor | None) -> torch.Tensor:
        count, rotated = len(x), self._heads + self._key_heads
        qkv = layer.qkv(x).view(count, rotated + self._key_heads, self._size)
        pairs = torch.view_as_complex(qkv[:, :rotated].unflatten(-1, (-1, 2)))
        qk = torch.view_as_real(pairs * self._rotations[start : start + count]).flatten(-2).transpose(0, 1)
        end = start + count
        layer.keys[:, start:end] = qk[self._heads :]
        layer.values[:, start:end] = qkv[:, rotated:].transpose(0, 1)
        seen = scaled_dot_product_attention(
            qk[None, : self._heads],
            layer.keys[None, :, :end],
            layer.values[None, :, :end],
            attn_mask=mask,
            enable_gqa=self._heads != self._key_heads,
        )
        return layer.out(seen[0].transpose(0, 1).reshape(count, -1))

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises InputError unless 0 <= length <= self.length."""
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop a cache of {self.length} tokens to {length}: use 0..{self.length}")
        if length == 0 and self.length > RELEASED:
            self._new_cache()
        self.length = length


def _cache_bytes(config: LlamaConfig, context: int) -> int:
    heads = config.num_key_value_heads or config.num_attention_heads
    size = config.head_dim or config.hidden_size // config.num_attention_heads
    return 2 * 4 * config.num_hidden_layers * heads * size * context


def lean(source: TransformersModel) -> LeanLlama | None:
    """Return a lean model over the weights of `source`, or None where there is an `obstacle`."""
    return None if obstacle(source) else LeanLlama(source)


def obstacle(source: TransformersModel) -> str | None:
    """Return the reason why a model has no lean step, a phrase, or None where it has one."""
    from transformers import LlamaForCausalLM

    config = source.model.config
    if type(source.model) is not LlamaForCausalLM:
        return f"{type(source.model).__name__} is no Llama"
    if source.device.type != "cpu":
        return f"it is on {source.device.type}"
    if source.dtype != torch.float32 and not available():
        return "this machine has no 8-bit kernels, and 32 bits a weight are slower than 16"
    weights = source.model.state_dict().values()  # quantized layers hold integers or tensor subclasses
    if not all(type(weight) is torch.Tensor and weight.is_floating_point() for weight in weights):
        return "its weights are quantized"
    if source.context >= NO_LIMIT or _cache_bytes(config, source.context) > LARGEST_CACHE:
        return "its context is too long for a cache that is allocated at the start"
    plain = (
        not (config.attention_bias or config.mlp_bias)
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] == "default"
    )
    return None if plain else "it is no plain Llama"
