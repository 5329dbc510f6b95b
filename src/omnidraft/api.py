"""The Python interface: load a target and a drafter, generate, stream."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from omnidraft import zoo
from omnidraft.config import Drafting, Sampling, suggestion
from omnidraft.context import Translator
from omnidraft.drafter import Drafter
from omnidraft.engine import Engine, Pair, Round
from omnidraft.errors import ConfigError, OmniDraftError, PromptError
from omnidraft.lean import LeanLlama, lean, obstacle
from omnidraft.metrics import Stats
from omnidraft.models import LoadedModel, load_model
from omnidraft.ngrams import NgramCache
from omnidraft.sampling import GeneratorDraw
from omnidraft.spelling import SpellingTable, default_cache_dir, load_table
from omnidraft.text import TextStream
from omnidraft.vocab import Speller, Vocab, read_vocab

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

LARGEST_SEED = 2**64 - 1  # what a torch.Generator takes
_log = logging.getLogger("omnidraft")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer.

    `token_ids` are the target's, an end-of-text id included.  `finish_reason` is "eos", "length" (as many tokens as
    were asked for), "context" (the target holds no more) or "interrupted" (a stream that was not read to its end).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    `result` is the `Generation` so far, also after an interruption.
    """

    def __init__(self, rounds: Iterator[Round], text: TextStream) -> None:
        self._rounds: list[Round] = []
        self._pieces: list[str] = []
        self._source = self._read(rounds, text)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._source)

    @property
    def result(self) -> Generation:
        last = self._rounds[-1] if self._rounds else None
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in self._rounds for token in record.emitted),
            finish_reason=(last and last.finish) or "interrupted",
            stats=Stats.of(self._rounds),
        )

    def _read(self, rounds: Iterator[Round], text: TextStream) -> Iterator[str]:
        for record in rounds:
            piece = text.feed(record.emitted) + (text.end() if record.finish else "")
            self._rounds.append(record)
            if piece:
                self._pieces.append(piece)
                yield piece


class OmniDraft:
    """A target, made faster by a drafter; what it says stays its own.  Made by `load`, for one text at a time."""

    def __init__(self, target: LoadedModel, drafter: LoadedModel | None, vocab: Vocab, engine: Engine) -> None:
        self.target = target
        self.drafter = drafter
        self.vocab = vocab
        self.engine = engine
        self._texts = 0
        self._fallback = frozenset(
            token
            for byte in range(256)
            if isinstance(token := target.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>"), int)
            and vocab.tokens[token : token + 1] == (bytes([byte]),)
        )

    @property
    def drafter_step(self) -> str | None:
        """How the drafter makes its steps, a phrase; None without one."""
        if self.drafter is None or self.engine.pair is None:
            return None
        step = self.engine.pair.drafter.model
        if isinstance(step, LeanLlama):
            return f"lean, weights of {step.weights}"
        return f"transformers, as {obstacle(self.drafter.lm) or 'asked for'}"

    def generate(
        self, prompt: str | Sequence[int], *, max_new_tokens: int = 256, seed: int = 0, **sampling: Any
    ) -> Generation:
        """Continue a prompt: a text, or the target's token ids.

        `sampling` takes the fields of `config.Sampling`; `seed` decides every draw.  Raises ConfigError for an option,
        PromptError for a prompt that is empty or longer than the context, NumericsError for a model that returns NaN.
        """
        stream = self.stream(prompt, max_new_tokens=max_new_tokens, seed=seed, **sampling)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self, prompt: str | Sequence[int], *, max_new_tokens: int = 256, seed: int = 0, **sampling: Any
    ) -> Stream:
        """`generate`, piece by piece; beginning another text ends this one with an OmniDraftError."""
        settings = _settings(Sampling, sampling, ("max_new_tokens", "seed"))
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {max_new_tokens!r}; it must be an integer at least 1: ask for some")
        if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
            raise ConfigError(f"seed is {seed!r}; it must be an integer from 0 to {LARGEST_SEED}: choose any of them")
        ids = self.encode(prompt)
        self.engine.check(ids)
        draw = GeneratorDraw(torch.Generator().manual_seed(seed))
        self._texts += 1
        rounds = self._unless_overtaken(self._texts, self.engine.rounds(ids, max_new_tokens, settings, draw))
        return Stream(rounds, self.text_after(ids))

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt as token ids of the target, its first token included; raises PromptError where it is unusable."""
        if isinstance(prompt, str):
            return list(self.target.tokenizer(_usable(prompt))["input_ids"])
        try:
            if isinstance(prompt, bytes | bytearray):
                raise TypeError
            ids = [operator.index(token) for token in prompt]
        except TypeError:
            kind = type(prompt).__name__
            raise PromptError(f"the prompt is of type {kind}: give a str, or a sequence of token ids") from None
        for token in ids:
            if not 0 <= token < self.vocab.size:
                raise PromptError(
                    f"prompt token id {token} is not in 0..{self.vocab.size - 1}: use the target's own ids"
                )
        return ids

    def encode_message(self, message: str) -> list[int]:
        """A user's message as token ids of the target: in its chat template where it has one, else as it stands."""
        tokenizer = self.target.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            return self.encode(message)
        chat = [{"role": "user", "content": _usable(message)}]
        # as text first: the template writes the first token itself
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_after(self, prompt: Iterable[int]) -> TextStream:
        """The text of the tokens that follow these."""
        return TextStream(
            self.vocab.tokens, prompt, fallback=self._fallback, opening=partial(_text_of_one, self.target)
        )

    def _unless_overtaken(self, text: int, rounds: Iterator[Round]) -> Iterator[Round]:
        while True:
            if text != self._texts:
                # both models now hold the later text: going on would continue that one
                raise OmniDraftError("another text was begun on the same models: read a stream to its end first")
            try:
                record = next(rounds)
            except StopIteration:
                return
            yield record


