"""Turns of decoding with random models over real vocabularies, whose acceptance is scripted."""

from __future__ import annotations

import argparse
import copy
import inspect
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from experiments.overhead import peak_memory as memory
from experiments.overhead.synthetic import Pass, Say, Shape, Spread, Watch, certain, counting_truncations, watching
from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.attach import make_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.models.cpu_llama import lean
from omnidraft.models.kv_cache import ROOM
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.models.loading import choose_dtype
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DRAFTER_CONTEXT = 2048
ACCEPTANCE = 0.7  # of a scripted draft token where decoding is greedy, of about any symbol where it samples
SAID = 0.6  # the probability that a scripted target gives to its text where it samples


@dataclass(frozen=True)
class Turn:
    """One run of rounds: seconds without those of the scripts, and those of the forward passes alone."""

    tokens: int
    wall_s: float
    passes_s: float
    rounds: int
    passes: Sequence[Pass]
    accepted: float = 0.0  # of the symbols that were settled: the accepted ones and the first that was not
    left: float = 0.0  # of the truncated distributions: those that the processors of transformers had to make

    @property
    def beside_s(self) -> float:
        """Seconds a round that are not forward passes."""
        return (self.wall_s - self.passes_s) / self.rounds


@dataclass
class Course:
    """What the target goes on to say after the text that was emitted, in draft tokens."""

    translator: DrafterContext
    ids: Sequence[int]  # the script
    length: int  # of the text
    written: int  # draft tokens of the text
    drafts: Sequence[int] = ()

    def go_on(self, emitted: Sequence[int], ahead: int) -> None:
        """After these tokens, which may have left the script, look so many tokens ahead in it."""
        self.length += len(emitted)
        self.written += len(self.translator.tokens(emitted))
        self.drafts = self.translator.tokens(self.ids[self.length : self.length + ahead])

    def at(self, position: int) -> int | None:
        """The draft token that follows a position of the drafter's text; None where there is none."""
        ahead = position - self.written
        return self.drafts[ahead] if 0 <= ahead < len(self.drafts) else None


