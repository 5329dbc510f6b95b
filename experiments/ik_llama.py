"""ik_llama.cpp, for `python -m experiments.device --also experiments.ik_llama:greedy`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


def greedy(path: str, *, n_ctx: int, n_threads: int, verbose: bool) -> Any:
    """Return an `IkLlama` of ik-llama-cpp-python whose choice of a token takes no time.

    The package copies the logits one by one in Python, which takes longer than a pass of a small model.
    """
    module = import_module("ik_llama_cpp")
    model = module.IkLlama(path, n_ctx=n_ctx, n_threads=n_threads, verbose=verbose)
    context, vocab_size = model._context, model._model.n_vocab  # noqa: SLF001  it offers no other way

    def sample(index: int, **_: object) -> int:
        return int(np.ctypeslib.as_array(context.get_logits(index), (vocab_size,)).argmax())

    context.sample = sample
    return model


def in_short_passes(path: str, *, n_ctx: int, n_threads: int, verbose: bool) -> Any:
    """Like `greedy`, with prompts read 16 tokens at a time.

    Version 0.1.5 reads 32 or more tokens of Q4_1 wrongly where it was tried (an AMD EPYC of Zen 5): its logits are not
    those of shorter passes, and answers end at once.
    """
    model = greedy(path, n_ctx=n_ctx, n_threads=n_threads, verbose=verbose)
    model._context._n_ubatch = 16  # noqa: SLF001
    return model