def load(
    target: str | Path,
    drafter: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    warn: Callable[[str], None] = _log.warning,
    **drafting: Any,
) -> OmniDraft:
    """Load a target and a drafter, each a folder, a hub id or `zoo:NAME`.

    Without a drafter, or with `draft_len=0`, the target decodes alone.  `drafting` takes the fields of
    `config.Drafting`.  `dtype` and `device` are for both models.  What is worth knowing but no error (a damaged table
    cache, a full disk) goes to `warn`, one line each.  Raises ConfigError for an option, ModelError for a model.
    """
    settings = _settings(Drafting, drafting, ("target", "drafter", "dtype", "device", "warn"))
    if drafter is None and "draft_len" not in drafting:
        settings = _settings(Drafting, drafting | {"draft_len": 0})
    loaded = load_model(zoo.resolve(target), dtype, device)
    vocab = read_vocab(loaded.tokenizer, loaded.lm.vocab_size, loaded.lm.eos)
    # generate of transformers ends at the ids of the generation config only, and so does this
    eos = loaded.lm.eos or vocab.eos
    if drafter is None:
        return OmniDraft(loaded, None, vocab, Engine(loaded.lm, eos, None, settings))
    helper = load_model(zoo.resolve(drafter), dtype, device)
    pair = make_pair(loaded, vocab, helper, settings, warn)
    return OmniDraft(loaded, helper, vocab, Engine(loaded.lm, eos, pair, settings))


def make_pair(
    target: LoadedModel, vocab: Vocab, drafter: LoadedModel, drafting: Drafting, warn: Callable[[str], None]
) -> Pair:
    """Make a drafter ready for a target whose vocabulary is `vocab`; the spelling table comes from the disk cache."""
    own = read_vocab(drafter.tokenizer, drafter.lm.vocab_size, drafter.lm.eos)
    speller = Speller(drafter.tokenizer, own)
    try:
        folder = default_cache_dir()
    except ConfigError as error:
        folder = None
        warn(f"spelling tables are not stored: {error}")
    table = load_table(own, vocab, speller, Speller(target.tokenizer, vocab), folder, warn)
    translator = Translator(table, vocab, own, speller)
    step = lean(drafter.lm) if drafting.drafter_step == "auto" else None
    return Pair(drafter=Drafter(step or drafter.lm), translator=translator, cache=make_cache(table, drafting))


def make_cache(table: SpellingTable, drafting: Drafting) -> NgramCache:
    """The n-gram cache that these settings begin with."""
    if drafting.mode == "intersection":
        return NgramCache(table, seed="empty", frozen=True)
    return NgramCache(table, seed=drafting.ngram_seed, bound=drafting.ngram_bound, eviction=drafting.ngram_eviction)


def _settings(cls: type[Settings], keywords: dict[str, Any], own: Sequence[str] = ()) -> Settings:
    """Settings from the keywords of a call whose own parameters are `own`; ConfigError for an unknown one."""
    known = [*(f.name for f in fields(cls)), *own]
    homes = {f.name: call for other, call in ((Drafting, "load"), (Sampling, "generate")) for f in fields(other)}
    for name in keywords:
        if name not in known:
            fix = f"give it to {homes[name]}" if name in homes else suggestion(name, known)
            raise ConfigError(f"unknown option {name!r}: {fix}")
    return cls(**keywords)


def _usable(prompt: str) -> str:
    """The prompt, which tokenizers can read; raises PromptError where they cannot."""
    if not prompt:
        raise PromptError("the prompt is empty: give some text")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} is {prompt[error.start]!r}"
        raise PromptError(f"the prompt is no valid Unicode ({where}): give text in UTF-8") from error
    return prompt


def _text_of_one(model: LoadedModel, token: int) -> str:
    """What the tokenizer makes of a text of one token."""
    text = model.tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text if isinstance(text, str) else ""
