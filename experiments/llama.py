"""llama.cpp, by the low-level interface of llama-cpp-python: a GGUF file behind the interface of our models.

The extra `llama-cpp` installs it.  All settings but threads and the size of the cache are llama.cpp's own defaults, and
logits are computed for the positions that are asked for, so that its figures are the best that it has.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnidraft.bench.interleaved import TimedAnswer
from omnidraft.errors import InputError, ModelError
from omnidraft.models.language_model import LanguageModel, SingleSequence
from omnidraft.models.transformers_model import CHUNK_IDS
from omnidraft.storage import cache_folder

EXTRA = "pip install 'omnidraft[llama-cpp]'"
LOOKUP_TOKENS = 2  # num_pred_tokens: what its documentation has for machines without a GPU
Lookup = Callable[[Any], Any]  # (T,) int32 -> (D,) int32


@cache
def llama_module() -> Any | None:
    """The module llama_cpp, None where it is not installed."""
    try:
        found = importlib.import_module("llama_cpp")
    except ImportError:
        return None
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)  # it takes llama.cpp's warnings for errors
    return found


def lookup() -> Lookup:
    """Drafts copied from the text before, as llama-cpp-python makes them."""
    made: Lookup = importlib.import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(
        num_pred_tokens=LOOKUP_TOKENS
    )
    return made


def requantized(path: Path, threads: int) -> Path:
    """The file's model in Q8_0, made once and kept in the cache folder; raises ModelError where that fails."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    kept = cache_folder() / "q8_0" / f"{digest[:16]}.gguf"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        settings = _needed().llama_model_quantize_default_params()
        settings.ftype, settings.nthread = _needed().LLAMA_FTYPE_MOSTLY_Q8_0, threads
        settings.allow_requantize = True
        part = kept.with_suffix(".part")
        if _needed().llama_model_quantize(str(path).encode(), str(part).encode(), ctypes.byref(settings)):
            raise ModelError(f"llama.cpp cannot quantize {path.name} to Q8_0: use another file")
        part.rename(kept)
    return kept


class LlamaModel(SingleSequence):
    """A `LanguageModel` of a GGUF file, on the CPU; raises ModelError for a file that llama.cpp cannot load."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        lib = _needed()
        options = lib.llama_model_default_params()
        options.n_gpu_layers = 0
        model = lib.llama_model_load_from_file(str(path).encode(), options)
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_threads, settings.n_threads_batch = context, threads, threads
        place = model and lib.llama_init_from_model(model, settings)
        if not place:
            raise ModelError(f"llama.cpp cannot load {path.name}: use a file that it can")
        self.vocab_size: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.shape = self.vocab_size, int(lib.llama_model_n_layer(model)), int(lib.llama_model_n_embd(model))
        self.context = context
        self.length = 0
        described = ctypes.create_string_buffer(128)
        lib.llama_model_desc(model, described, len(described))
        after_size = described.value.decode().split(maxsplit=2)[-1]
        self.precision = after_size.removeprefix("(guessed) ")  # of a header that does not say it
        self._lib, self._place, self._memory = lib, place, lib.llama_get_memory(place)
        self._batch = lib.llama_batch_init(CHUNK_IDS, 0, 1)
        weakref.finalize(self, _release, lib, model, place, self._batch)

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them, (keep, vocab_size) float32.

        They are llama.cpp's own memory, which the next pass writes to.
        """
        if not 0 <= keep <= len(ids) or self.length + len(ids) > self.context:
            raise InputError(f"{self.length} + {len(ids)} tokens, {keep} kept: the cache holds {self.context}")
        kept = []
        for start in range(0, len(ids), CHUNK_IDS):
            chunk = ids[start : start + CHUNK_IDS]
            rows = len(chunk) - max(0, len(ids) - keep - start)  # positions of this chunk whose logits are kept
            self._decode(chunk, rows)
            if rows > 0:
                logits = np.ctypeslib.as_array(self._lib.llama_get_logits(self._place), (rows * self.vocab_size,))
                logits = logits.reshape(rows, self.vocab_size)
                kept.append(logits if rows == keep else logits.copy())
        if not kept:
            return torch.empty(0, self.vocab_size)
        return torch.from_numpy(kept[0] if len(kept) == 1 else np.concatenate(kept))

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises ModelError where llama.cpp cannot drop the others."""
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise ModelError(f"llama.cpp cannot keep {length} of {self.length} tokens of this model: use another")
        self.length = length

    def _decode(self, ids: Sequence[int], rows: int) -> None:
        batch = self._batch
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, self.length + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= len(ids) - rows
        if self._lib.llama_decode(self._place, batch):
            raise ModelError(f"llama.cpp cannot read {len(ids)} tokens after {self.length}: use a smaller context")
        self.length += len(ids)


class LlamaMethod:
    """Greedy decoding by llama.cpp, with `draft` of copied drafts that are checked in the same pass."""

    def __init__(self, name: str, model: LanguageModel, eos: Sequence[int], draft: Lookup | None = None) -> None:
        self.name, self._sequence, self._eos, self._draft = name, model.new_sequence(), frozenset(eos), draft
        self._prompt: list[int] = []
        self._tokens: list[int] = []
        self._passes: list[int] = []

    def restart(self) -> None:
        """Nothing is kept between answers."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:  # noqa: ARG002  greedy, of any length
        self._prompt, self._tokens, self._passes = ids, [], []

    def advance(self, length: int) -> bool:
        """Answer in one go; raises ModelError if llama.cpp fails."""
        text, said = list(self._prompt), self._tokens
        self._sequence.crop(0)
        while len(said) < length and self._eos.isdisjoint(said[-1:]):
            draft: list[int] = []
            if self._draft is not None:
                draft = self._draft(np.array(text, np.intc)).tolist()[: length - len(said) - 1]
            fed = [*text[self._sequence.length :], *draft]
            best: list[int] = self._sequence.forward(fed, len(draft) + 1).numpy().argmax(-1).tolist()
            self._passes.append(len(fed))
            right = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
            new = best[: right + 1]
            new = new[: next((i + 1 for i, token in enumerate(new) if token in self._eos), len(new))]
            self._sequence.crop(len(text) + right)
            text += new
            said += new
        return len(said) >= length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self._tokens, passes=self._passes)


def _needed() -> Any:
    found = llama_module()
    if found is None:
        raise ModelError(f"llama.cpp is not installed: {EXTRA}")
    return found


def _release(lib: Any, model: Any, place: Any, batch: Any) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(place)
    lib.llama_model_free(model)
