"""vLLM with a small random target."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

LONGEST, CONTEXT = 3, 128
PROMPTS = [[1 + number % 40, 50 + number % 9, 7, 5 + number % 13][: 2 + number % 3] for number in range(20)]


def save_target(folder: Path) -> Path:
    """A random Llama with heads of a size that vLLM's attention has a kernel for."""
    from support.models import build
    from support.small_tokenizers import byte_level, wrap

    tokenizer = wrap(byte_level())
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
    }
    build("llama", vocab_size=len(tokenizer), **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def started(target: Path, omnidraft: dict[str, Any] | None) -> Any:
    """vLLM alone, or with our drafts and these settings."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    config = {"method": "custom_class", "model": "omnidraft.vllm.Proposer", "num_speculative_tokens": LONGEST}
    return import_module("vllm").LLM(
        str(target),
        dtype="float32",
        max_model_len=CONTEXT,
        max_num_seqs=8,
        disable_log_stats=False,
        enable_prefix_caching=False,
        speculative_config=None if omnidraft is None else config,
        additional_config={"omnidraft": omnidraft or {}},
    )


def answered(lm: Any, count: int = 24) -> list[list[int]]:
    """Greedy answers of other lengths to all prompts."""
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    parameters = import_module("vllm").SamplingParams
    sampling = [parameters(temperature=0, max_tokens=count - number % 7) for number in range(len(prompts))]
    return [list(each.outputs[0].token_ids) for each in lm.generate(prompts, sampling, use_tqdm=False)]


def counts(lm: Any) -> dict[str, int]:
    """vLLM's counters of speculative decoding."""
    return {each.name.split("spec_decode_")[-1]: each.value for each in lm.get_metrics() if hasattr(each, "value")}
