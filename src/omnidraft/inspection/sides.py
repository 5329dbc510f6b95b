"""One model of a pair, as far as it can be read without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft import zoo
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.errors import ModelError
from omnidraft.models.language_model import TransformersModel, load_skeleton, load_tokenizer, locate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """A tokenizer, with what is read from it."""

    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    speller: Speller


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """A model of a pair: what could be read of it, and why the rest could not."""

    name: str  # hub id, or the folder's own name
    model: TransformersModel | None  # without storage; None where there is only a tokenizer, or a problem
    language: Language | None  # None: a problem
    problem: str | None


def read_side(name: str | Path, *, drafts: bool = False) -> Side:
    """Read what a folder, a hub id or `zoo:NAME` says of itself; what `load` would refuse is its `problem`.

    `drafts` is whether it is the drafter of the two.

    Raises ModelError for what is neither a folder nor a hub id, and for a hub id of which nothing can be fetched.
    """
    source, local = locate(zoo.resolve(name))
    name = Path(source).resolve().name if local else source
    model = language = problem = None
    try:
        if not local or (Path(source) / "config.json").exists():
            model = TransformersModel(load_skeleton(source))
        language = _read_language(source, model, drafts=drafts)
    except ModelError as error:
        if not local and isinstance(error.__cause__, OSError):
            raise  # a name that is mistyped, or no network: that says nothing of the model
        problem = str(error)
    return Side(name=name, model=model, language=language, problem=problem)


def _read_language(source: str, model: TransformersModel | None, *, drafts: bool) -> Language:
    tokenizer = load_tokenizer(source)
    known = () if model is None else (model.vocab_size, model.eos)
    vocab = read_vocab(tokenizer, *known, drafts=drafts)
    return Language(tokenizer=tokenizer, vocab=vocab, speller=Speller(tokenizer, vocab))
