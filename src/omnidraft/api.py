"""The Python interface: load a target and a drafter, generate, stream, learn, save."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from omnidraft import zoo
from omnidraft.alignment.vocab import Vocab, read_vocab
from omnidraft.attach import LearningPlan, attach
from omnidraft.config import (
    ADAPT,
    GRAPHS,
    Details,
    Drafting,
    GenerationLimits,
    Learning,
    LearningOptions,
    Sampling,
    choice,
    drafting_of,
    names,
    settings_of,
    stop_strings,
)
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding import lane as lanes_of_models
from omnidraft.decoding.passes import never
from omnidraft.decoding.request import NOTHING_ELSE, Extras
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import Generation, Stream
from omnidraft.defaults import AUTO, drafter_for, sampling_of
from omnidraft.draft_length.batch_goodput import BatchCosts
from omnidraft.draft_length.cost_model import PRIOR_COST
from omnidraft.errors import ConfigError
from omnidraft.models.gguf.config import is_gguf
from omnidraft.models.loading import LoadedModel, load_drafter, load_model
from omnidraft.models.memory import needing, thread_beside
from omnidraft.models.native.model import unsupported_reason
from omnidraft.models.prefix_cache import PrefixCache
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter
from omnidraft.text.detokenizer import Detokenizer
from omnidraft.text.prompting import Prompt, encode, has_template, usable
from omnidraft.text.stop_strings import StopStrings
from omnidraft.verification.sampling import GeneratorSampler, Processor

__all__ = ["Generation", "Lane", "OmniDraft", "Stream", "assemble", "load"]
# of a request, beside sampling
OPTIONS = (
    *("max_new_tokens", "seed", "stop", "template", "logits_processor", "logprobs", "should_stop", "extras"),
    *("memory", "lane"),
)
_log = logging.getLogger("omnidraft")


class OmniDraft:
    """A target and its drafter, for one request at a time, or as many as `lanes`; made by `load`.

    `sampling` holds the default settings of requests.  A model that learns must be closed, by `close` or at the end of
    a `with` block, to save what it learned.
    """

    def __init__(
        self,
        target: LoadedModel,
        vocab: Vocab,
        lane: lanes_of_models.Lane,
        adaptive: AdaptiveDrafter | None = None,
        sampling: Sampling | None = None,
        memory: AnswerMemory | None = None,
    ) -> None:
        self.target = target
        self.vocab = vocab
        self.lane = lane  # of requests that name no other
        self.adaptive = adaptive
        self.sampling = sampling or Sampling()
        self.memory = memory  # of earlier answers, which drafts count
        self._fallback = frozenset(
            token
            for byte in range(256)
            if isinstance(token := target.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>"), int)
            and vocab.tokens[token : token + 1] == (bytes([byte]),)
        )
        # also when nobody closes it: at the end of the interpreter, or of the object
        self._finish = None if adaptive is None else weakref.finalize(self, adaptive.finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def drafter(self) -> LoadedModel | None:
        return None if self.adaptive is None else self.adaptive.loaded

    def save(self) -> None:
        """Write what was learned to its profile; raises ConfigError without one, ProfileError where that fails."""
        if self.adaptive is None:
            raise ConfigError("there is no drafter to save anything of: load one")
        self.adaptive.save()

    def save_later(self) -> bool:
        """Save in a thread what was learned since the last time, warning where that fails; False: nothing is kept."""
        if self.adaptive is None or not self.adaptive.saves:
            return False
        self.adaptive.save_later(every=1)
        return True

    @property
    def profile(self) -> Path | None:
        """File of what was learned; None without one."""
        file = None if self.adaptive is None else self.adaptive.profile.file
        return None if file is None else file.path

    def close(self) -> None:
        """Save what was learned and end the trainer; later answers are not learned from."""
        if self._finish is not None:
            self._finish()

    @property
    def learned(self) -> dict[str, int | float]:
        """Counters of learning from this target, earlier processes included; empty without any."""
        return {} if self.adaptive is None else self.adaptive.counters

    @property
    def drafter_backend(self) -> str | None:
        """Description of the drafter's forward pass; None without a drafter."""
        if self.drafter is None or self.lane.attached is None:
            return None
        model = self.lane.attached.drafter.model
        if model.joint:
            return f"native, weights in {model.precision}"
        return f"transformers, as {unsupported_reason(self.drafter.lm.model) or 'asked for'}"

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Answer a prompt: text to continue, messages for the target's chat template, or the target's token ids.

        `options` are those of `stream`.  Requests of several threads queue.  Raises ConfigError for
        an option, PromptError for a prompt that cannot be used, NumericsError for a model that returns NaN.
        """
        with self.lane.turns.lock, self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
            return stream.result

    def stream(  # noqa: PLR0913  all that a request may ask for, by name
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        seed: int = 0,
        stop: str | Sequence[str] | None = None,
        template: Mapping[str, Any] | None = None,
        logits_processor: Sequence[Processor] | None = None,
        logprobs: int | None = None,
        extras: Extras = NOTHING_ELSE,
        should_stop: Callable[[], bool] | None = None,
        memory: AnswerMemory | None = None,
        lane: Lane | None = None,
        **sampling: Any,
    ) -> Stream:
        """Stream the answer to a prompt piece by piece; another request on the models ends it with an OmniDraftError.

        `seed` decides every draw: a sampled answer is a function of model, prompt, settings and seed, whatever is
        drafted, remembered or learned, and whatever else runs.  The answer ends before the first of the `stop` strings.
        `template` holds variables of the chat template.  Each `logits_processor`, as in transformers, gets the ids so
        far (1, T) and the target's scores (1, V), and returns scores.  With `logprobs`, 0 to 20, records of
        `Stream.rounds` hold `TokenLogprobs` with that many tokens.  `extras` are for servers.  `should_stop` is called
        between rounds and between chunks of a long prompt; if it returns True, the answer ends, "interrupted".
        `memory` holds the earlier answers of one of several users, in place of the model's.  `lane` is one of `lanes`,
        on which the request runs.
        `sampling` takes the fields of `config.Sampling`; `OmniDraft.sampling` has the defaults.
        """
        settings = settings_of(Sampling, asdict(self.sampling) | sampling, OPTIONS)
        extent = GenerationLimits(max_new_tokens=max_new_tokens, seed=seed)
        details = Details(logprobs=logprobs)
        ends, processors = stop_strings(stop), _processors(logits_processor)
        ids = self.encode(prompt, template)
        place = lane or self.lane
        memory = memory or self.memory
        seed = extent.seed
        if memory is not None and place.attached is not None and place.drafting.rejection and not settings.greedy:
            seed = memory.seed_of(seed)
        draw = GeneratorSampler(torch.Generator().manual_seed(seed))
        beside: dict[str, Any] = {"logprobs": details.logprobs, "memory": memory, "extras": extras}
        request = place.request(ids, extent.max_new_tokens, settings, draw, processors, **beside)
        if self.adaptive is not None:
            self.adaptive.resume(place.policy)
        text = StopStrings(self.text_after(ids, extras.marks), ends, extras.least)
        return Stream(place, request, text, should_stop or never)

    def lanes(self, count: int, prefix_cache: PrefixCache | None = None) -> list[Lane]:
        """Return places for `count` requests on these weights, each with its own KV caches; their rounds take turns.

        All answers are learned from, and all lanes draft with what was learned last.  With a `prefix_cache`, what one
        lane has read the others need not read.  Raises ConfigError for a count below 1.
        """
        if count < 1:
            raise ConfigError(f"count is {count}; it must be at least 1: use 1 or more")
        batch = BatchCosts(PRIOR_COST, count)
        return [Lane(self, batch, prefix_cache) for _ in range(count)]

    def encode(self, prompt: Prompt, template: Mapping[str, Any] | None = None) -> list[int]:
        """Return a prompt's token ids, its first token included; raises PromptError for one that cannot be used.

        `template` is told to the chat template beside messages.
        """
        return encode(self.target.tokenizer, prompt, template)

    def encode_message(self, message: str) -> list[int]:
        """Return a user's message as token ids: in the target's chat template if it has one, else as plain text."""
        chat = has_template(self.target.tokenizer)
        return self.encode([{"role": "user", "content": usable(message)}] if chat else message)

    def text_after(self, prompt: Iterable[int], marks: Collection[int] = ()) -> Detokenizer:
        """Return a detokenizer for the tokens that follow `prompt`; of special tokens only `marks` have text."""
        tokens: Sequence[bytes | None] = self.vocab.tokens
        if marks:
            tokens = [*tokens]
            for mark in marks:
                tokens[mark] = self.vocab.special[mark].encode()
        return Detokenizer(tokens, prompt, fallback=self._fallback, opening=partial(_text_of_one, self.target))


class Lane(lanes_of_models.Lane):
    """A place for one request at a time, beside those of a model's other lanes; made by `OmniDraft.lanes`.

    After an answer its KV caches stay, and the next request reads only what follows the beginning that it has in common
    with that one: of a conversation, the new messages.
    """

    def __init__(self, model: OmniDraft, batch: BatchCosts, prefix_cache: PrefixCache | None) -> None:
        first = model.lane
        super().__init__(
            model.target.lm,
            first.eos,
            None if model.adaptive is None else model.adaptive.adaptation.lane(),
            first.drafting,
            turns=first.turns.beside(),
            batch=batch,
            keeps=True,
            learning=model.adaptive,
            teacher_temperature=first.teacher_temperature,
            prefix_cache=prefix_cache,
        )
        self._model = model

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Stream the answer to a prompt, as `OmniDraft.stream` does; another request on this lane ends it, too."""
        return self._model.stream(prompt, lane=self, **options)


