"""A model read without its weights: tokenizer, vocabulary, and memory computed from its config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from omnidraft import zoo
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.errors import ModelError
from omnidraft.models import native
from omnidraft.models.gguf import KeyReport, held_bytes, is_gguf, read_keys
from omnidraft.models.kv_cache import attention
from omnidraft.models.language_model import NO_LIMIT
from omnidraft.models.loading import choose_device, choose_precision, load_skeleton, load_tokenizer, locate
from omnidraft.models.tensors import in_8_bits
from omnidraft.models.transformers_model import TransformersModel, check_drafter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """A tokenizer with its vocabulary and speller."""

    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    speller: Speller


@dataclass(frozen=True, kw_only=True, eq=False)
class UnloadedModel:
    """A model's tokenizer and config, without its weights."""

    name: str  # hub id, or the last part of the path
    model: TransformersModel | None  # on the meta device; None if there is only a tokenizer, or a problem
    language: Language | None  # None: a problem
    problem: str | None  # the error message of `load`
    rounds: bool  # `load` may choose 8-bit weights
    packed: bool  # the files hold 8-bit weights, whatever the config says
    held: int | None  # bytes of the weights as stored in a GGUF file, at most 8 bits each
    keys: KeyReport | None  # of a GGUF file


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a model as `load` would hold it on this machine; None is unknown."""

    parameters: int
    stored: str | None  # the dtype of the files
    stored_bytes: int | None
    dtype: str  # what `load` would choose
    dtype_reason: str
    device: str
    weight_bytes: int
    kv_bytes: int | None  # keys and values of one token
    context: int | None  # tokens; None: no limit


def read_model(name: str | Path, *, drafts: bool = False) -> UnloadedModel:
    """Read tokenizer and config of a folder, a GGUF file, a hub id or `zoo:NAME`; `drafts` is True for the drafter.

    Raises ModelError for a name that is neither a path nor a model on the hub.
    """
    source, local = locate(zoo.resolve(name))
    model = language = problem = keys = None
    try:
        if not local or is_gguf(source) or (Path(source) / "config.json").exists():
            model = TransformersModel(load_skeleton(source))
            if drafts:
                check_drafter(model)
        keys = read_keys(Path(source)) if is_gguf(source) else None
        tokenizer = load_tokenizer(source)
        known = () if model is None else (model.vocab_size, model.eos)
        vocab = read_vocab(tokenizer, *known, drafts=drafts)
        language = Language(tokenizer=tokenizer, vocab=vocab, speller=Speller(tokenizer, vocab))
    except ModelError as error:
        if not local and isinstance(error.__cause__, OSError):
            raise  # a mistyped name, or no network: no verdict on the model
        problem = str(error)
    shown = Path(source).resolve().name if local else source
    held = held_bytes(Path(source)) if model is not None and is_gguf(source) else None
    rounds, packed = is_gguf(source) and not drafts, local and in_8_bits(Path(source))
    return UnloadedModel(
        name=shown,
        model=model,
        language=language,
        problem=problem,
        rounds=rounds,
        packed=packed,
        held=held,
        keys=keys,
    )


def memory(model: TransformersModel, *, rounds: bool = False, packed: bool = False, held: int | None = None) -> Memory:
    """Memory of a model on the meta device; `rounds`, `packed` and `held` as in `UnloadedModel`."""
    parameters = model.model.num_parameters()
    stored: torch.dtype | None = torch.int8 if packed else getattr(model.model.config, "dtype", None)
    device = choose_device("auto")
    dtype, reason = choose_precision(device, model.model, rounds=rounds)
    entries, itemsize = _cache_entries(model), getattr(torch, dtype).itemsize
    return Memory(
        parameters=parameters,
        stored=None if stored is None else str(stored).removeprefix("torch."),
        stored_bytes=None if stored is None else parameters * stored.itemsize,
        dtype=dtype,
        dtype_reason=reason,
        device=device.type,
        weight_bytes=held if held is not None and dtype in native.PRECISIONS else parameters * itemsize,
        kv_bytes=None if entries is None else entries * (2 if dtype in native.PRECISIONS else itemsize),
        context=None if model.context >= NO_LIMIT else model.context,
    )


@torch.inference_mode()
def _cache_entries(model: TransformersModel) -> int | None:
    """Elements of the KV cache per token, from a forward pass on the meta device.

    None for a model whose forward pass depends on values, such as some mixtures of experts.
    """
    cache = model.new_cache()
    try:
        model.run(cache, [0], 0, 1)
    except Exception:  # noqa: BLE001  a modelling file that is not meant for the meta device raises anything
        return None
    held = [part for layer in attention(cache) for part in (layer.keys, layer.values) if part is not None]
    return sum(part.numel() for part in held)
