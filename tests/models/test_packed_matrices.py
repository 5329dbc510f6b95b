"""Matrices of GGUF blocks: the file's values bit by bit, exact products, and each row as if it were alone."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.native import packed_matrices, step
from omnidraft.models.native.packed_matrices import GGML_TYPES, BlockGroup, quantized_q5_1
from omnidraft.models.native.step import Group, Int8Group, Norm
from support.blocks import HALVES, blocks, filled, packed, stored, values
from support.compilers import compiled_with, needs_the_8_bit_step
from support.models import refused

EVERY = pytest.mark.parametrize("kind", GGML_TYPES, ids=[QUANTIZATIONS[kind][0] for kind in GGML_TYPES])
X86 = platform.machine() in {"x86_64", "AMD64"}
# the parts of the C code that this machine can run, and is not the first to choose
WAYS = [("-DPLAIN",)] + [("-mno-avx512f",), ("-mno-avx512f", "-mno-avxvnni"), ("-mno-avx512vnni",)] * X86
# the code for AVX-VNNI, by the same instruction of processors with AVX-512
AVX_VNNI = ("-mno-avx512bw", "-DSPAN=8", "-D__AVXVNNI__=1", "-D_mm256_dpbusd_avx_epi32=_mm256_dpbusd_epi32")
WAYS += [AVX_VNNI] * ({"avx512_vnni", "avx512vl"} <= set(step.processor().split()))


@pytest.fixture(autouse=True)
def _compiled() -> None:
    needs_the_8_bit_step()


@pytest.fixture
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def whole_inputs(rows: int, columns: int) -> torch.Tensor:
    """Small whole numbers, and in each 16 of them the largest that an input can be: rounding changes none."""
    x = torch.randint(-9, 10, (rows, columns), generator=torch.Generator().manual_seed(0)).float()
    x[:, ::16] = 127
    return x


@EVERY
@pytest.mark.parametrize(("out", "columns"), [(1, 256), (16, 768), (37, 1280)])
def test_the_values_are_those_of_the_file(kind: int, out: int, columns: int) -> None:
    raw = blocks(kind, out, columns)
    matrix = BlockGroup(stored(kind, raw, columns))
    assert torch.equal(matrix.rows(range(out)), values(kind, raw))
    ids = [out - 1, 0, out - 1]
    assert torch.equal(matrix.rows(ids), values(kind, raw)[ids])
    assert matrix.rows([]).shape == (0, columns)
    for wrong in (-1, out):
        with pytest.raises(IndexError, match=f"that has {out}"):
            matrix.rows([0, wrong])
    if out % 16 == 0:
        assert raw.nbytes <= matrix.nbytes <= 1.03 * raw.nbytes + 64


@pytest.mark.parametrize("kind", [kind for kind in GGML_TYPES if QUANTIZATIONS[kind][1] == 1])
def test_numbers_take_any_columns(kind: int) -> None:
    raw, x = blocks(kind, 19, 37, scale=1), whole_inputs(3, 37)
    assert torch.equal(BlockGroup(stored(kind, raw, 37))(x), x @ values(kind, raw).T)


@EVERY
def test_the_rows_are_where_the_order_says(kind: int) -> None:
    raw, order = blocks(kind, 35, 256), np.random.default_rng(0).permutation(35)
    matrix = BlockGroup(stored(kind, raw, 256, order=order))
    assert torch.equal(matrix.rows(range(35)), values(kind, raw)[torch.from_numpy(order)])


@EVERY
def test_it_is_read_in_parts(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packed(kind, 83, 512)
    monkeypatch.setattr(packed_matrices, "READ_BYTES", 1)
    assert torch.equal(whole.matrices[0].weights, packed(kind, 83, 512).matrices[0].weights)


@EVERY
@pytest.mark.parametrize("columns", [256, 512])
def test_products_of_whole_numbers_are_exact(kind: int, columns: int) -> None:
    raw, x = blocks(kind, 37, columns, scale=1), whole_inputs(13, columns)
    weights = values(kind, raw)
    assert float((weights.abs() @ x.abs().T).max()) < 2**24, "float32 holds all sums"
    wanted = x.long() @ weights.long().T
    assert torch.equal(BlockGroup(stored(kind, raw, columns))(x).long(), wanted)


@EVERY
@pytest.mark.parametrize("byte", [0, 0x7F, 0x80, 0xFF])
def test_the_largest_products_fit(kind: int, byte: int) -> None:
    raw, x = filled(kind, 20, 512, byte), torch.full((3, 512), 127.0)
    x[1], x[2, ::2] = -127, -127
    weights = values(kind, raw)
    bound = 1e-5 * (x.double().abs() @ weights.double().abs().T)
    given = BlockGroup(stored(kind, raw, 512))(x).double()
    assert bool(((given - x.double() @ weights.double().T).abs() <= bound).all())


@EVERY
def test_inputs_are_rounded_by_halves_of_a_group(kind: int) -> None:
    raw, x = blocks(kind, 37, 768), torch.randn(5, 768, generator=torch.Generator().manual_seed(0))
    x[0, 7] = 1000  # which takes the precision of 15 others
    weights = values(kind, raw)
    steps = x.view(5, -1, 16).abs().amax(-1).div(254).repeat_interleave(16, 1)
    bound = steps @ weights.abs().T + 1e-5 * (x.abs() @ weights.abs().T)
    off = (BlockGroup(stored(kind, raw, 768))(x) - x @ weights.T).abs()
    assert bool((off <= bound).all())
    assert QUANTIZATIONS[kind][1] > 1 or float((off / bound).max()) < 0.1, "numbers take inputs as they are"


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2**17 + 5, 2**22 - 1, 2**22, 2**23 + 5])
def test_a_vector_begins_where_weights_do(count: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not large:
        monkeypatch.setattr(step, "own_pages", lambda _: None)
    weights = step.memory(count)
    assert (weights.dtype, weights.shape) == (torch.uint8, (count,))
    assert weights.data_ptr() % step.LINE == 0
    copied = pickle.loads(pickle.dumps(weights.fill_(7)))  # noqa: S301  of our own, as another process gets them
    assert torch.equal(copied, weights)


@EVERY
@pytest.mark.usefixtures("three_threads")
def test_a_row_does_not_depend_on_those_beside_it(kind: int) -> None:
    matrix, x = packed(kind, 700, 512), torch.randn(85, 512, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([matrix(x[m : m + 1]) for m in range(len(x))])
    for count in (*range(2, 18), 64, 65, 85):
        assert torch.equal(matrix(x[:count]), alone[:count]), count
    torch.set_num_threads(1)
    assert torch.equal(matrix(x), alone)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_each_processor_gets_the_same_bits(way: tuple[str, ...]) -> None:
    matrices = {kind: packed(kind, 37, 768) for kind in GGML_TYPES}
    largest = [
        BlockGroup(stored(kind, filled(kind, 9, 768, byte), 768))
        for kind in GGML_TYPES
        for byte in (0, 0x7F, 0x80, 0xFF)
    ]
    x = torch.randn(9, 768, generator=torch.Generator().manual_seed(0))
    x[3, 5] = x[4, 700] = 300
    x[5], x[6], x[7, ::2] = 1, -1, 1
    given = [matrix(x) for matrix in (*matrices.values(), *largest)]
    with compiled_with(*way):
        for number, (matrix, wanted) in enumerate(zip((*matrices.values(), *largest), given, strict=True)):
            assert torch.equal(matrix(x), wanted), number
        for kind, matrix in matrices.items():
            assert torch.equal(packed(kind, 37, 768).rows(range(37)), matrix.rows(range(37)))


@pytest.mark.usefixtures("three_threads")
def test_matrices_of_several_kinds_have_the_same_inputs() -> None:
    """As queries, keys and values have in one file; one may be rounded to 8 bits a row."""
    torch.manual_seed(0)
    sizes, kinds, bias = (40, 16, 7), (12, 14, 1), torch.randn(16)
    matrices = [
        stored(kind, blocks(kind, out, 512), 512, bias=bias if out == 16 else None)
        for kind, out in zip(kinds, sizes, strict=True)
    ]
    x, norm = torch.randn(11, 512), Norm(torch.rand(512), 1e-6)
    alone = [BlockGroup(each)(x, norm) for each in matrices]
    together = BlockGroup(*matrices)
    assert torch.equal(together(x, norm), torch.cat(alone, 1))
    assert together.nbytes == sum(BlockGroup(each).nbytes for each in matrices)
    without = BlockGroup(stored(14, blocks(14, 16, 512), 512))(x, norm)
    assert torch.equal(alone[1], without + bias)
    rounded = Int8Group("it", torch.randn(33, 512), torch.randn(33))
    mixed = Group(together.matrices[0], rounded.matrices[0], together.matrices[2])
    assert torch.equal(mixed(x, norm), torch.cat([alone[0], rounded(x, norm), alone[2]], 1))


def test_weights_are_rounded_to_the_nearest_of_32_between_the_ends_of_their_block() -> None:
    weight = torch.randn(37, 96, generator=torch.Generator().manual_seed(0))
    weight[3], weight[4], weight[5, :32] = 0, 0.75, torch.linspace(1, 32, 32)
    matrix = quantized_q5_1("it", weight.bfloat16())
    assert matrix is not None
    given, wanted = matrix.rows(range(37)).view(-1, 32), weight.bfloat16().float().view(-1, 32)
    step = (wanted.amax(1) - wanted.amin(1)) / 31
    halves = wanted.abs().amax(1) / 1000  # the ends and the step have 16 bits
    assert bool(((given - wanted).abs().amax(1) <= step / 2 + halves).all())
    assert torch.equal(given.view(37, 96)[3:6, :32], wanted.view(37, 96)[3:6, :32]), "those that are among the 32"
    whole = quantized_q5_1("it", weight[:16], weight[:16, 0])
    assert whole is not None
    assert whole.nbytes == 16 * 3 * 24
    torch.testing.assert_close(whole(torch.zeros(1, 96))[0], weight[:16, 0])
    for other in (weight[:0], weight[:, :40], weight * 1e5, weight * 1e-4, weight * torch.nan):
        assert quantized_q5_1("it", other) is None


@EVERY
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(kind: int, value: float) -> None:
    name, entries, size = QUANTIZATIONS[kind]
    for at in HALVES.get(name, (0,)):
        raw = blocks(kind, 20, 512).reshape(20, 512 // entries, size)
        broken = np.array([value], np.float32).view(np.uint8)
        if name == "BF16":
            broken = broken[2:]
        elif name != "F32":
            broken = np.array([value], np.float16).view(np.uint8)
        raw[17, -1, at : at + len(broken)] = broken
        with refused(ModelError, "ffn_down", "NaN or infinite"):
            BlockGroup(stored(kind, raw.reshape(20, -1), 512))


@EVERY
def test_what_is_no_number_in_an_input_shows_in_its_row_alone(kind: int) -> None:
    matrix = packed(kind, 20, 256)
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(3, 256)
        x[1, 77] = value
        assert matrix(x).isfinite().all(-1).tolist() == [True, False, True]
    assert bool((matrix(torch.zeros(2, 256)) == 0).all())
    assert bool(matrix(torch.full((1, 256), 1e-38)).isfinite().all())