def load(
    target: str | Path,
    drafter: str | Path | OmniDraft | None = AUTO,
    *,
    dtype: str = "auto",
    device: str = "auto",
    graphs: str = "off",
    adapt: str = "off",
    profile: str | Path | None = "auto",
    warn: Callable[[str], None] = _log.warning,
    **options: Any,
) -> OmniDraft:
    """Load a target and a drafter, each a folder, a GGUF file, a hub id or `zoo:NAME`.

    The default drafter is zoo:general, for an embedded target zoo:drafter if it is installed, which `warn` is told.
    With None, drafts are counts of earlier text alone; with `draft_length=0` there are none.  If `drafter` is another
    OmniDraft, its drafter and its memory of answers are shared.  With `adapt` "background" the drafter learns from
    answers in its own process, with "inline" between answers.  `profile` is where this is kept: "auto" is the file of
    the two models, a path your own, None none.  `options` takes the fields of `config.DraftingOptions` and
    `config.LearningOptions`.  `dtype` (but for int8) and `device` are those of both models, as are `graphs`, "on" or
    "off", which CUDA devices alone have.  `warn` gets warnings, each a line.  Raises ConfigError for an option,
    ModelError for a model, ProfileError for a profile.
    """
    of_load = ("target", "drafter", "dtype", "device", "graphs", "adapt", "profile", "warn")
    learning = {name: options.pop(name) for name in names(LearningOptions) if name in options}
    drafting = drafting_of(options, (*of_load, *names(LearningOptions)))
    places: dict[str, Any] = {"dtype": dtype, "device": device, "graphs": graphs}
    return assemble(target, drafter, drafting, learning, **places, adapt=adapt, profile=profile, warn=warn)


