"""Random models of real shapes and vocabularies that are made to say a given text, and the seconds of their passes.

The passes are real and cost what those of a trained model of that shape cost; only the logits are rewritten.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import inspect
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.attach import make_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.models.language_model import ROOM, LanguageModel, SingleSequence
from omnidraft.models.loading import choose_dtype
from omnidraft.models.native_model import native_of
from omnidraft.models.transformers_model import TransformersModel, cache_argument
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Say = Callable[[int, torch.Tensor], None]
"""Rewrites the logits (V,) of what follows a position."""
DRAFTER_CONTEXT = 2048
ACCEPTANCE = 0.7  # of a draft token where decoding is greedy, of about any symbol where it samples
SAID = 0.6  # the probability that a target gives to its text where it samples
CERTAIN = 1e6  # odds of a token against all others together
EXPONENT = 1.5  # of Zipf's law
STRIDE = 7919  # ids by which the likely tokens move from one position to the next
STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


# ---------------------------------------------------------------- logits


def certain(row: torch.Tensor, token: int) -> None:
    """Change one logit of a row (V,), so that its token is as good as certain."""
    row[token] = row.float().logsumexp(0) + math.log(CERTAIN)


class Spread:
    """Rows of logits of a given distribution: one token is favored, the others share the rest by Zipf's law.

    Which others are likely is drawn once and moves with the position: a row costs one copy and two writes.
    """

    def __init__(self, tokens: Sequence[bytes | None], said: float, temperature: float, dtype: torch.dtype) -> None:
        weights = torch.arange(1, len(tokens) + 1, dtype=torch.float64) ** -EXPONENT
        logs = ((1 - said) / weights.sum() * weights).log()
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
        self._others = (temperature * logs[order]).to(dtype).repeat(2)  # from any id on, V of them are a row
        self._said = temperature * math.log(said)
        # padding and special tokens, which no trained model says in the middle of a text
        self._never = torch.tensor([token for token, data in enumerate(tokens) if data is None], dtype=torch.long)
        self._lowest = float(self._others.min())

    def write(self, position: int, row: torch.Tensor, token: int) -> None:
        """Make `row` (V,) the logits of a position where `token` is said."""
        start = STRIDE * position % len(row)
        row.copy_(self._others[start : start + len(row)])
        row[self._never] = self._lowest
        row[token] = self._said


@dataclass
class Script:
    """The text that a target goes on to say after what was emitted, spelled in draft tokens."""

    context: DrafterContext
    ids: Sequence[int]
    length: int  # of the emitted text
    written: int  # draft tokens of it
    drafts: Sequence[int] = ()

    def advance(self, emitted: Sequence[int], ahead: int) -> None:
        """Append emitted tokens, which may have left the script, and spell the next `ahead` tokens of it."""
        self.length += len(emitted)
        self.written += len(self.context.tokens(emitted))
        self.drafts = self.context.tokens(self.ids[self.length : self.length + ahead])

    def at(self, position: int) -> int | None:
        """The draft token that follows a position of the drafter's text; None where there is none."""
        ahead = position - self.written
        return self.drafts[ahead] if 0 <= ahead < len(self.drafts) else None


# ---------------------------------------------------------------- passes


@dataclass
class Watch:
    """Seconds inside forward passes and in the rewriting of logits, and the passes of the target."""

    passes_s: float = 0.0
    script_s: float = 0.0
    target_passes: int = 0

    def note(self, began: float, logits: torch.Tensor, length: int, say: Say | None) -> None:
        """Count a pass that is just done, and rewrite the rows of its logits (n, V), the last after `length` tokens."""
        self.passes_s += (done := time.perf_counter()) - began
        if say is not None:
            for index, position in enumerate(range(length - len(logits) + 1, length + 1)):
                say(position, logits[index])
        self.script_s += time.perf_counter() - done


