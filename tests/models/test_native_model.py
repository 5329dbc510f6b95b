"""The 8-bit step gives the logits of `transformers`, row by row the same bits, and is offered only where it would."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import omnidraft
from omnidraft import zoo
from omnidraft.errors import ConfigError, InputError, ModelError, NumericsError, PromptError
from omnidraft.models.language_model import Read
from omnidraft.models.loading import load_model
from omnidraft.models.native import model as native_model
from omnidraft.models.native import step
from omnidraft.models.native.model import NativeModel, NativeSequence, native_of
from omnidraft.models.native.packed_matrices import quantized_q5_1
from omnidraft.models.native.prebuilt import commands
from omnidraft.models.native.step import Int8Group
from omnidraft.models.safetensors_files import Tensors
from omnidraft.models.transformers_model import TransformersModel, TransformersSequence
from support.compilers import looked_for_anew, needs_the_8_bit_step
from support.exact_models import exact_model, native_step
from support.models import IDS, refused


def source_of(kind: str = "llama", **changes: Any) -> TransformersModel:
    """A model that loses nothing with matrices in 8 bits and keys in 16, with norms and biases that show."""
    return exact_model(kind, **changes)


def both(**changes: Any) -> tuple[TransformersSequence, NativeSequence]:
    source = source_of(**changes)
    return source.new_sequence(), native_step(source).new_sequence()


def assert_close(given: torch.Tensor, wanted: torch.Tensor) -> None:
    """Bounds of what is left by inputs of 15 bits, and by keys and values that round to another number of 16 bits."""
    torch.testing.assert_close(given, wanted, atol=8e-3, rtol=8e-3)
    assert float((given - wanted).square().mean().sqrt()) < 1e-3


@pytest.fixture(autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    if "without_compiler" not in request.fixturenames:
        needs_the_8_bit_step()


def test_texts_that_have_no_room_are_not_read_together() -> None:
    _, fast = both(max_position_embeddings=20)
    other = fast.model.new_sequence()
    other.forward(IDS[:19], 1)
    with pytest.raises(PromptError, match=r"19 \+ 2 tokens do not fit .* holds 20"):
        Read(other, [2, 3], 1).check()
    with pytest.raises(InputError, match=r"1 positions out of 0"):
        Read(other, [], 1).check()
    with pytest.raises(PromptError, match="token id 96"):
        Read(other, [96], 1).check()
    assert (fast.length, other.length) == (0, 19)


@pytest.mark.parametrize(("name", "at"), [("_read_joint", 2), ("_head", 1)])
def test_a_pass_that_fails_leaves_every_text_as_long_as_before(
    name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its second part, when the first is in the caches, and after its layers."""
    _, one = both()
    other, alone = one.model.new_sequence(), one.model.new_sequence()
    for text in (one, other, alone):
        text.forward(IDS[:5], 1)
    true, calls = getattr(one.model, name), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise MemoryError
        return true(*arguments)

    reads = [Read(one, (IDS * 3)[:90], 2), Read(other, IDS[5:9], 1)]
    with monkeypatch.context() as patch:
        patch.setattr(one.model, name, failing)
        with refused(ModelError, "passes over 104 tokens take more than", " bytes of memory"):
            one.model.read(reads)
    assert (one.length, other.length) == (5, 5)
    assert torch.equal(one.model.read(reads)[0], alone.forward((IDS * 3)[:90], 2))


