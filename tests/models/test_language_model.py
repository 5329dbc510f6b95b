"""Language models: a cropped cache equals a fresh one, whatever the attention; the others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel

from omnidraft.errors import InputError, ModelError, NumericsError, PromptError
from omnidraft.models import transformers_cache
from omnidraft.models import transformers_model as models
from omnidraft.models.language_model import NO_LIMIT
from omnidraft.models.loading import load_model
from omnidraft.models.transformers_model import TransformersModel, cache_argument
from support.models import IDS, KINDS, LONGROPE, MORE, ROWS, afresh, build, close, refused


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS | MORE)
def test_crop_equals_recompute(kind: str) -> None:
    model = build(kind)
    lm = TransformersModel(model).new_sequence()
    whole = afresh(model, IDS)
    assert close(lm.forward(IDS, len(IDS)), whole)
    for length in (39, 33, 26, 8, 1):  # back over a window, within one, to the start of one
        lm.crop(length)
        lm.forward([5, 90, 17, 4][: len(IDS) - length], 1)  # what a rejected draft leaves behind
        lm.crop(length)
        assert lm.length == length
        assert close(lm.forward(IDS[length:], len(IDS) - length), whole[length:])
    lm.crop(20)
    assert close(torch.cat([lm.forward([token], 1) for token in IDS[20:]]), whole[20:])


def test_a_model_with_its_own_cache_shares_the_weights_alone() -> None:
    lm = TransformersModel(build()).new_sequence()
    whole = lm.forward(IDS, 1).clone()
    other = lm.model.new_sequence()
    assert (other.model, other.length, other.nbytes) == (lm.model, 0, 0)
    other.forward(IDS[::-1], 1)
    lm.crop(20)
    assert close(lm.forward(IDS[20:], 1), whole)
    assert other.length == len(IDS)
    kept = 2 * 2 * 2 * 8 * len(IDS) * 4  # keys and values of layers and key heads, of 8 numbers in 4 bytes a token
    assert kept <= other.nbytes
    other.crop(0)
    assert (other.nbytes, lm.length) == (0, len(IDS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_crop_check_notices_one_wrong_token(kind: str) -> None:
    model = build(kind)
    lm = TransformersModel(model).new_sequence()
    lm.forward([*IDS[:30], (IDS[30] + 1) % ROWS], 0)
    assert not close(lm.forward(IDS[31:34], 3), afresh(model, IDS[:34])[31:])


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["llama", "mistral", "deepseek_v2"])
def test_keys_are_written_where_there_is_room(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits over a cache that copies, and nothing is copied once the buffers have grown."""
    monkeypatch.setattr(transformers_cache, "ROOM", 3)
    model = build(kind)
    growing, copying, name = transformers_cache.new_cache(), DynamicCache(), cache_argument(model)

    def read(cache: DynamicCache, ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return cast(torch.Tensor, model(torch.tensor([ids]), use_cache=True, **{name: cache}).logits)

    for start in range(0, len(IDS), 2):
        assert close(read(growing, IDS[start : start + 2]), read(copying, IDS[start : start + 2]))
        if start == 20:
            for each in (growing, copying):
                read(each, [3, 1, 4])
                each.crop(-3)
    keys = [cast(Any, layer).keys.untyped_storage().data_ptr() for layer in growing.layers]
    growing.crop(-2)
    read(growing, IDS[-2:])
    assert keys == [cast(Any, layer).keys.untyped_storage().data_ptr() for layer in growing.layers]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_prefill_in_chunks_equals_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kind)
    lm = TransformersModel(model).new_sequence()
    whole = afresh(model, IDS)
    monkeypatch.setattr(models, "CHUNK_IDS", 7)
    passes: list[int] = []
    rows: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda *call: passes.append(call[-1].shape[1]))
    model.get_output_embeddings().register_forward_hook(lambda *call: rows.append(call[-1].shape[1]))
    for keep in (0, 1, 5, 6, 20, 40):  # 40 = 5 · 7 + 5: the last chunk, its border, several, all
        lm.crop(0)
        assert close(lm.forward(IDS, keep), whole[len(IDS) - keep :])
    assert passes == [7, 7, 7, 7, 7, 5] * 6
    assert rows[6:12] == [1] * 6  # for keep = 1: the widest layer runs over no more than it must


INSTALLED = cache_argument(build())  # the name that Llama of the installed transformers has


class Older(LlamaForCausalLM):
    """It always returns all logits."""

    def forward(self, input_ids: torch.Tensor, past_key_values: DynamicCache, use_cache: bool) -> Any:
        return super().forward(input_ids, use_cache=use_cache, **{INSTALLED: past_key_values})


