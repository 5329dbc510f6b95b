"""A forward pass for small batches on a CPU: weights in 4 to 8 bits, read once a pass, by the C code of step.c.

It takes the models of `families`.  As a drafter's step its rounding does not affect exactness: q is the vector that the
draft was drawn from.  As a target's it is the target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from omnidraft.models.families import BY_CLASS, GELU, Family, UnsupportedReason, heads_of, unknown_family
from omnidraft.models.language_model import CachedSequence, KVSequence, Read, check_crop
from omnidraft.models.memory import needing, raise_for_pass
from omnidraft.models.native import rotary, step
from omnidraft.models.native.kv_cache import Angles, KVBlocks
from omnidraft.models.native.packed_matrices import StoredWeights
from omnidraft.models.native.prebuilt import source_bytes
from omnidraft.models.native.rotary import Rotation
from omnidraft.models.native.step import Norm, pointer
from omnidraft.models.native.weights import LayerWeights, Orders, PackedWeights, Weights
from omnidraft.models.skeleton import Skeleton
from omnidraft.models.transformers_model import PretrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_IDS = 64  # ids of a text in one call of step.c: more take as long, and a call cannot be interrupted
DRAFTED = 0.75  # bytes of a weight in Q5_1
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class NativeModel(PretrainedModel):
    """A model in 4 to 8 bits that has no `unsupported_reason`; its rows are independent of each other, bit by bit.

    `skeleton` gives the shape; one of transformers may be on the meta device.  Weights are by its names: those of
    `overrides`, and those of `source` for all others; packed ones are used where they are, and others rounded to 8
    bits, of a model that `drafts` to 5.  `load` returns the model of transformers, for whoever asks for it.  Raises
    ModelError for weights that are NaN or infinite, of another shape, or missing.
    """

    chunk, shared_chunk, joint, generates, rows_independent = CHUNK_IDS, CHUNK_IDS, True, False, True
    device = torch.device("cpu")

    def __init__(
        self,
        skeleton: PreTrainedModel | Skeleton,
        source: Weights,
        overrides: Weights | PackedWeights | None = None,
        *,
        drafts: bool = False,
        name: str = "",
        load: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        super().__init__(Skeleton.of(skeleton), name or getattr(skeleton, "name_or_path", ""))
        self.load = load or partial(cast, "PreTrainedModel", skeleton)
        config: Any = self.skeleton.config
        family = BY_CLASS[self.skeleton.model_class]
        rotations = rotary.rotations(config)
        self._angles = Angles(list(rotations.values()), _query_factors(family, config))
        self._shape = _shape(family, config, self._angles.columns)
        self._source, self.drafts = source, drafts
        self.precision = "Q5_1" if drafts and not isinstance(source, StoredWeights) else "int8"
        weights = LayerWeights(source, overrides or {}, self.skeleton.shapes, drafts=drafts)
        tied = bool(config.tie_word_embeddings) and not _apart(source)
        stored = EMBEDDING in source  # tied ones are stored by either name
        self._head = weights.group("model.embed_tokens" if tied and stored else "lm_head")
        self._embedding = self._head if tied else weights.embedding("model.embed_tokens")
        self._embedding_factor = family.embedding.of(config) / family.residual.of(config)
        layers = Layers(family, config, rotations, weights)
        self._layers = (step.Layer * config.num_hidden_layers)(*map(layers.layer, range(config.num_hidden_layers)))
        plus, epsilon, centered = float(family.shifted), self._shape.epsilon, family.centered
        self._norm = Norm(weights.vector("model.norm.weight", plus), epsilon, centered)
        scaled = weights.vector("model.norm.weight", plus, family.logits.of(config))
        self._before_head, self._cap = Norm(scaled, epsilon, centered), family.cap(config, family.logit_cap)
        self._layer_weights = weights

    def with_weights(self, overrides: Weights | PackedWeights) -> NativeModel:
        """A model with these weights, by their names in the source, and the source's for all others."""
        source, drafts = self._source, self.drafts
        return NativeModel(self.skeleton, source, overrides, drafts=drafts, name=self.name, load=self.load)

    @cached_property
    def model(self) -> PreTrainedModel:  # type: ignore[override]
        return self.load()

    def know_by(self, content: bytes) -> None:
        """Take an identity that other processes give these weights, too: by the hash of their files, and this code.

        A drafter's weights are others than those of the same file as a target.
        """
        how = f"{self.precision} {self.drafts}".encode()
        self.identity = hashlib.sha256(content + how + source_bytes()).digest()
        self.lasting = True

    def packed_weights(self) -> PackedWeights:
        """The weights, which another process can load into a model of the same shape."""
        return self._layer_weights.packed_weights()

    @property
    def nbytes(self) -> int:
        """Memory of the weights, which the source does not share, in bytes."""
        return self._layer_weights.nbytes

    @property
    def token_bytes(self) -> float:
        shape = self._shape
        return KVBlocks.token_bytes(shape)

    def tensors(self) -> dict[str, torch.Tensor]:
        """A sample of each matrix by name, however they lie in memory; of a model that drafts, the unrounded ones."""
        if self.drafts and not isinstance(self._source, StoredWeights):
            return dict(self._source)
        return {
            name: each.sample() for name, each in {**self._layer_weights.groups, **self._layer_weights.in_file}.items()
        }

    def parameters(self) -> Weights:
        if isinstance(self._source, StoredWeights):
            return self._source  # a file has no head that is the embedding; each is read when it is asked for
        tied = self.skeleton.config.tie_word_embeddings
        return {name: weight for name, weight in self._source.items() if not (tied and name == HEAD)}

    def new_sequence(self, *, hidden: bool = False) -> NativeSequence:
        return NativeSequence(self, self._shape, hidden=hidden)

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """All in one call of step.c, but that it takes no more than CHUNK_IDS ids of a text at a time."""
        starts = [each.sequence.length for each in reads]
        try:
            return self._read(reads)
        except BaseException as error:
            for each, start in zip(reads, starts, strict=True):
                each.sequence.crop(start)  # with the blocks that it took
            raise_for_pass(error, sum(starts) + sum(len(each.ids) for each in reads), lambda: self.token_bytes)
            raise

    def _read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        kept: list[list[torch.Tensor]] = [[] for _ in reads]  # of each, outputs of the last layer
        for begin in range(0, max((len(each.ids) for each in reads), default=0), CHUNK_IDS):
            self._read_joint(reads, begin, kept)
        rows = [row for each in kept for row in each]
        if not rows:
            return [torch.empty(0, self.vocab_size, dtype=torch.float32, device="cpu") for _ in reads]
        x = rows[0] if len(rows) == 1 else torch.cat(rows)
        ends = list(accumulate((each.keep for each in reads), initial=0))
        for each, (start, end) in zip(reads, pairwise(ends), strict=True):
            sequence = cast("NativeSequence", each.sequence)
            if sequence.keeps_hidden and end > start:
                sequence.last = x[end - 1]
        logits = self._head(x, self._before_head, self._cap)
        return [logits[start:end] for start, end in pairwise(ends)]

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        """The input of the LM head (hidden), of an output of the last layer."""
        weight, epsilon, centered = self._norm
        values = x.numpy()  # calls of torch, after a pass has taken the caches, are a seventh of a drafter's step
        if centered:
            values = values - values.mean()
        return torch.from_numpy(values * weight.numpy() / np.sqrt(values @ values / len(values) + epsilon))

    def _read_joint(self, reads: Sequence[Read], begin: int, kept: list[list[torch.Tensor]]) -> None:
        """Read up to CHUNK_IDS ids of each text, from `begin` on, and add the rows that are kept."""
        chunks = [each.ids[begin : begin + CHUNK_IDS] for each in reads]
        texts = [cast("NativeSequence", each.sequence) for each in reads]
        for text, ids in zip(texts, chunks, strict=True):
            text.cache.reserve(text.length, text.length + len(ids))
        angles = self._angles.upto(max(text.length + len(ids) for text, ids in zip(texts, chunks, strict=True)))
        several = len(reads) > 1
        places = [
            text.cache.at(text.length + at, angles)
            for text, ids in zip(texts, chunks, strict=True)
            for at in range(len(ids) if several else 1)
        ]
        caches = (step.Cache * len(places))(*places)
        x = self._embedding.rows([token for ids in chunks for token in ids] if several else chunks[0])
        if self._embedding_factor != 1:
            values = x.numpy()  # torch would use threads, which then spin
            values *= np.float32(self._embedding_factor)
        step.read_tokens(self._layers, self._shape, caches, x, apart=several)
        end = 0
        for each, text, ids, rows in zip(reads, texts, chunks, kept, strict=True):
            text.length += len(ids)
            end += len(ids)
            if (count := min(len(ids), begin + len(ids) - len(each.ids) + each.keep)) > 0:
                rows.append(x[end - count : end])


