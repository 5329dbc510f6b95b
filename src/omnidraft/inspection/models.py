"""A model read without its weights: tokenizer, vocabulary, and memory computed from its config."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from omnidraft import zoo
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.decoding.drafter import WINDOW
from omnidraft.errors import ModelError
from omnidraft.inspection.implementation import REFUSED, StepReport, step_of
from omnidraft.inspection.vocabularies import Language, Vocabulary, vocabulary
from omnidraft.models.families import BY_CLASS
from omnidraft.models.gguf.config import is_gguf, read_keys
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.native_weights import held_bytes
from omnidraft.models.language_model import NO_LIMIT
from omnidraft.models.loading import choose_device, choose_precision, load_skeleton, load_tokenizer, locate
from omnidraft.models.native import step as native
from omnidraft.models.native.model import unsupported_reason
from omnidraft.models.transformers_model import TransformersModel, check_drafter


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a model as `load` would hold it on this machine; None is unknown."""

    parameters: int
    dtype: str  # what `load` would choose
    dtype_reason: str
    device: str
    weight_bytes: int
    kv_bytes: int | None  # keys and values of one token
    context: int | None  # tokens; None: no limit


@dataclass(frozen=True, kw_only=True)
class Model:
    """Figures of one model; None is unknown."""

    name: str  # hub id, or the last name of the path
    vocabulary: Vocabulary | None
    memory: Memory | None
    step: StepReport | None
    keys: KeyReport | None  # of a GGUF file's header


@dataclass(frozen=True, kw_only=True)
class Unloaded:
    """A model without its weights."""

    figures: Model
    language: Language | None  # None: a problem
    problem: str | None  # the error message of `load`
    checked: bool  # there was a config.json, or a problem


def read_model(name: str | Path, *, drafts: bool = False) -> Unloaded:
    """Read tokenizer and config of a folder, a GGUF file, a hub id or `zoo:NAME`; `drafts` is True for the drafter.

    Raises ModelError for a name that is neither a path nor a model on the hub.
    """
    source, local = locate(zoo.resolve(name))
    path = Path(source)
    model = language = problem = keys = step = held = None
    try:
        if not local or is_gguf(source) or (path / "config.json").exists():
            model = TransformersModel(load_skeleton(source))
            if drafts:
                check_drafter(model)
        keys = read_keys(path) if is_gguf(source) else None
        tokenizer = load_tokenizer(source)
        known = () if model is None else (model.vocab_size, model.eos)
        vocab = read_vocab(tokenizer, *known, drafts=drafts)
        language = Language(tokenizer=tokenizer, vocab=vocab, speller=Speller(tokenizer, vocab))
    except ModelError as error:
        if not local and isinstance(error.__cause__, OSError):
            raise  # a mistyped name, or no network: no verdict on the model
        problem = str(error)
    if model is not None:
        step = step_of(BY_CLASS.get(type(model.model).__name__), unsupported_reason(model.model))
        held = held_bytes(path) if is_gguf(source) else None
    elif problem is not None:
        step = StepReport(how=REFUSED, code="refused", reason=problem)
    figures = Model(
        name=path.resolve().name if local else source,
        vocabulary=None if language is None else vocabulary(language),
        memory=None
        if model is None
        else memory(model, drafts=drafts, rounds=is_gguf(source) and not drafts, held=held),
        step=step,
        keys=keys,
    )
    checked = model is not None or problem is not None
    return Unloaded(figures=figures, language=language, problem=problem, checked=checked)


def memory(model: TransformersModel, *, drafts: bool = False, rounds: bool = False, held: int | None = None) -> Memory:
    """Memory of a model on the meta device.

    A model that `drafts` has no more than its window in its cache.  With `rounds` `load` may choose 8-bit weights;
    `held` are the bytes of weights as a GGUF file has them, at most 8 bits each.
    """
    parameters = model.model.num_parameters()
    device = choose_device("auto")
    dtype, reason = choose_precision(device, model.model, rounds=rounds)
    entries, itemsize = None, getattr(torch, dtype).itemsize
    context = min(model.context, WINDOW) if drafts else model.context
    with suppress(Exception):  # a pass that depends on values, as in some mixtures of experts, raises anything
        entries = int(model.token_bytes / model.dtype.itemsize)
    return Memory(
        parameters=parameters,
        dtype=dtype,
        dtype_reason=reason,
        device=device.type,
        weight_bytes=held if held is not None and dtype in native.PRECISIONS else parameters * itemsize,
        kv_bytes=None if entries is None else entries * (2 if dtype in native.PRECISIONS else itemsize),
        context=None if context >= NO_LIMIT else context,
    )
