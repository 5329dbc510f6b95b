"""The methods that are compared: `generate` of `transformers`, plain and with drafts, and our own loop."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import PLAIN, LaneMethod, Method, TimedAnswer, lane_for
from omnidraft.bench.records import BASELINE
from omnidraft.config import Drafting, Sampling
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.models.loading import pretrained_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GREEDY_ONLY = ("uad",)
LOOKUP_TOKENS = 10  # prompt_lookup_num_tokens, as the documentation of `transformers` has it


class UnavailableError(OmniDraftError):
    """A method does not work with these models."""

    def __init__(self, method: str, reason: str) -> None:
        super().__init__(reason)
        self.method = method


class Transformers:
    """`generate` of `transformers`: alone, with prompt lookup, or with a drafter."""

    def __init__(self, name: str, model: OmniDraft, sampling: Sampling, drafter: PreTrainedModel | None = None) -> None:
        self.name = name
        self.target: Any = model.target.lm.model
        self._eos = sorted(model.lane.eos)
        self._asked: tuple[list[int], int, int] = ([], 0, 0)
        self._tokens: list[int] = []
        self._passes: list[int] = []  # tokens fed to the target in each
        # in place of what the model's generation config asks for, which our own loop is not given either
        self._options: dict[str, Any] = {"do_sample": not sampling.greedy, "repetition_penalty": 1.0, "num_beams": 1}
        if not sampling.greedy:
            self._options |= {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        if name == "lookup":
            self._options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        if drafter is not None and model.drafter is not None:
            self._options |= {
                "assistant_model": drafter,
                "tokenizer": pretrained_tokenizer(model.target),
                "assistant_tokenizer": pretrained_tokenizer(model.drafter),
            }

    def restart(self) -> None:
        """Nothing is kept between answers."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        self._asked, self._tokens = (ids, new_tokens, seed), []

    def advance(self, length: int) -> bool:
        """Decode the whole answer; raises UnavailableError if `transformers` fails on these models."""
        ids, new_tokens, seed = self._asked
        # `generate` takes no generator of its own
        with torch.random.fork_rng(), _counted(self.target) as self._passes:
            torch.manual_seed(seed)
            self._tokens = self._generate(ids, new_tokens)
        return len(self._tokens) > length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self._tokens, passes=self._passes)

    def _generate(self, ids: list[int], new_tokens: int) -> list[int]:
        inputs = torch.tensor([ids], device=self.target.device)
        try:
            output = self.target.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=new_tokens,
                eos_token_id=self._eos or None,
                pad_token_id=0,
                **self._options,
            )
        except Exception as error:
            if self.name == BASELINE:
                raise
            # any error means that transformers cannot do this with these models
            reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")
            raise UnavailableError(self.name, reason) from error
        tokens: list[int] = output[0, len(ids) :].tolist()
        return tokens


@contextmanager
def _counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """A list that receives the number of input tokens of each forward pass of the model."""
    fed: list[int] = []

    def count(_: torch.nn.Module, ids: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
        fed.append((ids[0] if ids else named["input_ids"]).shape[1])

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield fed
    finally:
        hook.remove()


def make(
    names: Sequence[str], model: OmniDraft, draft_length: int, sampling: Sampling
) -> tuple[list[Method], dict[str, str]]:
    """The methods of these names, and the reasons for those that are left out.

    To be called before the models are used: `transformers` gets a copy of the drafter, because its drafting may change
    the model.  With 8-bit weights, which `transformers` cannot run, the baseline is our loop without drafts.
    """
    methods: list[Method] = []
    left_out = {}
    ours_alone = not model.target.lm.generates
    for name in names:
        if name in GREEDY_ONLY and not sampling.greedy:
            left_out[name] = "greedy only: transformers' sampling of drafts does not follow the target's distribution"
        elif name == BASELINE and ours_alone:  # the same weights without drafts
            methods.append(LaneMethod(name, lane_for(model, PLAIN), sampling))
        elif name in (BASELINE, "lookup", "uad") and ours_alone:
            left_out[name] = "transformers cannot run these weights"
        elif name in (BASELINE, "lookup"):
            methods.append(Transformers(name, model, sampling))
        elif name == "uad":
            if model.drafter is None:
                raise ConfigError("method 'uad' needs a drafter: give one")
            methods.append(Transformers(name, model, sampling, copy.deepcopy(model.drafter.lm.model)))
        else:
            ours = {"plain": PLAIN, "goodput": Drafting()}
            drafting = ours.get(name) or Drafting(draft_length=draft_length, mode=name)
            methods.append(LaneMethod(name, lane_for(model, drafting), sampling))
    return methods, left_out
