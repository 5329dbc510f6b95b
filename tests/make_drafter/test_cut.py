"""A smaller vocabulary and fewer layers: what stays is as it was, what goes is what is used least."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from omnidraft import zoo
from omnidraft.alignment.token_bytes import backend_of
from omnidraft.errors import ConfigError, ModelError
from omnidraft.make_drafter.cut import copy_trained, cut_model
from omnidraft.make_drafter.vocabulary import choose_tokens, count_tokens, cut_tokenizer
from omnidraft.models.loading import LoadedModel, load_model
from support.texts import QUESTIONS

pytestmark = pytest.mark.medium

TEXTS = [*QUESTIONS, "def mean(values):\n    return sum(values) / len(values)\n", "Grüße, 你好, 12345"]


@pytest.fixture(scope="module", params=["target-a", "target-b"])
def source(request: pytest.FixtureRequest) -> LoadedModel:
    """Byte-level BPE; a Llama, and a Qwen2 with biases and end tokens of a chat model."""
    return load_model(zoo.path(request.param), "float32", "cpu")


@pytest.fixture
def tokenizer(source: LoadedModel) -> PreTrainedTokenizerBase:
    return cast("PreTrainedTokenizerBase", source.tokenizer)


@pytest.fixture
def model(source: LoadedModel) -> Any:
    return source.lm.model


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = backend_of(tokenizer).encode(text, add_special_tokens=False).ids
    return ids


def test_every_text_can_still_be_written_and_comes_back(tokenizer: PreTrainedTokenizerBase) -> None:
    small = cut_tokenizer(tokenizer, choose_tokens(tokenizer, count_tokens(tokenizer, QUESTIONS), 600))
    assert len(small) == 600
    for text in [*TEXTS, "żółć 🙂 \x00"]:
        assert small.decode(encode(small, text)) == text


def test_a_cut_token_is_written_with_kept_ones_and_all_others_as_before(tokenizer: PreTrainedTokenizerBase) -> None:
    kept = choose_tokens(tokenizer, count_tokens(tokenizer, TEXTS), 2000)
    small, words = cut_tokenizer(tokenizer, kept), tokenizer.get_vocab()
    by_id = {i: word for word, i in words.items()}
    assert small.convert_ids_to_tokens(list(range(2000))) == [by_id[i] for i in kept]
    whole = [text for text in TEXTS if set(encode(tokenizer, text)) <= set(kept)]
    assert whole
    for text in whole:
        assert [kept[i] for i in encode(small, text)] == encode(tokenizer, text)


def test_used_tokens_stay_before_earlier_unused_ones(tokenizer: PreTrainedTokenizerBase) -> None:
    counts = count_tokens(tokenizer, TEXTS)
    kept = set(choose_tokens(tokenizer, counts, 1500))
    assert set(counts) <= kept  # fewer than 1,500 tokens occur
    first = cut_tokenizer(tokenizer, choose_tokens(tokenizer, Counter(), 1500))
    chosen = cut_tokenizer(tokenizer, sorted(kept))
    assert sum(len(encode(chosen, text)) for text in TEXTS) < sum(len(encode(first, text)) for text in TEXTS)


def test_the_uses_of_a_token_that_goes_count_for_its_parts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Of two long tokens the used one is cut last, so that its parts outlive those of the other."""
    sizes = range(400, 2000, 400)
    chosen = [set(choose_tokens(tokenizer, count_tokens(tokenizer, TEXTS), size)) for size in sizes]
    assert all(smaller < larger for smaller, larger in itertools.pairwise(chosen))
    lengths = [sum(len(encode(cut_tokenizer(tokenizer, sorted(kept)), text)) for text in TEXTS) for kept in chosen]
    assert all(longer >= shorter for longer, shorter in itertools.pairwise(lengths))


def test_a_size_that_cannot_be_reached_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    for size in (10, len(tokenizer) + 1):
        with pytest.raises(ModelError, match=f"a vocabulary of {size} tokens cannot be cut"):
            choose_tokens(tokenizer, {}, size)


def test_the_end_token_is_the_only_special_one(tokenizer: PreTrainedTokenizerBase) -> None:
    small = cut_tokenizer(tokenizer, choose_tokens(tokenizer, {}, 600))
    assert small.all_special_tokens == [tokenizer.eos_token]
    assert small("Hello").input_ids == encode(small, "Hello")  # nothing is put in front


def test_kept_rows_and_layers_compute_as_in_the_source(model: Any) -> None:
    kept, layers = list(range(5, 900)), [0, 3, 15]
    small = cut_model(model, layers, kept, end=0)
    ids = torch.tensor([[7, 100, 800, 33]])
    stack = model.base_model.layers
    reduced = torch.nn.ModuleList([stack[i] for i in layers])
    try:  # the source with the other layers taken out
        model.base_model.layers = reduced
        with torch.inference_mode():
            expected = model(ids + 5, use_cache=False).logits[..., 5:900]
    finally:
        model.base_model.layers = stack
    with torch.inference_mode():
        torch.testing.assert_close(small(ids, use_cache=False).logits, expected, atol=1e-4, rtol=1e-4)
    assert small.config.eos_token_id == 0
    assert small.generation_config.eos_token_id == 0


