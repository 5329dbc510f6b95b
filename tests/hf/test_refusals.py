"""Arguments of `generate` that are refused, and those that say no more than the prompt does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import omnidraft
from omnidraft import ConfigError, ModelError, PromptError
from omnidraft.config import Drafting
from omnidraft.models.transformers_model import cache_argument
from support.generating import alone, helped, ids_of, load

# ---------------------------------------------------------------- what is refused

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams is 2.*use 1"),
    "sequences": ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states is True"),
    "no cache": ({"use_cache": False}, "use_cache is False.*use True"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "asks for contrastive_search"),
    "batch": ({"ids": torch.tensor([[3, 4], [5, 6]])}, "the batch has 2 texts"),
    "padding": (
        {"ids": torch.tensor([[3, 4]]), "attention_mask": torch.tensor([[0, 1]])},
        "attention_mask is given.*leave the padding out",
    ),
    "positions": ({"ids": torch.tensor([[3, 4]]), "position_ids": torch.tensor([[4, 5]])}, "position_ids is given"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 2, 32)}, "inputs_embeds is given"),
    "no drafter": ({"omnidraft_drafter": None}, "omnidraft_drafter is missing: give a folder"),
    "a number": ({"omnidraft_drafter": 7}, "omnidraft_drafter is of type int: give a folder"),
    "a lost tokenizer": ({"omnidraft_drafter_tokenizer": object()}, "omnidraft_drafter_tokenizer is for a drafter"),
    "of experiments": ({"omnidraft_options": {"mode": "paper"}}, "unknown option 'mode': it is for experiments"),
    "typing error": ({"omnidraft_options": {"draft_lenght": 3}}, "'draft_lenght'.*did you mean 'draft_length'"),
    "bad option": ({"omnidraft_options": {"draft_length": -3}}, "draft_length is -3"),
    "such settings": ({"omnidraft_options": Drafting(reuse_answers="profile")}, "is 'profile' without a profile"),
    "answers in no profile": ({"omnidraft_options": {"reuse_answers": "profile"}}, "is 'profile'.*leave it out"),
    "no folder": ({"omnidraft_drafter": "no/such/folder"}, "no file or folder that exists"),
    "no zoo model": ({"omnidraft_drafter": "zoo:giraffe"}, "use one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(model: PreTrainedModel, drafter: Path, name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises((ConfigError, ModelError), match=message):
        helped(model, drafter, **options)


def test_a_cache_of_the_users_own_is_refused(model: PreTrainedModel, drafter: Path) -> None:
    name = cache_argument(model)
    with pytest.raises(ConfigError, match=f"{name} is given"):
        helped(model, drafter, **{name: DynamicCache()})


class Forgetful(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Returns nothing."""


def test_a_processor_that_returns_nothing_is_named(model: PreTrainedModel, drafter: Path) -> None:
    with pytest.raises(ConfigError, match="'Forgetful' returns NoneType"):
        helped(model, drafter, logits_processor=LogitsProcessorList([Forgetful()]))


@pytest.mark.medium
def test_what_says_no_more_than_the_ids_is_taken(model: PreTrainedModel, drafter: Path) -> None:
    ids = ids_of(model)
    positions = torch.arange(ids.shape[1])[None]
    assert torch.equal(helped(model, drafter, ids=ids, position_ids=positions), alone(model))


@pytest.mark.medium
def test_ids_come_back_as_generate_gives_them(model: PreTrainedModel, drafter: Path) -> None:
    narrow = ids_of(model).int()
    found, expected = helped(model, drafter, ids=narrow), alone(model, ids=narrow)
    assert found.dtype == expected.dtype == torch.long
    assert torch.equal(found, expected)


@pytest.mark.medium
def test_models_that_cannot_be_drafted_for_are_refused(model: PreTrainedModel, target: Path, drafter: Path) -> None:
    with pytest.raises(ConfigError, match="is the model itself"):
        helped(model, model)
    with pytest.raises(ConfigError, match="no drafter to share"):
        helped(model, omnidraft.load(target, None))
    with pytest.raises(ConfigError, match="drafter_backend is that of the drafter"):
        helped(model, omnidraft.load(target, drafter), omnidraft_options=Drafting(drafter_backend="transformers"))
    training: Any = load(target)
    training.train()
    with pytest.raises(ConfigError, match=r"call model.eval\(\)"):
        helped(training, drafter)
    assert training.training
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=300)
    config.decoder_start_token_id = 0
    encoder = T5ForConditionalGeneration(config).eval()
    with pytest.raises(ModelError, match="has an encoder"):
        helped(encoder, drafter, ids=torch.tensor([[3, 4]]))
    with pytest.raises(PromptError, match="token id 99999 is not in"):
        helped(model, drafter, ids=torch.tensor([[5, 99999]]))
    with pytest.raises(PromptError, match="the prompt is too long"):
        helped(model, drafter, ids=torch.full((1, 4097), 5))
    with pytest.raises(ConfigError, match="omnidraft_streamer is of type int"):
        helped(model, drafter, omnidraft_streamer=3)
    with pytest.raises(ConfigError, match="omnidraft_options is of type str"):
        helped(model, drafter, omnidraft_options="draft_length")


def test_a_refused_call_puts_nothing_into_a_streamer(model: PreTrainedModel, drafter: Path) -> None:
    streamer = SimpleNamespace(put=lambda _: pytest.fail("given something"), end=lambda: None)
    for options in ({"omnidraft_options": {"draft_length": "none"}}, {"ids": torch.full((1, 4097), 5)}):
        with pytest.raises((ConfigError, PromptError)):
            helped(model, drafter, omnidraft_streamer=streamer, **options)