class Newer(LlamaForCausalLM):
    def forward(self, input_ids: torch.Tensor, cache: DynamicCache, use_cache: bool) -> Any:
        return super().forward(input_ids, use_cache=use_cache, **{INSTALLED: cache})


class Neither(LlamaForCausalLM):
    def forward(self, input_ids: torch.Tensor, memory: DynamicCache, use_cache: bool) -> Any:
        return super().forward(input_ids, use_cache=use_cache, **{INSTALLED: memory})


def of_kind(kind: type[LlamaForCausalLM], model: PreTrainedModel) -> LlamaForCausalLM:
    made = kind(cast(Any, model.config))
    made.load_state_dict(model.state_dict())
    return made


@pytest.mark.parametrize("kind", [LlamaForCausalLM, Older, Newer])
def test_a_cache_is_given_by_the_name_that_the_model_has_for_it(kind: type[LlamaForCausalLM]) -> None:
    model = build()
    lm = TransformersModel(of_kind(kind, model)).new_sequence()
    lm.forward(IDS[:12], 0)
    assert close(lm.forward(IDS[12:], 3), afresh(model, IDS)[-3:])


def test_a_model_that_takes_no_cache_by_a_known_name_is_refused() -> None:
    with refused(ModelError, "Neither", "a state other than a KV cache"):
        TransformersModel(of_kind(Neither, build()))


@pytest.mark.parametrize("selects", [True, False])
def test_keep(selects: bool) -> None:
    model = build()
    whole = afresh(model, IDS)
    if not selects:
        model = of_kind(Older, model)
    lm = TransformersModel(model).new_sequence()
    kept = lm.forward(IDS[:12], 3)
    assert kept.dtype == torch.float32
    assert not kept.requires_grad
    assert close(kept, whole[9:12])
    assert lm.forward(IDS[12:15], 0).shape == (0, ROWS)
    assert lm.forward([], 0).shape == (0, ROWS)
    assert close(lm.forward(IDS[15:17], 2), whole[15:17])
    for keep in (-1, 3):
        with refused(InputError, str(keep), "0..2"):
            lm.forward([1, 2], keep)
    assert lm.length == 17


@pytest.mark.parametrize(("row", "fine"), [([torch.nan, 0], False), ([torch.inf, 0], False), ([-torch.inf, 0], True)])
def test_logits_that_are_no_numbers(row: list[float], fine: bool) -> None:
    model = build()
    lm = TransformersModel(model).new_sequence()
    expected = lm.forward(IDS[:5], 2).clone()
    changed = torch.tensor(row[:1]).expand(2)

    def spoil(_module: object, _inputs: object, logits: torch.Tensor) -> torch.Tensor:
        logits[..., :2] = changed
        return logits

    hook = model.get_output_embeddings().register_forward_hook(spoil)
    lm.crop(0)
    if fine:
        assert lm.forward(IDS[:5], 2)[:, :2].eq(-torch.inf).all()
        hook.remove()
        hook = model.get_output_embeddings().register_forward_hook(lambda *call: call[-1].fill_(-torch.inf))
        lm.crop(0)
    with refused(NumericsError, "LlamaForCausalLM", "float32"):
        lm.forward(IDS[:5], 2)
    hook.remove()
    assert lm.length == 0
    assert close(lm.forward(IDS[:5], 2), expected)


def test_an_interrupted_pass_empties_the_cache() -> None:
    model = build()
    lm = TransformersModel(model).new_sequence()
    lm.forward(IDS[:9], 1)

    def interrupt(*_call: object) -> None:
        raise KeyboardInterrupt

    # the first layer has cached the new tokens by then, the second has not
    hook = cast(Any, model).model.layers[0].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lm.forward(IDS[9:12], 1)
    hook.remove()
    assert lm.length == 0
    assert close(lm.forward(IDS, 3), afresh(model, IDS)[-3:])


def test_ids_and_lengths_out_of_range() -> None:
    lm = TransformersModel(build()).new_sequence()
    lm.forward(IDS, 1)
    for ids, value in (([3, ROWS], str(ROWS)), ([-1], "-1")):
        with refused(PromptError, f"token id {value} ", f"0..{ROWS - 1}"):
            lm.forward(ids, 1)
    with refused(PromptError, "40 + 25", "64"):
        lm.forward(IDS[:25], 1)
    for length in (-1, 41):
        with refused(InputError, str(length), "0..40"):
            lm.crop(length)
    assert lm.length == 40
    lm.forward(IDS[:24], 1)  # the context is full now, not beyond
    assert lm.length == lm.model.context


