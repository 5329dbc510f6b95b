"""Time greedy text of random models, in shapes that people run: `generate` in bf16, and the native step, in turns.

    python tools/measure_families.py [SHAPE ...]

Neither drafts.  Medians over turns of TOKENS tokens, in seconds of the processor, which other programs change little,
and by the clock.  One thread: of several, those that wait for the others use the processor as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from omnidraft.models.native.model import NativeModel

TURNS, TOKENS, PROMPT, THREADS = 7, 12, 8, 1
ENDLESS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma-3-270m": (
        "gemma3_text",
        {"vocab_size": 262_144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512},
    ),
    "phi-3-like": (
        "phi3",
        {"vocab_size": 32_064, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16},
    ),
    "granite-4-350m": (
        "granite",
        {"vocab_size": 100_352, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
}  # fmt: skip


def random_model(shape: str) -> PreTrainedModel:
    """A model of a shape, in bf16."""
    from transformers import AutoConfig

    kind, sizes = SHAPES[shape]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **ENDLESS)
    made: Any = AutoModelForCausalLM
    model: PreTrainedModel = made.from_config(config, dtype=torch.bfloat16).eval()
    return model


def generated(model: PreTrainedModel, prompt: list[int]) -> None:
    """Greedy text by transformers."""
    given: Any = model
    given.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)


def stepped(model: NativeModel, prompt: list[int]) -> None:
    """Greedy text by the native step."""
    sequence = model.new_sequence()
    logits = sequence.forward(prompt, 1)
    for _ in range(TOKENS - 1):
        logits = sequence.forward([int(logits.numpy()[-1].argmax())], 1)


def seconds(work: Callable[[], None]) -> tuple[float, float]:
    """Of the processor, and by the clock."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - processor, time.perf_counter() - clock


def main(*shapes: str) -> None:
    torch.set_num_threads(THREADS)
    prompt = [(7 * i * i + 3 * i) % 30_000 for i in range(PROMPT)]
    for shape in shapes or SHAPES:
        model = random_model(shape)
        works: dict[str, Callable[[], None]] = {
            "generate, bf16": partial(generated, model, prompt),
            "native, 8 bits": partial(stepped, NativeModel(model, model.state_dict()), prompt),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for turn in range(TURNS + 1):
            for name, work in works.items():
                found = seconds(work)
                if turn:  # the first warms up
                    taken[name].append(found)
        processor, clock = (
            {name: statistics.median(t[i] for t in times) for name, times in taken.items()} for i in (0, 1)
        )
        for name in works:
            rates = f"{TOKENS / clock[name]:7.1f} tokens/s by the clock, {processor[name] / TOKENS * 1e3:7.1f} ms"
            print(f"{shape} ({model.num_parameters() / 1e6:.0f}M) {name}: {rates} of the processor a token", flush=True)
        slow, quick = works
        print(f"{shape}: {processor[slow] / processor[quick]:.2f}x, {clock[slow] / clock[quick]:.2f}x by the clock")


if __name__ == "__main__":
    main(*sys.argv[1:])