class Models:
    """Two random models with the tokenizers of real ones, which decode `tokens` tokens a turn."""

    def __init__(
        self,
        target_tokenizer: PreTrainedTokenizerBase,
        drafter_tokenizer: PreTrainedTokenizerBase,
        *,
        target: Shape,
        drafter: Shape,
        context: int,
        draft_length: int,
        tokens: int,
    ) -> None:
        self.tokens, self.drafting = tokens, Drafting(draft_length=draft_length)
        self.tokenizers = {"tokenizer": target_tokenizer, "assistant_tokenizer": drafter_tokenizer}
        size = -(-len(target_tokenizer) // 128) * 128  # padded, as the logits of large vocabularies are
        # what `load` would choose for a checkpoint in bf16
        dtype, _ = choose_dtype(torch.device("cpu"), torch.bfloat16, target.parameters(size))
        self.target = TransformersModel(target.build(size, context, dtype))
        self.source = TransformersModel(drafter.build(len(drafter_tokenizer), DRAFTER_CONTEXT, torch.float32))
        source: str = inspect.getsource(argparse) + inspect.getsource(random)
        self.ids: list[int] = target_tokenizer(source)["input_ids"]
        self.unused = memory.begin()
        # what `load` does, but without its folder of tables: to build one takes more memory than to read it
        self.vocab = read_vocab(target_tokenizer, size, ())
        self.own = read_vocab(drafter_tokenizer, self.source.vocab_size, ())
        speller = Speller(drafter_tokenizer, self.own)
        table = build_table(self.own, self.vocab, speller, Speller(target_tokenizer, self.vocab))
        self.step: LanguageModel = lean(self.source) or self.source
        translator = DrafterContext(table, self.vocab, self.own, speller)
        self.attached = AttachedDrafter(
            drafter=Drafter(self.step), context=translator, cache=make_cache(table, self.drafting)
        )
        self._copies: dict[bool, PreTrainedModel] = {}

    def rounds(self, start: int, sampling: Sampling, *, knowing: bool = True, after_prompt: bool = True) -> Turn:
        """Decode after the first `start` ids of the text, which the target goes on to say.

        A `knowing` drafter says it as well, at a rate of ACCEPTANCE.  `after_prompt`: without the first round.
        Where it samples, the target says by its position what the script has there, with probability SAID and whatever
        was emitted before; the drafter gives ACCEPTANCE to how that is spelled from the end of the emitted text on.
        """
        pair = replace(self.attached, cache=make_cache(self.attached.cache.table, self.drafting))
        engine = Engine(self.target, (), pair, self.drafting)
        draw = GeneratorSampler(torch.Generator().manual_seed(0))
        watch, records = Watch(), []
        course = Course(self.attached.context, self.ids, start, len(self.attached.context.prompt(self.ids[:start])))
        course.go_on((), self.drafting.longest)
        say = self._drafter_says(start, sampling, course) if knowing else None
        with ExitStack() as stack:
            stack.enter_context(watching(watch, self.target.model, self._target_says(sampling)))
            stack.enter_context(watching(watch, self.step, say))
            distributions = stack.enter_context(counting_truncations())
            began = time.perf_counter()
            for record in engine.rounds(self.ids[:start], self.tokens, sampling, draw):
                done = time.perf_counter()
                course.go_on(record.emitted, self.drafting.longest)
                watch.script_s += time.perf_counter() - done
                if after_prompt:
                    after_prompt, began = False, time.perf_counter()
                    watch.passes_s, watch.script_s, watch.passes = 0.0, 0.0, []
                    continue
                records.append(record)
            wall = time.perf_counter() - began - watch.script_s
        return Turn(
            tokens=sum(len(record.emitted) for record in records),
            wall_s=wall,
            passes_s=watch.passes_s,
            rounds=len(records),
            passes=watch.passes,
            accepted=sum(r.counts.symbols_accepted for r in records)
            / max(1, sum(min(r.counts.symbols, r.counts.symbols_accepted + 1) for r in records)),
            left=distributions[False] / max(1, distributions.total()),
        )

    def alone(self, start: int) -> float:
        """Seconds a token where the target decodes by itself after the first `start` ids, in our loop and cache."""
        draw = GeneratorSampler(torch.Generator())
        rounds = Engine(self.target, ()).rounds(self.ids[:start], self.tokens, Sampling(), draw)
        next(rounds)  # reads the prompt
        began = time.perf_counter()
        emitted = sum(len(record.emitted) for record in rounds)
        return (time.perf_counter() - began) / emitted

    def _target_says(self, sampling: Sampling) -> Say:
        if sampling.greedy:
            return lambda position, row: certain(row, self.ids[position])
        distribution = Spread(self.vocab.tokens, SAID, sampling.temperature, self.target.dtype)
        return lambda position, row: distribution.write(position, row, self.ids[position])

    def _drafter_says(self, start: int, sampling: Sampling, course: Course) -> Say:
        """The spellings of what the target says: each right at a rate, or given that probability where sampled."""
        if not sampling.greedy:
            distribution = Spread(self.own.tokens, ACCEPTANCE, sampling.temperature, torch.float32)

            def sample(position: int, row: torch.Tensor) -> None:
                if (token := course.at(position)) is not None:
                    distribution.write(position, row, token)

            return sample
        translator = self.attached.context
        drafts = translator.prompt(self.ids[:start]) + translator.tokens(self.ids[start : start + 2 * self.tokens])
        chance = random.Random(0)  # noqa: S311  the same in every run
        right = [chance.random() < ACCEPTANCE for _ in drafts]

        def say(position: int, row: torch.Tensor) -> None:
            if position < len(drafts):
                # a wrong one is another that occurs in the text, or it would end the draft
                certain(row, drafts[position] if right[position] else drafts[position // 2])

        return say

    def assisted(self, start: int, sampling: Sampling) -> Turn:
        """The same by the cross-tokenizer decoding of `transformers`, its drafter a copy in fp32."""
        turns = []
        # one copy for sampling, which it changes for good, as later calls expect it; one for the rest
        copied = self._copies.setdefault(sampling.greedy, copy.deepcopy(self.source.model))
        own = copied.generation_config
        own.num_assistant_tokens, own.num_assistant_tokens_schedule = self.drafting.longest, "constant"
        own.assistant_confidence_threshold = 0.0
        options = {"assistant_model": copied, **self.tokenizers}
        for _ in range(2):  # the first sets up what the second finds ready
            watch = Watch()
            with watching(watch, self.target.model, self._target_says(sampling)), watching(watch, copied):
                wall = self.generate(start, sampling, options) - watch.script_s
            passes = [one for one in watch.passes if one.runner is self.target.model]
            turns.append(Turn(self.tokens, wall, watch.passes_s, len(passes), passes))
        return turns[-1]

    def generate(self, start: int, sampling: Sampling, options: Mapping[str, Any]) -> float:
        """Seconds that `generate` of transformers takes after the first `start` ids."""
        ids = torch.tensor([self.ids[:start]])
        drawn = {} if sampling.greedy else {"temperature": sampling.temperature, "top_k": 0}
        model: Any = self.target.model
        torch.manual_seed(0)
        began = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.tokens, do_sample=not sampling.greedy,
            pad_token_id=0, **drawn, **options,
        )  # fmt: skip
        return time.perf_counter() - began

    def replay(self, passes: Sequence[Pass]) -> float:
        """Seconds of the same passes again, in the same order and at the same contexts, with nothing between them."""
        models: dict[int, LanguageModel] = {id(self.target.model): self.target, id(self.step): self.step}
        for first in {id(one.runner): one for one in reversed(passes)}.values():
            model = models[id(first.runner)]
            model.crop(0)
            model.forward([1] * first.before, 1)
        began = time.perf_counter()
        for one in passes:
            model = models[id(one.runner)]
            model.crop(one.before)
            model.forward([1] * one.fed, one.kept)
        return time.perf_counter() - began

    def cache_bytes(self, tokens: int) -> int:
        """What the keys and values of so many tokens take, in both models, with the room that is made for more."""
        return sum(
            2 * config.num_hidden_layers * config.hidden_size * (tokens + room) * size
            for config, size, room in (
                (self.target.model.config, self.target.dtype.itemsize, tokens // 4 + ROOM),
                (self.source.model.config, torch.float32.itemsize, 0),
            )
        )
