"""Random models of many architectures, too small to take time."""

from __future__ import annotations

from typing import Any, cast

import torch
import transformers
from transformers import PreTrainedModel

ROWS = 96
TEXT = [(7 * i * i + 3 * i) % ROWS for i in range(40)]  # five windows of 8
SMALL: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
WINDOW = {"sliding_window": 8}
ALTERNATING = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "interleave_moe_layer_step": 1}
LONGROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    "original_max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": WINDOW,
    "gemma2": ALTERNATING,
    "gemma3_text": ALTERNATING,
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "llama4_text": {**EXPERTS, "attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]},
    "gpt2": GPT2,
    "gpt_neox": {},
}
# what each has that those above have not; a name may say more after its type
FOUR_LAYERS = {**ALTERNATING, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
PER_LAYER = {"vocab_size_per_layer_input": 1024, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
ROUTED = {
    "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 12, **ROUTED,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "llama tied": {"tie_word_embeddings": True},
    "qwen3": {**ALTERNATING, "use_sliding_window": True, "max_window_layers": 1},  # norms of queries and keys
    "phi": {"partial_rotary_factor": 0.5},  # attention beside the MLP
    "phi3 window": {**WINDOW, "pad_token_id": 0},
    "falcon one key head": {"multi_query": True},
    "falcon alibi": {"alibi": True, "multi_query": False, "num_kv_heads": 4},
    "falcon groups": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "topk_method": "greedy"},  # keys and values of unlike sizes
    "deepseek_v3": LATENT,
    "gpt_oss": {**ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2},  # sinks
    "mixtral": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bloom": {"n_layer": 2, "n_head": 4},  # alibi
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1},  # learned positions with an offset
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "pad_token_id": 1},
    "gptj": {**GPT2, "rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_bigcode": GPT2,  # one key head
    "cohere2": {**ALTERNATING, "logit_scale": 1.0},
    "olmo2": {},
    "stablelm": {"partial_rotary_factor": 0.5},
    "smollm3": {"no_rope_layers": [1, 0], "pad_token_id": 0},
    "gemma3n_text": {**FOUR_LAYERS, **PER_LAYER, "laurel_rank": 4, "altup_num_inputs": 2}
    | {"activation_sparsity_pattern": [0.0] * 4},  # layers that share keys and values
    "gemma4_text": {**FOUR_LAYERS, **PER_LAYER, "global_head_dim": 8},
    "bert decoder": {"is_decoder": True},
}
OTHERWISE = {"gpt2": {*SMALL} - {"vocab_size"}, "falcon": {"head_dim"}}  # what their configs have by other names


def build(kind: str = "llama", **changes: object) -> PreTrainedModel:
    """A random model; its weights are wide enough for every token seen to move the logits."""
    name = kind.split(maxsplit=1)[0]
    small = {key: value for key, value in SMALL.items() if key not in OTHERWISE.get(name, ())}
    config = transformers.CONFIG_MAPPING[name](**{**small, **(KINDS | MORE).get(kind, {}), **changes})
    torch.manual_seed(0)
    model = cast(Any, transformers.AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.05)
    return cast(PreTrainedModel, model.eval())


def afresh(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits (T, V) without any cache."""
    with torch.no_grad():
        return cast(torch.Tensor, model(torch.tensor([ids]), use_cache=False).logits[0].float())
