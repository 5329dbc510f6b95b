"""Language models behind one small interface, read from a folder or from the Hugging Face hub.

LanguageModel      what the engine and the drafter ask of a model: append, read logits, crop
TransformersModel  a `transformers` causal model on a KV cache that can be cropped at any point
load_model         folder or hub id -> LoadedModel: the model, its tokenizer, and why it has its dtype
load_skeleton      the same model without weights, and load_tokenizer its tokenizer alone
"""

from __future__ import annotations

import inspect
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from omnidraft.errors import ConfigError, InputError, ModelError, NumericsError, PromptError
from omnidraft.models.devices import DTYPES, choose_device, choose_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

CHUNK = 512  # ids read in one go: bounds the memory that the attention over a long prompt takes
NO_LIMIT = 2**63 - 1  # context of a model without a largest position
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that cache one entry a token
SUPPORTED = "a decoder-only causal model whose layers are all full, sliding or chunked attention"
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class LanguageModel(Protocol):
    """A causal language model with a KV cache that holds one text."""

    vocab_size: int  # rows of the logits, padded ids included
    context: int  # most tokens the cache can hold

    @property
    def length(self) -> int:
        """Tokens now in the cache."""

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them, (keep, vocab_size) float32."""

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, 0 <= length <= self.length."""


