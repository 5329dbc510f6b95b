"""Real tokenizers and engines over them, for tests that compare with `transformers` or with a known law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.translator import Translator
from omnidraft.alignment.trie import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.engine import AttachedDrafter, Engine
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.round import Round


@dataclass(frozen=True, eq=False)
class Language:
    """A tokenizer with what is read from it."""

    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    speller: Speller


@cache
def language(folder: Path, size: int | None = None) -> Language:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vocab = read_vocab(tokenizer, size)
    return Language(tokenizer, vocab, Speller(tokenizer, vocab))


@cache
def table(drafter: Language, target: Language) -> SpellingTable:
    return build_table(drafter.vocab, target.vocab, drafter.speller, target.speller)


def engine(
    target: LanguageModel,
    target_language: Language,
    drafter: LanguageModel,
    drafter_language: Language,
    *,
    frozen: bool = False,
    **drafting: Any,
) -> Engine:
    settings = Drafting(**{"stopping": "fixed"} | drafting)
    spelling = table(drafter_language, target_language)
    only_direct = settings.mode == "intersection"
    cache_ = NgramCache(
        spelling,
        seed="empty" if only_direct else settings.ngram_seed,
        bound=settings.ngram_bound,
        eviction=settings.ngram_eviction,
        frozen=frozen or only_direct,
    )
    translator = Translator(spelling, target_language.vocab, drafter_language.vocab, drafter_language.speller)
    pair = AttachedDrafter(drafter=Drafter(drafter), translator=translator, cache=cache_)
    return Engine(target, target_language.vocab.eos, pair, settings)


def random_model(kind: str, vocab_size: int, seed: int, layers: int = 2, context: int = 512) -> TransformersModel:
    """A tiny random model whose greedy text does not settle into one token: its head is scaled up."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**shape))
    return TransformersModel(model)


def generate(
    model: TransformersModel, prompt: list[int], count: int, eos: tuple[int, ...] = (), **options: Any
) -> list[int]:
    """What `transformers` alone continues a prompt with, greedily."""
    ids = torch.tensor([prompt])
    output = model.model.generate(
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
