"""The lean Llama step gives the logits of `transformers`, and is offered only where it would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

import omnidraft
from omnidraft import zoo
from omnidraft.errors import InputError, NumericsError
from omnidraft.models import lean, int8
from omnidraft.models.lean import LeanModel, lean
from omnidraft.models.int8 import Int8Linear
from omnidraft.models.language_model import TransformersModel
from omnidraft.models.loading import load_model
from support.models import random_model

needs_kernels = pytest.mark.skipif(
    not int8.available(), reason="this machine or this PyTorch has no kernels for 8 bits"
)


def tiny(key_heads: int = 4, tie: bool = True, **changes: Any) -> TransformersModel:
    torch.manual_seed(key_heads)
    config = LlamaConfig(
        **{
            "vocab_size": 60,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": key_heads,
            "max_position_embeddings": 64,
            "tie_word_embeddings": tie,
            "initializer_range": 0.3,
        }
        | changes
    )
    return TransformersModel(LlamaForCausalLM(config))


def both(source: TransformersModel) -> tuple[TransformersModel, LeanModel]:
    fast = lean(source)
    assert fast is not None
    return source, fast


def apart(wanted: torch.Tensor, given: torch.Tensor) -> float:
    """Total variation between two rows of logits, on average over the rows."""
    return float((wanted.softmax(-1) - given.softmax(-1)).abs().sum(-1).mean()) / 2


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("tie", [True, False])
def test_logits_through_chunks_and_crops(key_heads: int, tie: bool) -> None:
    slow, fast = both(tiny(key_heads, tie))
    ids = torch.randint(0, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    for part in (ids[:17], ids[17:18], ids[18:23], ids[23:24]):
        assert torch.allclose(slow.forward(part, len(part)), fast.forward(part, len(part)), atol=2e-5)
    for model in (slow, fast):
        model.crop(9)
    for part in (ids[30:31], ids[31:40]):  # what was cropped must leave no trace
        assert torch.allclose(slow.forward(part, 1), fast.forward(part, 1), atol=2e-5)
    assert slow.length == fast.length == 19


def test_a_model_with_its_own_cache_shares_nothing_else_that_changes() -> None:
    _, fast = both(tiny())
    other = fast.with_own_cache()
    ids = [5, 9, 17, 33, 2, 8]
    expected = fast.forward(ids, 6).clone()
    assert other.length == 0
    found = [other.forward([token], 1) for token in (7, *ids[::-1])]  # another text in between
    assert torch.allclose(fast.forward([1], 1), tiny().forward([*ids, 1], 1), atol=2e-5)
    other.crop(0)
    assert torch.equal(other.forward(ids, 6), expected)
    assert len(found) == 7
    learned = {"model.norm.weight": torch.full((32,), 0.5)}
    other.load_weights(learned)
    fast.crop(0)
    assert torch.equal(fast.forward(ids, 6), expected), "what one is given is not given to the other"
    other.crop(0)
    assert not torch.allclose(other.forward(ids, 6), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_does_not_follow_the_default_dtype(dtype: torch.dtype) -> None:
    slow = tiny(key_heads=2)
    torch.set_default_dtype(dtype)
    try:
        fast = both(slow)[1]
        given = [fast.forward(part, len(part)) for part in ([5, 9, 17], [33], [])]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {part.dtype for part in given} == {torch.float32}
    assert torch.allclose(slow.forward([5, 9, 17, 33], 4), torch.cat(given), atol=2e-5)


@pytest.fixture
def probed_again() -> Iterator[None]:
    """Kernels are looked for anew in this test, and after it."""
    int8.available.cache_clear()
    yield
    int8.available.cache_clear()


@pytest.mark.usefixtures("probed_again")
def test_it_does_not_follow_the_default_device() -> None:
    slow = tiny(key_heads=2)
    with torch.device("meta"):  # as torch.set_default_device does
        kernels = int8.available()
        fast = both(slow)[1]
        given = [fast.forward(part, len(part)) for part in ([5, 9, 17], [33])]
        assert fast.with_own_cache().forward([5], 0).device.type == "cpu"
    int8.available.cache_clear()
    assert int8.available() == kernels
    assert torch.allclose(slow.forward([5, 9, 17, 33], 4), torch.cat(given), atol=2e-5)


def test_a_long_prompt_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = both(tiny())
    monkeypatch.setattr(lean, "CHUNK", 7)
    read: list[int] = []

    def attention(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        read.append(query.shape[2])
        return scaled_dot_product_attention(query, *rest, **options)

    monkeypatch.setattr(lean, "scaled_dot_product_attention", attention)
    ids = torch.randint(0, 60, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    for keep in (1, 16, 30, 0):
        slow.crop(0)
        fast.crop(0)
        wanted, given = slow.forward(ids, keep), fast.forward(ids, keep)
        assert wanted.shape == given.shape == (keep, 60)
        assert torch.allclose(wanted, given, atol=1e-4)
        assert fast.length == 30
    assert read == [each for each in (7, 7, 7, 7, 2) for _layer in range(3)] * 4


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_8_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the same logits, and every matrix rounded: the small ones of these models as well."""
    monkeypatch.setattr(int8, "SMALLEST", 0)
    slow, fast = both(TransformersModel(tiny(key_heads=2).model.to(dtype)))
    assert fast.weights == "8 bits in 13 of 13 matrices, else 32"
    ids = torch.randint(0, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    for part in (ids[:17], ids[17:18], ids[18:23]):
        wanted, given = slow.forward(part, len(part)), fast.forward(part, len(part))
        assert given.dtype == torch.float32
        assert apart(wanted, given) < 0.1 < apart(wanted, given.roll(1, -1))
        assert not torch.allclose(wanted, given, atol=1e-4)  # they were rounded
    fast.crop(9)
    fast.forward(ids[9:10], 1)
    again = fast.forward(ids[10:11], 1)
    fast.crop(10)
    assert torch.equal(fast.forward(ids[10:11], 1), again)


@needs_kernels
def test_a_row_of_zeros_and_an_input_of_zeros() -> None:
    weight = torch.randn(6, 32)
    weight[2] = 0
    for x in (torch.zeros(2, 32), torch.randn(1, 32)):
        result = Int8Linear(weight)(x)
        assert torch.allclose(result, x @ weight.T, atol=0.3)
        assert bool((result[:, 2] == 0).all())
    assert bool(Int8Linear(weight)(torch.full((1, 32), torch.nan)).isnan().any())  # not hidden by rounding


@pytest.mark.usefixtures("probed_again")
@pytest.mark.parametrize("missing", [AttributeError, NotImplementedError, RuntimeError])
def test_without_the_kernels_everything_is_float32(missing: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Int8Linear, _weight: torch.Tensor) -> None:
        raise missing("no kernel")

    monkeypatch.setattr(Int8Linear, "__init__", refuse)
    monkeypatch.setattr(int8, "SMALLEST", 0)
    assert not int8.available()
    slow, fast = both(tiny())
    assert fast.weights == "32 bits"
    assert torch.allclose(slow.forward([1, 2, 3], 3), fast.forward([1, 2, 3], 3), atol=2e-5)
    assert lean(TransformersModel(tiny().model.to(torch.bfloat16))) is None


@pytest.mark.usefixtures("probed_again")
@pytest.mark.parametrize(
    ("largest", "scale", "usable"),
    [
        (2**31 - 1, 1.0, True),
        (2**31 - 1, 1.5, False),  # computes something else
        (2**15 - 1, 1.0, False),  # as older processors, which add two products in 16 bits
    ],
)
def test_kernels_that_compute_wrongly_are_not_used(
    largest: int, scale: float, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: dict[Int8Linear, torch.Tensor] = {}

    def multiply(self: Int8Linear, x: torch.Tensor) -> torch.Tensor:
        own = x.abs().amax() / 127
        rounded, rows = (x / own).round() + int8.CENTER, weights[self].abs().amax(1) / 127
        whole = (weights[self] / rows[:, None]).round()
        pairs = (rounded.double()[:, None] * whole).unflatten(-1, (-1, 2)).sum(-1).clamp(-largest - 1, largest)
        result: torch.Tensor = ((pairs.sum(-1) - int8.CENTER * whole.sum(-1)) * own * rows * scale).float()
        return result

    monkeypatch.setattr(Int8Linear, "__init__", lambda self, weight: weights.update({self: weight}))
    monkeypatch.setattr(Int8Linear, "__call__", multiply)
    assert int8.available() == usable


def test_a_wrong_token_shows() -> None:
    _, fast = both(tiny())
    right = fast.forward([1, 2, 3], 1).clone()
    fast.crop(0)
    assert not torch.allclose(fast.forward([1, 4, 3], 1), right, atol=1e-2)


def test_the_shipped_drafter() -> None:
    slow, fast = both(load_model(zoo.path(zoo.names("drafter")[0]), dtype="float32").lm)
    ids = list(range(300, 340))
    wanted, given = slow.forward(ids, 40), fast.forward(ids, 40)
    assert apart(wanted, given) < (0.05 if int8.available() else 1e-4)


def test_what_it_cannot_do_is_left_to_transformers() -> None:
    assert lean(tiny(attention_bias=True)) is None
    assert lean(tiny(mlp_bias=True)) is None
    assert lean(tiny(hidden_act="gelu")) is None
    assert lean(tiny(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})) is None
    assert lean(tiny(max_position_embeddings=2**20)) is None  # a cache too large to hold at once
    assert lean(random_model("qwen2", 60, seed=0)) is None


def test_what_does_not_fit_is_refused() -> None:
    _, fast = both(tiny())
    with pytest.raises(InputError, match="holds 64"):
        fast.forward([1] * 65, 1)
    with pytest.raises(InputError, match=r"0\.\.0"):
        fast.crop(1)


def test_a_drafter_that_returns_nan_is_noticed() -> None:
    target, drafter = (zoo.path(zoo.names(role)[0]) for role in ("target", "drafter"))
    model = omnidraft.load(target=target, drafter=drafter, dtype="float32")
    assert model.engine.attached is not None
    steps = model.engine.attached.drafter.model
    assert isinstance(steps, LeanModel)
    norm = load_model(drafter).lm.model.get_parameter("model.norm.weight")
    steps.load_weights({"model.norm.weight": torch.full_like(norm, torch.nan)})
    with pytest.raises(NumericsError, match="the drafter's logits"):
        model.generate("def mean(values):", max_new_tokens=12, temperature=1.0)


def test_an_emptied_cache_gives_its_memory_back_and_answers_as_before() -> None:
    _, fast = both(tiny(max_position_embeddings=2 * lean.RELEASED))
    beside, ids = fast.with_own_cache(), [place % 60 for place in range(lean.RELEASED + 1)]
    expected = fast.forward(ids[:9], 9).clone()
    shared = beside.forward(ids[:9], 9)
    fast.forward(ids[9:], 1)
    keys = fast._layers[0].keys.data_ptr()  # noqa: SLF001  nothing else shows it
    fast.crop(0)
    assert fast._layers[0].keys.data_ptr() != keys  # noqa: SLF001
    assert torch.equal(fast.forward(ids[:9], 9), expected)
    assert torch.equal(shared, expected)
    assert beside.length == 9