@needing(None, "the models and their tables")
@torch.inference_mode(mode=False)  # weights made inside it could never be trained
def assemble(  # noqa: PLR0913  those of `load`
    target: str | Path,
    drafter: str | Path | OmniDraft | None,
    drafting: Drafting,
    learning: Mapping[str, Any],
    *,
    dtype: str = "auto",
    device: str = "auto",
    graphs: str = "off",
    adapt: str = "off",
    profile: str | Path | None = "auto",
    warn: Callable[[str], None] = _log.warning,
) -> OmniDraft:
    """`load` for experiments, with all settings of `config.Drafting`; `learning` holds fields of `config.Learning`."""
    Learning(**learning)
    _check_models(target, drafter, profile)
    choice("adapt", adapt, ADAPT)
    recorded = choice("graphs", graphs, GRAPHS) == "on"
    if drafter == AUTO and drafting.longest == 0:
        drafter = None
    if drafter is None and adapt != "off":
        raise ConfigError(f"adapt is {adapt!r} without a drafter: give one, or use adapt='off'")
    memory = _memory(drafter, drafting, saved=adapt != "off" and profile is not None)
    with thread_beside() as pool:  # the target's weights are read outside of Python
        how: dict[str, Any] = {"learns": adapt != "off", "graphs": recorded}
        helping = pool.submit(_loaded_drafter, target, drafter, drafting, dtype, device, warn, **how)
        loaded = load_model(zoo.resolve(target), dtype, device, warn, verifies=True, graphs=recorded)
        vocab = read_vocab(loaded.tokenizer, loaded.lm.vocab_size, loaded.lm.eos)
    sampling = sampling_of(loaded.lm.skeleton.generation_config, warn)
    if (known := helping.result()) is None:
        alone = lanes_of_models.Lane(loaded.lm, vocab.eos, None, drafting, keeps=loaded.lm.rows_independent)
        return OmniDraft(loaded, vocab, alone, sampling=sampling, memory=memory)
    helper, shared = known
    plan = LearningPlan(adapt=adapt, learning=learning, profile=profile, warn=warn)
    adaptive = attach(loaded, vocab, helper, shared, drafting, plan)
    lane = lanes_of_models.Lane(
        loaded.lm,
        vocab.eos,
        adaptive.attached,
        drafting,
        turns=shared.turns,
        keeps=loaded.lm.rows_independent,
        learning=adaptive,
        teacher_temperature=None if adapt == "off" else adaptive.learning.teacher_temperature,
    )
    adaptive.resume(lane.policy)
    if drafting.reuse_answers == "profile" and memory is not None:
        adaptive.keep_answers(memory)
    return OmniDraft(loaded, vocab, lane, adaptive, sampling, memory)


