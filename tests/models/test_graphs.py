"""Passes over buckets say what passes over a cache that grows say; on a CPU a graph is a call over the same buffers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import omnidraft
from omnidraft.errors import ConfigError, InputError, ModelError
from omnidraft.models.graphs.bucket_cache import BucketCache, BucketLayer
from omnidraft.models.graphs.graph import Graph
from omnidraft.models.graphs.graphed_model import ROWS, GraphedModel, GraphedSequence
from omnidraft.models.loading import load_drafter, load_model
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.zoo import path as zoo_path
from support.graphed import BUCKET, CLOSE, DEVICE, graphed, replays_of, small_buckets
from support.hybrids import hybrid
from support.models import IDS, KINDS, LONGROPE, MORE, afresh, build, close, refused
from support.models import ROWS as IDS_MOST

REFUSED = {"falcon alibi", "mpt", "gpt_neo"}  # masks of their own, for caches that grow
# what reads from the device within a pass, which no graph can: positions by a mask, or a rotation by the length
READING = {"opt", "xglm", "bert decoder"}
LEFT_OUT = REFUSED | (READING if DEVICE.type == "cuda" else set())
LONG = [(5 * i * i + 3 * i + 1) % IDS_MOST for i in range(200)]


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_buckets():
        yield


def longer(kind: str = "llama", **changes: Any) -> GraphedModel:
    return graphed(build(kind, **{"max_position_embeddings": 512} | changes))


# ---------------------------------------------------------------- what passes say


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE if kind not in LEFT_OUT)]
)
def test_passes_of_every_length_say_what_a_whole_text_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, chunks, experts, learned positions: over a border of buckets, and with tokens taken back."""
    model, seen = graphed(build(kind)), replays_of(monkeypatch)
    expected, sequence, at = afresh(model.model, IDS), model.new_sequence(), 0
    for count in (7, 1, 2, 3, 4, 5, 6, 7):
        assert close(sequence.forward(IDS[at : at + count], count), expected[at : at + count], CLOSE), (kind, count)
        at += count
        if count > 3:
            at -= 2
            sequence.crop(at)
    assert {capacity for capacity, _ in seen} == {BUCKET, 2 * BUCKET}
    assert {count for _, count in seen} == {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_model_with_a_mask_of_its_own_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.models.graphs.graphed_model.SMALLEST", 512)
    why = r"^model \S+ (cannot be recorded as a graph \(.*\)|.* computes otherwise .*): leave graphs out$"
    with pytest.raises(ModelError, match=why) as error:
        graphed(build(kind))
    assert len(str(error.value).splitlines()) == 1


def test_a_hybrid_is_refused() -> None:
    with pytest.raises(ModelError, match="has states besides keys and values, which no graph restores: leave graphs"):
        graphed(hybrid("lfm2"))


@pytest.mark.medium
@pytest.mark.parametrize("count", range(1, ROWS[-1] + 1))
def test_tokens_taken_back_leave_no_trace(count: int) -> None:
    """After a draft of every length, of which every number of tokens is refused."""
    model = longer()
    sequence = model.new_sequence()
    sequence.forward(LONG[:10], 1)
    for kept in {0, 1, count // 2, count}:
        sequence.forward([(each + 1 + kept) % IDS_MOST for each in LONG[10 : 10 + count]], count)
        sequence.crop(10)
        sequence.forward(LONG[10 : 10 + count], count)
        sequence.crop(10 + kept)
        expected = afresh(model.model, [*LONG[: 10 + kept], 3])[-1:]
        assert close(sequence.forward([3], 1), expected, CLOSE), kept
        sequence.crop(10)


@pytest.mark.medium
@pytest.mark.parametrize("count", range(1, ROWS[-1] + 3))
def test_a_pass_at_the_border_of_a_bucket_moves_to_the_next(count: int) -> None:
    """The bucket is full without the pass, with it, or with its padding."""
    model, border = longer(), 2 * BUCKET
    rows = min((each for each in ROWS if each >= count), default=count)
    for before in {border - rows - 1, border - rows, border - count, border - 1, border}:
        sequence = model.new_sequence()
        sequence.forward(LONG[:before], 1)
        end = before + count
        assert close(sequence.forward(LONG[before:end], count), afresh(model.model, LONG[:end])[-count:], CLOSE), before
        # what was read before the move is there after it, and padding has done no harm
        assert close(sequence.forward([3], 1), afresh(model.model, [*LONG[:end], 3])[-1:], CLOSE), before
        assert sequence.cache.capacity >= sequence.length


@pytest.mark.medium
def test_one_text_after_another_takes_the_same_buffers_and_graphs() -> None:
    model = longer()
    sequence = model.new_sequence()
    recorded = []
    for length in (40, 150, 12, 70):
        sequence.crop(0)
        assert sequence.cache.capacity == BUCKET  # a long text leaves the next one no long reads
        text = [(each + length) % IDS_MOST for each in LONG[:length]]
        sequence.forward(text[:-4], 0)
        got = torch.cat([sequence.forward(text[at : at + 1], 1) for at in range(length - 4, length)])
        assert close(got, afresh(model.model, text)[-4:], CLOSE)
        recorded.append({key: id(graph) for key, graph in sequence.graphs.items()})
    assert recorded[0].items() <= recorded[1].items() <= recorded[3].items()
    assert recorded[1] | recorded[2] == recorded[2]
    sizes = {cache.capacity for cache in sequence.caches.values() if cache.nbytes}
    assert sequence.nbytes == sum(sizes) * model.token_bytes


def test_a_text_read_in_chunks_beyond_every_bucket_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.models.transformers_model.CHUNK_IDS", 16)
    model = longer()
    sequence = model.new_sequence()
    assert close(sequence.forward(LONG, 20), afresh(model.model, LONG)[-20:], CLOSE)
    assert sequence.cache.capacity == 16 * BUCKET


def test_where_the_context_ends_there_is_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = graphed(build("gpt2")), replays_of(monkeypatch)  # learned positions: 64, and none beyond
    sequence, ids = model.new_sequence(), LONG[: model.context]
    sequence.forward(ids[:-6], 1)
    for at, count in ((58, 4), (62, 1), (63, 1)):
        assert close(sequence.forward(ids[at : at + count], 1), afresh(model.model, ids[: at + count])[-1:], CLOSE)
    assert set(seen) == {(4 * BUCKET, 4), (4 * BUCKET, 1)}
    assert sequence.length == model.context


@pytest.mark.medium
def test_logits_and_hidden_states_stay_when_the_buffers_are_overwritten() -> None:
    model = longer()
    plain = TransformersModel(model.model)
    sequence, other = model.new_sequence(hidden=True), plain.new_sequence(hidden=True)
    kept, expected = [], []
    for ids in (LONG[:5], LONG[5:8], LONG[8:12], LONG[12:15]):
        kept.append((sequence.forward(ids, len(ids)), sequence.hidden))
        expected.append((other.forward(ids, len(ids)), other.hidden))
    for (logits, hidden), (whole, state) in zip(kept, expected, strict=True):
        assert hidden is not None
        assert state is not None
        assert close(logits, whole, CLOSE)
        assert close(hidden, state, CLOSE)


def test_logits_of_a_drafter_come_to_the_host() -> None:
    model = graphed(build(max_position_embeddings=512), to_host=True)
    sequence = model.new_sequence()
    for start, end in ((0, 5), (5, 6)):
        logits = sequence.forward(LONG[start:end], 1)
        assert (logits.device.type, logits.dtype) == ("cpu", torch.float32)
        assert close(logits, afresh(model.model, LONG[:end])[-1:].cpu(), CLOSE)


def test_bfloat16() -> None:
    model = graphed(build(max_position_embeddings=512).bfloat16())
    sequence = model.new_sequence()
    sequence.forward(LONG[:9], 1)
    logits = sequence.forward(LONG[9:12], 3)
    assert logits.dtype == torch.float32
    assert close(logits, afresh(model.model, LONG[:12])[-3:], 0.05)


# ---------------------------------------------------------------- errors


def test_an_interrupted_pass_empties_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = longer()
    sequence = model.new_sequence()
    sequence.forward(LONG[:60], 1)
    true = BucketLayer.update

    def interrupted(self: BucketLayer, *states: torch.Tensor, **others: Any) -> Any:
        true(self, *states, **others)
        raise KeyboardInterrupt

    for count in (3, 30):  # by a graph, and without
        with monkeypatch.context() as patch:
            patch.setattr(BucketLayer, "update", interrupted)
            sequence.graphs.clear()  # so that it is recorded anew: a replay on a device calls nothing
            with pytest.raises(KeyboardInterrupt):
                sequence.forward(LONG[60 : 60 + count], 1)
        assert (sequence.length, sequence.cache.get_seq_length()) == (0, 0)
        assert close(sequence.forward(LONG[:60], 1), afresh(model.model, LONG[:60])[-1:], CLOSE)


def test_crops_out_of_range() -> None:
    sequence = longer().new_sequence()
    sequence.forward(LONG[:9], 1)
    with refused(InputError, "10", "0..9"):
        sequence.crop(10)


# ---------------------------------------------------------------- faults, which must be seen


def unmasked(self: BucketCache, start: torch.Tensor | None) -> None:
    """A pass of one row attends to everything that lies in the buffers."""
    for layer in self.layers:
        layer.start = start


def test_a_stale_row_that_is_not_masked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = longer()
    sequence = model.new_sequence()
    sequence.forward(LONG[:9], 1)
    sequence.forward(LONG[20:29], 1)
    sequence.crop(9)
    expected = afresh(model.model, LONG[:10])[-1:]
    monkeypatch.setattr(BucketCache, "_set", unmasked)
    sequence.graphs.clear()
    assert not close(sequence.forward(LONG[9:10], 1), expected, 100 * CLOSE)


def test_the_probe_refuses_a_model_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketCache, "_set", unmasked)
    with pytest.raises(ModelError, match="computes otherwise over a cache in buckets: leave graphs out"):
        longer()


# ---------------------------------------------------------------- what a capture refuses


def reads_the_device(model: GraphedModel) -> bool:
    """Whether a pass depends on values, which tensors without any show: a capture would refuse it."""
    sequence = model.new_sequence(hidden=True)
    sequence.forward(IDS[:4], 1)
    with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True) as fake, pytest.MonkeyPatch.context() as at:
        at.setattr(model, "inputs", fake.from_tensor(model.inputs))
        try:
            for rows in ROWS:
                sequence.work(sequence.cache, rows)
        except DataDependentOutputException:
            return True
    return False


