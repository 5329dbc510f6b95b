"""A forward pass for small batches on a CPU: weights in 8 bits, read once a pass, by the C code of step.c.

It takes the families whose layers are those of Llama, apart from biases, normalized queries and keys and a sliding
window.  As a drafter's step its rounding does not affect exactness: q is the vector that the draft was drawn from.  As
a target's it is the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

import torch

from omnidraft.models import native
from omnidraft.models.kv_blocks import Angles, KVBlocks
from omnidraft.models.language_model import CachedSequence, Read, check_crop
from omnidraft.models.native import pointer
from omnidraft.models.native_weights import Parts, RoundedWeights, Weights
from omnidraft.models.transformers_model import PretrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 64  # ids of a text in one call of step.c: more take as long, and a call cannot be interrupted
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# whose angles do not depend on how long a text gets, up to the model's context: it ends where those of longrope change
ROPE = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class NativeModel(PretrainedModel):
    """A model with 8-bit weights, of one that has no `obstacle`; its rows do not depend on each other, bit by bit.

    `skeleton` gives the shape, and may be on the meta device.  Weights are by its names: those of `own`, and those of
    `source` for all others; rounded ones are used where they are.  Raises ModelError for weights that are NaN or
    infinite, of another shape, or missing.
    """

    chunk, part, joint, generates, rows_independent = CHUNK, CHUNK, True, False, True
    precision = "int8"
    device = torch.device("cpu")

    def __init__(self, skeleton: PreTrainedModel, source: Weights, own: Weights | RoundedWeights | None = None) -> None:
        super().__init__(skeleton)
        config: Any = skeleton.config
        heads, key_heads, size = _heads(config)
        self._shape = native.Shape(config.num_hidden_layers, heads, key_heads, size, config.rms_norm_eps)
        self._angles = Angles(_rotary(skeleton))
        self._source = source
        shapes = {name: tensor.shape for name, tensor in skeleton.state_dict().items()}
        parts = Parts(source, own or {}, shapes)
        tied = bool(config.tie_word_embeddings) and not _apart(source)
        stored = EMBEDDING in source  # tied ones are stored by either name
        self._head = parts.matrix("model.embed_tokens" if tied and stored else "lm_head")
        self._embedding = self._head if tied else parts.looked_up("model.embed_tokens")
        layers = [_layer(parts, f"model.layers.{i}.", window) for i, window in enumerate(_windows(skeleton))]
        self._layers = (native.Layer * len(layers))(*layers)
        self._norm = parts.vector("model.norm.weight")
        self._parts = parts

    def with_weights(self, own: Weights | RoundedWeights) -> NativeModel:
        """A model with these weights, by their names in the source, and the source's for all others."""
        return NativeModel(self.model, self._source, own)

    def rounded_weights(self) -> RoundedWeights:
        """The weights, which another process can load into a model of the same shape."""
        return self._parts.rounded_weights()

    @property
    def nbytes(self) -> int:
        """Memory of the weights, which the source does not share, in bytes."""
        return self._parts.nbytes

    @property
    def token_bytes(self) -> float:
        shape = self._shape
        return KVBlocks.token_bytes(shape)

    def tensors(self) -> dict[str, torch.Tensor]:
        """A sample of each matrix by name, whatever the others are: however they lie in memory."""
        return {name: each.sample() for name, each in {**self._parts.matrices, **self._parts.in_file}.items()}

    def new_sequence(self, *, hidden: bool = False) -> NativeSequence:
        return NativeSequence(self, self._shape, hidden=hidden)

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """All in one call of step.c, but that it takes no more than CHUNK ids of a text at a time."""
        starts = [each.sequence.length for each in reads]
        try:
            return self._read(reads)
        except BaseException:
            for each, start in zip(reads, starts, strict=True):
                each.sequence.crop(start)  # with the blocks that it took
            raise

    def _read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        kept: list[list[torch.Tensor]] = [[] for _ in reads]  # of each, outputs of the last layer
        for begin in range(0, max((len(each.ids) for each in reads), default=0), CHUNK):
            self._read_part(reads, begin, kept)
        rows = [row for each in kept for row in each]
        if not rows:
            return [torch.empty(0, self.vocab_size, dtype=torch.float32, device="cpu") for _ in reads]
        x = rows[0] if len(rows) == 1 else torch.cat(rows)
        ends = list(accumulate((each.keep for each in reads), initial=0))
        for each, (start, end) in zip(reads, pairwise(ends), strict=True):
            sequence = cast("NativeSequence", each.sequence)
            if sequence.keeps_hidden and end > start:
                sequence.hidden = torch.nn.functional.rms_norm(
                    x[end - 1], x.shape[-1:], self._norm, self._shape.epsilon
                )
        logits = self._head(x, self._norm, self._shape.epsilon)
        return [logits[start:end] for start, end in pairwise(ends)]

    def _read_part(self, reads: Sequence[Read], begin: int, kept: list[list[torch.Tensor]]) -> None:
        """Read up to CHUNK ids of each text, from `begin` on, and add the rows that are kept."""
        parts = [each.ids[begin : begin + CHUNK] for each in reads]
        texts = [cast("NativeSequence", each.sequence) for each in reads]
        for text, ids in zip(texts, parts, strict=True):
            text.cache.reserve(text.length + len(ids))
        angles = self._angles.upto(max(text.length + len(ids) for text, ids in zip(texts, parts, strict=True)))
        several = len(reads) > 1
        places = [
            text.cache.at(text.length + at, angles)
            for text, ids in zip(texts, parts, strict=True)
            for at in range(len(ids) if several else 1)
        ]
        caches = (native.Cache * len(places))(*places)
        x = self._embedding.rows([token for ids in parts for token in ids] if several else parts[0])
        native.read_tokens(self._layers, self._shape, caches, x, apart=several)
        end = 0
        for each, text, ids, rows in zip(reads, texts, parts, kept, strict=True):
            text.length += len(ids)
            end += len(ids)
            if (count := min(len(ids), begin + len(ids) - len(each.ids) + each.keep)) > 0:
                rows.append(x[end - count : end])


class NativeSequence(CachedSequence):
    """A text in a cache of step.c."""

    model: NativeModel

    def __init__(self, model: NativeModel, shape: native.Shape, *, hidden: bool) -> None:
        super().__init__(model)
        self.keeps_hidden = hidden
        self.cache = KVBlocks(shape)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.cache.nbytes

    def crop(self, length: int) -> None:
        check_crop(length, self.length)
        self.cache.crop(length)
        if length == 0:
            self.hidden = None
        self.length = length


def _layer(parts: Parts, name: str, window: int) -> native.Layer:
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


def native_of(source: PretrainedModel) -> NativeModel | None:
    """A native model over the weights of `source`, or None where there is an `obstacle`."""
    return None if obstacle(source.model) else NativeModel(source.model, source.model.state_dict())


def obstacle(model: PreTrainedModel) -> str | None:
    """Return the reason why a model has no native step, a phrase, or None where it has one."""
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
