"""A forward pass for small batches on a CPU: weights in 8 bits, read once a pass, by the C code of step.c.

It takes the families whose layers are those of Llama, apart from biases, normalized queries and keys and a sliding
window.  As a drafter's step its rounding does not affect exactness: q is the vector that the draft was drawn from.  As
a target's it is the target.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from omnidraft.errors import InputError, ModelError
from omnidraft.models import native
from omnidraft.models.language_model import TransformersModel
from omnidraft.models.native import LANES, WIDTH, Matrix, Rounded, pointer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOM = 256  # tokens; a cache grows by a half of itself, at least so many
CHUNK = 64  # ids in one call of step.c: more take as long, and a call cannot be interrupted
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# whose angles do not depend on how long a text gets, up to the model's context: it ends where those of longrope change
ROPE = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of weights that are what they say
Weights = Mapping[str, torch.Tensor]


class LeanModel:
    """A `LanguageModel` with 8-bit weights, of a model that has no `obstacle`.

    `skeleton` gives the shape, and may be on the meta device.  `weights` are by its names.  Raises ModelError for
    weights that are NaN or infinite, of another shape, or missing.
    """

    chunk = CHUNK

    def __init__(self, skeleton: PreTrainedModel, weights: Weights, vocab_size: int, context: int) -> None:
        config: Any = skeleton.config
        self.vocab_size = vocab_size
        self.context = context
        self.length = 0
        self.hidden: torch.Tensor | None = None  # (H,) input of the LM head at the last position
        self._heads, self._key_heads, self._size = _heads(config)
        self._tied = bool(config.tie_word_embeddings) and not _apart(weights)
        self._windows = _windows(skeleton)
        self._shape = native.Shape(
            config.num_hidden_layers, self._heads, self._key_heads, self._size, config.rms_norm_eps
        )
        rotary = _rotary(skeleton)
        self._frequencies, self._scaling = rotary.inv_freq.float(), float(rotary.attention_scaling)
        self._angles = torch.empty(0, self._size, device="cpu")  # for every position that a cache has had room for
        self._base = weights
        self._shapes = {name: tensor.shape for name, tensor in skeleton.state_dict().items()}
        self.load_weights({})
        self._new_cache()

    def load_weights(self, weights: Weights | RoundedWeights) -> None:
        """Use these weights, by their names in the source, and the source's for all others; the cache is kept.

        Those that are rounded, by `rounded_weights`, are used where they are.
        """
        own, ready = (weights.vectors, weights.matrices) if isinstance(weights, RoundedWeights) else (weights, {})
        parts = _Parts(self._base, own, self._shapes, ready)
        stored = EMBEDDING in self._base or not self._tied  # tied ones are stored by either name
        embedding = parts.matrix("model.embed_tokens" if stored else "lm_head")
        head = embedding if self._tied else parts.matrix("lm_head")
        layers = [self._layer(parts, f"model.layers.{i}.", window) for i, window in enumerate(self._windows)]
        array = (native.Layer * len(layers))(*layers)
        self.loaded = _Loaded(parts, array, embedding, head, parts.vector("model.norm.weight"))

    def rounded_weights(self) -> RoundedWeights:
        """The weights in use, which another process can load into a model of the same shape."""
        return self.loaded.parts.rounded_weights()

    def _layer(self, parts: _Parts, name: str, window: int) -> native.Layer:
        attention, mlp = f"{name}self_attn.", f"{name}mlp."
        return native.Layer(
            qkv=parts.matrix(*(f"{attention}{part}_proj" for part in "qkv")).struct,
            output=parts.matrix(f"{attention}o_proj").struct,
            gate_up=parts.matrix(f"{mlp}gate_proj", f"{mlp}up_proj").struct,
            down=parts.matrix(f"{mlp}down_proj").struct,
            before_attention=pointer(parts.vector(f"{name}input_layernorm.weight")),
            before_mlp=pointer(parts.vector(f"{name}post_attention_layernorm.weight")),
            query_norm=pointer(parts.optional(f"{attention}q_norm.weight")),
            key_norm=pointer(parts.optional(f"{attention}k_norm.weight")),
            window=window,
        )

    def with_own_cache(self) -> LeanModel:
        """Return a model that shares these weights and has a cache of its own, empty."""
        other = copy.copy(self)
        other._new_cache()  # noqa: SLF001  a copy of this one
        return other

    def _new_cache(self) -> None:
        self._entries = torch.empty(self._shape.layers, 2, self._key_heads, 0, self._size, device="cpu")
        self.length, self.hidden = 0, None

    def reserve(self, length: int) -> None:
        """Room for so many tokens in the cache."""
        old = self._entries.shape[3]
        if length > old:
            capacity = _whole_blocks(min(self.context, length + max(ROOM, length // 2)))
            shape = (*self._entries.shape[:3], capacity, self._size)
            entries = torch.empty(shape, dtype=torch.float32, device="cpu")
            used = _whole_blocks(self.length)
            entries[..., :used, :] = self._entries[..., :used, :]
            self._entries = entries
        if length > len(self._angles):
            positions = torch.arange(self._entries.shape[3], dtype=torch.float32, device="cpu")
            # in 64 bits, so that the last bit does not depend on how many there are
            angles = torch.outer(positions, self._frequencies).double()
            self._angles = (torch.cat([angles.cos(), angles.sin()], -1) * self._scaling).float()

    @property
    def nbytes(self) -> int:
        """Memory of the weights, which the source does not share, in bytes."""
        return self.loaded.parts.nbytes

    @property
    def cache_bytes(self) -> int:
        """Memory of the keys and values, room to grow included."""
        return self._entries.nbytes

    def tensors(self) -> dict[str, torch.Tensor]:
        """The first columns of the rounded matrices by name, (out, WIDTH): however they lie in memory."""
        return {name: matrix.weights[0, :, :WIDTH] for name, matrix in self.loaded.parts.matrices.items()}

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them, (keep, vocab_size) float32."""
        if not 0 <= keep <= len(ids) or self.length + len(ids) > self.context:
            raise InputError(f"{self.length} + {len(ids)} tokens, {keep} kept: the cache holds {self.context}")
        self.reserve(self.length + len(ids))
        kept = []
        for start in range(0, len(ids), CHUNK):
            x = self._read(ids[start : start + CHUNK])
            skipped = max(0, len(ids) - keep - start)
            if skipped < len(x):
                kept.append(x[skipped:])
        if not kept:
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device="cpu")
        x = kept[0] if len(kept) == 1 else torch.cat(kept)
        norm, epsilon = self.loaded.norm, self._shape.epsilon
        self.hidden = torch.nn.functional.rms_norm(x[-1], x.shape[-1:], norm, epsilon)
        return self.loaded.head(x, norm, epsilon)

    def _read(self, ids: Sequence[int]) -> torch.Tensor:
        """Append `ids` to the cache and return the output of the last layer, (T, hidden)."""
        loaded = self.loaded
        x = loaded.embedding.rows(ids)
        shape, place = ctypes.byref(self._shape), ctypes.byref(self.place(self.length))
        native.library().read_tokens(loaded.layers, shape, place, 0, x.data_ptr(), len(ids))
        self.length += len(ids)
        return x

    def place(self, position: int) -> native.Cache:
        """The cache, as step.c takes it, before the token at a position."""
        entries, angles = self._entries, self._angles
        return native.Cache(pointer(entries), pointer(angles), entries.shape[3], position, native.threads())

    @torch.inference_mode()
    def forward_together(self, others: Sequence[LeanModel], texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append the first text to this cache, and each further one to that of one of `others`, which have its weights.

        The logits of the last id of each, (texts, vocab_size) float32: those, bit by bit, that it would get alone.
        """
        models, places = (self, *others), []
        for model, ids in zip(models, texts, strict=True):
            if not ids or model.length + len(ids) > model.context:
                raise InputError(f"{model.length} + {len(ids)} tokens: the cache holds {model.context}")
            model.reserve(model.length + len(ids))
            places += [model.place(model.length + at) for at in range(len(ids))]
        x = self.loaded.embedding.rows([token for ids in texts for token in ids])
        shape, caches = ctypes.byref(self._shape), (native.Cache * len(places))(*places)
        native.library().read_tokens(self.loaded.layers, shape, caches, 1, x.data_ptr(), len(places))
        x = x[torch.tensor([len(ids) for ids in texts], device="cpu").cumsum(0) - 1]
        norm, epsilon = self.loaded.norm, self._shape.epsilon
        for model, ids, own in zip(models, texts, x, strict=True):
            model.length += len(ids)
            model.hidden = torch.nn.functional.rms_norm(own, own.shape, norm, epsilon)
        return self.loaded.head(x, norm, epsilon)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises InputError unless 0 <= length <= self.length."""
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop a cache of {self.length} tokens to {length}: use 0..{self.length}")
        if length == 0:
            self._new_cache()
        self.length = length


def _whole_blocks(length: int) -> int:
    """A number of tokens, rounded up to what step.c keeps together."""
    return -(-length // LANES) * LANES


@dataclass(frozen=True)
class _Loaded:
    """Weights of one version, which change together."""

    parts: _Parts  # whose memory the layers point to
    layers: ctypes.Array[native.Layer]
    embedding: Rounded
    head: Rounded
    norm: torch.Tensor


class RoundedWeights(NamedTuple):
    """All weights of a model as step.c takes them, made of tensors alone, so that they can go to another process."""

    matrices: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]]  # of `_Restored`, by first layer
    vectors: dict[str, torch.Tensor]


