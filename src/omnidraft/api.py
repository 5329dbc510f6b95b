"""The Python interface: load a target and a drafter, generate, stream, learn, save."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch

from omnidraft import zoo
from omnidraft.answer import Generation, Stream
from omnidraft.config import ADAPT, Drafting, Learning, Sampling, suggestion
from omnidraft.drafter import Serving
from omnidraft.engine import Engine, Round
from omnidraft.errors import ConfigError, OmniDraftError, PromptError
from omnidraft.lean import LeanLlama, obstacle
from omnidraft.models import LoadedModel, load_model
from omnidraft.pairing import DrafterSide, Use, make_pair, make_side
from omnidraft.sampling import GeneratorDraw
from omnidraft.text import TextStream
from omnidraft.vocab import Vocab, read_vocab

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

__all__ = ["Generation", "OmniDraft", "Stream", "load"]
LARGEST_SEED = 2**64 - 1  # what a torch.Generator takes
_log = logging.getLogger("omnidraft")


class OmniDraft:
    """A target, made faster by a drafter; what it says stays its own.  Made by `load`, for one text at a time.

    One that learns is to be closed, by `close` or at the end of a `with` block: what it learned is saved then, too.
    """

    def __init__(self, target: LoadedModel, vocab: Vocab, engine: Engine, side: DrafterSide | None = None) -> None:
        self.target = target
        self.vocab = vocab
        self.engine = engine
        self.side = side
        self._texts = 0
        self._fallback = frozenset(
            token
            for byte in range(256)
            if isinstance(token := target.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>"), int)
            and vocab.tokens[token : token + 1] == (bytes([byte]),)
        )
        # also when nobody closes it: at the end of the interpreter, or of the object
        self._finish = weakref.finalize(self, side.finish if side else _nothing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def drafter(self) -> LoadedModel | None:
        return None if self.side is None else self.side.loaded

    def save(self) -> None:
        """Write what was learned to its profile; raises ConfigError without one, ProfileError where that fails."""
        if self.side is None:
            raise ConfigError("there is no drafter to save anything of: load one")
        self.side.adaptation.collect()
        self.side.memory.save(self.side.adaptation)

    def close(self) -> None:
        """Save what was learned and is not saved yet, and end what learns; what comes later is not learned from."""
        self._finish()

    @property
    def learned(self) -> dict[str, int | float]:
        """Counters of what the drafter learned from this target, earlier processes included; empty without any."""
        return {} if self.side is None else self.side.memory.totals(self.side.adaptation)

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
        rounds = self.engine.rounds(ids, max_new_tokens, settings, draw)
        if self.side is not None:
            self.side.serving.texts += 1
            rounds = self._learning(rounds, self.side)
        return Stream(self._unless_overtaken(self._overtaking, rounds), self.text_after(ids))

    @property
    def _overtaking(self) -> tuple[int, int]:
        """What changes with every text that is begun on the target or on the drafter."""
        return self._texts, 0 if self.side is None else self.side.serving.texts

    def _learning(self, rounds: Iterator[Round], side: DrafterSide) -> Iterator[Round]:
        yield from side.adaptation.following(rounds)
        side.memory.keep(side.adaptation)

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

    def _unless_overtaken(self, text: tuple[int, int], rounds: Iterator[Round]) -> Iterator[Round]:
        while True:
            if text != self._overtaking:
                # both models now hold the later text: going on would continue that one
                raise OmniDraftError("another text was begun on the same models: read a stream to its end first")
            try:
                record = next(rounds)
            except StopIteration:
                return
            yield record


def load(
    target: str | Path,
    drafter: str | Path | OmniDraft | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    adapt: str = "off",
    profile: str | Path | None = "auto",
    warn: Callable[[str], None] = _log.warning,
    **options: Any,
) -> OmniDraft:
    """Load a target and a drafter, each a folder, a hub id or `zoo:NAME`.

    Without a drafter, or with `draft_len=0`, the target decodes alone; given another OmniDraft, its drafter is shared,
    and is in memory once.  With `adapt` "background" the drafter learns from every answer, in a process of its own,
    with "inline" between answers.  What it learned is kept in a profile: "auto" is that of the two models, a path a
    folder of one's own, None is none.  `options` takes the fields of `config.Drafting` and `config.Learning`; `dtype`
    and `device` are for both models.  What is worth knowing but no error (a damaged table cache, a full disk) goes to
    `warn`, one line each.  Raises ConfigError for an option, ModelError for a model, ProfileError for a profile.
    """
    own = ("target", "drafter", "dtype", "device", "adapt", "profile", "warn", *_names(Learning))
    learning = {name: options.pop(name) for name in _names(Learning) if name in options}
    settings = _settings(Drafting, options, own)
    Learning(**learning)
    if adapt not in ADAPT:
        raise ConfigError(f"adapt is {adapt!r}; use one of {', '.join(ADAPT)}")
    place: object = profile
    if place is not None and (not isinstance(place, str | Path) or not str(place)):
        raise ConfigError(f"profile is {profile!r}; use 'auto', a folder, or None for none")
    if drafter is None:
        if adapt != "off":
            raise ConfigError(f"adapt is {adapt!r} without a drafter: give one, or use adapt='off'")
        if "draft_len" not in options:
            settings = _settings(Drafting, options | {"draft_len": 0})
    loaded = load_model(zoo.resolve(target), dtype, device)
    vocab = read_vocab(loaded.tokenizer, loaded.lm.vocab_size, loaded.lm.eos)
    # generate of transformers ends at the ids of the generation config only, and so does this
    eos = loaded.lm.eos or vocab.eos
    if drafter is None:
        return OmniDraft(loaded, vocab, Engine(loaded.lm, eos, None, settings))
    if isinstance(drafter, OmniDraft):
        helper, serving = _shared(drafter, options)
    else:
        helper = load_model(zoo.resolve(drafter), dtype, device)
        serving = Serving(helper.lm, lean_step=settings.drafter_step == "auto")
    pair = make_pair(loaded, vocab, helper, settings, warn, serving)
    use = Use(adapt=adapt, learning=learning, profile=profile, warn=warn)
    side = make_side(loaded, helper, pair, serving, use)
    engine = Engine(loaded.lm, eos, pair, settings)
    if adapt != "off":
        engine.teacher_temperature = side.memory.learning.teacher_temperature
    return OmniDraft(loaded, vocab, engine, side)


def _shared(drafter: OmniDraft, options: Mapping[str, Any]) -> tuple[LoadedModel, Serving]:
    """The drafter of another OmniDraft; raises ConfigError where there is none, or it is asked to be another."""
    if drafter.side is None:
        raise ConfigError("the OmniDraft given has no drafter to share: load one with it")
    if "drafter_step" in options:
        raise ConfigError("drafter_step is that of the drafter that is shared: leave it out, or load the drafter anew")
    return drafter.side.loaded, drafter.side.serving


def _names(cls: type[DataclassInstance]) -> list[str]:
    return [f.name for f in fields(cls)]


def _nothing() -> None:
    """There is nothing to finish."""


def _settings(cls: type[Settings], keywords: dict[str, Any], own: Sequence[str] = ()) -> Settings:
    """Settings from the keywords of a call whose own parameters are `own`; ConfigError for an unknown one."""
    known = [*(f.name for f in fields(cls)), *own]
    homes = {
        f.name: call
        for other, call in ((Drafting, "load"), (Learning, "load"), (Sampling, "generate"))
        for f in fields(other)
    }
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
