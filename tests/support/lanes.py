"""Engines over real tokenizers, for tests that compare with `transformers` or with a known distribution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.api import OmniDraft
from omnidraft.attach import make_cache
from omnidraft.bench.interleaved import drafter_of, lane_for
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.transformers_model import PretrainedModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler
from support.project_files import real_tokenizer
from support.small_tokenizers import byte_level, sentencepiece, wrap
from support.tokenizer_families import family


@dataclass(frozen=True, eq=False)
class Language:
    """A tokenizer with what is read from it."""

    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    speller: Speller

    def read(self, text: str) -> list[int]:
        """The ids of a text, with no token in front."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def read_language(tokenizer: PreTrainedTokenizerBase, size: int | None = None) -> Language:
    vocab = read_vocab(tokenizer, size)
    return Language(tokenizer, vocab, Speller(tokenizer, vocab))


@cache
def language(folder: Path, size: int | None = None) -> Language:
    return read_language(AutoTokenizer.from_pretrained(folder), size)


SIZES = {"llama2": 32_000, "llama3": 128_256, "qwen2": 152_064}


@cache
def real_language(name: str) -> Language:
    """One of SIZES."""
    return read_language(real_tokenizer(name), SIZES[name])


@cache
def family_language(name: str) -> Language:
    return read_language(family(name))


def written(vocab: Vocab, ids: Iterable[int]) -> bytes:
    """The bytes of tokens, nothing for those without."""
    return b"".join(vocab.tokens[i] or b"" for i in ids)


@cache
def table(drafter: Language, target: Language) -> SpellingTable:
    return build_table(drafter.vocab, target.vocab, drafter.speller, target.speller)


@cache
def context_of(drafter: Language, target: Language) -> DrafterContext:
    return DrafterContext(table(drafter, target), target.vocab, drafter.vocab, drafter.speller)


def sampler(seed: int = 0) -> GeneratorSampler:
    return GeneratorSampler(torch.Generator().manual_seed(seed))


def lane(
    target: LanguageModel,
    target_language: Language,
    drafter: LanguageModel,
    drafter_language: Language,
    *,
    frozen: bool = False,
    **drafting: Any,
) -> Lane:
    settings = Drafting(**{"draft_length": 4} | drafting)
    spelling = table(drafter_language, target_language)
    only_direct = settings.mode == "intersection"
    cache_ = NgramCache(
        spelling,
        seed="empty" if only_direct else settings.ngram_seed,
        frozen=frozen or only_direct,
    )
    context = context_of(drafter_language, target_language)
    pair = AttachedDrafter(drafter=Drafter(drafter), context=context, cache=cache_)
    return Lane(target, target_language.vocab.eos, pair, settings)


def isolated(model: OmniDraft, **drafting: Any) -> Lane:
    """A lane on a model's weights with KV caches and n-grams of its own."""
    attached, settings = drafter_of(model), Drafting(**drafting)
    cache_ = make_cache(attached.cache.table, settings)
    return lane_for(model, settings, attached=replace(attached, drafter=Drafter(attached.drafter.model), cache=cache_))


def generate(
    model: PretrainedModel, prompt: list[int], count: int, eos: tuple[int, ...] = (), **options: Any
) -> list[int]:
    """What `transformers` alone continues a prompt with, greedily."""
    ids = torch.tensor([prompt], device=model.device)
    output = cast(Any, model.model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=list(eos) or None,
        pad_token_id=0,
        **options,
    )
    return [int(token) for token in output[0, len(prompt) :]]


def tokens(rounds: list[Round]) -> list[int]:
    return [token for record in rounds for token in record.emitted]


SMALL = tuple(read_language(wrap(each)) for each in (byte_level(), sentencepiece()))  # of the target, of the drafter
SMALL_PROMPTS = (
    "A baker has 3 trays with 12 rolls each",
    "def count(items): return",
    "the first of them was the",
    "1 + 2 = 3 and 4 + 5 =",
)
