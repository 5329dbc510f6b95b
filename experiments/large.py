"""`python -m experiments.large`: a model of the shape of Qwen2-7B, of random blocks of 4 bits, beside llama.cpp.

The file, of 4.4 GB, is written for the run and removed; each way has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from experiments import llama
from experiments.judging import step_costs
from experiments.results import Results, Row, page_of, table
from experiments.runner import Experiment, Size
from omnidraft.cli import flags
from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.gguf.split_files import read_header
from omnidraft.models.language_model import KVSequence
from omnidraft.models.loading import load_model
from omnidraft.systems import peak_memory

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, SIZE = 3584, 18944, 28, 28, 4, 128
KEYS = {
    "context_length": 4096, "embedding_length": HIDDEN, "feed_forward_length": INNER, "block_count": LAYERS,
    "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
}  # fmt: skip
F32, Q4_K, Q6_K = 0, 12, 14
HALVES = {Q4_K: (0, 2), Q6_K: (208,)}  # where numbers of 16 bits are in a block
SMALL = 2.0**-14  # the scale of all blocks: outputs stay numbers
POOL = 2**26  # random bytes, of which all blocks are made
OURS, LLAMA = "omnidraft", "llama.cpp"
CONTEXT = 512  # of llama.cpp
TEXT = range(1000, 1100)  # ids of the tokens that are read before
COLUMNS = ("program", "load_s", "step_ms", "verify5", "peak_gb")


def shapes(words: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Name, kind and shape of each tensor."""
    yield "token_embd.weight", Q4_K, (words, HIDDEN)
    yield "output.weight", Q6_K, (words, HIDDEN)
    yield "output_norm.weight", F32, (HIDDEN,)
    rows = {
        "attn_q": (HEADS * SIZE, HIDDEN), "attn_k": (KEY_HEADS * SIZE, HIDDEN), "attn_v": (KEY_HEADS * SIZE, HIDDEN),
        "attn_output": (HIDDEN, HEADS * SIZE), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    for number in range(LAYERS):
        for name, shape in rows.items():
            yield f"blk.{number}.{name}.weight", Q4_K, shape
            if name in {"attn_q", "attn_k", "attn_v"}:
                yield f"blk.{number}.{name}.bias", F32, shape[:1]
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{number}.{name}.weight", F32, (HIDDEN,)


def values_of(kind: int, shape: tuple[int, ...], pool: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Ones, or rows (out, bytes) of random blocks."""
    _, entries, size = QUANTIZATIONS[kind]
    if kind == F32:
        return np.ones(shape, np.float32)
    blocks = shape[0] * shape[1] // entries
    raw = np.resize(np.roll(pool, seed * 4099), blocks * size).reshape(blocks, size)
    for at in HALVES[kind]:
        raw[:, at : at + 2] = np.array([SMALL], np.float16).view(np.uint8)
    return raw.reshape(shape[0], -1)


def write(path: Path, tokenizer: Path) -> None:
    """Write the model, with the tokenizer of another file; one tensor after the other, as all take 4.4 GB."""
    from gguf import GGMLQuantizationType, GGUFWriter

    out = GGUFWriter(path, "qwen2")
    for key, value in KEYS.items():
        out.add_uint32(f"qwen2.{key}", value)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    metadata = read_header(tokenizer).metadata
    for key, value in metadata.items():
        if key.startswith("tokenizer."):
            add: Any = {bool: out.add_bool, int: out.add_uint32, str: out.add_string, list: out.add_array}[type(value)]
            add(key, value)
    pool = np.random.default_rng(0).integers(0, 256, POOL, dtype=np.uint8)
    tensors = list(shapes(len(metadata["tokenizer.ggml.tokens"])))
    for name, kind, shape in tensors:
        _, entries, size = QUANTIZATIONS[kind]
        width = shape if kind == F32 else (shape[0], shape[1] // entries * size)
        dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
        nbytes = int(np.prod(width)) * dtype.itemsize
        out.add_tensor_info(name, width, dtype, nbytes, GGMLQuantizationType(kind))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    for number, (_, kind, shape) in enumerate(tensors):
        out.write_tensor_data(values_of(kind, shape, pool, number))
    out.close()


def measured(program: str, path: Path, threads: int, repeats: int) -> Row:
    """Seconds to load, milliseconds of a pass and how many times as long one of five takes, GB at the peak."""
    flags.prepare_libraries(threads)
    began = time.perf_counter()
    lm: KVSequence
    if program == OURS:
        lm = load_model(path, "int8", "cpu", verifies=True).lm.new_sequence()
    else:
        lm = llama.LlamaModel(path, CONTEXT, threads)
    loaded = time.perf_counter() - began
    row = step_costs({program: lm}, TEXT, repeats)[program]
    return {"program": program, "load_s": loaded, **row, "peak_gb": peak_memory() / 1e9}


class Large(Experiment):
    """A model of 7.6G random weights."""

    name = "large"
    about = "A model of the shape of Qwen2-7B, of random blocks of 4 bits: step, five tokens over one, memory."
    examples = ("--tokenizer QWEN2.gguf --threads 2",)
    sizes: ClassVar = {"passes": Size(7, 1, "timed passes")}

    def add_options(self, to: flags.CommandParser) -> None:
        about = "a Qwen2 file, for its tokenizer"
        to.add_argument("--tokenizer", type=Path, required=True, metavar="FILE", help=about)
        about = "where there is room for 4.4 GB (default: of the system)"
        to.add_argument("--folder", type=Path, metavar="DIR", help=about)

    def setting(self, options: argparse.Namespace) -> Row:
        return {"threads": options.threads}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        """Write the file and measure each program, in a process of its own."""
        with TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "random-7b.gguf"
            console.print(f"writing {path}")
            write(path, options.tokenizer)
            for program in (OURS, LLAMA) if llama.llama_module() else (OURS,):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    row = pool.submit(measured, program, path, options.threads, options.passes).result()
                results.add("rows", program, row)

    def page(self, results: Results) -> str:
        rows = results.of("rows").values()
        return page_of("A large model", results, table(rows, COLUMNS, COLUMNS[1], nearest=COLUMNS))

    def wrong(self, results: Results) -> bool:
        """Never: no answer is compared."""
        return not results.of("rows")


main = Large().main

if __name__ == "__main__":
    sys.exit(main())