class _Restored(Rounded):
    """A matrix that was rounded elsewhere."""

    def __init__(self, weights: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, columns: int) -> None:
        self.weights, self.scales, self.bias, self.columns = weights, scales, bias, columns
        chunks, out, width = weights.shape
        addresses = (weights.data_ptr(), scales.data_ptr(), pointer(bias))
        self.struct = Matrix(*addresses, out, columns, chunks, width)


class _Parts:
    """Weights in the form that step.c takes: `ready`, or from `own` where it has the name, else from `base`."""

    def __init__(
        self,
        base: Weights,
        own: Weights,
        shapes: Mapping[str, torch.Size],
        ready: Mapping[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]],
    ) -> None:
        self.matrices: dict[str, Rounded] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        self._base, self._own, self._shapes, self._ready = base, own, shapes, ready

    def rounded_weights(self) -> RoundedWeights:
        matrices = {name: (m.weights, m.scales, m.bias, m.columns) for name, m in self.matrices.items()}
        return RoundedWeights(matrices, self._vectors)

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices.values())

    def _get(self, name: str) -> torch.Tensor:
        found = self._own.get(name)
        if found is None:
            found = self._base.get(name)
        if found is None or found.shape != self._shapes[name] or found.dtype not in DTYPES:
            fault = "missing" if found is None else f"of another shape or type, {tuple(found.shape)} of {found.dtype}"
            raise ModelError(f"weights {name} are {fault}: get the complete files of the model")
        return found.detach()

    def vector(self, name: str) -> torch.Tensor:
        self._vectors[name] = self._get(name).float().contiguous()
        return self._vectors[name]

    def optional(self, name: str) -> torch.Tensor | None:
        return self.vector(name) if name in self._shapes else None

    def matrix(self, *names: str) -> Rounded:
        """The matrices of these layers, one below the other."""
        if names[0] in self._ready:
            self.matrices[names[0]] = _Restored(*self._ready[names[0]])
            return self.matrices[names[0]]
        weights = [self._get(f"{name}.weight") for name in names]
        biases = [self._get(f"{name}.bias") for name in names if f"{name}.bias" in self._shapes]
        bias = torch.cat(biases) if biases else None
        rounded = Rounded(names[0], torch.cat(weights) if len(names) > 1 else weights[0], bias)
        self.matrices[names[0]] = rounded
        return rounded


