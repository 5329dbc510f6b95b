"""Models of the architectures that `transformers` has, and its own forward pass behind the interface."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.errors import ModelError
from omnidraft.models.forks import mind_forks
from omnidraft.models.language_model import NO_LIMIT, ROOM, CachedSequence, KVSequence, Read, check_crop

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CHUNK = 512  # ids in one forward pass: bounds the memory of the attention over a long prompt
PART, WORK = 16, 2**34  # ids that a CPU reads while others wait: fewer take as long; weights times ids in .2 s or so
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that cache one entry a token
CACHE_ARGUMENTS = ("past_key_values", "cache")  # of models' `forward`, by the version that they were written for
# kinds of rotation whose angles do not depend on how a text is split into passes, within the context
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
SUPPORTED = "a decoder-only causal model whose layers are all full, sliding or chunked attention"
TAP = "omnidraft_tap"  # attribute of an output layer


class PretrainedModel:
    """Weights of a model that `transformers` has a class for; raises ModelError where a state cannot be rolled back.

    `model` is of that class, and may be a skeleton on the meta device.
    """

    chunk: int
    part: int
    joint: bool
    generates: bool  # `model` has the weights, with which transformers can generate, too
    rows_independent: bool
    device: torch.device
    precision: str

    def __init__(self, model: PreTrainedModel) -> None:
        check_supported(model)
        mind_forks()
        config = model.config.get_text_config(decoder=True)
        self.model = model.eval()
        self.name = model.name_or_path or type(model).__name__
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
        self.context = _context(config)
        self.eos = _eos(model)  # ids that end a sequence

    @property
    def token_bytes(self) -> float:
        """Memory of a token in a KV cache."""
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by name, by which the model is known again."""
        raise NotImplementedError

    def new_sequence(self, *, hidden: bool = False) -> KVSequence:
        raise NotImplementedError

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        raise NotImplementedError


class TransformersModel(PretrainedModel):
    """A `transformers` causal language model, which reads one sequence at a time."""

    chunk, joint, generates, rows_independent = CHUNK, False, True, False

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.device, self.dtype = model.device, model.dtype
        weights = sum(each.numel() for each in model.parameters())
        # by the model alone, as logits depend on how a prompt is parted
        self.part = min(CHUNK, max(PART, WORK // max(1, weights))) if self.device.type == "cpu" else CHUNK
        self.precision = str(model.dtype).removeprefix("torch.")
        self._cache_argument = cache_argument(model)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @cached_property
    def token_bytes(self) -> float:
        one = self.new_sequence()
        one.forward([0], 0)
        return one.nbytes / (1 + ROOM)

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    def new_sequence(self, *, hidden: bool = False) -> TransformersSequence:
        return TransformersSequence(self, tap(self.model) if hidden else None)

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """One after the other; after an interruption the caches are empty."""
        try:
            return [self._read(each) for each in reads]
        except BaseException:
            # an interrupted pass leaves layers of unequal length, which no crop can repair
            for each in reads:
                each.sequence.crop(0)
            raise

    def _read(self, read: Read) -> torch.Tensor:
        """Run the model over the ids in chunks; logits (keep, vocab_size) float32."""
        sequence: Any = read.sequence
        ids, keep, kept = read.ids, read.keep, []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            inputs = torch.tensor([chunk], device=self.device)  # (1, T)
            rows = len(chunk) - max(0, len(ids) - keep - start)  # positions of this chunk whose logits are kept
            select = {"logits_to_keep": max(rows, 1)} if self._selects else {}  # 0 would mean all
            output = self.model(inputs, use_cache=True, **{self._cache_argument: sequence.cache}, **select)
            sequence.extend(len(chunk))
            if rows > 0:
                kept.append(output.logits[0, -rows:].float())
        if not kept:
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device=self.device)
        return kept[0] if len(kept) == 1 else torch.cat(kept)


class TransformersSequence(CachedSequence):
    """A text in a cache of `transformers`, batch 1."""

    model: TransformersModel

    def __init__(self, model: TransformersModel, tap: HiddenStateHook | None) -> None:
        from omnidraft.models.kv_cache import new_cache

        super().__init__(model)
        self._new_cache, self._tap = new_cache, tap
        self.cache = new_cache()

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(getattr(layer, "nbytes", 0) for layer in self.cache.layers)

    def extend(self, count: int) -> None:
        """Take in that a pass has appended so many tokens; raises ModelError where the cache does not hold them."""
        self.length += count
        if self.cache.get_seq_length() != self.length:
            raise ModelError(f"model {self.model.name!r} does not use the KV cache it is given: use {SUPPORTED}")
        if self._tap is not None and self._tap.last is not None:
            self.hidden = self._tap.last[0, -1]

    def crop(self, length: int) -> None:
        check_crop(length, self.length)
        if length == 0:
            self.cache = self._new_cache()
        elif length < self.length:
            self.cache.crop(length - self.length)  # negative: the number of tokens to remove
        self.length = length


class HiddenStateHook:
    """Keeps the last input of an output layer; a copy of the model has a hook of its own that holds nothing."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None  # (B, T, H)

    def __call__(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.last = inputs[0]

    def __reduce__(self) -> tuple[type[HiddenStateHook], tuple[()]]:
        return HiddenStateHook, ()


def tap(model: PreTrainedModel) -> HiddenStateHook | None:
    """The hook on the output layer of a model, added once; None of a model without an output layer.

    It is never removed: the model may be pickled in another thread, which must not meet it half added.
    """
    layer = model.get_output_embeddings()
    if layer is None:
        return None
    found = getattr(layer, TAP, None)
    if not isinstance(found, HiddenStateHook):
        found = HiddenStateHook()
        layer.register_forward_pre_hook(found)
        setattr(layer, TAP, found)
    return found


def check_supported(model: PreTrainedModel) -> None:
    """Raise ModelError unless the state of `model` is a causal KV cache: one entry a token and layer."""
    config = model.config
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    attends = bool(kinds) and kinds <= ATTENTION  # of a hybrid's class, with no layer of the other kind
    kinds -= ATTENTION
    # encoders set one or the other to False; the configs of some decoders say that they are none
    blind = all(getattr(module, name, True) for module in model.modules() for name in ("is_causal", "is_decoder"))
    if config.is_encoder_decoder:
        found = "an encoder"
    elif kinds:
        found = f"layers of kind {', '.join(sorted(kinds))}, whose state cannot be rolled back"
    elif (getattr(model, "_is_stateful", False) and not attends) or not cache_argument(model):
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
