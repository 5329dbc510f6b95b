"""Models of the architectures that `transformers` has, and its own forward pass behind the interface."""

from __future__ import annotations

import inspect
import re
import secrets
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch

from omnidraft.errors import ModelError
from omnidraft.models.forks import mind_forks
from omnidraft.models.language_model import NO_LIMIT, CachedSequence, KVSequence, Read, check_crop
from omnidraft.models.memory import raise_for_pass
from omnidraft.models.skeleton import Skeleton

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

    from omnidraft.models.transformers_cache import CopiedBlock

BLOCK_IDS = 256  # ids of a block that others can have a copy of
CHUNK_IDS = 512  # ids in one forward pass: bounds the memory of the attention over a long prompt
SHARED_CHUNK, WORK = (
    16,
    2**34,
)  # ids that a CPU reads while others wait: fewer take as long; weights times ids in .2 s or so
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that cache one entry a token
STATES = {"conv", "linear_attention", "hybrid", "hybrid_sliding"}  # layers that have a state, or both
STATELESS = {"mlp", "moe"}
# of models' `forward`, by the version that they were written for, and of models with states alone
CACHE_ARGUMENTS = ("past_key_values", "cache", "cache_params")
CACHES = {"Cache", "DynamicCache"}  # that models take
# kinds of rotation whose angles do not depend on how a text is split into passes, within the context
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
TEMPERED = ("ministral3", "mistral4")  # types of models whose queries have a factor by their positions, made of these:
FACTORS = ("llama_4_scaling_beta", "original_max_position_embeddings")  # of `rope_parameters`
SUPPORTED = (
    "a decoder-only causal model whose layers are full, sliding or chunked attention, or have states in a cache of "
    "transformers"
)
PROBED = "omnidraft_no_drafts"  # attribute of a model
TAP = "omnidraft_tap"  # attribute of an output layer


class PretrainedModel:
    """Weights of a model that `transformers` has a class for, and what its `skeleton` says of it."""

    model: PreTrainedModel
    chunk: int
    shared_chunk: int
    identity: bytes
    lasting = False
    hybrid = False
    joint: bool
    generates: bool  # `model` has the weights, with which transformers can generate, too
    rows_independent: bool
    no_drafts: str | None = None
    device: torch.device
    precision: str

    def __init__(self, skeleton: Skeleton, name: str) -> None:
        self.identity = secrets.token_bytes(16)
        mind_forks()
        self.skeleton = skeleton
        self.name = name or skeleton.model_class
        config = skeleton.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.context = _context(config)
        self.eos = _eos(skeleton)  # ids that end a sequence

    @property
    def token_bytes(self) -> float:
        """Memory of a token in a KV cache."""
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by name, by which the model is known again."""
        raise NotImplementedError

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The weights that training changes, by name: a head that is the embedding is not among them."""
        raise NotImplementedError

    def new_sequence(self, *, hidden: bool = False) -> KVSequence:
        raise NotImplementedError

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        raise NotImplementedError