def _loaded_drafter(
    target: str | Path,
    drafter: str | Path | OmniDraft | None,
    drafting: Drafting,
    dtype: str,
    device: str,
    warn: Callable[[str], None],
    *,
    learns: bool,
    graphs: bool,
) -> tuple[LoadedModel, SharedDrafter] | None:
    """The drafter that is asked for, and its weights for any number of targets; None for none."""
    if drafter is None:
        return None
    if isinstance(drafter, OmniDraft):
        return shared_drafter(drafter, drafting)
    name = zoo.resolve(drafter_for(target, warn) if drafter == AUTO else drafter)
    native_step = drafting.drafter_backend == "auto"
    # of a folder that learns, transformers loads the model that is trained; of a file, whoever trains it
    alone = native_step and (is_gguf(name) or not learns)
    helper = load_drafter(name, "auto" if dtype == "int8" else dtype, device, warn, graphs=graphs, native_step=alone)
    return helper, SharedDrafter(helper.lm, native_step=native_step)


def _memory(drafter: str | Path | OmniDraft | None, drafting: Drafting, *, saved: bool) -> AnswerMemory | None:
    """Return the earlier answers to count: those of the OmniDraft whose drafter is shared, or none yet.

    Raises ConfigError where they are to be kept in a profile that nothing is `saved` in, or where nothing drafts.
    """
    if drafter is None:
        drafting.check_alone()
    if drafting.reuse_answers == "profile" and not saved:
        why = "reuse_answers is 'profile', which is that of a drafter that learns"
        raise ConfigError(f"{why}: use adapt='background', or leave reuse_answers out", option="reuse_answers")
    if not drafting.counts:
        return None
    if drafting.reuse_answers == "request":
        return AnswerMemory(0)
    shared = drafter.memory if isinstance(drafter, OmniDraft) else None
    return shared if shared is not None and shared.keeps else AnswerMemory()


def _check_models(target: object, drafter: object, profile: object) -> None:
    """Raise ConfigError unless the first two name models and the last a file; a model in memory is refused, too."""
    name = "give a folder, a GGUF file, a hub id or zoo:NAME"
    if not isinstance(target, str | Path):
        fix = f"{name}; for a model in memory there is omnidraft.hf.generate"
        raise ConfigError(f"target is of type {type(target).__name__}: {fix}")
    if drafter is not None and not isinstance(drafter, str | Path | OmniDraft):
        raise ConfigError(f"drafter is of type {type(drafter).__name__}: {name}, an OmniDraft, or None")
    if profile is not None and (not isinstance(profile, str | Path) or not str(profile)):
        raise ConfigError(f"profile is {profile!r}; use 'auto', a path, or None for none")


def shared_drafter(drafter: OmniDraft, drafting: Drafting) -> tuple[LoadedModel, SharedDrafter]:
    """The drafter of another OmniDraft; raises ConfigError where there is none, or it is asked to be another."""
    if drafter.adaptive is None:
        raise ConfigError("the OmniDraft given has no drafter to share: load one with it")
    if drafting.drafter_backend != "auto":
        raise ConfigError(
            "drafter_backend is that of the drafter that is shared: leave it out, or load another drafter"
        )
    return drafter.adaptive.loaded, drafter.adaptive.shared


def _processors(processors: object) -> tuple[Processor, ...]:
    """The logits processors of a list of them; raises ConfigError for anything else."""
    if processors is None:
        return ()
    if not isinstance(processors, Sequence):
        fix = "put it into a list" if callable(processors) else "give a list of processors"
        raise ConfigError(f"logits_processor is of type {type(processors).__name__}: {fix}")
    if wrong := [each for each in processors if not callable(each)]:
        raise ConfigError(f"logits_processor holds {wrong[0]!r}, which cannot be called: give a list of processors")
    return tuple(processors)


def _text_of_one(model: LoadedModel, token: int) -> str:
    """The tokenizer's text of a single token."""
    text = model.tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text if isinstance(text, str) else ""
