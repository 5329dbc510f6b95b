"""Every architecture as a target and as a drafter: greedy text is that of `generate`, q is that of a fresh pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.passes import Passes
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import decode
from omnidraft.models.native.model import unsupported_reason
from omnidraft.models.transformers_model import TransformersModel
from support.drafts import COUNT, OWN, PROMPT, TARGET, agrees, rounds_of
from support.lanes import generate, lane, sampler, tokens
from support.models import KINDS, MORE, Scripted, afresh, build, close
from support.texts import TEXTS

pytestmark = pytest.mark.medium

# with tied heads these repeat what they read
ECHOES = ("bloom", "falcon alibi", "gemma2", "gemma3_text", "gemma4_text", "xglm")
OFTEN = (*KINDS, "deepseek_v3", "falcon alibi", "llama tied", "phi", "qwen3")
EVERY = [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in KINDS | MORE]


def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    """With a wider head, whose greedy text does not settle into few tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def said(model: TransformersModel) -> list[int]:
    return generate(model, PROMPT, COUNT)


@pytest.mark.parametrize("kind", EVERY)
def test_greedy_text_is_that_of_generate_beyond_any_window(kind: str) -> None:
    changes = {"tie_word_embeddings": False} if kind in ECHOES else {}
    target = TransformersModel(sharpened(build(kind, vocab_size=TARGET.vocab.size, eos_token_id=None, **changes)))
    expected = said(target)
    assert len(set(expected)) > 3
    agrees(target, expected)


@pytest.mark.parametrize("kind", OFTEN)
def test_drafts_are_drawn_from_what_a_fresh_pass_says(kind: str) -> None:
    """Through rejections, and through changes of the text where it is beyond ASCII."""
    model = sharpened(build(kind, vocab_size=OWN.vocab.size))
    ids = TARGET.read(TEXTS["English"][:20] + TEXTS["emoji"][:8])
    checked = 0

    class Checked(Drafter):
        def draft(self, *arguments: Any) -> Passes[tuple[list[int], list[Probs]]]:
            nonlocal checked
            drafted, vectors = yield from super().draft(*arguments)
            whole = torch.softmax(afresh(model, [*self.text, *drafted]), -1)
            for position, vector in enumerate(vectors, start=len(self.text) - 1):
                assert close(torch.from_numpy(vector).float(), whole[position], 1e-4)
                checked += 1
            return drafted, vectors

    alone: dict[str, Any] = {
        "draft_length": 4,
        "reuse_answers": "nothing",
        "verification": "block",
    }  # without counts, which say more than the pass
    lane_ = lane(Scripted(TARGET.vocab.size, ids), TARGET, TransformersModel(model), OWN, **alone)
    assert lane_.attached is not None
    object.__setattr__(lane_.attached, "drafter", Checked(lane_.attached.drafter.model))
    records = list(decode(lane_, ids[:4], min(len(ids) - 4, 40), Sampling(temperature=1.0), sampler()))
    assert tokens(records) == ids[4 : 4 + len(tokens(records))]
    assert checked > 20


# ---------------------------------------------------------------- weights of 8 bits


class Rounded(torch.nn.Module):
    """A linear layer with weights of 8 bits, as libraries put them into a loaded model."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.scale = torch.nn.Buffer(layer.weight.abs().amax(1, keepdim=True) / 127)
        self.weight = torch.nn.Parameter((layer.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight.float() * self.scale)


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                setattr(module, name, Rounded(child))
    return model


@pytest.mark.parametrize("kind", ["llama", "phi"])
def test_targets_whose_weights_are_rounded(kind: str) -> None:
    target = TransformersModel(rounded(sharpened(build(kind, vocab_size=TARGET.vocab.size, eos_token_id=None))))
    agrees(target, said(target))


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_drafters_whose_weights_are_rounded(kind: str) -> None:
    """A lean step reads the weights itself, so there is none for these."""
    target = TransformersModel(sharpened(build("llama", vocab_size=TARGET.vocab.size, eos_token_id=None)))
    serving = SharedDrafter(TransformersModel(rounded(sharpened(build(kind, vocab_size=OWN.vocab.size)))))
    assert isinstance(serving.model, TransformersModel)
    assert kind != "llama" or str(unsupported_reason(serving.source.model)) == "its weights are quantized"
    assert tokens(rounds_of(target, serving.model)) == said(target)
