"""Tiny random hybrids of the families that transformers has."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from support.models import build

FOUR: dict[str, Any] = {
    "num_hidden_layers": 4, "max_position_embeddings": 2048, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
THREE_OF_FOUR = ["linear_attention"] * 3 + ["full_attention"]
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": THREE_OF_FOUR,
}  # fmt: skip
MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16,
    "mamba_expand": 2,
}  # fmt: skip
CONV = ["conv", "conv", "full_attention", "conv"]
# those that verify drafts
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA,
    "qwen3_next": {**DELTA, **EXPERTS},
    "qwen3_5_moe_text": {**DELTA, **EXPERTS},
    "olmo_hybrid": DELTA,
    "lfm2": {"layer_types": CONV, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**EXPERTS, "layer_types": CONV, "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "sliding_attention", "full_attention", "conv"], "sliding_window": 8},
    "granitemoehybrid": {
        **MAMBA2, "layer_types": ["mamba", "mamba", "attention", "mamba"], "num_local_experts": 4,
        "num_experts_per_tok": 2, "shared_intermediate_size": 16,
    },
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64},  # attention and states in each layer
    "bamba": {**MAMBA2, "attn_layer_indices": [2]},  # counts its positions from 0 in each pass, where none are given
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},  # states alone
}  # fmt: skip
PERIODS = {
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    "num_experts": 2,
}  # fmt: skip
ZAMBA = {
    "num_hidden_layers": 6, "mamba_d_state": 8, "attention_head_dim": 16, "attention_hidden_size": 64,
    "num_key_value_heads": 4,
}  # fmt: skip
# those whose passes of several tokens say something else than passes of one
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "jamba": {**PERIODS, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "zamba": {**ZAMBA, "attn_layer_period": 3, "attn_layer_offset": 2, "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": {
        **ZAMBA, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2, "mamba_headdim": 8, "n_mamba_heads": 8,
        "mamba_ngroups": 1, "chunk_size": 16, "num_mem_blocks": 1, "use_mem_rope": True,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe", "mamba"], "mamba_num_heads": 8, "mamba_head_dim": 8,
        "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip
# mixtures of experts whose state is a KV cache alone
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    "gpt_oss": {
        "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def hybrid(kind: str, *, std: float = 0.2, **changes: object) -> PreTrainedModel:
    """A random model of a family above, whose states move the logits; its greedy text varies."""
    model = build(kind, **{**FOUR, **(HYBRIDS | ONE_BY_ONE | MIXTURES)[kind], **changes})
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "A_log" not in name:
                parameter.normal_(std=std)
    return model
