"""Time plain and verifying passes of the native step for numbers of threads, in Markdown: how far more cores pay.

    python tools/measure_threads.py [MODEL.gguf] [--threads 1,2,4] [--rows 1,5,8] [--busy N] [--seconds 200]

Without a file, a model of the shape of Qwen2.5-Coder-1.5B with random blocks of 4 bits, which takes 1 GB.  Each level
of the processor's instructions has a process of its own, which compiles step.c for it by the system's compiler.  A cell
has the milliseconds of a pass, the median of turns in which all numbers of threads and rows take part, and how many
times as long as a pass over one row it takes.  `--busy` has as many other processes compute all the while, as on a
machine that is shared: twice as many as there are cores show whether any thread waits for one that was put aside.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnidraft.cores import threads_that_pay
from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.gguf.native_weights import weights_of
from omnidraft.models.loading import load_skeleton
from omnidraft.models.native.model import NativeModel
from omnidraft.models.native.packed_matrices import StoredMatrix, StoredWeights
from omnidraft.systems import logical_processors, processor_name

SHAPE = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True,
}  # fmt: skip
Q4_K, Q6_K = 12, 14
FINER = ("model.embed", "lm_head", *(f"model.layers.{number}.mlp.down" for number in range(0, 28, 2)))
SCALES = {Q4_K: (0, 2), Q6_K: (208,)}  # where numbers of 16 bits are in a block
SMALL = np.array([2.0**-14], np.float16).view(np.uint8)  # outputs stay numbers
READ = 64  # tokens that are read before
# what is left out of a processor's instructions, and those without which nothing is
LEVELS = {
    "AVX2": (("-mno-avx512f", "-mno-avxvnni"), ""),
    "AVX-512": (("-mno-avx512vnni", "-mno-avxvnni"), "avx512f"),
    "all": ((), "avx512_vnni"),
}
BUSY = "while True: pass"


class RandomWeights(StoredWeights):
    """Blocks of 4 bits, of 6 in the head and every other last matrix of a layer as such files have it, and vectors."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self._shapes = shapes

    def stored(self, name: str) -> StoredMatrix | None:
        if name not in self._shapes or len(self._shapes[name]) < 2:
            return None
        kind = Q6_K if name.startswith(FINER) else Q4_K
        out, columns = self._shapes[name]
        return StoredMatrix(name, kind, out, columns, partial(self._rows, kind, columns))

    @staticmethod
    def _rows(kind: int, columns: int, start: int, end: int) -> np.ndarray[Any, Any]:
        _, entries, size = QUANTIZATIONS[kind]
        blocks = (end - start) * columns // entries
        raw = np.random.default_rng(start).integers(0, 256, (blocks, size), np.uint8)
        for at in SCALES[kind]:
            raw[:, at : at + 2] = SMALL
        return raw.reshape(end - start, -1)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.ones(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def model_of(path: Path | None) -> NativeModel:
    """That of a file, or a random one."""
    if path is not None:
        skeleton = load_skeleton(path)
        return NativeModel(skeleton, weights_of(path, skeleton))
    from transformers import AutoConfig, AutoModelForCausalLM

    made: Any = AutoModelForCausalLM
    with torch.device("meta"):
        skeleton = made.from_config(AutoConfig.for_model("qwen2", **SHAPE))
    return NativeModel(skeleton, RandomWeights({name: each.shape for name, each in skeleton.state_dict().items()}))


def measured(model: NativeModel, threads: Sequence[int], rows: Sequence[int], seconds: float) -> list[Any]:
    """Milliseconds of a pass, for each number of threads and of rows; each pass follows the same text."""
    sequence = model.new_sequence()
    sequence.forward(list(range(READ)), 1)
    taken: dict[tuple[int, int], list[float]] = {each: [] for each in product(threads, rows)}
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 2 or time.perf_counter() < end:  # the first warms up
        for (count, several), times in taken.items():
            torch.set_num_threads(count)
            sequence.crop(READ)
            sequence.forward([READ], 1)  # has the threads awake, and the model's weights pass by
            began = time.perf_counter()
            sequence.forward(list(range(READ + 1, READ + 1 + several)), several)
            times.append(1e3 * (time.perf_counter() - began))
        turn += 1
    return [[*each, statistics.median(times[1:]), len(times) - 1] for each, times in taken.items()]


def levels(machine: str, flags: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Those that a processor has, the least first, by what a compiler is told to leave out."""
    if machine not in {"x86_64", "AMD64"}:
        return {"all": ()}
    had = {name: left_out for name, (left_out, needed) in LEVELS.items() if not needed or needed in flags}
    return {**had, list(had)[-1]: ()}


def flags_of_processor() -> list[str]:
    """What Linux calls its instructions; none elsewhere."""
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return []


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other processes compute inside."""
    with ExitStack() as stack:
        for _ in range(count):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))  # noqa: S603
            stack.callback(other.kill)
        yield