@pytest.mark.medium
@pytest.mark.skipif(DEVICE.type != "cpu", reason="a capture itself says so there")
@pytest.mark.parametrize("kind", [*KINDS, "qwen3", "phi3 window", "olmo2", "smollm3", "cohere2", *sorted(READING)])
def test_a_pass_reads_nothing_from_the_device(kind: str) -> None:
    assert reads_the_device(graphed(build(kind))) == (kind in READING)


@pytest.mark.medium
@pytest.mark.skipif(DEVICE.type != "cpu", reason="a capture itself says so there")
@pytest.mark.parametrize(
    ("changes", "reads"), [(LONGROPE, False), ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, True)]
)
def test_rotations_by_the_length(changes: dict[str, Any], reads: bool) -> None:
    assert reads_the_device(graphed(build(**changes))) == reads


def test_a_replay_reads_its_inputs_again_and_overwrites_its_outputs() -> None:
    inputs = torch.tensor([1.0, 2.0], device=DEVICE)
    graph = Graph(lambda: (inputs * 2, inputs.sum()), DEVICE)
    first = graph.replay()
    assert [each.tolist() for each in first] == [[2.0, 4.0], 3.0]
    inputs.fill_(5.0)
    second = graph.replay()
    assert [each.tolist() for each in second] == [[10.0, 10.0], 10.0]
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_capture_follows_warm_ups_on_a_stream_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that a device would get, in their order; the names and options are those that PyTorch has."""
    calls: list[str] = []
    options = inspect.signature(torch.cuda.graph.__init__)

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            calls.append(f"{self.name} waits for {other.name}")

    class Recorded:
        def replay(self) -> None:
            calls.append("replay")

    @contextmanager
    def entered(name: str) -> Iterator[None]:
        calls.append(f"into {name}")
        yield
        calls.append(f"out of {name}")

    def graph(recorded: Recorded, **given: Any) -> Any:
        options.bind(None, recorded, **given)
        return entered(f"capture by {given['stream'].name} in {given['pool']}")

    for name, fake in {
        "device": lambda device: entered(str(device)), "current_stream": lambda: Stream("main"), "Stream": Stream,
        "stream": lambda stream: entered(stream.name), "CUDAGraph": Recorded, "graph": graph,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)

    def work() -> tuple[torch.Tensor, ...]:
        calls.append("work")
        return (torch.ones(1),)

    recorded = Graph(work, torch.device("cuda", 1), pool="pool")
    assert calls == [
        "into cuda:1", "side waits for main", "into side", "work", "work", "out of side", "main waits for side",
        "into capture by side in pool", "work", "out of capture by side in pool", "out of cuda:1",
    ]  # fmt: skip
    calls.clear()
    assert recorded.replay() is recorded.replay()
    assert calls == ["replay", "replay"]


# ---------------------------------------------------------------- how they are asked for


@pytest.mark.parametrize("load", [load_model, load_drafter])
def test_only_cuda_has_graphs(load: Any) -> None:
    with refused(ConfigError, "graphs is 'on'", "the device 'cpu'", "device='cuda'"):
        load(zoo_path("target-a"), device="cpu", graphs=True)
    with refused(ConfigError, "graphs is 'on'", "the device 'cpu'"):
        omnidraft.load("zoo:target-a", device="cpu", graphs="on")


def test_graphs_are_on_or_off() -> None:
    with pytest.raises(ConfigError, match="graphs is True; use one of off, on"):
        omnidraft.load("zoo:target-a", graphs=True)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_model_is_loaded_with_graphs(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    monkeypatch.setattr("omnidraft.models.loading.choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr("transformers.PreTrainedModel.to", lambda model, _: model)  # there may be none here
    for verifies in (True, False):
        lm = load_model(target, "float32", verifies=verifies, graphs=True).lm
        assert isinstance(lm, GraphedModel)
        assert lm.to_host != verifies
        assert isinstance(lm.new_sequence(), GraphedSequence)
        assert type(load_model(target, "float32", verifies=verifies).lm) is TransformersModel
