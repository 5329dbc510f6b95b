"""Hybrids: states go back to a checkpoint, and what was accepted since is read again; some verify no drafts."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel

from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.errors import ModelError
from omnidraft.models import hybrid_checks, state_checkpoints
from omnidraft.models import transformers_model as models
from omnidraft.models.loading import load_model, load_skeleton
from omnidraft.models.transformers_cache import attention, state_layers, states
from omnidraft.models.transformers_model import PROBED, TransformersModel, TransformersSequence
from support.hybrids import HYBRIDS, ONE_BY_ONE, hybrid
from support.models import afresh, close, refused
from support.small_tokenizers import byte_level, wrap

pytestmark = pytest.mark.medium

HALF = (torch.float32, torch.bfloat16)
WITHIN = 1e-3  # of logits with a deviation of 1: passes of other shapes round otherwise
OFTEN = ("qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1", "mamba2")
EVERY = [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in HYBRIDS]


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(96) for _ in range(count)]


class Decoding:
    """Reads a text as the loop does: what is accepted of a draft is known beforehand."""

    def __init__(self, model: PreTrainedModel, text: list[int], prompt: int) -> None:
        self.lm = TransformersModel(model).new_sequence()
        self.whole = afresh(model, text)
        self.text, self.at, self.again = text, prompt, 0

    def round(self, drafted: int, accepted: int) -> None:
        """A round with a draft of that length, the first so many of its tokens right; the target adds one."""
        draft = self.text[self.at : self.at + accepted]
        draft += [(token + 1) % 96 for token in self.text[self.at + accepted : self.at + drafted]]
        read = self.text[self.lm.length : self.at]
        self.again += len(read) - 1
        rows = self.lm.forward(read + draft, drafted + 1)
        right = slice(self.at - 1, self.at + accepted)
        assert close(rows[: accepted + 1], self.whole[right], WITHIN)
        self.lm.crop(self.at + accepted)
        assert self.lm.length <= self.at + accepted
        self.at += accepted + 1


@pytest.mark.parametrize("kind", EVERY)
def test_a_draft_may_be_rejected_anywhere(kind: str) -> None:
    """At its first token, in the middle, at the last, nowhere; whole blocks, and rounds without a draft between."""
    decoding = Decoding(hybrid(kind), ids_of(120), 20)
    for accepted in (0, 0, 2, 3, 4, 4, 0, 1, 4):  # of four
        decoding.round(4, accepted)
    decoding.round(0, 0)
    for drafted, right in ((4, 3), (0, 0), (4, 2), (0, 0), (0, 0), (4, 0), (0, 0)):
        decoding.round(drafted, right)
    assert decoding.again > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_states_after_many_rounds_are_those_of_a_fresh_pass(kind: str) -> None:
    model, draw = hybrid(kind), random.Random(1)
    count = 100 if kind in OFTEN else 50
    text = ids_of(3 * count + 30, seed=2)
    decoding = Decoding(model, text, 10)
    for _ in range(count):
        drafted = draw.choice((0, 1, 3, 4))
        decoding.round(drafted, min(draw.choice((0, 1, 2, 4)), drafted))
        if decoding.at > len(text) - 8:
            break
    decoding.round(0, 0)
    fresh = decoding.lm.model.new_sequence()
    fresh.forward(text[: decoding.lm.length], 1)
    for kept, new in zip(held(decoding.lm), held(fresh), strict=True):
        assert ((kept - new).abs() <= 1e-3 * new.abs().max()).all()


def held(sequence: TransformersSequence) -> list[torch.Tensor]:
    """All that a sequence goes on from."""
    keys = [part for layer in attention(sequence.cache) for part in (layer.keys, layer.values) if part is not None]
    return [*states(state_layers(sequence.cache)), *keys]


def test_after_a_rejection_nothing_is_left_of_the_draft() -> None:
    """Bit by bit: reading again from a checkpoint is reading for the first time, in passes of the same shapes."""
    model = hybrid("qwen3_5_text")
    tokens, found = ids_of(40), []
    for wrong in ([1, 2, 3], [90, 80, 70]):
        lm = TransformersModel(model).new_sequence()
        lm.forward(tokens[:30], 1)
        lm.forward([tokens[30], *wrong], 4)
        lm.crop(31)
        assert lm.length == 30
        found.append([lm.forward(tokens[30:], 1), *held(lm)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", ["qwen3_5_text", "granitemoehybrid", "mamba2"])
def test_a_wrong_restoration_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of rejections has seen a state that stays as the draft has left it."""

    def careless(self: Any, cache: Any, length: int, held: int) -> int:
        kept = states(state_layers(cache))
        spoiled = [state.clone() for state in kept]
        reached = true(self, cache, length, held)
        for state, old in zip(kept, spoiled, strict=True):
            state.copy_(old)
        return reached

    true = state_checkpoints.Checkpoints.back
    monkeypatch.setattr(state_checkpoints.Checkpoints, "back", careless)
    with pytest.raises(AssertionError):
        test_a_draft_may_be_rejected_anywhere(kind)