class NativeSequence(CachedSequence):
    """A text in a cache of step.c."""

    model: NativeModel
    block = step.BLOCK

    def __init__(self, model: NativeModel, shape: step.Shape, *, hidden: bool) -> None:
        super().__init__(model)
        self.keeps_hidden = hidden
        self.last: torch.Tensor | None = None  # (H,) output of the last layer, of one that keeps it
        self.cache = KVBlocks(shape)

    @property
    def hidden(self) -> torch.Tensor | None:  # type: ignore[override]
        """Computed when it is asked for, as few drafts do."""
        return None if self.last is None else self.model.normalized(self.last)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.cache.nbytes

    def crop(self, length: int) -> None:
        check_crop(length, self.length)
        self.cache.crop(length)
        if length == 0:
            self.last = None
        self.length = length

    def copy(self, other: KVSequence, length: int) -> None:
        """Hold the first `length` tokens of another sequence of the same shape, and no others."""
        check_crop(length, other.length)
        source = cast("NativeSequence", other)
        self.adopt([source.share(at) for at in range(-(-length // self.block))], length)

    def share(self, at: int) -> torch.Tensor:
        """The block at a place; whoever writes into it, or one before, from now on takes a copy."""
        return self.cache.share(at)

    def adopt(self, blocks: Sequence[torch.Tensor], length: int, held: int = 0) -> None:  # noqa: ARG002
        """Hold the first `length` ids that these blocks hold, and no others."""
        self.cache.adopt(blocks)
        self.last, self.length = None, length

    def data_of(self, block: torch.Tensor) -> memoryview:
        """The bytes of a block."""
        return self.cache.data_of(block)

    def block_of(self, data: bytes) -> torch.Tensor:
        """The block of these bytes; raises ValueError for bytes of none."""
        return self.cache.block_of(data)


class Layers:
    """The layers of a model of a family as step.c takes them."""

    def __init__(self, family: Family, config: Any, rotations: Mapping[str, Rotation], weights: LayerWeights) -> None:
        self._family, self._config, self._weights, self._rotations = family, config, weights, rotations
        self._windows = family.windows(config)

    def layer(self, number: int) -> step.Layer:
        """A layer by its number."""
        family, weights, name = self._family, self._weights, f"model.layers.{number}."
        qkv = [f"{name}self_attn.{matrix}" for matrix in family.qkv]
        query_norm, key_norm = family.head_norms or (None, None)
        rotated, angles = self._rotated(number)
        return step.Layer(
            qkv=weights.group(*qkv, orders=self._orders(qkv, rotated)).struct,
            output=weights.group(f"{name}self_attn.o_proj").struct,
            gate_up=weights.group(*(f"{name}{matrix}" for matrix in family.gate_up)).struct,
            down=weights.group(f"{name}{family.down}").struct,
            before_attention=self._norm(name, family.before_attention),
            before_mlp=self._norm(name, family.before_mlp),
            after_attention=self._norm(name, family.after_attention),
            after_mlp=self._norm(name, family.after_mlp),
            query_norm=self._norm(f"{name}self_attn.", query_norm),
            key_norm=self._norm(f"{name}self_attn.", key_norm),
            window=self._windows[number],
            rotated=rotated,
            angles=angles,
        )

    def _norm(self, name: str, module: str | None) -> int | None:
        if module is None:
            return None
        return pointer(self._weights.vector(f"{name}{module}.weight", float(self._family.shifted)))

    def _rotated(self, number: int) -> tuple[int, int]:
        """Entries of a head that are rotated in a layer, and the first column of their angles."""
        if not self._rotations or not self._family.rotates(self._config, number):
            return 0, 0
        kind = next(iter(self._rotations)) if len(self._rotations) == 1 else self._config.layer_types[number]
        before = list(self._rotations)[: list(self._rotations).index(kind)]
        return self._rotations[kind].entries, sum(self._rotations[each].entries for each in before)

    def _orders(self, names: Sequence[str], rotated: int) -> Orders:
        """Rows of queries and keys whose neighbors are rotated: the scores are the same where they lie as halves."""
        if not self._family.interleaved or not rotated:
            return {}
        heads, key_heads, size = heads_of(self._config)
        first = np.arange(rotated).reshape(-1, 2).T.ravel()
        head = np.concatenate([first, np.arange(rotated, size)])
        counts = dict(zip(names, (heads, key_heads), strict=False))
        return {name: (np.arange(count)[:, None] * size + head).ravel() for name, count in counts.items()}


def native_of(source: PretrainedModel, *, drafts: bool = False) -> NativeModel | None:
    """A native model over the weights of `source`, or None where there is an `unsupported_reason`."""
    if unsupported_reason(source.model):
        return None
    count = source.model.num_parameters() * (DRAFTED if drafts else 1)
    with needing(count, f"the weights of {source.name} for the native step"):
        return NativeModel(source.model, source.model.state_dict(), drafts=drafts)


def unsupported_reason(model: PreTrainedModel) -> UnsupportedReason | None:
    """Return the reason why a model has no native step, or None where it has one."""
    config: Any = model.config
    name, place = type(model).__name__, model.device.type
    if name not in BY_CLASS:
        return unknown_family(name, config.model_type)
    if place not in {"cpu", "meta"}:
        return UnsupportedReason("device", "", f"it is on {place}")
    # quantized weights are integers, or of a subclass of tensors
    plain = all(type(one) is torch.Tensor and one.is_floating_point() for one in model.state_dict().values())
    if getattr(config, "quantization_config", None) is not None or not plain:
        return UnsupportedReason("quantized", "quantization_config", "its weights are quantized")
    return unsupported_config(config, BY_CLASS[name])


def unsupported_config(config: Any, family: Family) -> UnsupportedReason | None:
    """Return the reason why a model of a family has no native step, by its config and this machine alone."""
    if (lack := family.unsupported_reason(config)) is not None:
        return lack
    size = heads_of(config)[2]
    if not family.partial and any(rotation.entries != size for rotation in rotary.rotations(config).values()):
        return UnsupportedReason("rotation", "partial_rotary_factor", "it rotates a part of each head")
    reason = step.unsupported_reason()
    return None if reason is None else UnsupportedReason("machine", "", reason)


def _shape(family: Family, config: Any, columns: int) -> step.Shape:
    """Settings shared by the layers.

    A factor of what is added to the residual is divided out of the residual, which only the norms of what is read see:
    their epsilon is divided by its square.
    """
    heads, key_heads, size = heads_of(config)
    usual = float(np.float32(1) / np.sqrt(np.float32(size)))
    return step.Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        key_heads=key_heads,
        size=size,
        columns=columns,
        head_norm=family.head_norm,
        centered=family.centered,
        parallel=family.parallel,
        gelu=GELU[getattr(config, family.activation)],
        tempered=_query_factors(family, config) is not None,
        epsilon=getattr(config, family.epsilon) / family.residual.of(config) ** 2,
        attention_scale=usual if family.scale is None else family.scale.of(config),
        score_cap=family.cap(config, family.score_cap),
    )


def _query_factors(family: Family, config: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Factors of queries by their positions, of models that have such."""
    rope = config.rope_parameters or {}
    beta, original = rope.get("llama_4_scaling_beta"), float(rope.get("original_max_position_embeddings") or 0)
    if not (family.tempered and beta and original):
        return None
    return lambda positions: 1 + float(beta) * (positions / original).floor().log1p()


def _apart(weights: Weights) -> bool:
    """True if embedding and head are stored and differ: then `transformers` does not tie them, despite the config."""
    return EMBEDDING in weights and HEAD in weights and not torch.equal(weights[EMBEDDING], weights[HEAD])
