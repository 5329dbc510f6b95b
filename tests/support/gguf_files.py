"""A small random model as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from omnidraft.models.gguf.token_kinds import CONTROL
from support.small_tokenizers import byte_level

writer = pytest.importorskip("gguf", reason="the gguf package is not installed")
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
NAMES = {
    "embed_tokens": "token_embd", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "norm": "output_norm",
}  # fmt: skip


def small_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    size = byte_level().get_vocab_size()
    config = Qwen2Config(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    model: Qwen2ForCausalLM = Qwen2ForCausalLM(config).eval()
    return model


def write(path: Path, model: Qwen2ForCausalLM, architecture: str = "qwen2") -> Path:
    """A model and the tokenizer `byte_level` as a GGUF file in fp32."""
    config, tokenizer = model.config, byte_level()
    out = writer.GGUFWriter(path, architecture)
    out.add_name("Small")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(10000.0)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([token for token, _ in vocab])
    out.add_token_types([CONTROL if token in special else 1 for token, _ in vocab])
    out.add_token_merges([" ".join(pair) for pair in merges(tokenizer)])
    out.add_bos_token_id(tokenizer.token_to_id("<s>"))
    out.add_eos_token_id(tokenizer.token_to_id("<unk>"))  # not </s>, which ends answers, too
    out.add_chat_template(TEMPLATE)
    for name, weight in model.model.state_dict().items():
        part, _, kind = name.removeprefix("layers.").rpartition(".")
        block, _, rest = part.partition(".") if part[0].isdigit() else ("", "", part)
        out.add_tensor(".".join(filter(None, ["blk" if block else "", block, NAMES[rest], kind])), weight.numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def merges(tokenizer: Any) -> list[tuple[str, str]]:
    rules: list[tuple[str, str]] = [tuple(rule) for rule in json.loads(tokenizer.to_str())["model"]["merges"]]
    return rules