def test_the_source_stays_as_it_is(model: Any) -> None:
    before = model.base_model.layers[0].mlp.up_proj.weight.clone()
    small = cut_model(model, [0], list(range(500)), end=0)
    with torch.no_grad():
        for weight in small.parameters():
            weight.zero_()
    assert torch.equal(model.base_model.layers[0].mlp.up_proj.weight, before)
    assert model.config.num_hidden_layers == 16


@pytest.mark.parametrize("layers", [[], [16], [-1], [1, 0], [2, 2]])
def test_wrong_layers_are_refused(model: Any, layers: list[int]) -> None:
    with pytest.raises(ConfigError, match="0 to 15, ascending"):
        cut_model(model, layers, list(range(500)), end=0)


def spellings(tokenizer: PreTrainedTokenizerBase, kept: list[int]) -> dict[str, int]:
    return cut_tokenizer(tokenizer, kept).get_vocab()


@pytest.fixture
def trained(tokenizer: PreTrainedTokenizerBase, model: Any) -> tuple[Any, dict[str, int]]:
    """A drafter of 900 tokens whose training turned and moved all rows alike, and changed each layer."""
    kept = choose_tokens(tokenizer, count_tokens(tokenizer, TEXTS), 900)
    drafter: Any = cut_model(model, [0, 3], kept, end=0)
    rng = torch.Generator().manual_seed(0)
    rows = drafter.get_input_embeddings().weight
    turn = torch.eye(rows.shape[1]) + 0.1 * torch.randn(rows.shape[1], rows.shape[1], generator=rng)
    with torch.no_grad():
        rows.copy_(rows @ turn + 0.5)
        for weight in drafter.base_model.layers.parameters():
            weight.mul_(1.5)
    return drafter, spellings(tokenizer, kept)


@pytest.mark.slow
def test_a_new_drafter_begins_with_the_weights_of_a_trained_one(
    tokenizer: PreTrainedTokenizerBase, model: Any, trained: tuple[Any, dict[str, int]]
) -> None:
    drafter, its = trained
    kept = choose_tokens(tokenizer, {}, 2000)
    larger: Any = cut_model(model, [0, 3], kept, end=0)
    ids = spellings(tokenizer, kept)
    before = larger.get_input_embeddings().weight.detach().clone()
    beyond = next(word for word in ids if word not in its)  # a tokenizer may have tokens that its model has no row for
    copy_trained(larger, ids, drafter, its | {beyond: 900})
    common = sorted(ids.keys() & its.keys())
    assert 600 < len(common) < 900
    mine, other = torch.tensor([ids[word] for word in common]), torch.tensor([its[word] for word in common])
    words = torch.arange(12).reshape(1, -1) * 7
    with torch.no_grad():
        found, expected = larger(mine[words]).logits[..., mine], drafter(other[words]).logits[..., other]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    # the rows of the other tokens moved as those of the common ones did
    rest = torch.tensor(sorted(set(ids.values()) - set(mine.tolist())))
    moved = torch.cat([before, torch.ones(len(before), 1)], 1)
    learned = drafter.get_input_embeddings().weight.detach()[other]
    expected = (moved @ torch.linalg.lstsq(moved[mine], learned).solution)[rest]
    torch.testing.assert_close(larger.get_input_embeddings().weight.detach()[rest], expected, atol=1e-3, rtol=1e-3)


def test_a_drafter_of_other_layers_is_nothing_to_begin_with(
    tokenizer: PreTrainedTokenizerBase, model: Any, trained: tuple[Any, dict[str, int]]
) -> None:
    kept = choose_tokens(tokenizer, {}, 900)
    ids, (drafter, its) = spellings(tokenizer, kept), trained
    untied, narrow = copy.deepcopy(drafter), copy.deepcopy(drafter)
    untied.lm_head.weight = torch.nn.Parameter(untied.get_input_embeddings().weight.detach().clone())
    narrow.base_model.norm.weight = torch.nn.Parameter(torch.ones(7))
    wrong = [([0], drafter, its), ([0, 3, 4], drafter, its), ([0, 3], drafter, {"another": 0}), ([0, 3], narrow, its)]
    if model.config.tie_word_embeddings:
        wrong.append(([0, 3], untied, its))
    for layers, other, words in wrong:
        with pytest.raises(ConfigError, match="is of other layers or another source: give those of the drafter"):
            copy_trained(cut_model(model, layers, kept, end=0), ids, other, words)
