"""Grammars inside `generate` of transformers, and the page about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, PreTrainedModel

import omnidraft
from omnidraft import hf, zoo
from omnidraft.verification.round import Round
from support.generating import alone, helped, ids_of, load, new_tokens, noisy, tokenizer_of
from support.models import save_model
from support.small_tokenizers import SPECIAL

# ---------------------------------------------------------------- constrained decoding


class Grammar(LogitsProcessor):
    """Allows what a grammar does, in step with the text; it never goes back."""

    def __init__(self, tokenizer: Any, size: int, grammar: str, prompt: int) -> None:
        self._matcher = LLMatcher(from_tokenizer(tokenizer, n_vocab=size), grammar)
        self._length = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert self._matcher.consume_tokens(input_ids[0, self._length :].tolist()), self._matcher.get_error()
        self._length = input_ids.shape[1]
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        return scores.masked_fill(torch.from_numpy(allowed == 0), -torch.inf)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,12}$"},
        "rolls": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["rye", "wheat"]},
        "sold": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "rolls", "kind", "sold"],
    "additionalProperties": False,
}
REGEX = r"(red|green): [A-Za-z ]{24,48}[0-9]{3}!"
SEEDS = 6  # texts of a grammar, the first greedy: the small drafter is right in few


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A random model with a tokenizer that was trained on text."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target-a")).backend_tokenizer
    tokenizer.add_special_tokens(list(SPECIAL))
    return load(save_model(tmp_path_factory.mktemp("speaker"), tokenizer, seed=4))


@pytest.mark.slow
@pytest.mark.parametrize("grammar", ["schema", "regex"])
@pytest.mark.parametrize("helper", ["zoo:drafter", "noisy"])
def test_a_grammar_holds(speaker: PreTrainedModel, rounds: list[Round], grammar: str, helper: str) -> None:
    tokenizer = tokenizer_of(speaker)
    flat: Any = {"whitespace_flexible": False}
    rule = (
        LLMatcher.grammar_from_json_schema(SCHEMA, overrides=flat)
        if grammar == "schema"
        else LLMatcher.grammar_from_regex(REGEX)
    )
    drafter = noisy(load(Path(str(speaker.name_or_path))), 0.01) if helper == "noisy" else helper
    first = ids_of(speaker).shape[1]
    found = set()
    for seed in range(SEEDS):
        options: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 0} if seed else {}
        torch.manual_seed(seed)
        options |= {"max_new_tokens": 200}

        def own() -> LogitsProcessorList:
            return LogitsProcessorList([Grammar(tokenizer, speaker.config.vocab_size, rule, first)])

        output = helped(speaker, drafter, logits_processor=own(), **options)
        assert seed or torch.equal(output, alone(speaker, logits_processor=own(), **options))
        text = tokenizer.decode(new_tokens(speaker, output), skip_special_tokens=True)
        assert output[0, -1] == speaker.config.eos_token_id
        assert re.fullmatch(REGEX, text) if grammar == "regex" else valid(json.loads(text))
        found.add(text)
    assert len(found) == SEEDS
    assert sum(record.counts.accepted for record in rounds) > (2 if helper == "noisy" else 0)


def valid(value: dict[str, Any]) -> bool:
    good = list(value) == list(SCHEMA["properties"]) and re.fullmatch("[a-z]{2,12}", value["name"]) is not None
    good &= type(value["rolls"]) is int and 0 <= value["rolls"] <= 999 and value["kind"] in ("rye", "wheat")
    return good and 2 <= len(value["sold"]) <= 4 and all(type(each) is bool for each in value["sold"])


# ---------------------------------------------------------------- the page about it


@pytest.mark.slow
def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "transformers.md"
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 3
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)  # noqa: S102 (our own page)
    assert capsys.readouterr().out.strip()


def test_it_is_found_without_an_import_of_its_own() -> None:
    assert omnidraft.hf is hf
    assert "hf" in dir(omnidraft)