class TransformersModel(PretrainedModel):
    """A `transformers` causal language model, which reads one sequence at a time.

    A hybrid is probed with a few ids, once: one that reads several tokens otherwise than one by one has `no_drafts`,
    and reads what follows the first pass of a text token by token.  Raises ModelError where a state cannot be rolled
    back.  `model` may be on the meta device.
    """

    chunk, joint, generates, rows_independent = CHUNK_IDS, False, True, False

    def __init__(self, model: PreTrainedModel) -> None:
        check_supported(model)
        super().__init__(Skeleton.of(model), model.name_or_path or "")
        self.model = model.eval()
        self.hybrid = has_states(model)
        self.vocab_size = getattr(model.get_output_embeddings(), "out_features", self.vocab_size)
        self.device, self.dtype = model.device, model.dtype
        weights = sum(each.numel() for each in model.parameters())
        # by the model alone, as logits depend on how a prompt is parted
        self.shared_chunk = (
            min(CHUNK_IDS, max(SHARED_CHUNK, WORK // max(1, weights))) if self.device.type == "cpu" else CHUNK_IDS
        )
        self.precision = str(model.dtype).removeprefix("torch.")
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = cache_argument(model)
        self._selects = "logits_to_keep" in parameters
        self._places = self.hybrid and "position_ids" in parameters  # some hybrids count from 0 in each pass
        if self.hybrid and self.device.type != "meta":
            self.no_drafts = self._probed()
            if self.no_drafts:
                self.chunk = NO_LIMIT

    @torch.inference_mode()
    def _probed(self) -> str | None:
        """Reason why it cannot verify drafts; determined once for a model and its copies."""
        from omnidraft.models.hybrid_checks import ONE_BY_ONE, bounded, fit_scans, no_drafts

        if not hasattr(self.model, PROBED):
            fit_scans(self.model)
            try:
                probed = no_drafts(self.new_cache, self.run, self.vocab_size, self.dtype)
            except (ModelError, RuntimeError, ValueError) as error:
                reason = textwrap.shorten(str(error), 200, placeholder=" ...")
                shown = f"{self.name!r} ({type(self.model).__name__})"
                raise ModelError(f"model {shown} cannot be rolled back ({reason}): use {SUPPORTED}") from error
            setattr(self.model, PROBED, ONE_BY_ONE if bounded(self.model) else probed)
        known: str | None = getattr(self.model, PROBED)
        return known

    @cached_property
    def token_bytes(self) -> float:
        from omnidraft.models.transformers_cache import attention

        cache = self.new_cache()
        with torch.inference_mode():
            self.run(cache, [0], 0, 1)
        held = [each for layer in attention(cache) for each in (layer.keys, layer.values) if each is not None]
        return float(sum(each.nbytes for each in held))

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def new_cache(self) -> DynamicCache:
        from omnidraft.models.transformers_cache import new_cache

        return new_cache(self.model.config if self.hybrid else None)

    def new_sequence(self, *, hidden: bool = False) -> TransformersSequence:
        kind = TransformersSequence if self.hybrid else AttentionSequence
        return kind(self, tap(self.model) if hidden else None)

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """One after the other; after an interruption the caches are empty."""
        total = sum(each.sequence.length + len(each.ids) for each in reads)
        try:
            return [self._read(each) for each in reads]
        except BaseException as error:
            # an interrupted pass leaves layers of unequal length, which no crop can repair
            for each in reads:
                each.sequence.crop(0)
            raise_for_pass(error, total, lambda: self.token_bytes)
            raise

    def _read(self, read: Read) -> torch.Tensor:
        """Run the model over the ids in passes; logits (keep, vocab_size) float32."""
        sequence: Any = read.sequence
        ids, keep, kept, start = read.ids, read.keep, [], 0
        for end in sequence.passes(len(ids), keep):
            rows = end - max(start, len(ids) - keep)  # positions of this pass whose logits are kept
            logits = self.run(sequence.cache, ids[start:end], sequence.length, rows)
            sequence.extend(end - start)
            if rows > 0:
                kept.append(logits[-rows:].float())
            start = end
        if not kept:
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device=self.device)
        return kept[0] if len(kept) == 1 else torch.cat(kept)

    def run(self, cache: DynamicCache, ids: Sequence[int], length: int, rows: int) -> torch.Tensor:
        """Append ids to a cache of that length; the logits of the last `rows` of them at least, (T, V)."""
        options: dict[str, Any] = {self._cache_argument: cache}
        if self._selects:
            options["logits_to_keep"] = max(rows, 1)  # 0 would mean all
        if self._places:
            options["position_ids"] = torch.arange(length, length + len(ids), device=self.device)[None]
        inputs = torch.tensor([list(ids)], device=self.device)  # (1, T)
        logits: torch.Tensor = self.model(inputs, use_cache=True, **options).logits[0]
        return logits


class TransformersSequence(CachedSequence):
    """A text in a cache of `transformers`, batch 1."""

    model: TransformersModel

    def __init__(self, model: TransformersModel, tap: HiddenStateHook | None) -> None:
        from omnidraft.models.state_checkpoints import Checkpoints

        super().__init__(model)
        self._new_cache, self._tap = model.new_cache, tap
        self.cache = self._new_cache()
        self._checkpoints = Checkpoints() if model.hybrid and not model.no_drafts else None
        self._saves: dict[int, bool] = {}  # the lengths of the present read to save at, and whether that stays

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        from omnidraft.models.transformers_cache import state_layers, states

        kept = 0 if self._checkpoints is None else self._checkpoints.nbytes
        held = sum(state.nbytes for state in states(state_layers(self.cache)))
        return kept + held + sum(getattr(layer, "nbytes", 0) for layer in self.cache.layers)

    def passes(self, count: int, keep: int) -> list[int]:
        """Return the ends of passes over `count` ids, with checkpoints before and between them."""
        if self.model.no_drafts:
            return list(range(1, count + 1)) if self.length else [count]
        if self._checkpoints is not None:
            self._saves = self._checkpoints.places(self.length, count, keep)
            self._save()
        ends = {*range(CHUNK_IDS, count, CHUNK_IDS), *(place - self.length for place in self._saves), count}
        return sorted(ends - {0})

    def extend(self, count: int) -> None:
        """Update the length after a pass over `count` tokens; raises ModelError if the cache does not hold them."""
        from omnidraft.models.transformers_cache import held

        self.length += count
        if held(self.cache) not in (self.length, None):
            raise ModelError(f"model {self.model.name!r} does not use the KV cache it is given: use {SUPPORTED}")
        if self._tap is not None and self._tap.last is not None:
            self.hidden = self._tap.last[0, -1]
        self._save()

    def _save(self) -> None:
        """Make a checkpoint here where one is due."""
        if self._checkpoints is not None and (stays := self._saves.pop(self.length, None)) is not None:
            self._checkpoints.save(self.cache, self.length, stays=stays)

    @torch.inference_mode()
    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; of a hybrid's those of a checkpoint, which may be fewer."""
        check_crop(length, self.length)
        if 0 < length < self.length:
            if not self.model.hybrid:
                self.cache.crop(length - self.length)  # negative: the number of tokens to remove
            else:
                length = self._checkpoints.back(self.cache, length, self.length) if self._checkpoints else 0
        elif length == 0 and self._checkpoints is not None:
            self._checkpoints.clear()
        if length == 0:
            self.cache = self._new_cache()
        self.length = length


class AttentionSequence(TransformersSequence):
    """A text in a cache of keys and values alone, of which others can have copies."""

    block = BLOCK_IDS

    def copy(self, other: KVSequence, length: int) -> None:
        """Hold the first `length` tokens of another sequence of the same model, and no others."""
        check_crop(length, other.length)
        source = cast("AttentionSequence", other)
        self.adopt([source.share(at) for at in range(-(-length // self.block))], length)

    @torch.inference_mode()
    def share(self, at: int) -> CopiedBlock:
        """A copy of the block at a place, of as many ids as it holds."""
        from omnidraft.models.transformers_cache import copied

        return copied(self.cache, at * self.block, min((at + 1) * self.block, self.length))

    @torch.inference_mode()
    def adopt(self, blocks: Sequence[CopiedBlock], length: int, held: int = 0) -> None:
        """Hold the first `length` ids that these blocks hold, and no others; it holds the first `held` already."""
        from omnidraft.models.transformers_cache import fill

        whole = held // self.block  # blocks that need not be copied
        try:
            self.crop(whole * self.block)
            fill(self.cache, blocks[whole:], length - self.length)
        except BaseException as error:
            self.crop(0)
            raise_for_pass(error, length, lambda: self.model.token_bytes)
            raise
        self.hidden, self.length = None, length


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
    hook = getattr(layer, TAP, None)
    if not isinstance(hook, HiddenStateHook):
        hook = HiddenStateHook()
        layer.register_forward_pre_hook(hook)
        setattr(layer, TAP, hook)
    return hook


def has_states(model: PreTrainedModel) -> bool:
    """True if layers of a model have states, which passes overwrite."""
    return not STATES.isdisjoint(_kinds(model.config))


def _kinds(config: PreTrainedConfig) -> set[str]:
    return set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())


def check_supported(model: PreTrainedModel) -> None:
    """Raise ModelError unless the state of `model` is a causal KV cache, or a hybrid's that can be copied."""
    config = model.config
    attends = bool(_kinds(config)) and _kinds(config) <= ATTENTION  # of a hybrid's class, without such a layer
    kinds = _kinds(config) - ATTENTION - STATES - STATELESS
    # encoders set one or the other to False; the configs of some decoders say that they are none
    blind = all(getattr(module, name, True) for module in model.modules() for name in ("is_causal", "is_decoder"))
    if config.is_encoder_decoder:
        lack = "an encoder"
    elif kinds:
        lack = f"layers of kind {', '.join(sorted(kinds))}, whose state cannot be rolled back"
    elif kind := _own_cache(model):
        lack = f"a cache of its own kind, {kind}, which cannot be copied"
    elif not cache_argument(model) or (getattr(model, "_is_stateful", False) and not attends and not has_states(model)):
        lack = "a state other than a KV cache, which cannot be rolled back"
    elif has_states(model) and model.device.type == "meta" and _hides_states(model):
        lack = "states that are in the model itself, and not in a cache that can be copied"
    elif _attends_both_ways(config) or not (blind or getattr(config, "is_decoder", True)):  # an image tower may
        lack = "attention to later tokens"
    else:
        return
    raise ModelError(f"model {model.name_or_path!r} ({type(model).__name__}) has {lack}: use {SUPPORTED}")


def _attends_both_ways(config: PreTrainedConfig) -> bool:
    """True if a config of a causal class makes an encoder of it, as those of embedding models do."""
    text: Any = config.get_text_config(decoder=True)
    return not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None) in (True, "all")


def check_drafter(model: PretrainedModel) -> None:
    """Raise ModelError for a hybrid, which goes back to a checkpoint in each round and so would read each text anew."""
    if model.hybrid:
        raise ModelError(
            f"drafter {model.name!r} keeps states that no crop restores: use a drafter whose layers are all attention"
        )


def cache_argument(model: torch.nn.Module) -> str:
    """The name by which `model.forward` takes a KV cache; empty where it takes none."""
    parameters = inspect.signature(model.forward).parameters
    names = (name for name in CACHE_ARGUMENTS if name in parameters)
    # what XLM calls a cache is a dict of tensors
    return next((name for name in names if "dict" not in str(parameters[name].annotation)), "")


def _own_cache(model: PreTrainedModel) -> str:
    """The class of cache that a model takes alone; empty where it takes those of transformers."""
    for module in (model, model.base_model):
        if name := cache_argument(module):
            kinds = set(re.findall(r"\w*Cache\b", str(inspect.signature(module.forward).parameters[name].annotation)))
            if kinds and not kinds & CACHES:
                return str(min(kinds))
    return ""


@torch.inference_mode()
def _hides_states(model: PreTrainedModel) -> bool:
    """True if a pass on the meta device leaves no state in the cache; False if no pass is possible there."""
    from omnidraft.models.transformers_cache import new_cache, state_layers, states

    cache = new_cache(model.config)
    try:
        model(torch.zeros(1, 2, dtype=torch.int64, device="meta"), use_cache=True, **{cache_argument(model): cache})
    except Exception:  # noqa: BLE001  code that is not meant for the meta device raises anything
        return False
    return not states(state_layers(cache))


def check_rotation(config: PreTrainedConfig, name: str) -> None:
    """Raise ModelError for a rotation of queries and keys of a kind that is not known, or that lacks its factors."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    lacking = [name for name in FACTORS if rope.get(name) is None] if text.model_type in TEMPERED else []
    if lacking:
        raise ModelError(
            f"rope_parameters in the config.json of model {name!r} lack {lacking[0]}, which the positions of a "
            f"{text.model_type} model need: get the complete config.json"
        )
    for parameters in (rope, *rope.values()):  # one set for all layers, or one a kind of layer
        kind = parameters.get("rope_type", "default") if isinstance(parameters, dict) else "default"
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
    for parameters in (rope, *rope.values()):  # one set for all layers, or one a kind of layer
        # beyond this length longrope rotates the keys of a pass by other angles than those already in the cache
        longer = isinstance(parameters, dict) and parameters.get("rope_type") == "longrope"
        if longer and parameters.get("short_factor") != parameters.get("long_factor"):
            sizes += [parameters.get("original_max_position_embeddings")]
    return min((int(size) for size in sizes if size), default=NO_LIMIT)


def _eos(skeleton: Skeleton) -> tuple[int, ...]:
    """End-of-sequence ids: the generation config's, else the model config's."""
    sources = (skeleton.generation_config, skeleton.config, skeleton.config.get_text_config(decoder=True))
    eos = next((ids for source in sources if (ids := getattr(source, "eos_token_id", None)) is not None), ())
    return tuple(eos) if isinstance(eos, list | tuple) else (eos,)
