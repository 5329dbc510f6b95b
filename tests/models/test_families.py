"""Every family of the table: the native step gives the logits of `transformers`, and its rows do not depend on others.

The models are small and random, with weights that 8 bits a row hold, so that what is left is the rounding of inputs and
of keys and values.  Windows are of 8 tokens, and texts of 40.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from omnidraft.errors import OmniDraftError
from omnidraft.models.families import BY_CLASS, FAMILIES, OTHERS, Family, Other
from omnidraft.models.gguf.architectures import ARCHITECTURES
from omnidraft.models.language_model import Read
from omnidraft.models.loading import load_model
from omnidraft.models.native.model import NativeModel, NativeSequence, unsupported_reason
from omnidraft.models.native.rotary import rotations as rotary_of
from omnidraft.models.native.step import Int8Group, processor
from omnidraft.models.safetensors_files import Tensors
from omnidraft.models.skeleton import Skeleton, shapes_of
from omnidraft.models.transformers_model import TransformersModel, check_supported
from support.compilers import compiled_with, needs_the_8_bit_step
from support.drafts import SIZE, agrees, greedy
from support.exact_models import HalfModel, exact_model, native_step, representable
from support.gguf_models import MODELS, model_of, write_model
from support.models import IDS, build

WINDOW: dict[str, Any] = {"sliding_window": 8}
ALTERNATING: dict[str, Any] = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
TWO_KINDS = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
SCALED = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
YARN = {
    **SCALED, "rope_type": "yarn",
    "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_factor": 1.2,
    "short_factor": [1.0, 3.0], "long_factor": [1.0, 40.0], "original_max_position_embeddings": 1024,
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FACTORS = {
    "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
}  # fmt: skip
HYBRID = {
    **FACTORS, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2, "num_local_experts": 0,
    "layer_types": ["full_attention"] * 2, "shared_intermediate_size": 48,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # by class and more: model type, and what is not as in SMALL
    "LlamaForCausalLM": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "LlamaForCausalLM, tied": ("llama", {"tie_word_embeddings": True}),
    "LlamaForCausalLM, one key head": ("llama", {"num_key_value_heads": 1}),
    "LlamaForCausalLM, odd sizes": (
        "llama",
        {"hidden_size": 36, "intermediate_size": 50, "vocab_size": 97, "attention_bias": True},
    ),
    "LlamaForCausalLM, heads of another size": ("llama", {"head_dim": 16}),
    "LlamaForCausalLM, a window that means nothing": ("llama", {**WINDOW, "layer_types": ["sliding_attention"] * 2}),
    "LlamaForCausalLM, yarn": ("llama", {"rope_parameters": {**SCALED, "rope_type": "yarn"}}),
    "LlamaForCausalLM, llama3": (
        "llama",
        {"rope_parameters": {**SCALED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 2.0}},
    ),
    "LlamaForCausalLM, dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "LlamaForCausalLM, longrope": (
        "llama",
        {
            "rope_parameters": {
                **SCALED, "rope_type": "longrope", "short_factor": [1.0, 1.5, 4.0, 32.0],
                "long_factor": [1.0, 1.5, 4.0, 32.0], "attention_factor": 1.25,
            },
        },
    ),
    "MistralForCausalLM": ("mistral", WINDOW),
    "MinistralForCausalLM": ("ministral", ALTERNATING),
    "Ministral3ForCausalLM": ("ministral3", {**WINDOW, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}),
    "Qwen2ForCausalLM": ("qwen2", {**ALTERNATING, "use_sliding_window": True}),
    "Qwen3ForCausalLM": ("qwen3", {**ALTERNATING, "use_sliding_window": True}),
    "GemmaForCausalLM": ("gemma", {}),
    "Gemma2ForCausalLM": (
        "gemma2",
        {
            **ALTERNATING, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 24,
        },
    ),
    "Gemma3ForCausalLM": (
        "gemma3_text",
        {
            **ALTERNATING, "rope_parameters": TWO_KINDS, "query_pre_attn_scalar": 24, "final_logit_softcapping": 4.0,
        },
    ),
    "Phi3ForCausalLM": ("phi3", {**WINDOW, "rope_parameters": LONGROPE, "original_max_position_embeddings": 1024}),
    "SmolLM3ForCausalLM": (
        "smollm3",
        {**WINDOW, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "use_sliding_window": True},
    ),
    "GraniteForCausalLM": ("granite", FACTORS),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", {**HYBRID, "position_embedding_type": "rope"}),
    "GraniteMoeHybridForCausalLM, no rotation": ("granitemoehybrid", {**HYBRID, "position_embedding_type": None}),
    "Olmo2ForCausalLM": ("olmo2", {}),
    "Olmo3ForCausalLM": ("olmo3", {**ALTERNATING, "rope_parameters": TWO_KINDS}),
    "Glm4ForCausalLM": ("glm4", {"rope_parameters": HALF}),
    "CohereForCausalLM": ("cohere", {"logit_scale": 0.75}),
    "Cohere2ForCausalLM": ("cohere2", {**ALTERNATING, "logit_scale": 0.75}),
    "HunYuanDenseV1ForCausalLM": (
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}},
    ),
    "Exaone4ForCausalLM": ("exaone4", ALTERNATING),
}  # fmt: skip
FIRST = {name.split(",", maxsplit=1)[0]: name for name in reversed(CASES)}.values()  # one of each class
ENDLESS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
EVERY = pytest.mark.parametrize("name", CASES)
ONE_EACH = pytest.mark.parametrize("name", FIRST)
SPREAD = 0.15  # of weights: with larger ones the attention is so sharp that a difference grows from layer to layer
WITHIN = 2e-3  # of logits, of about 1 and up to 5


@EVERY
def test_rotations_are_those_of_transformers(name: str) -> None:
    model: Any = source_of(name).model
    rotary, found = model.model.rotary_emb, rotary_of(model.config)
    if rotary is None:
        assert found == {}
        return
    made = type(rotary)(config=model.config)
    kinds = list(getattr(made, "layer_types", [])) if not hasattr(made, "inv_freq") else [""]
    assert set(found) == set(kinds)
    for kind in kinds:
        prefix = f"{kind}_" if kind else ""
        assert torch.equal(found[kind].frequencies, getattr(made, f"{prefix}inv_freq"))
        assert found[kind].scaling == getattr(made, f"{prefix}attention_scaling")


@EVERY
def test_tensors_have_the_shapes_of_transformers(name: str) -> None:
    model = source_of(name).model
    if model.config.model_type == "granitemoehybrid":  # of no GGUF file, and of sizes of its own
        return
    assert shapes_of(BY_CLASS[class_of(name)], model.config) == Skeleton.of(model).shapes


@pytest.fixture(autouse=True)
def _compiled() -> None:
    needs_the_8_bit_step()


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with so many of them."""
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