@pytest.mark.parametrize("changes", [{}, {"hidden_size": 36, "intermediate_size": 50, "attention_bias": True}])
def test_how_columns_lie_in_memory_changes_nothing(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither logits nor what a profile is found by."""
    _, whole = both(**changes)
    monkeypatch.setattr(step, "CHUNK_COLUMNS", step.WIDTH)
    _, parted = both(**changes)
    for part in (IDS[:9], IDS[9:10], IDS[10:15]):
        assert torch.equal(whole.forward(part, len(part)), parted.forward(part, len(part)))
    names, others = (text.model.tensors() for text in (whole, parted))
    assert names.keys() == others.keys()
    assert all(torch.equal(names[name], found) for name, found in others.items())


@pytest.mark.medium
def test_threads_that_use_it_at_once_get_the_same_products() -> None:
    """One takes the pool of threads, the others compute alone; more of them than cores, and the number changes."""
    torch.manual_seed(0)
    matrices = [Int8Group("it", torch.randn(rows, 515)) for rows in (3, 700, 2000)]
    inputs = [torch.randn(rows, 515) for rows in (1, 2, 7, 70)]
    expected = [matrix(x) for matrix in matrices for x in inputs]

    def work(count: int) -> int:
        torch.set_num_threads(count)  # of this thread
        return sum(
            all(map(torch.equal, (matrix(x) for matrix in matrices for x in inputs), expected)) for _ in range(60)
        )

    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, (4, 2, 3, 1))) == [60] * 4
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("columns", [1, 33, 576, 4864, 14336])
def test_products_are_exact_for_the_largest_entries(columns: int) -> None:
    """All products of one sign: sums of 32 bits would overflow with inputs of a bit more."""
    weight = torch.ones(3, columns)
    weight[1] = -1
    x = torch.stack([torch.ones(columns), -torch.ones(columns), torch.linspace(-1, 1, columns)])
    torch.testing.assert_close(Int8Group("it", weight)(x), x @ weight.T, rtol=1e-3, atol=1e-3 * columns**0.5)


def test_inputs_keep_their_small_entries_beside_a_large_one() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(64, 576), torch.randn(1, 576)
    x[0, 7] = 1000
    weight[:, 7] = 0  # the large entry counts for nothing, and 8 bits of input would have left nothing of the others
    matrix = Int8Group("it", weight)
    exact = x @ matrix.rows(range(64)).T
    assert ((matrix(x) - exact).norm() / exact.norm()).item() < 0.03


def test_zeros_and_what_is_no_number() -> None:
    weight = torch.randn(6, 32)
    weight[2] = 0
    matrix = Int8Group("it", weight)
    assert bool((matrix(torch.zeros(2, 32)) == 0).all())
    assert bool((matrix(torch.randn(1, 32))[:, 2] == 0).all())
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(3, 32)
        x[1, 5] = value
        assert matrix(x).isfinite().all(-1).tolist() == [True, False, True]  # not hidden by rounding
        broken = weight.clone()
        broken[3, 4] = value
        with refused(ModelError, "NaN or infinite", "down_proj"):
            Int8Group("model.layers.3.mlp.down_proj", broken)


def test_a_model_with_its_own_cache_shares_nothing_else_that_changes() -> None:
    _, fast = both()
    other, ids = fast.model.new_sequence(), [5, 9, 17, 33, 2, 8]
    expected = fast.forward(ids, 6).clone()
    assert other.length == 0
    for token in (7, *ids[::-1]):  # another text in between
        other.forward([token], 1)
    fast.crop(0)
    assert torch.equal(fast.forward(ids, 6), expected)
    other.crop(0)
    assert torch.equal(other.forward(ids, 6), expected)
    changed = fast.model.with_weights({"model.norm.weight": torch.full((32,), 0.5)})
    fast.crop(0)
    assert torch.equal(fast.forward(ids, 6), expected), "what one is given is not given to the other"
    assert not torch.allclose(changed.new_sequence().forward(ids, 6), expected)
    assert torch.equal(changed.with_weights({}).new_sequence().forward(ids, 6), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_does_not_follow_the_default_dtype_or_device(dtype: torch.dtype) -> None:
    slow = source_of()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            fast = native_step(slow).new_sequence()
            given = [fast.forward(part, len(part)) for part in ([5, 9, 17], [33], [])]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {(part.dtype, part.device.type) for part in given} == {(torch.float32, "cpu")}
    assert_close(torch.cat(given), slow.new_sequence().forward([5, 9, 17, 33], 4))


@pytest.mark.medium
def test_long_texts_in_chunks_and_a_cache_that_grows_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fast = both()
    ids = (IDS * 30)[:1100]
    whole = fast.forward(ids, 30)
    taken = fast.nbytes
    assert 1100 <= taken / (2 * 2 * (8 + 16) * 2) <= 1100 + step.BLOCK  # layers, heads, sizes, bytes
    fast.crop(0)
    assert fast.nbytes == 0
    monkeypatch.setattr(native_model, "CHUNK_IDS", 70)
    parts = [fast.forward(ids[start : start + 10], 10) for start in range(0, 1100, 10)]
    assert torch.equal(torch.cat(parts)[-30:], whole)
    fast.crop(0)
    for keep in (0, 1, 71):
        fast.crop(0)
        assert fast.forward(ids[:300], keep).shape == (keep, 96)
    with pytest.raises(InputError, match="holds 2048"):
        fast.forward([1] * 2000, 1)
    with pytest.raises(InputError, match=r"0\.\.300"):
        fast.crop(301)


@pytest.mark.medium
def test_the_shipped_drafter() -> None:
    source = load_model(zoo.path("drafter"), dtype="float32").lm
    ids = list(range(300, 340))
    wanted, given = (each.new_sequence().forward(ids, 40).softmax(-1) for each in (source, native_step(source)))
    assert float((wanted - given).abs().sum(-1).mean()) / 2 < 0.03  # total variation


@pytest.mark.medium
def test_a_drafter_has_5_bits_where_its_columns_allow() -> None:
    """Of 96 of them, and 8 bits where they are 100; another process gets them as they are."""
    shape = {"hidden_size": 96, "intermediate_size": 100, "num_key_value_heads": 2}
    source = exact_model("llama", **shape)
    with torch.no_grad():
        for parameter in source.model.parameters():
            if parameter.ndim > 1 and (blocks := quantized_q5_1("it", parameter)):
                parameter.copy_(blocks.rows(range(len(parameter))))
    model = native_of(source, drafts=True)
    assert model is not None
    assert model.precision == "Q5_1"
    kinds = {name.split(".")[-1]: type(each) for name, each in model._layer_weights.groups.items()}  # noqa: SLF001
    assert {name for name, kind in kinds.items() if kind is Int8Group} == {"down_proj"}
    given, wanted = (each.new_sequence().forward(IDS, len(IDS)) for each in (model, source))
    assert float((given - wanted).norm() / wanted.norm()) < 0.05, "inputs are rounded"
    alone = model.new_sequence()
    assert torch.equal(torch.cat([alone.forward([token], 1) for token in IDS]), given)
    sent = pickle.loads(pickle.dumps(model.packed_weights()))  # noqa: S301
    assert torch.equal(model.with_weights(sent).new_sequence().forward(IDS, len(IDS)), given)
    trained = model.with_weights(dict(source.model.state_dict()))
    assert torch.equal(trained.new_sequence().forward(IDS, len(IDS)), given)


def test_a_head_that_is_not_the_embedding_is_used_whatever_the_config_says() -> None:
    source = source_of()
    weights = dict(source.model.state_dict())
    source.model.config.tie_word_embeddings = True
    fast, slow = NativeModel(source.model, weights).new_sequence(), source.new_sequence()
    assert_close(fast.forward(IDS, 40), slow.forward(IDS, 40))


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.bias", "model.layers.0.self_attn.q_norm.weight"])
def test_what_the_model_has_must_be_there(name: str) -> None:
    source = source_of("qwen3" if "norm" in name else "qwen2")
    weights = dict(source.model.state_dict())
    for wrong, said in ((None, "missing"), (weights[name].to(torch.int8), "type")):
        given = {key: value for key, value in weights.items() if key != name}
        with refused(ModelError, name, said):
            NativeModel(source.model, given if wrong is None else given | {name: wrong})
    more = weights | {"model.layers.0.self_attn.o_proj.bias": torch.ones(32)}  # which transformers leaves out as well
    one, other = (NativeModel(source.model, each).new_sequence() for each in (more, weights))
    assert torch.equal(one.forward(IDS, 9), other.forward(IDS, 9))


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(step, "find_spec", lambda _: None)
    looked_for_anew(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["damaged", "not writable"])
def test_a_library_that_cannot_be_kept_is_made_again(cache: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder = Path(step.step_functions()._name).name, home / "cache" / "native"  # noqa: SLF001
    folder.parent.mkdir(parents=True)
    if cache == "damaged":
        folder.mkdir()
        (folder / name).write_bytes(b"no library")
    else:
        folder.write_text("no folder")
    looked_for_anew(monkeypatch)
    monkeypatch.setattr(
        step, "commands", lambda *given: [[*each, "-O0"] for each in commands(*given)]
    )  # takes less time
    monkeypatch.setenv("CC", "cc -pipe")
    assert step.unsupported_reason() is None
    files = [path.name.rpartition("-")[0] for path in home.rglob("*.so") if path.stat().st_size > 1000]
    assert files == [name.rpartition("-")[0]] * (cache == "damaged")


@pytest.fixture
def run_nowhere(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The cache and the temporary folder, where files may be written and not run; the list has those that stay so."""
    library, places = step.step_functions(), [home, tmp_path / "t ü"]
    places[1].mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places[1]))
    monkeypatch.setattr(step, "processor_flags", frozenset)
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    monkeypatch.setattr(step, "_compile", lambda made: made.touch())

    def loaded(name: str) -> ctypes.CDLL:
        if any(Path(name).is_relative_to(place) for place in places):
            raise OSError(f"{name}: failed to map segment from shared object")
        return library

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    looked_for_anew(monkeypatch)
    return places


