"""Time the parts that docs/performance.md speaks of, one at a time; what is compared takes turns in one run.

    python tools/measure_parts.py bookkeeping TARGET_TOKENIZER DRAFTER_TOKENIZER TEXT_FILE [NGRAM_SEED]
    python tools/measure_parts.py step
    python tools/measure_parts.py cache
    python tools/measure_parts.py swap
    python tools/measure_parts.py together
    python tools/measure_parts.py matrices MODEL.gguf [REPEATS]

`bookkeeping`: a round over prepared logits, no forward passes, of texts that the n-gram cache knows and of a new one;
PYTHONPATH=OTHER/src measures another checkout.
`step`: one token through the drafter by `transformers`, and in 8 bits and 5.
`cache`: one token and five at several contexts, on the cache of `transformers` and on ours.
`swap`: the embedded drafter takes other weights, and reads a text of 200 tokens again.
`together`: a token for each of several rows through the drafter that ships, one after the other and in one pass.
`matrices`: those of a file's layers, for 1 to 16 rows of inputs, and sums over the same bytes by numpy. One thread, in
seconds of the processor, which other programs on it change little.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM

from omnidraft.alignment.vocab import read_vocab
from omnidraft.attach import attach_drafter, make_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import decode
from omnidraft.models.language_model import SingleSequence
from omnidraft.models.loading import LoadedModel
from omnidraft.models.transformers_model import TransformersModel, cache_argument
from omnidraft.verification.sampling import GeneratorSampler

TOKENS, PROMPT = 300, 100
SAID, DRAFTED = 0.6, 0.7  # what a sampling target and a sampling drafter give to the script
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=50),
    Sampling(temperature=0.8, top_p=0.9),
)


class Prepared(SingleSequence):
    """A LanguageModel whose logits are there already, but for the token that it is to say next.

    Where it samples, the others share what is left by the law of Zipf, in another order at each position.
    """

    eos: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, said: float) -> None:
        self.vocab_size, self.context, self.length, self.seconds = vocab_size, 4096, 0, 0.0
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(16, vocab_size, generator=generator) * 2
        law = torch.arange(1, vocab_size + 1) ** -1.5
        self.others = ((1 - said) / law.sum() * law).log()[torch.randperm(vocab_size, generator=generator)].repeat(2)
        self.said = math.log(said)
        self.temperature = 0.0
        self.say: Callable[[int], int] = lambda _: 0

    def get_output_embeddings(self) -> None:
        """There is nothing for an acceptance head to read."""

    def crop(self, length: int) -> None:
        self.length = length

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        began = time.perf_counter()
        logits = self.rows[:keep].clone()
        self.length += len(ids)
        for row in range(keep):
            position = self.length - keep + row + 1
            if self.temperature == 0:
                logits[row, self.say(position)] = 100.0
                continue
            start = 7919 * position % self.vocab_size
            logits[row] = self.others[start : start + self.vocab_size]
            logits[row, self.say(position)] = self.said
            # as models in bf16 give them: in few distinct values
            logits[row] = (logits[row] * self.temperature).bfloat16()
        self.seconds += time.perf_counter() - began
        return logits


def bookkeeping(target_name: str, drafter_name: str, text: Path, seed: str = "vocabulary") -> None:
    tokenizers = [AutoTokenizer.from_pretrained(name) for name in (target_name, drafter_name)]
    sizes = [-(-len(tokenizer) // 128) * 128 for tokenizer in tokenizers]
    target, drafter = Prepared(sizes[0], SAID), Prepared(sizes[1], DRAFTED)
    large, small = (
        LoadedModel(model, tokenizer, "prepared", "")  # type: ignore[arg-type]
        for model, tokenizer in zip((target, drafter), tokenizers, strict=True)
    )
    vocab = read_vocab(tokenizers[0], target.vocab_size, ())
    pair = attach_drafter(large, vocab, small, Drafting(), print, SharedDrafter(drafter, native_step=False))  # type: ignore[arg-type]
    script = tokenizers[0](text.read_text(encoding="utf-8"))["input_ids"]
    drafts = pair.context.prompt(script[:PROMPT]) + pair.context.tokens(script[PROMPT:])
    chance = random.Random(0)  # noqa: S311  the same in every run
    right = [chance.random() < 0.7 for _ in drafts]
    target.say = script.__getitem__
    drafting = Drafting(draft_length=4, ngram_seed=seed)

    def follow(ids: Sequence[int]) -> None:
        """Let the drafter say how the script goes on after a text that may have left it."""
        written = len(pair.context.prompt(ids[:PROMPT])) + len(pair.context.tokens(ids[PROMPT:]))
        ahead = pair.context.tokens(script[len(ids) : len(ids) + 4])
        drafter.say = lambda i: ahead[min(i - written, len(ahead) - 1)]

    for sampling in SAMPLINGS:
        lane = Lane(target, (), replace(pair, cache=make_cache(pair.cache.table, drafting)), drafting)
        target.temperature = drafter.temperature = sampling.temperature
        taken, count = [], 0
        for _ in range(4):
            ids, count, aside = script[:PROMPT], 0, 0.0
            if sampling.greedy:
                drafter.say = lambda i: drafts[i] if right[i] else drafts[i // 2]
            else:
                follow(ids)
            target.seconds = drafter.seconds = 0.0
            began = time.perf_counter()
            for record in decode(lane, script[:PROMPT], TOKENS, sampling, GeneratorSampler(torch.Generator())):
                done = time.perf_counter()
                ids += record.emitted
                count += 1
                if not sampling.greedy:
                    follow(ids)
                aside += time.perf_counter() - done
            taken.append((time.perf_counter() - began - aside - target.seconds - drafter.seconds) / count)
        new, known = 1e3 * taken[0], 1e3 * statistics.median(taken[1:])
        print(sampling, f"{known:.2f} ms a round, {count} rounds; {new:.2f} ms where the text is new")


def llama(**shape: int) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()  # type: ignore[arg-type]


def turns(actions: Mapping[str, Callable[[], object]], laps: int = 40) -> str:
    """Median milliseconds of each action."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(laps):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            taken[name].append(1e3 * (time.perf_counter() - began))
    return ", ".join(f"{name} {statistics.median(times):.2f} ms" for name, times in taken.items())


