"""JSON that follows a schema: a grammar of llguidance as a logits processor over the target's tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from omnidraft.errors import ConfigError, OmniDraftError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from omnidraft.api import OmniDraft

# one way to write a value: a weak model would else fill its answer with spaces
COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar:
    """The logits processor of one answer: it allows what the grammar does, in step with the tokens that stay.

    Raises ConfigError for a grammar that has no answer.
    """

    def __init__(self, tokens: LLTokenizer, grammar: str, prompt: int) -> None:
        self._matcher = LLMatcher(tokens, grammar)
        self._length = prompt
        self._matcher.compute_logit_bias()
        if self._matcher.is_stopped():  # before its first token
            raise ConfigError("the schema cannot be followed (nothing begins as it says): change it")

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._matcher.consume_tokens(input_ids[0, self._length :].tolist()):
            raise OmniDraftError(f"the grammar has no such answer: {self._matcher.get_error()}")
        self._length = input_ids.shape[1]
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        return scores.masked_fill(torch.from_numpy(allowed == 0).to(scores.device), -torch.inf)


def tokens_of(model: OmniDraft) -> LLTokenizer:
    """The target's tokens as llguidance reads them; raises ConfigError where it cannot."""
    ends = sorted(model.vocab.eos)
    if not ends:
        raise ConfigError("the target has no end-of-text token, so an answer of a schema could not end: use another")
    tokenizer: Any = model.target.tokenizer
    try:
        return from_tokenizer(tokenizer, n_vocab=model.target.lm.vocab_size, eos_token=ends)
    except Exception as error:  # whatever a tokenizer's own code raises
        kind = type(error).__name__
        raise ConfigError(f"the target's tokenizer cannot follow a schema ({kind}): use another target") from error


def grammar_of(tokens: LLTokenizer, schema: Mapping[str, Any]) -> str:
    """The grammar of a JSON schema; raises ConfigError for one that cannot be followed."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=COMPACT)
        problem = LLMatcher.validate_grammar(grammar, tokens)
    except ValueError as error:
        grammar, problem = "", str(error)
    if problem:
        raise ConfigError(f"the schema cannot be followed ({' '.join(problem.split())[:200]}): change it")
    return grammar


def call_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of a call of one of these functions: its name and its arguments."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each["name"]}, "arguments": each.get("parameters") or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