def of_level(words: Sequence[str], left_out: Sequence[str]) -> list[Any]:
    """What this script measures in a process whose step.c was compiled without some instructions."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    with tempfile.TemporaryDirectory() as folder:
        more = {"CC": " ".join([compiler, *left_out]), "OMNIDRAFT_HOME": folder} if left_out and compiler else {}
        command = [sys.executable, __file__, *words, "--json"]
        done = subprocess.run(command, env=os.environ | more, stdout=subprocess.PIPE, check=True)  # noqa: S603
    rows: list[Any] = json.loads(done.stdout)
    return rows


def page(found: Mapping[str, Sequence[Any]], about: str) -> str:
    """The table: a line for each level and number of threads, and a column for each number of rows."""
    several = list(dict.fromkeys(rows for each in found.values() for _, rows, *_ in each))
    lines = [
        about,
        "",
        "| instructions | threads | " + " | ".join(f"{rows} rows, ms" for rows in several) + " | turns |",
    ]
    lines.append("| --- |" + " ---: |" * (len(several) + 2))
    for level, each in found.items():
        taken = {(threads, rows): (ms, turns) for threads, rows, ms, turns in each}
        for threads in dict.fromkeys(threads for threads, _ in taken):
            first = taken[threads, several[0]][0]
            cells = [f"{taken[threads, rows][0]:.1f} ({taken[threads, rows][0] / first:.2f}x)" for rows in several]
            lines.append(f"| {level} | {threads} | {' | '.join(cells)} | {taken[threads, several[0]][1]} |")
    return "\n".join(lines)


def doubled(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most."""
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main(*words: str) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file (default: random weights)")
    most = threads_that_pay()
    parser.add_argument("--threads", type=numbers, default=doubled(most), help="(default: up to %(default)s)")
    parser.add_argument("--rows", type=numbers, default=[1, 5, 8], help="tokens of a pass (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other processes that compute (default: 0)")
    parser.add_argument("--seconds", type=float, default=200, help="of all passes together (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # of one level
    options = parser.parse_args(words)
    if options.json:
        print(json.dumps(measured(model_of(options.model), options.threads, options.rows, options.seconds)))
        return
    ways = levels(platform.machine(), flags_of_processor())
    given = [str(options.model)] * (options.model is not None)
    given += ["--rows", ",".join(map(str, options.rows)), "--threads", ",".join(map(str, options.threads))]
    given += ["--seconds", str(options.seconds / len(ways))]
    with busy(options.busy):
        found = {name: of_level(given, left_out) for name, left_out in ways.items()}
    cores = f"{logical_processors()} logical processors, {most} threads by default, {options.busy} others busy"
    name = "random weights, Qwen2.5-Coder-1.5B's shape" if options.model is None else options.model.name
    print(page(found, f"{processor_name()}, {cores}; {name}"))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(*sys.argv[1:])
