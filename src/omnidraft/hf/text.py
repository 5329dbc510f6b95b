"""An answer as processors and criteria of transformers see it: each prefix once, in the order of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList, TemperatureLogitsWarper

from omnidraft.config import MIN_TEMPERATURE, Drafting, Sampling
from omnidraft.errors import ConfigError
from omnidraft.models.language_model import NO_LIMIT
from omnidraft.verification.sampling import Processor, check_scores, target_processors

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList

MAX_TEMPERATURE = 100.0  # temperature of a draft, which may have any
SETTINGS = {  # by what the processors that stand for them call it
    "penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}


class TextState:
    """The ids (1, T) of one text so far, with the processors and criteria that follow it.

    `scores` and `logits` hold a row (1, V) for each new token where `generate` is to return them, else None.
    """

    def __init__(
        self,
        prompt: torch.LongTensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
    ) -> None:
        self.ids: Any = prompt
        self._first = prompt.shape[1]
        longest = min((each.max_length for each in criteria if type(each) is MaxLengthCriteria), default=NO_LIMIT)
        self.most = max(1, longest - self._first)  # new tokens; one comes before any criterion is asked
        self.eos = [int(token) for each in criteria if type(each) is EosTokenCriteria for token in each.eos_token_id]
        # the engine sees to these two
        others = [each for each in criteria if type(each) not in {MaxLengthCriteria, EosTokenCriteria}]
        self._criteria = StoppingCriteriaList(others)
        self._processors = processors
        kept = config.return_dict_in_generate
        self.scores: Any = () if kept and config.output_scores else None
        self.logits: Any = () if kept and config.output_logits else None
        self._judged = self._first
        self._end: int | None = None  # where a criterion ended the text
        self._asked, self._answer = 0, torch.empty(0)  # the length of the last prefix, and its scores

    def process(self, ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Apply all processors to the logits `row` (1, V) that follow `ids` (1, T)."""
        length = ids.shape[1]
        if length == self._asked:
            return self._answer
        seen: Any = ids.to(self.ids.device)
        self._judge(seen)
        if self._end is not None or length >= self._first + self.most:
            return row  # the text has ended: what comes of this is cut off
        logits: Any = row.to(seen.device)  # a copy already, into which processors may write
        if self.logits is not None:
            self.logits += (logits.clone(),)
        answer = self._processors(seen, logits)
        if self._processors:  # it is the last one's
            check_scores(self._processors[-1], answer, row.shape[-1])
        self._asked, self._answer = length, answer
        if self.scores is not None:
            self.scores += (self._answer,)
        return self._answer

    def feed(self, emitted: Sequence[int]) -> tuple[str, int | None]:
        """Add the tokens of a round: no text, and how many of them stay where a criterion ends the answer."""
        before = self.ids.shape[1]
        # int64, as those that generate adds, whatever the prompt's are
        new = torch.tensor([list(emitted)], dtype=torch.long, device=self.ids.device)
        self.ids = torch.cat([self.ids, new], dim=1)
        self._judge(self.ids)
        if self._end is None:
            return "", None
        self.ids = self.ids[:, : self._end]
        return "", int(self.ids.shape[1] - before)

    def end(self) -> str:
        """Nothing was held back."""
        return ""

    def _judge(self, ids: Any) -> None:
        """Ask the criteria about each new token of `ids` (1, T), until they end the text."""
        while self._criteria and self._end is None and self._judged < ids.shape[1]:
            self._judged += 1
            scores = None if self.scores is None else self.scores[: self._judged - self._first]
            if bool(self._criteria(ids[:, : self._judged], scores)):
                self._end = self._judged


def sampling_for(
    text: TextState, processors: LogitsProcessorList, drafting: Drafting, *, sampled: bool
) -> tuple[Sampling, Sequence[Processor], Drafting]:
    """The settings that these processors amount to, or the processors as a single one that is called for each token."""
    known = None if text.scores is not None or text.logits is not None else settings(processors, sampled=sampled)
    if known is not None:
        return known, (), drafting
    if sampled and drafting.drafter_temperature is None:
        # the engine does not see that of the text
        temperatures = (float(each.temperature) for each in processors if type(each) is TemperatureLogitsWarper)
        drafting = replace(
            drafting, drafter_temperature=min(max(next(temperatures, 1.0), MIN_TEMPERATURE), MAX_TEMPERATURE)
        )
    return Sampling(temperature=float(sampled)), (text.process,), drafting


def settings(processors: LogitsProcessorList, *, sampled: bool) -> Sampling | None:
    """The settings that amount to exactly these processors, in this order and with all their attributes; or None.

    Repetition penalty, temperature, top-k, top-p and min-p can be settings, where `generate` made the processors from
    its own arguments for sampling; an empty list is settings, too.
    """
    if not sampled:
        return None if processors else Sampling()
    held = [item for each in processors for item in getattr(each, "__dict__", {}).items()]
    named: dict[str, Any] = {SETTINGS[name]: value for name, value in held if name in SETTINGS}
    try:
        sampling = Sampling(**{"temperature": 1.0} | named)
    except ConfigError:
        return None
    same = target_processors(sampling)
    if [*map(type, processors)] != [*map(type, same)] or [*map(vars, processors)] != [*map(vars, same)]:
        return None
    return sampling
