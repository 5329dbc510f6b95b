"""`step.c` on this machine: of the wheel, or compiled once and kept in the cache folder; called through ctypes."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.int8_format import rounded
from omnidraft.models.memory import shortage
from omnidraft.models.native.prebuilt import (
    SOURCE,
    SYSTEM,
    commands,
    prebuilt,
    processor_flags,
    source_bytes,
)
from omnidraft.storage import cache_folder
from omnidraft.systems import own_pages

PRECISIONS = ("int8",)  # of weights that step.c takes
WIDTH = 32  # columns of a chunk are padded to a multiple of it, as in step.c
CHUNK_COLUMNS = 1280  # columns, at most: of 8 inputs they fit in the innermost cache, 20 KB
MATRICES = 3  # of a group, at most, as in step.c
ROWS8 = 24  # the kind of 8-bit integers with one scale a row, as in blocks.h
PANEL = 16  # rows of matrices of other kinds that lie side by side, as in blocks.h
LANES = 16  # tokens whose keys lie side by side, as in step.c
BLOCK = 256  # tokens whose keys and values lie in one piece of memory, as in step.c
ROWS = 4096  # of a matrix that are rounded at once
LINE = 64  # bytes: where a vector begins
SECONDS = 600  # for the compiler, which takes ten on a quiet machine
MEASURED = 8192, 2048  # entries of a matrix: 64 MiB in 32 bits
TIMES = 5  # of which the fastest counts
DONE = 0  # what functions of step.c return; else memory was short
REMEDY = f"install a C compiler ({SYSTEM.packages}pip install 'omnidraft[compiler]')"
FLAGS = (("-march=native",), ("-mcpu=native",))  # tried in this order: compilers name the processor differently


class MatrixStruct(ctypes.Structure):
    """A `Matrix` of step.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scales", "bias")),
        *((name, ctypes.c_int64) for name in ("out", "columns", "chunks", "width", "kind")),
    )


class GroupStruct(ctypes.Structure):
    """A `Group` of step.c."""

    _fields_ = (("matrix", MatrixStruct * MATRICES), ("count", ctypes.c_int64), ("out", ctypes.c_int64))