class ScriptedStep(SingleSequence):
    """A drafter's step whose passes are timed and whose logits are rewritten."""

    def __init__(self, model: LanguageModel, watch: Watch, say: Say | None) -> None:
        self._sequence, self._watch, self._say = model.new_sequence(), watch, say
        self.vocab_size, self.context = model.vocab_size, model.context

    @property
    def length(self) -> int:
        return self._sequence.length

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        began = time.perf_counter()
        logits = self._sequence.forward(ids, keep)
        self._watch.note(began, logits, self.length, self._say)
        return logits

    def crop(self, length: int) -> None:
        self._sequence.crop(length)


@contextmanager
def watching(watch: Watch, model: PreTrainedModel, say: Say | None = None, *, target: bool = False) -> Iterator[None]:
    """Time the passes of a `transformers` model inside, whoever asks for them, and rewrite their logits."""
    began = 0.0

    def before(*_: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def after(_model: Any, _ids: Any, named: Mapping[str, Any], output: Any) -> None:
        watch.note(began, output.logits[0], named[cache_argument(model)].get_seq_length(), say)
        watch.target_passes += target

    hooks = model.register_forward_pre_hook(before), model.register_forward_hook(after, with_kwargs=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class Shape:
    """A Llama architecture."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    tied: bool

    def parameters(self, vocab_size: int) -> int:
        """Number of weights of a model of this shape, norms left out."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * vocab_size * self.hidden

    def build(self, vocab_size: int, context: int, dtype: torch.dtype) -> PreTrainedModel:
        """A random model of this shape."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=context,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
        model: Any = LlamaForCausalLM(config).eval()
        return cast("PreTrainedModel", model.to(dtype))


@dataclass(frozen=True)
class Answer:
    """One run of rounds: seconds without those of the scripts, and those of the forward passes alone."""

    tokens: int
    wall_s: float
    passes_s: float
    rounds: int
    accepted: float = 0.0  # of the symbols that were settled: the accepted ones and the first that was not

    @property
    def beside_s(self) -> float:
        """Seconds a round that are not forward passes."""
        return (self.wall_s - self.passes_s) / self.rounds


class Models:
    """Two random models with the tokenizers of real ones, which decode `tokens` tokens at a time."""

    def __init__(
        self,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        shapes: tuple[Shape, Shape],
        context: int,
        tokens: int,
    ) -> None:
        own_tokenizer, self.tokens, self.drafting = tokenizers[1], tokens, Drafting(draft_length=4)
        self.tokenizers = {"tokenizer": tokenizers[0], "assistant_tokenizer": own_tokenizer}
        size = -(-len(tokenizers[0]) // 128) * 128  # padded, as the logits of large vocabularies are
        # what `load` would choose for a checkpoint in bf16
        dtype, _ = choose_dtype(torch.device("cpu"), torch.bfloat16, shapes[0].parameters(size))
        self.target = TransformersModel(shapes[0].build(size, context, getattr(torch, dtype)))
        self.source = TransformersModel(shapes[1].build(len(own_tokenizer), DRAFTER_CONTEXT, torch.float32))
        source: str = inspect.getsource(argparse) + inspect.getsource(random)
        self.ids: list[int] = tokenizers[0](source)["input_ids"]
        self.unused = memory_in_use()
        # what `load` does, but without its folder of tables: to build one takes more memory than to read it
        self.vocab = read_vocab(tokenizers[0], size, ())
        self.own = read_vocab(own_tokenizer, self.source.vocab_size, ())
        speller = Speller(own_tokenizer, self.own)
        self.table = build_table(self.own, self.vocab, speller, Speller(tokenizers[0], self.vocab))
        self.context = DrafterContext(self.table, self.vocab, self.own, speller)
        self.native = native_of(self.source)
        self.step: LanguageModel = self.native or self.source
        self._copies: dict[bool, PreTrainedModel] = {}

    def answer(self, start: int, sampling: Sampling, *, knowing: bool = True, after_prompt: bool = True) -> Answer:
        """Decode after the first `start` ids of the text, which the target goes on to say.

        A `knowing` drafter says it as well, at a rate of ACCEPTANCE.  With `after_prompt` the first round is left out.
        Where it samples, the target says by its position what the script has there, with probability SAID and whatever
        was emitted before; the drafter gives ACCEPTANCE to how that is spelled from the end of the emitted text on.
        """
        watch, records = Watch(), []
        script = Script(self.context, self.ids, start, len(self.context.prompt(self.ids[:start])))
        script.advance((), self.drafting.longest)
        step = ScriptedStep(self.step, watch, self._drafter_says(sampling, script) if knowing else None)
        cache = make_cache(self.table, self.drafting)
        attached = AttachedDrafter(drafter=Drafter(step), context=self.context, cache=cache)
        engine = Engine(self.target, (), attached, self.drafting)
        draw = GeneratorSampler(torch.Generator().manual_seed(0))
        with watching(watch, self.target.model, self._target_says(sampling)):
            began = time.perf_counter()
            for record in engine.rounds(self.ids[:start], self.tokens, sampling, draw):
                done = time.perf_counter()
                script.advance(record.emitted, self.drafting.longest)
                watch.script_s += time.perf_counter() - done
                if after_prompt:
                    after_prompt, began = False, time.perf_counter()
                    watch.passes_s = watch.script_s = 0.0
                else:
                    records.append(record)
            wall = time.perf_counter() - began - watch.script_s
        return Answer(
            tokens=sum(len(record.emitted) for record in records),
            wall_s=wall,
            passes_s=watch.passes_s,
            rounds=len(records),
            accepted=sum(r.counts.symbols_accepted for r in records)
            / max(1, sum(min(r.counts.symbols, r.counts.symbols_accepted + 1) for r in records)),
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

    def _drafter_says(self, sampling: Sampling, script: Script) -> Say:
        """The spellings of what the target says: each right at a rate, or given that probability where sampled."""
        distribution = Spread(self.own.tokens, ACCEPTANCE, sampling.temperature, torch.float32)
        chance = random.Random(0)  # noqa: S311  the same in every run
        wrong = self.context.prompt(self.ids[:1])[-1]  # it occurs in the text, or it would end the draft

        def say(position: int, row: torch.Tensor) -> None:
            if (token := script.at(position)) is None:
                return
            if sampling.greedy:
                certain(row, token if chance.random() < ACCEPTANCE else wrong)
            else:
                distribution.write(position, row, token)

        return say

    def assisted(self, start: int, sampling: Sampling) -> Answer:
        """The same by the cross-tokenizer decoding of `transformers`, its drafter a copy in fp32 that knows nothing."""
        # one copy for sampling, which it changes for good, as later calls expect it; one for the rest
        copied = self._copies.setdefault(sampling.greedy, copy.deepcopy(self.source.model))
        own = copied.generation_config
        own.num_assistant_tokens, own.num_assistant_tokens_schedule = self.drafting.longest, "constant"
        own.assistant_confidence_threshold = 0.0
        options = {"assistant_model": copied, **self.tokenizers}
        self.generate(start, sampling, options)  # sets up what the next finds ready
        watch = Watch()
        with watching(watch, self.target.model, self._target_says(sampling), target=True), watching(watch, copied):
            seconds = self.generate(start, sampling, options)
        return Answer(self.tokens, seconds - watch.script_s, watch.passes_s, watch.target_passes)

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

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of that many tokens, in both models, with the room that is made for more."""
        return sum(
            2 * config.num_hidden_layers * config.hidden_size * (tokens + room) * size
            for config, size, room in (
                (self.target.model.config, self.target.dtype.itemsize, tokens // 4 + ROOM),
                (self.source.model.config, torch.float32.itemsize, 0),
            )
        )


# ---------------------------------------------------------------- memory


def memory_in_use() -> int | None:
    """Bytes that this process uses, its peak forgotten; None where the system does not tell (any but Linux)."""
    if not FORGET.exists():
        return None
    gc.collect()
    # freed memory that the process still holds would not show when it is taken again
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
    FORGET.write_text("5", encoding="ascii")
    return _status("VmRSS")


def memory_at_peak() -> int | None:
    """Most bytes in use since `memory_in_use`."""
    return _status("VmHWM") if FORGET.exists() else None


def _status(name: str) -> int | None:
    found = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None