def test_there_is_no_pass_but_those_that_were_asked_for() -> None:
    model, passes = hybrid("qwen3_5_text"), list[int]()
    decoding = Decoding(model, ids_of(120), 20)
    model.get_input_embeddings().register_forward_hook(lambda *call: passes.append(call[-1].shape[1]))
    for accepted in (0, 2, 4, 0, 4, 1):
        decoding.round(4, accepted)
    # the first draft came with the prompt: that is read again, up to where it goes back to from now on
    assert passes == [20 + 4, 20, 1 + 4, 4 + 4, 1 + 4, 2 + 4, 1 + 4]


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize("kind", ["qwen3_5_text", "falcon_h1", "mamba2"])
@pytest.mark.parametrize("chunk", [30, 512])
def test_what_is_kept_for_a_later_text_is_what_it_would_read(
    kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that goes on, one whose last tokens are others, one that parts in the middle, and again."""
    monkeypatch.setattr(models, "CHUNK_IDS", chunk)
    model, first = hybrid(kind), ids_of(200)
    lm = TransformersModel(model).new_sequence()
    lm.forward(first, 1)
    found = []
    for common, more in ((200, 5), (195, 30), (120, 70), (120, 90), (100, 40), (3, 40)):
        text = [*first[:common], *ids_of(more, seed=common + more)]
        lm.crop(min(common, lm.length))
        found.append(lm.length)
        rows = lm.forward(text[lm.length :], 1)
        assert close(rows, afresh(model, text)[-1:], WITHIN)
        first = [*text, *first[len(text) :]]
    # near the end of a prompt is a checkpoint; where texts have parted there is one from the second time on
    assert found == [200, 200 - state_checkpoints.PROMPT_TAIL_IDS, 0, 120, 0, 0]


def test_a_crop_to_nothing_forgets_all() -> None:
    lm = TransformersModel(hybrid("qwen3_5_text")).new_sequence()
    empty = lm.nbytes
    lm.forward(ids_of(100), 1)
    with_one = lm.nbytes
    assert with_one > sum(layer.nbytes for layer in attention(lm.cache)) + sum(
        state.nbytes for state in states(state_layers(lm.cache))
    )
    lm.crop(0)
    assert (lm.length, lm.nbytes) == (0, empty)
    lm.forward(ids_of(100), 1)
    assert lm.nbytes == with_one


def test_an_interrupted_pass_empties_the_cache() -> None:
    model, text = hybrid("granitemoehybrid"), ids_of(40)
    lm = TransformersModel(model).new_sequence()
    lm.forward(text[:9], 1)

    def interrupt(*_call: object) -> None:
        raise KeyboardInterrupt

    hook = model.get_output_embeddings().register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lm.forward(text[9:12], 3)
    hook.remove()
    assert lm.length == 0
    assert close(lm.forward(text, 3), afresh(model, text)[-3:], WITHIN)


def test_two_sequences_have_states_of_their_own() -> None:
    model, text = hybrid("lfm2"), ids_of(40)
    one = TransformersModel(model).new_sequence()
    other = one.model.new_sequence()
    one.forward(text[:30], 1)
    other.forward(text[::-1], 1)
    assert close(one.forward(text[30:], 10), afresh(model, text)[30:], WITHIN)


# ---------------------------------------------------------------- the probe


def in_dtype(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    return cast(PreTrainedModel, model.to(dtype))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", HYBRIDS)
def test_these_read_several_tokens_as_one_by_one(kind: str, dtype: torch.dtype) -> None:
    for std in (0.02, 0.2):
        assert TransformersModel(in_dtype(hybrid(kind, std=std), dtype)).no_drafts is None


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_these_do_not_whatever_their_weights(kind: str, dtype: torch.dtype) -> None:
    for std in (0.02, 0.2):
        assert TransformersModel(in_dtype(hybrid(kind, std=std), dtype)).no_drafts == hybrid_checks.ONE_BY_ONE


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_what_those_read_is_right(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt in one pass, then token by token."""
    monkeypatch.setattr(models, "CHUNK_IDS", 8)
    model, text, passes = hybrid(kind), ids_of(60), list[int]()
    lm = TransformersModel(model).new_sequence()
    assert lm.model.chunk > 10**6
    with torch.no_grad():
        ids = torch.tensor([text])
        options = {models.cache_argument(model): lm.model.new_cache(), "use_cache": True}
        first = model(ids[:, :30], **options).logits[0]
        for at in range(30, 60):
            places = {"position_ids": torch.tensor([[at]])} if "mamba" not in kind else {}
            first = torch.cat([first, model(ids[:, at : at + 1], **options, **places).logits[0]])
    model.get_input_embeddings().register_forward_hook(lambda *call: passes.append(call[-1].shape[1]))
    assert close(lm.forward(text[:30], 3), first[27:30], WITHIN)
    assert close(lm.forward(text[30:], 30), first[30:], WITHIN)
    assert passes == [30] + [1] * 30
    lm.crop(50)
    assert lm.length == 0


def test_a_pass_that_forgets_the_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, name in (("qwen3_5_text", "initial_state"), ("granitemoehybrid", "initial_states")):
        model = hybrid(kind)
        scan = "torch_chunk_gated_delta_rule" if "qwen" in kind else "mamba2_chunk_scan"
        module = sys.modules[type(model).__module__]
        true = getattr(module, scan)

        def forgetful(*args: Any, true: Any = true, name: str = name, **options: Any) -> Any:
            return true(*args, **options | {name: None})

        assert TransformersModel(model).no_drafts is None
        delattr(model, PROBED)
        monkeypatch.setattr(module, scan, forgetful)
        assert TransformersModel(model).no_drafts == hybrid_checks.ONE_BY_ONE


def test_a_model_is_probed_once() -> None:
    model, passes = hybrid("qwen3_5_text"), list[int]()
    model.get_input_embeddings().register_forward_hook(lambda *call: passes.append(call[-1].shape[1]))
    TransformersModel(model)
    assert passes
    passes.clear()
    TransformersModel(model)
    assert not passes


def test_scans_are_no_longer_than_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, scan in (("qwen3_5_text", "torch_chunk_gated_delta_rule"), ("granitemoehybrid", "mamba2_chunk_scan")):
        model = hybrid(kind, **({} if "qwen" in kind else {"mamba_chunk_size": 256}))
        module, chunks = sys.modules[type(model).__module__], list[int]()
        fitted = getattr(module, scan)

        true = getattr(fitted, "__wrapped__", fitted)

        def noted(*args: Any, chunks: list[int] = chunks, true: Any = true, **options: Any) -> Any:
            chunks.append(options["chunk_size"])
            return true(*args, **options)

        monkeypatch.setattr(module, scan, hybrid_checks._fitted(noted, 64))  # noqa: SLF001
        lm = TransformersModel(model).new_sequence()
        chunks.clear()
        lm.forward(ids_of(20), 1)
        lm.forward(ids_of(5), 5)
        assert set(chunks) == {20, 5}


# ---------------------------------------------------------------- what is refused


def test_a_hybrid_does_not_draft() -> None:
    with refused(ModelError, "Qwen3_5ForCausalLM", "no crop restores"):
        SharedDrafter(TransformersModel(hybrid("qwen3_5_text")))


@pytest.mark.parametrize(("kind", "told"), [("jamba", 1), ("qwen3_5_text", 0)])
def test_loading_says_that_there_will_be_no_drafts(kind: str, told: int, tmp_path: Path) -> None:
    tokenizer = byte_level()
    hybrid(kind, vocab_size=tokenizer.get_vocab_size()).save_pretrained(tmp_path)
    wrap(tokenizer).save_pretrained(tmp_path)
    said: list[str] = []
    loaded = load_model(tmp_path, dtype="float32", say=said.append, verifies=True)
    assert loaded.lm.hybrid
    assert [hybrid_checks.ONE_BY_ONE in line for line in said] == [True] * told


def test_a_skeleton_is_not_probed(tmp_path: Path) -> None:
    hybrid("qwen3_5_text").save_pretrained(tmp_path)
    model = TransformersModel(load_skeleton(tmp_path))
    assert model.hybrid
    assert model.no_drafts is None