def source_of(name: str, spread: float = SPREAD, **changes: Any) -> TransformersModel:
    kind, own = CASES[name]
    return exact_model(kind, spread, **{**own, **ENDLESS, **changes})


def class_of(name: str) -> str:
    return name.split(",", maxsplit=1)[0]


def native_of(name: str) -> NativeModel:
    return native_step(source_of(name))


def assert_close(given: torch.Tensor, wanted: torch.Tensor, within: float = WITHIN) -> None:
    torch.testing.assert_close(given, wanted, atol=within, rtol=within)
    assert float((given - wanted).square().mean().sqrt()) < within / 2


@pytest.mark.medium
def test_every_family_has_a_case() -> None:
    assert set(map(class_of, CASES)) == set(BY_CLASS)
    assert len(FAMILIES) == len(BY_CLASS)
    for name, (model_type, _) in CASES.items():
        assert BY_CLASS[class_of(name)].model_type == model_type
        assert type(source_of(name).model).__name__ == class_of(name)


@pytest.mark.medium
def test_files_of_every_architecture_have_the_family_that_names_it() -> None:
    """Or are of a model that the native step does not compute."""
    named = {architecture for family in FAMILIES for architecture in family.architectures}
    assert named <= set(ARCHITECTURES)
    for architecture in ARCHITECTURES:
        family = BY_CLASS.get(type(model_of(architecture)).__name__)
        assert (family is not None) == (architecture in named), architecture
        assert family is None or architecture in family.architectures