def step() -> None:
    from omnidraft import zoo
    from omnidraft.models.loading import load_model
    from omnidraft.models.native.model import native_of

    shape = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 12}
    sources = {
        "shape of Llama-68M": TransformersModel(llama(vocab_size=32000, max_position_embeddings=2048, **shape)),
        "embedded drafter": load_model(zoo.path("drafter"), dtype="float32").lm,
    }
    for name, source in sources.items():
        kinds: dict[str, Any] = {"transformers": source, "8 bits": native_of(source)}
        kinds["5 bits"] = native_of(source, drafts=True)
        models = {kind: model.new_sequence() for kind, model in kinds.items()}
        for model in models.values():
            model.forward(list(range(3, 131)), 1)

        def once(model: Any) -> Callable[[], None]:
            def act() -> None:
                model.forward([5], 1)
                model.crop(128)

            return act

        print(f"{name}: {turns({kind: once(model) for kind, model in models.items()})}")


@torch.inference_mode()
def cache() -> None:
    from omnidraft.models.transformers_cache import new_cache

    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 9, "num_attention_heads": 16}
    model = llama(vocab_size=1000, max_position_embeddings=8192, **shape).to(torch.bfloat16)
    argument = cache_argument(model)
    for context in (512, 4096):
        ids = torch.randint(0, 1000, (1, context), generator=torch.Generator().manual_seed(0))
        caches = {"transformers": DynamicCache(), "ours": new_cache()}
        for held in caches.values():
            for start in range(0, context, 512):
                model(ids[:, start : start + 512], use_cache=True, logits_to_keep=1, **{argument: held})

        def once(held: DynamicCache, count: int, ids: torch.Tensor = ids) -> Callable[[], None]:
            def act() -> None:
                model(ids[:, :count], use_cache=True, **{argument: held})
                held.crop(-count)

            return act

        for count in (1, 5):
            actions = {name: once(held, count) for name, held in caches.items()}
            print(f"{count} tokens after {context}: {turns(actions, 15)}")