KEPT = {"num_local_experts": 2, "layer_types": ["linear_attention", "full_attention"]}
OWN_CACHE = "a cache of its own kind, "
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "minimax": (KEPT, ("MiniMaxForCausalLM", OWN_CACHE + "MiniMaxCache, which cannot be copied")),
    "xlstm": ({}, ("xLSTMForCausalLM", OWN_CACHE + "xLSTMCache, which cannot be copied")),
    "recurrent_gemma": (
        {"lru_width": 32, "block_types": ["recurrent", "attention"], "num_key_value_heads": 1, "pad_token_id": 0},
        ("RecurrentGemmaForCausalLM", "in the model itself, and not in a cache"),
    ),
    "rwkv": ({"attention_hidden_size": 32}, ("RwkvForCausalLM", "a state other than a KV cache")),
    "openai-gpt": ({}, ("OpenAIGPTLMHeadModel", "a state other than a KV cache")),
    "xlm": ({}, ("XLMWithLMHeadModel", "a state other than a KV cache")),  # its `cache` is a dict
    "bert": ({}, ("BertLMHeadModel", "attention to later tokens")),
    "rembert": ({}, ("RemBertForCausalLM", "attention to later tokens")),
    "qwen2 both ways": ({"is_causal": False}, ("Qwen2ForCausalLM", "attention to later tokens")),
    "gemma3_text both ways": ({"use_bidirectional_attention": True}, ("Gemma3ForCausalLM", "to later tokens")),
    "big_bird": ({}, ("BigBirdForCausalLM", "attention to later tokens")),
}


def refused_both_ways(model: PreTrainedModel, folder: Path, *parts: str) -> None:
    with refused(ModelError, *parts, "full, sliding or chunked attention"):
        TransformersModel(model)
    model.config.save_pretrained(folder)  # a folder is refused before its weights are looked for
    with refused(ModelError, folder.name, parts[-1]):
        load_model(folder)


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_rolled_back_are_refused(kind: str, tmp_path: Path) -> None:
    changes, parts = REFUSED[kind]
    refused_both_ways(build(kind, **changes), tmp_path, *parts)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=ROWS, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    refused_both_ways(
        transformers.T5ForConditionalGeneration(config), tmp_path, "T5ForConditionalGeneration", "an encoder"
    )


def test_a_model_that_calls_itself_stateful_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "_is_stateful", True)
    with refused(ModelError, "cannot be rolled back"):
        TransformersModel(build())


def test_a_model_that_ignores_its_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = TransformersModel(build()).new_sequence()
    monkeypatch.setattr(lm.model, "model", lambda ids, **_options: build()(ids, use_cache=False))
    with refused(ModelError, "does not use the KV cache"):
        lm.forward([1, 2], 1)


@pytest.mark.medium
def test_what_a_model_says_of_itself() -> None:
    assert TransformersModel(build(eos_token_id=[7, 9])).eos == (7, 9)
    model = build(eos_token_id=7)
    cast(Any, model).generation_config.eos_token_id = 3
    assert TransformersModel(model).eos == (3,)
    cast(Any, model).generation_config.eos_token_id = None
    assert TransformersModel(model).eos == (7,)
    assert TransformersModel(build(eos_token_id=None)).eos == ()
    assert TransformersModel(build("gpt2", n_positions=48)).context == 48
    assert TransformersModel(build("phi3", **LONGROPE)).context == 32
    alike = LONGROPE | {"rope_parameters": LONGROPE["rope_parameters"] | {"long_factor": [1.0] * 4}}
    assert TransformersModel(build("phi3", **alike)).context == 64
    assert TransformersModel(build("bloom", n_layer=1, n_head=2, max_position_embeddings=None)).context == NO_LIMIT
    model.config.vocab_size = ROWS - 8  # as some configs do that were not told of padding
    assert TransformersModel(model).vocab_size == ROWS
    model.train()
    assert not TransformersModel(model).model.training


def test_past_its_first_window_longrope_depends_on_the_passes() -> None:
    """Why its context is cut there."""
    lm = TransformersModel(build("phi3", **LONGROPE)).new_sequence()
    lm.model.context = 64
    whole = lm.forward(IDS, 1).clone()
    lm.crop(0)
    lm.forward(IDS[:20], 1)
    assert not close(lm.forward(IDS[20:], 1), whole)