def test_folders_from_which_nothing_runs_are_named(run_nowhere: list[Path]) -> None:
    said = str(step.unsupported_reason())
    assert str(run_nowhere[0] / "cache" / "native") in said
    assert str(run_nowhere[1]) in said
    assert said.endswith("set OMNIDRAFT_HOME or TMPDIR to a folder from which programs run")
    assert "compiler" not in said


@pytest.mark.parametrize("runs", [0, 1])
def test_one_folder_from_which_code_runs_is_enough(runs: int, run_nowhere: list[Path]) -> None:
    del run_nowhere[runs]
    assert step.unsupported_reason() is None


def test_a_temporary_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(step, "processor_flags", frozenset)
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    monkeypatch.setattr(tempfile, "tempdir", str(home / "nowhere"))
    looked_for_anew(monkeypatch)
    assert "set TMPDIR to a folder that can be written" in str(step.unsupported_reason())


def test_the_path_of_a_compiler_may_have_blanks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "a compiler"
    compiler.touch(mode=0o755)
    for given, words in ((str(compiler), [str(compiler)]), ("cc -pipe", ["cc", "-pipe"])):
        monkeypatch.setenv("CC", given)
        assert step._compiler() == words  # noqa: SLF001


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("in x:\n  x.h:1:2: error: no such thing\n  1 | x\n    | ^\n", "(x.h:1:2: error: no such thing): install a C"),
        (
            "x.c:4:1: fatal error: error writing to x.s: No space left on device\n",
            "is full: free some space, or set TMP",
        ),
    ],
)
def test_what_a_compiler_refuses_is_said(
    complaint: str, said: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Not what it draws below the line."""
    compiler = home.with_name("compiler")
    compiler.write_text(f"#!/bin/sh\necho '{complaint}' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(step, "prebuilt", lambda _: None)
    looked_for_anew(monkeypatch)
    assert said in str(step.unsupported_reason())


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_computes_on() -> None:
    torch.set_num_threads(3)
    try:
        matrix, x = Int8Group("it", torch.randn(3000, 515)), torch.randn(3, 515)
        expected = matrix(x)
        child = os.fork()
        if child == 0:
            os._exit(0 if all(torch.equal(matrix(x), expected) for _ in range(20)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(matrix(x), expected)
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_transformers_does_it() -> None:
    target, drafter = (zoo.path(name) for name in ("target-a", "drafter"))
    assert native_of(source_of()) is None
    model = omnidraft.load(target, drafter, dtype="float32", profile=None)
    assert "C compiler" in str(model.drafter_backend)
    assert model.generate("def mean(values):", max_new_tokens=4).token_ids
    with refused(ModelError, "int8", "C compiler", "dtype='auto'"):
        omnidraft.load(target, drafter, dtype="int8")


@pytest.mark.usefixtures("without_compiler")
def test_the_compiler_of_a_package_is_taken_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, b"", b"first line\n\xff: it cannot\n")

    assert "there is no C compiler" in str(step.unsupported_reason())
    monkeypatch.setattr(step, "find_spec", lambda name: find_spec("json") if name == "ziglang" else None)
    monkeypatch.setattr(subprocess, "run", run)
    looked_for_anew(monkeypatch)
    assert "(\ufffd: it cannot)" in str(step.unsupported_reason())
    assert [command[:5] for command in commands] == [[sys.executable, "-P", "-m", "ziglang", "cc"]] * 2
    (tmp_path / "clang").touch(mode=0o755)
    looked_for_anew(monkeypatch)
    assert "it cannot" in str(step.unsupported_reason())
    assert commands[-1][0] == str(tmp_path / "clang")


@pytest.mark.medium
def test_a_drafter_that_returns_nan_is_noticed(tmp_path: Path) -> None:
    broken = load_model(zoo.path("drafter"))
    with torch.no_grad():
        broken.lm.model.get_parameter("model.norm.weight").fill_(torch.nan)
    broken.lm.model.save_pretrained(tmp_path)
    broken.tokenizer.save_pretrained(tmp_path)
    model = omnidraft.load(zoo.path("target-a"), tmp_path, dtype="float32", profile=None, reuse_answers="nothing")
    assert model.lane.attached is not None
    assert isinstance(model.lane.attached.drafter.model, NativeModel)
    with pytest.raises(NumericsError, match="the drafter's logits"):
        model.generate("def mean(values):", max_new_tokens=12, temperature=1.0)


# ---------------------------------------------------------------- as a target


@pytest.mark.medium
def test_files_that_are_not_whole_are_refused(target: Path, tmp_path: Path) -> None:
    for path in target.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name, value, said in (
        ("model.layers.0.mlp.up_proj.weight", None, "missing"),
        ("model.norm.weight", torch.full((3,), 1.0), "another shape"),
        ("model.layers.0.mlp.up_proj.weight", torch.full((3, 5), 1.0), "another shape"),
    ):
        with Tensors(str(target), local=True) as weights:
            tensors = {key: weights[key] for key in weights if key != name}
        save_file(tensors | ({} if value is None else {name: value}), tmp_path / "model.safetensors")
        with refused(ModelError, name, said):
            load_model(tmp_path, "int8", verifies=True)
    (tmp_path / "model.safetensors").unlink()
    with refused(ModelError, "safetensors"):
        load_model(tmp_path, "int8", verifies=True)


@pytest.mark.medium
def test_8_bits_are_for_targets_alone(target: Path) -> None:
    with refused(ConfigError, "int8", "targets"):
        load_model(target, "int8")
    model = omnidraft.load(target, target, dtype="int8", profile=None)
    assert model.drafter is not None
    assert (model.target.lm.precision, model.drafter.lm.precision) == ("int8", "Q5_1")
    plain = omnidraft.load(target, None, dtype="int8", draft_length=0)
    for sampling in ({}, {"temperature": 1.0}):
        drafted = model.generate("Ann has 3 bags of 12 nuts.", max_new_tokens=40, **sampling)
        expected = plain.generate("Ann has 3 bags of 12 nuts.", max_new_tokens=40, **sampling)
        assert len(drafted.token_ids) == 40 or drafted.finish_reason == "eos"
        assert sampling or drafted.token_ids == expected.token_ids


def test_nan_logits_of_a_target_are_named_and_leave_an_empty_cache() -> None:
    source = source_of()
    weights = {name: value.clone() for name, value in source.model.state_dict().items()}
    weights["model.norm.weight"][3] = torch.nan
    text = NativeModel(source.model, weights).new_sequence()
    with pytest.raises(NumericsError):
        text.forward(IDS, 1)
    assert text.length == 0