def test_factors_of_residuals_are_divided_out_of_no_norm_that_is_not_of_them() -> None:
    for family in FAMILIES:
        if family.residual != Family.residual:
            assert (family.after_attention, family.after_mlp, family.head_norms) == (None, None, None)


@EVERY
def test_logits_are_those_of_transformers(name: str) -> None:
    source = source_of(name)
    slow, fast = source.new_sequence(), native_step(source).new_sequence()
    for part in (IDS[:17], IDS[17:18], IDS[18:23], IDS[23:40]):
        assert_close(fast.forward(part, len(part)), slow.forward(part, len(part)))
    for text in (slow, fast):
        text.crop(9)
    for part in (IDS[30:31], IDS[31:40]):  # what was cropped must leave no trace
        assert_close(fast.forward(part, 1), slow.forward(part, 1))
    assert slow.length == fast.length == 19


@EVERY
def test_the_input_of_the_head_is_that_of_transformers(name: str) -> None:
    source = source_of(name)
    texts = [model.new_sequence(hidden=True) for model in (source, native_step(source))]
    hidden = []
    for text in texts:
        text.forward(IDS[:20], 1)
        assert text.hidden is not None
        hidden.append(text.hidden)
    assert_close(hidden[1], hidden[0])


@EVERY
@pytest.mark.usefixtures("threads")
def test_a_row_does_not_depend_on_those_beside_it(name: str) -> None:
    text, ids = native_of(name).new_sequence(), (IDS * 3)[:85]
    together = text.forward(ids, len(ids))
    for sizes in ([1] * 85, [2, 3, 4, 5, 6, 7, 8, 9, 41], [64, 21]):
        text.crop(0)
        parts = [ids[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
        assert torch.equal(torch.cat([text.forward(part, len(part)) for part in parts]), together), sizes


@EVERY
@pytest.mark.usefixtures("threads")
def test_texts_that_are_read_together_get_what_each_gets_alone(name: str) -> None:
    """Of other lengths, with room for more in one cache than in another, and over several passes."""
    fast = native_of(name)
    starts = [(IDS * 9)[at : at + length] for at, length in enumerate((3, 300, 16, 1))]
    rows, others = ([fast.new_sequence(hidden=True) for _ in starts] for _ in range(2))
    for text, ids in zip([*rows, *others], [*starts, *starts], strict=True):
        text.forward(ids, 1)
    for turn in range(3):
        texts = [(IDS * 4)[turn + at : turn + at + 1 + (at + turn) % 3 * (1 + 69 * (at == 3))] for at in range(4)]
        keeps = [1 if turn == 0 else min(len(ids), turn + at) for at, ids in enumerate(texts)]
        expected = [one.forward(ids, keep) for one, ids, keep in zip(others, texts, keeps, strict=True)]
        found = fast.read([Read(*each) for each in zip(rows, texts, keeps, strict=True)])
        assert all(map(torch.equal, found, expected))
        assert [len(logits) for logits in found] == keeps
        for one, other in zip(rows, others, strict=True):
            assert one.length == other.length
            assert one.hidden is not None
            assert other.hidden is not None
            assert torch.equal(one.hidden, other.hidden)
            for text in (one, other):
                text.crop(text.length - turn % 2)


OTHER_PROCESSORS = [("-DSPAN=4",), ("-DSPAN=8",), ("-DPLAIN",), ("-DPLAIN", "-DSPAN=4")]
OTHER_PROCESSORS += [("-DSPAN=16",)] * ("avx512f" in processor().split())  # has no instructions elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("flags", OTHER_PROCESSORS, ids="".join)
def test_other_processors_compute_the_same_bits(flags: tuple[str, ...]) -> None:
    """Of every family, and of a matrix of many columns with a bias."""
    models = {name: native_of(name) for name in CASES}
    given = {name: model.new_sequence().forward(IDS, len(IDS)) for name, model in models.items()}
    torch.manual_seed(0)
    matrix, x = Int8Group("it", torch.randn(37, 1030), torch.randn(37)), torch.randn(13, 1030)
    products = matrix(x)
    with compiled_with(*flags):
        for name, model in models.items():
            assert torch.equal(model.new_sequence().forward(IDS, len(IDS)), given[name]), name
        assert torch.equal(matrix(x), products)


def switches(name: str) -> list[str]:
    family = BY_CLASS[class_of(name)]
    known = {"name", "sizes", "model_type", "model_class", "architectures", "needs"}
    usual = {each.name: each.default for each in fields(Family) if each.name not in known}
    # an activation has another name, and the same function; a part that may be rotated is one that is
    told = [each for each, value in usual.items() if getattr(family, each) != value]
    return [each for each in told if each not in ("activation", "partial")]


@pytest.mark.parametrize(("name", "switch"), [(name, switch) for name in CASES for switch in switches(name)])
def test_each_switch_shows(name: str, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Llama, a family's model is another one, or lacks weights."""
    source = source_of(name)
    wanted = source.new_sequence().forward(IDS, len(IDS))
    usual = next(each.default for each in fields(Family) if each.name == switch)
    changed = cast(Any, replace)(BY_CLASS[class_of(name)], **{switch: usual})
    monkeypatch.setitem(cast(Any, BY_CLASS), class_of(name), changed)
    try:
        other = native_step(source).new_sequence().forward(IDS, len(IDS))
    except (AttributeError, OmniDraftError):
        return
    assert float((other - wanted).abs().max()) > 10 * WITHIN


@pytest.mark.medium
@ONE_EACH
def test_greedy_text_is_the_same_with_drafts_and_without(name: str) -> None:
    """Of a prompt longer than any window; drafts are right two times out of three, or never."""
    source = source_of(name, 0.2, vocab_size=SIZE, tie_word_embeddings=False)
    with torch.no_grad():
        for place, parameter in source.model.named_parameters():
            parameter.mul_(0.1 if place.endswith(".bias") else 1)  # they would say the same everywhere
    fast = native_step(source)
    plain = greedy(fast)
    assert len(set(plain)) > 3
    assert plain == greedy(source)
    agrees(fast, plain)


@ONE_EACH
def test_drafts_that_are_refused_at_any_place_leave_no_trace(name: str) -> None:
    """Rounds of up to 6 tokens of which the first, some or all are refused, and of one; to beyond a block."""
    fast, chance = native_of(name), random.Random(0)
    text, kept = fast.new_sequence(), list[int]()
    while len(kept) < 300:
        count = chance.choice((1, 1, 2, 6))
        accepted = chance.choice((1, count, chance.randrange(count + 1)))
        ids = [chance.randrange(len(IDS)) for _ in range(count)]
        text.forward(ids, count)
        text.crop(len(kept) + accepted)
        kept += ids[:accepted]
    fresh = fast.new_sequence()
    fresh.forward(kept, 1)
    assert torch.equal(text.forward([5, 6], 2), fresh.forward([5, 6], 2))


@pytest.mark.medium
@EVERY
@pytest.mark.parametrize("size", ["10KB", "1GB"])
def test_weights_are_read_from_safetensors(name: str, size: str, tmp_path: Path) -> None:
    source = source_of(name)
    source.model.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (size == "10KB")
    with torch.device("meta"):
        skeleton = type(source.model)(source.model.config)
    with Tensors(str(tmp_path), local=True) as weights:
        model = NativeModel(skeleton, weights)
        again = model.with_weights(model.packed_weights())  # as a drafter's come from another process
    assert (model.device.type, model.precision) == ("cpu", "int8")
    given = model.new_sequence().forward(IDS, 40)
    assert torch.equal(given, native_of(name).new_sequence().forward(IDS, 40))
    assert torch.equal(again.new_sequence().forward(IDS, 40), given)
    trained = model.with_weights(dict(source.model.state_dict()))
    assert torch.equal(trained.new_sequence().forward(IDS, 40), given)


# ---------------------------------------------------------------- files


NATIVE_FILES = [each for each in MODELS if any(each in family.architectures for family in FAMILIES)]


def file_of(path: Path, architecture: str) -> tuple[NativeSequence, TransformersModel]:
    """A text of a file's model in the native step, and the model that the file was made of."""
    _, model = write_model(path, architecture, model=representable(model_of(architecture), SPREAD))
    loaded = load_model(path, "int8", verifies=True).lm
    assert isinstance(loaded, NativeModel)
    return loaded.new_sequence(), HalfModel(model)


@pytest.mark.medium
@pytest.mark.parametrize("architecture", NATIVE_FILES)
def test_a_file_has_the_logits_of_the_model_that_it_was_made_of(architecture: str, tmp_path: Path) -> None:
    fast, source = file_of(tmp_path / "m.gguf", architecture)
    slow = source.new_sequence()
    for part in (IDS[:30], IDS[30:31], IDS[31:40]):
        assert_close(fast.forward(part, len(part)), slow.forward(part, len(part)))


# ---------------------------------------------------------------- what no switch covers


def quantized(model: Any) -> Any:
    model.config.quantization_config = {"quant_method": "fp8"}
    return model


@pytest.mark.parametrize(
    ("make", "code", "field", "reason"),
    [
        (lambda: build("mixtral"), "family", "model_type", "MixtralForCausalLM has no native step, as its MLP"),
        (lambda: build("llama", hidden_act="relu"), "activation", "hidden_act", "its activation is relu"),
        (lambda: build("llama", hidden_act="gelu"), "activation", "hidden_act", "its activation is gelu"),
        (lambda: build("gemma3_text", hidden_activation="gelu"), "activation", "hidden_activation", "gelu"),
        (lambda: build("llama", num_key_value_heads=3), "sizes", "num_key_value_heads", "4 heads cannot share"),
        (
            lambda: build("gemma3_text", use_bidirectional_attention=True, is_causal=True),
            "switch",
            "use_bidirectional_attention",
            "use_bidirectional_attention is True",
        ),
        (lambda: build("granite", residual_multiplier=0.0), "factor", "residual_multiplier", "is 0.0 in its config"),
        (lambda: build("granite", logits_scaling=0.0), "factor", "logits_scaling", "is 0.0 in its config"),
        (lambda: quantized(build("qwen3")), "quantized", "quantization_config", "its weights are quantized"),
        (
            lambda: build("qwen3", rope_parameters={**HALF, "rope_type": "linear", "factor": 2.0}),
            "rotation",
            "partial_rotary_factor",
            "it rotates a part of each head",
        ),
        (lambda: build("cohere", use_qk_norm=True), "switch", "use_qk_norm", "use_qk_norm is True"),
    ],
)
def test_what_no_switch_covers_is_named(make: Callable[[], Any], code: str, field: str, reason: str) -> None:
    found = unsupported_reason(make())
    assert found is not None
    assert (found.code, found.field) == (code, field)
    assert reason in str(found)


@pytest.mark.medium
@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
def test_other_models_are_taken_by_transformers(other: Other) -> None:
    model_type = other.model_types[0]
    changes: Any = {"layer_types": ["conv", "full_attention"] * 16} if model_type == "lfm2" else {}
    with torch.device("meta"):
        model = cast(Any, AutoModelForCausalLM).from_config(CONFIG_MAPPING[model_type](**changes))
    check_supported(model)
    found = unsupported_reason(model)
    assert found is not None
    assert (found.code, found.field) == ("family", "model_type")
    assert found.reason.endswith(f"has no native step, as {other.reason}")


def test_a_rotation_that_is_not_known_is_named_with_its_kind_of_layer() -> None:
    one = build("llama")
    one.config.rope_parameters["rope_type"] = "spiral"
    assert "type spiral" in str(unsupported_reason(one))
    model = build("gemma3_text", **ALTERNATING)
    model.config.rope_parameters["sliding_attention"]["rope_type"] = "proportional"
    found = unsupported_reason(model)
    assert found is not None
    assert found.field == "rope_parameters.sliding_attention.rope_type"
    assert "proportional" in found.reason