def swap() -> None:
    from omnidraft import zoo
    from omnidraft.decoding.shared_drafter import SharedDrafter
    from omnidraft.distillation.lora import merged
    from omnidraft.models.loading import load_model

    serving = SharedDrafter(load_model(zoo.path("drafter"), dtype="float32").lm)
    base, lent = dict(serving.source.model.named_parameters()), [serving.model]
    full = {name: weight + 0.01 for name, weight in base.items()}
    rows = {name: weight.shape for name, weight in base.items() if "proj" in name}
    lora: dict[str, torch.Tensor] = {}
    for name, (out, into) in rows.items():
        key = name.removesuffix(".weight")
        lora |= {
            f"{key}.lora_A.default.weight": torch.ones(32, into),
            f"{key}.lora_B.default.weight": torch.ones(out, 32),
        }

    def take(state: dict[str, torch.Tensor]) -> Callable[[], object]:
        return lambda: lent.append(serving.lend(merged(base, state), lent.pop()))

    def read() -> None:
        lent[0].new_sequence().forward(list(range(3, 203)), 1)

    print(turns({"all weights": take(full), "LoRA of rank 32": take(lora), "reading 200 tokens": read}))


def together() -> None:
    from omnidraft import zoo
    from omnidraft.models.language_model import Read
    from omnidraft.models.loading import load_model
    from omnidraft.models.native.model import NativeModel

    lm = load_model(zoo.resolve("zoo:general"), dtype="float32").lm
    model = NativeModel(lm.model, lm.model.state_dict())
    rows = [model.new_sequence() for _ in range(8)]
    for row in rows:
        row.forward(list(range(3, 131)), 1)

    def crop(some: Sequence[Any]) -> None:
        for row in some:
            row.crop(128)

    def apart(some: Sequence[Any]) -> Callable[[], None]:
        return lambda: crop([(row, row.forward([5], 1))[0] for row in some])

    def joined(some: Sequence[Any]) -> Callable[[], None]:
        return lambda: crop([model.read([Read(row, [5], 1) for row in some]), *some][1:])

    for count in (1, 2, 4, 8):
        actions = {"one after the other": apart(rows[:count]), "together": joined(rows[:count])}
        print(f"{count} rows: {turns(actions)}")


def matrices(path: Path, repeats: int = 7) -> None:
    from omnidraft.models.gguf.native_weights import weights_of
    from omnidraft.models.loading import load_skeleton
    from omnidraft.models.native.model import NativeModel

    torch.set_num_threads(1)
    skeleton = load_skeleton(path)
    began = time.process_time()
    model = NativeModel(skeleton, weights_of(path, skeleton))
    took = time.process_time() - began
    layers = [each for name, each in model._layer_weights.groups.items() if ".layers." in name]  # noqa: SLF001
    size = sum(each.nbytes for each in layers)
    inputs = {each.columns: torch.randn(16, each.columns) for each in layers}
    memory = [bits.numpy()[: len(bits) // 8 * 8].view(np.int64) for each in layers for bits, *_ in each.matrices]

    def seconds(action: Callable[[], object]) -> float:
        began = time.process_time()
        action()
        return time.process_time() - began

    taken: dict[int, list[float]] = {rows: [] for rows in (0, 1, 2, 3, 5, 8, 9, 16)}
    for _ in range(repeats):
        for rows, times in taken.items():
            read = [each.sum for each in memory]
            products = [partial(each, inputs[each.columns][:rows]) for each in layers]
            times.append(sum(map(seconds, products if rows else read)))
    best = {rows: min(times) for rows, times in taken.items()}
    print(f"loaded in {took:.2f} s; {size / 1e9:.3f} GB in the layers, {size / best[0] / 1e9:.1f} GB/s by numpy")
    for rows in list(best)[1:]:
        print(f"{rows} rows: {1e3 * best[rows]:.1f} ms, {best[rows] / best[1]:.2f} times one row")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if sys.argv[1] == "bookkeeping":
        bookkeeping(sys.argv[2], sys.argv[3], Path(sys.argv[4]), *sys.argv[5:])
    elif sys.argv[1] == "matrices":
        matrices(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        {"step": step, "cache": cache, "swap": swap, "together": together}[sys.argv[1]]()