class Layer(ctypes.Structure):
    """A layer of step.c."""

    _fields_ = (
        *((name, GroupStruct) for name in ("qkv", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("before_attention", "before_mlp", "after_attention", "after_mlp")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm")),
        *((name, ctypes.c_int64) for name in ("window", "rotated", "angles")),
    )


class Shape(ctypes.Structure):
    """Settings shared by the layers of step.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "heads", "key_heads", "size", "columns")),
        *((name, ctypes.c_int64) for name in ("head_norm", "centered", "parallel", "gelu", "tempered")),
        *((name, ctypes.c_float) for name in ("epsilon", "attention_scale", "score_cap")),
    )


class Cache(ctypes.Structure):
    """Keys and values of step.c, and the position of the first token that is read."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("blocks", "angles")),
        ("length", ctypes.c_int64),
    )


_ADDRESS, _NUMBER, _WHOLE, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
FUNCTIONS = {  # of step.c: what they return, and what they take
    "layout": (_WHOLE, _ADDRESS, _WHOLE),
    "read_tokens": (_WHOLE, _ADDRESS, _ADDRESS, _ADDRESS, _WHOLE, _ADDRESS, _NUMBER, _WHOLE),
    "apply_group": (_WHOLE, _ADDRESS, _ADDRESS, _WHOLE, _REAL, _REAL, _ADDRESS, _NUMBER, _ADDRESS, _WHOLE),
    "packed_bytes": (_NUMBER, _WHOLE, _NUMBER, _NUMBER),
    "pack_rows": (_WHOLE, _WHOLE, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _WHOLE),
    "unpack_rows": (None, _ADDRESS, _ADDRESS, _NUMBER, _ADDRESS),
}
LAYOUT = (*map(ctypes.sizeof, (GroupStruct, Layer, Shape, Cache)), WIDTH, LANES, BLOCK, PANEL)  # as step.c has it


class PackedMatrix(NamedTuple):
    """A matrix whose bytes lie as step.c reads them."""

    weights: torch.Tensor
    scales: torch.Tensor  # (out); empty where they lie among the weights
    bias: torch.Tensor | None  # (out)
    out: int
    columns: int
    chunks: int
    width: int
    kind: int


def memory(count: int) -> torch.Tensor:
    """Memory for weights, or for keys and values, (count) uint8, where a vector begins."""
    if (pages := own_pages(count)) is not None:
        return torch.frombuffer(pages, dtype=torch.uint8)
    room = torch.empty(count + LINE, dtype=torch.uint8, device="cpu")
    return room[-room.data_ptr() % LINE :][:count]


class Group:
    """Up to MATRICES matrices with the same inputs, one below the other; another process can have its tensors."""

    def __init__(self, *matrices: PackedMatrix) -> None:
        self.matrices, self.columns = matrices, matrices[0].columns
        structs = [MatrixStruct(*map(pointer, matrix[:3]), *matrix[3:]) for matrix in matrices]
        out = sum(matrix.out for matrix in matrices)
        self.struct = GroupStruct((MatrixStruct * MATRICES)(*structs), len(matrices), out)

    def __getstate__(self) -> tuple[PackedMatrix, ...]:
        return self.matrices

    def __setstate__(self, matrices: tuple[PackedMatrix, ...]) -> None:
        Group.__init__(self, *matrices)

    @property
    def nbytes(self) -> int:
        return sum(matrix.weights.nbytes + matrix.scales.nbytes for matrix in self.matrices)

    def __call__(self, x: torch.Tensor, before: Norm | None = None, cap: float = 0.0) -> torch.Tensor:
        """x (T, in) float32, normalized, times the group -> (T, out), bent to within a cap that is not 0."""
        x = x.contiguous()
        y = torch.empty(len(x), self.struct.out, dtype=torch.float32, device="cpu")
        norm = (None, False, 0.0) if before is None else (pointer(before.weight), before.centered, before.epsilon)
        arguments = *norm, cap, x.data_ptr(), len(x), y.data_ptr(), threads()
        _check(step_functions().apply_group(ctypes.byref(self.struct), *arguments), len(x), self.struct.out)
        return y


class Int8Group(Group):
    """A group of one matrix (out, in) in 8 bits, one scale a row; raises ModelError for NaN or infinite weights."""

    def __init__(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        out, columns = weight.shape
        chunks = -(-columns // CHUNK_COLUMNS)
        width = -(-columns // (chunks * WIDTH)) * WIDTH
        weights = memory(chunks * out * width).view(torch.int8).view(chunks, out, width)
        scales = torch.empty(out, dtype=torch.float32, device="cpu")
        for start in range(0, out, ROWS):  # a large matrix is never whole in 32 bits
            block, scales[start : start + ROWS] = rounded(weight[start : start + ROWS])
            block = torch.nn.functional.pad(block, (0, chunks * width - columns)).view(-1, chunks, width)
            weights[:, start : start + ROWS] = block.transpose(0, 1)
        if not scales.isfinite().all():
            raise ModelError(f"weights {name} are NaN or infinite: get the complete files of the model")
        bias = None if bias is None else bias.float().contiguous()
        super().__init__(PackedMatrix(weights, scales, bias, out, columns, chunks, width, ROWS8))

    def sample(self) -> torch.Tensor:
        """The first columns, which tell the matrix from others, (out, WIDTH) int8: however they lie in memory."""
        return self.matrices[0].weights[0, :, :WIDTH]

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Rows of the matrix, (T, in) float32."""
        # of some thousand entries on, torch would use threads, which then spin on the cores that step.c needs
        places = np.asarray(ids, dtype=np.int64)
        matrix = self.matrices[0]
        weights, scales = matrix.weights.numpy()[:, places], matrix.scales.numpy()[places]
        whole = weights.transpose(1, 0, 2).reshape(len(places), matrix.chunks * matrix.width)
        return torch.from_numpy(whole[:, : self.columns] * scales[:, None])


class Norm(NamedTuple):
    """A norm of what matrices are multiplied with."""

    weight: torch.Tensor  # (in) float32
    epsilon: float
    centered: bool = False  # the mean is taken away first


def read_tokens(
    layers: ctypes.Array[Layer], shape: Shape, caches: ctypes.Array[Cache], x: torch.Tensor, *, apart: bool
) -> None:
    """Make embeddings x (T, hidden), float32, the output of the last layer; keys and values go into the caches.

    There is one cache, or, where rows are `apart`, one for each.  Raises ModelError where memory is short; then nothing
    has changed.
    """
    arguments = layers, ctypes.byref(shape), caches, apart, x.data_ptr(), len(x), threads()
    _check(step_functions().read_tokens(*arguments), len(x), layers[0].qkv.out + layers[0].gate_up.out)


def _check(code: int, rows: int, entries: int) -> None:
    """Raise ModelError where there was no memory for a pass, which has at least so many entries a row."""
    if code != DONE:
        raise ModelError(shortage(f"a pass over {rows} tokens", rows * entries * torch.float32.itemsize, least=True))


@cache
def product_seconds(precision: str, threads: int) -> float:  # noqa: ARG001  they are torch's own
    """Seconds that the product of one row and a large matrix takes on this CPU in a dtype, in 8 bits by step.c."""
    weight, row = (torch.ones(shape, dtype=torch.float32, device="cpu") for shape in (MEASURED, (1, MEASURED[1])))
    product: Callable[[torch.Tensor], torch.Tensor]
    if precision in PRECISIONS:
        product = Int8Group("measured", weight)
    else:
        dtype = getattr(torch, precision)
        row = row.to(dtype)
        product = partial(torch.nn.functional.linear, weight=weight.to(dtype))
    taken = []
    for _ in range(TIMES):
        weight.numpy().sum()  # a model's matrices come from memory: others have been read since
        began = time.perf_counter()
        product(row)
        taken.append(time.perf_counter() - began)
    return min(taken)


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Address of a tensor's first entry, None for none."""
    return None if tensor is None else tensor.data_ptr()


def threads() -> int:
    """Threads that torch uses, and the C code beside it."""
    return torch.get_num_threads()


def unsupported_reason() -> str | None:
    """Return the reason why this machine cannot run step.c, or None."""
    return _loaded()[1]


def step_functions() -> ctypes.CDLL:
    """The compiled step.c; raises ModelError where there is an `unsupported_reason`."""
    library, reason = _loaded()
    if library is None:
        raise ModelError(f"8-bit weights cannot be used here: {reason}")
    return library


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    try:
        library = _ready_or_compiled()
    except _NotLoadedError as error:
        return None, str(error)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return None, f"step.c cannot be compiled for this machine ({_line_at_fault(error)}): {REMEDY}"
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    sizes = (ctypes.c_int64 * len(LAYOUT))()
    if library.layout(sizes, len(LAYOUT)) != len(LAYOUT) or tuple(sizes) != LAYOUT:
        return None, f"step.c has a layout of {list(sizes)}, and this version {list(LAYOUT)}: install omnidraft anew"
    return library, None


def _ready_or_compiled() -> ctypes.CDLL:
    """That of the package, else of the cache folder, made where none is there or loads: homes are shared, and moved."""
    with suppress(OSError):
        if (ready := prebuilt(processor_flags())) is not None:
            return ctypes.CDLL(str(ready))
    text = f"{FLAGS} {processor()}".encode() + source_bytes()
    name, folder = f"step-{_digest(text)}", _native_folder()
    for path in _kept(folder, name):
        with suppress(OSError):
            return ctypes.CDLL(str(path))
    with _temporary() as place:
        compiled = place / f"{name}{SYSTEM.suffix}"
        _compile(compiled)
        if folder is not None:
            _keep(compiled, folder / _name_of(name, compiled))
        # either may be where nothing may be run; one that runs cannot go on Windows
        for path in (*_kept(folder, name), compiled):
            with suppress(OSError):
                return ctypes.CDLL(str(path))
        places = " or ".join(str(each) for each in (folder, place) if each is not None)
        raise _NotLoadedError(
            f"compiled code cannot be run from {places}, which may be mounted noexec: set OMNIDRAFT_HOME or TMPDIR to "
            "a folder from which programs run"
        )


def _native_folder() -> Path | None:
    """The folder of compiled code, made if it can be; without one, every process compiles it anew."""
    with suppress(OSError, ConfigError):
        (cache_folder() / "native").mkdir(parents=True, exist_ok=True)
        return cache_folder() / "native"
    return None


def _kept(folder: Path | None, name: str) -> list[Path]:
    """Libraries of a folder that are whole: one that was cut kills the process that runs it."""
    paths = () if folder is None else sorted(folder.glob(f"{name}-*{SYSTEM.suffix}"))
    return [path for path in paths if _is_whole(path, name)]


def _is_whole(library: Path, name: str) -> bool:
    with suppress(OSError):
        return library.name == _name_of(name, library)
    return False


def _name_of(name: str, library: Path) -> str:
    """The name under which a library is kept, which tells its content."""
    return f"{name}-{_digest(library.read_bytes())}{SYSTEM.suffix}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _keep(compiled: Path, kept: Path) -> None:
    """Copy a library to where the next process finds it, if that can be: another may have done so, and run it."""
    temporary = kept.with_name(f"{kept.name}.{os.getpid()}")
    with suppress(OSError):
        shutil.copyfile(compiled, temporary)
        temporary.replace(kept)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


class _NotLoadedError(Exception):
    """step.c was compiled, or could be, but there is no folder for it; the message says what to do."""


@contextmanager
def _temporary() -> Iterator[Path]:
    try:
        folder = tempfile.mkdtemp()
    except OSError as error:
        fix = "set TMPDIR to a folder that can be written"
        raise _NotLoadedError(f"step.c cannot be compiled without a temporary folder ({error}): {fix}") from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # on Windows, what is loaded from it stays


def _compile(library: Path) -> None:
    """Compile for this processor; raises OSError with what the compiler said."""
    compiler, complaint = _compiler(), ""
    # that of ziglang builds its libraries first: where it keeps them may not be writable
    environment = os.environ | {f"ZIG_{kind}_CACHE_DIR": str(library.parent / "zig") for kind in ("GLOBAL", "LOCAL")}
    for flags in FLAGS:
        for command in commands(compiler, flags, SOURCE, library, SYSTEM):
            result = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, env=environment)  # noqa: S603
            if result.returncode != 0:
                complaint = complaint or result.stderr.decode(errors="replace")
                break
        else:
            return
    if os.strerror(errno.ENOSPC) in complaint:
        fix = "free some space, or set TMPDIR to another folder"
        raise _NotLoadedError(f"step.c cannot be compiled, as the disk of {library.parent.parent} is full: {fix}")
    raise OSError(complaint)


def _compiler() -> list[str]:
    """The words that call a C compiler: those of CC, else the first that is found; raises OSError for none."""
    command = os.environ.get("CC", "")
    if shutil.which(command):  # a path may have blanks
        return [command]
    if words := shlex.split(command, posix=SYSTEM.suffix != ".dll"):  # there a backslash is of a path
        return [word.strip('"') for word in words]
    for name in SYSTEM.compilers:
        if path := shutil.which(name):
            return [path]
    if find_spec("ziglang"):  # a package with a compiler
        return [sys.executable, "-P", "-m", "ziglang", "cc"]
    raise OSError("there is no C compiler")


def processor() -> str:
    """Properties of this processor that compiled code depends on: a home folder may be shared by several machines."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.platform()} {platform.processor()}"


def _line_at_fault(error: Exception) -> str:
    """The line that says what failed: compilers draw what they mean below it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[-1]).strip()