def lean(source: TransformersModel) -> LeanModel | None:
    """Return a lean model over the weights of `source`, or None where there is an `obstacle`."""
    if obstacle(source.model):
        return None
    return LeanModel(source.model, source.model.state_dict(), source.vocab_size, source.context)


def obstacle(model: PreTrainedModel) -> str | None:
    """Return the reason why a model has no lean step, a phrase, or None where it has one."""
    config: Any = model.config
    name, place = type(model).__name__, model.device.type
    if name not in FAMILIES:
        return f"{name} is none of {', '.join(FAMILIES)}"
    rope = config.rope_parameters["rope_type"]
    heads, key_heads, _ = _heads(config)
    weights = model.state_dict().values()
    quantized = getattr(config, "quantization_config", None) is not None
    reasons = {
        f"it is on {place}": place not in {"cpu", "meta"},
        # those are integers, or of a subclass of tensors
        "its weights are quantized": quantized
        or not all(type(one) is torch.Tensor and one.is_floating_point() for one in weights),
        f"{heads} heads cannot share the keys of {key_heads}": heads % key_heads != 0,
        f"its activation is {config.hidden_act}": config.hidden_act != "silu",
        f"its rotary positions are of type {rope}": rope not in ROPE,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    if found is None and 2 * len(_rotary(model).inv_freq) != _heads(config)[2]:
        found = "it rotates a part of each head"
    return found or native.obstacle()


def _heads(config: Any) -> tuple[int, int, int]:
    """Number of query heads and of key heads, and their size."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, config.num_key_value_heads or heads, size


def _windows(model: PreTrainedModel) -> list[int]:
    """Positions that a token of each layer attends to, 0 for all."""
    config: Any = model.config
    name, count = type(model).__name__, config.num_hidden_layers
    if name == "LlamaForCausalLM":  # it has none, whatever its config says
        return [0] * count
    window = config.sliding_window or 0
    kinds = ["sliding_attention"] * count if name == "MistralForCausalLM" else config.layer_types
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _apart(weights: Weights) -> bool:
    """Whether embedding and head are stored and differ: `transformers` does not tie these, whatever the config says."""
    return EMBEDDING in weights and HEAD in weights and not torch.equal(weights[EMBEDDING], weights[HEAD])


def _rotary(model: PreTrainedModel) -> Any:
    """The model's rotary positions; a skeleton's have no values."""
    kind: Any = type(model.model.rotary_emb)
    with torch.device("cpu"):
        return kind(config=model.config)