class TransformersModel:
    """A `transformers` causal language model, batch 1; raises ModelError where its state cannot be rolled back."""

    def __init__(self, model: PreTrainedModel) -> None:
        from omnidraft.models.kv_cache import new_cache

        _refuse_unsupported(model)
        config = model.config.get_text_config(decoder=True)
        self.model = model.eval()
        self.name = model.name_or_path or type(model).__name__
        self.device, self.dtype = model.device, model.dtype
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
        self.context = _context(config)
        self.eos = _eos(model)  # ids that end a text
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._new_cache = new_cache
        self._cache = new_cache()
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens now in the cache."""
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
            # a pass that stops half-way leaves layers of unequal length behind, which no crop can repair
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
            self._cache.crop(length - self._length)  # negative: so many tokens less
        self._length = length

    def _check(self, ids: Sequence[int], keep: int) -> None:
        if not 0 <= keep <= len(ids):
            raise InputError(f"cannot return logits of {keep} positions out of {len(ids)}: use 0..{len(ids)}")
        if self._length + len(ids) > self.context:
            raise PromptError(
                f"{self._length} + {len(ids)} tokens do not fit model {self.name!r}, which holds {self.context}: "
                "shorten the prompt or generate fewer tokens"
            )
        check_ids(ids, self.vocab_size)  # on a GPU it would be a crash that only a new process recovers from

    def _read(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """The model over `ids` in chunks; logits (keep, vocab_size) float32."""
        kept = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            inputs = torch.tensor([chunk], device=self.device)  # (1, T)
            rows = len(chunk) - max(0, len(ids) - keep - start)  # of the chunk's positions, how many are asked for
            select = {"logits_to_keep": max(rows, 1)} if self._selects else {}  # 0 would mean all
            output = self.model(inputs, past_key_values=self._cache, use_cache=True, **select)
            self._length += len(chunk)
            if self._cache.get_seq_length() != self._length:
                raise ModelError(f"model {self.name!r} does not use the KV cache it is given: use {SUPPORTED}")
            if rows > 0:
                kept.append(output.logits[0, -rows:].float())
        if not kept:
            return torch.empty(0, self.vocab_size, device=self.device)
        return kept[0] if len(kept) == 1 else torch.cat(kept)


@dataclass(frozen=True)
class LoadedModel:
    """A language model with the tokenizer it came with."""

    lm: TransformersModel
    tokenizer: PreTrainedTokenizerBase
    name: str  # hub id, or the folder's own name
    dtype_reason: str  # why the weights have the dtype they have, one phrase


def load_model(name: str | Path, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a causal language model and its tokenizer from a folder or by its hub id.

    A folder is read without any network access, and code that comes with a model is never run.  `dtype` is auto or a
    key of DTYPES; `device` is auto, cpu, cuda, cuda:N or mps.  Raises ConfigError for these two, ModelError for
    everything that is wrong with the model.
    """
    if dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {dtype!r} is not known: use auto, {', '.join(DTYPES)}")
    place = choose_device(device)
    source, local = locate(name)
    skeleton: Any = load_skeleton(name)  # to look at before gigabytes of weights are read
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    chosen, reason = DTYPES.get(dtype), "asked for"
    if chosen is None:
        chosen, reason = choose_dtype(place, skeleton.config.dtype, skeleton.num_parameters())
    tokenizer = _tokenizer(source, local)
    with _reading("weights", source, local):
        options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False, "dtype": chosen}
        model, report = auto.from_pretrained(source, **options, ignore_mismatched_sizes=True, output_loading_info=True)
        model = model.to(place)
    # what the files lack is filled with random numbers, which must not pass for a model
    lacking = sorted(report["missing_keys"]) + sorted(entry[0] for entry in report["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"the weights of model {source!r} do not fit its config.json: {len(lacking)} tensors are missing or of "
            f"another shape, first {lacking[0]!r}: get the complete files"
        )
    return LoadedModel(TransformersModel(model), tokenizer, Path(source).resolve().name if local else source, reason)


def load_skeleton(name: str | Path) -> PreTrainedModel:
    """A model without storage, from its configs alone, to look at; raises ModelError where `load_model` would."""
    source, local = locate(name)
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, GenerationConfig

    with _reading("config.json", source, local):
        config = AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
    # before a class is chosen: of some encoder-decoders the decoder alone would be loaded
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "no causal language model"
        raise ModelError(f"model {source!r} of type {config.model_type!r} is {kind}: use {SUPPORTED}")
    auto: Any = AutoModelForCausalLM
    with _reading("config.json", source, local), torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config)
    _refuse_unsupported(skeleton)
    absent = () if (Path(source) / "generation_config.json").exists() else (OSError,)  # some come without
    with _reading("generation_config.json", source, local), suppress(*absent):
        skeleton.generation_config = GenerationConfig.from_pretrained(source, local_files_only=local)
    return skeleton


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or a hub id, no model needed; raises ModelError."""
    return _tokenizer(*locate(name))


def _tokenizer(source: str, local: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with _reading("tokenizer.json", source, local):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, local_files_only=local, trust_remote_code=False
        )
    if not tokenizer.is_fast:
        raise ModelError(f"model {source!r} has no fast tokenizer, which is needed: add its tokenizer.json")
    return tokenizer


def _refuse_unsupported(model: PreTrainedModel) -> None:
    """Raise ModelError unless what `model` keeps of a text is one entry a token and layer, blind to later tokens."""
    config = model.config
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ()) - ATTENTION
    # encoders say by one or the other which way they look; some decoders have a config that says they are none
    blind = all(getattr(module, name, True) for module in model.modules() for name in ("is_causal", "is_decoder"))
    if config.is_encoder_decoder:
        found = "an encoder"
    elif kinds:
        found = f"layers of kind {', '.join(sorted(kinds))}, whose state cannot be rolled back"
    elif getattr(model, "_is_stateful", False) or "past_key_values" not in inspect.signature(model.forward).parameters:
        found = "a state other than a KV cache, which cannot be rolled back"
    elif not blind and not getattr(config, "is_decoder", True):  # an image tower may look both ways
        found = "attention to later tokens"
    else:
        return
    raise ModelError(f"model {model.name_or_path!r} ({type(model).__name__}) has {found}: use {SUPPORTED}")


@contextmanager
def _reading(part: str, source: str, local: bool) -> Iterator[None]:
    """Turn whatever goes wrong inside into one line, and hold back the reports printed on the way."""
    from transformers.utils import logging

    fix = "check the folder's files" if local else "check the name and the connection, or give a folder that exists"
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:  # damaged files raise anything, KeyError and ZeroDivisionError included
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        others = ("*.model", "vocab.*", "*.tiktoken") if part == "tokenizer.json" else ()  # what may stand for it
        if local and part.endswith(".json") and not any(any(Path(source).glob(each)) for each in (part, *others)):
            raise ModelError(f"folder {source!r} has no {part}: get the complete files of the model") from error
        raise ModelError(f"cannot read the {part} of model {source!r} ({reason}): {fix}") from error
    finally:
        logging.set_verbosity(level)


def locate(name: str | Path) -> tuple[str, bool]:
    """What to load from, and whether it is a folder; raises ModelError for neither folder nor hub id."""
    if not isinstance(name, str | Path):
        raise ConfigError(f"the model is {name!r}: give a folder, a hub id, or one that ships, zoo:NAME")
    folder = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    if str(name) and folder.is_dir():  # an empty name would be the working directory
        return str(folder), True
    if isinstance(name, Path) or folder.exists() or not HUB_ID.fullmatch(name):
        kind = "a file" if folder.is_file() else "no folder that exists"
        raise ModelError(f"model {str(name)!r} is {kind}: give a folder with a config.json or a hub id, owner/name")
    return name, False


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise PromptError for an id that a model with `size` rows of logits does not have."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        fix = "use only tokens that it has rows of logits for"  # its own tokenizer may have more
        raise PromptError(f"token id {wrong} is not in 0..{size - 1}, the model's vocabulary: {fix}")


def _context(config: PreTrainedConfig) -> int:
    """Most positions at which the logits do not depend on how the text was split into passes."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    sizes = [getattr(config, name, None) for name in names]
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):  # one set for all layers, or one for each kind of layer
        # beyond this length longrope turns every key of a pass by another angle, but none of those in the cache
        if isinstance(part, dict) and part.get("rope_type") == "longrope":
            sizes += [part.get("original_max_position_embeddings")]
    return min((int(size) for size in sizes if size), default=NO_LIMIT)


def _eos(model: PreTrainedModel) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, else the model config's."""
    sources = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    eos = next((ids for source in sources if (ids := getattr(source, "eos_token_id", None)) is not None), ())
    return tuple(eos) if isinstance(eos, list | tuple) else (eos,)
