"""Target and drafter on devices of their own: nothing of one meets the other, and no device computes in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.draft_length.acceptance_head import Head, HeadNetwork, spread
from omnidraft.models.language_model import LanguageModel, SingleSequence
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Processing, TargetDistribution, largest, softmax
from support.lanes import SMALL, SMALL_PROMPTS, lane, sampler, tokens
from support.models import random_model

TARGET, OWN = SMALL
PLACES = {"target": torch.device("mps"), "drafter": torch.device("xpu")}


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a device that is not here."""

    place: torch.device


def put(tensor: torch.Tensor, place: torch.device) -> Elsewhere:
    with DisableTorchFunction():
        moved = tensor.as_subclass(Elsewhere)
    moved.place = place
    return moved


class Devices(TorchFunctionMode):
    """What PyTorch refuses to do with tensors on several devices, or on one without float64."""

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        places = {each.place for each in tensors if isinstance(each, Elsewhere)}
        place = next(iter(places), None)
        if getattr(func, "__self__", None) is torch.Tensor.device and place is not None:
            return place
        wanted = kwargs.get("device") or next((each for each in args if isinstance(each, torch.device)), None)
        if name in ("cpu", "to", "tensor") and (name == "cpu" or wanted is not None):
            return self._move(func, name, args, kwargs, torch.device(wanted or "cpu"))
        if place is None:
            return func(*args, **kwargs)
        if name in ("numpy", "__array__"):
            raise TypeError(f"can't convert {place.type} device type tensor to numpy")
        if len(places) > 1 or any(each.ndim > 0 and not isinstance(each, Elsewhere) for each in tensors):
            raise RuntimeError(f"Expected all tensors to be on the same device: {name}")
        with DisableTorchFunction():
            result = func(*args, **kwargs)
        return tree_map(lambda each: self._checked(each, place) if isinstance(each, torch.Tensor) else each, result)

    def _checked(self, tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError(f"Cannot convert a {place.type} tensor to float64")
        return put(tensor, place)

    def _move(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], where: torch.device) -> Any:
        kwargs.pop("device", None)
        with DisableTorchFunction():
            made = func(*args, **kwargs) if name == "tensor" else args[0].as_subclass(torch.Tensor)
        return made if where.type == "cpu" else self._checked(made, where)


class Placed(SingleSequence):
    """A model whose logits are on a device."""

    def __init__(self, model: LanguageModel, place: torch.device) -> None:
        self._sequence, self._place = model.new_sequence(), place
        self.vocab_size, self.context = model.vocab_size, model.context

    @property
    def length(self) -> int:
        return self._sequence.length

    def crop(self, length: int) -> None:
        self._sequence.crop(length)

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        assert all(type(i) is int for i in ids)
        with DisableTorchFunction():
            logits = self._sequence.forward(ids, keep).clone()
            self.hidden = put(torch.ones(8), self._place)
        return put(logits, self._place)


@pytest.fixture
def devices() -> Iterator[None]:
    with Devices():
        yield


def lanes(**drafting: Any) -> tuple[Lane, Lane]:
    """A lane here, and one whose models are on devices of their own."""
    target = random_model("llama", TARGET.vocab.size, 10)
    drafter = random_model("llama", OWN.vocab.size, 2, layers=1)
    placed = Placed(target, PLACES["target"]), Placed(drafter, PLACES["drafter"])
    options = {"draft_length": 3, **drafting}
    return lane(target, TARGET, drafter, OWN, **options), lane(placed[0], TARGET, placed[1], OWN, **options)


def run(lane_: Lane, sampling: Sampling, processors: Sequence[Any] = ()) -> list[Round]:
    prompt: list[int] = TARGET.tokenizer.encode(SMALL_PROMPTS[0])
    return list(decode(lane_, prompt, 20, sampling, sampler(), processors))


SAMPLINGS = {
    "greedy": Sampling(),
    "penalty": Sampling(repetition_penalty=1.3),
    "sampled": Sampling(temperature=0.9),
    "cut": Sampling(temperature=0.9, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.1),
}


WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "one by one": {"verification": "token", "drafter_temperature": 1.0},
    "head": {"draft_length": "head", "max_draft_length": 3, "threshold": 0.0},
    "intersection": {"mode": "intersection"},
    "paper": {"mode": "paper"},
}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sampling", "way"), [("sampled", way) for way in WAYS] + [(one, "exact") for one in SAMPLINGS]
)
def test_a_text_is_the_same_wherever_its_models_are(sampling: str, way: str) -> None:
    one, apart = lanes(**WAYS[way])
    here = run(one, SAMPLINGS[sampling])
    apart.teacher_temperature = 1.0
    with Devices():
        there = run(apart, SAMPLINGS[sampling])
    if sampling != "cut":  # truncated on the device, by torch
        assert tokens(there) == tokens(here)
    assert sum(len(record.teacher) for record in there) == len(tokens(there))
    assert sum(len(record.draft) for record in there) > 10


@pytest.mark.medium
def test_processors_see_ids_where_the_logits_are() -> None:
    _, apart = lanes()
    seen: list[torch.device] = []

    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids.device)
        return scores + torch.zeros_like(scores).scatter(1, ids, 0.5)

    with Devices():
        run(apart, Sampling(temperature=1.0), [processor])
    assert set(seen) == {PLACES["target"]}


@pytest.mark.usefixtures("devices")
def test_the_devices_refuse_what_devices_refuse() -> None:
    one, other = put(torch.ones(3), PLACES["target"]), put(torch.ones(3), PLACES["drafter"])
    assert one.device == PLACES["target"]
    assert (one * 2).device == one.device
    mixed: list[Callable[[], object]] = [
        lambda: one + other,
        lambda: one + torch.ones(3),
        lambda: torch.stack([one, other]),
    ]
    wide: list[Callable[[], object]] = [lambda: one.to(torch.float64), lambda: one.sum(dtype=torch.float64), one.double]
    for wrong in mixed:
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    for wrong in wide:
        with pytest.raises(TypeError, match="float64"):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        one.numpy()
    assert one.cpu().numpy().tolist() == one.tolist() == [1.0] * 3
    assert torch.ones(3).to(one.device).device == one.device
    assert torch.tensor([1, 2], device=one.device).device == one.device
    assert (one.cpu() + torch.ones(3)).device.type == "cpu"


@pytest.mark.usefixtures("devices")
def test_probabilities_leave_the_device_in_what_it_computes_in() -> None:
    logits = put(torch.randn(3, 50), PLACES["target"])
    assert softmax(logits).shape == (3, 50)
    assert len(largest(logits)) == 3
    distribution = TargetDistribution(logits, [1, 2], [3, 4], Processing(Sampling(temperature=0.8, top_p=0.9)))
    assert float(distribution.probs(1).sum()) == pytest.approx(1.0)
    assert spread(logits[0], 1.0)[0] > 0
    head = Head(8)
    head.load_weights(HeadNetwork(8).state_dict())
    assert 0 <= head.chance(logits[0], put(torch.ones(8), PLACES["drafter"]), 1.0) <= 1
